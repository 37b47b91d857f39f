"""How far apart the workers finish."""

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.partition.validate import Limits, check_limits, check_numbers


def imbalance(
    seconds: ArrayLike, units: ArrayLike | None = None, limits: Limits | None = None
) -> float:
    """Return ``(t_max - t_min) / t_min`` over the workers that count.

    Parameters
    ----------
    seconds : array_like of float
        Time of each worker, > 0; entries of workers without units are ignored and may be
        anything, NaN included. ``inf`` (too large a share) makes the imbalance ``inf``.
    units : array_like of int, optional
        The distribution; every worker has units if not given.
    limits : sequence of float or None, optional
        Most units per worker, ``None`` or ``inf`` for no limit.

    Returns
    -------
    float
        0 when the workers finish together. ``t_max`` is taken over the workers that have units,
        ``t_min`` over those of them that are below their limit: one that is full cannot take
        more, so its early end is not an imbalance. 0 if no worker below its limit has units.

    Raises
    ------
    PartitionError
        If lengths differ, no worker has units, a worker has more than its limit, or the time of
        a worker with units is not > 0.

    Notes
    -----
    1. The 2009 paper's problem statement lacks the absolute value that its loop has;
       ``(t_max - t_min) / t_min`` is its largest value over all pairs.
    2. The paper has neither limits nor workers without units.

    References
    ----------
    A. Lastovetsky, R. Reddy (2009), Distributed Data Partitioning for Heterogeneous Processors
    Based on Partial Estimation of Their Functional Performance Models, section 2.

    Examples
    --------
    >>> imbalance([1.0, 1.5, 0.0], units=[10, 10, 0])
    0.5
    >>> imbalance([0.2, 1.0], units=[4, 10], limits=[4, None])
    0.0
    """
    times = check_numbers(seconds, "seconds")
    workers = times.size
    shares = np.ones(workers) if units is None else check_numbers(units, "units", workers)
    most = check_limits(limits, workers)
    if not ((shares >= 0) & (shares == np.floor(shares))).all():
        raise PartitionError(f"units must be whole numbers of at least 0, got {units!r}")
    if units is not None and (shares > most).any():
        at = int(np.argmax(shares > most))
        raise PartitionError(
            f"worker {at} has {shares[at]:.0f} units, its limit is {most[at]:.0f}; "
            "pass the limits of this distribution"
        )
    busy = shares > 0
    if not busy.any():
        raise PartitionError("no worker has units; pass a distribution that sums to at least 1")
    if not (times[busy] > 0).all():
        at = int(np.argmax(busy & ~(times > 0)))
        raise PartitionError(f"seconds[{at}] is {times[at]}; a worker with units needs a time > 0")
    free = busy if units is None else busy & (shares < most)
    latest = times[busy].max()
    if np.isinf(latest):
        return float("inf")
    if not free.any():
        return 0.0
    earliest = times[free].min()
    with np.errstate(over="ignore"):
        return float((latest - earliest) / earliest)
