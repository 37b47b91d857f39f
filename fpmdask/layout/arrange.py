"""The arrangement in columns, or in rows, that moves least and keeps the limits."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.layout.columns import columns
from fpmdask.layout.tile import deviation, tiled
from fpmdask.layout.unit import UnitLayout, stacked
from fpmdask.layout.validate import Shape
from fpmdask.layout.zones import Rectangle
from fpmdask.partition.validate import FloatArray

# Workers up to which all arrangements are tried where limits exclude the best; 6 have 203.
_FEW = 6


def arranged(areas: FloatArray, shape: Shape, most: FloatArray) -> tuple[Rectangle, ...]:
    """Return the rectangles of the smallest volume for these areas.

    Parameters
    ----------
    areas : ndarray of float64
        At least 0, not all zero; only their ratios matter.
    shape : tuple of int
        Block rows and block columns.
    most : ndarray of float64
        Most blocks per worker, whole or ``inf``, summing to at least the blocks.

    Returns
    -------
    tuple of Rectangle
        In worker order.

    Raises
    ------
    PartitionError
        If no arrangement that was tried keeps the limits.

    Notes
    -----
    The optimal columns of the matrix and those of its transpose, rounded to whole blocks; the one
    with the smaller volume is taken, of equal ones the columns. Where limits exclude both, other
    arrangements of the same areas: for up to six workers all of them, for more the workers in
    order of their limits in up to 2√p + 8 groups.
    """
    if (best := optimal(areas, shape, most)) is not None:
        return best
    found = list(_tilings(_others(areas, most), shape, most))
    found += _turned(_tilings(_others(areas, most), shape[::-1], most))
    if not found:
        raise PartitionError(
            f"no rectangles of {shape[0]} x {shape[1]} blocks in columns or rows keep the limits "
            f"of {areas.size} workers, which sum to {most.sum():.0f}: raise limits, use smaller "
            "blocks or more workers"
        )
    return min(found, key=_volume)


def optimal(
    areas: FloatArray, shape: Shape, most: FloatArray, *, exact: bool = False
) -> tuple[Rectangle, ...] | None:
    """Return the optimal columns or rows in whole blocks, whichever have the smaller volume.

    Parameters
    ----------
    areas : ndarray of float64
        At least 0, not all zero; only their ratios matter.
    shape : tuple of int
        Block rows and block columns.
    most : ndarray of float64
        Most blocks per worker, whole or ``inf``.
    exact : bool, optional
        Refuse a layout that `most` keeps from being within one block of the exact sides, where
        the matrix has room for that.

    Returns
    -------
    tuple of Rectangle or None
        ``None`` if `most` excludes both.
    """
    straight, turned = columns(areas, shape[1] / shape[0]), columns(areas, shape[0] / shape[1])
    found = list(_tilings([straight], shape, most, exact=exact))
    found += _turned(_tilings([turned], shape[::-1], most, exact=exact))
    return min(found, key=_volume, default=None)


def _volume(rectangles: tuple[Rectangle, ...]) -> int:
    return sum(r.height + r.width for r in rectangles)


def _tilings(
    units: Iterable[UnitLayout], shape: Shape, most: FloatArray, *, exact: bool = False
) -> Iterator[tuple[Rectangle, ...]]:
    for unit in units:
        if (rectangles := tiled(unit, shape, most)) is not None and not (
            exact and min(shape) >= most.size and deviation(unit, shape, rectangles) > 1 + 1e-9
        ):
            yield rectangles


def _turned(found: Iterator[tuple[Rectangle, ...]]) -> list[tuple[Rectangle, ...]]:
    return [tuple(r.transposed for r in rectangles) for rectangles in found]


def _others(areas: FloatArray, most: FloatArray) -> Iterator[UnitLayout]:
    """Yield other columns; workers whose area is zero help out with next to nothing."""
    weights = np.where(areas > 0, areas, areas.max() * 1e-9) * (most > 0)
    order = np.argsort(most, kind="stable")
    order = order[weights[order] > 0]
    if order.size <= _FEW:
        yield from (stacked(weights, groups) for groups in _groups(order.tolist()))
        return
    # as many columns as workers are one column of the transpose, which is tried, too
    for count in range(1, min(order.size, math.isqrt(4 * order.size) + 9)):
        yield stacked(weights, [part.tolist() for part in np.array_split(order, count)])


def _groups(workers: list[int]) -> Iterator[list[list[int]]]:
    """Yield every way to put workers into groups."""
    if not workers:
        yield []
        return
    first, *rest = workers
    for groups in _groups(rest):
        yield [[first], *groups]
        for at in range(len(groups)):
            yield [*groups[:at], [first, *groups[at]], *groups[at + 1 :]]
