"""KL: workers in a fixed grid, columns and heights in proportion to constant speeds."""

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.layout.tile import tiled
from fpmdask.layout.unit import stacked
from fpmdask.layout.validate import Shape, check_grid, check_shape
from fpmdask.layout.zones import EMPTY, Layout
from fpmdask.partition.validate import check_positive


def kl(speeds: ArrayLike, shape: Shape, grid: Shape | None = None) -> Layout:
    """Return a grid of workers whose columns are as wide as they are fast together.

    Parameters
    ----------
    speeds : array_like of float
        Blocks per second of each worker, finite and > 0; only their ratios matter.
    shape : tuple of int
        Block rows and block columns of the matrix.
    grid : tuple of int, optional
        Rows and columns of workers, their product the number of workers; worker i is in row
        ``i // columns`` and column ``i % columns``. The grid that moves least otherwise.

    Returns
    -------
    Layout
        Where the matrix has at least as many rows and columns of blocks as there are workers,
        every side is within one block of the exact one; a worker whose exact rectangle is less
        than one block high or wide may have none.

    Raises
    ------
    PartitionError
        If an argument is not allowed, or the grid does not match the number of workers.

    Notes
    -----
    The half-perimeter is rows + columns of the grid, whatever the speeds: p + 1 for a prime p.
    O(p log p).

    References
    ----------
    A. Kalinov, A. Lastovetsky (1999), Heterogeneous Distribution of Computations While Solving
    Linear Algebra Problems on Networks of Heterogeneous Computers; as described by D. Clarke,
    A. Lastovetsky, V. Rychkov (2011), section 2.1.

    Examples
    --------
    >>> layout = kl([3.0, 1.0, 1.0, 1.0], (6, 6), grid=(2, 2))
    >>> [(r.top, r.left, r.height, r.width) for r in layout.rectangles]
    [(0, 0, 5, 4), (0, 4, 3, 2), (5, 0, 1, 4), (3, 4, 3, 2)]
    >>> layout.half_perimeter
    4.0
    """
    shape = check_shape(shape)
    rates = check_positive(speeds, "speeds")
    places = np.arange(rates.size).reshape(check_grid(grid, rates.size, shape))
    unit = stacked(np.maximum(rates / rates.max(), 1e-100), places.T.tolist())
    found = tiled(unit, shape, np.full(rates.size, np.inf)) or (EMPTY,) * rates.size
    return Layout(shape, tuple((r,) for r in found), tuple(rates.tolist()))
