"""What is to be iterated. Plain data on its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from fpmdask.runtime.rows import Rows
from fpmdask.runtime.wire import (
    ErrorFacts,
    Event,
    Messages,
    Packed,
    Progressed,
    Request,
    Step,
    StepAnswer,
    TeamEvent,
    TeamOrder,
)

Condition = str | int | float  # "reflect", "periodic", "nearest", "none", or what is beyond


@dataclass(frozen=True)
class StencilSpec:
    """All of it.

    Parameters
    ----------
    fields
        What is iterated.
    args
        Arrays of the same shape that stay as they are.
    depth, boundary
        Cells of halo on both sides of each axis, and what is beyond the ends.
    iterations
        At most.
    tolerance
        It ends when no cell changes by more in one iteration; None: never earlier.
    check_every
        Iterations between two looks at the tolerance.
    """

    fields: tuple[Rows, ...]
    args: tuple[Rows, ...]
    depth: tuple[int, ...]
    boundary: tuple[Condition, ...]
    iterations: int
    tolerance: float | None = None
    check_every: int = 10

    @property
    def shape(self) -> tuple[int, ...]:
        """Of every array."""
        return (self.fields[0].count, *(self.fields[0].shape or ())[1:])

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row of all arrays that an update reads."""
        items = sum(np.dtype(one.dtype).itemsize for one in (*self.fields, *self.args))
        return items * prod(self.shape[1:])

    @property
    def sides(self) -> tuple[int, ...]:
        """Cells of halo that rows are kept with, on both sides of each axis but the first."""
        ends = zip(self.depth[1:], self.boundary[1:], strict=True)
        return tuple(0 if condition == "none" else cells for cells, condition in ends)

    @property
    def least(self) -> int:
        """Rows that a worker must have, if it has any: a neighbour's halo comes from one worker."""
        return max(1, self.depth[0])

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StencilSpec:
        """Rebuild a spec from `to_json`."""
        return cls(
            tuple(map(Rows.from_json, data["fields"])),
            tuple(map(Rows.from_json, data["args"])),
            tuple(data["depth"]),
            tuple(data["boundary"]),
            data["iterations"],
            data["tolerance"],
            data["check_every"],
        )


class StencilRequest(Request):
    """Iterate; ``stencil`` is a `StencilSpec`.

    ``memory`` is bytes for rows, of every worker or by name; ``rule`` who gets which rows;
    ``machine`` a saved `fpmdask.mheta.Machine`; ``output`` and ``checkpoint`` what workers write.
    """

    stencil: Mapping[str, Any]
    update: Packed
    distribution: Mapping[str, int] | None
    memory: float | Mapping[str, float] | None
    prefetch: bool
    rule: Literal["mheta", "even", "balanced", "in-core"]
    machine: Mapping[str, Any] | None
    output: Mapping[str, Any] | None
    checkpoint: Mapping[str, Any] | None


Shares = Sequence[tuple[str, int, int]]  # worker, first row, end


class FirstRows(TypedDict):
    """Who begins with which rows, in the order of the ranks.

    ``instrument``: tell first what an iteration of a sample of rows takes, for MHETA; ``history``:
    all iterations are measured; ``row_seconds``: what a row takes this worker, if that is known;
    ``every``: iterations from one exchange of halos to the next; ``planned``: seconds that one
    should take in core, if that is known.
    """

    rows: Shares
    row_seconds: float | None
    instrument: bool
    history: bool
    expected: float | None
    every: int
    planned: float | None


class IterateOrder(TeamOrder, FirstRows):
    """Take part in all iterations; ``fields`` and ``args`` are the holders of their chunks.

    ``trial``: tell what the first iterations take; ``probe``: what a row takes, before all else;
    ``again``: rows may move more than once; ``joins``: wait for rows of a team that iterates;
    ``load_checks``: look at all workers' times together now and then.
    """

    spec: Mapping[str, Any]
    fields: Sequence[Sequence[Sequence[str]]]
    args: Sequence[Sequence[Sequence[str]]]
    trial: bool
    probe: bool
    output: Mapping[str, Any] | None
    checkpoint: Mapping[str, Any] | None
    prefetch: bool
    again: bool
    joins: bool
    load_checks: bool
    memory: float | None


