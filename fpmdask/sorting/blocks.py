"""Runs of keys before the exchange: in order, or in order block by block.

To know which keys of a run go to which part, it is enough to find a value's place in each of its
blocks. Blocks that fit into a processor's cache are sorted there right after they have been filled,
which takes two thirds of what it takes to copy and to sort the whole run.

    keys    | in order | in order | in order |
    cuts        ^          ^       ^             together as many keys as are to be before the cut
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fpmdask.sorting.splitters import cuts, place_of, sampled
from fpmdask.tuning import DEFAULT, SortTuning

# With more parts blocks are as much larger: counting in each block what is before their ends is to
# stay little beside sorting it.
FEW_PARTS = 32


class Run:
    """Keys in order.

    Parameters
    ----------
    keys : ndarray
        Sorted by `numpy.sort`; not copied.

    Attributes
    ----------
    size : int
        How many keys.
    nbytes : int
        Of them.
    sample : ndarray
        All keys, or some of all blocks, in order.
    noise : float
        Standard deviation of the ranks that the sample tells, in keys.
    """

    noise = 0.0

    def __init__(self, keys: np.ndarray) -> None:
        self.keys = self.sample = keys
        self.size, self.nbytes = keys.size, keys.nbytes

    def counted(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many keys are less than each of some values, and how many not greater.

        O(values log keys).
        """
        return np.searchsorted(self.keys, values), np.searchsorted(self.keys, values, "right")

    def between(self, low: int, high: int) -> np.ndarray:
        """Return the keys from one place to another, in order; both are ends or were counted."""
        return self.keys[low:high]

    def fill(self, low: int, high: int, target: np.ndarray) -> None:
        """Copy the keys from one place to another, in any order."""
        target[...] = self.keys[low:high]


