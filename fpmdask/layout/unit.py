"""The unit square cut into columns, and each column into rectangles."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fpmdask.partition.validate import FloatArray


@dataclass(frozen=True)
class UnitLayout:
    """Rectangles of given areas that tile the unit square in columns.

    Parameters
    ----------
    columns : tuple of tuple of int
        Positions in the areas, per column from the left, in a column from the top. An area of
        zero is in no column.
    widths : tuple of float
        One per column, summing to 1.
    heights : tuple of float
        One per area in input order, summing to 1 in a column; 0 for an area of zero.

    Notes
    -----
    ::

        +-----+---------+
        |  2  |    0    |   columns = ((2, 3), (0, 1))
        +-----+         |   widths = (0.4, 0.6)
        |     +---------+   heights[0] + heights[1] = heights[2] + heights[3] = 1
        |  3  |    1    |
        +-----+---------+

    References
    ----------
    O. Beaumont, V. Boudet, F. Rastello, Y. Robert (2001), Matrix Multiplication on Heterogeneous
    Platforms; as described by D. Clarke, A. Lastovetsky, V. Rychkov (2011), section 2.2.

    Examples
    --------
    >>> layout = UnitLayout(((0,), (1, 2)), (0.5, 0.5), (1.0, 0.5, 0.5))
    >>> layout.half_perimeter
    3.5
    """

    columns: tuple[tuple[int, ...], ...]
    widths: tuple[float, ...]
    heights: tuple[float, ...]

    @property
    def half_perimeter(self) -> float:
        """Sum of height + width over the rectangles that have an area."""
        wide = sum(len(c) * w for c, w in zip(self.columns, self.widths, strict=True))
        return float(len(self.columns) + wide)

    @property
    def lower_bound(self) -> float:
        """Half-perimeter of squares of these areas: no tiling has less."""
        areas = [
            w * self.heights[i] for c, w in zip(self.columns, self.widths, strict=True) for i in c
        ]
        return float(2 * np.sqrt(areas).sum())


def stacked(areas: FloatArray, columns: Sequence[Sequence[int]]) -> UnitLayout:
    """Return the layout whose columns hold these positions.

    Parameters
    ----------
    areas : ndarray of float64
        At least 0, not all zero; only their ratios matter.
    columns : sequence of sequence of int
        Positions in `areas`; each positive area once. Zero areas are left out.

    Returns
    -------
    UnitLayout
    """
    scaled = areas / areas.max()
    scaled = scaled / scaled.sum()
    kept = [tuple(int(i) for i in column if scaled[i] > 0) for column in columns]
    kept = [column for column in kept if column]
    widths = [float(scaled[list(column)].sum()) for column in kept]
    heights = np.zeros(scaled.size)
    for column, width in zip(kept, widths, strict=True):
        heights[list(column)] = scaled[list(column)] / width
    return UnitLayout(tuple(kept), tuple(widths), tuple(heights.tolist()))
