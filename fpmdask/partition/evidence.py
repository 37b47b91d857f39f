"""What DFPA knows of its workers: measurements, the models they make, and their noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel, Model, PiecewiseLinearModel
from fpmdask.partition.smoothing import smoothed
from fpmdask.partition.validate import FloatArray, IntArray

# More units in less time by more than this factor is not noise but a worker that has changed: six
# times the noise, and within these bounds while the noise itself is badly known.
_SIGMAS, _LEAST_CHANGE, _MOST_CHANGE = 6.0, 1.25, 2.0
# A point this much below the chord of its neighbours bends its two segments; knots per segment.
_SAG, _KNOTS = 0.01, 7
# Sizes at which the shape of a model that is not made of points is taken over.
_SHAPE_SIZES = 33


def check_models(models: Any, workers: int) -> list[Model | None]:
    """Return one model or None per worker.

    Parameters
    ----------
    models : sequence of Model or None, optional
        In worker order.
    workers : int
        How many are expected.

    Returns
    -------
    list of Model or None

    Raises
    ------
    PartitionError
        If their number is wrong or one is something else.
    """
    if models is None:
        return [None] * workers
    known = list(models)
    if len(known) != workers:
        raise PartitionError(
            f"{len(known)} models found for {workers} workers; give one each, None where unknown"
        )
    for i, model in enumerate(known):
        if model is not None and not isinstance(model, Model):
            raise PartitionError(
                f"models[{i}] is a {type(model).__name__}; a model from fpmdask.models or None "
                "is needed"
            )
    return known


class _Point(NamedTuple):
    units: float
    seconds: float
    weight: float  # how many measurements it stands for
    round: int  # 0: known before


@dataclass(frozen=True, slots=True)
class Fit:
    """A model for every worker, and the relative noise of one measurement."""

    models: tuple[Model, ...]
    noise: float

    def seconds(self, distribution: IntArray) -> FloatArray:
        """Return the time of each worker's share."""
        return np.array([m.time(float(x)) for m, x in zip(self.models, distribution, strict=True)])


class Evidence:
    """The measurements of a run on top of what was known before.

    Parameters
    ----------
    models : sequence of Model or None
        What is known of each worker. The points of a piecewise linear model count as
        measurements; any other model lends its shape, the level comes from measurements.
    units : int
        The largest size that matters.
    """

    def __init__(self, models: Sequence[Model | None], units: int) -> None:
        self.models: list[Model | None] = list(models)
        self.units = units
        self._round = 0
        self._shapes: list[Model | None] = [None] * len(models)
        self._points: list[list[_Point]] = [[] for _ in models]
        for i, model in enumerate(models):
            if isinstance(model, PiecewiseLinearModel):
                rows = zip(model.units, model.seconds, model.counts, strict=True)
                self._points[i] = [_Point(float(x), float(t), float(n), 0) for x, t, n in rows]
            else:
                self._shapes[i] = model

    def add(self, distribution: IntArray, seconds: FloatArray, noise: float) -> None:
        """Take in one round; `noise` is what is known of it before, 0 for nothing."""
        self._round += 1
        factor = _MOST_CHANGE
        if noise:
            factor = min(max(math.exp(_SIGMAS * noise), _LEAST_CHANGE), _MOST_CHANGE)
        for i, (units, t) in enumerate(zip(distribution.tolist(), seconds.tolist(), strict=True)):
            if units and math.isfinite(t):
                self._add(i, _Point(float(units), t, 1.0, self._round), factor)

    def _add(self, i: int, new: _Point, factor: float) -> None:
        points, model, shape = self._points[i], self.models[i], self._shapes[i]
        if shape is not None and not 0.0 < shape.speed(new.units) < math.inf:
            self._shapes[i] = None
        changed = any(
            (old.units >= new.units and old.seconds * factor < new.seconds)
            or (old.units <= new.units and old.seconds > factor * new.seconds)
            for old in points
        )
        if changed:
            points.clear()
        if changed or not isinstance(model, PiecewiseLinearModel):
            self.models[i] = PiecewiseLinearModel.from_points([new.units], [new.seconds])
        else:
            self.models[i] = model.with_point(new.units, new.seconds)
        points.append(new)

    def fit(self) -> Fit:
        """Return the likely models of all workers.

        A worker of which nothing is known gets the mean speed of the others.
        """
        noise, likely = self._smoothed()
        share = self.units / len(likely)
        speeds = [m.speed(share) for m in likely if m is not None]
        mean = ConstantModel(float(np.mean(speeds)) if speeds else 1.0)
        return Fit(tuple(mean if m is None else m for m in likely), noise)

    def _smoothed(self) -> tuple[float, list[Model | None]]:
        rows = [i for i, points in enumerate(self._points) if points]
        likely: list[Model | None] = list(self._shapes)
        if not rows:
            return 0.0, likely
        columns = max(len(self._points[i]) for i in rows)
        sizes, speeds, scales, ages = np.zeros((4, len(rows), columns))
        scales[:] = np.inf
        for row, i in enumerate(rows):
            points = sorted(self._points[i])
            x, t, counts, when = np.array(points).T
            shape = self._shapes[i]
            relative = x / t if shape is None else x / t / shape.speed(x)
            sizes[row, : x.size] = np.log(x)
            speeds[row, : x.size] = np.log(relative)
            scales[row, : x.size] = 1.0 / counts
            ages[row, : x.size] = self._round - when
        result = smoothed(sizes, speeds, scales, ages)
        for row, i in enumerate(rows):
            n = len(self._points[i])
            likely[i] = self._likely(sizes[row, :n], result.log_speeds[row, :n], self._shapes[i])
        return (result.noise if columns > 1 else 0.0), likely

    def _likely(self, sizes: FloatArray, levels: FloatArray, shape: Model | None) -> Model:
        first = np.ones(sizes.size, dtype=np.bool_)
        first[1:] = sizes[1:] > sizes[:-1]
        sizes, levels = sizes[first], levels[first]
        if shape is None:
            sizes, levels = _with_bends(sizes, levels)
            return PiecewiseLinearModel.from_points(np.exp(sizes), np.exp(sizes - levels))
        grid = np.unique(np.geomspace(1.0, max(self.units, 2), _SHAPE_SIZES).round())
        grid = np.unique(np.concatenate([grid, np.exp(sizes).round()]))
        times = np.asarray(shape.time(grid)) / np.exp(np.interp(np.log(grid), sizes, levels))
        good = np.isfinite(times) & (times > 0)
        return PiecewiseLinearModel.from_points(grid[good], times[good])


def _with_bends(sizes: FloatArray, levels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Add knots on a power law to the segments next to points that lie below their chord."""
    if sizes.size < 3:
        return sizes, levels
    x, s = np.exp(sizes), np.exp(levels)
    chord = s[:-2] + (s[2:] - s[:-2]) * (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    sags = np.zeros(sizes.size, dtype=np.bool_)
    sags[1:-1] = s[1:-1] < (1.0 - _SAG) * chord
    bent = sags[:-1] | sags[1:]
    steps = np.arange(1, _KNOTS + 1) / (_KNOTS + 1)
    between = (sizes[:-1] + np.outer(steps, sizes[1:] - sizes[:-1]))[:, bent]
    knots = np.sort(np.concatenate([sizes, between.ravel()]))
    return knots, np.asarray(np.interp(knots, sizes, levels))
