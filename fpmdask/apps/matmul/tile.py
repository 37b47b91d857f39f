"""Parts of a matrix: rectangles, and rectangles without their lower right corner."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Tile:
    """Rows ``row0 … row1`` and columns ``column0 … column1`` of a matrix, ends excluded.

    Parameters
    ----------
    row0, column0, row1, column1
        The rectangle.
    corner
        (rows, columns) at its lower right end that belong to others: what is left is an L, which
        needs the same rows of A and columns of B as the whole rectangle::

            +---------+
            |   L     |
            |    +----+
            |    |    | rows
            +----+----+
                 columns

    Examples
    --------
    >>> Tile(0, 0, 4, 6, corner=(1, 2)).area
    22
    """

    row0: int
    column0: int
    row1: int
    column1: int
    corner: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if 0 in self.corner:  # one way to say that there is none
            object.__setattr__(self, "corner", (0, 0))

    @classmethod
    def of(cls, bounds: Sequence[int]) -> "Tile":
        """Return the tile of these `bounds`."""
        row0, row1, column0, column1, *corner = bounds
        rows, columns = corner or (0, 0)
        return cls(row0, column0, row1, column1, (rows, columns))

    @property
    def height(self) -> int:
        """Rows."""
        return self.row1 - self.row0

    @property
    def width(self) -> int:
        """Columns."""
        return self.column1 - self.column0

    @property
    def area(self) -> int:
        """Elements."""
        return self.height * self.width - self.corner[0] * self.corner[1]

    @property
    def is_rectangle(self) -> bool:
        """Whether no corner is missing."""
        return self.corner == (0, 0)

    @property
    def bounds(self) -> tuple[int, ...]:
        """Return (row0, row1, column0, column1), and the corner where there is one."""
        rectangle = self.row0, self.row1, self.column0, self.column1
        return rectangle if self.is_rectangle else (*rectangle, *self.corner)

    def transpose(self) -> "Tile":
        """Return the same elements of the transposed matrix.

        Examples
        --------
        >>> Tile(0, 1, 4, 6, corner=(1, 2)).transpose().bounds
        (1, 6, 0, 4, 2, 1)
        """
        rows, columns = self.corner
        return Tile(self.column0, self.row0, self.column1, self.row1, (columns, rows))

    @property
    def edges(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows and columns at which it begins or ends, also where the corner does."""
        rows, columns = (self.row0, self.row1), (self.column0, self.column1)
        if self.is_rectangle:
            return rows, columns
        return (*rows, self.row1 - self.corner[0]), (*columns, self.column1 - self.corner[1])

    @property
    def rectangles(self) -> "tuple[Tile, ...]":
        """One rectangle, or the two of an L: that of full width first.

        Examples
        --------
        >>> [tile.bounds for tile in Tile(0, 0, 4, 6, corner=(1, 2)).rectangles]
        [(0, 3, 0, 6), (3, 4, 0, 4)]
        """
        if self.is_rectangle:
            return (self,)
        row, column = self.row1 - self.corner[0], self.column1 - self.corner[1]
        above = Tile(self.row0, self.column0, row, self.column1)
        return above, Tile(row, self.column0, self.row1, column)

    def holds(self, other: "Tile") -> bool:
        """Tell whether a rectangle that no edge of this one cuts lies in it."""
        inside = (
            self.row0 <= other.row0 < self.row1 and self.column0 <= other.column0 < self.column1
        )
        row, column = self.row1 - self.corner[0], self.column1 - self.corner[1]
        return inside and (other.row0 < row or other.column0 < column)

    def cut(self, area: int, by_rows: bool) -> "tuple[Tile, Tile | None]":
        """Return a first part of `area` elements, rounded up to whole lines, and the rest.

        The lines are rows if `by_rows`, otherwise the shorter ones: the parts are no strips. Of an
        L cut the `rectangles`.
        """
        if by_rows or self.height >= self.width:
            at = self.row0 + min(self.height, -(-area // self.width))
            rest = Tile(at, self.column0, self.row1, self.column1)
            return Tile(self.row0, self.column0, at, self.column1), rest if rest.height else None
        at = self.column0 + min(self.width, -(-area // self.height))
        rest = Tile(self.row0, at, self.row1, self.column1)
        return Tile(self.row0, self.column0, self.row1, at), rest if rest.width else None

    def last_lines(self) -> tuple[bool, int, int]:
        """Return (by rows, how many, elements of each) of the last lines: the shorter ones.

        Of an L they are those beside or above the corner, whichever has more elements.

        Examples
        --------
        >>> Tile(0, 0, 4, 6).last_lines(), Tile(0, 0, 4, 6, corner=(3, 1)).last_lines()
        ((False, 6, 4), (True, 3, 5))
        """
        if self.is_rectangle:
            by_rows = self.height >= self.width
            return (True, self.height, self.width) if by_rows else (False, self.width, self.height)
        rows, columns = self.corner
        beside, above = self.width - columns, self.height - rows
        by_rows = rows * beside >= columns * above
        return (True, rows, beside) if by_rows else (False, columns, above)

    def last(self, lines: int) -> "Tile":
        """Return so many of the `last_lines`."""
        by_rows, _, across = self.last_lines()
        if by_rows:
            return Tile(self.row1 - lines, self.column0, self.row1, self.column0 + across)
        return Tile(self.row0, self.column1 - lines, self.row0 + across, self.column1)

    def without(self, released: "Tile") -> "Tile | None":
        """Return what is left without some of the last rows or columns, None if it is no tile.

        Examples
        --------
        >>> Tile(0, 0, 9, 4).without(Tile(7, 0, 9, 4)).bounds
        (0, 7, 0, 4)
        >>> Tile(0, 0, 9, 4).without(Tile(6, 0, 7, 4)) is None
        True
        >>> Tile(0, 0, 9, 4, corner=(3, 1)).without(Tile(8, 0, 9, 3)).bounds
        (0, 8, 0, 4, 2, 1)
        """
        rows, columns = self.corner
        row, column = self.row1 - rows, self.column1 - columns
        at, left = released.row0, released.column0
        beside = (at, self.row1, self.column0, column)
        above = (self.row0, row, left, self.column1)
        if released.bounds == beside and max(self.row0 + 1, row if rows else 0) <= at:
            corner = rows - (self.row1 - at), columns
            return Tile(self.row0, self.column0, at, self.column1, corner)
        if released.bounds == above and max(self.column0 + 1, column if columns else 0) <= left:
            corner = rows, columns - (self.column1 - left)
            return Tile(self.row0, self.column0, self.row1, left, corner)
        return None


def merged(tiles: Sequence[Tile]) -> list[Tile]:
    """Return rectangles that cover the same, neighbours in a column joined.

    Examples
    --------
    >>> found = merged([Tile(4, 0, 6, 2), Tile(0, 0, 4, 2), Tile(0, 2, 6, 3)])
    >>> [tile.bounds for tile in found]
    [(0, 6, 0, 2), (0, 6, 2, 3)]
    """
    joined: list[Tile] = []
    rectangles = [rectangle for tile in tiles for rectangle in tile.rectangles]
    for tile in sorted(rectangles, key=lambda t: (t.column0, t.column1, t.row0)):
        above = joined[-1] if joined else None
        if above is not None and above.bounds[1:] == (tile.row0, tile.column0, tile.column1):
            joined[-1] = Tile(above.row0, above.column0, tile.row1, tile.column1)
        else:
            joined.append(tile)
    return joined
