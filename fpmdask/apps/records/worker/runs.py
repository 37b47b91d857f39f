"""Sorted runs of records on a worker: in its memory, or on its disk."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fpmdask.records.format import KEY, KEY_NBYTES, RECORD_NBYTES, Records, keys
from fpmdask.runtime.worker.spill import Spilled

Side = Literal["left", "right"]

# Of a run on disk every so many-th key is in memory: with one more read any key is found.
SPARSE = 64
SIDES: tuple[Side, Side] = ("left", "right")


class Run:
    """Records of the input from number ``first`` to ``end``, in order, equal ones as they were.

    Parameters
    ----------
    first, end : int
        Which records.
    held : ndarray or Spilled
        The sorted records, n × 100 bytes.
    sparse : ndarray of S10
        Every `SPARSE`-th key, for those on disk.
    samples : ndarray of S10
        Keys at regular places.
    place : float
        Where in its equal pieces they are, from 0 to 1.
    sums : ndarray of uint32
        The `word_sums` of the records.
    """

    def __init__(
        self,
        first: int,
        end: int,
        held: Records | Spilled,
        sparse: np.ndarray,
        samples: np.ndarray,
        place: float,
        sums: np.ndarray,
    ) -> None:
        self.first, self.end = first, end
        self.held, self.sparse, self.sums = held, sparse, sums
        self.samples, self.place = samples, place

    @property
    def size(self) -> int:
        """How many records."""
        return self.end - self.first

    @property
    def offered(self) -> np.ndarray | Spilled:
        """The records as bytes, as other workers may ask for them."""
        return self.held if isinstance(self.held, Spilled) else self.held.reshape(-1)

    def take(self, low: int, high: int, target: Records) -> None:
        """Fill ``target`` with records ``low … high`` of the run."""
        if isinstance(self.held, Spilled):
            self.held.fill(low * RECORD_NBYTES, target)
        else:
            target[...] = self.held[low:high]

    def search(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many keys are less than each wanted one, and how many not greater.

        O(wanted · log n), on disk with two reads of 6 KB for each at most.
        """
        if not isinstance(self.held, Spilled):
            found = np.array([np.searchsorted(keys(self.held), wanted, side) for side in SIDES])
            return found[0], found[1]
        found = np.empty((2, wanted.size), int)
        block = np.empty((SPARSE, RECORD_NBYTES), np.uint8)
        # the place is in the block before the first sparse key that is beyond it
        lows = [np.maximum(np.searchsorted(self.sparse, wanted, side) - 1, 0) for side in SIDES]
        read = -1
        for n in range(wanted.size):
            key: np.ndarray = wanted[n : n + 1]
            for row, side in enumerate(SIDES):
                low = int(lows[row][n]) * SPARSE
                rows = block[: min(SPARSE, self.size - low)]
                if low != read:
                    self.held.fill(low * RECORD_NBYTES, rows)
                    read = low
                found[row, n] = low + np.searchsorted(keys(rows), key, side)[0]
        return found[0], found[1]


def picked(records: Records, numbers: np.ndarray) -> np.ndarray:
    """Return the keys of records of these numbers, as `KEY`."""
    chosen = np.ascontiguousarray(records[numbers, :KEY_NBYTES])
    return chosen.view(KEY).reshape(-1)
