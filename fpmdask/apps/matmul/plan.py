"""How a product is cut: panels of K, pieces of chunks, rows that fit."""

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fpmdask.apps.matmul.spec import Chunks
from fpmdask.apps.matmul.spec import MatmulSpec as MatmulSpec
from fpmdask.apps.matmul.tile import Tile as Tile
from fpmdask.errors import PartitionError
from fpmdask.tuning import DEFAULT

# A panel of B: deep enough for BLAS (512 at a width of 8192), a message that streams well.
PANEL_NBYTES = 32 << 20
# BLAS loses a twentieth below this depth.
LEAST_DEPTH = 128
# With so many panels a worker that is late can still give up most of what it has left.
PANELS_WANTED = 16
# Each panel costs messages and waits of a millisecond, however small it is.
MOST_PANELS = 256
# Panels in memory at once: first the pieces of one and their assembly, then that and the next.
PANELS_HELD = 2
# Rows of C are few if they are fewer than so many per worker, or so many times fewer than columns.
FEW_ROWS = 16


def by_columns(spec: MatmulSpec, workers: int) -> bool:
    """Tell whether C is to be shared out by columns, as the rows of its transpose.

    Parameters
    ----------
    spec : MatmulSpec
        The product as it was asked for.
    workers : int
        Workers that C is shared out over.

    Returns
    -------
    bool
        Whether C has more columns than rows, and few rows.

    Notes
    -----
    Shares and limits are whole rows. With fewer than sixteen per worker, one more or less is more
    than a sixteenth of a mean share, and with fewer than workers some get none. With sixteen times
    as many columns as rows, panels of B that are as wide as C would be most of what a worker holds.

    Examples
    --------
    >>> import numpy as np
    >>> spec = MatmulSpec((1, 8, 99), np.dtype("f8"), ((1,), (8,)), ((8,), (99,)), "a", "b")
    >>> by_columns(spec, 3), by_columns(spec.transpose(), 3)
    (True, False)
    """
    rows, _, width = spec.shape
    return width > rows and (rows < FEW_ROWS * workers or width >= FEW_ROWS * rows)


