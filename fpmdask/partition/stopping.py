"""When DFPA has found as much as its measurements can tell."""

from collections.abc import Sequence

import numpy as np

from fpmdask.partition.evidence import Fit
from fpmdask.partition.outcome import Round
from fpmdask.partition.validate import FloatArray, IntArray

# Gains up to this are left alone where they are below the noise of one measurement.
_SMALL_GAIN = 0.0275
# So many rounds near the best are wanted that their mean is known to about this.
_KNOWN_TO = 0.075
_NEAR_BEST = 1.6
# After so many rounds none of which was measured better, a gain must be this much more promising.
_PATIENCE, _IMPATIENCE = 3, 1.5
# A distribution is measured three times at most: its mean then has 0.58 of the noise.
_MOST_REPEATS = 3
_ROUNDING = 1e-9


def resolution(noise: float) -> float:
    """Return the relative gain in makespan that measurements with this noise cannot resolve.

    Parameters
    ----------
    noise : float
        Relative standard deviation of one measurement, at least 0.

    Returns
    -------
    float
        The noise itself up to 2.75 %, 2.75 % up to a noise of 5.5 %, then half the noise.

    Notes
    -----
    The makespan of a round is the largest of p noisy times: one sigma or more above the true
    one. Small gains are not worth a round: with six constant workers and a noise of 3 % half the
    noise as resolution takes 5.9 rounds instead of 3.9 and gains under 1 % of makespan.

    Examples
    --------
    >>> resolution(0.02), resolution(0.05), resolution(0.10)
    (0.02, 0.0275, 0.05)
    """
    return max(noise / 2, min(noise, _SMALL_GAIN))


def best_round(rounds: Sequence[Round], limits: FloatArray) -> Round:
    """Return the round with the smallest measured makespan.

    Parameters
    ----------
    rounds : sequence of Round
        At least one.
    limits : ndarray of float64
        Most units per worker as known now: rounds beyond them only count if there are no others.

    Returns
    -------
    Round
        The latest one if all were too large.
    """
    finite = [r for r in rounds if np.isfinite(r.makespan)]
    allowed = [r for r in finite if (r.distribution <= limits).all()]
    return min(allowed or finite or rounds[-1:], key=lambda r: r.makespan)


def worthwhile(
    proposal: IntArray,
    rounds: Sequence[Round],
    limits: FloatArray,
    fit: Fit,
    least_gain: float = 0.0,
) -> bool:
    """Return whether measuring `proposal` can be expected to improve on the best round.

    Parameters
    ----------
    proposal : ndarray of int64
        The distribution that is best by `fit`.
    rounds : sequence of Round
        At least one.
    limits : ndarray of float64
        Most units per worker as known now.
    fit : Fit
        Models and noise from all measurements.
    least_gain : float
        What a round costs, relative to the makespan that it is to improve; 0 if it costs nothing.

    Returns
    -------
    bool

    Notes
    -----
    The gain compares two predictions of one fit, proposal and best round, so that a lucky
    measurement of the best round does not end the search. What one noisy measurement cannot
    tell, the mean of several can: with a noise sigma, (sigma / 0.075)**2 rounds near the best are
    wanted (one up to a noise of 7.5 %, four at 15 %) before a small gain ends it. A round that
    costs something has to promise more than `least_gain`, the fourth twice as much, the fifth three
    times, and is not measured for knowledge alone.
    """
    best = best_round(rounds, limits)
    if not np.isfinite(best.makespan) or (best.distribution > limits).any():
        return True
    if sum(np.array_equal(proposal, r.distribution) for r in rounds) >= _MOST_REPEATS:
        return False
    with np.errstate(over="ignore"):
        predicted = fit.seconds(best.distribution).max() / fit.seconds(proposal).max()
    gain, least = float(predicted) - 1.0, resolution(fit.noise)
    if gain <= _ROUNDING:
        return False
    if least_gain > 0:
        return gain > max(least, least_gain * max(1, len(rounds) - 1))
    near = sum(r.makespan <= _NEAR_BEST * best.makespan for r in rounds)
    if near < (fit.noise / _KNOWN_TO) ** 2:
        return True
    since = len(rounds) - 1 - next(i for i, r in enumerate(rounds) if r is best)
    return gain > (least if since < _PATIENCE else _IMPATIENCE * least)


def smallest_step(fit: Fit, distribution: IntArray) -> float:
    """Return the least seconds that one more unit adds to a worker's time.

    Parameters
    ----------
    fit : Fit
        Models of all workers.
    distribution : ndarray of int64
        Units per worker.

    Returns
    -------
    float
        Seconds, over the workers that have units.
    """
    steps = fit.seconds(distribution + 1) - fit.seconds(distribution)
    return float(steps[distribution > 0].min())
