"""The distributions of simple rules: even, in core, balanced, and both."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.blocks import capacity, check_nodes
from fpmdask.mheta.checks import FloatArray, IntArray
from fpmdask.mheta.evaluate import evaluator
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.program import Program
from fpmdask.models import Model, TabulatedModel
from fpmdask.models.bank import Bank, bank
from fpmdask.partition import even
from fpmdask.partition.geometric import distributed
from fpmdask.partition.validate import MAX_UNITS

ANCHORS = ("Blk", "I-C", "I-C/Bal", "Bal")
# Predictions that differ by less are equal: the same sums in another order.
_EQUAL = 1e-12


def anchors(program: Program, machine: Machine, rows: float) -> dict[str, IntArray]:
    """Return the distributions that simple rules give.

    Parameters
    ----------
    program : Program
    machine : Machine
        Of as many nodes as the program has figures for.
    rows : int
        From 1 to 2**52.

    Returns
    -------
    dict of str to ndarray of int64, shape [p]
        ``"Blk"``: even. ``"Bal"``: the smallest largest load, a node's load being the computing
        of all stages in core. ``"I-C"``, ``"I-C/Bal"``: the same with every node in core, or, if
        the rows do not fit, all but the one node with which the first iteration is shortest.

    Raises
    ------
    PartitionError
        If an argument is not allowed, some nodes compute in no time and others do not, or more rows
        take less time by a model.

    Notes
    -----
    If no stage computes, Bal is Blk. O(p log p) and one batch of at most p predictions for each
    rule that keeps nodes in core. Among equal loads the lowest node gets the row, loads of
    constant speed being compared exactly.

    1. The paper "first maximizes the number of nodes that have exclusively in-core datasets": at
       most one node has to be out of core, which one is left open; here a prediction decides.

    References
    ----------
    Nakazawa, Lowenthal and Zhou (2005), section 5.1, Fig. 8.

    Examples
    --------
    >>> from fpmdask.mheta import Array, Section, Stage
    >>> stage = Stage([1.0, 2.0, 4.0], reads=["A"])
    >>> program = Program([Section([stage])], [Array("A", 100)])
    >>> for name, found in anchors(program, Machine(3, [1000, 4000, 5000]), 90).items():
    ...     print(name, found)
    Blk [30 30 30]
    I-C [10 40 40]
    I-C/Bal [10 40 40]
    Bal [52 26 12]
    """
    check_nodes(program, machine)
    total = checks.count(rows, "rows", most=MAX_UNITS)
    load = Load(program, machine.nodes)
    load.check(total)
    blk, bal = even(total, machine.nodes), load.balanced(total, np.full(machine.nodes, np.inf))
    most = capacity(program, machine)
    flat = Load.flat(machine.nodes)
    in_core = _in_core(flat, program, machine, total, most)
    both = _in_core(load, program, machine, total, most) if load.computes else in_core
    return dict(zip(ANCHORS, (blk, in_core, both, bal), strict=True))


class Load:
    """Seconds of computing of all stages in core, by node: a `Bank` for the partitioners.

    Parameters
    ----------
    program : Program
    nodes : int
    """

    def __init__(self, program: Program, nodes: int) -> None:
        stages = [stage for section in program.sections for stage in section.stages]
        rates = [s.seconds_per_row for s in stages if s.seconds_per_row is not None]
        self._models: list[Sequence[Model]] = [s.models for s in stages if s.models is not None]
        self._exact = [
            sum(map(Fraction, figures), Fraction(0)) for figures in zip(*rates, strict=True)
        ]
        self._exact = self._exact or [Fraction(0)] * nodes
        self._rates = np.array([float(rate) for rate in self._exact])
        self._banks: list[Bank] = [bank(models) for models in self._models]

    @classmethod
    def flat(cls, nodes: int) -> "Load":
        """Return the load of one second per row on every node."""
        from fpmdask.mheta.sections import Section, Stage

        return cls(Program([Section([Stage([1.0] * nodes)])]), nodes)

    @property
    def computes(self) -> bool:
        """Whether any stage computes."""
        return bool(self._banks) or bool(self._rates.any())

    def check(self, rows: int) -> None:
        """Refuse loads that are 0 on some nodes only, or that decrease with more rows."""
        nodes = np.arange(self._rates.size)
        idle = self.time(nodes, np.full(nodes.size, float(rows))) == 0
        if self.computes and idle.any():
            names = checks.named(np.flatnonzero(idle).tolist())
            raise PartitionError(
                f"seconds_per_row: {names} would compute {rows} rows in 0 s, the others not; give "
                "every node a figure above 0, or none"
            )
        for models in self._models:
            for node, model in enumerate(models):
                if isinstance(model, TabulatedModel) and not model.nondecreasing:
                    raise PartitionError(
                        f"models: the times of node {node} decrease somewhere, so that loads "
                        "cannot be balanced row by row; predict and search take any times"
                    )

    def balanced(self, rows: int, most: FloatArray) -> IntArray:
        """Return the distribution with the smallest largest load.

        Parameters
        ----------
        rows : int
        most : ndarray of float64, shape [p]
            Most rows per node, ``inf`` for no limit.
        """
        if not self.computes:
            return Load.flat(self._rates.size).balanced(rows, most)
        try:
            found = distributed(rows, self, most)
        except PartitionError as error:
            words = str(error).replace("units", "rows").replace("workers", "nodes")
            raise PartitionError(f"models: {words}") from error
        return self._settled(found, most)

    def time(self, workers: IntArray, units: FloatArray) -> FloatArray:
        """Return the seconds of ``units[j]`` rows on node ``workers[j]``."""
        seconds: FloatArray = self._rates[workers] * units
        for models in self._banks:
            seconds = seconds + models.time(workers, units)
        return seconds

    def units_within(self, seconds: float) -> FloatArray:
        """Return the most rows of every node within `seconds`, real numbers."""
        with np.errstate(divide="ignore"):
            alone = seconds / self._rates
        if not self._banks:
            return alone
        for models in self._banks:
            alone = np.minimum(alone, models.units_within(seconds))
        return self._bisected(seconds, alone)

    def narrowed(self, low: float, high: float) -> "Load":
        """Return this load: models search for themselves."""
        return self

    def _bisected(self, seconds: float, high: FloatArray) -> FloatArray:
        """Return the rows within `seconds`, of which no stage alone allows more than `high`."""
        if len(self._banks) == 1 and not self._rates.any():
            return high
        nodes, low = np.arange(high.size), np.zeros(high.size)
        high = np.minimum(high, float(checks.EXACT))
        fits = self.time(nodes, high) <= seconds
        for _ in range(64):
            middle = low + (high - low) / 2
            inside = self.time(nodes, middle) <= seconds
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        return np.where(fits, high, np.floor(high))

    def _settled(self, found: IntArray, most: FloatArray) -> IntArray:
        """Return the rows with the smallest (load, node), where rounding has swapped some."""
        found = found.copy()
        while True:
            worst = max((self._load(i, int(x)), i) for i, x in enumerate(found) if x)
            others = [i for i, x in enumerate(found) if x < most[i] and i != worst[1]]
            if not others:
                return found
            best = min((self._load(i, int(found[i]) + 1), i) for i in others)
            if best >= worst:
                return found
            found[worst[1]] -= 1
            found[best[1]] += 1

    def _load(self, node: int, rows: int) -> Fraction | float:
        seconds: Fraction | float = self._exact[node] * rows
        for models in self._models:
            seconds = seconds + models[node].time(rows)
        return seconds


def _in_core(
    load: Load, program: Program, machine: Machine, rows: int, most: FloatArray
) -> IntArray:
    """Return the balanced distribution that keeps as many nodes as possible in core."""
    if most.sum() >= rows:
        return load.balanced(rows, most)
    found = []
    for node in range(machine.nodes):
        limits = most.copy()
        limits[node] = np.inf
        found.append(load.balanced(rows, limits))
    seconds = evaluator(program, machine)(np.array(found))
    return found[int(np.argmax(seconds <= seconds.min() * (1 + _EQUAL)))]
