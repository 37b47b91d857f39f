"""What a node records of an instrumented iteration: the kinds of events and their fields.

Pure values; a `Recorder` makes them on a node, `fit` reads them anywhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.sections import set_fields

# kind → the fields that it needs, and those that it may have, beyond section, start and seconds.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "stage": (("stage", "tile", "rows"), ()),
    "compute": (("stage", "tile", "rows"), ()),
    "read": (("array", "rows", "nbytes"), ("stage", "tile")),
    "write": (("stage", "tile", "array", "rows", "nbytes"), ()),
    "issue": (("stage", "tile", "array", "rows", "nbytes"), ()),
    "wait": (("stage", "tile", "array"), ("rows", "nbytes")),
    "send": (("peer", "nbytes"), ("tile",)),
    "receive": (("peer", "nbytes"), ("tile",)),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a node did in the instrumented iteration, and when.

    Parameters
    ----------
    kind : str
        See the table in Notes.
    section : int
        The parallel section, counted from 0.
    stage : int, optional
        The stage in its section, counted from 0; None outside of stages.
    tile : int, optional
        The tile, counted from 0; None where it does not matter.
    array : str, optional
        The array that is read or written.
    peer : int, optional
        The other node of a message.
    rows : int, optional
        Rows of the block, at least 1; of a stage all rows of the node, at least 0.
    nbytes : float, optional
        Bytes that are moved, at least 0.
    start : float
        When it began, in seconds of the node's clock, finite.
    seconds : float
        How long it took, finite and at least 0.

    Raises
    ------
    PartitionError
        If the kind is unknown, a field is missing, does not belong to the kind or is not allowed.

    Notes
    -----
    Fields that do not apply are None. The kinds:

    ======= ==================================================== =================================
    kind    what `seconds` is                                    fields beside section
    ======= ==================================================== =================================
    stage   the mark of one stage in one tile, begin to end      stage, tile, rows (of the node)
    compute the computing of one block, without its I/O          stage, tile, rows
    read    a blocking read of a block, or of a message's source array, rows, nbytes, stage, tile
    write   a blocking write of a block                          stage, tile, array, rows, nbytes
    issue   the issue of a prefetch, made a blocking read        stage, tile, array, rows, nbytes
    wait    the wait for a prefetch, made to do nothing          stage, tile, array
    send    the sending of a message                             peer, nbytes, tile
    receive waiting for a message and receiving it               peer, nbytes, tile
    ======= ==================================================== =================================

    A read without a stage reads a message that is sent next. The time from the end of an issue to
    the start of its wait is the paper's T_A. Compute events are needed only for models (`fit`).

    References
    ----------
    M. Nakazawa, D. K. Lowenthal, W. Zhou (2005), The MHETA Execution Model for Heterogeneous
    Clusters, section 4.1.

    Examples
    --------
    >>> event = Event("send", 0, peer=1, nbytes=8000, start=2.5, seconds=0.001)
    >>> event.kind, event.peer, event.rows
    ('send', 1, None)
    """

    kind: str
    section: int
    stage: int | None = None
    tile: int | None = None
    array: str | None = None
    peer: int | None = None
    rows: int | None = None
    nbytes: float | None = None
    # NaN is refused: both must be given.
    start: float = math.nan
    seconds: float = math.nan

    def __post_init__(self) -> None:
        needed, possible = KINDS[checks.one_of(self.kind, tuple(KINDS), "the kind of an event")]
        where = f"of a {self.kind} event"
        set_fields(self, section=checks.count(self.section, f"section {where}", least=0))
        where = f"{where} in section {self.section}"
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is None:
                if name in needed:
                    raise PartitionError(f"{name} {where} is missing; {_fields(self.kind)}")
            elif name not in needed and name not in possible:
                raise PartitionError(f"{name} {where} is {value!r}; {_fields(self.kind)}")
            else:
                set_fields(self, **{name: check(value, f"{name} {where}")})
        if self.rows == 0 and self.kind != "stage":
            raise PartitionError(f"rows {where} is 0; a block has at least 1")
        if self.stage is not None and self.tile is None:
            raise PartitionError(f"tile {where} is missing; inside of a stage it is needed")
        set_fields(self, start=finite(self.start, f"start {where}"))
        set_fields(self, seconds=checks.figure(self.seconds, f"seconds {where}"))

    @property
    def end(self) -> float:
        """When it ended, in seconds of the node's clock."""
        return self.start + self.seconds


def _index(value: Any, name: str) -> int:
    return checks.count(value, name, least=0)


def _amount(value: Any, name: str) -> float:
    found = checks.figure(value, name)
    return int(found) if found.is_integer() else found


def finite(value: Any, name: str) -> float:
    """Return a finite number, also a negative one, as a float."""
    number = isinstance(value, int | float | np.integer | np.floating)
    try:
        found = float(value) if number and not isinstance(value, bool) else math.nan
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise PartitionError(f"{name} is {value!r}; a finite number of seconds is allowed")
    return found


def _fields(kind: str) -> str:
    needed, possible = KINDS[kind]
    also = f", and may have {', '.join(possible)}" if possible else ""
    return f"a {kind} event has {', '.join(needed)}{also}; leave the others None"


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "stage": _index,
    "tile": _index,
    "array": checks.word,
    "peer": _index,
    "rows": _index,
    "nbytes": _amount,
}
