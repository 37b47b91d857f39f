"""Who gets which rows: those stay that can. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from fpmdask.apps.rebalance.spec import Cuts
from fpmdask.runtime.rows import Span, pieces


def planned(
    cuts: Cuts, held: Mapping[str | None, Sequence[Span]], shares: Mapping[str, float]
) -> dict[str, list[Span]]:
    """Return worker → the rows that it gets.

    Parameters
    ----------
    cuts
        Where rows may be cut.
    held
        Worker → the rows that it has; None: nobody has them who takes part.
    shares
        Worker → its units, all of them together.

    Returns
    -------
    dict of str to list of (int, int)
        Of each worker in order. A worker gives what it holds beyond its share, from the end of its
        rows; that goes to those that have less, to a neighbour first. No more rows move than the
        shares demand, up to half a place where there are few of these. At most as many ranges as
        before, and two per worker. O(spans · workers).

    Examples
    --------
    >>> planned(Cuts(9), {"a": [(0, 3)], "b": [(3, 6)], "c": [(6, 9)]}, {"a": 5, "b": 3, "c": 1})
    {'a': [(0, 3), (7, 9)], 'b': [(3, 6)], 'c': [(6, 7)]}
    """
    own: dict[str, list[Span]] = {worker: [] for worker in shares}
    spare: list[Span] = []
    for owner, spans in held.items():
        at_places = [(cuts.place(start), cuts.place(stop)) for start, stop in spans]
        some = [span for span in at_places if span[0] < span[1]]
        if owner is not None and shares.get(owner):
            own[owner] = some
        else:
            spare += some
    lacking = {worker: share - _size(cuts, own[worker]) for worker, share in shares.items()}
    for worker, spans in own.items():
        while lacking[worker] < 0 and spans:
            start, stop = spans.pop()
            at = max(start, cuts.nearest(cuts.units(stop) + lacking[worker]))
            if start < at:
                spans.append((start, at))
            if at < stop:
                spare.append((at, stop))
                lacking[worker] += _size(cuts, [(at, stop)])
            if start < at:
                break
    for start, stop in _merged(spare):
        while start < stop:
            taker, at_end = _taker(own, lacking, shares, (start, stop))
            taken = start, stop
            if lacking[taker] > 0 and at_end:
                taken = max(start, cuts.nearest(cuts.units(stop) - lacking[taker])), stop
            elif lacking[taker] > 0:
                taken = start, min(stop, cuts.nearest(cuts.units(start) + lacking[taker]))
            if taken[0] == taken[1]:  # it lacks less than half of what cannot be parted
                lacking[taker] = 0.0
                continue
            own[taker].append(taken)
            lacking[taker] -= _size(cuts, [taken])
            start, stop = (start, taken[0]) if at_end and taken[0] > start else (taken[1], stop)
    return {
        worker: [(cuts.row(start), cuts.row(stop)) for start, stop in _merged(spans)]
        for worker, spans in own.items()
    }


def _taker(
    own: Mapping[str, Sequence[Span]],
    lacking: Mapping[str, float],
    shares: Mapping[str, float],
    span: Span,
) -> tuple[str, bool]:
    """Return who gets some rows next, and whether from their end."""
    takers = [worker for worker in own if lacking[worker] > 0]
    for worker in takers:
        if any(stop == span[0] for _, stop in own[worker]):
            return worker, False
    for worker in takers:
        if any(start == span[1] for start, _ in own[worker]):
            return worker, True
    if takers:
        return max(takers, key=lambda worker: lacking[worker]), False
    # all shares are met but for what cannot be parted: whoever is the least beyond its share
    beyond = {w: -lacking[w] / share if share else math.inf for w, share in shares.items()}
    return min(beyond, key=lambda worker: beyond[worker]), False


def _size(cuts: Cuts, spans: Iterable[Span]) -> float:
    return sum(cuts.units(stop) - cuts.units(start) for start, stop in spans)


def _merged(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def units_of(cuts: Cuts, spans: Iterable[Span]) -> float:
    """Return the units of some rows.

    Examples
    --------
    >>> units_of(Cuts(9), [(0, 3), (7, 9)])
    5.0
    """
    return float(sum(np.diff(cuts.before(span))[0] for span in spans))


def blocks_of(
    cuts: Cuts, edges: Sequence[int], spans: Iterable[Span], here: Collection[int]
) -> list[Span]:
    """Return the rows of each chunk of the result on one worker.

    Parameters
    ----------
    cuts
        Where rows may be cut.
    edges
        Of the chunks of the input.
    spans
        The worker's rows.
    here
        The chunks that it holds: what it keeps of these as a whole is not copied.

    Examples
    --------
    >>> blocks_of(Cuts(9), [0, 2, 4, 6, 9], [(0, 5), (8, 9)], {0})
    [(0, 2), (2, 5), (8, 9)]
    """

    def may_be_cut(row: int) -> bool:
        return cuts.row(cuts.place(row)) == row

    found: list[Span] = []
    for span in spans:
        begin = span[0]
        for chunk, _, _ in pieces(edges, span):
            start, stop = edges[chunk], edges[chunk + 1]
            whole = span[0] <= start and stop <= span[1] and chunk in here
            if whole and may_be_cut(start) and may_be_cut(stop):
                found += [(begin, start)] * (begin < start)
                found.append((start, stop))
                begin = stop
        found += [(begin, span[1])] * (begin < span[1])
    return found
