"""Machines of MHETA that a caller has saved, as plain data for the coordinator."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fpmdask.errors import PartitionError

# In a document: names of the workers that are its nodes, in their order. MHETA takes it for a note.
WORKERS = "_workers"
ALLOWED = (
    "a fpmdask.mheta.Machine, an earlier report, or the document of a program and a machine "
    "(fpmdask.mheta) as a mapping, JSON text or the path of a file"
)


def saved_machine(given: Any) -> dict[str, Any] | None:
    """Return a machine, and what else was saved with it; None of None.

    Parameters
    ----------
    given
        A `Machine`, a report of a run that MHETA distributed, or plain data as their `to_dict`
        returns it: a mapping, JSON text or a path.

    Returns
    -------
    dict or None
        ``machine`` as of `Machine.to_dict`, ``nodes``, and, None where they were not saved,
        ``program`` as of `Program.to_dict` and ``workers``, the names of the nodes.

    Raises
    ------
    PartitionError
        For anything else.

    Examples
    --------
    >>> saved_machine('{"read_overhead_s": [0.001, 0.002]}')
    {'machine': {'read_overhead_s': [0.001, 0.002]}, 'nodes': 2, 'program': None, 'workers': None}
    """
    if given is None:
        return None
    from fpmdask.mheta import Machine
    from fpmdask.mheta.document import Document
    from fpmdask.mheta.machine import PER_NODE

    if hasattr(given, "mheta"):  # a report
        given = given.mheta.get("document")
        if given is None:
            raise PartitionError(
                "machine: this report has none, since its run was in core; give another one, or "
                "have the machine measured"
            )
    data = _plain(given)
    if isinstance(data, Machine):
        return _saved(data)
    if not isinstance(data, Mapping):
        raise PartitionError(f"machine is a {type(given).__name__}; give {ALLOWED}")
    if "phases" in data and isinstance(data.get("document"), Mapping):  # a report's `mheta`
        data = data["document"]
    if "machine" in data or "program" in data:
        document = Document.from_dict(data)
        workers = data.get(WORKERS)
        if workers is not None and len(workers) != document.machine.nodes:
            raise PartitionError(
                f"machine: {WORKERS} names {len(workers)} workers, the machine has "
                f"{document.machine.nodes} nodes; give one name for each"
            )
        return _saved(document.machine, document.program.to_dict(), workers)
    lists = [v for name in PER_NODE if isinstance(v := data.get(name), list | tuple)]
    if not lists:
        keys = ", ".join(map(repr, [*data][:8])) + ", …" * (len(data) > 8)
        raise PartitionError(
            f"machine has no list of figures per node, but {keys or 'nothing'}; give {ALLOWED}"
        )
    return _saved(Machine.from_dict(data, len(lists[0])))


def _saved(machine: Any, program: Any = None, workers: Any = None) -> dict[str, Any]:
    names = None if workers is None else list(map(str, workers))
    return {
        "machine": machine.to_dict(),
        "nodes": machine.nodes,
        "program": program,
        "workers": names,
    }


def _plain(given: Any) -> Any:
    """Return what JSON text, or a file of it, holds; anything else as it is."""
    if not isinstance(given, str | os.PathLike):
        return given
    text, where = given, "machine"
    if not (isinstance(given, str) and given.lstrip().startswith("{")):
        where = f"machine = {os.fspath(given)!r}"
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PartitionError(f"{where} cannot be read ({error}); give {ALLOWED}") from error
    try:
        return json.loads(str(text))
    except (ValueError, RecursionError) as error:  # nested too deeply
        raise PartitionError(f"{where} is not JSON ({error}); give {ALLOWED}") from error
