"""Whole blocks for a layout of the unit square: integer widths, then integer heights."""

import numpy as np

from fpmdask.layout.unit import UnitLayout
from fpmdask.layout.validate import Shape
from fpmdask.layout.zones import EMPTY, Rectangle
from fpmdask.partition.proportional import proportional
from fpmdask.partition.validate import FloatArray, IntArray


def tiled(unit: UnitLayout, shape: Shape, most: FloatArray) -> tuple[Rectangle, ...] | None:
    """Return the rectangles of whole blocks that a layout of the unit square becomes.

    Parameters
    ----------
    unit : UnitLayout
        Columns, widths and heights.
    shape : tuple of int
        Block rows and block columns.
    most : ndarray of float64
        Most blocks per worker, whole or ``inf``.

    Returns
    -------
    tuple of Rectangle or None
        In worker order, covering every block exactly once. ``None`` if no whole widths of these
        columns keep the limits.

    Notes
    -----
    Widths first, then the heights of each column, both by `whole_sides`. A column can be as wide
    as the heights that its workers' limits allow still fill the rows, if possible none of them
    a block above its exact one; this falls with the width, so it is bisected.
    O(p log p + columns · p log(block columns)), without limits O(p log p).
    """
    rows, across = shape
    near = min(shape) >= len(unit.heights)
    heights = np.array(unit.heights)
    tallest = np.floor(heights * rows) + 1 if near else np.full(heights.size, np.inf)
    room = _rooms(unit, shape, most, tallest)
    if near and room.sum() < across:
        room = _rooms(unit, shape, most, np.full(heights.size, np.inf))
    if room.sum() < across:
        return None
    widths = whole_sides(across, np.array(unit.widths), room, near=near)
    result = [EMPTY] * heights.size
    left = 0
    for column, width in zip(unit.columns, widths.tolist(), strict=True):
        if width == 0:
            continue
        members = list(column)
        allowed = np.floor(most[members] / width)
        sides = whole_sides(rows, heights[members], allowed, near=near).tolist()
        top = 0
        for worker, height in zip(members, sides, strict=True):
            if height:
                result[worker] = Rectangle(top, left, height, width)
            top += height
        left += width
    return tuple(result)


def deviation(unit: UnitLayout, shape: Shape, rectangles: tuple[Rectangle, ...]) -> float:
    """Return the largest difference of a side from the exact one, in blocks.

    Parameters
    ----------
    unit : UnitLayout
        The exact sides.
    shape : tuple of int
        Block rows and block columns.
    rectangles : tuple of Rectangle
        What `tiled` made of it. A worker without blocks counts with the shorter of its exact
        sides.

    Returns
    -------
    float
    """
    worst = 0.0
    for column, width in zip(unit.columns, unit.widths, strict=True):
        for worker in column:
            found = rectangles[worker]
            down = abs(found.height - unit.heights[worker] * shape[0])
            across = abs(found.width - width * shape[1])
            worst = max(worst, max(down, across) if found.area else min(down, across))
    return worst


def whole_sides(total: int, shares: FloatArray, most: FloatArray, *, near: bool) -> IntArray:
    """Return whole sides in proportion to shares.

    Parameters
    ----------
    total : int
        What they sum to, at least 1.
    shares : ndarray of float64
        All > 0.
    most : ndarray of float64
        Longest sides, whole or ``inf``, summing to at least `total`.
    near : bool
        Keep every side within one block of its exact length, as far as `most` allows; otherwise
        the largest ratio of a side to its share is as small as possible.

    Returns
    -------
    ndarray of int64

    Notes
    -----
    The min-max rounding never gives less than the exact length rounded down, because those units
    end before it does; only more than one block above it has to be excluded.

    Examples
    --------
    >>> free = np.full(4, np.inf)
    >>> whole_sides(5, np.array([0.7, 0.1, 0.1, 0.1]), free, near=False)
    array([5, 0, 0, 0])
    >>> whole_sides(5, np.array([0.7, 0.1, 0.1, 0.1]), free, near=True)
    array([4, 1, 0, 0])
    """
    if near:
        closest = np.minimum(most, np.floor(shares / shares.sum() * total) + 1)
        most = closest if closest.sum() >= total else most
    return proportional(total, shares, most)


def _rooms(unit: UnitLayout, shape: Shape, most: FloatArray, tallest: FloatArray) -> FloatArray:
    """Return how many block columns each column can take."""
    members = [list(column) for column in unit.columns]
    return np.array([_room(shape, most[m], tallest[m]) for m in members], dtype=np.float64)


def _room(shape: Shape, most: FloatArray, tallest: FloatArray) -> int:
    """Return the most block columns that workers stacked over all rows can take."""
    rows, across = shape
    low, high = 0, across
    if np.minimum(np.floor(most / across), tallest).sum() >= rows:
        return across
    while high - low > 1:
        width = (low + high) // 2
        fits = np.minimum(np.floor(most / width), tallest).sum() >= rows
        low, high = (width, high) if fits else (low, width)
    return low
