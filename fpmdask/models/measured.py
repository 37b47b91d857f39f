"""Models of measured points: how points are checked, combined and repaired."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.models.arrays import FloatArray, positive_array
from fpmdask.models.base import Model

# A size measured again moves its mean by at least 1/MEMORY of the difference: the plain mean of
# the first four (its standard error is then half of one measurement's), a moving one afterwards,
# so that a worker that changed its speed for good is believed after a few rounds.
MEMORY = 4


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class MeasuredModel(Model):
    """A model through measured points; subclasses say what lies between them.

    Parameters
    ----------
    units : array_like of float
        Measured sizes, increasing, finite and > 0.
    seconds : array_like of float
        Mean measured time of each size, finite and > 0.
    counts : array_like of float
        How many measurements each mean stands for, at most `MEMORY`.

    Raises
    ------
    PartitionError
        If there is no point, the lengths differ, or a value is not allowed; also where units per
        second, or seconds per unit, are too large for a float.
    """

    units: FloatArray
    seconds: FloatArray
    counts: FloatArray

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
        with np.errstate(over="ignore"):
            fine = np.isfinite(units / seconds) & np.isfinite(seconds / units)
        if not fine.all():
            at = int(np.argmin(fine))
            raise PartitionError(
                f"{units[at]} units in {seconds[at]} s are no speed; check the units of both"
            )
        if (counts > MEMORY).any():
            raise PartitionError(f"counts[{int(np.argmax(counts))}] is above {MEMORY}, the most")
        for name, value in (("units", units), ("seconds", seconds), ("counts", counts)):
            object.__setattr__(self, name, value)
        self._prepare(_repaired(seconds, counts))

    @abstractmethod
    def _prepare(self, times: FloatArray) -> None:
        """Derive the curve through the points with their repaired, non-decreasing times."""

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
        MeasuredModel

        Raises
        ------
        PartitionError
            If there is no point, the lengths differ, or a value is not allowed.

        Examples
        --------
        >>> from fpmdask.models import PiecewiseLinearModel
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
        MeasuredModel
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
        >>> from fpmdask.models import PiecewiseLinearModel
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
        return f"<{type(self).__name__}: {self.units.size} points, {low:g} to {high:g} units>"


def _combined(mean: float, count: float, new: float) -> tuple[float, float]:
    count = min(count + 1.0, MEMORY)
    return mean + (new - mean) / count, count


def _repaired(seconds: FloatArray, counts: FloatArray) -> FloatArray:
    if (seconds[1:] >= seconds[:-1]).all():
        return seconds
    return np.asarray(scipy.optimize.isotonic_regression(seconds, weights=counts).x)
