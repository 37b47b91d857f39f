"""Time that follows from a complexity and a speed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import scipy

from fpmdask.errors import PartitionError
from fpmdask.models.arrays import FloatArray, numbers, positive_number
from fpmdask.models.base import Model

Complexity = str | tuple[str, float] | Callable[[FloatArray], FloatArray]

# The speed of a callable complexity at 0 and at infinity is read this near to them.
_NEAR_ZERO, _FAR = 2.0**-20, 2.0**53
# Halvings at most: beside 0 there is no end of them.
_HALVINGS = 64


@dataclass(frozen=True, eq=False, init=False)
class AnalyticModel(Model):
    """A worker whose time is ``complexity(units) / speed``.

    Parameters
    ----------
    complexity : {"linear", "nlogn"}, ("power", beta) or callable
        Operations that a number of units needs: x; x ln x above e and x below, so that it
        increases; x**beta with beta > 0; or a non-decreasing function of float64 arrays, at least
        0 everywhere, ``inf`` where no worker can do so many units.
    speed : float
        Operations per second, finite and > 0.

    Raises
    ------
    PartitionError
        If the complexity is none of these or the speed is not finite and > 0; later, if a callable
        returns something else than numbers of at least 0.

    Notes
    -----
    The named complexities are inverted in closed form (x ln x = y at y / W(y), W Lambert's
    function), a callable one by doubling and halving for all arguments at once. A callable
    cannot be stored as JSON, and is equal only to itself.

    References
    ----------
    C. Cérin, J.-C. Dubacq, J.-L. Roch (2006), Methods for Partitioning Data to Improve Parallel
    Execution Time for Sorting on Heterogeneous Clusters.

    Examples
    --------
    >>> AnalyticModel(("power", 2), 10.0).units_within(40.0)
    20.0
    """

    kind: ClassVar[str] = "analytic"

    complexity: Complexity
    rate: float

    def __init__(self, complexity: Complexity, speed: float) -> None:
        object.__setattr__(self, "complexity", _checked(complexity))
        object.__setattr__(self, "rate", positive_number(speed, "speed"))

    def _operations(self, units: FloatArray) -> FloatArray:
        match self.complexity:
            case "linear":
                return units
            case "nlogn":
                return np.where(units > np.e, units * np.log(np.maximum(units, np.e)), units)
            case ("power", beta):
                return np.asarray(units ** float(beta))
            case function:
                assert callable(function)
                return _called(function, units)

    def _time(self, units: FloatArray) -> FloatArray:
        return self._operations(units) / self.rate

    def _speed(self, units: FloatArray) -> FloatArray:
        match self.complexity:
            case "linear":
                return np.full(units.shape, self.rate)
            case "nlogn":
                return self.rate / np.log(np.maximum(units, np.e))
            case ("power", beta):
                with np.errstate(divide="ignore"):
                    return np.asarray(self.rate * units ** (1.0 - float(beta)))
            case _:
                near = np.clip(units, _NEAR_ZERO, _FAR)
                with np.errstate(divide="ignore"):
                    return near / self._time(near)

    def _units_within(self, seconds: FloatArray) -> FloatArray:
        operations = seconds * self.rate
        match self.complexity:
            case "linear":
                return operations
            case "nlogn":
                most = np.clip(operations, np.e, np.finfo(float).max)
                log = scipy.special.lambertw(most).real
                above = np.where(np.isinf(operations), np.inf, most / log)
                return np.where(operations > np.e, above, operations)
            case ("power", beta):
                with np.errstate(over="ignore"):
                    return np.asarray(operations ** (1.0 / float(beta)))
            case _:
                return self._inverted(operations)

    def _inverted(self, operations: FloatArray) -> FloatArray:
        high = np.ones(operations.shape)
        while (more := np.isfinite(high) & (self._operations(high) <= operations)).any():
            # No computer does 1e300 units: beyond, any number is fast enough.
            high = np.where(more, np.where(high > 1e300, np.inf, np.minimum(high, 1e300) * 4), high)
        unbounded = np.isinf(high)
        high = np.where(unbounded, 0.0, high)
        low = np.where(high > 1, high / 4, 0.0)
        for _ in range(_HALVINGS):
            middle = low + (high - low) / 2
            if not ((low < middle) & (middle < high)).any():
                break
            fits = self._operations(middle) <= operations
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return np.where(unbounded, np.inf, low)


def _checked(complexity: Any) -> Complexity:
    match complexity:
        case "linear" | "nlogn":
            return str(complexity)
        case ("power", int() | float() | np.number() as beta) if not isinstance(beta, bool):
            return "power", positive_number(float(beta), "the exponent of the complexity")
        case _ if callable(complexity):
            return cast(Complexity, complexity)
    raise PartitionError(
        f"unknown complexity {complexity!r}; allowed are 'linear', 'nlogn', ('power', beta) "
        "with beta > 0, or a function of an array of units"
    )


def _called(function: Callable[[FloatArray], FloatArray], units: FloatArray) -> FloatArray:
    finite = np.isfinite(units)
    sizes = np.where(finite, units, 1.0)
    with np.errstate(over="ignore"):
        try:
            returned = function(sizes)
        except TypeError as error:
            raise PartitionError(
                f"the complexity cannot be called with an array of units ({error}); "
                "numpy.vectorize makes it so"
            ) from error
        result = numbers(returned, "what the complexity returned")
    if result.shape != units.shape:
        raise PartitionError(
            f"the complexity returned the shape {result.shape} for {units.shape}; it must work "
            "element by element on an array (numpy.vectorize makes it so)"
        )
    if result.size and not result.min() >= 0:
        at = ~(result >= 0)
        raise PartitionError(
            f"the complexity returned {result[at].flat[0]} for {sizes[at].flat[0]:g} units; "
            "numbers of at least 0 are allowed"
        )
    return np.where(finite, result, np.inf)
