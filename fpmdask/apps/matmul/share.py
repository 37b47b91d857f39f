"""A worker's share of a product: receive panels while multiplying, keep the part of C."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from fpmdask.apps.matmul.kernel import NAME, panel_update
from fpmdask.apps.matmul.plan import MatmulSpec, pieces
from fpmdask.coordinator.steps import step
from fpmdask.coordinator.worker import RunSpace, WorkerSide, checked_chunk
from fpmdask.errors import PartitionError

# A peer that does not answer for so long is taken for gone.
PEER_SECONDS = 120.0

Placed = list[tuple[np.ndarray, tuple[int, int]]]


@dataclass(frozen=True)
class Wanted:
    """A piece of a chunk: of which operand, which rows and columns, and where it goes."""

    operand: str
    key: Any
    shape: tuple[int, int]  # of the whole chunk
    source: tuple[int, int, int, int]
    target: tuple[int, int]


class ChunksMissing(Exception):
    """Chunks that no holder could give; the coordinator finds out where they are now."""

    def __init__(self, keys: Sequence[Any]) -> None:
        super().__init__(f"{len(keys)} chunks are not where they were")
        self.keys = list(keys)


@dataclass
class Progress:
    """A share that is not finished: C so far and how many panels are in it."""

    c: np.ndarray
    panels_done: int = 0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    nbytes_received: int = 0


@dataclass(frozen=True)
class Panel:
    """The pieces of A's slice and of B for one range of K, as they came."""

    a: Placed
    b: Placed
    nbytes_received: int


def multiply_share(order: Mapping[str, Any]) -> None:
    """Task: compute rows ``order["rows"]`` of C and keep them as part ``order["part"]``."""
    step(order, lambda side, space: _multiply(side, space, order))


