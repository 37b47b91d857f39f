"""Load balancing of output: who encodes and writes which chunks, so that all end together. Pure.

A chunk is at home where its first row is; others that have rows of it send them. Where rows are
shared out by something else than speed, as by memory, one worker may have more to encode than it
can while others wait: then it sends whole chunks, too::

    chunk    |----------|----------|----------|----------|
    rows of       a  |              b            |   c        a writes chunk 0 and, as it is fast,
                                                              chunk 2; b chunk 1, c chunk 3
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heapreplace
from itertools import groupby
from statistics import median

from fpmdask.runtime.rows import Span

# Sending a chunk, or receiving it, takes this part of what encoding it does.
TRANSFER = 0.15
# Nobody is taken to encode more than so many times as fast as the median: a worker that computes on
# a GPU does not.
MOST_RATIO = 4.0
# Chunks that are shared out, at most, for each worker: of more, neighbours count as one.
MOST = 64


def writers(
    spans: Mapping[str, Span], unit: int, speeds: Mapping[str, float]
) -> list[tuple[Span, str]]:
    """Return rows, whole chunks of them, and who writes these, in their order.

    Parameters
    ----------
    spans
        Worker → its rows; together they are all rows from 0 on.
    unit
        Rows of a chunk.
    speeds
        Worker → rows per second, 0 where that is not known: one that has rows is taken to be the
        median, another one gets no chunks. Without any that is known all are written at home.

    Returns
    -------
    list of (Span, str)
        No two neighbours have the same writer.

    Notes
    -----
    Greedy: the worker that ends last gives a chunk to the one that would end first with it, as long
    as that ends before the other one would have. O(n log n) for n chunks, at most `MOST` for each
    worker; O(p log p) for p workers where no speed is known.

    Examples
    --------
    >>> rows = {"a": (0, 30), "b": (30, 190)}
    >>> writers(rows, 20, {})
    [((0, 40), 'a'), ((40, 190), 'b')]
    >>> writers(rows, 20, {"a": 2.0, "b": 1.0})
    [((0, 40), 'a'), ((40, 100), 'b'), ((100, 190), 'a')]
    """
    taking = {w: span for w, span in spans.items() if span[0] < span[1] or speeds.get(w)}
    total = max((high for _, high in taking.values()), default=0)
    known = [speed for worker in taking if (speed := speeds.get(worker, 0.0)) > 0]
    if known:
        unit *= max(1, -(-total // (unit * MOST * len(taking))))
    homes = {
        worker: range(-(-low // unit), -(-high // unit)) if low < high else range(0)
        for worker, (low, high) in taking.items()
    }
    if not known:
        some = sorted((chunks.start, chunks.stop, worker) for worker, chunks in homes.items())
        return [
            ((first * unit, min(total, stop * unit)), worker)
            for first, stop, worker in some
            if first < stop
        ]
    middle, chunks = median(known), {worker: [*some] for worker, some in homes.items()}
    most = MOST_RATIO * middle
    _share_out(chunks, {worker: min(most, speeds.get(worker) or middle) for worker in taking})
    writer = {number: worker for worker, some in chunks.items() for number in some}
    found = []
    for worker, run in groupby(sorted(writer), key=writer.__getitem__):
        first, *rest = run
        last = rest[-1] if rest else first
        found.append(((first * unit, min(total, (last + 1) * unit)), worker))
    return found


def _share_out(chunks: dict[str, list[int]], speeds: Mapping[str, float]) -> None:
    """Have workers give chunks to others, in place."""
    ends = {worker: len(some) / speeds[worker] for worker, some in chunks.items()}
    last = [(-end, worker) for worker, end in ends.items()]
    takes = [(end + (1 + TRANSFER) / speeds[worker], worker) for worker, end in ends.items()]
    heapify(last)
    heapify(takes)
    given = {worker: len(some) for worker, some in chunks.items()}  # those at the front are its own
    while True:
        (_, giver), (end, taker) = last[0], takes[0]
        if end >= ends[giver] or not given[giver]:
            return
        given[giver] -= 1
        chunks[taker].append(chunks[giver].pop(given[giver]))
        ends[giver] -= (1 - TRANSFER) / speeds[giver]
        ends[taker] = end
        heapreplace(last, (-ends[giver], giver))
        heapreplace(takes, (end + (1 + TRANSFER) / speeds[taker], taker))
