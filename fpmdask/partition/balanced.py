"""A distribution of whole units that is balanced by the models, where there is one."""

import math
from collections.abc import Sequence

import numpy as np

from fpmdask.models import Model
from fpmdask.models.bank import Bank, bank
from fpmdask.partition.geometric import geometric
from fpmdask.partition.imbalance import imbalance
from fpmdask.partition.validate import FloatArray, IntArray


def balanced(
    units: int, models: Sequence[Model], limits: FloatArray, epsilon: float
) -> IntArray | None:
    """Return a distribution whose imbalance is at most `epsilon` by the models, if there is one.

    Parameters
    ----------
    units : int
        At least 1; they fit the limits.
    models : sequence of Model
        One per worker; times must not decrease.
    limits : ndarray of float64
        Most units per worker, whole or ``inf``.
    epsilon : float
        Largest imbalance, > 0, in the sense of `fpmdask.partition.imbalance`; no worker without
        units finishes one unit before the others.

    Returns
    -------
    ndarray of int64 or None
        Units per worker, summing to `units`; None if no distribution is balanced.

    Notes
    -----
    `geometric` has the smallest makespan, not the smallest imbalance: where one unit is a large
    part of a worker's time, giving it one more can be balanced and last longer.

    With a makespan T each worker has between its fewest units, those that last until
    T / (1 + epsilon) (its limit at most, none where one unit is not done before T), and its most,
    those done at T. Both grow with T. Below the smallest makespan the most are too few. From there
    upwards T grows until no worker's fewest is above its most: a balanced distribution exists if
    the fewest do not exceed the `units` there. O(p log points) per step; T is within a factor
    1 + epsilon of the smallest makespan, which a worker's times reach in one or two steps.

    Examples
    --------
    Ten units take 6 s at least; the workers end at 6, 4 and 5 s or, as balanced, at 5, 6 and 5 s.

    >>> from fpmdask.models import ConstantModel
    >>> workers = [ConstantModel(1.0), ConstantModel(0.5), ConstantModel(0.4)]
    >>> geometric(10, workers), balanced(10, workers, np.full(3, np.inf), 0.25)
    (array([6, 2, 2]), array([5, 3, 2]))
    >>> balanced(10, workers, np.full(3, np.inf), 0.1) is None
    True
    """
    gathered = bank(models)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        one = _times(gathered, np.ones(len(models)))
        seconds = float(_times(gathered, geometric(units, models, limits)).max())
        while math.isfinite(seconds) and seconds > 0:
            most = _within(gathered, seconds, limits)
            before = math.nextafter(seconds / (1.0 + epsilon), 0.0)
            fewest = np.minimum(_within(gathered, before, limits) + 1.0, limits)
            fewest = np.where(one < seconds, fewest, 0.0)
            if np.minimum(fewest, most).sum() > units:
                return None
            empty = fewest > most
            if not empty.any():
                return _between(units, fewest, most, gathered, limits, epsilon)
            later = float(_times(gathered, most + 1.0)[empty].max())
            seconds = max(later, math.nextafter(seconds, math.inf))
    return None


def _between(
    units: int,
    fewest: FloatArray,
    most: FloatArray,
    gathered: Bank,
    limits: FloatArray,
    epsilon: float,
) -> IntArray | None:
    """Return shares at the same height between both bounds, unless rounding spoils them."""
    most = np.minimum(most, units)
    room = most - fewest
    missing = units - float(fewest.sum())
    if not 0 <= missing <= room.sum():
        return None
    part = missing / float(room.sum()) if missing else 0.0
    shares = fewest + np.floor(part * room)
    left = int(units - shares.sum())
    shares[np.flatnonzero(shares < most)[:left]] += 1.0
    found = shares.astype(np.int64)
    good = imbalance(_times(gathered, shares), found, limits) <= epsilon
    return found if good and found.sum() == units else None


def _within(gathered: Bank, seconds: float, limits: FloatArray) -> FloatArray:
    """Return the most whole units that are done in some seconds, by the times themselves.

    The inverse function may round to just below a whole number whose time this is.
    """
    found = np.floor(gathered.units_within(seconds))
    bounded = np.isfinite(found)  # times level out: any number of units
    tried = np.where(bounded, found, 0.0)
    found = np.where(_times(gathered, tried) > seconds, found - 1.0, found)
    more = bounded & (_times(gathered, tried + 1.0) <= seconds)
    return np.minimum(np.where(more, tried + 1.0, found), limits)


def _times(gathered: Bank, units: FloatArray | IntArray) -> FloatArray:
    workers = np.arange(units.size, dtype=np.int64)
    return np.where(units > 0, gathered.time(workers, np.asarray(units, dtype=np.float64)), 0.0)
