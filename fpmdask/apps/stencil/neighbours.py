"""Which rows each worker has, and who is next to whom. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from fpmdask.runtime.rows import Span


def spans_of(shares: Mapping[str, int]) -> dict[str, Span]:
    """Return worker → its rows, in this order.

    Examples
    --------
    >>> spans_of({"a": 3, "b": 0, "c": 2})
    {'a': (0, 3), 'b': (3, 3), 'c': (3, 5)}
    """
    return dict(zip(shares, pairwise([0, *accumulate(shares.values())]), strict=True))


def neighbours(
    spans: Mapping[str, Span], worker: str, wraps: bool
) -> tuple[str | None, str | None]:
    """Return who has the rows above a worker's and below them, None beyond the ends.

    Examples
    --------
    >>> neighbours({"a": (0, 3), "b": (3, 3), "c": (3, 5)}, "c", wraps=True)
    ('a', 'a')
    """
    found = having(spans)
    if worker not in found or len(found) == 1:
        return None, None
    at, last = found.index(worker), len(found) - 1
    above = found[at - 1] if at or wraps else None
    return above, found[(at + 1) % len(found)] if at < last or wraps else None


@dataclass(frozen=True)
class Placement:
    """Who has which rows, as one worker sees it.

    Attributes
    ----------
    spans
        Worker → its rows, in their order.
    above, below
        The worker's neighbours.
    ranks
        Of workers that have rows.

    Examples
    --------
    >>> placed = Placement.of([("a", 0, 3), ("b", 3, 3), ("c", 3, 5)], "c", wraps=False)
    >>> placed.above, placed.below, placed.ranks
    ('a', None, {'a': 0, 'c': 1})
    """

    spans: Mapping[str, Span]
    above: str | None
    below: str | None
    ranks: Mapping[str, int]

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, int]], own: str, *, wraps: bool) -> Placement:
        """Return it for worker, first row, end: of each, in the order of the rows."""
        spans: dict[str, Span] = {worker: (low, high) for worker, low, high in rows}
        ranks = {worker: rank for rank, worker in enumerate(having(spans))}
        return cls(spans, *neighbours(spans, own, wraps), ranks)


def open_ends(workers: Iterable[str], *, wraps: bool) -> dict[str, int]:
    """Return at how many ends each worker has a neighbour, if all have rows.

    Examples
    --------
    >>> open_ends(["a", "b", "c"], wraps=False), open_ends(["a"], wraps=True)
    ({'a': 1, 'b': 2, 'c': 1}, {'a': 0})
    """
    order = [*workers]
    last = len(order) - 1
    if not last:
        return dict.fromkeys(order, 0)
    return {w: 2 if wraps else (n > 0) + (n < last) for n, w in enumerate(order)}


def having(spans: Mapping[str, Span]) -> list[str]:
    """Return who has rows, in order: these are MHETA's ranks."""
    return [one for one, (low, high) in spans.items() if low < high]


def with_joined(shares: Mapping[str, int], joined: Iterable[str]) -> dict[str, int]:
    """Return shares with workers that have none yet, in the middle: so the fewest rows move.

    Examples
    --------
    >>> with_joined({"a": 3, "b": 3, "c": 1}, ["d"])
    {'a': 3, 'd': 0, 'b': 3, 'c': 1}
    """
    middles = [low + high for low, high in spans_of(shares).values()]
    at = sum(middle <= sum(shares.values()) for middle in middles)
    some = [*shares.items()]
    return dict([*some[:at], *((worker, 0) for worker in joined), *some[at:]])
