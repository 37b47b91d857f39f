"""The panels of a share: taken where they are, received while the one before is multiplied."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from fpmdask.apps.matmul.chunk_locations import ChunkLocations
from fpmdask.apps.matmul.plan import MatmulSpec, Tile, pieces
from fpmdask.apps.matmul.relays import RELAYED, relayed_key
from fpmdask.apps.matmul.worker.relay import check_of
from fpmdask.errors import PartitionError
from fpmdask.runtime.regions import Box
from fpmdask.runtime.worker.fetch import Fetch, FetchFailed, Want
from fpmdask.runtime.worker.space import RunSpace

# Sums of others are added in bands of so much.
BAND_NBYTES = 1 << 19


@dataclass(frozen=True)
class Piece:
    """A piece of a chunk of an operand, and where it goes in a panel."""

    operand: str
    key: Any
    shape: tuple[int, int]  # of the whole chunk
    box: Box
    target: tuple[int, int]

    def inside(self, panel: np.ndarray) -> np.ndarray:
        """Return its place in a panel."""
        (r0, r1), (c0, c1) = self.box
        row, column = self.target
        return panel[row : row + r1 - r0, column : column + c1 - c0]


class ChunksMissing(Exception):
    """Chunks that no holder could give; the coordinator finds out where they are now."""

    def __init__(self, keys: Sequence[Any]) -> None:
        super().__init__(f"{len(keys)} chunks are not where they were")
        self.keys = [key[1] if key[0] == RELAYED else key for key in keys]


@dataclass(frozen=True)
class Panel:
    """A's rows and B's columns of a tile of C for one range of K, ready for BLAS."""

    tile: Tile
    a: np.ndarray
    b: np.ndarray
    nbytes_received: int
    cpu_seconds: float

    def of(self, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
        """Return what of A and B a tile within the panel's one needs."""
        rows = slice(tile.row0 - self.tile.row0, tile.row1 - self.tile.row0)
        columns = slice(tile.column0 - self.tile.column0, tile.column1 - self.tile.column0)
        return self.a[rows], self.b[:, columns]