def panels(
    spec: MatmulSpec,
    workers: int,
    nbytes: int = PANEL_NBYTES,
    *,
    depth: int = DEFAULT.matmul.panel_depth,
) -> tuple[tuple[int, int], ...]:
    """Cut K into panels that end, where possible, where chunks of B and A end.

    Parameters
    ----------
    spec : MatmulSpec
        The product.
    workers : int
        Workers that C is shared out over, >= 1.
    nbytes : int
        Most bytes of one panel of B and of one of A, for an even share of the rows. A panel has at
        least one row of B, and is as deep as it takes to have no more than about sixteen for A.
    depth : int
        Lines of K in a panel that BLAS wants.

    Returns
    -------
    tuple of (k0, k1)
        In order, covering 0 … K once. B's ends go before A's: its panels are the larger ones.
        About sixteen, unless they would be deeper than BLAS needs or too flat for it; of a very
        long K 256, as far as the bytes allow.

    Notes
    -----
    Where C is narrow, its own bytes are few, and two panels of A may be as many as A has: with the
    depth that BLAS wants, of a K up to 128. They are an eighth of A if depth is cut to a sixteenth
    of K, and less than C if it is cut to half of C's width; the larger of these depths costs
    little, since BLAS waits for memory where C is narrow.

    Examples
    --------
    >>> import numpy as np
    >>> spec = MatmulSpec((9, 9, 9), np.dtype("f8"), ((9,), (9,)), ((4, 5), (9,)), "a", "b")
    >>> panels(spec, 1, 5 * 9 * 8)
    ((0, 4), (4, 9))
    """
    rows, inner, width = spec.shape
    share = -(-rows // workers)
    wanted = min(depth, max(LEAST_DEPTH, inner // PANELS_WANTED))
    wanted = max(wanted, -(-inner // MOST_PANELS))
    flattest = min(LEAST_DEPTH, max(width // PANELS_HELD, inner // PANELS_WANTED))
    of_a = max(flattest, nbytes // (share * spec.dtype.itemsize))
    of_b = nbytes // (width * spec.dtype.itemsize)
    deepest = max(1, min(wanted, of_a, of_b))
    ends_b = list(accumulate(spec.b_chunks[0]))
    ends_a = list(accumulate(spec.a_chunks[1]))
    cut = []
    k0 = 0
    while k0 < inner:
        k1 = _last(ends_b, k0, deepest) or _last(ends_a, k0, deepest)
        if k1 is None:  # inside a large chunk: equal steps to its end
            stretch = ends_b[bisect_right(ends_b, k0 + deepest)] if inner > k0 + deepest else inner
            steps = -(-(stretch - k0) // deepest)
            k1 = k0 - (k0 - stretch) // steps
        cut.append((k0, k1))
        k0 = k1
    return tuple(cut)


def deepest_panel(spec: MatmulSpec, workers: int, depth: int = DEFAULT.matmul.panel_depth) -> int:
    """Return the rows of the deepest of the `panels`."""
    return max(k1 - k0 for k0, k1 in panels(spec, workers, depth=depth))


def _last(ends: Sequence[int], k0: int, deepest: int) -> int | None:
    """Return the last end within reach of `k0`, if a panel up to it is at least half full."""
    at = bisect_right(ends, k0 + deepest)
    found = ends[at - 1] if at else 0
    return found if found > k0 and 2 * (found - k0) >= deepest else None


@dataclass(frozen=True)
class Piece:
    """The part of one block that lies in a rectangle.

    Parameters
    ----------
    block
        (i, j), position of the block.
    source
        (row0, row1, column0, column1) within the block.
    target
        (row, column) within the rectangle of its first element.
    """

    block: tuple[int, int]
    source: tuple[int, int, int, int]
    target: tuple[int, int]


def pieces(row0: int, row1: int, column0: int, column1: int, chunks: Chunks) -> tuple[Piece, ...]:
    """Return the pieces of blocks that tile a rectangle, in row-major order of blocks.

    Parameters
    ----------
    row0, row1, column0, column1 : int
        The rectangle, in elements of the whole matrix.
    chunks
        Rows and columns of the blocks; zero sizes are allowed.

    Returns
    -------
    tuple of Piece
        O(number of pieces + number of chunks along both axes).

    Raises
    ------
    PartitionError
        If the rectangle is not inside the matrix.

    Examples
    --------
    >>> pieces(1, 3, 0, 5, ((2, 2), (5,)))[1]
    Piece(block=(1, 0), source=(0, 1, 0, 5), target=(1, 0))
    """
    rows, columns = (
        _along(*bounds) for bounds in zip((row0, column0), (row1, column1), chunks, strict=True)
    )
    return tuple(
        Piece((i, j), (r0, r1, c0, c1), (row, column))
        for i, r0, r1, row in rows
        for j, c0, c1, column in columns
    )


def bounds_in_c(spec: MatmulSpec, tile: Tile) -> tuple[int, ...]:
    """Return the bounds that a tile has in C as it was asked for."""
    return (tile.transpose() if spec.transposed else tile).bounds


def needed(spec: MatmulSpec, tile: Tile) -> dict[tuple[str, int, int], int]:
    """Return the keys of the chunks of A and B that a tile of C is made from, and bytes of each.

    Examples
    --------
    >>> import numpy as np
    >>> halves = ((2, 2), (4,))
    >>> spec = MatmulSpec((4, 4, 4), np.dtype("f8"), halves, halves, "a", "b")
    >>> needed(spec, Tile(0, 0, 1, 4))
    {('a', 0, 0): 32, ('b', 0, 0): 64, ('b', 1, 0): 64}
    """
    inner = spec.shape[1]
    of_a = pieces(tile.row0, tile.row1, 0, inner, spec.a_chunks)
    of_b = pieces(0, inner, tile.column0, tile.column1, spec.b_chunks)
    found: dict[tuple[str, int, int], int] = {}
    for name, those in ((spec.a_name, of_a), (spec.b_name, of_b)):
        for piece in those:
            r0, r1, c0, c1 = piece.source
            key = spec.key(name, piece.block)  # A may be B
            found[key] = found.get(key, 0) + (r1 - r0) * (c1 - c0) * spec.dtype.itemsize
    return found


def _along(low: int, high: int, sizes: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Return (chunk, from, to, offset in the interval) of the chunks that an interval meets."""
    ends = list(accumulate(sizes))
    length = ends[-1] if ends else 0
    if not 0 <= low <= high <= length:
        raise PartitionError(f"the interval {low} … {high} is not within 0 … {length}")
    found = []
    at = bisect_right(ends, low)
    while low < high:
        start = ends[at] - sizes[at]
        stop = min(high, ends[at])
        if stop > low:
            found.append((at, low - start, stop - start, low))
            low = stop
        at += 1
    first = found[0][1] + ends[found[0][0]] - sizes[found[0][0]] if found else 0
    return [(chunk, r0, r1, offset - first) for chunk, r0, r1, offset in found]


def rows_within(spec: MatmulSpec, nbytes: float, depth: int, lazy: Collection[str] = ()) -> float:
    """Return the most rows of C for a worker with so many bytes free; arguments as for `limits`.

    Examples
    --------
    >>> import numpy as np
    >>> spec = MatmulSpec((9, 8, 8), np.dtype("f8"), ((9,), (8,)), ((8,), (8,)), "a", "b")
    >>> rows_within(spec, 2000, 8)
    5.0
    """
    if math.isinf(nbytes):
        return math.inf
    fixed, per_row = _memory(spec, depth, lazy)
    return float(max(0.0, nbytes - fixed) // per_row)


def _memory(spec: MatmulSpec, depth: int, lazy: Collection[str]) -> tuple[int, int]:
    """Return the bytes of the panels of B, and those that each row of C adds."""
    rows, inner, width = spec.shape
    per_row = width + PANELS_HELD * depth
    per_row += inner * (spec.a_name in lazy) + -(-inner * width // rows) * (spec.b_name in lazy)
    # sums of another dtype are there beside the rounded ones for a moment
    sums = width * spec.sums.itemsize if spec.sums != spec.dtype else 0
    itemsize = spec.dtype.itemsize
    return PANELS_HELD * depth * width * itemsize, per_row * itemsize + sums


def limits(
    spec: MatmulSpec,
    nbytes: Sequence[float | None],
    depth: int | None = None,
    lazy: Collection[str] = (),
) -> list[float]:
    """Return the most rows of C that each worker has memory for.

    Parameters
    ----------
    spec : MatmulSpec
        The product.
    nbytes : sequence of float or None
        Free memory per worker, what it already holds subtracted; ``None`` or ``inf``: no limit.
    depth : int, optional
        Rows of the deepest panel of B; `deepest_panel` for as many workers if not given.
    lazy : collection of str, optional
        Names of inputs that are not in memory yet: who gets rows reads as large a part of them.

    Returns
    -------
    list of float
        Whole numbers or ``inf``. A row takes its part of C and of `PANELS_HELD` panels of A, and
        every worker with rows holds as many panels of B.

    Raises
    ------
    PartitionError
        If all workers together cannot hold the rows.

    Examples
    --------
    >>> import numpy as np
    >>> spec = MatmulSpec((9, 8, 8), np.dtype("f8"), ((9,), (8,)), ((8,), (8,)), "a", "b")
    >>> limits(spec, [2000, None])
    [5.0, inf]
    """
    rows = spec.shape[0]
    depth = deepest_panel(spec, max(1, len(nbytes))) if depth is None else depth
    most = [rows_within(spec, math.inf if n is None else n, depth, lazy) for n in nbytes]
    if sum(most) < rows:
        fixed, per_row = _memory(spec, depth, lazy)
        line = "column" if spec.transposed else "row"
        free = [max(0.0, n) for n in nbytes if n is not None]
        raise PartitionError(
            f"{rows} {line}s of C do not fit: the workers have memory for {sum(most):.0f} "
            f"({max(free, default=0.0):.0f} bytes free at most; panels take {fixed}, a {line} "
            f"{per_row}); add workers or memory, free what they hold, or give out=, a Zarr "
            "array of small chunks"
        )
    return most
