"""Genetic search: a population of distributions, crossed and mutated."""

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.mheta.checks import FloatArray, IntArray
from fpmdask.mheta.search.compositions import random_compositions
from fpmdask.mheta.search.evaluations import Evaluations, Predict, begin
from fpmdask.mheta.search.moves import blended, transfers
from fpmdask.mheta.search.result import SearchResult

POPULATION = 64
# A child is parent + alpha·(other − parent): a quarter beyond either keeps the population wide.
ALPHA = (-0.25, 1.25)
# Transfers that a child is mutated by, at most.
MUTATIONS = 2


def genetic(
    predict: Predict, start: ArrayLike, *, rng: np.random.Generator, budget: int = 10_000
) -> SearchResult:
    """Search for the distribution with the smallest predicted time by crossing good ones.

    Parameters
    ----------
    predict : callable
        Distributions, int64 [K, p], to seconds, float64 [K], ``inf`` where infeasible.
    start : array_like of int, shape [m, p]
        Distributions of the same number of rows, the first individuals.
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
    64 individuals: the starts and random ones. Each generation is one batch of 64 children. A
    parent is the better of two random individuals; a child lies on the line through two parents,
    rounded, and up to two transfers between random nodes, of a log-uniform number of rows, mutate
    it; a child that was predicted before gives way to a random distribution. The best 64 distinct
    of parents and children survive. The search ends with the budget, or when it has predicted
    every distribution. O(budget p²).

    References
    ----------
    M. Nakazawa, D. K. Lowenthal, W. Zhou (2005), The MHETA Execution Model for Heterogeneous
    Clusters, SC|05, section 5.3, which names it.

    Examples
    --------
    >>> cost = np.array([1.0, 2.0, 4.0])
    >>> found = genetic(
    ...     lambda d: (d * cost).max(axis=1), [[7, 0, 0]], rng=np.random.default_rng(0)
    ... )
    >>> found.distribution
    array([4, 2, 1])
    """
    seen = begin(predict, start, rng, budget)
    missing = max(POPULATION - len(seen.start), 0)
    seen(random_compositions(seen.rows, seen.nodes, missing, rng))
    people, seconds = _fittest(*seen.known)
    while not seen.ended:
        children = _mutated(_children(people, seconds, seen, rng), rng)
        known = seen.is_known(children)
        children[known] = random_compositions(seen.rows, seen.nodes, int(known.sum()), rng)
        people, seconds = _fittest(
            np.concatenate([people, children]), np.concatenate([seconds, seen(children)])
        )
    return seen.result("budget")


def _fittest(people: IntArray, seconds: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the best distinct individuals, the earlier of equals."""
    distinct = np.sort(np.unique(people, axis=0, return_index=True)[1])
    best = distinct[np.argsort(seconds[distinct], kind="stable")[:POPULATION]]
    return people[best], seconds[best]


def _children(
    people: IntArray, seconds: FloatArray, seen: Evaluations, rng: np.random.Generator
) -> IntArray:
    """Return a child of two parents each, on the line through them."""
    rivals = rng.integers(0, len(people), (2, 2, POPULATION))
    parents = np.where(seconds[rivals[0]] <= seconds[rivals[1]], rivals[0], rivals[1])
    alpha = rng.uniform(*ALPHA, (POPULATION, 1))
    return blended(people[parents[0]], people[parents[1]], alpha, seen.rows)


def _mutated(children: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the children after up to `MUTATIONS` transfers each."""
    size, nodes = children.shape
    most = np.log2(children.sum(axis=1) + 1)
    for _ in range(MUTATIONS):
        giver, taker = rng.integers(0, nodes, (2, size, 1))
        # log-uniform from 1 to all rows, and none as often as one
        step = (2 ** rng.uniform(-1, most)).astype(np.int64)
        children = transfers(children, step, giver, taker)[:, 0]
    return children
