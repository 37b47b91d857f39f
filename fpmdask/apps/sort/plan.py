"""What of a sort is decided without data: who sorts what, and who gets which pieces of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fpmdask.apps.sort.payload import Payload
from fpmdask.errors import PartitionError
from fpmdask.runtime.placement import Piece
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


def exchange(
    edges: Sequence[np.ndarray],
    runs: Sequence[tuple[str, int]],
    lengths: Sequence[int],
    parts: Sequence[tuple[str, int]],
) -> dict[str, list[tuple[int, list[list[tuple[str, int, int, int, int]]]]]]:
    """Return worker -> its parts of the result, each with its buckets' pieces of runs.

    Parameters
    ----------
    edges : sequence of ndarray of int64
        For each part, runs × (buckets + 1): where the runs are cut.
    runs : sequence of (str, int)
        Worker and number of each run.
    lengths : sequence of int
        Of the runs.
    parts : sequence of (str, int)
        Worker and size of each part of the result, in order.

    Returns
    -------
    dict
        Worker -> (part, buckets), a bucket being a list of pieces (worker, number of its run, low,
        high, length of the run), none empty. Everybody begins with its own runs, so that not all
        ask the same one first. O(buckets · runs).
    """
    first = {worker: at for at, (worker, _) in reversed([*enumerate(runs)])}
    found: dict[str, list[Any]] = {worker: [] for worker, _ in parts}
    for part, (worker, _) in enumerate(parts):
        turn = first.get(worker, 0)
        order = [*range(turn, len(runs)), *range(turn)]
        buckets = [
            [(*runs[at], lows[at], highs[at], lengths[at]) for at in order if lows[at] < highs[at]]
            for lows, highs in pairwise(edges[part].T.tolist())
        ]
        found[worker].append((part, buckets))
    return found


def recipe(
    workers: Sequence[str],
    pieces: Mapping[str, Sequence[Piece]],
    sizes: Mapping[str, Sequence[int]],
    wanted: Mapping[str, Sequence[tuple[int, Sequence[Sequence[Any]]]]],
) -> dict[str, Any]:
    """Return, as plain data, what a lost part of positions is to be made again by.

    Parameters
    ----------
    workers : sequence of str
        Those that sorted.
    pieces, sizes : mapping
        Worker -> the pieces of chunks that it sorted; the lengths of its runs.
    wanted : mapping
        What `exchange` returned.

    Returns
    -------
    dict
        ``pieces`` and ``runs`` per worker; ``parts``, the pieces of runs in each, by the number of
        the worker.
    """
    numbers = {worker: n for n, worker in enumerate(workers)}
    parts = dict(part for own in wanted.values() for part in own)
    return {
        "pieces": [[(p.chunk, p.low, p.high) for p in pieces[w]] for w in workers],
        "runs": [list(sizes[w]) for w in workers],
        "parts": [
            [(numbers[peer], *piece) for bucket in parts[part] for peer, *piece in bucket]
            for part in sorted(parts)
        ],
    }


def check_fits(units: Mapping[str, float], bounds: Mapping[str, float]) -> None:
    """Refuse shares that a worker has no memory for.

    Raises
    ------
    PartitionError
        With the first such worker.
    """
    for worker, count in units.items():
        if count > bounds[worker]:
            raise PartitionError(
                f"{count:.0f} keys do not fit into the memory of {worker}, which has room for "
                f"{bounds[worker]:.0f}; add workers or memory"
            )
