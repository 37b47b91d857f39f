"""All distributions of rows over nodes: how many there are, the k-th of them, random ones."""

import math

import numpy as np

from fpmdask.mheta.checks import IntArray


def count(rows: int, nodes: int, most: int) -> int:
    """Return how many distributions there are, or `most` + 1 if there are more than `most`.

    Parameters
    ----------
    rows, nodes : int
        At least 0 and 1.
    most : int
        Where counting ends.

    Returns
    -------
    int
        C(rows + nodes - 1, nodes - 1), at most `most` + 1.

    Examples
    --------
    >>> count(10, 3, most=1000), count(2**52, 1000, most=1000)
    (66, 1001)
    """
    found = 1
    for i in range(1, nodes):
        found = found * (rows + i) // i
        if found > most:
            return most + 1
    return found


class Compositions:
    """The distributions in lexicographic order, each by its number.

    Parameters
    ----------
    rows, nodes : int
        At least 0 and 1, so that there are at most 2**53 distributions.

    Notes
    -----
    The combinatorial number system. With q nodes left, C(s + q - 1, q - 1) distributions give
    them s rows; a table of it per node turns a number, counted from the last distribution, into
    the rows that are left after the node. The last two nodes need no table, so each has about
    sqrt(2 · the number of distributions) entries at most. O(p log rows) per distribution.

    Examples
    --------
    >>> Compositions(2, 3)[0:4].tolist()
    [[0, 0, 2], [0, 1, 1], [0, 2, 0], [1, 0, 1]]
    """

    def __init__(self, rows: int, nodes: int) -> None:
        self._rows, self._nodes = rows, nodes
        self._tables: dict[int, IntArray] = {}
        self._size = math.comb(rows + nodes - 1, nodes - 1)
        for q in range(3, nodes + 1):
            before = np.arange(1, rows + 2) if q == 3 else self._tables[q - 1]
            self._tables[q] = np.cumsum(before)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, numbers: slice) -> IntArray:
        """Return the distributions of a range of numbers, int64 of shape [K, nodes]."""
        start, stop, step = numbers.indices(self._size)
        rank = self._size - 1 - np.arange(start, stop, step, dtype=np.int64)
        found = np.empty((rank.size, self._nodes), np.int64)
        left = np.full(rank.size, self._rows, np.int64)
        for node, q in enumerate(range(self._nodes, 1, -1)):
            after = rank
            if q > 2:
                table = self._tables[q]
                after = np.searchsorted(table, rank, side="right").astype(np.int64)
                rank = rank - np.where(after > 0, table[after - 1], 0)
            found[:, node] = left - after
            left = after
        found[:, -1] = left
        return found


def random_compositions(rows: int, nodes: int, size: int, rng: np.random.Generator) -> IntArray:
    """Return random distributions, each of all with the same probability.

    Parameters
    ----------
    rows, nodes : int
        At least 0 and 1.
    size : int
        How many, K.
    rng : numpy.random.Generator
        Where they are drawn from.

    Returns
    -------
    ndarray of int64, shape [K, nodes]

    Notes
    -----
    A distribution is ``nodes - 1`` bars among ``rows + nodes - 1`` places. Floyd's sample of
    distinct places, for all K at once: O(K p²), whatever the rows.

    References
    ----------
    J. Bentley, B. Floyd (1987), Programming Pearls: A Sample of Brilliance, Communications of the
    ACM 30(9).

    Examples
    --------
    >>> random_compositions(9, 3, 2, np.random.default_rng(0)).sum(axis=1)
    array([9, 9])
    """
    bars = np.empty((size, nodes + 1), np.int64)
    bars[:, 0] = -1
    for k in range(1, nodes):
        last = rows + k - 1
        place = rng.integers(0, last, size, endpoint=True)
        taken = (bars[:, 1:k] == place[:, np.newaxis]).any(axis=1)
        bars[:, k] = np.where(taken, last, place)
    bars[:, nodes] = rows + nodes - 1
    bars[:, 1:nodes].sort(axis=1)
    found: IntArray = np.diff(bars, axis=1) - 1
    return found
