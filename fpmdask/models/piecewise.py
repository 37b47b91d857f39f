"""The partial functional performance model: speed linear between the measured points."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression

from fpmdask.errors import PartitionError
from fpmdask.models.base import FloatArray, Model, positive_array

# A size measured again moves its mean by at least 1/MEMORY of the difference: the plain mean of
# the first four (its standard error is then half of one measurement's), a moving one afterwards,
# so that a worker that changed its speed for good is believed after a few rounds.
MEMORY = 4


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class PiecewiseLinearModel(Model):
    """A partial FPM: speed linear between measured points, constant outside them.

    Use `from_points` and `with_point`; the constructor takes what they have already combined.

    Parameters
    ----------
    units : array_like of float
        Measured sizes, increasing, finite and > 0.
    seconds : array_like of float
        Mean measured time of each size, finite and > 0.
    counts : array_like of float
        How many measurements each mean stands for, from 1 to `MEMORY`.

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

    units: FloatArray
    seconds: FloatArray
    counts: FloatArray
    # Rows: repaired seconds, units, seconds per unit; columns: zero, the points, infinity.
    curve: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        units = positive_array(self.units, "units")
        seconds = positive_array(self.seconds, "seconds")
        counts = positive_array(self.counts, "counts")
        if not units.size == seconds.size == counts.size:
            raise PartitionError(
                f"{units.size} units, {seconds.size} seconds and {counts.size} counts found; "
                "a model needs one of each per point"
            )
        if (np.diff(units) <= 0).any():
            raise PartitionError("units must increase; from_points sorts and combines them")
        for name, value in (("units", units), ("seconds", seconds), ("counts", counts)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "curve", _curve(units, _repaired(seconds, counts)))

    @classmethod
    def from_points(cls, units: ArrayLike, seconds: ArrayLike) -> Self:
        """Return the model through measured points, in any order.

        Parameters
        ----------
        units : array_like of float
            Measured sizes, finite and > 0; repeated ones combine as in `with_point`, in order.
        seconds : array_like of float
            One time per size, finite and > 0.

        Returns
        -------
        PiecewiseLinearModel

        Raises
        ------
        PartitionError
            If there is no point, the lengths differ, or a value is not allowed.

        Examples
        --------
        >>> PiecewiseLinearModel.from_points([20, 10, 10], [3.0, 1.0, 2.0]).points
        (array([10., 20.]), array([1.5, 3. ]))
        """
        xs, ts = positive_array(units, "units"), positive_array(seconds, "seconds")
        if xs.size != ts.size:
            raise PartitionError(
                f"{xs.size} units and {ts.size} seconds found; a point needs one of each"
            )
        order = np.argsort(xs, kind="stable")
        xs, ts = xs[order], ts[order]
        if (xs[1:] > xs[:-1]).all():
            return cls(xs, ts, np.ones(xs.size))
        merged: dict[float, tuple[float, float]] = {}
        for x, t in zip(xs.tolist(), ts.tolist(), strict=True):
            merged[x] = _combined(*merged.get(x, (0.0, 0.0)), t)
        means, counts = zip(*merged.values(), strict=True)
        return cls(np.array(list(merged)), np.array(means), np.array(counts))

    def with_point(self, units: float, seconds: float) -> Self:
        """Return a model that knows one more measurement.

        Parameters
        ----------
        units : float
            Measured size, finite and > 0.
        seconds : float
            Its time, finite and > 0.

        Returns
        -------
        PiecewiseLinearModel
            A new model; this one stays as it is.

        Raises
        ------
        PartitionError
            If a value is not finite and > 0.

        Notes
        -----
        A size that was measured before keeps one point: the mean of its first four measurements,
        after that ``mean + (new - mean) / 4``. The mean halves the noise of one measurement;
        the floor of 1/4 lets a worker that changed for good be believed: three rounds carry 58 %
        of the change, eight 90 %.

        Examples
        --------
        >>> model = PiecewiseLinearModel.from_points([10], [2.0])
        >>> model.with_point(10, 4.0).with_point(5, 1.0).points
        (array([ 5., 10.]), array([1., 3.]))
        """
        x = float(positive_array([units], "units")[0])
        t = float(positive_array([seconds], "seconds")[0])
        at = int(np.searchsorted(self.units, x))
        if at < self.units.size and self.units[at] == x:
            means, counts = self.seconds.copy(), self.counts.copy()
            means[at], counts[at] = _combined(float(means[at]), float(counts[at]), t)
            return type(self)(self.units, means, counts)
        return type(self)(
            np.insert(self.units, at, x),
            np.insert(self.seconds, at, t),
            np.insert(self.counts, at, 1.0),
        )

    @property
    def points(self) -> tuple[FloatArray, FloatArray]:
        """The measured (units, seconds), increasing in units, not repaired; read-only."""
        return self.units, self.seconds

    def __repr__(self) -> str:
        low, high = self.units[0], self.units[-1]
        return f"<PiecewiseLinearModel: {self.units.size} points, {low:g} to {high:g} units>"

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
        return np.asarray(np.clip(seconds / pace, knots[k], knots[k + 1]))


def _combined(mean: float, count: float, new: float) -> tuple[float, float]:
    count = min(count + 1.0, MEMORY)
    return mean + (new - mean) / count, count


def _repaired(seconds: FloatArray, counts: FloatArray) -> FloatArray:
    if (seconds[1:] >= seconds[:-1]).all():
        return seconds
    return np.asarray(isotonic_regression(seconds, weights=counts).x)


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
