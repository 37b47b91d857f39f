"""Descents by transfers of rows whose size is halved, several at once."""

import numpy as np

from fpmdask.mheta.checks import FloatArray, IntArray
from fpmdask.mheta.search.evaluations import Evaluations
from fpmdask.mheta.search.moves import along, gives_evenly, scaled, takes_evenly, transfers

# Up to so many ordered pairs of nodes (eleven nodes) all transfers are tried; above it, those from
# so many nodes to so many.
PAIRS = 120
BEST = 11
# Up to so many nodes each is tried, above it so many at random.
SAMPLE = 64


def descend(
    seen: Evaluations, x: IntArray, step: IntArray, guides: IntArray, rng: np.random.Generator
) -> None:
    """Go from each of several distributions to better neighbours until there are none.

    Parameters
    ----------
    seen : Evaluations
        What predicts and keeps the best.
    x : ndarray of int64, shape [M, p]
        Where the descents begin.
    step : ndarray of int64, shape [M]
        How many rows each moves at first; no more than its largest share, at least 1.
    guides : ndarray of int64, shape [m, p]
        Distributions that each may move towards or away from.
    rng : numpy.random.Generator
        Used above eleven nodes.

    Notes
    -----
    Each descent goes to the best of its neighbours if that is strictly better, otherwise it halves
    its step; it stops below 1. The neighbours of all descents are one batch, so that the predictor
    sees few, large batches. Neighbours: `step` rows from one node to another, from one to all
    others evenly or the other way round, and towards and away from each guide. Halved steps find
    a basin at a coarse scale first; one row at the end leaves no better transfer. O(log rows)
    batches, plus one for each improvement.

    Above eleven nodes there are too many pairs: the transfers are those from the eleven nodes
    that do best when they give to all others to the eleven that do best when they take, and the
    best 2, 4, 8, ... of either kind also move together.
    """
    x, step, seconds = x.copy(), np.maximum(np.minimum(step, x.max(axis=1)), 1), seen(x)
    while not seen.ended and (running := np.flatnonzero(step >= 1)).size:
        near, times = _neighbours(seen, x[running], step[running], guides, rng)
        at, best = np.arange(running.size), times.argmin(axis=1)
        better = times[at, best] < seconds[running]
        moved = running[better]
        x[moved] = near[at[better], best[better]]
        seconds[moved] = times[at[better], best[better]]
        step[running[~better]] //= 2


def cost(seen: Evaluations, guides: IntArray) -> float:
    """Return about how many distributions one descent predicts: a few steps beside the halvings."""
    nodes = seen.nodes
    near = min(nodes * (nodes - 1), PAIRS) + 2 * min(nodes, SAMPLE) + 2 * len(guides)
    return float(near * (np.log2(seen.rows + 2) + 4))


def some_nodes(nodes: int, rng: np.random.Generator) -> IntArray:
    """Return all nodes, or a random sample if there are many."""
    if nodes <= SAMPLE:
        return np.arange(nodes)
    return np.sort(rng.choice(nodes, SAMPLE, replace=False))


def _neighbours(
    seen: Evaluations, x: IntArray, step: IntArray, guides: IntArray, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Return the neighbours of each distribution, [M, Q, p], and their seconds, [M, Q]."""
    nodes = seen.nodes
    node = some_nodes(nodes, rng)
    takes, gives = takes_evenly(x, step, node), gives_evenly(x, step, node)
    near = np.concatenate([takes, gives, along(x, step, guides, seen.rows)], axis=1)
    if nodes * (nodes - 1) <= PAIRS:
        giver, taker = np.nonzero(~np.eye(nodes, dtype=np.bool_))
        pairs = transfers(x, step, giver[np.newaxis], taker[np.newaxis])
        near = np.concatenate([pairs, near], axis=1)
        return near, seen(near)
    times = seen(near)
    tie = rng.random((len(x), node.size))
    taker = node[np.lexsort((tie, times[:, : node.size]))]
    giver = node[np.lexsort((tie, times[:, node.size : 2 * node.size]))]
    pairs = transfers(
        x, step, np.repeat(giver[:, :BEST], BEST, axis=1), np.tile(taker[:, :BEST], BEST)
    )
    groups = [_grouped(x, step, taker, seen.rows), _grouped(x, -step, giver, seen.rows)]
    more = np.concatenate([pairs, *groups], axis=1)
    return np.concatenate([near, more], axis=1), np.concatenate([times, seen(more)], axis=1)


def _grouped(x: IntArray, step: IntArray, order: IntArray, rows: int) -> IntArray:
    """Return distributions in which the first 2, 4, 8, ... nodes of an order take `step` each.

    All shares then shrink or grow in proportion, so that the sum is `rows`. Where many nodes are
    equally slow no single transfer is better.
    """
    found = []
    size = 2
    while size <= order.shape[1] // 2:
        weights = x.astype(np.float64)
        at, node = np.arange(len(x))[:, np.newaxis], order[:, :size]
        weights[at, node] = np.maximum(weights[at, node] + step[:, np.newaxis], 0.0)
        nothing = weights.sum(axis=1) == 0
        weights[nothing] = x[nothing]
        found.append(scaled(weights, rows))
        size *= 2
    return np.stack(found, axis=1)
