"""Shares of successive batches where the complexity is not known: it is learned on the way."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.models import AnalyticModel
from fpmdask.partition.analytic import integral, levelled
from fpmdask.partition.even import even
from fpmdask.partition.validate import (
    SLOWEST,
    FloatArray,
    IntArray,
    check_numbers,
    check_positive,
    check_units,
    check_workers,
    relative,
)

# Sizes this close together are one point, unless their costs differ as on a cliff.
SAME = 1.02
CLIFF = 1.5
# The cost rises with this power of the size, at most, where it is taken for smooth; between the
# ends of a steeper piece that are this close, the safe one is taken.
STEEP, NEAR = 8.0, 1.005
# After so many batches nobody is sent beyond the safe end of a steep piece, however long it is.
EXPLORING = 6
# What comes of logarithms and powers is off by less, relative to it.
ROUNDED = 1e-12
# So many of a worker's times in a row that say another speed are no accident.
LATEST = 2
# The speeds and the function are fitted to each other so many times after each batch.
_FITS = 4
_TINY = float(np.finfo(float).tiny)


class CommonFunction:
    """Cost of a number of units, common to all workers: seconds times speed.

    Piecewise linear on logarithmic axes through points with sizes and costs that do not decrease,
    continued with the slope of the piece at either end; with no point it is the size itself.
    Callable on arrays, so that it is a complexity for `fpmdask.models.AnalyticModel`.
    """

    def __init__(
        self, sizes: ArrayLike = (0.0,), costs: ArrayLike = (0.0,), near: float = NEAR
    ) -> None:
        self._x, self._y = (np.asarray(logs, dtype=np.float64) for logs in (sizes, costs))
        slopes = np.diff(self._y) / np.diff(self._x)
        # Pieces that are cliffs whose place is known well enough; there is none after the last
        # point.
        steep = np.append(slopes > STEEP, False)
        run = np.append(np.diff(self._x), 1.0)
        self._brinks = steep & (run <= math.log(near))
        self._rise = np.append(np.diff(self._y), 1.0)
        self._run = np.where(self._brinks, 0.0, run)
        # Where a steep piece is entered: around its middle, for the cliff may be anywhere in it.
        self._middle = np.where(steep & ~self._brinks, run / 2, np.nan)
        # A plateau or a cliff at an end says nothing of what is beyond; a power from 1 to 2 does.
        ends = np.clip(slopes, 1.0, 2.0) if slopes.size else np.ones(1)
        self._first, self._last = float(ends[0]), float(ends[-1])

    @property
    def points(self) -> tuple[FloatArray, FloatArray]:
        """Units and costs that it was made from, increasing."""
        return np.exp(self._x), np.exp(self._y)

    def __call__(self, units: ArrayLike) -> FloatArray:
        """Return the cost of numbers of units, 0 for none."""
        sizes = np.asarray(units, dtype=np.float64)
        x, y = self._x, self._y
        logs = np.log(np.maximum(sizes, _TINY))
        found = np.where(logs < x[0], y[0] + self._first * (logs - x[0]), np.interp(logs, x, y))
        found = np.where(logs > x[-1], y[-1] + self._last * (logs - x[-1]), found)
        at = np.clip(np.searchsorted(x, logs, side="left"), 1, x.size) - 1
        found = np.where(self._brinks[at] & (logs > x[at]), np.append(y[1:], y[-1])[at], found)
        return np.where(sizes > 0, np.exp(found), 0.0)

    def units_within(self, costs: ArrayLike) -> FloatArray:
        """Return the most units that cost no more; on the brink of a cliff, its safe end."""
        wanted = np.asarray(costs, dtype=np.float64)
        x, y = self._x, self._y
        logs = np.log(np.maximum(wanted, _TINY))
        at = np.searchsorted(y, logs, side="right") - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            found = x[at] + (logs - y[at]) * (self._run / self._rise)[at]
            inside = np.isfinite(self._middle[at]) & (logs > y[at])
            found = np.where(inside, x[at] + self._middle[at], found)
        found = np.where(at < 0, x[0] + (logs - y[0]) / self._first, found)
        found = np.where(at == x.size - 1, x[-1] + (logs - y[-1]) / self._last, found)
        # whole numbers of units stay what they were before their logarithms were taken
        return np.where(wanted > 0, np.exp(np.minimum(found, 700.0)) * (1 + ROUNDED), 0.0)

    def spread(self, units: FloatArray, speeds: FloatArray) -> FloatArray:
        """Spread workers that are sent to the middle of one steep piece, from slow to fast.

        Of k of them each tries another place, so that the doubt about the cliff is k + 1 times
        as small after it. The units in all stay the same.
        """
        found = units.copy()
        for at in np.flatnonzero(np.isfinite(self._middle)):
            low, middle = np.exp(self._x[at] + np.array([0.0, self._middle[at]]))
            inside = np.flatnonzero(np.isclose(units, middle, rtol=1e-9))
            places = 2.0 * np.arange(1, inside.size + 1) / (inside.size + 1) - 1.0
            found[inside[np.argsort(speeds[inside])]] += places * (middle - low)
        return found


class Batches:
    """Partition batch after batch among workers, learning speeds and complexity from the times.

    Parameters
    ----------
    workers : int
        At least 1.
    speeds : sequence of float, optional
        Relative speeds, finite and > 0; the times correct them. Without them the first batch is
        even, and its times tell. Speeds in a wrong order are worse than none: what they lead to may
        look like a cliff.

    Raises
    ------
    PartitionError
        If an argument is not allowed.

    Notes
    -----
    Worker i takes T = f(n) / k_i for n units, with one function f for all. The cost C = T·k_i of
    every share is recorded at its size; f is interpolated between (on logarithmic axes, where
    powers are straight lines), and the next distribution is that of `by_complexity`, which
    searches for T between bounds. The paper leaves open, and here is so:

    1. A size that comes again keeps the geometric mean of its costs. Sizes within 2 % are one,
       unless their costs differ by half: then there is a cliff between them.
    2. Costs that decrease with the size are pooled (adjacent violators, weighted, in logarithms).
    3. Beyond the sizes seen, the slope at the end is kept, between 1 and 2.
    4. A piece whose cost rises faster than the size's 8th power is a cliff: those who get into it
       try places around its middle, until its ends are within 0.5 % or six batches are over; then
       nobody is sent beyond. Those batches cost what trying costs. One worker alone halves the
       doubt with each: of two or three workers, after six batches, some end up to 11 % above the
       best, four or more within 2 %.
    5. The speeds are the means, over all batches, of what f says they are: noise averages out.
       Times that say a speed other by half than the worker's others are left out; after two in a
       row the speed has changed, and those before are forgotten.

    O((p + points) log points) per batch, and one `by_complexity`.

    References
    ----------
    C. Cérin, J.-C. Dubacq, J.-L. Roch (2006), Methods for Partitioning Data to Improve Parallel
    Execution Time for Sorting on Heterogeneous Clusters, "Dynamic evaluation of complexity
    function".

    Examples
    --------
    >>> batches = Batches(2)
    >>> for _ in range(4):
    ...     sizes = batches.ask(1000)
    ...     batches.tell([sizes[0] ** 2 / 1.0, sizes[1] ** 2 / 4.0])
    >>> sizes
    array([333, 667])
    """

    def __init__(self, workers: int, *, speeds: Sequence[float] | None = None) -> None:
        self._workers = check_workers(workers)
        self._speeds: FloatArray | None = None
        if speeds is not None:
            rates = check_positive(speeds, "speeds", self._workers)
            self._speeds = relative(rates)
        self._given = self._speeds is not None
        self._asked: IntArray | None = None
        self._sizes: list[FloatArray] = []
        self._seconds: list[FloatArray] = []
        self._function = CommonFunction()
        # the first batch whose times still count
        self._since = np.zeros(self._workers, np.int64)

    @property
    def speeds(self) -> FloatArray | None:
        """Relative speeds, 1 the fastest; None before the first times of an even batch."""
        return None if self._speeds is None else self._speeds.copy()

    @property
    def complexity(self) -> CommonFunction:
        """What a number of units costs the fastest worker, in seconds; of any scale at first."""
        return self._function

    def ask(self, units: float) -> IntArray:
        """Return how many of the next batch's units each worker should get.

        Parameters
        ----------
        units : int
            From 1 to 2**52.

        Returns
        -------
        ndarray of int64
            Summing to `units`; another call replaces it.

        Raises
        ------
        PartitionError
            If `units` is not allowed.
        """
        total = check_units(units)
        if self._speeds is None:
            self._asked = even(total, self._workers)
        else:
            speeds, within = self._speeds, self._function.units_within
            shares = levelled(total, lambda seconds: within(seconds * speeds))
            shares = self._function.spread(shares, speeds)
            models = [AnalyticModel(self._function, speed) for speed in speeds]
            self._asked = integral(shares, total, models)
        return self._asked.copy()

    def tell(self, seconds: ArrayLike) -> None:
        """Record how long the workers took for what was asked last.

        Parameters
        ----------
        seconds : array_like of float
            One per worker, from 1e-100 to 1e100; ignored where the worker had no units.

        Raises
        ------
        PartitionError
            If nothing was asked, or a time is not allowed.
        """
        if self._asked is None:
            raise PartitionError("no batch is out; call ask(units) first")
        times = check_numbers(seconds, "seconds", self._workers)
        busy = self._asked > 0
        if not (good := ~busy | ((times >= SLOWEST) & (times <= 1 / SLOWEST))).all():
            at = int(np.argmin(good))
            raise PartitionError(
                f"seconds[{at}] is {times[at]}; a number from 1e-100 to 1e100 is needed"
            )
        self._sizes.append(np.where(busy, self._asked, 0).astype(np.float64))
        self._seconds.append(np.where(busy, times, 1.0))
        self._asked = None
        if self._speeds is None:
            with np.errstate(divide="ignore", invalid="ignore"):
                rates = np.where(busy, self._sizes[-1] / self._seconds[-1], np.nan)
            # a worker that had no unit is taken for a middling one
            rates = np.where(busy, rates, np.nanmedian(rates))
            self._speeds = relative(rates)
        self._fit()

    def _fit(self) -> None:
        """Fit the function and the speeds, anew where a worker's speed has changed."""
        if self._forgets(self._fitted()):
            self._fitted()

    def _fitted(self) -> FloatArray:
        """Fit the function and the speeds to all times that count.

        Return how much faster each says that its worker is, as logarithms, batch by worker; nan
        where there is none.
        """
        assert self._speeds is not None
        sizes, seconds = np.array(self._sizes), np.array(self._seconds)
        told = (sizes > 0) & (np.arange(len(sizes))[:, np.newaxis] >= self._since)
        _, worker = np.nonzero(told)
        x, t = np.log(sizes[told]), np.log(seconds[told])
        count = np.maximum(told.sum(0), 1)
        logs = np.log(self._speeds)
        apart = np.full(sizes.shape, np.nan)
        apart[0, ~told.any(0)] = 0.0
        # one even batch has told the speeds already
        for _ in range(_FITS if self._given or len(sizes) > 1 else 0):
            apart[told] = _apart(x, t + logs[worker], *_points(x, t + logs[worker]))
            # what is beyond a cliff for one and not for another says nothing of speeds; where most
            # of a worker's times are as far apart, they do
            usual = np.abs(apart - np.nanmedian(apart, axis=0)) < math.log(CLIFF)
            logs += np.where(usual, apart, 0.0).sum(0) / count
            logs -= logs.max()
        self._speeds = np.exp(logs)
        units, costs = _points(x, t + logs[worker])
        near = NEAR if len(sizes) < EXPLORING else math.inf
        self._function = CommonFunction(units, costs, near)
        apart[told] = _apart(x, t + logs[worker], units, costs)
        return apart

    def _forgets(self, apart: FloatArray) -> bool:
        """Forget earlier times of workers whose latest say another speed; tell whether any do."""
        found = False
        for worker, own in enumerate(apart.T):
            batches = np.flatnonzero(np.isfinite(own))
            if batches.size <= LATEST:
                continue
            beyond = own[batches[-LATEST:]] - np.median(own[batches[:-LATEST]])
            if max(beyond.min(), -beyond.max()) > math.log(CLIFF):
                self._since[worker] = batches[-LATEST]
                found = True
        return found