def _multiply(side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = MatmulSpec.from_json(order["product"])
    row0, row1 = order["rows"]
    part = order["part"]
    progress = space.partial.get(part)
    if progress is None:
        # C on the memory that the timed kernel has touched already; the rest of that is given back
        c = space.scratch.hand_over(f"{NAME}.c", (row1 - row0, spec.shape[2]), spec.dtype)
        space.scratch.clear()
        progress = space.partial[part] = Progress(c)
    panels = order["panels"]
    began = time.perf_counter()
    with side.blas_threads():
        ahead = _fetch(side, spec, order, progress.panels_done)
        while progress.panels_done < len(panels):
            waiting = time.perf_counter()
            try:
                panel = ahead.result()
            except ChunksMissing as missing:
                return {"missing": missing.keys}
            except PartitionError as unusable:
                return {"unusable": str(unusable)}
            progress.wait_seconds += time.perf_counter() - waiting
            k0, k1 = panels[progress.panels_done]
            a = _assembled(space, "matmul.a", panel.a, (row1 - row0, k1 - k0), spec.dtype)
            b = _assembled(space, "matmul.b", panel.b, (k1 - k0, spec.shape[2]), spec.dtype)
            progress.nbytes_received += panel.nbytes_received
            # Only now the next one: so never more than two panels are here.
            del panel, ahead
            if progress.panels_done + 1 < len(panels):
                ahead = _fetch(side, spec, order, progress.panels_done + 1)
            _update(side, progress, a, b)
            del a, b
            if space.cancelled.is_set():
                return {"cancelled": True}
    space.parts[part] = progress.c
    del space.partial[part]
    return {
        "seconds": time.perf_counter() - began,
        "compute_seconds": progress.compute_seconds,
        "wait_seconds": progress.wait_seconds,
        "nbytes_received": progress.nbytes_received,
        "nbytes": int(progress.c.nbytes),
    }


def _update(side: WorkerSide, progress: Progress, a: np.ndarray, b: np.ndarray) -> None:
    """C += A_panel · B_panel; the first panel overwrites."""
    began = time.perf_counter()
    beta = 1.0 if progress.panels_done else 0.0
    panel_update(a, b, progress.c, beta=beta, threads=side.worker.state.nthreads)
    progress.panels_done += 1
    progress.compute_seconds += time.perf_counter() - began


def _assembled(
    space: RunSpace, label: str, placed: Placed, shape: tuple[int, int], dtype: Any
) -> np.ndarray:
    """Return the pieces as one matrix that BLAS can use; a single piece may be that already.

    What came over the network begins at any byte. BLAS would get a copy of it for every band of
    rows, on memory touched for the first time: up to a tenth of a small worker's run.
    """
    piece = placed[0][0]
    if len(placed) == 1 and piece.dtype == dtype and piece.shape == shape and piece.flags.aligned:
        return piece
    whole: np.ndarray = space.scratch.take(label, shape, dtype)
    for piece, (row, column) in placed:
        whole[row : row + piece.shape[0], column : column + piece.shape[1]] = piece
    return whole


def _fetch(
    side: WorkerSide, spec: MatmulSpec, order: Mapping[str, Any], index: int
) -> Future[Panel]:
    """Start to get panel ``index`` on the worker's event loop."""
    k0, k1 = order["panels"][index]
    row0, row1 = order["rows"]
    sources = [
        ("a", spec.a_name, spec.a_chunks, (row0, row1, k0, k1)),
        ("b", spec.b_name, spec.b_chunks, (k0, k1, 0, spec.shape[2])),
    ]
    wanted = [
        Wanted(
            operand,
            (name, *piece.block),
            (chunks[0][piece.block[0]], chunks[1][piece.block[1]]),
            piece.source,
            piece.target,
        )
        for operand, name, chunks, rectangle in sources
        for piece in pieces(*rectangle, chunks)
    ]
    loop: Any = side.worker.loop
    return asyncio.run_coroutine_threadsafe(
        _gather(side, wanted, order["holders"]), loop.asyncio_loop
    )


async def _gather(
    side: WorkerSide, wanted: Sequence[Wanted], holders: Mapping[Any, Sequence[str]]
) -> Panel:
    """Take what is here without a copy; ask each peer once for all that it has."""
    placed: dict[str, Placed] = {"a": [], "b": []}
    here: Mapping[Any, Any] = side.worker.data
    remote: dict[str, list[Wanted]] = {}
    missing = []
    for item in wanted:
        r0, r1, c0, c1 = item.source
        peers = [address for address in holders[item.key] if address != side.worker.address]
        if item.key in here:
            chunk = checked_chunk(item.key, here[item.key], item.shape)
            placed[item.operand].append((chunk[r0:r1, c0:c1], item.target))
        elif peers:
            # spread the load of replicated chunks over their holders, the same way every time
            chosen = peers[crc32(f"{side.worker.address}{item.key}".encode()) % len(peers)]
            remote.setdefault(chosen, []).append(item)
        else:
            missing.append(item.key)
    if missing:
        raise ChunksMissing(missing)
    answers = await asyncio.gather(*(_ask(side, peer, items) for peer, items in remote.items()))
    nbytes = 0
    for items, arrays in zip(remote.values(), answers, strict=True):
        for item, array in zip(items, arrays, strict=True):
            placed[item.operand].append((array, item.target))
            nbytes += array.nbytes
    return Panel(placed["a"], placed["b"], nbytes)


async def _ask(side: WorkerSide, peer: str, items: Sequence[Wanted]) -> list[np.ndarray]:
    """Get pieces from one peer."""
    keys = [item.key for item in items]
    wanted = [(item.key, item.source, item.shape) for item in items]
    answer = await side.ask(peer, PEER_SECONDS, wanted)
    if answer is None:
        raise ChunksMissing(keys)
    if "missing" in answer:
        raise ChunksMissing(answer["missing"])
    if "unusable" in answer:
        raise PartitionError(answer["unusable"])
    received: list[np.ndarray] = answer["pieces"]
    return received
