"""Products whose K is far longer than the sides of C: each worker multiplies a range of K."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from fpmdask.apps.dealing import Piece
from fpmdask.apps.matmul.place import OPERATIONS_PER_BYTE, operations
from fpmdask.apps.matmul.plan import MatmulSpec

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


def worth_handing_over(spec: MatmulSpec) -> bool:
    """Tell whether to multiply a line of A and of B takes longer than to send and receive it."""
    rows, _, columns = spec.shape
    nbytes = (rows + columns) * spec.dtype.itemsize
    return operations(spec, rows) / spec.shape[1] > 2 * OPERATIONS_PER_BYTE * nbytes


def segments(spec: MatmulSpec) -> list[tuple[int, int]]:
    """Return the ranges of K in which neither A nor B is cut."""
    edges = {0, *accumulate(spec.a_chunks[1]), *accumulate(spec.b_chunks[0])}
    return [*pairwise(sorted(edges))]


def places(spec: MatmulSpec, holders: Mapping[Any, Sequence[str]]) -> list[list[str]]:
    """Return, for each segment, the worker that holds most of it; none where nobody does.

    O(chunks).
    """
    found = []
    for column, row in positions(spec):
        held: Counter[str] = Counter()
        for i, height in enumerate(spec.a_chunks[0]):
            for worker in holders.get(spec.key(spec.a_name, (i, column)), ()):
                held[worker] += height
        for j, width in enumerate(spec.b_chunks[1]):
            for worker in holders.get(spec.key(spec.b_name, (row, j)), ()):
                held[worker] += width
        # the least address where several hold as much, as in every other run
        found.append([min(held, key=lambda worker: (-held[worker], worker))] if held else [])
    return found


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
