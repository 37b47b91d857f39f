"""The matrices that are multiplied, the same however they are cut, and the check of the product."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from functools import cache
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from distributed import Future, wait

PATTERN = 4099  # a prime, so that rows differ
FACTORS = {"a": (1103, 257), "b": (733, 1409)}
CHECKED_ROWS = 12
PANEL = 1024
WARMED = 3 << 29


def block(which: str, top: int, left: int, height: int, width: int) -> np.ndarray:
    """Return a rectangle of matrix "a" or "b", values in -0.5 … 0.5; made on the workers."""
    by_row, by_column = FACTORS[which]
    rows = (np.arange(top, top + height) * by_row) % PATTERN
    columns = (np.arange(left, left + width) * by_column) % PATTERN
    twice = np.resize((np.arange(PATTERN) / PATTERN - 0.5) ** 3 * 4, 2 * PATTERN)
    made = np.empty((height, width))
    for at, row in enumerate(rows):
        np.take(twice[row:], columns, out=made[at], mode="clip")
    return made


def _located(which: str, block_info: Any = None) -> np.ndarray:
    (top, bottom), (left, right) = block_info[None]["array-location"]
    made = block(which, top, left, bottom - top, right - left)
    return made.astype(block_info[None]["dtype"], copy=False)


def chunked(
    client: Any, which: str, chunks: tuple[tuple[int, ...], ...], dtype: Any = float
) -> da.Array:
    """Return the matrix in uniform chunks, in memory where Dask puts them."""
    meta = np.empty((0, 0), dtype)
    lazy = da.map_blocks(_located, which, chunks=chunks, dtype=dtype, meta=meta)
    made = client.persist(lazy)
    wait(made)
    return made


def rows_in_place(client: Any, n: int, shares: Mapping[str, int], where: Mapping[str, str]) -> Any:
    """Return A whose row chunks each worker made for itself, by its share."""
    name = f"a-{uuid4().hex}"
    futures, top = {}, 0
    for i, (worker, rows) in enumerate(shares.items()):
        key = (name, i, 0)
        futures[key] = client.submit(
            block, "a", top, 0, rows, n, key=key, workers=[where[worker]], pure=False
        )
        top += rows
    wait(list(futures.values()))
    return da.Array(futures, name, (tuple(shares.values()), (n,)), dtype=float)


def everywhere(client: Any, n: int, where: Mapping[str, str]) -> da.Array:
    """Return B as one chunk that every worker has made for itself.

    Sent to them by Dask it would begin at any byte, and be copied before BLAS can use it.
    """
    key = (f"b-{uuid4().hex}", 0, 0)
    client.run(_hold, key, n, workers=list(where.values()))
    client.run_on_scheduler(_know, key, 8 * n * n, list(where.values()), client.id)
    b = da.Array({key: Future(key, client)}, key[0], ((n,), (n,)), dtype=float)
    assert len(client.who_has([b.dask[key]])[key]) == len(where), "a replica of B is missing"
    return b


def _hold(key: Any, n: int, dask_worker: Any) -> None:
    dask_worker.update_data({key: block("b", 0, 0, n, n)})


def _know(key: Any, nbytes: int, holders: list[str], client: str, dask_scheduler: Any) -> None:
    dask_scheduler.update_data(who_has={key: holders}, nbytes={key: nbytes}, client=client)


def warm_memory(nbytes: int = WARMED) -> None:
    """Touch memory and give it back, so that whoever asks next is not the first to touch it.

    On a virtual machine that returns free memory to its host after two seconds, pages touched for
    the first time cost 2.3 s per GB, later ones 0.15 s: more than what is compared. Every side is
    given warm memory right before its clock starts.
    """
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, nbytes, mmap.PAGESIZE):
            memory[at] = 1


@cache
def expected(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that are checked and what NumPy makes of them, in float64."""
    height, inner, width = shape
    rows = np.unique(np.linspace(0, height - 1, CHECKED_ROWS).astype(int))
    found = np.zeros((len(rows), width))
    for k in range(0, inner, PANEL):
        depth = min(PANEL, inner - k)
        left = np.concatenate([block("a", int(row), k, 1, depth) for row in rows])
        found += left @ block("b", k, 0, depth, width)
    return rows, found


def check(c: da.Array, inner: int | None = None) -> float:
    """Return the largest error of the checked rows, relative to their largest value.

    Raises
    ------
    AssertionError
        If it is beyond rounding.
    """
    height, width = map(int, c.shape)
    rows, wanted = expected((height, height if inner is None else inner, width))
    found = np.stack([c[int(row)].compute() for row in rows])
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    most = 1e-11 if c.dtype == np.float64 else 1e-3
    assert error < most, f"the product is wrong: relative error {error:.2e}"
    return error
