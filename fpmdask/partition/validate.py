"""Checks of the arguments that all partitioners share; each says what would be accepted."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fpmdask.errors import PartitionError
from fpmdask.models.arrays import numbers

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Limits = Sequence[float | None] | NDArray[Any]

# Whole numbers up to twice this are exact in float64, which the arithmetic on times uses: sums of
# shares that are rounded up go beyond the units.
MAX_UNITS = 2**52
# Speeds, of the fastest one, are no less: their ratios and what follows from them are numbers.
SLOWEST = 1e-100

_REAL = (int, float, np.integer, np.floating)


def check_units(units: float) -> int:
    """Return `units` as an int.

    Parameters
    ----------
    units : int or integral float
        From 1 to 2**52.

    Returns
    -------
    int

    Raises
    ------
    PartitionError
        If it is anything else.

    Examples
    --------
    >>> check_units(1e9)
    1000000000
    """
    return _count(units, "units")


def check_workers(workers: int) -> int:
    """Return the number of workers as an int, refusing anything but an integer of at least 1.

    Parameters
    ----------
    workers : int
        At least 1.

    Returns
    -------
    int

    Raises
    ------
    PartitionError
        If it is anything else.
    """
    found: Any = workers
    if isinstance(found, bool | np.bool_) or not isinstance(found, Integral):
        raise PartitionError(f"workers must be an int of at least 1, got {workers!r}")
    return _count(workers, "workers")


def _count(value: Any, name: str) -> int:
    wanted = f"{name} must be a whole number from 1 to {MAX_UNITS}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, _REAL):
        raise PartitionError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    # the bounds first: no float is as large as an int may be
    if not 1 <= value <= MAX_UNITS or value != math.floor(value):
        raise PartitionError(f"{wanted}, got {value!r}")
    return int(value)


def relative(speeds: FloatArray) -> FloatArray:
    """Return positive speeds in terms of the fastest, at least `SLOWEST`.

    Examples
    --------
    >>> relative(np.array([2.0, 8.0, 1e-320])).tolist()
    [0.25, 1.0, 1e-100]
    """
    return np.asarray(np.maximum(speeds / speeds.max(), SLOWEST))


def check_positive(values: ArrayLike, name: str, workers: int | None = None) -> FloatArray:
    """Return one finite number > 0 per worker as a float64 array.

    Parameters
    ----------
    values : array_like
        In worker order.
    name : str
        What they are, for the message.
    workers : int, optional
        How many are expected; at least one otherwise.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    PartitionError
        If they are not numbers, too few or many, or one of them is not finite and > 0.
    """
    array = check_numbers(values, name, workers)
    good = np.isfinite(array) & (array > 0)
    if not good.all():
        at = int(np.argmin(good))
        raise PartitionError(
            f"{name}[{at}] is {array[at]}; a finite number > 0 is needed: leave worker {at} out"
        )
    return array


def check_numbers(values: ArrayLike, name: str, workers: int | None = None) -> FloatArray:
    """Return one number per worker as a float64 array; any value is accepted.

    Parameters
    ----------
    values : array_like
        In worker order.
    name : str
        What they are, for the message.
    workers : int, optional
        How many are expected; at least one otherwise.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    PartitionError
        If they are not numbers, or too few or many.
    """
    array = numbers(values, name)
    if array.ndim != 1 or array.size == 0:
        raise PartitionError(
            f"{name} has the shape {array.shape}; one number per worker and at least one worker "
            "are needed"
        )
    if workers is not None and array.size != workers:
        raise PartitionError(f"{array.size} {name} found for {workers} workers; give one each")
    return array


def check_limits(limits: Limits | None, workers: int, units: int | None = None) -> FloatArray:
    """Return the most units each worker may get, ``inf`` where there is no limit.

    Parameters
    ----------
    limits : sequence of float or None, optional
        In worker order, at least 0; ``None`` or ``inf`` is no limit, fractions are rounded down.
    workers : int
        How many are expected.
    units : int, optional
        Units that must fit.

    Returns
    -------
    ndarray of float64
        Whole numbers or ``inf``.

    Raises
    ------
    PartitionError
        If a limit is negative or NaN, their number is wrong, or `units` do not fit.

    Examples
    --------
    >>> check_limits([4, None], workers=2)
    array([ 4., inf])
    """
    if limits is None:
        return np.full(workers, np.inf)
    if np.ndim(np.asarray(limits, dtype=object)) != 1:
        raise PartitionError(
            f"limits must be one number or None per worker, got {limits!r}; None for no limits"
        )
    array = check_numbers([np.inf if v is None else v for v in limits], "limits", workers)
    good = array >= 0
    if not good.all():
        at = int(np.argmin(good))
        raise PartitionError(
            f"limits[{at}] is {array[at]}; a number of at least 0, inf or None is needed"
        )
    array = np.floor(array)
    if units is not None:
        check_feasible(units, array)
    return array


def check_feasible(units: int, limits: FloatArray) -> None:
    """Refuse limits that sum to less than `units`.

    Parameters
    ----------
    units : int
        Units that must fit.
    limits : ndarray of float64
        Most units per worker, ``inf`` for no limit.

    Raises
    ------
    PartitionError
        With both numbers.
    """
    room = float(limits.sum())
    if room < units:
        raise PartitionError(
            f"{units} units do not fit: the limits of {limits.size} workers sum to {room:.0f}, "
            f"{units - room:.0f} too few; raise limits, add workers or give fewer units"
        )
