"""Checks of the arguments that all layouts share."""

from numbers import Integral
from typing import Any

from fpmdask.errors import PartitionError
from fpmdask.partition.validate import MAX_UNITS

Shape = tuple[int, int]


def check_shape(shape: Any) -> Shape:
    """Return a matrix's (block rows, block columns) as ints.

    Parameters
    ----------
    shape : tuple of int
        Both at least 1, at most 2**52 blocks.

    Returns
    -------
    tuple of int

    Raises
    ------
    PartitionError
        If it is anything else.

    Examples
    --------
    >>> check_shape([12, 8])
    (12, 8)
    """
    rows, columns = _pair(shape, "shape", "block rows, block columns")
    if rows * columns > MAX_UNITS:
        raise PartitionError(
            f"shape is {shape!r}, {rows * columns} blocks; at most {MAX_UNITS} are possible: "
            "use larger blocks"
        )
    return rows, columns


def check_grid(grid: Any, workers: int, shape: Shape) -> Shape:
    """Return the (rows, columns) in which the workers are arranged.

    Parameters
    ----------
    grid : tuple of int or None
        Both at least 1, their product the number of workers. ``None`` takes the grid that
        moves least: the smallest ``block columns · rows + block rows · columns``, among those
        with no more rows and columns than the matrix has, if there are any.
    workers : int
        At least 1.
    shape : tuple of int
        Block rows and block columns.

    Returns
    -------
    tuple of int

    Raises
    ------
    PartitionError
        If it is anything else.

    Examples
    --------
    >>> check_grid(None, 14, (840, 840))
    (2, 7)
    """
    if grid is None:
        ways = [(r, workers // r) for r in range(1, workers + 1) if workers % r == 0]
        fitting = [way for way in ways if way[0] <= shape[0] and way[1] <= shape[1]]
        return min(fitting or ways, key=lambda way: way[0] * shape[1] + way[1] * shape[0])
    rows, columns = _pair(grid, "grid", "rows, columns of workers")
    if rows * columns != workers:
        raise PartitionError(
            f"grid is {grid!r}, {rows * columns} places, for {workers} workers; give rows and "
            f"columns whose product is {workers}, or None"
        )
    return rows, columns


def _pair(value: Any, name: str, meaning: str) -> tuple[int, int]:
    try:
        first, second = value
    except (TypeError, ValueError):
        first = second = None
    for side in (first, second):
        if isinstance(side, bool) or not isinstance(side, Integral) or side < 1:
            raise PartitionError(
                f"{name} is {value!r}; it must be ({meaning}), two ints of at least 1"
            )
    return int(first), int(second)
