"""The optimal makespan for any times, also where more units take less time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.models.arrays import numbers
from fpmdask.partition.sumset import BoolArray, sumset
from fpmdask.partition.validate import (
    FloatArray,
    IntArray,
    Limits,
    check_feasible,
    check_limits,
    check_units,
)


def exact(units: float, tables: Sequence[ArrayLike], limits: Limits | None = None) -> IntArray:
    """Distribute units so that the makespan is the smallest possible for any times.

    Parameters
    ----------
    units : int
        Units to distribute, at least 1; an integral float is allowed.
    tables : sequence of array_like, or 2-D array
        ``tables[i][x]`` is the time in seconds of x units on worker i, at least 0, in any order of
        size; ``inf`` means that x units are not possible. A table of length m limits its worker
        to m - 1 units. ``tables[i][0]`` is 0 or what the worker costs without any unit: it counts
        in the makespan like every other time.
    limits : array_like, optional
        Most units per worker; entries may be None or ``inf``.

    Returns
    -------
    ndarray of int64
        Units per worker. Of all distributions with the optimal makespan it has the fewest workers
        with units; of these it has the fewest units on the last worker, then on the last but one,
        and so on.

    Raises
    ------
    PartitionError
        If an argument is not allowed, or no choice of sizes sums to `units`.

    Notes
    -----
    The makespan is the smallest T in the tables for which sizes with a time of at most T sum to
    `units`: the optimum T* is one of the p m times, and what is reachable grows with T, so
    bisection needs log2(p m) tests. With D = min(units - least sum, largest sum - units) of the
    sizes allowed at T, a test is p sums of two sets (see `sumset`) on D + 1 bits: sizes are
    counted upwards from each worker's smallest or downwards from its largest, whichever leaves
    less to reach. Most tests need none: T is too small if the largest sizes sum to less than
    `units`, and large enough if the sizes up to each worker's first one above T do not.

    O(p log(p m) min(r N / 64, N log N)) with r the runs of consecutive allowed sizes, against
    O(p N**2) for the dynamic program. The ties then need p sums of sets per worker with units.

    1. The dynamic program of the 2006 slides fills T(i, n) for all n and i; only one n is
       wanted, and asking "is T enough" is a question about sets of integers.

    References
    ----------
    C. Cérin, J.-C. Dubacq, J.-L. Roch (2006), Methods for Partitioning Data to Improve Parallel
    Execution Time for Sorting on Heterogeneous Clusters, non uniformly related processors.

    Examples
    --------
    Four units are faster than three on the first worker.

    >>> exact(6, [[0, 3, 4, 9, 5], [0, 2, 5, 8, 9]])
    array([4, 2])
    """
    n = check_units(units)
    if not isinstance(tables, Sequence | np.ndarray):
        raise PartitionError(f"tables is {tables!r}; pass one table of seconds per worker")
    times = [_table(i, table) for i, table in enumerate(tables)]
    if not times:
        raise PartitionError("tables is empty; pass one table of seconds per worker")
    most = np.minimum(check_limits(limits, len(times)), [t.size - 1 for t in times])
    check_feasible(n, most)
    times = [t[: min(int(m), n) + 1] for t, m in zip(times, most, strict=True)]
    return _fewest(_optimum(times, n))


@dataclass(frozen=True, slots=True)
class _Question:
    """Which sizes are allowed at a T, counted as steps from a start towards the target."""

    starts: list[int]  # the size that is 0 steps
    sign: int  # +1: steps upwards from the smallest sizes, -1: downwards from the largest
    steps: list[BoolArray]
    target: int  # the sum of the steps that is wanted

    def reachable(self) -> bool:
        """Return whether the target is a sum of one step count of each worker."""
        reached = np.ones(1, dtype=np.bool_)
        for steps in sorted(self.steps, key=np.count_nonzero):
            reached = sumset(reached, steps, self.target + 1)
        return bool(reached[self.target])


class _Times:
    """The tables with their envelopes, which answer most questions without sets."""

    def __init__(self, times: list[FloatArray], units: int) -> None:
        self.times, self.units = times, units
        self.rising = [np.maximum.accumulate(t) for t in times]
        self.later = [np.minimum.accumulate(t[::-1])[::-1] for t in times]

    def enough(self, seconds: float) -> bool:
        """Return whether the units can be done within `seconds`."""
        most = sum(int(t.searchsorted(seconds, "right")) - 1 for t in self.later)
        if most < self.units:
            return False
        prefix = [int(t.searchsorted(seconds, "right")) - 1 for t in self.rising]
        if min(prefix) >= 0 and sum(prefix) >= self.units:
            return True
        question = self.question(seconds)
        return question is not None and question.reachable()

    def question(self, seconds: float) -> _Question | None:
        """Return what is allowed within `seconds`; None where bounds already forbid it."""
        allowed = [t <= seconds for t in self.times]
        if not all(a.any() for a in allowed):
            return None
        least = [int(a.argmax()) for a in allowed]
        most = [a.size - 1 - int(a[::-1].argmax()) for a in allowed]
        up, down = self.units - sum(least), sum(most) - self.units
        if up < 0 or down < 0:
            return None
        if up <= down:
            steps = [a[lo:][: up + 1] for a, lo in zip(allowed, least, strict=True)]
            return _Question(least, 1, steps, up)
        steps = [a[hi::-1][: down + 1] for a, hi in zip(allowed, most, strict=True)]
        return _Question(most, -1, steps, down)


def _optimum(times: list[FloatArray], units: int) -> _Question:
    """Bisect on the times themselves; return the question at the optimal makespan."""
    known = _Times(times, units)
    candidates = np.sort(np.concatenate(times))
    candidates = candidates[np.isfinite(candidates)]
    low, high = 0, candidates.size - 1
    while low < high:
        middle = (low + high) // 2
        if known.enough(float(candidates[middle])):
            high = middle
        else:
            low = middle + 1
    if not (candidates.size and known.enough(float(candidates[low]))):
        raise PartitionError(_impossible(times, units))
    question = known.question(float(candidates[low]))
    assert question is not None  # enough() was true
    return question


def _impossible(times: list[FloatArray], units: int) -> str:
    finite = [np.flatnonzero(np.isfinite(t)) for t in times]
    empty = [i for i, sizes in enumerate(finite) if not sizes.size]
    if empty:
        return (
            f"worker {empty[0]} has no finite time for 0 to {times[empty[0]].size - 1} units; "
            "give it one or leave the worker out"
        )
    least = sum(int(sizes[0]) for sizes in finite)
    most = sum(int(sizes[-1]) for sizes in finite)
    if least <= units <= most:
        return f"no choice of sizes with finite times sums to {units} units; fill in more sizes"
    return (
        f"{units} units found, but tables and limits allow {least} to {most}; "
        "use longer tables, higher limits or more workers"
    )


def _fewest(question: _Question) -> IntArray:
    """Return the first distribution in the order of ties that `exact` documents."""
    levels: list[list[BoolArray | None]] = []
    for level in _levels(question):
        levels.append(level)
        last = level[-1]
        if last is not None and last.size > question.target and last[question.target]:
            break
    return _backtracked(question, levels)


def _split(question: _Question, i: int) -> tuple[BoolArray, int | None]:
    """Return worker i's steps that leave it units, and the step that leaves it none."""
    steps, start = question.steps[i], question.starts[i]
    idle = -question.sign * start
    if not 0 <= idle < steps.size or not steps[idle]:
        return steps, None
    busy = steps.copy()
    busy[idle] = False
    return busy, idle


