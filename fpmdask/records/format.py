"""100-byte records with a 10-byte binary key: their order, their sums."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from fpmdask.packing import groups, packed_order

RECORD_NBYTES = 100
KEY_NBYTES = 10
KEY = np.dtype(f"S{KEY_NBYTES}")

Records = npt.NDArray[np.uint8]  # n × 100

# Records per step of what is done word by word: the step's words stay in the cache.
STEP = 8192


@dataclass(frozen=True)
class File:
    """A file of whole records: its path or URL, its length in bytes, what tells its version."""

    path: str
    nbytes: int
    stamp: str

    @property
    def records(self) -> int:
        """How many records it holds."""
        return self.nbytes // RECORD_NBYTES


def keys(records: Records) -> npt.NDArray[np.bytes_]:
    """Return the keys of n records as n byte strings, a view: they compare as the bytes do.

    Parameters
    ----------
    records : ndarray of uint8
        n × 100, contiguous.

    Examples
    --------
    >>> bytes(keys(np.full((1, 100), 65, np.uint8))[0])
    b'AAAAAAAAAA'
    """
    found: npt.NDArray[np.bytes_] = records[:, :KEY_NBYTES].view(KEY)[:, 0]
    return found


def order(records: Records) -> npt.NDArray[np.intp]:
    """Return the order of records by their keys, equal ones as they were.

    Parameters
    ----------
    records : ndarray of uint8
        n × 100, n < 2³².

    Returns
    -------
    ndarray of intp
        A permutation of n.

    Notes
    -----
    The key's first bits and the record's number are packed into one word, and words are sorted in
    place: two to four times as fast as an order of keys. Bits for which there was no room are
    compared where the others are equal. O(n log n).

    Examples
    --------
    >>> records = np.zeros((3, 100), np.uint8)
    >>> records[:, 9] = [5, 0, 5]
    >>> order(records).tolist()
    [1, 0, 2]
    """
    first = np.ascontiguousarray(records[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    found, same = packed_order(first)
    if same.any():
        members, group = groups(same)
        chosen = found[members]
        last = records[chosen, 8].astype(np.uint64) << np.uint64(8) | records[chosen, 9]
        finer, _ = packed_order(group << np.uint64(16) | last)
        found[members] = chosen[finer]
    return found


def out_of_order(records: Records) -> npt.NDArray[np.intp]:
    """Return the numbers of records whose key is less than that of the record before.

    Examples
    --------
    >>> records = np.zeros((3, 100), np.uint8)
    >>> records[:, 9] = [5, 0, 5]
    >>> out_of_order(records).tolist()
    [1]
    """
    first = np.ascontiguousarray(records[:, :8]).view(">u8")[:, 0]
    last = np.ascontiguousarray(records[:, 8:10]).view(">u2")[:, 0]
    less = first[1:] < first[:-1]
    less |= (first[1:] == first[:-1]) & (last[1:] < last[:-1])
    return np.flatnonzero(less) + 1


def checksum(records: Records) -> int:
    """Return the sum of the CRC-32 of all records, as the sort benchmark's programs do.

    Parameters
    ----------
    records : ndarray of uint8
        n × 100, contiguous.

    Notes
    -----
    O(n), 0.2 µs per record, outside the GIL: the CRCs of many records go forward together, word by
    word, each half of a word by a table.

    Examples
    --------
    >>> records = np.arange(300, dtype=np.uint8).reshape(3, 100)
    >>> checksum(records) == sum(zlib.crc32(record) for record in records)
    True
    """
    total = 0
    low, high = _table(0), _table(16)
    for at in range(0, len(records), STEP):
        words = np.ascontiguousarray(records[at : at + STEP].view("<u4").T)
        count = words.shape[1]
        state = np.full(count, 0xFFFFFFFF, "<u4")
        changed = np.empty_like(state)
        halves = np.empty((2, count), np.intp)
        for word in words:
            state ^= word
            halves[...] = state.view("<u2").reshape(count, 2).T
            np.take(low, halves[0], out=changed, mode="clip")
            np.take(high, halves[1], out=state, mode="clip")
            state ^= changed
        state ^= np.uint32(0xFFFFFFFF)
        total += int(state.sum(dtype=np.uint64))
    return total


@cache
def _table(first: int) -> npt.NDArray[np.uint32]:
    """Return what becomes of 16 bits of the CRC's register, from bit ``first`` on, in four bytes.

    That is linear: each bit's word is changed by what the bits before it have become.
    """
    table = np.zeros(1, np.uint32)
    for bit in range(first, first + 16):
        # zlib takes and gives the register's complement
        register = zlib.crc32((1 << bit).to_bytes(4, "little"), 0xFFFFFFFF) ^ 0xFFFFFFFF
        table = np.concatenate([table, table ^ np.uint32(register)])
    return table


def word_sums(records: Records) -> npt.NDArray[np.uint32]:
    """Return the sums, modulo 2³², of the 25 words of all records.

    Much cheaper than `checksum`, and the same for any order of the records: it shows what is lost,
    doubled or changed.

    Examples
    --------
    >>> int(word_sums(np.ones((3, 100), np.uint8))[0]) == 3 * 0x01010101
    True
    """
    found: npt.NDArray[np.uint32] = records.view(np.uint32).sum(axis=0, dtype=np.uint32)
    return found
