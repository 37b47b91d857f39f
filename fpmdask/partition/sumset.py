"""Sums of two sets of small integers, by bit shifts over runs or by convolution."""

import numpy as np
import scipy
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]

# A shifted OR of a thousand sums costs about as much as 1/3 of a microsecond per run, the
# transform of as many about 30 microseconds: shifts win up to about this many runs.
_MAX_RUNS = 1000


def runs(members: BoolArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where each run of consecutive members starts, and its length.

    Parameters
    ----------
    members : ndarray of bool
        ``members[x]`` says whether x is in the set.

    Returns
    -------
    starts, lengths : ndarray of int

    Examples
    --------
    >>> starts, lengths = runs(np.array([True, False, True, True]))
    >>> starts.tolist(), lengths.tolist()
    ([0, 2], [1, 2])
    """
    padded = np.zeros(members.size + 2, dtype=np.int8)
    padded[1:-1] = members
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    return edges[::2], edges[1::2] - edges[::2]


def sumset(left: BoolArray, right: BoolArray, size: int) -> BoolArray:
    """Return which sums a + b < `size` exist with a in `left` and b in `right`.

    Parameters
    ----------
    left, right : ndarray of bool
        Members of the two sets, at most `size` long.
    size : int
        Length of the result; larger sums are left out.

    Returns
    -------
    ndarray of bool
        `size` entries.

    Notes
    -----
    With r runs in the set that has fewer, O(min(r size / 64, size log size)): one set is a big
    integer that is shifted and OR-ed once per run of the other. A run of length L needs the OR of
    L consecutive shifts, which doubling makes in log L steps, shared by all runs of any length.
    Where both sets consist of very many runs a convolution counts the pairs instead; the counts
    are below 2**53 by far, so that rounding cannot change whether one is zero.

    Examples
    --------
    >>> sumset(np.array([True, False, True]), np.array([True, True]), 5).astype(int)
    array([1, 1, 1, 1, 0])
    """
    (a_starts, a_lengths), (b_starts, b_lengths) = runs(left), runs(right)
    if a_starts.size < b_starts.size:
        left, right, b_starts, b_lengths = right, left, a_starts, a_lengths
    if b_starts.size > _MAX_RUNS:
        return _convolved(left, right, size)
    order = np.argsort(b_lengths, kind="stable")
    spread, width, total = _packed(left), 1, 0
    for start, length in zip(b_starts[order].tolist(), b_lengths[order].tolist(), strict=True):
        while width < length:
            step = min(width, length - width)
            spread |= spread << step
            width += step
        total |= spread << start
    return _unpacked(total & ((1 << size) - 1), size)


def _convolved(left: BoolArray, right: BoolArray, size: int) -> BoolArray:
    transform = scipy.fft.rfft
    length = scipy.fft.next_fast_len(left.size + right.size - 1, real=True)
    pairs = scipy.fft.irfft(transform(left, length) * transform(right, length), length)[:size] > 0.5
    return np.concatenate([pairs, np.zeros(size - pairs.size, dtype=np.bool_)])


def _packed(members: BoolArray) -> int:
    return int.from_bytes(np.packbits(members, bitorder="little").tobytes(), "little")


def _unpacked(bits: int, size: int) -> BoolArray:
    data = np.frombuffer(bits.to_bytes((size + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(data, count=size, bitorder="little").view(np.bool_)
