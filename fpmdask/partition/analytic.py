"""Shares that follow from speeds and a known complexity, as real numbers; and their rounding."""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.models import AnalyticModel, Model
from fpmdask.models.analytic import Complexity
from fpmdask.models.arrays import positive_number
from fpmdask.partition.validate import (
    FloatArray,
    IntArray,
    check_numbers,
    check_positive,
    check_units,
    relative,
)

# Shares may differ from the units by so much of them, for the arithmetic of float64.
TOLERANCE = 1e-9
_LARGEST = 1023  # the largest power of two that a float64 holds


def by_complexity(units: float, speeds: ArrayLike, complexity: Complexity) -> FloatArray:
    """Return the shares that take all workers the same time T = f(n_i) / k_i.

    Parameters
    ----------
    units : int
        N, from 1 to 2**52.
    speeds : array_like of float
        k_i, operations per second of each worker, finite and > 0; only their ratios matter.
    complexity : {"linear", "nlogn"}, ("power", beta) or callable
        f, as for `fpmdask.models.AnalyticModel`.

    Returns
    -------
    ndarray of float64
        Units per worker, summing to `units`; `integral` makes whole ones of them.

    Raises
    ------
    PartitionError
        If `units`, `speeds` or `complexity` are not allowed, or no finite time is enough.

    Notes
    -----
    T is the one unknown of Σ f⁻¹(T·k_i) = N, whose left side increases: it is bracketed by powers
    of two, 16-fold apart, and found to the last bits by the method of Alefeld, Potra and Shi
    (1995, TOMS 748). Where f jumps, or is flat, there may be no such T: then the shares lie between
    those of two times beside the jump, and no other ones have a smaller makespan. O(p) per step,
    some 20 steps; a callable is inverted in some 65 calls.

    References
    ----------
    C. Cérin, J.-C. Dubacq, J.-L. Roch (2006), Methods for Partitioning Data to Improve Parallel
    Execution Time for Sorting on Heterogeneous Clusters, "Basic approach".

    Examples
    --------
    >>> by_complexity(1_000_000, [1.0, 2.0], "nlogn").round(3).tolist()
    [344370.286, 655629.714]
    """
    total, rates = _checked(units, speeds)
    model = AnalyticModel(complexity, 1.0)
    return levelled(total, lambda seconds: model.units_within(seconds * rates))


def polynomial(units: float, speeds: ArrayLike, exponent: float) -> FloatArray:
    """Return the shares for f(x) = x**exponent, in closed form.

    Parameters
    ----------
    units : int
        N, from 1 to 2**52.
    speeds : array_like of float
        k_i of each worker, finite and > 0.
    exponent : float
        β, finite and > 0.

    Returns
    -------
    ndarray of float64
        N·k_i^(1/β) / Σ k_j^(1/β).

    Raises
    ------
    PartitionError
        If an argument is not allowed.

    References
    ----------
    Cérin, Dubacq and Roch (2006), "The polynomial case".

    Examples
    --------
    >>> polynomial(700, [1.0, 2.0, 4.0], 2).round(4).tolist()
    [158.5786, 224.2641, 317.1573]
    """
    total, rates = _checked(units, speeds)
    weights = rates ** (1.0 / positive_number(exponent, "exponent"))
    return np.asarray(total * weights / weights.sum())


def nlogn_correction(units: float, speeds: ArrayLike) -> FloatArray:
    """Return the shares for f(x) = x ln x by the first-order correction of the naive split.

    Parameters
    ----------
    units : int
        N, from 2 to 2**52.
    speeds : array_like of float
        k_i of each worker, finite and > 0.

    Returns
    -------
    ndarray of float64
        k_i N / K + ε_i with ε_i = N / ln N · k_i / K² · Σ k_j ln(k_j / k_i), which sum to N.

    Raises
    ------
    PartitionError
        If an argument is not allowed, or a share would be negative: N is too small for speeds that
        differ so much; `by_complexity` has no such bound.

    Notes
    -----
    An asymptotic formula: its error relative to `by_complexity` falls as 1 / ln² N. O(p).

    References
    ----------
    Cérin, Dubacq and Roch (2006), theorem of Cérin, Koskas, Jemni and Fkaier.

    Examples
    --------
    >>> nlogn_correction(1_000_000, [1.0, 2.0]).round(3).tolist()
    [344482.592, 655517.408]
    """
    total, rates = _checked(units, speeds)
    if total < 2:
        raise PartitionError("the correction divides by ln(units): at least 2 units are needed")
    whole = rates.sum()
    logs = np.log(rates)
    sums = (rates @ logs) - whole * logs  # Σ k_j ln(k_j / k_i)
    shares = rates / whole * total + total / math.log(total) * rates / whole**2 * sums
    if shares.min() < 0:
        at = int(np.argmin(shares))
        raise PartitionError(
            f"the correction gives worker {at} {shares[at]:.4g} of {total} units: the speeds "
            "differ too much for it; use by_complexity"
        )
    return np.asarray(shares)


