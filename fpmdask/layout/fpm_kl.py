"""FPM-KL: workers in a fixed grid, balanced by models in two parameters, iterated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.layout.tile import tiled
from fpmdask.layout.unit import UnitLayout
from fpmdask.layout.validate import Shape, check_grid, check_shape
from fpmdask.layout.zones import EMPTY, Layout
from fpmdask.models import SurfaceModel
from fpmdask.models.arrays import positive_number
from fpmdask.models.bank import Bank, bank
from fpmdask.partition.validate import FloatArray, IntArray, check_workers


def fpm_kl(
    surfaces: Sequence[SurfaceModel],
    shape: Shape,
    grid: Shape | None = None,
    epsilon: float = 0.05,
    max_iterations: int = 50,
) -> Layout:
    """Return a grid of workers whose heights and widths balance models in two parameters.

    Parameters
    ----------
    surfaces : sequence of SurfaceModel
        One per worker: seconds as a function of block rows and block columns.
    shape : tuple of int
        Block rows and block columns of the matrix.
    grid : tuple of int, optional
        Rows and columns of workers, their product the number of workers; worker i is in row
        ``i // columns`` and column ``i % columns``. The grid that moves least otherwise.
    epsilon : float, optional
        Largest imbalance, (t_max - t_min) / t_min, of the columns; > 0.
    max_iterations : int, optional
        Most slices of the models; at least 1.

    Returns
    -------
    Layout
        Its `converged` says whether the imbalance met `epsilon`, its `iterations` how many
        slices were tried. Where it did not converge, the layout is that of the iteration with
        the smallest makespan, and the picture says so. Its speeds are those that the models
        predict for these zones.

    Raises
    ------
    PartitionError
        If an argument is not allowed, or the grid does not match the number of workers.

    Notes
    -----
    From equal widths on: slice the surfaces at the widths; balance the heights in each column;
    stop if the columns' times are within `epsilon`; otherwise make the widths proportional to
    the columns' speeds. That takes the speed of a column to be the same at the next width.
    Where a column pages at one width and not at the next, the widths swing for ever (section 4):
    use `fpm_br`, which has no such loop.

    1. Widths and heights are real while iterating, so that blocks too coarse for `epsilon` do
       not pass for divergence; they become whole at the end, without another look at the
       models: where these fall off a cliff, the rounding may push a worker over it.
    2. The time of a column is that of its latest worker; a column's heights balance exactly.
    3. The paper does not say what to do without convergence.

    O(max_iterations · p log points) times the 50 steps of a bisection.

    References
    ----------
    D. Clarke, A. Lastovetsky, V. Rychkov (2011), Column-Based Matrix Partitioning for Parallel
    Matrix Multiplication on Heterogeneous Processors Based on Functional Performance Models,
    sections 2.3 and 4; after A. Lastovetsky, R. Reddy (2009), Two-Dimensional Matrix Partitioning
    for Parallel Computing on Heterogeneous Processors.

    Examples
    --------
    >>> fast = SurfaceModel.from_points([10], [10], [1.0])
    >>> slow = SurfaceModel.from_points([10], [10], [3.0])
    >>> layout = fpm_kl([fast, slow], (8, 8), grid=(1, 2))
    >>> layout.areas, layout.converged
    ((48, 16), True)
    """
    shape = check_shape(shape)
    _check_surfaces(surfaces)
    places = np.arange(len(surfaces)).reshape(check_grid(grid, len(surfaces), shape)).T
    bound = positive_number(epsilon, "epsilon")
    widths = np.full(len(places), shape[1] / len(places))
    best, converged, tried = None, False, 0
    while not converged and tried < _iterations(max_iterations):
        tried += 1
        step = _sliced(surfaces, places, widths, shape[0])
        converged = bool(step.seconds.max() - step.seconds.min() <= bound * step.seconds.min())
        if best is None or converged or step.seconds.max() < best.seconds.max():
            best = step
        speeds = widths / widths.max() / (step.seconds / step.seconds.max())
        widths = np.maximum(speeds / speeds.sum(), 1e-12) * shape[1]
    assert best is not None  # there was at least one iteration
    return _whole(best, surfaces, places, shape, converged, tried)


def _iterations(value: Any) -> int:
    try:
        return check_workers(value)
    except PartitionError as error:
        raise PartitionError(
            f"max_iterations must be an int of at least 1, got {value!r}"
        ) from error


def _check_surfaces(surfaces: Sequence[SurfaceModel]) -> None:
    if not isinstance(surfaces, Sequence | np.ndarray) or len(surfaces) == 0:
        raise PartitionError(
            f"surfaces is {surfaces!r}; a sequence with a SurfaceModel per worker and at least "
            "one is needed"
        )
    for at, surface in enumerate(surfaces):
        if not isinstance(surface, SurfaceModel):
            raise PartitionError(
                f"surfaces[{at}] is {surface!r}; a fpmdask.models.SurfaceModel is needed: for "
                "models in one parameter use fpm_br"
            )


@dataclass(frozen=True)
class _Step:
    """One iteration: the widths of the columns, their times, and all heights."""

    widths: FloatArray
    seconds: FloatArray
    heights: FloatArray  # per worker


def _sliced(
    surfaces: Sequence[SurfaceModel], places: IntArray, widths: FloatArray, rows: int
) -> _Step:
    heights = np.zeros(len(surfaces))
    seconds = np.zeros(widths.size)
    for at, (members, width) in enumerate(zip(places, widths.tolist(), strict=True)):
        models = bank([surfaces[i].slice(width) for i in members])
        seconds[at], heights[members] = _balanced(models, members.size, rows)
    return _Step(widths, seconds, heights)


def _balanced(models: Bank, workers: int, rows: int) -> tuple[float, FloatArray]:
    """Return the time in which workers do the rows together, and their real heights."""
    times = models.time(np.arange(workers), np.full(workers, rows / workers))
    low, high = float(times.min()) * (1 - 1e-9), float(times.max()) * (1 + 1e-9)
    while high > low * (1 + 1e-10):
        middle = math.sqrt(low) * math.sqrt(high)
        if not low < middle < high:
            break
        if float(models.units_within(middle).sum()) < rows:
            low = middle
        else:
            high = middle
    heights = np.minimum(models.units_within(high), rows)
    return high, heights * (rows / heights.sum())  # on a plateau there is room for more rows


def _whole(
    step: _Step,
    surfaces: Sequence[SurfaceModel],
    places: IntArray,
    shape: Shape,
    converged: bool,
    tried: int,
) -> Layout:
    """Return the layout of whole blocks next to an iteration."""
    shares = np.maximum(step.heights / shape[0], 1e-100)
    unit = UnitLayout(
        tuple(tuple(column) for column in places.tolist()),
        tuple((step.widths / step.widths.sum()).tolist()),
        tuple(shares.tolist()),
    )
    found = tiled(unit, shape, np.full(len(surfaces), np.inf)) or (EMPTY,) * len(surfaces)
    speeds = tuple(
        r.area / float(s.time(r.height, r.width)) if r.area else 0.0
        for s, r in zip(surfaces, found, strict=True)
    )
    zones = tuple((r,) for r in found)
    return Layout(shape, zones, speeds, converged=converged, iterations=tried)
