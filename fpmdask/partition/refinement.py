"""What DFPA still measures for an epsilon that was given, when the smoothed models promise no gain.

Pure. The models here go through every measurement, so that they know the measured sizes exactly;
between two measured sizes a worker may be faster than they say, right below a cliff for one.
"""

from collections.abc import Sequence

import numpy as np

from fpmdask.partition.balanced import balanced
from fpmdask.partition.evidence import Evidence, Fit
from fpmdask.partition.geometric import geometric
from fpmdask.partition.outcome import Round
from fpmdask.partition.stopping import smallest_step
from fpmdask.partition.validate import FloatArray, IntArray

# Towards a vertical cliff interpolation moves by a few units a round. Below this relative gain
# halving the gap between measured sizes is faster.
_CRAWL = 0.01


def refined(
    best: Round,
    rounds: Sequence[Round],
    evidence: Evidence,
    limits: FloatArray,
    proposal: IntArray,
    epsilon: float,
) -> IntArray | None:
    """Return the distribution to measure next, None if the models allow none that is better.

    Parameters
    ----------
    best : Round
        The one with the smallest makespan, which does not meet `epsilon`.
    rounds : sequence of Round
        What was measured: nothing is measured twice.
    evidence : Evidence
        The measurements; where they contradict each other nothing is refined.
    limits : ndarray of float64
        Most units per worker.
    proposal : ndarray of int64
        The distribution with the smallest makespan by the models of `evidence.interpolated`.
    epsilon : float
        Imbalance that is wanted.

    Returns
    -------
    ndarray of int64 or None
        The first of these that was not measured yet: a distribution that is `balanced` by the
        models; the `proposal`, if its gain is more than the smallest step of one unit; and a
        `probe`, which goes before a proposal that gains less than 1 %.
    """
    fit = evidence.interpolated()
    if fit is None:
        return None
    even = balanced(int(best.distribution.sum()), fit.models, limits, epsilon)
    if even is not None and _is_new(even, rounds):
        return even
    gain = best.makespan - float(fit.seconds(proposal).max())
    better = gain > smallest_step(fit, proposal) and _is_new(proposal, rounds)
    if better and gain > _CRAWL * best.makespan:
        return proposal
    found = probe(best, fit, evidence.above(best.distribution), limits, epsilon)
    return proposal if found is None and better else found


def probe(
    best: Round, fit: Fit, above: FloatArray, limits: FloatArray, epsilon: float
) -> IntArray | None:
    """Return a distribution that halves the gaps above the shares of the workers that are early.

    Parameters
    ----------
    best : Round
        The round whose shares are to grow.
    fit : Fit
        Models of all workers, for the others' shares.
    above : ndarray of float64
        Each worker's smallest measured size above its share, ``inf`` for none.
    limits : ndarray of float64
        Most units per worker.
    epsilon : float
        A worker is early that could take longer by this part of its time.

    Returns
    -------
    ndarray of int64 or None
        None where no early worker has a gap of two units or more, or the units do not suffice.

    Notes
    -----
    A size that was too slow bounds the share from above, and so does the speed of the share itself:
    more units are not done faster. A worker that lost all its units, because its only measured
    size was beyond a cliff, is tried with one. Halving needs log2 of the gap in units rounds at
    most, and all early workers share them.
    """
    shares, early = best.distribution, best.seconds * (1.0 + epsilon) < best.makespan
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        most = np.where(shares > 0, shares * (best.makespan / best.seconds), 1.0)
    gap = np.minimum(np.minimum(above, limits + 1.0), np.floor(most) + 1.0) - shares
    early &= np.isfinite(above) & (gap > 1)
    tried = np.where(early, shares + np.floor(np.where(early, gap, 0.0) / 2), 0.0)
    return with_rest(int(shares.sum()), tried.astype(np.int64), fit, limits)


def with_rest(units: int, fixed: IntArray, fit: Fit, limits: FloatArray) -> IntArray | None:
    """Return the `fixed` shares and the rest of the units on the workers without one.

    None where no share is fixed, nothing is left, or the others have too little room for it.
    """
    rest, room = units - int(fixed.sum()), np.where(fixed > 0, 0.0, limits)
    if not fixed.any() or rest < 1 or room.sum() < rest:
        return None
    return np.asarray(fixed + geometric(rest, fit.models, room))


def _is_new(distribution: IntArray, rounds: Sequence[Round]) -> bool:
    return not any(np.array_equal(distribution, r.distribution) for r in rounds)
