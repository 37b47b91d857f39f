"""The Kalman filter against the same model with dense matrices."""

import numpy as np

from fpmdask.partition.smoothing import _BELIEFS, AGEING, DRIFTS, NOISES, smoothed


def dense(sizes, speeds, scales, noise, drift):
    """Return the log likelihood and likely log speeds of one worker's points.

    Generalised least squares: a level of which nothing is known, a Brownian motion over the sizes,
    and independent noise.
    """
    one = np.ones(sizes.size)
    motion = drift**2 * np.minimum.outer(sizes - sizes[0], sizes - sizes[0])
    seen = motion + np.diag(noise**2 * scales)
    level = (one @ np.linalg.solve(seen, speeds)) / (one @ np.linalg.solve(seen, one))
    off = np.linalg.solve(seen, speeds - level)
    weight = one @ np.linalg.solve(seen, one)
    likelihood = -0.5 * (np.linalg.slogdet(seen)[1] + np.log(weight) + (speeds - level) @ off)
    return likelihood, level + motion @ off


def expected(sizes, speeds, scales, ages):
    """Return the likely log speeds of all workers, and the noise, by all pairs in turn."""
    workers = [np.isfinite(s) for s in scales]
    evidence = np.zeros(NOISES.size)
    for at, known in enumerate(workers):
        rows = (sizes[at, known], speeds[at, known], scales[at, known])
        values = [[dense(*rows, noise, drift)[0] for drift in DRIFTS] for noise in NOISES]
        evidence += np.log(np.exp(values) @ _BELIEFS)
    weights = np.exp(evidence - evidence.max())
    noise = np.exp(weights @ np.log(NOISES) / weights.sum())
    levels = []
    for at, known in enumerate(workers):
        aged = scales[at, known] * (1 + AGEING * ages[at, known])
        found = [dense(sizes[at, known], speeds[at, known], aged, noise, d) for d in DRIFTS]
        beliefs = np.exp([f[0] for f in found]) * _BELIEFS
        levels.append(beliefs @ np.array([f[1] for f in found]) / beliefs.sum())
    return levels, noise


def test_it_is_the_weighted_mean_of_all_noises_and_drifts():
    rng = np.random.default_rng(7)
    for spread in (0.01, 0.1, 0.5):
        sizes = np.sort(rng.uniform(1, 8, (4, 6)), axis=1)
        speeds = rng.normal(2.0, spread, (4, 6)) + np.where(sizes > 6, -1.0, 0.0)
        scales = 1.0 / rng.integers(1, 5, (4, 6))
        ages = rng.integers(0, 20, (4, 6)).astype(float)
        scales[1, 4:] = scales[2, 1:] = np.inf  # fewer points
        found = smoothed(sizes, speeds, scales, ages)
        levels, noise = expected(sizes, speeds, scales, ages)
        np.testing.assert_allclose(found.noise, noise, rtol=1e-9)
        for row, level in zip(found.log_speeds, levels, strict=True):
            np.testing.assert_allclose(row[: level.size], level, rtol=1e-7)
