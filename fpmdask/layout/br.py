"""BR: areas in proportion to speeds, in the columns that move least."""

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.layout.arrange import arranged
from fpmdask.layout.validate import Shape, check_shape
from fpmdask.layout.zones import Layout
from fpmdask.partition.proportional import proportional
from fpmdask.partition.validate import Limits, check_limits, check_positive


def br(speeds: ArrayLike, shape: Shape, limits: Limits | None = None) -> Layout:
    """Return rectangles in proportion to constant speeds whose sides sum to least.

    Parameters
    ----------
    speeds : array_like of float
        Blocks per second of each worker, finite and > 0; only their ratios matter.
    shape : tuple of int
        Block rows and block columns of the matrix.
    limits : sequence of float or None, optional
        Most blocks per worker, ``None`` or ``inf`` for no limit; what a full worker cannot take
        goes to the others.

    Returns
    -------
    Layout
        Columns, or rows where these have the smaller volume. Where the matrix has at least as
        many rows and columns of blocks as there are workers, every side is within one block of
        the exact one, as far as the limits allow; a worker whose exact rectangle is less than one
        block high or wide may have none.

    Raises
    ------
    PartitionError
        If an argument is not allowed, or no rectangles that were tried keep the limits.

    Notes
    -----
    O(p²), from the columns. With limits that leave a row of blocks to spare per worker some
    arrangement is always found; tighter ones may be refused for more than six workers.

    1. The paper tiles the unit square; here the sides are in blocks of a matrix of any shape, so
       width counts columns / rows times, and the transposed arrangement is tried too.

    References
    ----------
    O. Beaumont, V. Boudet, F. Rastello, Y. Robert (2001), Matrix Multiplication on Heterogeneous
    Platforms; D. Clarke, A. Lastovetsky, V. Rychkov (2011), section 2.2.

    Examples
    --------
    >>> layout = br([2.0, 1.0, 1.0], (6, 6))
    >>> [(r.top, r.left, r.height, r.width) for r in layout.rectangles]
    [(0, 3, 6, 3), (0, 0, 3, 3), (3, 0, 3, 3)]
    >>> layout.half_perimeter
    3.5
    """
    shape = check_shape(shape)
    rates = check_positive(speeds, "speeds")
    blocks = shape[0] * shape[1]
    most = check_limits(limits, rates.size, blocks)
    areas = rates / rates.max()
    if (areas / areas.sum() * blocks > most).any():
        areas = proportional(blocks, rates, most).astype(np.float64)
    zones = tuple((r,) for r in arranged(areas, shape, most))
    return Layout(shape, zones, tuple(rates.tolist()))
