"""Products whose K is far longer than the sides of C: each worker multiplies a range of K."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from fpmdask.apps.matmul.place import operations
from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.runtime.placement import Piece
from fpmdask.tuning import DEFAULT, MatmulTuning

# A worker holds its sum, a part of C, and what of it another one adds up, at the same time.
COPIES = 3
# The workers' sums are so many times smaller than A and B where ranges of K are taken.
FEWER = 4


def moves_less(spec: MatmulSpec, workers: int) -> bool:
    """Tell whether K is so long that sums over ranges of it are far smaller than A and B.

    Of these nearly all has to move where each worker computes a part of C.

    Examples
    --------
    >>> import numpy as np
    >>> def tall(n):
    ...     chunks = ((n,), (1000,))
    ...     return MatmulSpec((n, 1000, n), np.dtype("f8"), chunks, chunks[::-1], "a", "b")
    >>> moves_less(tall(100), 6), moves_less(tall(101), 6), moves_less(tall(10), 1)
    (True, False, False)
    """
    rows, depth, columns = spec.shape
    return workers > 1 and FEWER * (workers - 1) * rows * columns <= depth * (rows + columns)


def worth_handing_over(spec: MatmulSpec, tuning: MatmulTuning = DEFAULT.matmul) -> bool:
    """Tell whether to multiply a line of A and of B takes longer than to send and receive it."""
    rows, _, columns = spec.shape
    nbytes = (rows + columns) * spec.dtype.itemsize
    both_ways = tuning.receiving_operations + tuning.sending_operations
    return operations(spec, rows) / spec.shape[1] > both_ways * nbytes


def segments(spec: MatmulSpec) -> list[tuple[int, int]]:
    """Return the ranges of K in which neither A nor B is cut."""
    edges = {0, *accumulate(spec.a_chunks[1]), *accumulate(spec.b_chunks[0])}
    return [*pairwise(sorted(edges))]


def moved_bytes(
    spec: MatmulSpec, holders: Mapping[Any, Sequence[str]], workers: int, *, lazy: bool
) -> float:
    """Return the bytes that sums over ranges of K move, what balances the ranges among them.

    Parameters
    ----------
    spec
        The product.
    holders
        Key of a chunk -> workers that hold it.
    workers
        How many take part.
    lazy
        Whether an input is in nobody's memory yet: each chunk may be read where it is multiplied.

    Notes
    -----
    A segment is multiplied where most of it is, unless its worker would have more than twice an
    even part of K. O(chunks).
    """
    rows, depth, columns = spec.shape
    held: Counter[str] = Counter()
    away = 0
    for (low, high), own in zip(segments(spec), _held(spec, holders), strict=True):
        if own:
            worker = _most(own)
            held[worker] += high - low
            away += (high - low) * (rows + columns - own[worker])
    longest = max((high - low for low, high in segments(spec)), default=0)
    over = sum(max(0.0, lines - 2 * depth / workers) for lines in held.values())
    if lazy:
        over = max(0.0, longest - 2 * depth / workers)
    elements = away + over * (rows + columns) + (workers - 1) * rows * columns
    return float(elements * spec.dtype.itemsize)


def places(spec: MatmulSpec, holders: Mapping[Any, Sequence[str]]) -> list[list[str]]:
    """Return, for each segment, the worker that holds most of it; none where nobody does.

    O(chunks).
    """
    return [[_most(held)] if held else [] for held in _held(spec, holders)]


def held_by_worker(
    spec: MatmulSpec, holders: Mapping[Any, Sequence[str]]
) -> tuple[Counter[str], Counter[str]]:
    """Return worker -> the lines of K of which it holds most, and the bytes of them it does not.

    Parameters
    ----------
    spec, holders
        As for `places`. Of an input that is not among these keys nothing has to be received.

    Notes
    -----
    O(chunks).
    """
    rows, _, columns = spec.shape
    names = {name for name, *_ in holders}
    elements = rows * (spec.a_name in names) + columns * (spec.b_name in names)
    lines: Counter[str] = Counter()
    away: Counter[str] = Counter()
    for (low, high), own in zip(segments(spec), _held(spec, holders), strict=True):
        if own:
            worker = _most(own)
            lines[worker] += high - low
            away[worker] += (high - low) * (elements - own[worker]) * spec.dtype.itemsize
    return lines, away


def needed(spec: MatmulSpec) -> int:
    """Return the bytes that a worker needs beside what it multiplies."""
    return COPIES * spec.shape[0] * spec.shape[2] * spec.sums.itemsize


def _held(spec: MatmulSpec, holders: Mapping[Any, Sequence[str]]) -> list[Counter[str]]:
    """Return, for each segment, worker -> the elements of one of its lines that it holds."""
    found = []
    for column, row in positions(spec):
        held: Counter[str] = Counter()
        for i, height in enumerate(spec.a_chunks[0]):
            for worker in holders.get(spec.key(spec.a_name, (i, column)), ()):
                held[worker] += height
        for j, width in enumerate(spec.b_chunks[1]):
            for worker in holders.get(spec.key(spec.b_name, (row, j)), ()):
                held[worker] += width
        found.append(held)
    return found


def _most(held: Counter[str]) -> str:
    """Return who holds most; the least address of several, as in every other run."""
    return min(held, key=lambda worker: (-held[worker], worker))


def positions(spec: MatmulSpec) -> list[tuple[int, int]]:
    """Return, for each segment, the column of chunks of A and the row of chunks of B."""
    found = []
    column = row = 0
    ends_of_a = [*accumulate(spec.a_chunks[1])]
    ends_of_b = [*accumulate(spec.b_chunks[0])]
    for low, _ in segments(spec):
        while ends_of_a[column] <= low:
            column += 1
        while ends_of_b[row] <= low:
            row += 1
        found.append((column, row))
    return found


def in_chunks(
    spec: MatmulSpec, pieces: Sequence[Piece]
) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    """Return, of each piece of a segment, where it is in the chunks of A and of B.

    (Column of chunks of A, its columns from … to), (row of chunks of B, its rows from … to).
    """
    at, where = segments(spec), positions(spec)
    starts_of_a = [0, *accumulate(spec.a_chunks[1])]
    starts_of_b = [0, *accumulate(spec.b_chunks[0])]
    found = []
    for piece in pieces:
        column, row = where[piece.chunk]
        low, high = at[piece.chunk][0] + piece.low, at[piece.chunk][0] + piece.high
        a, b = starts_of_a[column], starts_of_b[row]
        found.append(((column, low - a, high - a), (row, low - b, high - b)))
    return found
