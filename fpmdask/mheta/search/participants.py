"""Which nodes should take part: one alone, all but some, random distributions."""

import numpy as np

from fpmdask.mheta.checks import IntArray
from fpmdask.mheta.search.compositions import random_compositions
from fpmdask.mheta.search.descent import some_nodes
from fpmdask.mheta.search.evaluations import Evaluations
from fpmdask.mheta.search.moves import scaled

# The part of the budget that leaving nodes out may take (reached above 40 nodes or so).
LEAVING = 0.25
# The part after which no more random distributions are tried for a feasible one.
FEASIBLE = 0.5
RANDOM = 64


def try_participants(seen: Evaluations, origins: IntArray, rng: np.random.Generator) -> None:
    """Predict distributions in which not all nodes take part.

    Parameters
    ----------
    seen : Evaluations
        What predicts and keeps the best.
    origins : ndarray of int64, shape [m, p]
        Distributions that nodes are left out of.
    rng : numpy.random.Generator
        For the random distributions, and for the choice of nodes if there are many.

    Notes
    -----
    First all rows on one node, for each. Then each origin loses one more node at a time, whose
    rows go to its others in proportion; it goes on from its best variant until one node is left.
    At last 64 uniform random distributions, and 64 more until one is feasible or half of the
    budget is spent. O(m p²) distributions in O(p) batches.
    """
    nodes = seen.nodes
    alone = some_nodes(nodes, rng)
    rows = np.zeros((alone.size, nodes), np.int64)
    rows[np.arange(alone.size), alone] = seen.rows
    seen(rows)
    most = seen.evaluations + LEAVING * seen.budget
    for _ in range(nodes - 2):
        if seen.ended or seen.evaluations >= most or not len(origins):
            break
        origins = _leave_one_out(seen, origins, rng)
    if not seen.ended:
        seen(random_compositions(seen.rows, nodes, RANDOM, rng))
    find_feasible(seen, FEASIBLE * seen.budget, rng)


def find_feasible(seen: Evaluations, most: float, rng: np.random.Generator) -> None:
    """Predict uniform random distributions until one is feasible or `most` have been predicted."""
    while not (seen.ended or np.isfinite(seen.seconds) or seen.evaluations >= most):
        seen(random_compositions(seen.rows, seen.nodes, RANDOM, rng))


def _leave_one_out(seen: Evaluations, origins: IntArray, rng: np.random.Generator) -> IntArray:
    """Return, for each distribution, the best of those that one node less takes part in."""
    out = some_nodes(seen.nodes, rng)
    kept = np.ones((out.size, seen.nodes))
    kept[np.arange(out.size), out] = 0.0
    weights = origins[:, np.newaxis] * kept
    left = weights.sum(axis=2)
    valid = (origins[:, out] > 0) & (left > 0)
    variants = np.zeros(weights.shape, np.int64)
    variants[valid] = scaled(weights[valid], seen.rows)
    times = np.full(valid.shape, np.inf)
    times[valid] = seen(variants[valid])
    # an invalid variant is no choice, even where all others are infeasible
    best = np.lexsort((times, ~valid))[:, 0]
    at = np.arange(len(origins))
    found = variants[at, best][valid[at, best]]
    return np.unique(found, axis=0)
