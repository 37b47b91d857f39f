"""How well predicted seconds agree with measured ones."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fpmdask.errors import PartitionError
from fpmdask.mheta.checks import FloatArray

Values = NDArray[Any] | Sequence[float]


@overload
def accuracy(predicted: float, measured: float) -> float: ...
@overload
def accuracy(predicted: Values, measured: Values) -> FloatArray: ...
def accuracy(predicted: float | Values, measured: float | Values) -> float | FloatArray:
    """Return the accuracy of a prediction: 1 if it is right, 0 if it is off by a factor of two.

    Parameters
    ----------
    predicted, measured : float or array_like of float
        Seconds, finite and > 0; both of one shape.

    Returns
    -------
    float or ndarray
        1 − |predicted − measured| / min(predicted, measured), at most 1 and not bounded below.

    Raises
    ------
    PartitionError
        If a value is not finite and > 0, or the shapes differ.

    References
    ----------
    M. Nakazawa, D. K. Lowenthal, W. Zhou (2005), The MHETA Execution Model for Heterogeneous
    Clusters, section 5.2.1.

    Examples
    --------
    >>> accuracy(98.0, 100.0) == accuracy(100.0, 98.0) == 1 - 2 / 98
    True
    >>> accuracy([1.0, 2.0], [1.0, 1.0])
    array([1., 0.])
    """
    one, other = _seconds(predicted, "predicted"), _seconds(measured, "measured")
    if one.shape != other.shape:
        raise PartitionError(
            f"predicted has the shape {one.shape}, measured {other.shape}; give one for each"
        )
    found = 1 - np.abs(one - other) / np.minimum(one, other)
    return float(found) if found.ndim == 0 else np.asarray(found)


def _seconds(values: float | Values, name: str) -> FloatArray:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (OverflowError, TypeError, ValueError):
        raise PartitionError(f"{name} must be seconds, got {values!r}") from None
    good = np.isfinite(found) & (found > 0)
    if not good.all():
        raise PartitionError(
            f"{name} has {found[~good].flat[0]} s; finite seconds > 0 are allowed: leave "
            "infeasible distributions out"
        )
    return found
