"""What MHETA says of one distribution: seconds per node, and what they are spent on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpmdask.mheta.checks import FloatArray, IntArray

if TYPE_CHECKING:
    from fpmdask.mheta.evaluate import Batch, Evaluator

PARTS = ("compute", "io", "send", "wait", "receive")


@dataclass(frozen=True, slots=True, eq=False)
class SectionPrediction:
    """The first iteration of a section: float64 arrays of shape [p], seconds per node.

    Attributes
    ----------
    start, end : ndarray of float64
        When each node enters and leaves it; the next section starts at the end of this one.
    compute, io, send, wait, receive : ndarray of float64
        What the time between is spent on, in sum. A stall on a prefetch counts as io, a disk read
        for a message as send, waiting for a message as wait.
    blocks : tuple of ndarray of int64
        Per stage, in how many blocks (N of R2) each node streams its rows in a tile; 0: it does
        not.
    """

    start: FloatArray
    end: FloatArray
    compute: FloatArray
    io: FloatArray
    send: FloatArray
    wait: FloatArray
    receive: FloatArray
    blocks: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What a program takes on a machine for one distribution.

    Attributes
    ----------
    distribution : ndarray of int64, shape [p]
        Rows per node.
    iterations : int
        How many iterations are covered.
    accounting : {"exact", "paper"}
        What is charged for I/O.
    seconds : float
        The makespan of all iterations; ``inf`` if the distribution is infeasible.
    node_seconds : ndarray of float64, shape [p]
        When each node ends the last iteration.
    iteration_ends : ndarray of float64, shape [iterations, p]
        When each node ends each iteration.
    iteration_seconds : float
        The makespan of the first iteration.
    steady_state_seconds : float or None
        What the last iteration adds to the makespan; None if there is only one.
    sections : tuple of SectionPrediction
        The first iteration; empty if the distribution is infeasible.
    parts : dict of str to ndarray of float64, shape [p]
        ``compute``, ``io``, ``send``, ``wait``, ``receive``: sums over the sections.
    infeasible : tuple of int
        The nodes that make the distribution infeasible.
    """

    distribution: IntArray
    iterations: int
    accounting: str
    seconds: float
    node_seconds: FloatArray
    iteration_ends: FloatArray
    iteration_seconds: float
    steady_state_seconds: float | None
    sections: tuple[SectionPrediction, ...]
    parts: dict[str, FloatArray]
    infeasible: tuple[int, ...]

    def __repr__(self) -> str:
        rows = ", ".join(map(str, self.distribution.tolist()))
        if self.infeasible:
            nodes = ", ".join(map(str, self.infeasible))
            return f"<Prediction: [{rows}] is infeasible: too many rows on nodes {nodes}>"
        return f"<Prediction: [{rows}] takes {self.seconds:.6g} s, iterations: {self.iterations}>"

    def _repr_html_(self) -> str:
        from fpmdask.mheta.html import prediction_html

        return prediction_html(self)


def predicted(evaluator: "Evaluator", distribution: IntArray) -> Prediction:
    """Return the prediction of a checked distribution by a prepared evaluator."""
    rows = np.asarray(distribution, dtype=np.float64)[:, np.newaxis]
    with np.errstate(over="ignore", invalid="ignore"):
        batch = evaluator.prepare(rows)
        left = [batch.ranks.by_node(time, absent=0.0)[:, 0] for time in evaluator.walk(batch)]
    count = len(evaluator.program.sections)
    ends = np.array(left[count - 1 :: count])
    frozen = distribution.copy()
    frozen.flags.writeable = False
    guilty = _guilty(batch, ends)
    if guilty:
        return _infeasible(evaluator, frozen, guilty)
    times = np.array([np.zeros(rows.shape[0]), *left[:count]])
    spent = _spent(evaluator, batch, times)
    for array in (times, spent, ends):
        array.flags.writeable = False
    makespans = ends.max(axis=1).tolist()
    return Prediction(
        distribution=frozen,
        iterations=evaluator.iterations,
        accounting=evaluator.accounting,
        seconds=makespans[-1],
        node_seconds=ends[-1],
        iteration_ends=ends,
        iteration_seconds=makespans[0],
        steady_state_seconds=makespans[-1] - makespans[-2] if len(makespans) > 1 else None,
        sections=tuple(
            SectionPrediction(
                times[k],
                times[k + 1],
                **dict(zip(PARTS, spent[k], strict=True)),
                blocks=evaluator.stage_blocks(batch.rows, batch.out, k),
            )
            for k in range(count)
        ),
        parts=dict(zip(PARTS, spent.sum(axis=0), strict=True)),
        infeasible=(),
    )


def _guilty(batch: "Batch", ends: FloatArray) -> tuple[int, ...]:
    """Return the nodes that cannot hold their rows, or not finish them in a finite time."""
    bad = np.zeros_like(batch.rows[:, 0], dtype=np.bool_)
    if batch.too_many is not None:
        bad |= batch.too_many[:, 0]
    if not np.isfinite(ends).all():
        work = batch.compute[:, :, 0].sum(axis=0)
        for io in batch.io:
            work = work if io is None else work + io[:, 0]
        # where only sums of several nodes are too large for a float, all that have rows
        slow = ~np.isfinite(work)
        bad |= slow if (bad | slow).any() else batch.rows[:, 0] > 0
    return tuple(np.flatnonzero(bad).tolist())


def _infeasible(evaluator: "Evaluator", rows: IntArray, guilty: tuple[int, ...]) -> Prediction:
    never = np.full((evaluator.iterations, rows.size), np.inf)
    return Prediction(
        distribution=rows,
        iterations=evaluator.iterations,
        accounting=evaluator.accounting,
        seconds=np.inf,
        node_seconds=never[-1],
        iteration_ends=never,
        iteration_seconds=np.inf,
        steady_state_seconds=np.inf if evaluator.iterations > 1 else None,
        sections=(),
        parts={part: np.full(rows.size, np.inf) for part in PARTS},
        infeasible=guilty,
    )


def _spent(evaluator: "Evaluator", batch: "Batch", times: FloatArray) -> FloatArray:
    """Return the seconds of each of `PARTS` in each section, shape [sections, 5, p].

    `times` are the starts of the sections and the end of the last one, [sections + 1, p]; waiting
    is what is left.
    """
    found = np.zeros((times.shape[0] - 1, len(PARTS), times.shape[1]))
    compute, io, send, wait, receive = found.transpose(1, 0, 2)
    compute[:] = batch.compute[:, :, 0]
    for k, streamed in enumerate(batch.io):
        if streamed is not None:
            io[k] = streamed[:, 0]
        send[k], receive[k] = evaluator.section_messages(k).spent(batch.ranks, batch.out)
    np.maximum(np.diff(times, axis=0) - found.sum(axis=1), 0.0, out=wait)
    return found
