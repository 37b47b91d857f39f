"""What DFPA knows of its workers: measurements, the models they make, and their noise."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from fpmdask.models import ConstantModel, MeasuredModel, Model, PiecewiseLinearModel
from fpmdask.models.bank import bank
from fpmdask.partition.smoothing import Smoothed, smoothed
from fpmdask.partition.validate import FloatArray, IntArray

# More units in less time by more than this factor is not noise but a worker that has changed: six
# times the noise within these bounds, or a factor of two while the noise is not known.
_SIGMAS, _LEAST_CHANGE, _MOST_CHANGE, _ANY_CHANGE = 6.0, 1.5, 3.0, 2.0
# What was known before the run is as old as ten rounds (half weight), and doubted sooner.
_KNOWN_BEFORE, _STALE, _MOST_STALE = -10, 1.25, 1.5
# A cliff: the speed halves, or worse, while the size grows by a tenth at most.
_CLIFF, _CLIFF_WIDTH = 2.0, 1.1
# After a share that was too large the next one is half way up from the largest good one, unless
# that is within so much of the limit: another failure would cost more than the units are worth.
_CLOSE = 0.05
# A point this much below the chord of its neighbours bends its two segments; knots per segment.
_SAG, _KNOTS = 0.01, 7
# Times of the same size that differ by no more than this, relative, agree: rounding.
_EXACT = 1e-9
# Sizes at which the shape of a model that is not made of points is taken over.
_SHAPE_SIZES = 257


class _Point(NamedTuple):
    units: float
    seconds: float
    weight: float  # how many measurements it stands for
    round: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A model for every worker, and the relative noise of one measurement."""

    models: tuple[Model, ...]
    noise: float

    def seconds(self, distribution: IntArray) -> FloatArray:
        """Return the time of each worker's share."""
        workers = np.arange(distribution.size, dtype=np.int64)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return bank(self.models).time(workers, distribution.astype(np.float64))


