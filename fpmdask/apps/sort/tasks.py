"""Tasks that make lost chunks of a sort's result again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

import numpy as np

from fpmdask.sorting.order import merged_positions, sort_with_positions
from fpmdask.sorting.spec import INDEX


def chosen(dtype: str, ends: Sequence[Any], *chunks: np.ndarray) -> np.ndarray:
    """Task: those keys of some chunks of the input that are between the ends of a part.

    Parameters
    ----------
    ends
        What `fpmdask.apps.sort.worker.ends_of` returned of it.
    """
    first, last = (np.frombuffer(end, dtype) for end in ends[:2])
    found = []
    for chunk in chunks:
        keys = np.sort(chunk.astype(dtype, copy=False))  # as it compares, so they are found
        low = int(np.searchsorted(keys, first, "right")[0])
        high = int(np.searchsorted(keys, last, "left")[0])
        found.append(keys[low:high].copy())
    return np.concatenate(found)


def recompute(
    dtype: str, descending: bool, size: int, ends: Sequence[Any] | None, *pieces: np.ndarray
) -> np.ndarray:
    """Task: a chunk of the result, from what is `chosen` between its ends, and from these.

    Keys that equal an end become copies of it: which zeros have a sign may change.
    """
    keys = np.empty(size, dtype)
    if ends is not None:
        first, last, of_first, of_last = ends
        keys[size - of_last :] = np.frombuffer(last, dtype)
        keys[:of_first] = np.frombuffer(first, dtype)
        inner = keys[of_first : size - of_last]
        if inner.size:
            np.concatenate(pieces, out=inner)
            inner.sort()
    return np.ascontiguousarray(keys[::-1]) if descending else keys


def taken(
    dtype: str,
    orders: Sequence[tuple[Sequence[Any], Sequence[int], Sequence[Any]]],
    numbers: Sequence[int],
    *chunks: np.ndarray,
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Task: what a part of positions took of some workers' runs, which are made again.

    Parameters
    ----------
    orders
        For each of the workers: the pieces of chunks that it sorted, as (chunk, low, high, position
        of the first key), the lengths of its runs, and what is wanted of these, as (place among
        the pieces of the part, number of the run, low, high).
    numbers, chunks
        Of the input.

    Returns
    -------
    list of (place, keys, positions)
    """
    of = dict(zip(numbers, chunks, strict=True))
    found = []
    for pieces, lengths, wanted in orders:
        keys = np.concatenate([of[c][low:high].astype(dtype) for c, low, high, _ in pieces])
        positions = np.concatenate([np.arange(at, at + high - low) for _, low, high, at in pieces])
        edges = [0, *accumulate(lengths)]
        for run in {number for _, number, *_ in wanted}:
            here = slice(edges[run], edges[run + 1])
            sort_with_positions(keys[here], positions[here])
        for place, run, low, high in wanted:
            here = slice(edges[run] + low, edges[run] + high)
            found.append((place, keys[here].copy(), positions[here].copy()))
    return found


def recompute_positions(
    dtype: str, descending: bool, *made: Sequence[tuple[int, np.ndarray, np.ndarray]]
) -> np.ndarray:
    """Task: a chunk of positions as the workers found them, from what was `taken` of their runs.

    Equal keys are in the order of the workers' runs.
    """
    pieces = sorted((piece for own in made for piece in own), key=itemgetter(0))
    keys = np.concatenate([np.empty(0, dtype), *(keys for _, keys, _ in pieces)])
    positions = np.concatenate([np.empty(0, INDEX), *(at for *_, at in pieces)])
    found = merged_positions(keys, positions)
    return np.ascontiguousarray(found[::-1]) if descending else found
