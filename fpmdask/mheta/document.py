"""A program, a machine and their rows as one JSON document."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.blocks import check_nodes
from fpmdask.mheta.checks import IntArray
from fpmdask.mheta.machine import PER_NODE, Machine
from fpmdask.mheta.program import Program
from fpmdask.mheta.stages import ACCOUNTINGS
from fpmdask.partition.validate import MAX_UNITS

FORMAT = "fpmdask.mheta"
VERSION = 1

_KEYS = ("format", "version", "rows", "nodes", "program", "machine")
_OPTIONS = ("distribution", "iterations", "accounting")
# What people write beside the figures; also every key that begins with "_".
_NOTES = ("name", "why", "expected")


@dataclass(frozen=True, slots=True)
class Document:
    """What is needed to predict a program on a machine, and to search for its distribution.

    Parameters
    ----------
    program : Program
    machine : Machine
    rows : int
        At least 1.
    distribution : ndarray of int64, shape [p], optional
        One that sums to the rows.
    iterations : int
        How many iterations a prediction covers.
    accounting : {"exact", "paper"}
        What is charged for I/O.

    Examples
    --------
    >>> found = Document.from_dict({"rows": 9, "program": {"sections": [{"stages": [
    ...     {"seconds_per_row": [0.5, 0.25]}]}]}, "machine": {"latency_s": 0.001}})
    >>> found.machine.nodes, found.rows, found.distribution
    (2, 9, None)
    """

    program: Program
    machine: Machine
    rows: int
    distribution: IntArray | None = None
    iterations: int = 1
    accounting: str = "exact"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the document that plain data describe.

        Parameters
        ----------
        data : mapping
            ``program`` and ``machine`` as their `to_dict` writes them; ``rows`` or
            ``distribution`` or both; ``nodes``, needed only if no list and no distribution tells;
            ``iterations`` and ``accounting``, whose defaults are 1 and "exact"; ``format`` and
            ``version``, checked if they are there. ``name``, ``why``, ``expected`` and keys that
            begin with ``_`` are notes.

        Raises
        ------
        PartitionError
            If a key is missing or unknown, or a value is not allowed; the message names the place.
        """
        if not isinstance(data, Mapping):
            raise PartitionError(f"document must be a mapping, got {data!r}")
        notes = [*_NOTES, *(k for k in data if isinstance(k, str) and k.startswith("_"))]
        data = checks.mapping(data, "document", (*_KEYS, *_OPTIONS, *notes))
        _check_version(data)
        for key in ("program", "machine"):
            if key not in data:
                raise PartitionError(f"document has no {key!r}, which is needed")
        program = Program.from_dict(data["program"])
        machine = Machine.from_dict(data["machine"], _nodes(data, program))
        check_nodes(program, machine)
        shares = data.get("distribution")
        if shares is not None:
            shares = checks.distribution(shares, machine.nodes, "document.distribution")
        return cls(
            program,
            machine,
            _rows(data, shares),
            shares,
            checks.count(
                data.get("iterations", 1), "document.iterations", most=checks.MOST_ITERATIONS
            ),
            checks.one_of(data.get("accounting", "exact"), ACCOUNTINGS, "document.accounting"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the document as plain data for JSON, with its format and version."""
        found: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "rows": self.rows,
            "nodes": self.machine.nodes,
            "program": self.program.to_dict(),
            "machine": self.machine.to_dict(),
            "iterations": self.iterations,
            "accounting": self.accounting,
        }
        if self.distribution is not None:
            found["distribution"] = self.distribution.tolist()
        return found


def _check_version(data: Mapping[str, Any]) -> None:
    if (found := data.get("format", FORMAT)) != FORMAT:
        raise PartitionError(
            f"document.format is {found!r}; {FORMAT!r} is expected: a program and a machine"
        )
    version = data.get("version", VERSION)
    if type(version) is not int or version != VERSION:
        raise PartitionError(
            f"document.version is {version!r}; this fpmdask reads version {VERSION}: install a "
            "newer one, or write the document again"
        )


def _nodes(data: Mapping[str, Any], program: Program) -> int:
    """Return how many nodes there are: what is said, or the length of whatever is per node."""
    if "nodes" in data:
        return checks.count(data["nodes"], "document.nodes", most=checks.MOST_NODES)
    if program.nodes is not None:
        return program.nodes
    figures = data["machine"] if isinstance(data["machine"], Mapping) else {}
    lists = [data.get("distribution"), *(figures.get(name) for name in PER_NODE)]
    lengths = [len(v) for v in lists if isinstance(v, list | tuple) and v]
    if not lengths:
        raise PartitionError("document has no list that is per node; give it 'nodes'")
    return lengths[0]


def _rows(data: Mapping[str, Any], distribution: IntArray | None) -> int:
    if "rows" not in data:
        if distribution is None:
            raise PartitionError("document has neither 'rows' nor 'distribution'; give one")
        return checks.count(
            int(distribution.sum()), "the sum of document.distribution", most=MAX_UNITS
        )
    rows = checks.count(data["rows"], "document.rows", most=MAX_UNITS)
    if distribution is not None and distribution.sum() != rows:
        raise PartitionError(
            f"document.distribution sums to {distribution.sum()}, document.rows is {rows}; make "
            "them agree or leave one out"
        )
    return rows