def _levels(question: _Question) -> Iterator[list[BoolArray | None]]:
    """Yield for k = 0, 1, ... what the first i workers reach, k of them having units."""
    size, p = question.target + 1, len(question.steps)
    parts = [_split(question, i) for i in range(p)]
    below: list[BoolArray | None] = [None] * p
    for k in range(p + 1):
        level: list[BoolArray | None] = [np.ones(1, dtype=np.bool_) if k == 0 else None]
        for i, (busy, idle) in enumerate(parts):
            without, fewer = level[i], below[i]
            reached = None if fewer is None else sumset(fewer, busy, size)
            if without is not None and idle is not None and idle < size:
                resting = np.zeros(size, dtype=np.bool_)
                kept = without[: size - idle]
                resting[idle : idle + kept.size] = kept
                reached = resting if reached is None else reached | resting
            level.append(reached if reached is not None and reached.any() else None)
        yield level
        below = level


def _backtracked(question: _Question, levels: list[list[BoolArray | None]]) -> IntArray:
    p, k, rest = len(question.steps), len(levels) - 1, question.target
    distribution = np.zeros(p, dtype=np.int64)
    for i in range(p - 1, -1, -1):
        busy, idle = _split(question, i)
        if idle is not None and _has(levels[k][i], rest - idle):
            rest -= idle
            continue
        k -= 1
        steps = np.flatnonzero(busy[: rest + 1])[:: question.sign]
        step = next(int(s) for s in steps if _has(levels[k][i], rest - int(s)))
        distribution[i] = question.starts[i] + question.sign * step
        rest -= step
    return distribution


def _has(members: BoolArray | None, value: int) -> bool:
    return members is not None and 0 <= value < members.size and bool(members[value])


def _table(i: int, table: ArrayLike) -> FloatArray:
    times = numbers(table, f"tables[{i}]")
    if times.ndim != 1 or times.size == 0:
        raise PartitionError(
            f"tables[{i}] has shape {times.shape}; pass one time per size, from 0 units on"
        )
    bad = np.flatnonzero(~(times >= 0))
    if bad.size:
        raise PartitionError(
            f"tables[{i}][{bad[0]}] is {times[bad[0]]}; times are at least 0 seconds, inf allowed"
        )
    return times