def nlogn_lambert(units: float, speeds: ArrayLike) -> FloatArray:
    """Return the shares for f(x) = x ln x by Lambert's W: n_i = exp(W(T·k_i)).

    Parameters
    ----------
    units : int
        N, from 1 to 2**52, at least one per worker.
    speeds : array_like of float
        k_i of each worker, finite and > 0.

    Returns
    -------
    ndarray of float64
        Units per worker, at least 1, summing to `units`.

    Raises
    ------
    PartitionError
        If an argument is not allowed, or there are fewer units than workers: x ln x is not
        negative from 1 on. `by_complexity` has no such bound.

    Notes
    -----
    1. The asymptotic form that is printed lacks a factor ln in its first term; corrected it is
       y/W(y) with W(y) ≈ ln y − ln ln y. It is 1.3 % off at y = 1e7 and is not used.
    2. "nlogn" of `by_complexity` is x below e, so that both agree where every share is above e.

    References
    ----------
    Cérin, Dubacq and Roch (2006), "The polylog case".

    Examples
    --------
    >>> nlogn_lambert(1_000_000, [1.0, 2.0]).round(3).tolist()
    [344370.286, 655629.714]
    """
    total, rates = _checked(units, speeds)
    if total < rates.size:
        raise PartitionError(
            f"{total} units for {rates.size} workers: at least one each is needed; leave workers "
            "out, or use by_complexity"
        )
    return levelled(total, lambda seconds: np.exp(scipy.special.lambertw(seconds * rates).real))


def integral(shares: ArrayLike, units: float, models: Sequence[Model]) -> IntArray:
    """Round shares to whole units with the smallest makespan.

    Parameters
    ----------
    shares : array_like of float
        Units per worker, finite and >= 0, summing to `units` up to a part of 1e-9.
    units : int
        From 1 to 2**52.
    models : sequence of Model
        One per worker; `time` must not decrease.

    Returns
    -------
    ndarray of int64
        Units per worker, summing to `units`, none less than its share rounded down.

    Raises
    ------
    PartitionError
        If the shares are negative, not finite or do not sum to `units`, or models are too few.

    Notes
    -----
    Shares are rounded down, and the p units at most that are left go one by one to the worker that
    finishes earliest with one more, the lowest among equals: from shares that take the same time
    this is the min-max optimum. The largest remainder is not. O(p log p).

    Examples
    --------
    >>> from fpmdask.models import AnalyticModel
    >>> models = [AnalyticModel("nlogn", speed) for speed in (1.0, 2.0)]
    >>> integral(by_complexity(1_000_000, [1.0, 2.0], "nlogn"), 1_000_000, models)
    array([344370, 655630])
    """
    total = check_units(units)
    wanted = check_numbers(shares, "shares")
    good = np.isfinite(wanted) & (wanted >= 0)
    if not good.all():
        at = int(np.argmin(good))
        raise PartitionError(f"shares[{at}] is {wanted[at]}; finite numbers >= 0 are needed")
    if abs(float(wanted.sum()) - total) > TOLERANCE * total:
        raise PartitionError(f"the shares sum to {wanted.sum():.12g}; {total} units are given out")
    if len(models) != wanted.size:
        raise PartitionError(f"{len(models)} models found for {wanted.size} shares; give one each")
    whole = np.floor(wanted).astype(np.int64)
    left = total - int(whole.sum())
    whole[int(wanted.argmax())] += min(left, 0)  # the arithmetic of float64
    ends = [
        (float(model.time(n + 1)), at)
        for at, (model, n) in enumerate(zip(models, whole, strict=True))
    ]
    heapq.heapify(ends)
    for _ in range(max(0, left)):
        _, at = ends[0]
        whole[at] += 1
        heapq.heapreplace(ends, (float(models[at].time(whole[at] + 1)), at))
    return whole


def _checked(units: float, speeds: ArrayLike) -> tuple[int, FloatArray]:
    total = check_units(units)
    rates = check_positive(speeds, "speeds")
    return total, relative(rates)


def levelled(total: int, within: Callable[[float], Any]) -> FloatArray:
    """Return the shares that sum to `total` at one time.

    Parameters
    ----------
    total : int
        Units.
    within : callable
        Seconds -> the real number of units that each worker does by then, non-decreasing.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    PartitionError
        If no finite time is enough.
    """

    def shares(seconds: float) -> FloatArray:
        return np.asarray(within(seconds), dtype=np.float64)

    def excess(seconds: float) -> float:  # of the units, in parts of them, from -1 to 1
        return min(float(shares(seconds).sum()) / total, 2.0) - 1.0

    free = np.minimum(shares(0.0), total)  # what takes no time
    if free.sum() >= total:
        return np.asarray(free * (total / free.sum()))
    low, high = _bracket(excess)
    if math.isinf(high):
        raise PartitionError(
            f"{total} units cannot be done in a finite time by this complexity; give fewer"
        )
    tiny, step = np.finfo(float).tiny, 4 * np.finfo(float).eps
    unit = high  # the slopes in terms of it are neither huge nor tiny
    root = scipy.optimize.toms748(lambda t: excess(t * unit), low / unit, 1.0, xtol=tiny, rtol=step)
    level = unit * float(root)
    width = max(level * step, tiny)
    while excess(low := max(0.0, level - width)) > 0 or excess(high := level + width) < 0:
        width *= 2.0
    below, above = shares(low), shares(high)
    above = np.minimum(above, total)  # inf where no number of units takes longer
    span = float((above - below).sum())
    part = (total - float(below.sum())) / span if span > 0 else 0.0
    return np.asarray(below + part * (above - below))


def _bracket(excess: Callable[[float], float]) -> tuple[float, float]:
    """Return seconds, at most 16-fold apart or the first 0, between which `excess` is zero.

    The second is ``inf`` where it is below zero for all. Upwards in steps of 16, lest the
    complexity is called with many more units than there are.
    """

    def at(power: int) -> float:
        return math.ldexp(1.0, power)  # 0 for all that are too small for a float

    low, high, step = -4, 0, 4
    while excess(at(high)) < 0:
        if high == _LARGEST:
            return at(low), math.inf
        low, high = high, min(high + 4, _LARGEST)
    while excess(at(low)) > 0:
        low, high, step = low - step, low, 2 * step
    while high - low > 4:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(at(middle)) > 0 else (middle, high)
    return at(low), at(high)
