"""Simulated annealing: chains of random transfers that also go uphill, ever less."""

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.mheta.checks import BoolArray, FloatArray
from fpmdask.mheta.search.compositions import random_compositions
from fpmdask.mheta.search.evaluations import Predict, begin
from fpmdask.mheta.search.moves import transfers
from fpmdask.mheta.search.result import SearchResult

CHAINS = 32
# From first to last: the relative increase that is accepted with probability 1/e, ...
TEMPERATURE = (0.03, 1e-4)
# ... and the largest transfer as a part of all rows (at least one row).
STEP = (0.25, 1e-3)
# Steps in a row that predict nothing new after which all chains begin anew at random, ...
IDLE = 16
# ... and how often in a row they do so without finding anything better before the search ends.
RESTARTS = 8


def annealing(
    predict: Predict, start: ArrayLike, *, rng: np.random.Generator, budget: int = 10_000
) -> SearchResult:
    """Search for the distribution with the smallest predicted time by simulated annealing.

    Parameters
    ----------
    predict : callable
        Distributions, int64 [K, p], to seconds, float64 [K], ``inf`` where infeasible.
    start : array_like of int, shape [m, p]
        Distributions of the same number of rows; the chains begin at the best of them in turn.
    rng : numpy.random.Generator
        The only randomness.
    budget : int
        Most distinct distributions that are predicted, at least as many as `start` has.

    Returns
    -------
    SearchResult

    Raises
    ------
    PartitionError
        If an argument is not allowed, or `predict` does not return seconds.

    Notes
    -----
    32 chains, one batch a step: each proposes a transfer between two random nodes, which
    Metropolis' rule accepts by the relative difference of the times. Temperature and largest
    transfer fall geometrically with the part of the budget that is spent. A chain that is
    infeasible accepts everything. Where the chains have tried all there is around them, in small
    problems, they begin anew at random. O(budget p²).

    References
    ----------
    S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi (1983), Optimization by Simulated Annealing,
    Science 220. M. Nakazawa, D. K. Lowenthal, W. Zhou (2005), The MHETA Execution Model for
    Heterogeneous Clusters, SC|05, section 5.3, which names it.

    Examples
    --------
    >>> cost = np.array([1.0, 2.0, 4.0])
    >>> found = annealing(
    ...     lambda d: (d * cost).max(axis=1), [[70, 0, 0]], rng=np.random.default_rng(0)
    ... )
    >>> found.distribution
    array([40, 20, 10])
    """
    seen = begin(predict, start, rng, budget)
    rows, seconds = seen.known
    chain = np.argsort(seconds, kind="stable")[np.arange(CHAINS) % len(rows)]
    x, seconds = rows[chain], seconds[chain]
    idle = restarts = 0
    while not seen.ended and restarts < RESTARTS:
        before, best = seen.evaluations, seen.seconds
        spent = before / seen.budget
        giver, taker = rng.integers(0, seen.nodes, (2, CHAINS, 1))
        most = max(1, round(_falling(STEP, spent) * seen.rows))
        step = rng.integers(1, most, CHAINS, endpoint=True)
        proposed = transfers(x, step, giver, taker)[:, 0]
        times = seen(proposed)
        accepted = _accepted(seconds, times, _falling(TEMPERATURE, spent), rng)
        x = np.where(accepted[:, np.newaxis], proposed, x)
        seconds = np.where(accepted, times, seconds)
        idle = 0 if seen.evaluations > before else idle + 1
        if idle == IDLE:
            x = random_compositions(seen.rows, seen.nodes, CHAINS, rng)
            seconds = seen(x)
            idle, restarts = 0, restarts + 1
        restarts = 0 if seen.seconds < best else restarts
    return seen.result("converged")


def _falling(ends: tuple[float, float], spent: float) -> float:
    """Return the geometric mean of both ends, weighted by what is spent."""
    return float(ends[0] ** (1 - spent) * ends[1] ** spent)


def _accepted(
    old: FloatArray, new: FloatArray, temperature: float, rng: np.random.Generator
) -> BoolArray:
    """Return which proposals Metropolis' rule accepts."""
    chance = rng.random(old.size)
    # log(chance) is negative: at most -log(chance)·temperature more, relative to the old
    return np.asarray(new <= old * (1.0 - np.log1p(-chance) * temperature))
