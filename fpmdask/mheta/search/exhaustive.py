"""Exhaustive search: every distribution there is."""

import math

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.mheta.search.compositions import Compositions, count
from fpmdask.mheta.search.evaluations import Evaluations, Predict, check_rng, keys
from fpmdask.mheta.search.result import SearchResult

# Entries of the arrays of one batch, which bounds the memory.
ENTRIES = 2**16
# Numbers of more digits are given as powers of ten.
DIGITS = 100


def exhaustive(
    predict: Predict,
    start: ArrayLike,
    *,
    rng: np.random.Generator | None = None,
    budget: int = 10_000,
) -> SearchResult:
    """Predict every distribution and return the best.

    Parameters
    ----------
    predict : callable
        Distributions, int64 [K, p], to seconds, float64 [K], ``inf`` where infeasible.
    start : array_like of int, shape [m, p]
        Distributions of the same number of rows; predicted first.
    rng : numpy.random.Generator, optional
        Not used; all searches have it.
    budget : int
        Most distributions that are predicted.

    Returns
    -------
    SearchResult
        The optimum; its reason is ``"exhausted"``.

    Raises
    ------
    PartitionError
        If there are more distributions than `budget`; the message says how many. If an argument is
        not allowed, or `predict` does not return seconds.

    Notes
    -----
    N rows over p nodes have C(N + p − 1, p − 1) distributions. They are predicted in
    lexicographic order, in batches of bounded memory; of equal ones a start wins, then the first.

    Examples
    --------
    >>> found = exhaustive(lambda d: (d * [1, 2]).max(axis=1), [[10, 0]])
    >>> found.distribution, found.seconds, found.evaluations
    (array([7, 3]), 7.0, 11)
    """
    if rng is not None:
        check_rng(rng)
    seen = Evaluations(predict, start, budget)
    rows, nodes = seen.rows, seen.nodes
    if count(rows, nodes, seen.budget) > seen.budget:
        raise PartitionError(
            f"{rows} rows over {nodes} nodes have {_how_many(rows, nodes)} distributions, the "
            f"budget is {seen.budget}; use gbs, or give fewer rows or a larger budget"
        )
    seen(seen.start)
    everything, starts = Compositions(rows, nodes), set(keys(seen.start))
    size = max(1, ENTRIES // nodes)
    for first in range(0, len(everything), size):
        batch = everything[first : first + size]
        batch = batch[[key not in starts for key in keys(batch)]]
        if len(batch):
            seen.predict_new(batch)
    return seen.result("exhausted")


def _how_many(rows: int, nodes: int) -> str:
    found = math.comb(rows + nodes - 1, nodes - 1)
    return str(found) if found < 10**DIGITS else f"about 10**{math.log10(found):.0f}"