class GoOn(TypedDict):
    """Go on with these rows, if any.

    Halos are exchanged ``every`` so many iterations, one of which should take ``expected`` seconds
    by MHETA, ``planned`` in core; ``channels`` are those of workers that join.
    """

    rows: Shares | None
    moves: bool
    every: int
    piece: int | None
    expected: float | None
    planned: float | None
    channels: Mapping[str, tuple[str, int]]


class JoinTeam(GoOn):
    """Take part from now on: iterations done, who had which rows ``before``, how often they moved.

    ``history``: all iterations are measured.
    """

    done: int
    before: Shares
    moved: int
    history: bool


class CheckLoad(TypedDict):
    """Tell at the next load check what iterations take, as workers wait to be taken in."""

    load_check: bool


class Probed(TeamEvent):
    """Seconds that a row takes, None where a worker would have none.

    ``rows`` of them were computed in a call, which takes ``call_seconds`` beside them: None where
    that was not measured. ``made``: iterations of earlier attempts, or calls, after which it goes
    on.
    """

    made: int
    probe: float | None
    rows: int
    call_seconds: float | None


class Warned(TeamEvent):
    """What the user must know."""

    warning: str


class Iterated(TeamEvent):
    """How many iterations are made, and what the longest of the last ones took."""

    iterations: int
    longest_seconds: float


class Saved(TeamEvent):
    """The rows after an iteration are in the output."""

    saved: int


class PhaseTold(TeamEvent):
    """Something begins that is no iteration, or a worker is through with it."""

    phase: str
    which: int
    ended: bool


class Tried(TeamEvent):
    """What iterations took, the first ones or the last, on average in each.

    ``calls`` of the update that would also be few rows, and ``rows``, of neighbours among them.
    """

    trial: int
    row_seconds: float | None
    call_seconds: float | None
    calls: float
    rows: float
    io_seconds: float
    exchange_seconds: float
    byte_seconds: float


class Instrumented(TeamEvent):
    """What the instrumented iteration of a sample of rows took; ``raised``: what the update says.

    ``made``: as in `Probed`.
    """

    made: int
    measured: Mapping[str, Any]
    raised: str | None


class LookAgain(TeamEvent):
    """The last iterations took other times than they should: their parts, on average."""

    again: int
    middle: float
    byte_seconds: float
    compute: float
    io: float
    send: float
    receive: float
    call_seconds: float | None
    calls: float


class AllIterated(StepAnswer):
    """All iterations are made; the seconds of their phases."""

    iterations: int
    rows_computed: int
    nbytes_received: int
    blocks: int
    history: Mapping[str, Any] | None
    loading: float
    computing: float
    io: float
    moving: float
    saving: float
    total: float


class UpdateRaised(StepAnswer):
    """The user's function has raised."""

    raised: ErrorFacts


class IterationsMade(Progressed):
    """How many iterations are made."""


class SharedOut(Event):
    """Who goes on with how many rows."""

    rows: Mapping[str, int]
    every: int


class WarningTold(Event):
    """What the user must know."""

    message: str


class TakenIn(Event):
    """A worker that has joined has rows from now on, after so many iterations."""

    worker: str
    rows: int
    after: int
    why: str


class NotTakenIn(Event):
    """A worker that has joined takes no part."""

    worker: str
    why: str


class SnapshotSaved(Event):
    """The rows after an iteration are in the output."""

    iteration: int


class StencilValue(TypedDict):
    """The iterations that were made; the keys of the fields and the rows of chunks, if any."""

    iterations: int
    names: NotRequired[Sequence[str]]
    sizes: NotRequired[Sequence[int]]


ITERATE = Step(
    "fpmdask.apps.stencil.worker.iterate:iterate",
    IterateOrder,
    AllIterated | UpdateRaised,
    FirstRows | GoOn | JoinTeam | CheckLoad,
    Probed | Warned | Iterated | Saved | PhaseTold | Tried | Instrumented | LookAgain,
)
MESSAGES = Messages(
    StencilValue,
    (ITERATE,),
    {
        "iterated": IterationsMade,
        "shared out": SharedOut,
        "warning": WarningTold,
        "taken in": TakenIn,
        "not taken in": NotTakenIn,
        "saved": SnapshotSaved,
    },
)
