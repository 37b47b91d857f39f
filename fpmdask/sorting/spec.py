"""What is sorted: dtype, chunks and keys of a one-dimensional array, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpmdask.sorting.payload import Payload
from fpmdask.tuning import DEFAULT, SortTuning

# Positions, as `numpy.argsort` has them.
INDEX = np.dtype(np.int64)


@dataclass(frozen=True)
class SortSpec:
    """One-dimensional array to be sorted: its dtype, the sizes of its chunks, its name in Dask.

    With `index` the result are the positions of its keys in order, not the keys; with a `payload`
    each chunk is sorted where it is, and the result are rows. Beside each key its worker needs
    `extra` bytes, for what comes with it.
    """

    dtype: np.dtype[Any]
    sizes: tuple[int, ...]
    name: str
    descending: bool = False
    index: bool = False
    extra: int = 0
    payload: Payload | None = None

    @property
    def units(self) -> int:
        """Keys in all."""
        return sum(self.sizes)

    @property
    def nbytes_per_key(self) -> int:
        """Bytes that travel for a key: itself, and its position where that is wanted."""
        return self.dtype.itemsize + (INDEX.itemsize if self.index else 0)

    @property
    def nbytes_needed(self) -> int:
        """Bytes of memory that a key takes on its way: in a run and in a part of the result.

        Positions are put into order with two words for each, and a copy of it or of its key.
        """
        word = INDEX.itemsize
        order = 2 * word + max(word, self.dtype.itemsize) if self.index else 0
        return 2 * self.nbytes_per_key + order + self.extra

    def bucket(self, tuning: SortTuning = DEFAULT.sort) -> int | None:
        """Keys of a part that are put in order at once; None for all that are in it."""
        if self.index or self.payload is not None:
            return None
        most = tuning.bucket_nbytes // self.dtype.itemsize
        return max(1, most, self.units // tuning.most_buckets)

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Dask's keys of the chunks, in order."""
        return [self.key(n) for n in range(len(self.sizes))]

    def key(self, chunk: int) -> tuple[str, int]:
        """Return Dask's key of a chunk."""
        return self.name, chunk

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "dtype": self.dtype.str,
            "sizes": list(self.sizes),
            "name": self.name,
            "descending": self.descending,
            "index": self.index,
            "extra": self.extra,
            "payload": None if self.payload is None else self.payload.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SortSpec:
        """Rebuild a spec from `to_json`."""
        sizes = tuple(map(int, data["sizes"]))
        flags = bool(data["descending"]), bool(data["index"])
        payload = data.get("payload")
        return cls(
            np.dtype(data["dtype"]),
            sizes,
            data["name"],
            *flags,
            int(data["extra"]),
            None if payload is None else Payload.from_json(payload),
        )
