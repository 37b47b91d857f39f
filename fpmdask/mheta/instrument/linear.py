"""Least squares of seconds = overhead + seconds per byte · bytes, with outliers tamed."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.errors import PartitionError
from fpmdask.mheta.checks import BoolArray, FloatArray

# Sizes whose seconds are less than this share of the longest weigh as if they had it.
LEAST = 1e-6
# A call that takes so many times what the others allow is left out: noise of tens of percent stays
# in, a hiccup of ten times goes.
OUTLIER = 3.0


def robust_line(
    nbytes: ArrayLike,
    seconds: ArrayLike,
    where: str,
    overhead: float | None = None,
    known: Iterable[tuple[float, float]] = (),
) -> tuple[float, float]:
    """Return overhead and seconds per byte of calls, both at least 0.

    Parameters
    ----------
    nbytes, seconds : array_like of float, shape [n]
        Bytes and seconds of each call, at least one call; a median below 0 counts as 0 (seconds
        that are differences of others may be).
    where : str
        What is fitted, for the error.
    overhead : float, optional
        Seconds of a call whatever its size, at least 0; used if all calls have one size.
    known : iterable of (float, float)
        Bytes and seconds of more calls, none of which is an outlier.

    Returns
    -------
    tuple of float
        Seconds per call, seconds per byte.

    Raises
    ------
    PartitionError
        If all calls have one size, not of 0 bytes, and neither `overhead` nor `known` is given.

    Notes
    -----
    Outliers are tamed twice. A call of y seconds and x bytes allows y · max(1, x′ / x) seconds for
    x′ bytes, since neither figure is negative; a call that takes more than `OUTLIER` times the
    median of what all calls allow it is left out, which finds one outlier among three calls also
    where each has its own size. The others count with the median of the calls of their size.

    The squares are those of the *relative* deviations: the noise of a timing is about proportional
    to it, and short calls, which tell the overhead, count as much as long ones. O(n m) for n calls
    of m sizes. Where the line leaves what is possible:

    1. A negative overhead becomes 0, and seconds per byte Σ seconds / Σ nbytes.
    2. Seconds per byte below 0 become 0, and the overhead the mean. The contract is silent here.
    3. One size: seconds per byte are (median − overhead) / size, not below 0. Where outliers leave
       one size, or `known` calls have that one, too, and `overhead` is not given, it is 0.

    Examples
    --------
    >>> overhead, per_byte = robust_line([100, 100, 100, 300], [3.0, 3.0, 99.0, 5.0], "reads")
    >>> round(overhead, 12), round(per_byte, 12)
    (2.0, 0.01)
    >>> robust_line([100, 100], [3.0, 3.0], "reads", overhead=1.0)
    (1.0, 0.02)
    """
    size_of, seconds_of = np.asarray(nbytes, np.float64), np.asarray(seconds, np.float64)
    kept, more = _possible(size_of, seconds_of), [*known]
    moved = np.append(size_of[kept], [size for size, _ in more])
    found = np.append(seconds_of[kept], [took for _, took in more])
    sizes, kind, counts = np.unique(moved, return_inverse=True, return_counts=True)
    medians = np.array([max(0.0, np.median(found[kind == k])) for k in range(sizes.size)])
    if sizes.size == 1 and overhead is None and (more or (size_of != sizes[0]).any()):
        overhead = 0.0
    if sizes.size == 1:
        return _one_size(float(sizes[0]), float(medians[0]), where, overhead)
    longest = float(medians.max())
    if longest == 0:
        return 0.0, 0.0
    weights = counts / np.maximum(medians / longest, LEAST) ** 2
    weights /= weights.sum()
    size, time = float(weights @ sizes), float(weights @ medians)
    off = sizes - size
    slope = float(weights @ (off * (medians - time)) / (weights @ off**2))
    if slope < 0:
        return float(counts @ medians / counts.sum()), 0.0
    constant = time - slope * size
    if constant < 0:
        return 0.0, float(counts @ medians / (counts @ sizes))
    return constant, slope


def _possible(nbytes: FloatArray, seconds: FloatArray) -> BoolArray:
    """Return which calls do not take far longer than the others allow."""
    sizes, kind = np.unique(nbytes, return_inverse=True)
    empty = nbytes == 0
    divisors = np.where(empty, 1.0, nbytes)
    above = seconds > 0  # differences of others may be below
    if not above.any():
        return np.ones(seconds.shape, dtype=np.bool_)
    allowed = []
    for size in sizes:
        most = seconds * np.maximum(1.0, size / divisors)
        most[empty & (size > 0)] = np.inf  # what moves nothing says nothing of seconds per byte
        allowed.append(np.median(most[above]))
    return seconds <= OUTLIER * np.array(allowed)[kind]


def _one_size(
    size: float, median: float, where: str, overhead: float | None
) -> tuple[float, float]:
    if size == 0:
        return median, 0.0
    if overhead is None:
        raise PartitionError(
            f"{where}: all move {size:g} bytes, from which overhead and seconds per byte cannot be "
            "told apart; use two sizes, or give the overhead in the benchmarks"
        )
    return overhead, max(0.0, (median - overhead) / size)
