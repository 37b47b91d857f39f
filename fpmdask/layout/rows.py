"""Rows: every worker a strip as wide as the matrix."""

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.layout.tile import whole_sides
from fpmdask.layout.validate import Shape, check_shape
from fpmdask.layout.zones import EMPTY, Layout, Rectangle
from fpmdask.partition.validate import Limits, check_limits, check_positive


def rows(speeds: ArrayLike, shape: Shape, limits: Limits | None = None) -> Layout:
    """Return strips of block rows in proportion to constant speeds, in worker order.

    Parameters
    ----------
    speeds : array_like of float
        Blocks per second of each worker, finite and > 0; only their ratios matter.
    shape : tuple of int
        Block rows and block columns of the matrix.
    limits : sequence of float or None, optional
        Most blocks per worker, ``None`` or ``inf`` for no limit; a strip takes whole rows of it.

    Returns
    -------
    Layout
        Where the matrix has at least as many rows and columns of blocks as there are workers,
        every height is within one block of the exact one, as far as the limits allow.

    Raises
    ------
    PartitionError
        If an argument is not allowed, or the whole rows that the limits leave are too few.

    Notes
    -----
    O(p log p). Always strips of rows; `br` finds strips of columns where they move less.

    Examples
    --------
    >>> [(r.top, r.height) for r in rows([3.0, 1.0], (8, 2)).rectangles]
    [(0, 6), (6, 2)]
    """
    shape = check_shape(shape)
    down, across = shape
    rates = check_positive(speeds, "speeds")
    most = np.floor(check_limits(limits, rates.size, down * across) / across)
    if (room := float(most.sum())) < down:
        raise PartitionError(
            f"{down} block rows do not fit: the limits leave {room:.0f} whole rows of {across} "
            "blocks; raise limits, or use br, whose rectangles may be narrower"
        )
    heights = whole_sides(down, rates, most, near=min(shape) >= rates.size)
    tops = np.cumsum(heights) - heights
    zones = tuple(
        (Rectangle(top, 0, height, across) if height else EMPTY,)
        for top, height in zip(tops.tolist(), heights.tolist(), strict=True)
    )
    return Layout(shape, zones, tuple(rates.tolist()))
