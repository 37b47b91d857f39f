"""Keys of one or more words of 64 bits that end in row numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

# A key has so many words at most.
MOST_WORDS = 8
# A cut key is as good as the whole one where so few others have the prefix of a row, on average.
FEW_TIES = 0.05


def packed(
    parts: Iterable[tuple[np.ndarray, int]], rows: np.ndarray, words: int, row_bits: int
) -> np.ndarray:
    """Return keys of so many words; the last `row_bits` of them are the row numbers.

    Parameters
    ----------
    parts : iterable of (ndarray of uint64, int)
        Bits of the columns, most significant first; those that do not fit are left out.
    rows : ndarray of int
        Less than ``2**row_bits``.

    Returns
    -------
    ndarray
        uint64, or byte strings of 8 · words.

    Examples
    --------
    >>> bits = np.array([5, 1], np.uint64), 3
    >>> packed([bits], np.arange(2), 1, 1).tolist()
    [11529215046068469760, 2305843009213693953]
    """
    made = np.zeros((rows.size, words), np.uint64)
    room, at = 64 * words - row_bits, 0
    for values, bits in parts:
        left = min(bits, room - at)
        values = values >> np.uint64(bits - left) if left else values
        while left:
            word, used = divmod(at, 64)
            here = min(left, 64 - used)
            piece = values >> np.uint64(left - here) & np.uint64((1 << here) - 1)
            made[:, word] |= piece << np.uint64(64 - used - here)
            at, left = at + here, left - here
        if at == room:
            break
    made[:, -1] |= rows.astype(np.uint64)
    return made[:, 0] if words == 1 else made.astype(">u8").view(f"S{8 * words}")[:, 0]


def row_numbers(keys: np.ndarray, row_bits: int) -> np.ndarray:
    """Return the rows of keys, int64.

    Examples
    --------
    >>> for words in (1, 2):
    ...     row_numbers(packed([], np.array([7, 9]), words, 4), 4).tolist()
    [7, 9]
    [7, 9]
    """
    mask = np.uint64((1 << row_bits) - 1)
    return (_matrix(keys)[:, -1].astype(np.uint64, copy=False) & mask).view(np.int64)


def prefixes(keys: np.ndarray, row_bits: int) -> np.ndarray:
    """Return keys without their row numbers, as rows × words of uint64."""
    made = _matrix(keys).astype(np.uint64)
    made[:, -1] &= ~np.uint64((1 << row_bits) - 1)
    return made


def same_prefixes(keys: np.ndarray, row_bits: int) -> np.ndarray:
    """Tell of each key whether the one before it differs in the row number only.

    Examples
    --------
    >>> for words in (1, 2):
    ...     keys = packed([(np.array([1, 1, 2], np.uint64), 2)], np.arange(3), words, 4)
    ...     same_prefixes(keys, 4).tolist()
    [False, True, False]
    [False, True, False]
    """
    words = _matrix(keys)
    same = np.zeros(len(keys), bool)
    last = words[:, -1].astype(np.uint64, copy=False)
    np.less(last[1:] ^ last[:-1], np.uint64(1 << row_bits), out=same[1:])
    for word in range(words.shape[1] - 1):
        same[1:] &= words[1:, word] == words[:-1, word]
    return same


def _matrix(keys: np.ndarray) -> np.ndarray:
    if keys.dtype.kind == "u":
        return keys.reshape(-1, 1)
    return np.ascontiguousarray(keys).view(">u8").reshape(keys.size, -1)


def words_needed(sample: np.ndarray, bits: int, row_bits: int, rows: int) -> int:
    """Return how many words keys should have.

    Parameters
    ----------
    sample : ndarray
        Keys of `MOST_WORDS` with a row number of no bits, of some of the rows.
    bits, row_bits : int
        Of all columns, and of the row numbers.
    rows : int
        In all.

    Returns
    -------
    int
        As few as leave rows apart from each other, by the sample: of r rows another one has the
        same prefix as often as two of the sample have. Otherwise as many as hold all bits, or
        `MOST_WORDS`.
    """
    exact = min(MOST_WORDS, -(-(bits + row_bits) // 64))
    for words in range(1, exact):
        cut = np.ascontiguousarray(prefixes(sample, 0)[:, :words])
        cut[:, -1] &= ~np.uint64((1 << row_bits) - 1)
        _, counts = np.unique(cut.view(f"V{8 * words}"), return_counts=True)
        pairs = int((counts * (counts - 1)).sum())
        if pairs * rows <= FEW_TIES * sample.size**2:
            return words
    return exact
