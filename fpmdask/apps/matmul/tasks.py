"""Tasks of products: sums over ranges of K, their parts, and a lost chunk of C made again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from distributed import get_worker

from fpmdask.apps.matmul.blas import copied, gemm_accumulate, uses_blas
from fpmdask.apps.matmul.plan import MatmulSpec, pieces
from fpmdask.runtime.worker.blas_threads import blas_threads
from fpmdask.runtime.worker.serving import checked_chunk

# What has to be converted is so in panels along K of about so many bytes, at least so deep.
PANEL_NBYTES, LEAST_DEPTH = 4 << 20, 64

# From … to, in what is so long, and the row and the column of the chunk that is, or is of.
Range = tuple[int, int, int, int, int]


def between(
    key: tuple[str, int, int],
    shape: tuple[int, int],
    axis: int,
    low: int,
    high: int,
    chunk: np.ndarray,
) -> np.ndarray:
    """Return some columns (axis 1) or rows (0) of a chunk."""
    found = checked_chunk(key, chunk, shape)
    return found[:, low:high] if axis else found[low:high]


def summed(
    product: Mapping[str, Any],
    ranges: Sequence[tuple[Sequence[Range], Sequence[Range]]],
    of_a: Sequence[np.ndarray],
    of_b: Sequence[np.ndarray],
) -> tuple[np.ndarray, float]:
    """Return the sum over ranges of K, and the seconds that it took.

    Parameters
    ----------
    product
        The `MatmulSpec`; how it cuts K does not matter.
    ranges
        For each range, where it is in the columns of each chunk of A, from top to bottom, and in
        the rows of each chunk of B, from left to right, and how many of them that has. Without any
        of one, it is the other's transpose.
    of_a, of_b
        These chunks, those of one range after the other.

    Notes
    -----
    Of a matrix by its transpose the half on and above the diagonal is computed, and mirrored.
    Chunks are taken as they lie, or converted in panels: beside C there are a few MiB.
    """
    began = time.perf_counter()
    spec = MatmulSpec.from_json(product)
    rows, _, columns = spec.shape
    c = np.zeros((rows, columns), dtype=spec.sums)
    tops, lefts = ([*accumulate(n, initial=0)] for n in (spec.a_chunks[0], spec.b_chunks[1]))
    lefts_of_a, rights_of_b = iter(of_a), iter(of_b)
    half = any(not at_a or not at_b for at_a, at_b in ranges)
    threads = get_worker().state.nthreads
    with blas_threads.limited(threads):
        for at_a, at_b in ranges:
            left = [
                _slab(spec, spec.a_name, 1, height, at, next(lefts_of_a))
                for height, at in zip(spec.a_chunks[0], at_a, strict=bool(at_a))
            ]
            right = [
                _slab(spec, spec.b_name, 0, width, at, next(rights_of_b))
                for width, at in zip(spec.b_chunks[1], at_b, strict=bool(at_b))
            ]
            left = left or [x.T for x in right]
            right = right or [x.T for x in left]
            for m, some in enumerate(left):
                for n, more in enumerate(right[m:] if half else right, m if half else 0):
                    target = c[tops[m] : tops[m + 1], lefts[n] : lefts[n + 1]]
                    _add_product(some, more, target, spec.dtype, threads)
        if half:
            for top, bottom in pairwise(tops):
                c[bottom:, top:bottom] = c[top:bottom, bottom:].T
    return c, time.perf_counter() - began


def _add_product(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: np.dtype[Any], threads: int
) -> None:
    """Add a product of operands that are computed with as `dtype`."""
    if not c.size:  # of an empty chunk
        return
    depth = a.shape[1]
    panel = max(1, depth)
    if copied(a, c.dtype) or copied(b, c.dtype):
        panel = max(LEAST_DEPTH, PANEL_NBYTES // ((len(a) + b.shape[1]) * c.itemsize))
    elif uses_blas(c.dtype) and _mirrored(a, b):
        c += a @ b  # NumPy makes half of it and mirrors that
        return
    for low in range(0, depth, panel):
        left, right = a[:, low : low + panel], b[low : low + panel]
        left, right = left.astype(dtype, copy=False), right.astype(dtype, copy=False)
        gemm_accumulate(left, right, c, threads=threads)


def _mirrored(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether one matrix is the other's transpose, in the same memory."""
    same = a.__array_interface__["data"] == b.__array_interface__["data"]
    return same and a.shape == b.shape[::-1] and a.strides == b.strides[::-1]


def _slab(
    spec: MatmulSpec, name: str, axis: int, side: int, at: Range, chunk: np.ndarray
) -> np.ndarray:
    """Return a range of a chunk of A (axis 1) or B (0), whose other side is `side`."""
    low, high, length, *place = at
    key = name, *place
    found = checked_chunk(key, chunk, (side, length) if axis else (length, side))
    spec.check_chunk(key, found.dtype)
    return found[:, low:high] if axis else found[low:high]


def part_of(axis: int, low: int, high: int, made: tuple[np.ndarray, float]) -> np.ndarray:
    """Return some columns (axis 1) or rows (0) of a sum."""
    return made[0][:, low:high] if axis else made[0][low:high]


def total(dtype: str, *parts: np.ndarray) -> np.ndarray:
    """Return a part of C."""
    found = parts[0].copy()
    for more in parts[1:]:
        found += more
    return found.astype(dtype, copy=False)


def told(facts: tuple[str, int, int], made: tuple[np.ndarray, float]) -> dict[str, Any]:
    """Return what a worker did."""
    worker, units, nbytes = facts
    return {"worker": worker, "units": units, "seconds": made[1], "nbytes_received": nbytes}


def recompute(
    product: Mapping[str, Any],
    bounds: tuple[int, int, int, int],
    a_positions: Sequence[tuple[int, int]],
    a_blocks: Sequence[np.ndarray],
    b_positions: Sequence[tuple[int, int]],
    b_blocks: Sequence[np.ndarray],
) -> np.ndarray:
    """Task: elements ``bounds`` of C from whole chunks of A and B, on any worker."""
    spec = MatmulSpec.from_json(product)
    of_a = dict(zip(map(tuple, a_positions), a_blocks, strict=True))
    of_b = dict(zip(map(tuple, b_positions), b_blocks, strict=True))
    for name, blocks in ((spec.a_name, of_a), (spec.b_name, of_b)):
        for at, block in blocks.items():
            spec.check_chunk((name, *at), block.dtype)
    row0, row1, column0, column1 = bounds
    c = np.zeros((row1 - row0, column1 - column0), dtype=spec.sums)
    k0 = 0
    for depth in spec.a_chunks[1]:
        panel = np.empty((c.shape[0], depth), dtype=spec.dtype)
        for piece in pieces(row0, row1, k0, k0 + depth, spec.a_chunks):
            r0, r1, c0, c1 = piece.source
            row, column = piece.target
            block = of_a[piece.block][r0:r1, c0:c1]
            panel[row : row + block.shape[0], column : column + block.shape[1]] = block
        for piece in pieces(k0, k0 + depth, column0, column1, spec.b_chunks):
            r0, r1, c0, c1 = piece.source
            row, column = piece.target
            block = of_b[piece.block][r0:r1, c0:c1]
            target = c[:, column : column + block.shape[1]]
            left = panel[:, row : row + block.shape[0]]
            gemm_accumulate(left, block.astype(spec.dtype, copy=False), target)
        k0 += depth
    return c.astype(spec.dtype, copy=False)
