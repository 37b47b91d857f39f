"""Stable orders of 64-bit words: their first bits are sorted together with their numbers.

NumPy sorts words several times as fast as it finds an order of them. The bits for which there is
no room beside the numbers are looked at where the others are equal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

# Words that are compared at once: what is made of so few on the way stays in the cache.
BLOCK = 1 << 14
# Of many words no larger part is looked at again by its last bits: that takes memory.
MANY, FEW = 1 << 20, 1 / 16


def packed_order(
    words: Words, *, many: int = MANY
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the stable order of words, and which of them in that order equal the next one.

    Parameters
    ----------
    words : ndarray of uint64
        Fewer than 2³²; they are not changed.
    many : int
        So many words that an order of a large part of them is not made a second time.

    Returns
    -------
    ndarray of intp
        A permutation of n.
    ndarray of bool
        n - 1 of them.

    Notes
    -----
    O(n log n), and of more than `many` words twice as many more in memory at most: where many
    of them are equal but for the bits that are left out, all are ordered by `numpy.argsort`.

    Examples
    --------
    >>> order, same = packed_order(np.array([7, 1 << 63, 7, 0], np.uint64))
    >>> order.tolist(), same.tolist()
    ([3, 0, 2, 1], [False, True, False])
    """
    if words.size < 2:
        return np.arange(words.size), np.zeros(0, np.bool_)
    bits = int(words.size - 1).bit_length()
    base = words.min()
    packed = words - base
    spread = int(np.bitwise_or.reduce(packed))
    zeros = max(0, (spread & -spread).bit_length() - 1)  # last bits that no word has
    shift = max(zeros, spread.bit_length() - (64 - bits))
    packed >>= np.uint64(shift)
    packed <<= np.uint64(bits)
    packed |= np.arange(words.size, dtype=np.uint64)
    packed.sort()
    same = np.empty(words.size - 1, np.bool_)
    for low in range(0, same.size, BLOCK):
        pair = packed[low : low + BLOCK + 1]
        same[low : low + BLOCK] = (pair[1:] ^ pair[:-1]) >> np.uint64(bits) == 0
    ties = int(np.count_nonzero(same)) if shift > zeros else 0  # of words that may differ
    if words.size > many and ties > FEW * words.size:
        del packed, pair, same
        order = np.argsort(words, kind="stable")
        found = words[order]
        return order, found[1:] == found[:-1]
    packed &= np.uint64((1 << bits) - 1)
    order = packed.view(np.intp)
    if ties:
        members, group = groups(same)
        chosen = order[members]
        dropped = words[chosen] - base & np.uint64((1 << shift) - 1)
        finer, equal = packed_order(group << np.uint64(shift) | dropped, many=many)
        order[members] = chosen[finer]
        same = np.zeros_like(same)
        same[members[:-1][equal]] = True  # members of one group are next to each other
    return order, same


def groups(same: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], Words]:
    """Return where words are that equal one beside them, and a number for each such group.

    Examples
    --------
    >>> members, group = groups(np.array([True, False, False, True]))
    >>> members.tolist(), group.tolist()
    ([0, 1, 3, 4], [1, 1, 2, 2])
    """
    before, after = np.append(False, same), np.append(same, False)
    members = np.flatnonzero(before | after)
    return members, np.cumsum(~before[members]).astype(np.uint64)


def ordered_words(keys: npt.NDArray[np.generic]) -> Words | None:
    """Return words that are in order as keys are, and equal where these are; None for other dtypes.

    Parameters
    ----------
    keys : ndarray
        Booleans, integers, floats of up to 64 bits, dates or durations, in any byte order. NaN and
        NaT come last, and -0.0 equals 0.0, as NumPy has them.

    Examples
    --------
    >>> ordered_words(np.array([np.nan, -1.0, -0.0, 0.0])).argsort(kind="stable").tolist()
    [1, 2, 3, 0]
    >>> ordered_words(np.array(["x"])) is None
    True
    """
    kind, itemsize = keys.dtype.kind, keys.dtype.itemsize
    top = np.uint64(1 << 63)
    if kind in "bu":
        return keys.astype(np.uint64)
    if kind == "i":
        return keys.astype(np.int64).view(np.uint64) ^ top
    if kind in "mM":
        # NaT is the least number: one less than that is the greatest
        return (keys.astype(keys.dtype.newbyteorder("=")).view(np.uint64) ^ top) - np.uint64(1)
    if kind != "f" or itemsize > 8:
        return None
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        floats: npt.NDArray[np.floating] = keys.astype(np.float64 if itemsize == 8 else np.float32)
        floats += floats.dtype.type(0)  # -0.0 becomes 0.0
    if itemsize == 8:
        bits = floats.view(np.uint64)
        bits ^= (bits.view(np.int64) >> 63).view(np.uint64) | top  # all of a negative one's
        bits[np.isnan(keys)] = np.iinfo(np.uint64).max
        return bits
    half = floats.view(np.uint32)
    half ^= (half.view(np.int32) >> 31).view(np.uint32) | np.uint32(1 << 31)
    half[np.isnan(keys)] = np.iinfo(np.uint32).max
    return half.astype(np.uint64)
