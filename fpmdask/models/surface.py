"""Time as a function of two parameters: the height and the width of a block of work."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.models.arrays import (
    FloatArray,
    IntArray,
    domain,
    positive_array,
    positive_number,
    unwrap,
)
from fpmdask.models.base import Value
from fpmdask.models.piecewise import PiecewiseLinearModel


@dataclass(frozen=True, eq=False, repr=False)
class SurfaceModel(Value):
    """Seconds as a function of height and width; use `from_points`.

    Parameters
    ----------
    heights, widths : array_like of float
        Measured blocks, finite and > 0, in any order.
    seconds : array_like of float
        One time per block, finite and > 0.

    Raises
    ------
    PartitionError
        If there is no point, the lengths differ, or a value is not allowed.

    Notes
    -----
    The points of one width are a column: a `PiecewiseLinearModel` in heights, whatever heights
    were measured there. Between neighbouring widths the speed in area per second is linear,
    outside the widths it is constant. A sum of two speeds linear in the height is linear in it,
    so a slice at any width is again a `PiecewiseLinearModel`, exactly, with the heights of both
    neighbours as its points, and its time does not decrease if theirs do not.

    References
    ----------
    D. Clarke, A. Lastovetsky, V. Rychkov (2011), Column-Based Matrix Partitioning for Parallel
    Matrix Multiplication on Heterogeneous Processors Based on Functional Performance Models.

    Examples
    --------
    >>> surface = SurfaceModel.from_points([10, 20, 10], [4, 4, 8], [1.0, 2.0, 4.0])
    >>> surface.time(10, 6)
    2.0
    >>> surface.slice(6).time(10)
    2.0
    """

    kind: ClassVar[str] = "surface"

    heights: FloatArray
    widths: FloatArray
    seconds: FloatArray
    columns: tuple[PiecewiseLinearModel, ...] = field(init=False)
    grid: FloatArray = field(init=False)  # the width of each column

    def __post_init__(self) -> None:
        names = ("widths", "heights", "seconds")
        arrays = [positive_array(getattr(self, name), name) for name in names]
        if len({array.size for array in arrays}) != 1:
            sizes = ", ".join(f"{a.size} {n}" for a, n in zip(arrays, names, strict=True))
            raise PartitionError(f"{sizes} found; a point needs one of each")
        order = np.lexsort((arrays[1], arrays[0]))
        for name, array in zip(names, arrays, strict=True):
            object.__setattr__(self, name, positive_array(array[order], name))
        grid, starts = np.unique(self.widths, return_index=True)
        columns = tuple(
            PiecewiseLinearModel.from_points(h, t)
            for h, t in zip(
                np.split(self.heights, starts[1:]), np.split(self.seconds, starts[1:]), strict=True
            )
        )
        grid.flags.writeable = False
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "grid", grid)

    @classmethod
    def from_points(cls, heights: ArrayLike, widths: ArrayLike, seconds: ArrayLike) -> Self:
        """Return the surface through measured points.

        Parameters
        ----------
        heights, widths : array_like of float
            Measured blocks, finite and > 0, in any order; a block measured again combines as in
            `PiecewiseLinearModel.with_point`.
        seconds : array_like of float
            One time per block, finite and > 0.

        Returns
        -------
        SurfaceModel

        Raises
        ------
        PartitionError
            If there is no point, the lengths differ, or a value is not allowed.
        """
        return cls(
            positive_array(heights, "heights"),
            positive_array(widths, "widths"),
            positive_array(seconds, "seconds"),
        )

    def with_point(self, height: float, width: float, seconds: float) -> Self:
        """Return a surface that knows one more measurement.

        Parameters
        ----------
        height, width : float
            The block, finite and > 0.
        seconds : float
            Its time, finite and > 0.

        Returns
        -------
        SurfaceModel

        Raises
        ------
        PartitionError
            If a value is not finite and > 0.
        """
        return type(self)(
            np.append(self.heights, height),
            np.append(self.widths, width),
            np.append(self.seconds, seconds),
        )

    @property
    def points(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The measured (heights, widths, seconds) by width, then height; read-only."""
        return self.heights, self.widths, self.seconds

    def time(self, height: float | ArrayLike, width: float | ArrayLike) -> float | FloatArray:
        """Return the seconds of a block.

        Parameters
        ----------
        height, width : float or array_like
            At least 0; arrays broadcast.

        Returns
        -------
        float or ndarray
            Seconds; 0 for an empty block.

        Raises
        ------
        PartitionError
            If a value is negative, NaN or not a number, or the shapes do not broadcast.
        """
        heights, widths = domain(height, "height"), domain(width, "width")
        try:
            h, w = np.broadcast_arrays(heights, widths)
        except ValueError as error:
            raise PartitionError(
                f"heights of the shape {heights.shape} and widths of {widths.shape} do not "
                "broadcast; give one of each per block"
            ) from error
        left, right, part = self._neighbours(w)
        speeds = np.stack(
            [wide * np.asarray(c.speed(h)) for wide, c in zip(self.grid, self.columns, strict=True)]
        )
        first = np.take_along_axis(speeds, left[np.newaxis], 0)[0]
        second = np.take_along_axis(speeds, right[np.newaxis], 0)[0]
        empty = (h == 0) | (w == 0)
        area = np.where(empty, 0.0, h) * np.where(empty, 0.0, w)  # inf * 0 is no number
        return unwrap(area / ((1 - part) * first + part * second), h)

    def slice(self, width: float) -> PiecewiseLinearModel:
        """Return the model in heights at one width.

        Parameters
        ----------
        width : float
            Finite and > 0.

        Returns
        -------
        PiecewiseLinearModel
            Its units are heights.

        Raises
        ------
        PartitionError
            If the width is not finite and > 0.
        """
        wide = positive_number(width, "width")
        left, right, _ = self._neighbours(np.asarray(wide))
        knots = np.union1d(self.columns[int(left)].units, self.columns[int(right)].units)
        seconds = np.asarray(self.time(knots, wide))
        # Rounding must not make a plateau fall by one digit, which would be pooled.
        return PiecewiseLinearModel.from_points(knots, np.maximum.accumulate(seconds))

    def __repr__(self) -> str:
        return f"<SurfaceModel: {self.seconds.size} points at {self.grid.size} widths>"

    def _neighbours(self, widths: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
        """Return the columns left and right of each width and its fraction between them."""
        last = self.grid.size - 1
        left = np.clip(np.searchsorted(self.grid, widths, side="right") - 1, 0, last)
        right = np.minimum(left + 1, last)
        step = np.where(right > left, self.grid[right] - self.grid[left], 1.0)
        return left, right, np.clip((widths - self.grid[left]) / step, 0.0, 1.0)