class BlockedRun(Run):
    """Keys in order block by block.

    Parameters
    ----------
    blocks : sequence of ndarray
        At least one, each sorted by `numpy.sort`; not copied.
    tuning : SortTuning
        How many keys stand for the run.

    Notes
    -----
    Places are ranks among all keys of the run, equal ones being in the order of the blocks. Only
    those of values that were counted are known, and those between their equals: runs are cut
    nowhere else. O(blocks · values) memory for these.

    Examples
    --------
    >>> run = BlockedRun([np.array([1, 5, 9]), np.array([2, 5, 5])])
    >>> below, through = run.counted(np.array([5]))
    >>> int(below[0]), int(through[0]), run.between(0, 2).tolist(), run.between(4, 6).tolist()
    (2, 5, [1, 2], [5, 9])
    """

    def __init__(self, blocks: Sequence[np.ndarray], tuning: SortTuning = DEFAULT.sort) -> None:
        self.blocks = list(blocks)
        self.size, self.nbytes = sum(b.size for b in blocks), sum(b.nbytes for b in blocks)
        self._raw = [bytes_of(block) for block in blocks]
        self.sample = self.blocks[0]
        if len(blocks) > 1:
            two_blocks = 2 * tuning.block_nbytes // blocks[0].itemsize
            most = min(tuning.block_samples, max(1, two_blocks))
            share = most / max(1, self.size)
            self.sample = np.concatenate(
                [
                    sampled(block, math.ceil(share * block.size), place_of(n, len(blocks), 0, 1))
                    for n, block in enumerate(blocks)
                ],
                dtype=blocks[0].dtype,  # otherwise in this machine's byte order
            )
            self.sample.sort()
            # each block leaves open where between two of its samples a value is
            each = self.size / max(1, self.sample.size)
            self.noise = each * math.sqrt(len(blocks) / 12)
        none = np.empty((len(self.blocks), 0), np.int64)
        self._values, self._below, self._through = self.sample[:0], none, none
        self._all_through = none.sum(0)

    def counted(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many keys are less than each of some values, and how many not greater.

        O(blocks · values log keys).
        """
        below = np.array([np.searchsorted(block, values) for block in self.blocks], np.int64)
        through = below.copy()
        for block, begin, end in zip(self.blocks, below, through, strict=True):
            # few values are in a block; NaNs are not less than each other
            equal = np.flatnonzero(begin < block.size)
            with np.errstate(invalid="ignore"):
                equal = equal[~(values[equal] < block[begin[equal]])]
            end[equal] = np.searchsorted(block, values[equal], "right")
        known = np.concatenate([self._values, values])
        order = np.argsort(known, kind="stable")
        self._values = known[order]
        self._below = np.hstack([self._below, below])[:, order]
        self._through = np.hstack([self._through, through])[:, order]
        self._all_through = self._through.sum(0)
        return below.sum(0), through.sum(0)

    def between(self, low: int, high: int) -> np.ndarray:
        """Return the keys from one place to another, in order; both are ends or were counted."""
        return np.sort(np.concatenate(self.slices(low, high), dtype=self.sample.dtype))

    def slices(self, low: int, high: int) -> list[np.ndarray]:
        """Return views of the keys from one place to another, in the order of the blocks."""
        places = zip(self.blocks, *self._cut([low, high]).T.tolist(), strict=True)
        return [block[start:end] for block, start, end in places]

    def raw(self, low: int, high: int) -> list[memoryview]:
        """Return the bytes of `slices`; none is empty."""
        size = self.sample.itemsize
        places = zip(self._raw, *(self._cut([low, high]) * size).T.tolist(), strict=True)
        return [view[start:end] for view, start, end in places if start < end]

    def fill(self, low: int, high: int, target: np.ndarray) -> None:
        """Copy the keys from one place to another, in any order."""
        np.concatenate(self.slices(low, high), out=target)

    def _cut(self, places: Sequence[int]) -> np.ndarray:
        """Return where each block is cut, blocks × places."""
        found = np.zeros((len(self.blocks), len(places)), np.int64)
        for column, place in enumerate(places):
            if place in (0, self.size):
                found[:, column] = [block.size if place else 0 for block in self.blocks]
            elif self._values.size:
                # the first value whose equals reach so far, and the one before it
                at = int(np.searchsorted(self._all_through, place))
                near = slice(max(0, at - 1), at + 1)
                found[:, [column]] = cuts(self._below[:, near], self._through[:, near], [place])
        if found.sum(0).tolist() != list(places):
            raise ValueError(f"places {places} of a run of {self.size} keys were not counted")
        return found


def bytes_of(keys: np.ndarray) -> memoryview:
    """Return the memory of contiguous keys as bytes.

    Examples
    --------
    >>> bytes_of(np.array([1, 2], "i2")).nbytes, bytes_of(np.empty(0, "M8[s]")).nbytes
    (4, 0)
    """
    raw: Any = keys.view(np.uint8)
    return memoryview(raw)


def block_size(itemsize: int, parts: int, nbytes: int = DEFAULT.sort.block_nbytes) -> int:
    """Return how many keys of so many bytes a block has, where these are cut for so many parts.

    `nbytes` is what a block has for few parts.

    Examples
    --------
    >>> block_size(8, 6), block_size(8, 64), block_size(1 << 21, 6)
    (131072, 262144, 1)
    """
    return max(1, nbytes * max(parts, FEW_PARTS) // FEW_PARTS // itemsize)


def cut_up(keys: np.ndarray, size: int) -> list[np.ndarray]:
    """Return an array in blocks of so many keys.

    Examples
    --------
    >>> [block.size for block in cut_up(np.zeros(7), 3)], cut_up(np.zeros(0), 3)
    ([3, 3, 1], [])
    """
    return [keys[low : low + size] for low in range(0, keys.size, size)]


def fillings(
    arrays: Iterable[np.ndarray], blocks: Iterable[np.ndarray]
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Give each block with the slices that fill it of what arrays are together.

    Examples
    --------
    >>> blocks = [np.empty(2), np.empty(2), np.empty(3)]
    >>> for _, slices in fillings([np.arange(3), np.arange(4)], blocks):
    ...     print([s.tolist() for s in slices])
    [[0, 1]]
    [[2], [0]]
    [[1, 2, 3]]
    """
    coming = iter(arrays)
    left = np.empty(0)
    for block in blocks:
        slices, missing = [], block.size
        while missing:
            if not left.size:
                left = next(coming)
                continue
            slices.append(left[:missing])
            left = left[missing:]
            missing -= slices[-1].size
        yield block, slices
