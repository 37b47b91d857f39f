"""Many models evaluated at once: one value per worker without a Python loop over workers."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fpmdask.models.arrays import FloatArray
from fpmdask.models.base import Model
from fpmdask.models.constant import ConstantModel
from fpmdask.models.piecewise import PiecewiseLinearModel

IntArray = NDArray[np.int64]


class Bank(Protocol):
    """Models of several workers, numbered from 0, evaluated together."""

    def units_within(self, seconds: float) -> FloatArray:
        """Return every worker's largest number of units within `seconds`."""

    def time(self, workers: IntArray, units: FloatArray) -> FloatArray:
        """Return the seconds of ``units[j]`` units on worker ``workers[j]``."""

    def narrowed(self, low: float, high: float) -> "Bank":
        """Return a bank for times from `low` to `high` seconds only, faster if possible."""


def bank(models: Sequence[Model]) -> Bank:
    """Gather models for vectorised evaluation.

    Parameters
    ----------
    models : sequence of Model
        In worker order, of any kinds; piecewise linear and constant ones are evaluated without
        a loop, others one call each.

    Returns
    -------
    Bank

    Notes
    -----
    O(points) to gather, then O(p log points) per evaluation.

    Examples
    --------
    >>> bank([ConstantModel(2.0), ConstantModel(3.0)]).units_within(10.0)
    array([20., 30.])
    """
    kinds = [type(model) for model in models]
    found = set(kinds)
    if len(found) == 1:
        return _of_kind(found.pop())(models)
    parts = []
    for kind in sorted(found, key=kinds.index):
        members = [i for i, k in enumerate(kinds) if k is kind]
        parts.append((np.array(members), _of_kind(kind)([models[i] for i in members])))
    return MixedBank(len(models), parts)


def _of_kind(kind: type) -> Callable[[Sequence[Any]], Bank]:
    if kind is PiecewiseLinearModel:
        return PiecewiseBank
    return ConstantBank.of if kind is ConstantModel else AnyBank


class PiecewiseBank:
    """The curves of piecewise linear models end to end, searched for all workers in step.

    Notes
    -----
    Each curve brings its own ends, (0, 0) and (inf, inf), so that the search for the segment of
    a worker cannot leave its curve: no bounds are tested.
    """

    def __init__(self, models: Sequence[PiecewiseLinearModel]) -> None:
        curves = [model.curve for model in models]
        self._times, self._units, self._paces = np.concatenate(curves, axis=1)
        sizes = np.fromiter((curve.shape[1] for curve in curves), np.int64, len(curves))
        self._last = np.cumsum(sizes) - 1
        self._first = self._last - sizes + 1

    def units_within(self, seconds: float) -> FloatArray:
        """Return every worker's largest number of units within `seconds`."""
        if math.isinf(seconds):
            return np.full(self._first.size, np.inf)
        right = self._search(self._times, self._first, self._last, seconds)
        left = right - 1
        t0, t1 = self._times[left], self._times[right]
        w0, w1 = self._paces[left], self._paces[right]
        pace = w0 + (seconds - t0) / (t1 - t0) * (w1 - w0)
        units: FloatArray = np.clip(seconds / pace, self._units[left], self._units[right])
        return units

    def time(self, workers: IntArray, units: FloatArray) -> FloatArray:
        """Return the seconds of ``units[j]`` units on worker ``workers[j]``."""
        right = self._search(self._units, self._first[workers], self._last[workers], units)
        left = right - 1
        x0, x1 = self._units[left], self._units[right]
        s0, s1 = 1.0 / self._paces[left], 1.0 / self._paces[right]
        speed = s0 + (units - x0) / (x1 - x0) * (s1 - s0)
        seconds: FloatArray = np.clip(units / speed, self._times[left], self._times[right])
        return seconds

    def narrowed(self, low: float, high: float) -> "PiecewiseBank":
        """Return a bank that searches only the segments of times from `low` to `high` seconds."""
        other = copy(self)
        other._first = self._search(self._times, self._first, self._last, low) - 1
        other._last = self._search(self._times, self._first, self._last, high)
        return other

    def _search(
        self, knots: FloatArray, first: IntArray, last: IntArray, value: float | FloatArray
    ) -> IntArray:
        """Return each curve's first position whose knot is above `value`."""
        low, high = first + 1, last
        for _ in range(int(np.max(high - low, initial=0)).bit_length()):
            middle = (low + high) >> 1
            below = knots[middle] <= value
            low = np.where(below, middle + 1, low)
            high = np.where(below, high, middle)
        return low


class ConstantBank:
    """Constant models as one array of speeds."""

    def __init__(self, speeds: FloatArray) -> None:
        self._speeds = speeds

    @classmethod
    def of(cls, models: Sequence[ConstantModel]) -> Self:
        """Return the bank of constant models."""
        return cls(np.array([model.units_per_second for model in models]))

    def units_within(self, seconds: float) -> FloatArray:
        """Return every worker's largest number of units within `seconds`."""
        return seconds * self._speeds

    def time(self, workers: IntArray, units: FloatArray) -> FloatArray:
        """Return the seconds of ``units[j]`` units on worker ``workers[j]``."""
        seconds: FloatArray = units / self._speeds[workers]
        return seconds

    def narrowed(self, low: float, high: float) -> Self:
        """Return this bank: there is nothing to search."""
        return self


class AnyBank:
    """Models of any kind, one call per worker."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models

    def units_within(self, seconds: float) -> FloatArray:
        """Return every worker's largest number of units within `seconds`."""
        return np.array([model.units_within(seconds) for model in self._models])

    def time(self, workers: IntArray, units: FloatArray) -> FloatArray:
        """Return the seconds of ``units[j]`` units on worker ``workers[j]``."""
        seconds = np.empty(units.size)
        order = np.argsort(workers, kind="stable")
        cuts = np.flatnonzero(np.diff(workers[order])) + 1
        for group in np.split(order, cuts) if order.size else ():
            seconds[group] = self._models[workers[group[0]]].time(units[group])
        return seconds

    def narrowed(self, low: float, high: float) -> Self:
        """Return this bank: the models search for themselves."""
        return self


class MixedBank:
    """Banks of several kinds under one numbering."""

    def __init__(self, size: int, parts: Sequence[tuple[IntArray, Bank]]) -> None:
        self._parts = parts
        self._part = np.empty(size, dtype=np.int64)
        self._inside = np.empty(size, dtype=np.int64)
        for number, (members, _) in enumerate(parts):
            self._part[members] = number
            self._inside[members] = np.arange(members.size)

    def units_within(self, seconds: float) -> FloatArray:
        """Return every worker's largest number of units within `seconds`."""
        units = np.empty(self._part.size)
        for members, part in self._parts:
            units[members] = part.units_within(seconds)
        return units

    def time(self, workers: IntArray, units: FloatArray) -> FloatArray:
        """Return the seconds of ``units[j]`` units on worker ``workers[j]``."""
        seconds = np.empty(units.size)
        owner = self._part[workers]
        for number, (_, part) in enumerate(self._parts):
            mine = owner == number
            seconds[mine] = part.time(self._inside[workers[mine]], units[mine])
        return seconds

    def narrowed(self, low: float, high: float) -> "MixedBank":
        """Return a bank of narrowed banks."""
        parts = [(members, part.narrowed(low, high)) for members, part in self._parts]
        return MixedBank(self._part.size, parts)
