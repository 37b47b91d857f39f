"""MHETA's figures taken apart into those of each worker, to be kept, and put together again. Pure.

A machine is of a team of workers. Kept is what each worker adds to it, so that any team whose
workers are all known has a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpmdask.apps.stencil.program import with_computing
from fpmdask.errors import PartitionError
from fpmdask.mheta import Machine, Program
from fpmdask.models import from_json
from fpmdask.runtime.known_models import MODEL, NODE, SECONDS_PER_ROW, SHARED


def taken_apart(program: Program, machine: Machine) -> list[dict[str, Any]]:
    """Return the figures of each node as `KnownMachine.figures`, in the order of nodes.

    Examples
    --------
    >>> from fpmdask.mheta import Section, Stage
    >>> machine = Machine(2, memory_bytes=[1, 2], read_s_per_byte=[0.1, 0.2], latency_s=0.5)
    >>> taken_apart(Program([Section([Stage([3.0, 4.0])])]), machine)[1]
    {'node': {'read_s_per_byte': 0.2}, 'shared': {'latency_s': 0.5}, 'seconds_per_row': 4.0}
    """
    stage = program.sections[0].stages[0]
    data = machine.to_dict()
    shared = {name: value for name, value in data.items() if not isinstance(value, list)}
    lists = {k: v for k, v in data.items() if isinstance(v, list) and k != "memory_bytes"}
    found = []
    for node in range(machine.nodes):
        own = {name: values[node] for name, values in lists.items()}
        computing: dict[str, Any] = {}
        if stage.models is not None:
            computing[MODEL] = stage.models[node].to_json()
        elif stage.seconds_per_row is not None:
            computing[SECONDS_PER_ROW] = stage.seconds_per_row[node]
        found.append({NODE: own, SHARED: shared, **computing})
    return found


def put_together(
    figures: Sequence[Mapping[str, Any]], program: Program, names: Sequence[str]
) -> dict[str, Any] | None:
    """Return a machine as `fpmdask.runtime.client.machines.saved_machine` does.

    Parameters
    ----------
    figures
        Of each worker, as of `taken_apart`. Of the network the first one's count.
    program
        The structure.
    names
        Of the workers.

    Returns
    -------
    dict or None
        None where the figures are not of one kind, or not what they should be.
    """
    try:
        named = dict.fromkeys(name for one in figures for name in one[NODE])
        lists = {name: [one[NODE].get(name) for one in figures] for name in named}
        machine = Machine.from_dict({**lists, **figures[0][SHARED]}, len(figures))
        if all(MODEL in one for one in figures):
            complete = with_computing(program, None, [from_json(one[MODEL]) for one in figures])
        else:
            complete = with_computing(program, [one[SECONDS_PER_ROW] for one in figures])
    except (KeyError, TypeError, PartitionError):
        return None
    return {
        "machine": machine.to_dict(),
        "nodes": machine.nodes,
        "program": complete.to_dict(),
        "workers": list(names),
    }
