"""Rows of chunked collections: which chunks have some of them, and who holds them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

Span = tuple[int, int]  # rows start … stop


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
