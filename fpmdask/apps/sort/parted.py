"""Runs of keys that are put in order only where somebody has to look.

To cut a run for its parts, the keys around each cut must be in order; of the others it has to be
known between which cuts they lie. NumPy partitions an array around one place several times as fast
as it sorts it (around several at once it is slower than that), so that a run is halved around the
places where cuts are expected, and only what lies between two of these is sorted.

    keys    | unsorted | in order | unsorted | in order | unsorted |
    begins  0          e1         e2         e3         e4
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

Side = Literal["left", "right"]

# A shorter run is sorted: there is little to be gained.
FEWEST_KEYS = 1 << 20
# Keys of a longer one that are looked at first, and how many of them must differ: NumPy partitions
# equal keys more slowly than it sorts them.
SAMPLE, DISTINCT = 1 << 16, 0.9
# So many keys of a run, relative to it, are in order on either side of where a cut is expected.
MARGIN = 0.006
# With cuts so close to each other that more of it would be in order, it is sorted.
MOST_IN_ORDER = 0.25
# What the sample leaves open is taken for so many standard deviations.
SURE = 3.0
KINDS = "iuf"


class Run:
    """Keys in order.

    Parameters
    ----------
    keys : ndarray
        Sorted by `numpy.sort`; not copied.

    Attributes
    ----------
    sample : ndarray
        All keys, or some that were drawn, in order.
    noise : float
        Standard deviation of the ranks that the sample tells, in keys.
    """

    def __init__(self, keys: np.ndarray) -> None:
        self.keys = self.sample = keys
        self.noise = 0.0

    def searchsorted(self, values: np.ndarray, side: Side) -> np.ndarray:
        """Return how many keys are less than each of the values, or with "right" not greater."""
        return np.searchsorted(self.keys, values, side)

    def between(self, low: int, high: int) -> np.ndarray:
        """Return the keys from one place to another, in order."""
        return self.keys[low:high]


class PartedRun(Run):
    """Keys that are put in order where they are looked at.

    Parameters
    ----------
    keys : ndarray
        In any order; they are moved about in place. Of a kind in `KINDS`.
    ends : sequence of float
        Which parts of all keys are expected to be before each cut, from 0 to 1.
    random : numpy.random.Generator
        Draws the sample.

    Notes
    -----
    `_begins` are places so that no key before one is greater than any from there on; `_least` has
    the least key from each of them on, so that a value's place is known to lie between two of them.
    Where cuts are not where they were expected, what lies around them is parted again, or sorted.

    O(n log ends) where cuts are where they were expected; O(n log n) at most.

    Examples
    --------
    >>> keys = np.random.default_rng(0).random(100_000)
    >>> wanted = np.searchsorted(np.sort(keys), [0.5, 0.9])
    >>> run = PartedRun(keys, [0.5], np.random.default_rng(1))
    >>> bool((run.searchsorted(np.array([0.5, 0.9]), "left") == wanted).all())
    True
    >>> bool(keys[: wanted[0]].max() < 0.5)
    True
    """

    def __init__(
        self, keys: np.ndarray, ends: Sequence[float], random: np.random.Generator
    ) -> None:
        super().__init__(keys)
        self._begins = [0]
        self._least: np.ndarray = np.empty(0, keys.dtype)  # of all but the first
        self._in_order = [True]
        if keys.size >= FEWEST_KEYS:
            drawn = keys[random.integers(0, keys.size, SAMPLE)]
            drawn.sort()
            distinct = 1 + np.count_nonzero(drawn[1:] > drawn[:-1])  # NaNs are all the same
            self._in_order = [bool(distinct < DISTINCT * drawn.size)]
        if self._in_order[0]:
            keys.sort()
            return
        self.sample, self.noise = drawn, 0.5 * keys.size / math.sqrt(SAMPLE)
        margin = MARGIN * keys.size
        self._part([int(end * keys.size + side) for end in ends for side in (-margin, margin)])

    def searchsorted(self, values: np.ndarray, side: Side) -> np.ndarray:
        """Return how many keys are less than each of the values, or with "right" not greater."""
        self._look_around(np.sort(values), side)
        found = np.empty(values.size, np.int64)
        inside = np.searchsorted(self._least, values, side)
        for number in np.unique(inside).tolist():
            here = inside == number
            within = np.searchsorted(self._sorted(number), values[here], side)
            found[here] = self._begins[number] + within
        return found

    def between(self, low: int, high: int) -> np.ndarray:
        """Return the keys from one place to another, in order."""
        if low < high:
            first = int(np.searchsorted(self._begins, low, "right")) - 1
            last = int(np.searchsorted(self._begins, high, "left"))
            for number in range(first, last):
                self._sorted(number)
        return self.keys[low:high]

    def _look_around(self, values: np.ndarray, side: Side) -> None:
        """Part what is not in order, and larger than need be, around the values that lie in it."""
        if all(self._in_order):
            return
        inside = np.searchsorted(self._least, values, side)
        margin = MARGIN * self.keys.size + SURE * self.noise
        each = self.keys.size / self.sample.size
        places: list[int] = []
        for number in np.unique(inside).tolist():
            if self._in_order[number]:
                continue
            begin, end = self._bounds(number)
            here = values[inside == number]
            low = int(np.searchsorted(self.sample, here[0]) * each - margin)
            high = int(np.searchsorted(self.sample, here[-1], "right") * each + margin)
            if high - low < (end - begin) / 2:
                places += [place for place in (low, high) if begin < place < end]
        self._part(places)

    def _bounds(self, number: int) -> tuple[int, int]:
        following = self._begins[number + 1 : number + 2] or [self.keys.size]
        return self._begins[number], following[0]

    def _sorted(self, number: int) -> np.ndarray:
        begin, end = self._bounds(number)
        keys = self.keys[begin:end]
        if not self._in_order[number]:
            keys.sort()
            self._in_order[number] = True
        return keys

    def _part(self, places: Sequence[int]) -> None:
        """Make places begins, those in the middle first."""
        inner = sorted({place for place in places if 0 < place < self.keys.size})
        if not inner:
            return
        middle = len(inner) // 2
        place = inner[middle]
        number = int(np.searchsorted(self._begins, place, "right")) - 1
        begin, end = self._bounds(number)
        if begin < place and not self._in_order[number]:
            keys = self.keys[begin:end]
            keys.partition(place - begin)
            self._begins.insert(number + 1, place)
            self._in_order.insert(number + 1, False)
            self._least = np.insert(self._least, number, self.keys[place])
        self._part(inner[:middle])
        self._part(inner[middle + 1 :])


def parted(keys: np.ndarray, ends: Sequence[float], random: np.random.Generator) -> Run:
    """Return unsorted keys as a run, whichever of both is faster.

    Parameters
    ----------
    keys, ends, random
        As for `PartedRun`.
    """
    apart = 2 * MARGIN * len(ends) <= MOST_IN_ORDER
    if apart and keys.dtype.kind in KINDS and keys.dtype.itemsize <= 8 and keys.dtype.isnative:
        return PartedRun(keys, ends, random)
    keys.sort()
    return Run(keys)