class Evidence:
    """The measurements of a run on top of what was known before.

    Parameters
    ----------
    models : sequence of Model or None
        What is known of each worker. The points of a measured model count as measurements; any
        other model lends its shape, the level comes from measurements.
    units : int
        The largest size that matters.
    """

    def __init__(self, models: Sequence[Model | None], units: int) -> None:
        self.models: list[Model | None] = list(models)
        self.units = units
        self._round = 0
        self._shapes: list[Model | None] = [None] * len(models)
        self._points: list[list[_Point]] = [[] for _ in models]
        self._too_large: set[int] = set()
        self._doubted: set[int] = set()
        self.changed_in = 0  # the last round that showed a worker changed, 0 for none
        for i, model in enumerate(models):
            if isinstance(model, MeasuredModel):
                rows = zip(model.units, model.seconds, model.counts, strict=True)
                self._points[i] = [
                    _Point(float(x), float(t), float(n), _KNOWN_BEFORE) for x, t, n in rows
                ]
            else:
                self._shapes[i] = model

    def with_round(self, distribution: IntArray, seconds: FloatArray, noise: float) -> Self:
        """Return this and one more round; `noise` is what is known of it before, 0 for nothing."""
        after = copy.copy(self)
        after.models = self.models.copy()
        after._shapes = self._shapes.copy()
        after._points = [points.copy() for points in self._points]
        after._too_large, after._doubted = self._too_large.copy(), self._doubted.copy()
        after._add_round(distribution, seconds, noise)
        return after

    def _add_round(self, distribution: IntArray, seconds: FloatArray, noise: float) -> None:
        self._round += 1
        factor = math.exp(_SIGMAS * noise) if noise else _ANY_CHANGE
        for i, (units, t) in enumerate(zip(distribution.tolist(), seconds.tolist(), strict=True)):
            if units and math.isfinite(t):
                self._add(i, _Point(float(units), t, 1.0, self._round), factor)
            elif units:
                self._too_large.add(i)

    def _add(self, i: int, new: _Point, factor: float) -> None:
        points, model, shape = self._points[i], self.models[i], self._shapes[i]
        if shape is not None and not 0.0 < shape.speed(new.units) < math.inf:
            self._shapes[i] = None
        contradicting = [old.round for old in points if _contradict(old, new, factor)]
        changed = bool(contradicting)
        if max(contradicting, default=0) > 0:
            self.changed_in = self._round
        if changed:
            points.clear()
        if changed or not isinstance(model, MeasuredModel):
            self.models[i] = PiecewiseLinearModel.from_points([new.units], [new.seconds])
        else:
            if not isinstance(model, PiecewiseLinearModel):
                model = PiecewiseLinearModel(model.units, model.seconds, model.counts)
            self.models[i] = model.with_point(new.units, new.seconds)
        points.append(new)

    def caps(self, limits: FloatArray) -> FloatArray:
        """Return the most units to try next: less than the limit where a share was too large."""
        caps = limits.copy()
        for i in self._too_large:
            good = max((p.units for p in self._points[i] if p.units <= limits[i]), default=0.0)
            gap = limits[i] - good
            caps[i] = good if gap <= _CLOSE * limits[i] else good + math.ceil(gap / 2)
        return caps

    def largest(self) -> FloatArray:
        """Return the largest size measured on each worker, 0 for none."""
        return np.array([max((p.units for p in points), default=0.0) for points in self._points])

    def doubtful(self, distribution: IntArray, limits: FloatArray) -> dict[int, int]:
        """Return the sizes right above the shares where one single measurement shows a cliff.

        It may have been a hiccup, and nothing else ever tells. Each worker is doubted once.
        """
        found: dict[int, int] = {}
        for i, units in enumerate(distribution.tolist()):
            above = sorted(p for p in self._points[i] if p.units > units > 0)
            here = [p.units / p.seconds for p in self._points[i] if p.units == units]
            single = len(above) == 1 or (len(above) > 1 and above[1].units > above[0].units)
            if i in self._doubted or not here or not single or above[0].units > limits[i]:
                continue
            slow = above[0].units / above[0].seconds < min(here) / _CLIFF
            if slow and above[0].units <= _CLIFF_WIDTH * units:
                found[i] = int(above[0].units)
        self._doubted.update(found)
        return found

    def fit(self) -> Fit:
        """Return the likely models of all workers.

        A worker of which nothing is known gets the mean speed of the others. A speed beyond the
        range of floats is refused by the model that is to hold it.
        """
        with np.errstate(over="ignore"):
            return self._fitted(smooth=True)

    def interpolated(self) -> Fit | None:
        """Return models through every measurement; None where measurements contradict each other.

        More units in less time, or the same units in another time, are noise. Without either the
        measurements may be exact, and what `fit` takes for noise may be the shape of the speeds.
        """
        for points in self._points:
            ordered = sorted(points)
            for few, more in pairwise(ordered):
                most = few.seconds * (1.0 + _EXACT) if few.units == more.units else math.inf
                if not few.seconds * (1.0 - _EXACT) <= more.seconds <= most:
                    return None
        with np.errstate(over="ignore"):
            return self._fitted(smooth=False)

    def above(self, distribution: IntArray) -> FloatArray:
        """Return each worker's smallest measured size above its share, ``inf`` for none."""
        shares = zip(self._points, distribution.tolist(), strict=True)
        return np.array(
            [
                min((p.units for p in points if p.units > n), default=math.inf)
                for points, n in shares
            ]
        )

    def _fitted(self, *, smooth: bool) -> Fit:
        noise, likely = self._smoothed(smooth)
        share = self.units / len(likely)
        # of a worker that cannot do an even share: its speed with the most that it can
        speeds = [m.speed(min(share, m.units_within(math.inf))) for m in likely if m is not None]
        usable = [speed for speed in speeds if 0.0 < speed < math.inf]
        mean = ConstantModel(float(np.mean(usable)) if usable else 1.0)
        return Fit(tuple(mean if m is None else m for m in likely), noise)

    def _smoothed(self, smooth: bool) -> tuple[float, list[Model | None]]:
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
        result = smoothed(sizes, speeds, scales, ages) if smooth else Smoothed(speeds, 0.0)
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


def _contradict(old: _Point, new: _Point, factor: float) -> bool:
    """Return whether one of them shows more units in less time by more than `factor`."""
    low, high = (_STALE, _MOST_STALE) if old.round < 0 else (_LEAST_CHANGE, _MOST_CHANGE)
    factor = min(max(factor, low), high)
    return (old.units >= new.units and old.seconds * factor < new.seconds) or (
        old.units <= new.units and old.seconds > factor * new.seconds
    )


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
