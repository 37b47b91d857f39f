"""The column arrangement with the smallest sum of half-perimeters."""

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.layout.unit import UnitLayout, stacked
from fpmdask.models.arrays import positive_number
from fpmdask.partition.validate import FloatArray, check_numbers


def columns(areas: ArrayLike, aspect: float = 1.0) -> UnitLayout:
    """Return the best tiling of the unit square by rectangles stacked in columns.

    Parameters
    ----------
    areas : array_like of float
        One weight per worker, in any order, finite, at least 0 and not all zero; normalised.
    aspect : float, optional
        Width over height of the matrix that the square stands for, finite and > 0. What is
        minimised is Σ(height + aspect · width).

    Returns
    -------
    UnitLayout
        Columns of increasing areas; a zero weight has height 0 and is in no column. Its
        `half_perimeter` is that of the unit square, whatever the aspect.

    Raises
    ------
    PartitionError
        If `areas` or `aspect` are not allowed.

    Notes
    -----
    A column of k rectangles and width w costs 1 + aspect · k · w. Exchanging two rectangles so
    that the smaller one is in the column with more of them never raises the sum, so some optimum
    has columns that are contiguous in the sorted areas (Beaumont and others, 2001). With the
    prefix sums S of these, ``f(q) = min over k < q of f(k) + 1 + aspect (q - k) (S(q) - S(k))``.
    O(p²), vectorised over k.

    1. The paper's table has a row per number of columns, O(p³); one number per prefix suffices.

    References
    ----------
    O. Beaumont, V. Boudet, F. Rastello, Y. Robert (2001), Matrix Multiplication on Heterogeneous
    Platforms; D. Clarke, A. Lastovetsky, V. Rychkov (2011), Column-Based Matrix Partitioning for
    Parallel Matrix Multiplication on Heterogeneous Processors Based on Functional Performance
    Models, section 2.2.

    Examples
    --------
    >>> layout = columns([2, 1, 1])
    >>> layout.columns
    ((1, 2), (0,))
    >>> layout.widths, layout.heights, layout.half_perimeter
    ((0.5, 0.5), (1.0, 0.5, 0.5), 3.5)
    """
    weights = check_areas(areas)
    scale = positive_number(aspect, "aspect")
    order = np.argsort(weights, kind="stable")
    order = order[weights[order] > 0]
    starts = _starts(weights[order] / weights.max(), scale)
    return stacked(weights, [part.tolist() for part in np.split(order, starts)])


def check_areas(areas: ArrayLike) -> FloatArray:
    """Return one finite weight of at least 0 per worker, not all of them zero.

    Parameters
    ----------
    areas : array_like
        In worker order.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    PartitionError
        If there is none, or one is not finite and at least 0, or all are zero.
    """
    weights = check_numbers(areas, "areas")
    good = np.isfinite(weights) & (weights >= 0)
    if not good.all():
        at = int(np.argmin(good))
        raise PartitionError(
            f"areas[{at}] is {weights[at]}; a finite number of at least 0 is needed: "
            f"give worker {at} 0 or leave it out"
        )
    if not weights.any():
        raise PartitionError(
            f"all {weights.size} areas are 0; at least one worker needs a positive area"
        )
    return weights


def _starts(ascending: FloatArray, aspect: float) -> list[int]:
    """Return where the second and the later columns begin in the sorted areas."""
    count = ascending.size
    sums = np.concatenate([[0.0], np.cumsum(ascending)])
    sums *= aspect / sums[-1]
    backwards = np.arange(count, -1, -1, dtype=np.float64)
    cost = np.zeros(count + 1)
    previous = np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        total = (sums[end] - sums[:end]) * backwards[count - end : count] + cost[:end]
        best = int(total.argmin())
        previous[end] = best
        cost[end] = total[best] + 1.0
    starts = []
    start = int(previous[count])
    while start > 0:
        starts.append(start)
        start = int(previous[start])
    return starts[::-1]
