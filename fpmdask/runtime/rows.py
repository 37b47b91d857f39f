"""Rows of chunked collections: which chunks have some of them, and who holds them. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any, NotRequired, TypedDict

import numpy as np

Span = tuple[int, int]  # rows start … stop
# Names of arrays and frames that a call has sent to workers from its own process begin so.
SENT = "fpmdask-scattered-"


class Wanted(TypedDict):
    """Rows of one collection that a worker is to fetch: see `fpmdask.runtime.worker.rows.block`.

    ``pieces`` are (key, start, stop, rows of the chunk, addresses of its holders); ``serialized``
    has those that a holder has cut already, by their number: (key, address).
    """

    axis: int | None
    shape: Sequence[int] | None
    dtype: str | None
    pieces: Sequence[tuple[Any, int, int, int, Sequence[str]]]
    serialized: NotRequired[Mapping[int, tuple[Any, str]]]


def in_pieces(low: int, high: int, count: int, unit: int = 1) -> Iterator[Span]:
    """Yield rows in pieces of at most so many, which end at multiples of a unit where they can.

    Examples
    --------
    >>> list(in_pieces(3, 8, 2)), list(in_pieces(3, 20, 9, 5)), list(in_pieces(3, 9, 4, 5))
    ([(3, 5), (5, 7), (7, 8)], [(3, 10), (10, 15), (15, 20)], [(3, 5), (5, 9)])
    """
    while low < high:
        stop = min(high, low + count)
        if stop < high and (units := stop // unit * unit) > low:
            stop = units
        yield low, stop
        low = stop


def edges_of(lengths: Iterable[int]) -> list[int]:
    """Return where chunks of these lengths begin, and where the last one ends.

    Examples
    --------
    >>> edges_of([3, 0, 2])
    [0, 3, 3, 5]
    """
    return [0, *accumulate(lengths)]


def pieces(edges: Sequence[int], span: Span) -> list[tuple[int, int, int]]:
    """Return (chunk, start, stop) of the rows of a span, start and stop within the chunk.

    Parameters
    ----------
    edges
        As of `edges_of`.
    span
        Rows; without any, an empty piece of one chunk.

    Notes
    -----
    O(log chunks + pieces).

    Examples
    --------
    >>> pieces([0, 3, 3, 5], (2, 4)), pieces([0, 3, 3, 5], (3, 3))
    ([(0, 2, 3), (2, 0, 1)], [(2, 0, 0)])
    """
    start, stop = span
    last = len(edges) - 2
    chunk = min(max(0, bisect_right(edges, start) - 1), last)
    if start == stop:
        return [(chunk, start - edges[chunk], start - edges[chunk])]
    found = []
    while chunk <= last and edges[chunk] < stop:
        low, high = max(start, edges[chunk]), min(stop, edges[chunk + 1])
        if low < high:
            found.append((chunk, low - edges[chunk], high - edges[chunk]))
        chunk += 1
    return found


def held(edges: Sequence[int], owners: Sequence[str | None]) -> dict[str | None, list[Span]]:
    """Return owner → the rows that it has, chunks next to each other as one span. O(chunks).

    Examples
    --------
    >>> held([0, 3, 4, 6, 9], ["a", "a", "b", "a"])
    {'a': [(0, 4), (6, 9)], 'b': [(4, 6)]}
    """
    found: dict[str | None, list[Span]] = {}
    for chunk, owner in enumerate(owners):
        start, stop = edges[chunk], edges[chunk + 1]
        if start == stop:
            continue
        spans = found.setdefault(owner, [])
        if spans and spans[-1][1] == start:
            spans[-1] = spans[-1][0], stop
        else:
            spans.append((start, stop))
    return found


def common(lists: Iterable[Iterable[Span]], least: int) -> list[Span]:
    """Return the rows that at least so many lists have; those of one list do not overlap.

    O(n log n) for n spans.

    Examples
    --------
    >>> common([[(0, 4), (6, 9)], [(2, 8)], [(3, 7)]], 3)
    [(3, 4), (6, 7)]
    """
    changes: Counter[int] = Counter()
    for first, last in chain.from_iterable(lists):
        changes[first] += 1
        changes[last] -= 1
    found, depth, start = [], 0, 0
    for at in sorted(changes):
        before, depth = depth, depth + changes[at]
        if before < least <= depth:
            start = at
        elif depth < least <= before:
            found.append((start, at))
    return found


@dataclass(frozen=True)
class Rows:
    """The rows of one collection, as a run is told of them.

    Parameters
    ----------
    keys
        Of its chunks along the axis, or partitions, in order.
    lengths
        Rows of each.
    axis
        Along which it is cut; None: whoever needs some gets all of it, which is one chunk.
    dtype, shape
        Of a NumPy array, the length of the axis 0 there. None: chunks of any other type, which
        Dask moves as a whole.
    stored
        A Zarr array, as `zarr_storage.packed` returned it, of which workers read rows themselves:
        there are no keys, and one length.
    """

    keys: tuple[Any, ...]
    lengths: tuple[int, ...]
    axis: int | None = 0
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    stored: bytes | None = None

    @cached_property
    def edges(self) -> list[int]:
        """Where chunks begin, and where the last one ends."""
        return edges_of(self.lengths)

    @property
    def count(self) -> int:
        """How many there are."""
        return self.edges[-1]

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row of an array of numbers, 0 for others."""
        if self.shape is None:
            return 0
        others = (n for axis, n in enumerate(self.shape) if axis != self.axis)
        return math.prod(others) * np.dtype(self.dtype).itemsize

    def pieces(self, span: Span) -> list[tuple[int, int, int]]:
        """Return (chunk, start, stop) of what has some rows, all where it is not cut."""
        if self.axis is None:
            return [(0, 0, self.lengths[0])]
        return pieces(self.edges, span)

    def wanted(self, span: Span, places: Mapping[Any, Sequence[str]]) -> dict[str, Any]:
        """Return what a worker needs to be told to fetch some rows: see `worker.rows.block`.

        ``places`` are key → addresses of its holders.
        """
        return {
            "axis": self.axis,
            "shape": self.shape,
            "dtype": self.dtype,
            "pieces": [
                (self.keys[chunk], start, stop, self.lengths[chunk], places[self.keys[chunk]])
                for chunk, start, stop in self.pieces(span)
            ],
        }

    def owners(
        self, edges: Sequence[int], places: Mapping[Any, Sequence[str]], workers: Collection[str]
    ) -> list[str | None]:
        """Return which of some workers holds most of the rows between two edges, None for none."""
        found: list[str | None] = []
        for span in pairwise(edges):
            rows: dict[str, int] = {}
            for chunk, start, stop in self.pieces(span):
                for worker in places[self.keys[chunk]]:
                    if worker in workers:
                        rows[worker] = rows.get(worker, 0) + stop - start
            found.append(max(sorted(rows), key=rows.__getitem__, default=None))
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rows:
        """Rebuild it from its fields, also where tuples have become lists on the way."""

        def key(of: Any) -> Any:
            return tuple(of) if isinstance(of, list | tuple) else of

        shape = data["shape"]
        return cls(
            tuple(map(key, data["keys"])),
            tuple(data["lengths"]),
            data["axis"],
            data["dtype"],
            None if shape is None else tuple(shape),
            data["stored"],
        )


def is_sent(key: Any) -> bool:
    """Tell whether a chunk is of an array, or a frame, that a call has sent from its own process.

    Examples
    --------
    >>> is_sent((f"{SENT}1f", 0, 0)), is_sent("x")
    (True, False)
    """
    return str(key[0] if isinstance(key, tuple) else key).startswith(SENT)
