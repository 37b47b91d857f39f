"""FPM-BR: areas that functional models balance, in the columns that move least."""

from collections.abc import Sequence

import numpy as np

from fpmdask.layout.arrange import arranged, optimal
from fpmdask.layout.validate import Shape, check_shape
from fpmdask.layout.zones import Layout, Rectangle
from fpmdask.models import Model
from fpmdask.models.bank import Bank, bank
from fpmdask.partition.geometric import geometric
from fpmdask.partition.validate import FloatArray, Limits, check_limits


def fpm_br(models: Sequence[Model], shape: Shape, limits: Limits | None = None) -> Layout:
    """Return rectangles whose areas finish together and whose sides sum to least.

    Parameters
    ----------
    models : sequence of Model
        One per worker: seconds as a function of blocks, measured on squares; times must not
        decrease.
    shape : tuple of int
        Block rows and block columns of the matrix.
    limits : sequence of float or None, optional
        Most blocks per worker, ``None`` or ``inf`` for no limit.

    Returns
    -------
    Layout
        As from `br`, with the areas of the optimal distribution of all blocks; its speeds are
        those that the models predict for these zones.

    Raises
    ------
    PartitionError
        If an argument is not allowed, the blocks do not fit, or no rectangles that were tried
        keep the limits.

    Notes
    -----
    The areas come in one step, so there is nothing that could fail to converge. That a rectangle
    takes as long as the square of the same area holds near 1 : 1, where the columns put it.
    O(p² + p log p log points).

    1. The paper rounds the areas to whole sides without the models. Where a model falls off a
       cliff, a block row too many costs far more than its share; here a worker gets no more
       blocks than it finishes within 1 %, or 2 %, 5 %, … 50 % of the optimum, the first of these
       that the columns can keep with every side within one block.

    References
    ----------
    D. Clarke, A. Lastovetsky, V. Rychkov (2011), Column-Based Matrix Partitioning for Parallel
    Matrix Multiplication on Heterogeneous Processors Based on Functional Performance Models,
    section 3.

    Examples
    --------
    >>> from fpmdask.models import ConstantModel, PiecewiseLinearModel
    >>> paging = PiecewiseLinearModel.from_points([40, 44], [4.0, 44.0])
    >>> fpm_br([paging, ConstantModel(5.0)], (10, 10)).areas
    (40, 60)
    """
    shape = check_shape(shape)
    blocks = shape[0] * shape[1]
    areas = geometric(blocks, models, limits).astype(np.float64)
    found = _rounded(areas, shape, check_limits(limits, areas.size), bank(models))
    speeds = tuple(
        float(m.speed(r.area)) if r.area else 0.0 for m, r in zip(models, found, strict=True)
    )
    return Layout(shape, tuple((r,) for r in found), speeds)


# By how much whole blocks may lengthen the makespan, tried in turn before anything goes.
_SLACKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def _rounded(
    areas: FloatArray, shape: Shape, most: FloatArray, gathered: Bank
) -> tuple[Rectangle, ...]:
    optimum = float(gathered.time(np.arange(areas.size), areas).max())
    for slack in _SLACKS:
        within = np.floor(gathered.units_within(optimum * (1 + slack)))
        found = optimal(areas, shape, np.minimum(most, within), exact=True)
        if found is not None:
            return found
    return arranged(areas, shape, most)
