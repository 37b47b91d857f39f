"""Units in proportion to speeds: the constant performance model."""

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.models.bank import ConstantBank
from fpmdask.partition.geometric import distributed
from fpmdask.partition.validate import IntArray, Limits, check_limits, check_positive, check_units


def proportional(units: float, speeds: ArrayLike, limits: Limits | None = None) -> IntArray:
    """Return the distribution with the smallest makespan for constant speeds.

    Parameters
    ----------
    units : int
        From 1 to 2**52.
    speeds : array_like of float
        Units per second of each worker, finite and > 0; only their ratios matter.
    limits : sequence of float or None, optional
        Most units per worker, ``None`` or ``inf`` for no limit; what a full worker cannot take
        goes to the others.

    Returns
    -------
    ndarray of int64
        Units per worker, summing to `units`. Among equal times the lowest worker gets the unit.

    Raises
    ------
    PartitionError
        If `units`, `speeds` or `limits` are not allowed, or the units do not fit the limits.

    Notes
    -----
    Each worker gets its proportional share rounded down, the rest goes unit by unit to the worker
    that finishes earliest with one more; the largest remainder is not optimal. O(p log p).

    Examples
    --------
    >>> proportional(10, [3.0, 1.0, 1.0])
    array([6, 2, 2])
    >>> proportional(10, [3.0, 1.0, 1.0], limits=[4, None, None])
    array([4, 3, 3])
    """
    total = check_units(units)
    rates = check_positive(speeds, "speeds")
    most = check_limits(limits, rates.size, total)
    # Only ratios matter: a fastest speed of 1 keeps extreme speeds from over- and underflowing.
    rates = np.maximum(rates / np.max(rates), 1e-100)
    return distributed(total, ConstantBank(rates), most)
