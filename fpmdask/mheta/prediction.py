"""What MHETA says of one distribution: seconds per node, and what they are spent on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.mheta import checks
from fpmdask.mheta.checks import FloatArray, IntArray
from fpmdask.mheta.evaluate import Batch, Evaluator, prepared
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.program import Program

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


def predict(
    program: Program,
    machine: Machine,
    distribution: ArrayLike,
    *,
    iterations: int = 1,
    accounting: str = "exact",
) -> Prediction:
    """Predict how long an out-of-core iterative program takes for one distribution.

    Parameters
    ----------
    program : Program
    machine : Machine
        Of as many nodes as the program has figures for.
    distribution : array_like of int64, shape [p]
        Rows per node.
    iterations : int
        How many iterations are predicted, at least 1.
    accounting : {"exact", "paper"}
        ``"exact"``: each block moves its own rows, what a real program does. ``"paper"``: N full
        blocks are moved and N prefetches issued, the printed equations 1 and 2.

    Returns
    -------
    Prediction
        An infeasible distribution is not an error: its seconds are ``inf``.

    Raises
    ------
    PartitionError
        If an argument is not allowed.

    Notes
    -----
    O(p log p) per iteration, whatever the number of tiles, blocks and rows. Deviations from the
    paper, its misprints and gaps:

    1. Equation 4 leaves the overheads outside the sums and omits max(0, ·): both belong to every
       tile; completion times are used.
    2. The pipeline's total sums over N_T + 1 tiles; there are N_T.
    3. In equation 3 the second send overhead is the receiver's own.
    4. T_w is write latency in section 4.2.1 and waiting in 4.2.2, T_Υ a section's communication
       and an iteration's total: parts have names here.
    5. Equation 1 charges N full blocks though the last is smaller, equation 2 charges O_A for N
       prefetches though N - 1 are issued: only ``accounting="paper"`` does.
    6. Equation 2 array by array would hide the same computing once for each array; one disk
       serves them in turn, so that the sum of the transfers is hidden once.
    7. Section 4.2.3 adds the sections' times as if all nodes entered each together; here a node
       enters a section the moment it leaves the one before, and carries its skew along.
    8. More than two nodes, reductions and programs of several sections are left to a thesis; they
       are rules R7, R9 to R12 of `fpmdask.mheta.communication`.
    9. W'/W, the constant model, may be replaced by functional performance models.
    10. r(m) and w(m), per element of an array, are seconds per byte of a node.

    References
    ----------
    M. Nakazawa, D. K. Lowenthal, W. Zhou (2005), The MHETA Execution Model for Heterogeneous
    Clusters, SC|05, section 4.2.

    Examples
    --------
    Two nodes; node 1 has half the power, and streams its rows in two blocks.

    >>> from fpmdask.mheta import Array, Communication, Machine, Program, Section, Stage
    >>> stage = Stage([0.01, 0.02], reads=["A"], writes=["A"])
    >>> halo = Communication("nearest_neighbour", message_bytes=100)
    >>> program = Program([Section([stage], communication=halo)], [Array("A", 100)])
    >>> machine = Machine(2, memory_bytes=[50_000, 30_000], read_overhead_s=[0.5, 0.5],
    ...     write_overhead_s=[0.5, 0.5], latency_s=0.25)
    >>> found = predict(program, machine, [500, 500])
    >>> found.seconds, found.node_seconds, found.sections[0].blocks
    (12.25, array([12.25, 12.  ]), (array([0, 2]),))
    >>> found.parts["io"], found.parts["wait"]
    (array([0., 2.]), array([7.25, 0.  ]))
    >>> predict(program, machine, [700, 300]).seconds
    9.25
    """
    found = prepared(program, machine, iterations, accounting)
    return predicted(found, checks.distribution(distribution, machine.nodes))


def predicted(evaluator: Evaluator, distribution: IntArray) -> Prediction:
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


def _guilty(batch: Batch, ends: FloatArray) -> tuple[int, ...]:
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


def _infeasible(evaluator: Evaluator, rows: IntArray, guilty: tuple[int, ...]) -> Prediction:
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


def _spent(evaluator: Evaluator, batch: Batch, times: FloatArray) -> FloatArray:
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
