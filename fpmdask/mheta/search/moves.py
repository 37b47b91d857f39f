"""Batches of distributions made from others: rounding, transfers, steps along a line."""

import numpy as np

from fpmdask.mheta.checks import FloatArray, IntArray


def rounded(real: FloatArray, rows: int) -> IntArray:
    """Return real distributions rounded by largest remainder.

    Parameters
    ----------
    real : ndarray of float64, shape [K, p]
        At least 0, each with about `rows` in sum.
    rows : int
        The sum that each gets.

    Returns
    -------
    ndarray of int64, shape [K, p]
        Ties go to the lowest node. Where the sum was off by more than rounding, the largest entry
        takes the difference.

    Examples
    --------
    >>> rounded(np.array([[1.5, 0.25, 2.25], [2.0, 1.5, 0.5]]), 4).tolist()
    [[2, 0, 2], [2, 2, 0]]
    """
    whole = np.floor(real)
    found = whole.astype(np.int64)
    order = np.argsort(whole - real, axis=1, kind="stable")
    missing = rows - found.sum(axis=1)
    more = np.arange(found.shape[1]) < missing[:, np.newaxis]
    one_more = np.empty_like(found)
    np.put_along_axis(one_more, order, more.astype(np.int64), axis=1)
    found += one_more
    off = rows - found.sum(axis=1)
    if off.any():
        found[np.arange(len(found)), found.argmax(axis=1)] += off
    return found


def scaled(weights: FloatArray, rows: int) -> IntArray:
    """Return distributions in proportion to weights of shape [K, p], by largest remainder.

    Examples
    --------
    >>> scaled(np.array([[1.0, 0.0, 3.0]]), 10).tolist()
    [[3, 0, 7]]
    """
    return rounded(weights * (rows / weights.sum(axis=1, keepdims=True)), rows)


def blended(first: IntArray, second: IntArray, share: FloatArray, rows: int) -> IntArray:
    """Return distributions on the lines through two others.

    Parameters
    ----------
    first, second : ndarray of int64, shape [K, p]
        The ends.
    share : ndarray of float64, shape [K, 1]
        0 is `first`, 1 is `second`; what is beyond the ends and negative is cut off.
    rows : int
        The sum of each.
    """
    real = np.maximum(first + share * (second - first), 0.0)
    return scaled(real, rows)


def transfers(x: IntArray, step: IntArray, giver: IntArray, taker: IntArray) -> IntArray:
    """Return distributions in which one node gives rows to another.

    Parameters
    ----------
    x : ndarray of int64, shape [M, p]
        Where they begin.
    step : ndarray of int64, shape [M]
        How many rows are moved, as far as the giver has them.
    giver, taker : ndarray of int64, shape [M, Q] or [1, Q]
        Nodes; nothing is moved where they are the same.

    Returns
    -------
    ndarray of int64, shape [M, Q, p]

    Examples
    --------
    >>> x, one, two = np.array([[3, 1]]), np.array([[0, 1]]), np.array([[1, 0]])
    >>> transfers(x, np.array([2]), one, two).tolist()
    [[[1, 3], [4, 0]]]
    """
    moved = np.minimum(np.take_along_axis(x, np.broadcast_to(giver, (len(x), giver.shape[1])), 1),
                       step[:, np.newaxis])  # fmt: skip
    found = np.repeat(x[:, np.newaxis], giver.shape[1], axis=1)
    k, q = np.ogrid[: len(x), : giver.shape[1]]
    found[k, q, giver] -= moved
    found[k, q, taker] += moved
    return found


def takes_evenly(x: IntArray, step: IntArray, node: IntArray) -> IntArray:
    """Return distributions in which one node takes rows from all others evenly.

    Parameters
    ----------
    x : ndarray of int64, shape [M, p]
        Where they begin; p is at least 2.
    step : ndarray of int64, shape [M]
        How many rows it takes, as far as the others have them.
    node : ndarray of int64, shape [Q]
        The nodes that take.

    Returns
    -------
    ndarray of int64, shape [M, Q, p]

    Examples
    --------
    >>> takes_evenly(np.array([[5, 5, 1]]), np.array([4]), np.array([0])).tolist()
    [[[8, 3, 0]]]
    """
    share = np.minimum(_even(step[:, np.newaxis], node, x.shape[1]), x[:, np.newaxis])
    found = x[:, np.newaxis] - share
    found[:, np.arange(node.size), node] += share.sum(axis=2)
    return found


def gives_evenly(x: IntArray, step: IntArray, node: IntArray) -> IntArray:
    """Return distributions in which one node gives rows to all others evenly.

    Parameters and result are those of `takes_evenly`.

    Examples
    --------
    >>> gives_evenly(np.array([[5, 5, 1]]), np.array([3]), np.array([0])).tolist()
    [[[2, 7, 2]]]
    """
    moved = np.minimum(step[:, np.newaxis], x[:, node])
    found = x[:, np.newaxis] + _even(moved, node, x.shape[1])
    found[:, np.arange(node.size), node] -= moved
    return found


def along(x: IntArray, step: IntArray, guides: IntArray, rows: int) -> IntArray:
    """Return distributions that are a step nearer to others, and a step further from them.

    Parameters
    ----------
    x : ndarray of int64, shape [M, p]
        Where they begin.
    step : ndarray of int64, shape [M]
        How many rows move; no further than to the guide itself.
    guides : ndarray of int64, shape [m, p]
        The others.
    rows : int
        The sum of each, at least 1.

    Returns
    -------
    ndarray of int64, shape [M, 2m, p]

    Examples
    --------
    >>> along(np.array([[4, 2, 2]]), np.array([1]), np.array([[8, 0, 0]]), 8).tolist()
    [[[5, 2, 1], [3, 3, 2]]]
    """
    apart = (guides - x[:, np.newaxis]).astype(np.float64)
    distance = np.maximum(np.abs(apart).sum(axis=2) / 2, 0.5)
    share = (step[:, np.newaxis] / distance)[:, :, np.newaxis]
    nearer = x[:, np.newaxis] + np.minimum(share, 1.0) * apart
    further = np.maximum(x[:, np.newaxis] - share * apart, 0.0)
    both = np.concatenate([nearer, further], axis=1)
    return scaled(both.reshape(-1, x.shape[1]), rows).reshape(both.shape)


def _even(moved: IntArray, node: IntArray, nodes: int) -> IntArray:
    """Return how `moved` rows, [M, Q] or [M, 1], split over all but `node`, [M, Q, nodes]."""
    rank = np.arange(nodes) - (np.arange(nodes) > node[:, np.newaxis])
    others = np.arange(nodes) != node[:, np.newaxis]
    moved = moved[:, :, np.newaxis]
    found: IntArray = (moved // (nodes - 1) + (rank < moved % (nodes - 1))) * others
    return found
