"""The prepared predictor: makespans of batches of distributions, the inner loop of every search."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.mheta import checks
from fpmdask.mheta.blocks import Memory, check_nodes
from fpmdask.mheta.checks import BoolArray, FloatArray, IntArray
from fpmdask.mheta.communication import ABSENT
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.messages import Ranks, SectionMessages
from fpmdask.mheta.prediction import Prediction, predicted
from fpmdask.mheta.program import Program
from fpmdask.mheta.stages import ACCOUNTINGS, SectionCosts

# Rows of a chunk times nodes: a float64 array of a chunk has 256 KiB and stays in a core's cache.
CHUNK = 2**15


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of distributions and what its nodes do in one iteration, before messages.

    Attributes
    ----------
    rows : ndarray of float64, shape [p, K]
        x of every node.
    out : ndarray of bool, shape [p, K] or [1, 1]
        Which nodes are out of core.
    ranks : Ranks
    compute : ndarray of float64, shape [sections, p, K]
        Seconds of computing in all tiles of a section.
    io : list of ndarray of float64, shape [p, K], or None
        Seconds of I/O in all tiles of a section, stalls included; None: there is none.
    too_many : ndarray of bool, shape [p, K], or None
        Which nodes have more rows than they can hold; None: all can hold any number.
    """

    rows: FloatArray
    out: BoolArray
    ranks: Ranks
    compute: FloatArray
    io: list[FloatArray | None]
    too_many: BoolArray | None

    def work(self) -> FloatArray:
        """Return τ c: computing and I/O in all tiles of each section, by rank."""
        work = self.compute
        if any(io is not None for io in self.io):
            work = work.copy()
            for number, io in enumerate(self.io):
                if io is not None:
                    work[number] += io
        return self.ranks.by_rank(work)

    def feasible(self, makespan: FloatArray) -> BoolArray:
        """Return which distributions every node can hold and finish in a finite time."""
        good = np.isfinite(makespan) | ~self.ranks.here.any(axis=0)
        return good if self.too_many is None else good & ~self.too_many.any(axis=0)


