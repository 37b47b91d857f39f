"""Sorted runs of records on a worker: in its memory, or on its disk."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fpmdask.coordinator.spill import Spilled
from fpmdask.records.format import KEY, KEY_NBYTES, RECORD_NBYTES, Records, keys

# Of a run on disk every so many-th key is in memory: with one more read any key is found.
SPARSE = 64


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
        sums: np.ndarray,
    ) -> None:
        self.first, self.end = first, end
        self.held, self.sparse, self.samples, self.sums = held, sparse, samples, sums

    @property
    def size(self) -> int:
        """How many records."""
        return self.end - self.first

    @property
    def offered(self) -> np.ndarray | Spilled:
        """The records as one row of bytes, as other workers may ask for them."""
        return self.held if isinstance(self.held, Spilled) else self.held.reshape(1, -1)

    def take(self, low: int, high: int, target: Records) -> None:
        """Fill ``target`` with records ``low … high`` of the run."""
        if isinstance(self.held, Spilled):
            self.held.read(low * RECORD_NBYTES, target)
        else:
            target[...] = self.held[low:high]

    def search(self, wanted: np.ndarray, *, through: bool) -> np.ndarray:
        """Return how many keys are less than each wanted one, or not greater with ``through``.

        O(wanted · log n), on disk one read of 6 KB for each.
        """
        side: Literal["left", "right"] = "right" if through else "left"
        if not isinstance(self.held, Spilled):
            return np.asarray(np.searchsorted(keys(self.held), wanted, side), np.int64)
        found = np.empty(wanted.size, np.int64)
        block = np.empty((SPARSE, RECORD_NBYTES), np.uint8)
        ends = np.searchsorted(self.sparse, wanted, side)  # the block before it has the place
        for n, (key, end) in enumerate(zip(wanted, ends.tolist(), strict=True)):
            low = max(0, end - 1) * SPARSE
            rows = block[: min(SPARSE, self.size - low)]
            self.held.read(low * RECORD_NBYTES, rows)
            found[n] = low + int(np.searchsorted(keys(rows), key, side))
        return found


def picked(records: Records, numbers: np.ndarray) -> np.ndarray:
    """Return the keys of records of these numbers, as `KEY`."""
    chosen = np.ascontiguousarray(records[numbers, :KEY_NBYTES])
    return chosen.view(KEY).reshape(-1)
