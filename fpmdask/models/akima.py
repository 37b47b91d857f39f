"""A smooth curve through measured points that never turns down."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy

from fpmdask.models.arrays import FloatArray, IntArray
from fpmdask.models.measured import MeasuredModel

_ROUNDING = float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class AkimaModel(MeasuredModel):
    """Akima's piecewise cubic through the measured times, constant speed outside them.

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
    `units_within` halves segments for all arguments at once, until the units are as exact as
    float64 holds them.

    1. The times at the points are made non-decreasing by pooling adjacent violators, and Akima's
       slopes are limited to three times the smaller neighbouring secant, which keeps each cubic
       from turning down (Fritsch and Carlson 1980).

    References
    ----------
    H. Akima (1970), A New Method of Interpolation and Smooth Curve Fitting Based on Local
    Procedures. F. N. Fritsch, R. E. Carlson (1980), Monotone Piecewise Cubic Interpolation.

    Examples
    --------
    >>> model = AkimaModel.from_points([10, 20, 30], [1.0, 4.0, 9.0])
    >>> model.time([5, 20, 60])
    array([ 0.5,  4. , 18. ])
    """

    kind: ClassVar[str] = "akima"

    # Rows: units, repaired seconds, seconds per unit as slope; the first column is the origin.
    knots: FloatArray = field(init=False)

    def _prepare(self, times: FloatArray) -> None:
        x = np.concatenate([[0.0], self.units])
        t = np.concatenate([[0.0], times])
        slopes = (
            scipy.interpolate.Akima1DInterpolator(x, t).derivative()(x)
            if x.size > 2
            else np.diff(t) / np.diff(x)
        )
        secants = np.diff(t) / np.diff(x)
        inner = np.minimum(secants[:-1], secants[1:])
        most = 3 * np.concatenate([secants[:1], inner, secants[-1:]])
        knots = np.vstack([x, t, np.clip(slopes, 0.0, most)])
        knots.flags.writeable = False
        object.__setattr__(self, "knots", knots)

    def _time(self, units: FloatArray) -> FloatArray:
        x, t, _ = self.knots
        k = np.clip(np.searchsorted(x, units, side="right") - 1, 0, x.size - 2)
        outside = (units <= x[1]) | (units >= x[-1])
        end = np.where(units <= x[1], 1, -1)
        part = np.where(outside, 0.0, (units - x[k]) / (x[k + 1] - x[k]))
        return np.where(outside, units / x[end] * t[end], self._cubic(k, part))

    def _cubic(self, k: IntArray, part: FloatArray) -> FloatArray:
        """Return the seconds at the fraction `part` of segment `k`."""
        x, t, slopes = self.knots
        step, rise = x[k + 1] - x[k], t[k + 1] - t[k]
        first, last = slopes[k] * step, slopes[k + 1] * step
        bend = 3 * rise - 2 * first - last + part * (first + last - 2 * rise)
        seconds: FloatArray = np.clip(t[k] + part * (first + part * bend), t[k], t[k + 1])
        return seconds

    def _speed(self, units: FloatArray) -> FloatArray:
        x = self.knots[0]
        inside: FloatArray = np.clip(units, x[1], x[-1])
        return inside / self._time(inside)

    def _units_within(self, seconds: FloatArray) -> FloatArray:
        x, t, _ = self.knots
        k = np.clip(np.searchsorted(t, seconds, side="right") - 1, 0, x.size - 2)
        outside = (seconds < t[1]) | (seconds >= t[-1])
        step = x[k + 1] - x[k]
        low, high = np.zeros(seconds.shape), np.ones(seconds.shape)
        while (~outside & (high - low > _ROUNDING * (x[k] / step + low))).any():
            middle = (low + high) / 2
            fits = self._cubic(k, middle) <= seconds
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        end = np.where(seconds < t[1], 1, -1)
        inside: FloatArray = x[k] + low * step
        return np.where(outside, seconds / t[end] * x[end], inside)
