"""The geometric bisection: the distribution on one line through the origin of the speed plot."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.models import Model, TabulatedModel
from fpmdask.models.bank import Bank, bank
from fpmdask.partition.validate import (
    FloatArray,
    IntArray,
    Limits,
    check_feasible,
    check_limits,
    check_units,
)


def geometric(units: float, models: Sequence[Model], limits: Limits | None = None) -> IntArray:
    """Return the distribution with the smallest makespan for non-decreasing times.

    Parameters
    ----------
    units : int
        From 1 to 2**52.
    models : sequence of Model
        One per worker, of any kinds; `time` must not decrease.
    limits : sequence of float or None, optional
        Most units per worker, ``None`` or ``inf`` for no limit.

    Returns
    -------
    ndarray of int64
        Units per worker, summing to `units`. Among equal times the lowest worker gets the unit.

    Raises
    ------
    PartitionError
        If `units`, `models` or `limits` are not allowed, or the units do not fit the limits or
        cannot be done in a finite time.

    Notes
    -----
    A line through the origin of the speed plot, ``speed = x / T``, cuts every speed function
    where its time is T; its slope is bisected, that is, T. For non-decreasing times the optimum
    is the set of the `units` units (i, k), the k-th unit of worker i, whose times
    ``time_i(k)`` are smallest. A bracket of T is narrowed until at most 2p such units lie
    inside; they are then selected by their times, ties by worker.

    The next T is the secant's, through the two nearest cuts, of the units over T on logarithmic
    axes, where a constant speed is a straight line. Where that stalls, because times jump
    (plateaus, tables), it is the weighted median of the workers' middle units between the cuts,
    which a quarter of these units lie on either side of or share. A bracket of neighbouring
    floats holds equal times. O(p log points) per step: 4 to 13 steps for thousands of workers,
    8 on average and 83 at most in 1,455 random cases with few workers and jumping times.

    1. The paper bisects the slope; secants and medians take fewer steps.
    2. The paper leaves the rounding open; largest remainders are not optimal.

    References
    ----------
    A. Lastovetsky, R. Reddy (2009), Distributed Data Partitioning for Heterogeneous Processors
    Based on Partial Estimation of Their Functional Performance Models, section 2.

    Examples
    --------
    >>> from fpmdask.models import ConstantModel, PiecewiseLinearModel
    >>> paging = PiecewiseLinearModel.from_points([60_000, 66_000], [6.0, 66.0])
    >>> geometric(100_000, [paging, ConstantModel(5000.0)])
    array([61371, 38629])
    """
    total = check_units(units)
    _check_models(models)
    most = check_limits(limits, len(models), total)
    return distributed(total, bank(models), most)


def distributed(total: int, gathered: Bank, most: FloatArray) -> IntArray:
    """Return the min-max optimal distribution for models already gathered.

    Parameters
    ----------
    total : int
        Units, at least 1.
    gathered : Bank
        Models of the workers.
    most : ndarray of float64
        Most units per worker, whole or ``inf``.

    Returns
    -------
    ndarray of int64
        Units per worker, summing to `total`.

    Raises
    ------
    PartitionError
        If the units do not fit.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        check_feasible(total, most)
        most = np.minimum(most, np.floor(gathered.units_within(_LONGEST)))
        if (room := float(most.sum())) < total:
            raise PartitionError(
                f"{total} units do not fit: within the limits the models of {most.size} workers "
                f"have finite times for {room:.0f} units; add workers or give fewer units"
            )
        most = np.minimum(most, total)
        low, high = _bracket(total, gathered, most)
        return _select(total, gathered, low, high)


def _check_models(models: Sequence[Model]) -> None:
    if not isinstance(models, Sequence | np.ndarray) or len(models) == 0:
        raise PartitionError(
            f"models is {models!r}; a sequence with a model per worker and at least one is needed"
        )
    kinds = set(map(type, models))
    if wrong := [kind for kind in kinds if not issubclass(kind, Model)]:
        at = next(i for i, model in enumerate(models) if type(model) in wrong)
        raise PartitionError(f"models[{at}] is {models[at]!r}; a fpmdask.models.Model is needed")
    for at, model in enumerate(models) if TabulatedModel in kinds else ():
        if isinstance(model, TabulatedModel) and not model.nondecreasing:
            raise PartitionError(
                f"the times of models[{at}] decrease somewhere; geometric needs non-decreasing "
                "times: use fpmdask.partition.exact with the tables"
            )


# The longest time: what takes longer cannot be done.
_LONGEST = float(np.finfo(np.float64).max)
# Steps before which the search for segments is confined to those inside the bracket.
_NARROW = (3, 8)


@dataclass(frozen=True)
class _Cut:
    """The line of slope 1 / seconds: where it cuts each worker's speed function."""

    seconds: float
    units: float  # the sum of the real cuts
    whole: FloatArray
    count: float  # the sum of the whole units below the cuts


def _cut(seconds: float, gathered: Bank, most: FloatArray) -> _Cut:
    reach = np.minimum(gathered.units_within(seconds), most)
    whole = np.floor(reach)
    return _Cut(seconds, float(reach.sum()), whole, float(whole.sum()))


