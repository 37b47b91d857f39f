"""One speed for any number of units: the constant performance model."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fpmdask.models.arrays import FloatArray, positive_number
from fpmdask.models.base import Model


@dataclass(frozen=True, eq=False, init=False)
class ConstantModel(Model):
    """A worker that does every unit at the same speed.

    Parameters
    ----------
    speed : float
        Units per second, finite and > 0.

    Raises
    ------
    PartitionError
        If the speed is not finite and > 0.

    Examples
    --------
    >>> ConstantModel(4.0).time([2, 6])
    array([0.5, 1.5])
    """

    kind: ClassVar[str] = "constant"

    units_per_second: float

    def __init__(self, speed: float) -> None:
        object.__setattr__(self, "units_per_second", positive_number(speed, "speed"))

    def _time(self, units: FloatArray) -> FloatArray:
        return units / self.units_per_second

    def _units_within(self, seconds: FloatArray) -> FloatArray:
        return seconds * self.units_per_second

    def _speed(self, units: FloatArray) -> FloatArray:
        return np.full(units.shape, self.units_per_second)
