"""What of a sort is decided without data: who sorts what, and who gets which pieces of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.runtime.placement import Piece


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
