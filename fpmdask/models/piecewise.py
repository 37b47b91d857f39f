"""The partial functional performance model: speed linear between the measured points."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fpmdask.models.arrays import FloatArray
from fpmdask.models.measured import MeasuredModel


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class PiecewiseLinearModel(MeasuredModel):
    """A partial FPM: speed linear between measured points, constant outside them.

    Use `from_points` and `with_point`; the constructor takes what they have already combined.

    Parameters
    ----------
    units : array_like of float
        Measured sizes, increasing, finite and > 0.
    seconds : array_like of float
        Mean measured time of each size, finite and > 0.
    counts : array_like of float
        How many measurements each mean stands for, as `with_point` counts them.

    Raises
    ------
    PartitionError
        If there is no point, the lengths differ, or a value is not allowed.

    Notes
    -----
    Between two points the speed is ``a + b x`` with
    ``a = x0 x1 (1/t0 - 1/t1) / (x1 - x0)``, so that its time ``x / (a + b x)``, whose derivative
    is ``a / (a + b x)**2``, increases iff ``t0 < t1`` and is a plateau iff ``t0 = t1``. Hence it
    is enough to repair the times *at the points*: pooled adjacent violators (weighted by
    `counts`) replace a run of decreasing times by its mean. On that curve the seconds per unit
    are linear in the time, ``x(T) = T / w(T)`` with ``w`` linear between the points'
    ``(t, t / x)``, which inverts each segment in closed form.

    The three cases of the 2009 paper for a new point (left of all, right of all, between two)
    are one here, a sorted insertion, because the constant ends are not stored.

    1. Measured points may make the time decrease, which the paper excludes: `points` shows them
       raw, everything else uses the repaired curve.
    2. A size measured again is not in the paper: its seconds are averaged, see `with_point`.

    References
    ----------
    A. Lastovetsky, R. Reddy (2009), Distributed Data Partitioning for Heterogeneous Processors
    Based on Partial Estimation of Their Functional Performance Models, section 3.

    Examples
    --------
    >>> model = PiecewiseLinearModel.from_points([100, 200], [1.0, 4.0])
    >>> model.speed([50, 100, 150, 400])
    array([100., 100.,  75.,  50.])
    >>> model.units_within(2.0)
    150.0
    """

    kind: ClassVar[str] = "piecewise"

    # Rows: repaired seconds, units, seconds per unit; columns: zero, the points, infinity.
    curve: FloatArray = field(init=False)

    def _prepare(self, times: FloatArray) -> None:
        object.__setattr__(self, "curve", _curve(self.units, times))

    def _speed(self, units: FloatArray) -> FloatArray:
        speeds = 1.0 / self.curve[2, 1:-1]
        return np.asarray(np.interp(units, self.units, speeds))

    def _time(self, units: FloatArray) -> FloatArray:
        times = self.curve[0]
        k = np.searchsorted(self.units, units, side="right")
        # The bounds make points and plateaus exact, and the segments meet without a step.
        return np.asarray(np.clip(units / self._speed(units), times[k], times[k + 1]))

    def _units_within(self, seconds: FloatArray) -> FloatArray:
        times, knots, paces = self.curve
        k = np.searchsorted(times[1:-1], seconds, side="right")
        pace = np.interp(seconds, times[1:-1], paces[1:-1])
        with np.errstate(invalid="ignore"):
            units = seconds / pace
        units = np.where(np.isnan(units), knots[k + 1], units)  # all the time, at no speed
        return np.asarray(np.clip(units, knots[k], knots[k + 1]))


def _curve(units: FloatArray, times: FloatArray) -> FloatArray:
    curve = np.empty((3, units.size + 2))
    curve[0, 1:-1] = times
    curve[1, 1:-1] = units
    curve[2, 1:-1] = times / units
    curve[:2, 0] = 0.0
    curve[:2, -1] = np.inf
    curve[2, 0] = curve[2, 1]
    curve[2, -1] = curve[2, -2]
    curve.flags.writeable = False
    return curve
