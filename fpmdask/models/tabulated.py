"""One time per number of units, of any shape."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.models.arrays import FloatArray, frozen_array
from fpmdask.models.base import Model


@dataclass(frozen=True, eq=False, repr=False)
class TabulatedModel(Model):
    """Times by number of units; they may fall, jump and be ``inf``.

    Parameters
    ----------
    seconds : array_like of float
        ``seconds[x]`` is the time of x units, at least 0; ``inf`` where it is not possible.
        Index 0 is the cost of no units. The worker can take at most ``len(seconds) - 1``.

    Raises
    ------
    PartitionError
        If there are fewer than two entries, or one is negative or NaN.

    Notes
    -----
    Between whole numbers the time is linear (``inf`` next to an ``inf``); beyond the table it is
    ``inf``. `units_within` is the *last* crossing, found in the running minimum from the right,
    and the largest possible number of units for ``inf`` seconds.

    Examples
    --------
    >>> model = TabulatedModel([0, 3, 1, 4])
    >>> model.time(1.5), model.units_within(2.5), model.nondecreasing
    (2.0, 2.5, False)
    """

    kind: ClassVar[str] = "tabulated"

    seconds: FloatArray
    lowest: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        seconds = frozen_array(self.seconds, "seconds")
        if seconds.size < 2:
            raise PartitionError(
                f"a table of {seconds.size} entries found; it needs the times of 0 and of 1 unit"
            )
        good = seconds >= 0
        if not good.all():
            at = int(np.argmin(good))
            raise PartitionError(f"seconds[{at}] is {seconds[at]}; 0 to inf is allowed")
        lowest = np.minimum.accumulate(seconds[::-1])[::-1]
        lowest.flags.writeable = False
        object.__setattr__(self, "seconds", seconds)
        object.__setattr__(self, "lowest", lowest)

    @property
    def nondecreasing(self) -> bool:
        """Whether no number of units takes less time than a smaller one."""
        return bool((self.lowest == self.seconds).all())

    def __repr__(self) -> str:
        return f"<TabulatedModel: 0 to {self.seconds.size - 1} units>"

    def _time(self, units: FloatArray) -> FloatArray:
        last = self.seconds.size - 1
        low = np.minimum(np.floor(units), last).astype(np.int64)
        part = np.minimum(units, last) - low
        first, second = self.seconds[low], self.seconds[np.minimum(low + 1, last)]
        with np.errstate(invalid="ignore"):
            between = np.where(np.isinf(first), np.inf, first + part * (second - first))
        return np.where(units > last, np.inf, np.where(part == 0, first, between))

    def _speed(self, units: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            speed = units / self._time(units)
            at_zero = 1.0 / self.seconds[1] if self.seconds[0] == 0 else np.float64(0.0)
        speed = np.where(np.isinf(units), 0.0, speed)
        return np.where(units == 0, at_zero, speed)

    def _units_within(self, seconds: FloatArray) -> FloatArray:
        last = self.seconds.size - 1
        finite = np.minimum(seconds, np.finfo(float).max)
        low = np.searchsorted(self.lowest, finite, side="right") - 1
        first = self.seconds[low]  # any where low is -1, nothing being fast enough
        second = self.seconds[np.minimum(low + 1, last)]
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(np.isinf(second), 0.0, (finite - first) / (second - first))
        # rounding must not reach the next whole number, which takes longer than `seconds`
        units = np.minimum(low + part, np.nextafter(low + 1.0, 0.0))
        return np.where(low < 0, 0.0, np.where(low >= last, float(last), units))