def _bracket(total: int, gathered: Bank, most: FloatArray) -> tuple[_Cut, _Cut]:
    """Return cuts below and above the optimum with at most 2p units between, or equal times."""
    few = 2 * most.size
    low, high = _start(total, gathered, most)
    spare, stalls, steps = high, 0, 0
    while (gap := high.count - low.count) > few:
        if math.nextafter(low.seconds, math.inf) >= high.seconds:
            break
        steps += 1
        if steps in _NARROW:
            gathered = gathered.narrowed(low.seconds, high.seconds)
        jump = stalls == 2
        guess = (
            _median(gathered, low, high) if jump else _secant(total, most.size, low, high, spare)
        )
        cut = _cut(_between(guess, low, high), gathered, most)
        low, high, spare = _tightened(total, cut, low, high)
        if jump and cut is high and low.seconds < (before := math.nextafter(cut.seconds, 0.0)):
            # The median is often the very time of a plateau.
            low, high, spare = _tightened(total, _cut(before, gathered, most), low, high)
        stalls = stalls + 1 if high.count - low.count > gap / 2 and not jump else 0
    return low, high


def _tightened(total: int, cut: _Cut, low: _Cut, high: _Cut) -> tuple[_Cut, _Cut, _Cut]:
    """Return the bracket with `cut` in it, and the cut that it replaced."""
    return (cut, high, low) if cut.count <= total else (low, cut, high)


def _between(seconds: float, low: _Cut, high: _Cut) -> float:
    """Return `seconds`, or the geometric mean of the cuts if it is not between them."""
    if not low.seconds < seconds < high.seconds:
        seconds = math.sqrt(low.seconds) * math.sqrt(high.seconds)
    if not low.seconds < seconds < high.seconds:
        seconds = math.nextafter(low.seconds, high.seconds)
    return seconds


def _median(gathered: Bank, low: _Cut, high: _Cut) -> float:
    """Return the weighted median of the times of each worker's middle unit between the cuts.

    At least a quarter of the units between lie on either side of it, or take exactly this time.
    """
    # where times of one worker span hundreds of decades, its units of the later time may be fewer
    extra = np.maximum(high.whole - low.whole, 0)
    workers = np.flatnonzero(extra)
    times = gathered.time(workers, low.whole[workers] + np.ceil(extra[workers] / 2))
    order = np.argsort(times)
    weight = np.cumsum(extra[workers[order]])
    median = times[order[np.searchsorted(weight, weight[-1] / 2)]]
    return _between(float(median), low, high)


def _start(total: int, gathered: Bank, most: FloatArray) -> tuple[_Cut, _Cut]:
    """Return cuts at the times that the fastest and the slowest worker need for an even share."""
    share = np.minimum(np.ceil(total / most.size), np.maximum(most, 1.0))
    times = gathered.time(np.arange(most.size), share)
    usable = times[(most > 0) & np.isfinite(times) & (times > 0)]
    early, late = (usable.min(), usable.max()) if usable.size else (1.0, 1.0)
    low, high = _cut(float(early), gathered, most), _cut(float(late), gathered, most)
    factor = 4.0
    while high.count < total:
        seconds = min(high.seconds * factor, _LONGEST)
        high, factor = _cut(seconds, gathered, most), factor * factor
    if low.count > total and (free := _cut(0.0, gathered, most)).count > total:
        # units that take no time
        return replace(free, whole=np.zeros(most.size), count=0.0), free
    factor = 4.0
    while low.count > total:
        low, factor = _cut(low.seconds / factor, gathered, most), factor * factor
    return low, high


def _secant(total: int, workers: int, low: _Cut, high: _Cut, spare: _Cut) -> float:
    """Return the time on the line, in logarithms, through the two cuts next to the target.

    The target lies p/2 real units from the optimum, on the side where the bracket is wider.
    """
    target = total + (workers if high.count - total > total - low.count else 0)
    cuts = [cut for cut in (low, high, spare) if cut.units > 0 and 0 < cut.seconds < math.inf]
    cuts.sort(key=lambda cut: abs(math.log(cut.units / target)))
    if len(cuts) < 2 or cuts[0].units == cuts[1].units:
        return 0.0
    near, far = cuts[:2]
    slope = math.log(far.seconds / near.seconds) / math.log(far.units / near.units)
    return near.seconds * math.exp(min(slope * math.log(target / near.units), 700.0))


def _select(total: int, gathered: Bank, low: _Cut, high: _Cut) -> IntArray:
    """Return the whole units below `low` and those that finish earliest between the cuts."""
    shares: IntArray = low.whole.astype(np.int64)
    # where times of one worker span hundreds of decades, its units of the later time may be fewer
    extra = np.maximum(high.whole - low.whole, 0)
    missing = total - int(shares.sum())
    before = np.cumsum(extra) - extra
    if high.count - low.count > 2 * extra.size:
        shares += np.clip(missing - before, 0, extra).astype(np.int64)
        return shares
    workers = np.repeat(np.arange(extra.size), extra.astype(np.int64))
    units = low.whole[workers] + np.arange(1, workers.size + 1) - before[workers]
    times = gathered.time(workers, units)
    chosen = np.argsort(times, kind="stable")[:missing]
    shares += np.bincount(workers[chosen], minlength=extra.size)
    return shares