def _apart(x: FloatArray, y: FloatArray, units: FloatArray, costs: FloatArray) -> FloatArray:
    """Return how far the function through points is from measurements, all as logarithms.

    A measured size is within a steep piece only where it is one with sizes beside it: it is on that
    side of the cliff which its cost says.
    """
    found = np.interp(x, units, costs)
    if units.size > 1:
        at = np.clip(np.searchsorted(units, x), 1, units.size - 1)
        low, high = costs[at - 1], costs[at]
        steep = (high - low > STEEP * (units[at] - units[at - 1])) & (x > units[at - 1])
        nearer = np.where(y - low < high - y, low, high)
        found = np.where(steep & (x < units[at]), nearer, found)
    return np.asarray(found - y)


def _points(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return increasing sizes and non-decreasing costs, all as logarithms, from measurements."""
    order = np.lexsort((y, x))
    groups: list[list[float]] = []  # sums of sizes and costs, weight, first and last size
    for at, cost in zip(x[order].tolist(), y[order].tolist(), strict=True):
        last = groups[-1] if groups else None
        near = last is not None and at - last[3] <= math.log(SAME)
        if last is not None and near and abs(cost - last[1] / last[2]) < math.log(CLIFF):
            last[0], last[1], last[2], last[4] = last[0] + at, last[1] + cost, last[2] + 1, at
        elif last is not None and at - last[3] <= 0.0:  # the same size, another cost
            last[1], last[2], last[0] = last[1] + cost, last[2] + 1, last[0] + at
        else:
            groups.append([at, cost, 1.0, at, at])
    at_size = [total / weight for total, _, weight, *_ in groups]
    for n, (low, high) in enumerate(pairwise(groups)):
        # sizes so close are one but for a cliff: it is after the last of those, before the first
        # of these
        if 0.0 < high[3] - low[4] <= math.log(SAME):
            at_size[n], at_size[n + 1] = low[4], high[3]
    pools: list[tuple[float, float, list[float]]] = []  # sum, weight, sizes
    for size, (_, cost, weight, *_) in zip(at_size, groups, strict=True):
        pools.append((cost, weight, [size]))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            after = pools.pop()
            before = pools.pop()
            pools.append((before[0] + after[0], before[1] + after[1], before[2] + after[2]))
    units = [size for _, _, sizes in pools for size in sizes]
    costs = [total / weight for total, weight, sizes in pools for _ in sizes]
    return np.array(units), np.array(costs)