class Fetcher:
    """Gets the panels of one share, one ahead.

    Two buffers each for A and B in the worker's scratch take turns: BLAS reads one while the next
    panel is received into the other. They have the size of the deepest panel, and no room beyond.
    """

    def __init__(self, space: RunSpace, spec: MatmulSpec, order: Mapping[str, Any]) -> None:
        self.space, self.spec, self.order = space, spec, order
        self.where = ChunkLocations.unpacked(spec, order["where"])
        space.exchange.know(self.where.channels, order["bare"])
        self._deepest = max((k1 - k0 for k0, k1 in order["panels"]), default=0)
        self._thread = ThreadPoolExecutor(1, "fpmdask-panel")
        self._fetching: Fetch | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed = True
        if self._fetching is not None:
            self._fetching.stop()  # a panel that is on the way is not wanted any more
        self._thread.shutdown()

    def start(self, index: int, tile: Tile) -> Future[Panel]:
        """Begin with panel ``index``; the one before the last one started may be overwritten."""
        return self._thread.submit(self._fetch, index, tile)

    def take(
        self,
        key: Any,
        tile: Tile,
        peer: str,
        address: Sequence[Any] | None,
        add: Callable[[Tile, np.ndarray], None],
    ) -> None:
        """Receive what a worker has offered under ``key`` for a rectangle of C, in bands of rows.

        All bands come in the same part of a panel's buffer, which a cache holds; ``add`` is called
        with each, before the next one comes. Only while no panel is wanted.

        Raises
        ------
        ChunksMissing
            If the peer is gone.
        """
        dtype = self.spec.sums
        height = min(tile.height, max(1, BAND_NBYTES // (tile.width * dtype.itemsize)))
        if address is not None:
            self.space.exchange.know({peer: address})
        buffer: np.ndarray = self.space.scratch.take("matmul.a0", (height, tile.width), dtype)

        def arrived(want: Want) -> None:
            (low, high), _ = want.box
            add(Tile(tile.row0 + low, tile.column0, tile.row0 + high, tile.column1), want.out)

        bands = [(top, min(top + height, tile.height)) for top in range(0, tile.height, height)]
        wants = [
            Want(key, ((top, stop), (0, tile.width)), buffer[: stop - top], (peer,))
            for top, stop in bands
        ]
        self._ended(self._begun(wants, arrived))

    def _fetch(self, index: int, tile: Tile) -> Panel:
        began = time.thread_time()
        k0, k1 = self.order["panels"][index]
        shapes = {"a": (tile.height, k1 - k0), "b": (k1 - k0, tile.width)}
        wanted = self._pieces(tile, k0, k1)
        here = self.space.exchange.here([(one.key, one.box, one.shape) for one in wanted])
        panels = {
            operand: self._panel(operand, index, here, wanted, self._as_it_lies(shape))
            for operand, shape in shapes.items()
        }
        remote = [one for n, one in enumerate(wanted) if n not in here]
        fetch = self._begun([self._want(one, panels, relayed=True) for one in remote])
        try:
            for n, found in here.items():
                panel = panels[wanted[n].operand]
                if panel is not found:
                    self.spec.check_chunk(wanted[n].key, found.dtype)
                    wanted[n].inside(panel)[...] = found
        except PartitionError:
            fetch.cancel()  # the pieces that were asked for are on their way
            raise
        try:
            fetch = self._ended(fetch)
        except ChunksMissing as missing:
            if self.where.relays.keys().isdisjoint(missing.keys):
                raise
            # whoever was to relay them cannot: their owners are asked
            fetch = self._ended(self._begun([self._want(one, panels) for one in remote]))
        a, b = (panels[o].T if self.spec.transposed else panels[o] for o in shapes)
        spent = time.thread_time() - began + fetch.cpu_seconds
        return Panel(tile, a, b, fetch.nbytes, spent)

    def _pieces(self, tile: Tile, k0: int, k1: int) -> list[Piece]:
        spec = self.spec
        rectangles = {
            "a": (spec.a_name, spec.a_chunks, (tile.row0, tile.row1, k0, k1)),
            "b": (spec.b_name, spec.b_chunks, (k0, k1, tile.column0, tile.column1)),
        }
        found = []
        for operand, (name, chunks, rectangle) in rectangles.items():
            for piece in pieces(*rectangle, chunks):
                key = spec.key(name, piece.block)
                r0, r1, c0, c1 = piece.source
                box = self._as_it_lies(((r0, r1), (c0, c1)))
                target = self._as_it_lies(piece.target)
                found.append(Piece(operand, key, spec.chunk_shape(key), box, target))
        return found

    def _as_it_lies(self, axes: tuple[Any, Any]) -> Any:
        """Return what is of rows and of columns, that of the rows of the chunks first."""
        return axes[::-1] if self.spec.transposed else axes

    def _want(self, one: Piece, panels: Mapping[str, np.ndarray], *, relayed: bool = False) -> Want:
        place, relay = one.inside(panels[one.operand]), self.where.relays.get(one.key)
        if relayed and relay is not None:
            return Want(relayed_key(one.key), one.box, place, (relay,))
        holders = self.where.holders.get(one.key, ())
        return Want(one.key, one.box, place, holders, shape=one.shape)

    def _begun(self, wants: Sequence[Want], arrived: Callable[[Want], None] | None = None) -> Fetch:
        try:
            fetch = self.space.exchange.fetch(wants, arrived, check=check_of(self.spec), at_once=0)
        except FetchFailed as failed:
            raise ChunksMissing(failed.keys) from failed
        self._fetching = fetch
        if self._closed:
            fetch.stop()
        return fetch

    def _ended(self, fetch: Fetch) -> Fetch:
        try:
            fetch.wait()
        except FetchFailed as failed:
            raise ChunksMissing(failed.keys) from failed
        return fetch

    def _panel(
        self,
        operand: str,
        index: int,
        here: Mapping[int, np.ndarray],
        wanted: Sequence[Piece],
        shape: tuple[int, int],
    ) -> np.ndarray:
        """Return the memory of a panel: the one local piece that it is, or a buffer.

        What came over the network begins at any byte. BLAS would get a copy of it for every band of
        rows, on memory touched for the first time: up to a tenth of a small worker's run.
        """
        of_it = [n for n, one in enumerate(wanted) if one.operand == operand]
        piece = here.get(of_it[0]) if len(of_it) == 1 else None
        if (
            piece is not None
            and piece.dtype == self.spec.dtype
            and piece.flags.aligned
            and piece.shape == shape
        ):
            return piece
        label, size = f"matmul.{operand}{index % 2}", math.prod(shape)
        k0, k1 = self.order["panels"][index]
        largest = size // (k1 - k0) * self._deepest
        buffer = self.space.scratch.take(label, largest, self.spec.dtype, exact=True)
        return buffer[:size].reshape(shape)
