"""Checked float64 arrays: what every model does with its arguments."""

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fpmdask.errors import PartitionError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def domain(values: float | ArrayLike, name: str) -> FloatArray:
    """Return `values` as float64, refusing what is negative or not a number."""
    array = numbers(values, name)
    if array.size and not array.min() >= 0:
        bad = array[~(array >= 0)].flat[0]
        raise PartitionError(f"{name} must be at least 0, got {bad}; pass 0 to inf")
    return array


def unwrap(result: FloatArray, argument: FloatArray) -> float | FloatArray:
    """Return a float for a scalar argument and the array otherwise."""
    return float(result) if argument.ndim == 0 else result


def numbers(values: Any, name: str) -> FloatArray:
    """Return numbers of any shape as float64, refusing strings, booleans and everything else."""
    found = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    if found.dtype == object:
        good = all(isinstance(v, Real) and not isinstance(v, bool) for v in found.flat)
    else:
        good = found.dtype.kind in "iuf"
    if not good:
        raise PartitionError(f"{name} must be numbers, got {values!r}")
    return found.astype(np.float64, copy=False)


def frozen_array(values: ArrayLike, name: str) -> FloatArray:
    """Return a read-only one-dimensional float64 copy of `values`."""
    array = np.array(numbers(values, name))
    if array.ndim != 1:
        raise PartitionError(f"{name} must be a sequence of numbers, got {values!r}")
    array.flags.writeable = False
    return array.view()  # a view of what is read-only cannot be made writeable again


def positive_array(values: ArrayLike, name: str) -> FloatArray:
    """Return `frozen_array`, refusing an empty one and values that are not finite and > 0."""
    array = frozen_array(values, name)
    if array.size == 0:
        raise PartitionError(f"{name} is empty; a model needs at least one measured point")
    good = (array > 0) & np.isfinite(array)
    if not good.all():
        at = int(np.argmin(good))
        raise PartitionError(
            f"{name}[{at}] is {array[at]}; finite numbers > 0 are allowed: leave such points out"
        )
    return array


def positive_number(value: Any, name: str) -> float:
    """Return `value` as a float, refusing what is not finite and > 0."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not 0 < float(value) < np.inf:
        raise PartitionError(f"{name} must be a finite number > 0, got {value!r}")
    return float(value)
