"""A worker's share of a product: receive panels while multiplying, keep the part of C."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fpmdask.apps.matmul.fetch import ChunksMissing, Fetcher
from fpmdask.apps.matmul.kernel import NAME, panel_update
from fpmdask.apps.matmul.plan import MatmulSpec, Tile
from fpmdask.coordinator.steps import step
from fpmdask.coordinator.worker import RunSpace, WorkerSide
from fpmdask.errors import PartitionError


@dataclass(frozen=True)
class Part:
    """A tile of C as the chunks that it will become, each with memory of its own.

    Parameters
    ----------
    cells
        (tile in elements of C, its array), covering the part's tile.
    """

    cells: tuple[tuple[Tile, np.ndarray], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return sum(cell.nbytes for _, cell in self.cells)

    def chunk(self, bounds: Sequence[int]) -> np.ndarray:
        """Return the elements ``(row0, row1, column0, column1)`` of C, which lie in one cell.

        The cell itself without a copy where it is the whole chunk. A cell is cut only when parts
        were shared out anew after a loss.
        """
        row0, row1, column0, column1 = bounds
        for tile, cell in self.cells:
            if tile.row0 <= row0 < tile.row1 and tile.column0 <= column0 < tile.column1:
                if tile.bounds == tuple(bounds):
                    return cell
                rows = slice(row0 - tile.row0, row1 - tile.row0)
                columns = slice(column0 - tile.column0, column1 - tile.column0)
                return cell[rows, columns].copy()
        raise KeyError(f"no cell holds {tuple(bounds)}")


@dataclass
class Progress:
    """A share that is not finished: C so far and how many panels are in it."""

    part: Part
    panels_done: int = 0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    nbytes_received: int = 0


def multiply_share(order: Mapping[str, Any]) -> None:
    """Task: compute the tile ``order["tile"]`` of C and keep it as part ``order["part"]``."""
    step(order, lambda side, space: _multiply(side, space, order))


def _multiply(side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = MatmulSpec.from_json(order["product"])
    part = order["part"]
    progress = space.partial.get(part)
    if progress is None:
        progress = space.partial[part] = Progress(_allocated(space, spec, order))
    panels = order["panels"]
    began = time.perf_counter()
    with side.blas_threads(), Fetcher(side, space, spec, order) as fetcher:
        ahead = fetcher.start(progress.panels_done)
        while progress.panels_done < len(panels):
            waiting = time.perf_counter()
            try:
                panel = ahead.result()
            except ChunksMissing as missing:
                return {"missing": missing.keys}
            except PartitionError as unusable:
                return {"unusable": str(unusable)}
            progress.wait_seconds += time.perf_counter() - waiting
            progress.nbytes_received += panel.nbytes_received
            # Only now the next one: so never more than two panels are here.
            if progress.panels_done + 1 < len(panels):
                ahead = fetcher.start(progress.panels_done + 1)
            _update(side, progress, order["tile"], panel.a, panel.b)
            del panel
            if space.cancelled.is_set():
                return {"cancelled": True}
    space.parts[part] = progress.part
    space.partial.pop(part, None)  # the run may be over just now
    return {
        "seconds": time.perf_counter() - began,
        "compute_seconds": progress.compute_seconds,
        "wait_seconds": progress.wait_seconds,
        "nbytes_received": progress.nbytes_received,
        "nbytes": int(progress.part.nbytes),
    }


def _allocated(space: RunSpace, spec: MatmulSpec, order: Mapping[str, Any]) -> Part:
    """Return the memory of a share, cut where the chunks of C will be.

    One cell takes the memory that the timed kernel has touched already; the rest of that is given
    back.
    """
    row0, row1, column0, column1 = order["tile"]
    rows = [row0, *(cut for cut in order["cuts"][0] if row0 < cut < row1), row1]
    columns = [column0, *(cut for cut in order["cuts"][1] if column0 < cut < column1), column1]
    tiles = [Tile(r0, c0, r1, c1) for r0, r1 in pairwise(rows) for c0, c1 in pairwise(columns)]
    largest = max(tiles, key=lambda tile: tile.area)
    touched = space.scratch.hand_over(f"{NAME}.c", (largest.height, largest.width), spec.dtype)
    space.scratch.clear()
    return Part(
        tuple(
            (t, touched if t is largest else np.empty((t.height, t.width), spec.dtype))
            for t in tiles
        )
    )


def _update(
    side: WorkerSide, progress: Progress, tile: Sequence[int], a: np.ndarray, b: np.ndarray
) -> None:
    """C += A_panel · B_panel; the first panel overwrites."""
    began = time.perf_counter()
    beta = 1.0 if progress.panels_done else 0.0
    row0, _, column0, _ = tile
    for at, cell in progress.part.cells:
        left = a[at.row0 - row0 : at.row1 - row0]
        right = b[:, at.column0 - column0 : at.column1 - column0]
        panel_update(left, right, cell, beta=beta, threads=side.worker.state.nthreads)
    progress.panels_done += 1
    progress.compute_seconds += time.perf_counter() - began
