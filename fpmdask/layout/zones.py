"""The zones of a block matrix, one per worker."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.layout.svg import svg
from fpmdask.layout.validate import Shape, check_shape


@dataclass(frozen=True)
class Rectangle:
    """Whole blocks ``top … top + height - 1`` by ``left … left + width - 1``.

    Parameters
    ----------
    top, left : int
        The first block row and column.
    height, width : int
        Block rows and columns; both 0 for a worker without blocks.

    Examples
    --------
    >>> Rectangle(0, 2, 3, 4).area
    12
    """

    top: int
    left: int
    height: int
    width: int

    @property
    def area(self) -> int:
        """Blocks."""
        return self.height * self.width

    @property
    def transposed(self) -> "Rectangle":
        """The same blocks of the transposed matrix."""
        return Rectangle(self.left, self.top, self.width, self.height)


# The rectangle of a worker without blocks.
EMPTY = Rectangle(0, 0, 0, 0)


@dataclass(frozen=True)
class Layout:
    """Which worker has which blocks; every block belongs to exactly one.

    Parameters
    ----------
    shape : tuple of int
        Block rows and block columns of the matrix.
    zones : tuple of tuple of Rectangle
        Per worker, in worker order.
    speeds : tuple of float, optional
        Blocks per second of each worker, where known; shown, not checked.
    converged : bool, optional
        Whether the iteration that made it met its epsilon; true where none was needed.
    iterations : int, optional
        How many slices of the models were tried; 0 where none was needed.

    Raises
    ------
    PartitionError
        If the zones do not cover every block of the shape exactly once.

    Notes
    -----
    Checked by counting on the grid of all edges of the rectangles: O(different tops · different
    lefts) memory, whatever the number of blocks.

    Examples
    --------
    >>> layout = Layout((2, 3), ((Rectangle(0, 0, 2, 1),), (Rectangle(0, 1, 2, 2),)))
    >>> layout.volume, layout.half_perimeter
    (7, 3.0)
    >>> layout.rectangles[1].left
    1
    """

    shape: Shape
    zones: tuple[tuple[Rectangle, ...], ...]
    speeds: tuple[float, ...] | None = None
    converged: bool = True
    iterations: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape(self.shape))
        _check_cover(self.shape, [r for zone in self.zones for r in zone])
        if self.speeds is not None and len(self.speeds) != len(self.zones):
            raise PartitionError(
                f"{len(self.speeds)} speeds found for {len(self.zones)} zones; give one each"
            )

    @property
    def rectangles(self) -> tuple[Rectangle, ...]:
        """One rectangle per worker, of height and width 0 for a worker without blocks.

        Raises
        ------
        PartitionError
            If a worker has two; use `zones`.
        """
        for worker, zone in enumerate(self.zones):
            if len(zone) > 1:
                raise PartitionError(
                    f"worker {worker} has {len(zone)} rectangles, not one; read `zones`, the "
                    "tuple of each worker's rectangles"
                )
        return tuple(zone[0] if zone else EMPTY for zone in self.zones)

    @property
    def areas(self) -> tuple[int, ...]:
        """Blocks per worker."""
        return tuple(sum(r.area for r in zone) for zone in self.zones)

    @property
    def volume(self) -> int:
        """Rows and columns of blocks that the workers need, summed over all: height + width."""
        return sum(sum(_needed(zone)) for zone in self.zones)

    @property
    def half_perimeter(self) -> float:
        """Sum of height + width over the zones, the matrix being the unit square."""
        rows, columns = self.shape
        needed = [_needed(zone) for zone in self.zones]
        return sum(down for down, _ in needed) / rows + sum(along for _, along in needed) / columns

    @property
    def lower_bound(self) -> float:
        """Half-perimeter of squares of the zones' areas in the unit square."""
        rows, columns = self.shape
        return float(2 * np.sqrt(np.array(self.areas) / (rows * columns)).sum())

    def _repr_html_(self) -> str:
        return svg(self)


def _needed(zone: Sequence[Rectangle]) -> tuple[int, int]:
    """Return how many rows and columns of blocks a zone meets; those of two rectangles overlap."""
    rows = {(r.top, r.top + r.height) for r in zone}
    columns = {(r.left, r.left + r.width) for r in zone}
    return _length(rows), _length(columns)


def _length(intervals: Iterable[tuple[int, int]]) -> int:
    total, end = 0, 0
    for low, high in sorted(intervals):
        total += max(0, high - max(low, end))
        end = max(end, high)
    return total


def _check_cover(shape: Shape, every: Sequence[Rectangle]) -> None:
    for found in every:
        _check_inside(shape, found)
    filled = [r for r in every if r.area]
    edges = np.array(
        [(r.top, r.left, r.top + r.height, r.left + r.width) for r in filled], dtype=np.int64
    ).reshape(-1, 4)
    downs = np.union1d(edges[:, [0, 2]], [0, shape[0]])
    rights = np.union1d(edges[:, [1, 3]], [0, shape[1]])
    top, bottom = (np.searchsorted(downs, edges[:, k]) for k in (0, 2))
    left, right = (np.searchsorted(rights, edges[:, k]) for k in (1, 3))
    count = np.zeros((downs.size, rights.size), dtype=np.int64)
    for down, across, sign in (
        (top, left, 1),
        (bottom, right, 1),
        (top, right, -1),
        (bottom, left, -1),
    ):
        np.add.at(count, (down, across), sign)
    owners = count.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
    if (owners != 1).any():
        i, j = (int(k) for k in np.argwhere(owners != 1)[0])
        raise PartitionError(
            f"block ({downs[i]}, {rights[j]}) is in {owners[i, j]} zones; every block of the "
            f"shape {shape} must be in exactly one: correct the zones"
        )


def _check_inside(shape: Shape, found: Rectangle) -> None:
    fits = (
        found.top >= 0
        and found.left >= 0
        and found.top + found.height <= shape[0]
        and found.left + found.width <= shape[1]
        and ((found.height > 0) == (found.width > 0))
        and min(found.height, found.width) >= 0
    )
    if not fits:
        raise PartitionError(
            f"{found} is not in a matrix of {shape[0]} x {shape[1]} blocks; its sides must be "
            "inside, and both at least 1, or both 0 for a worker without blocks"
        )
