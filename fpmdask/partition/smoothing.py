"""Tell noise from shape: the speeds that are likely behind noisy measurements."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# What one measurement may be off, relative: from "exact as far as anybody cares" to useless.
NOISES = np.array([0.001, 0.003, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32])
# How far a speed may wander, relative, while the size grows by a factor e: a plateau, caches,
# a bend, paging, a cliff. Most speeds are flat over the sizes that a run visits.
DRIFTS = np.array([0.01, 0.05, 0.2, 0.8, 3.0, 12.0])
# A measurement of n rounds ago counts as 1 / (1 + n/10) of a fresh one: eight rounds average
# like six fresh ones, and a speed that creeps is followed.
AGEING = 0.1
_BELIEFS = np.array([0.3, 0.3, 0.2, 0.1, 0.05, 0.05])


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Logarithms of the likely speeds, and the relative noise of one measurement."""

    log_speeds: FloatArray
    noise: float


def smoothed(
    log_units: FloatArray, log_speeds: FloatArray, variances: FloatArray, ages: FloatArray
) -> Smoothed:
    """Return the likely speeds behind measurements whose noise is not known.

    Parameters
    ----------
    log_units : ndarray of float, shape (workers, points)
        Logarithms of the measured sizes, not decreasing along a row. Rows are filled up at the
        end with points of infinite variance.
    log_speeds : ndarray of float, shape (workers, points)
        Logarithms of the measured speeds.
    variances : ndarray of float, shape (workers, points)
        How much more variable a measurement is than a fresh single one (1); 1/n for the mean of
        n, ``inf`` for no measurement.
    ages : ndarray of float, shape (workers, points)
        Rounds since the measurement, at least 0.

    Returns
    -------
    Smoothed
        `log_speeds` of the same shape; `noise` is the relative standard deviation of one
        measurement, common to all workers.

    Notes
    -----
    A worker's log speed is taken as a Brownian motion over log size, seen with noise. Without
    noise the best guess is then linear between the points and constant outside, the partial FPM
    of the 2009 paper; with noise it is their smoothing, down to the plain mean of all points.
    Both magnitudes are unknown: every pair of `NOISES` (one for all workers) and `DRIFTS` (one
    for each worker) is weighed by the likelihood of what was measured, and the result is the
    weighted mean. One worker on a cliff is thus a steep worker and not a noisy cluster, because
    the others agree with themselves. A Kalman filter over the sorted points, all workers and
    pairs at once: O(points) steps on workers x 48 numbers.

    Examples
    --------
    >>> sizes = np.log([[10.0, 11.0, 12.0]] * 2)
    >>> speeds = np.log([[5.0, 5.5, 5.1], [2.0, 1.9, 2.1]])
    >>> found = smoothed(sizes, speeds, np.ones((2, 3)), np.zeros((2, 3)))
    >>> np.exp(found.log_speeds).round(1)
    array([[5.2, 5.2, 5.2], [2. , 2. , 2. ]])
    >>> bool(0.02 < found.noise < 0.1)
    True
    """
    likelihood = _filtered(log_units, log_speeds, variances, NOISES[:, None], DRIFTS)[0]
    evidence = _log_mean(likelihood).sum(axis=0)
    weights = np.exp(evidence - evidence.max())
    noise = float(np.exp(weights @ np.log(NOISES) / weights.sum()))
    aged = variances * (1.0 + AGEING * ages)
    likelihood, levels, gains = _filtered(log_units, log_speeds, aged, np.array([[noise]]), DRIFTS)
    for j in range(levels.shape[0] - 2, -1, -1):
        levels[j] += gains[j] * (levels[j + 1] - levels[j])
    beliefs = np.exp(likelihood + np.log(_BELIEFS) - _log_mean(likelihood)[..., None])
    return Smoothed((levels * beliefs).sum(axis=(2, 3)).T, noise)


def _log_mean(likelihood: FloatArray) -> FloatArray:
    """Average likelihoods over the drifts, in logarithms."""
    values = likelihood + np.log(_BELIEFS)
    top = values.max(axis=-1, keepdims=True)
    return np.asarray((top + np.log(np.exp(values - top).sum(axis=-1, keepdims=True)))[..., 0])


def _filtered(
    sizes: FloatArray, speeds: FloatArray, scales: FloatArray, noise: FloatArray, drift: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Run the filter for all pairs: log likelihood, levels and backward gains.

    `noise` has shape (noises, 1), `drift` (drifts,); the result (workers, noises, drifts), with
    the points as an additional first axis for levels and gains.
    """
    p, k = sizes.shape
    shape = (p, noise.shape[0], drift.size)
    likelihood, level = np.zeros(shape), np.broadcast_to(speeds[:, :1, None], shape)
    variance = np.broadcast_to(noise**2 * scales[:, :1, None], shape)
    levels, gains = np.zeros((k, *shape)), np.zeros((k, *shape))
    levels[0] = level
    for j in range(1, k):
        known = np.isfinite(scales[:, j])
        wander = drift**2 * np.where(known, sizes[:, j] - sizes[:, j - 1], 0.0)[:, None, None]
        seen = np.where(known, scales[:, j], 1.0)[:, None, None] * noise**2
        here = known[:, None, None]
        before = variance + wander
        total = before + seen
        innovation = np.where(known, speeds[:, j], 0.0)[:, None, None] - level
        likelihood = likelihood - 0.5 * np.where(here, np.log(total) + innovation**2 / total, 0.0)
        gains[j - 1] = np.where(here, variance / before, 0.0)
        level = np.where(here, level + before / total * innovation, level)
        variance = np.where(here, before * seen / total, variance)
        levels[j] = level
    return likelihood, levels, gains