class Evaluator:
    """Predicts batches of distributions of one program on one machine; see `evaluator`.

    Notes
    -----
    O(p log p) per distribution and iteration for p nodes, whatever the number of tiles, blocks
    and rows; memory is bounded by chunks of the batch, of ``chunk`` rows times nodes. Prepared
    once, it holds no state of a batch, so that several threads may call it.
    """

    def __init__(
        self,
        program: Program,
        machine: Machine,
        *,
        iterations: int = 1,
        accounting: str = "exact",
        chunk: int = CHUNK,
    ) -> None:
        check_nodes(program, machine)
        self.program, self.machine = program, machine
        self._chunk = max(1, chunk // machine.nodes)
        self.iterations = checks.count(iterations, "iterations", most=checks.MOST_ITERATIONS)
        self.accounting = checks.one_of(accounting, ACCOUNTINGS, "accounting")
        self._memory = Memory.of(program, machine)
        self._costs = [
            SectionCosts.of(section, program, machine, self._memory, accounting)
            for section in program.sections
        ]
        self._rates = np.stack([costs.rate for costs in self._costs])
        self._messages = [SectionMessages(s, program, machine) for s in program.sections]
        self._limited = bool(np.isfinite(self._memory.most).any())
        self._streams = any(m.from_disk for m in self._messages) or any(
            stage.streams for costs in self._costs for stage in costs.stages
        )

    def __call__(self, distributions: ArrayLike) -> FloatArray:
        """Return the makespan of each distribution in seconds, ``inf`` where it is infeasible.

        Parameters
        ----------
        distributions : array_like of int64, shape [K, p]
            Rows per node.

        Returns
        -------
        ndarray of float64, shape [K]

        Raises
        ------
        PartitionError
            If it is of another shape, or an entry is negative or fractional.
        """
        found = checks.distributions(distributions, self.machine.nodes)
        seconds = np.empty(found.shape[0])
        for part, rows in self._chunks(found):
            batch, left = self._last(rows)
            makespan = np.maximum(left.max(axis=0), 0.0)  # 0 s if no node has rows
            seconds[part] = np.where(batch.feasible(makespan), makespan, np.inf)
        return seconds

    def node_seconds(self, distributions: ArrayLike) -> FloatArray:
        """Return when each node ends the last iteration, in seconds.

        Parameters
        ----------
        distributions : array_like of int64, shape [K, p]
            Rows per node.

        Returns
        -------
        ndarray of float64, shape [K, p]
            0 for a node without rows, ``inf`` for every node where infeasible.

        Raises
        ------
        PartitionError
            As a call does.
        """
        found = checks.distributions(distributions, self.machine.nodes)
        seconds = np.empty(found.shape)
        for part, rows in self._chunks(found):
            batch, left = self._last(rows)
            good = batch.feasible(left.max(axis=0))
            seconds[part] = np.where(good, batch.ranks.by_node(left, absent=0.0), np.inf).T
        return seconds

    def prediction(self, distribution: ArrayLike) -> Prediction:
        """Return what `predict` returns for one distribution.

        Parameters
        ----------
        distribution : array_like of int64, shape [p]
            Rows per node.

        Raises
        ------
        PartitionError
            If it is of another shape, or an entry is negative or fractional.
        """
        return predicted(self, checks.distribution(distribution, self.machine.nodes))

    def prepare(self, rows: FloatArray) -> Batch:
        """Return the costs of a batch of rows, float64 of shape [p, K]."""
        out = rows > self._memory.in_core if self._streams else _NOWHERE
        compute = self._rates * rows
        io: list[FloatArray | None] = [None] * len(self._costs)
        for number, costs in enumerate(self._costs):
            for stage in costs.stages:
                if (more := stage.compute(rows, out)) is not None:
                    compute[number] += more
                if (more := stage.io(rows, out)) is not None:
                    done = io[number]
                    io[number] = more if done is None else done + more
        too_many = rows > self._memory.most if self._limited else None
        return Batch(rows, out, Ranks.of(rows), compute, io, too_many)

    def walk(self, batch: Batch) -> Iterator[FloatArray]:
        """Yield when each rank leaves each section of each iteration, in order; R12.

        A rank enters a section the moment it leaves the one before: nothing is synchronised that
        no message synchronises.
        """
        ranks, work = batch.ranks, batch.work()
        patterns = [messages.pattern(ranks, batch.out) for messages in self._messages]
        time = np.where(ranks.here, 0.0, ABSENT)
        for _ in range(self.iterations):
            for pattern, seconds in zip(patterns, work, strict=True):
                time = pattern.leave(time, seconds)
                yield time

    def stage_blocks(self, rows: FloatArray, out: BoolArray, section: int) -> tuple[IntArray, ...]:
        """Return N of each stage of a section per node, for one distribution of shape [p, 1]."""
        costs = self._costs[section]
        stages = self.program.sections[section].stages
        found = [np.zeros(rows.shape[0], dtype=np.int64) for _ in stages]
        for stage, position in zip(costs.stages, costs.positions, strict=True):
            found[position] = stage.number(rows, out)[:, 0].astype(np.int64)
        return tuple(found)

    def section_messages(self, section: int) -> SectionMessages:
        """Return the message costs of a section."""
        return self._messages[section]

    def _last(self, rows: FloatArray) -> tuple[Batch, FloatArray]:
        """Return the costs of a batch, and when each rank leaves the last section."""
        with np.errstate(over="ignore", invalid="ignore"):
            batch = self.prepare(rows)
            left = deque(self.walk(batch), maxlen=1).pop()
        return batch, left

    def _chunks(self, distributions: IntArray) -> Iterator[tuple[slice, FloatArray]]:
        """Yield parts of a batch with their rows, float64 of shape [p, K]."""
        for start in range(0, distributions.shape[0], self._chunk):
            part = slice(start, start + self._chunk)
            yield part, np.array(distributions[part].T, dtype=np.float64, order="C")


def evaluator(
    program: Program, machine: Machine, *, iterations: int = 1, accounting: str = "exact"
) -> Evaluator:
    """Prepare predictions of one program on one machine, for searches.

    Parameters
    ----------
    program : Program
    machine : Machine
        Of as many nodes as the program has figures for.
    iterations : int
        How many iterations a prediction covers, at least 1.
    accounting : {"exact", "paper"}
        What is charged for I/O, see `predict`.

    Returns
    -------
    Evaluator
        A callable from int64 [K, p] to the makespans in seconds, float64 [K], ``inf`` where a
        distribution is infeasible; its ``node_seconds`` gives them per node, [K, p].

    Raises
    ------
    PartitionError
        If an argument is not allowed.

    Notes
    -----
    O(p log p) per distribution and iteration.

    Examples
    --------
    >>> from fpmdask.mheta import Machine, Program, Section, Stage
    >>> seconds = evaluator(Program([Section([Stage([0.5, 0.25])])]), Machine(2))
    >>> seconds([[3, 3], [2, 4]])
    array([1.5, 1. ])
    >>> seconds.node_seconds([[2, 4]])
    array([[1., 1.]])
    """
    return Evaluator(program, machine, iterations=iterations, accounting=accounting)


def predict_many(
    program: Program,
    machine: Machine,
    distributions: ArrayLike,
    *,
    iterations: int = 1,
    accounting: str = "exact",
) -> FloatArray:
    """Return the makespans of many distributions.

    Parameters
    ----------
    program : Program
    machine : Machine
        Of as many nodes as the program has figures for.
    distributions : array_like of int64, shape [K, p]
        Rows per node.
    iterations : int
        How many iterations a makespan covers, at least 1.
    accounting : {"exact", "paper"}
        What is charged for I/O, see `predict`.

    Returns
    -------
    ndarray of float64, shape [K]
        Seconds, ``inf`` where a distribution is infeasible.

    Raises
    ------
    PartitionError
        If an argument is not allowed.

    Notes
    -----
    O(p log p) per distribution and iteration. What is prepared is kept for the next call with an
    equal program and machine.

    Examples
    --------
    >>> from fpmdask.mheta import Machine, Program, Section, Stage
    >>> predict_many(Program([Section([Stage([0.5, 0.25])])]), Machine(2), [[3, 3], [2, 4]])
    array([1.5, 1. ])
    """
    return prepared(program, machine, iterations, accounting)(distributions)


def prepared(program: Program, machine: Machine, iterations: int, accounting: str) -> Evaluator:
    """Return the evaluator of equal arguments, made once and kept."""
    check_nodes(program, machine)  # before they are looked up: others need not be hashable
    accounting = checks.one_of(accounting, ACCOUNTINGS, "accounting")
    iterations = checks.count(iterations, "iterations", most=checks.MOST_ITERATIONS)
    return _kept(program, machine, iterations, accounting)


@lru_cache(maxsize=16)
def _kept(program: Program, machine: Machine, iterations: int, accounting: str) -> Evaluator:
    return Evaluator(program, machine, iterations=iterations, accounting=accounting)


_NOWHERE = np.zeros((1, 1), dtype=np.bool_)


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
