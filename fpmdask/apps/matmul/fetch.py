"""The panels of a share: taken where they are, received while the one before is multiplied."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import numpy as np

from fpmdask.apps.matmul.plan import MatmulSpec, Tile, pieces
from fpmdask.apps.matmul.whereabouts import Whereabouts
from fpmdask.coordinator.channel import Channel
from fpmdask.coordinator.space import RELAY_SECONDS, RELAYED, RunSpace, relayed_key
from fpmdask.coordinator.worker import WorkerSide, checked_chunk
from fpmdask.errors import PartitionError
from fpmdask.runtime.dask_private import fetch_whole

# A peer that does not answer for so long is taken for gone.
PEER_SECONDS = 120.0
# A worker that sends as much as it may is asked again after so long.
BUSY_SECONDS = 0.1
# Sums of others are added in bands of so much.
BAND_NBYTES = 1 << 19


@dataclass(frozen=True)
class Wanted:
    """A piece of a chunk: of which operand, which rows and columns, and where it goes."""

    operand: str
    key: Any
    shape: tuple[int, int]  # of the whole chunk
    source: tuple[int, int, int, int]
    target: tuple[int, int]

    @property
    def request(self) -> tuple[Any, tuple[int, int, int, int], tuple[int, int]]:
        """What its holder is asked."""
        return self.key, self.source, self.shape

    def inside(self, panel: np.ndarray) -> np.ndarray:
        """Return its place in a panel."""
        r0, r1, c0, c1 = self.source
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
    """Gets the panels of one share, one ahead, in a thread.

    Two buffers each for A and B in the worker's scratch take turns: BLAS reads one while the next
    panel is received into the other. They have the size of the deepest panel, and no room beyond.
    """

    def __init__(
        self, side: WorkerSide, space: RunSpace, spec: MatmulSpec, order: Mapping[str, Any]
    ) -> None:
        self.side, self.space, self.spec, self.order = side, space, spec, order
        self.where = Whereabouts.unpacked(spec, order["where"])
        self._addresses: dict[str, tuple[str, int]] = dict(self.where.channels)
        self._deepest = max((k1 - k0 for k0, k1 in order["panels"]), default=0)
        self._bare = frozenset(order["bare"])  # holders without fpmdask
        self._thread = ThreadPoolExecutor(1, "fpmdask-fetch")
        self._open = ExitStack()
        self._channels: dict[str, Channel] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for channel in list(self._channels.values()):
            channel.shut()  # a panel that is on the way is not wanted any more
        self._thread.shutdown()
        self._open.close()

    def start(self, index: int, tile: Tile) -> Future[Panel]:
        """Begin with panel ``index``; the one before the last one started may be overwritten."""
        k0, k1 = self.order["panels"][index]
        spec = self.spec
        rectangles = {
            "a": (spec.a_name, spec.a_chunks, (tile.row0, tile.row1, k0, k1)),
            "b": (spec.b_name, spec.b_chunks, (k0, k1, tile.column0, tile.column1)),
        }
        wanted = [
            Wanted(
                operand,
                key,
                spec.chunk_shape(key),
                self._as_it_lies(piece.source),
                self._as_it_lies(piece.target),
            )
            for operand, (name, chunks, rectangle) in rectangles.items()
            for piece in pieces(*rectangle, chunks)
            for key in [spec.key(name, piece.block)]
        ]
        return self._thread.submit(self._fetch, index, wanted, tile, k1 - k0)

    def _as_it_lies(self, lines: tuple[int, ...]) -> Any:
        """Return numbers of rows and of columns, those of rows of the chunks first."""
        half = len(lines) // 2
        return (*lines[half:], *lines[:half]) if self.spec.transposed else lines

    def take(
        self, key: Any, tile: Tile, peer: str, address: tuple[str, int] | None
    ) -> Iterator[tuple[Tile, np.ndarray]]:
        """Yield what a worker has offered under ``key`` for a rectangle of C, in bands of rows.

        All bands come in the same part of a panel's buffer, which a cache holds. Only while no
        panel is wanted.

        Raises
        ------
        ChunksMissing
            If the peer is gone.
        """
        shape, dtype = (tile.height, tile.width), self.spec.sums
        height = min(tile.height, max(1, BAND_NBYTES // (tile.width * dtype.itemsize)))
        tops = range(0, tile.height, height)
        bands = [(top, min(top + height, tile.height)) for top in tops]
        items = [Wanted("c", key, shape, (*band, 0, tile.width), (0, 0)) for band in bands]
        if address is not None:
            self._addresses.setdefault(peer, address)
        buffer: np.ndarray = self.space.scratch.take("matmul.a0", (height, tile.width), dtype)
        arriving = self._receive(peer, self._asked(peer, items), items, {"c": buffer})
        for (low, high), _ in zip(bands, arriving, strict=True):
            at = Tile(tile.row0 + low, tile.column0, tile.row0 + high, tile.column1)
            yield at, buffer[: high - low]

    def _fetch(self, index: int, wanted: Sequence[Wanted], tile: Tile, depth: int) -> Panel:
        began = time.thread_time()
        shapes = {"a": (tile.height, depth), "b": (depth, tile.width)}
        here, remote = self._placed(wanted)
        panels = {
            o: self._panel(o, index, here, wanted, self._as_it_lies(shape))
            for o, shape in shapes.items()
        }
        asked = {peer: self._asked(peer, items) for peer, items in remote.items()}
        for item, piece in here:
            if panels[item.operand] is not piece:
                self.spec.check_chunk(item.key, piece.dtype)
                item.inside(panels[item.operand])[...] = piece
        nbytes = 0
        for peer, items in remote.items():
            nbytes += sum(self._receive(peer, asked[peer], items, panels))
        a, b = (panels[o].T if self.spec.transposed else panels[o] for o in shapes)
        return Panel(tile, a, b, nbytes, time.thread_time() - began)

    def _placed(
        self, wanted: Sequence[Wanted]
    ) -> tuple[list[tuple[Wanted, np.ndarray]], dict[str, list[Wanted]]]:
        """Return what is here, as views, and what which peer is to be asked for."""

        async def look() -> dict[Any, Any]:
            data: Mapping[Any, Any] = self.side.worker.data
            return {item.key: data[item.key] for item in wanted if item.key in data}

        chunks = self._on_loop(look())
        here, remote, missing = [], dict[str, list[Wanted]](), []
        own = self.side.worker.address
        for item in wanted:
            r0, r1, c0, c1 = item.source
            relay = None if item.key in chunks else self.where.relays.get(item.key)
            if relay == own:
                arrived = self.space.wait_for(relayed_key(item.key), item.source, RELAY_SECONDS)
                if arrived is not None:
                    here.append((item, arrived[r0:r1, c0:c1]))
                    continue
            elif relay is not None:
                asked = replace(item, key=relayed_key(item.key))
                remote.setdefault(relay, []).append(asked)
                continue
            peers = [peer for peer in self.where.holders.get(item.key, ()) if peer != own]
            if item.key in chunks:
                chunk = checked_chunk(item.key, chunks[item.key], item.shape)
                here.append((item, chunk[r0:r1, c0:c1]))
            elif peers:
                # spread the load of replicated chunks over their holders, always the same way
                chosen = peers[crc32(f"{own}{item.key}".encode()) % len(peers)]
                remote.setdefault(chosen, []).append(item)
            else:
                missing.append(item.key)
        if missing:
            raise ChunksMissing(missing)
        return here, remote

    def _panel(
        self,
        operand: str,
        index: int,
        here: Sequence[tuple[Wanted, np.ndarray]],
        wanted: Sequence[Wanted],
        shape: tuple[int, int],
    ) -> np.ndarray:
        """Return the memory of a panel: the one local piece that it is, or a buffer.

        What came over the network begins at any byte. BLAS would get a copy of it for every band of
        rows, on memory touched for the first time: up to a tenth of a small worker's run.
        """
        if sum(item.operand == operand for item in wanted) == 1:
            for item, piece in here:
                fits = piece.dtype == self.spec.dtype and piece.flags.aligned
                if item.operand == operand and fits and piece.shape == shape:
                    return piece
        label, size = f"matmul.{operand}{index % 2}", math.prod(shape)
        k0, k1 = self.order["panels"][index]
        largest = size // (k1 - k0) * self._deepest
        buffer = self.space.scratch.take(label, largest, self.spec.dtype, exact=True)
        return buffer[:size].reshape(shape)

    def _asked(self, peer: str, items: Sequence[Wanted]) -> Channel | None:
        """Send a peer the request over its channel; None where there is no way to it."""
        channel = self._channels.get(peer)
        if channel is None:
            address = self._addresses.get(peer)
            if address is None or peer in self.side.unreachable:
                return None
            try:
                if self.space.cancelled.is_set():
                    raise ChunksMissing([item.key for item in items])  # nobody would shut it
                opening = self.side.channel(peer, (address[0], address[1]))
                channel = self._channels[peer] = self._open.enter_context(opening)
            except OSError:  # a firewall, perhaps: Dask's messages may go through
                self.side.unreachable.add(peer)
                return None
        try:
            channel.ask(self.order["run"], [item.request for item in items])
        except OSError as error:
            raise ChunksMissing([item.key for item in items]) from error
        return channel

    def _receive(
        self,
        peer: str,
        channel: Channel | None,
        items: Sequence[Wanted],
        panels: Mapping[str, np.ndarray],
    ) -> Iterator[int]:
        """Put what a peer sends in its place; yield the bytes of each item once it is there."""
        keys = [item.key for item in items]
        if peer in self._bare:
            for item in items:
                chunk = checked_chunk(item.key, self._on_loop(self._whole(peer, item)), item.shape)
                self.spec.check_chunk(item.key, chunk.dtype)
                r0, r1, c0, c1 = item.source
                item.inside(panels[item.operand])[...] = chunk[r0:r1, c0:c1]
                yield chunk.nbytes
            return
        if channel is None:
            wanted = [item.request for item in items]
            asking = self.side.ask(peer, PEER_SECONDS, self.order["run"], wanted)
            answer = self._on_loop(asking)
            _check(answer, keys)
            for item, piece in zip(items, answer["pieces"], strict=True):
                self.spec.check_chunk(item.key, piece.dtype)
                item.inside(panels[item.operand])[...] = piece
                yield piece.nbytes
            return
        try:
            answer = channel.answer()
            _check(answer, keys)
            for item, kind in zip(items, answer["dtypes"], strict=True):
                dtype = np.dtype(kind)
                self.spec.check_chunk(item.key, dtype)
                target = item.inside(panels[item.operand])
                if target.dtype == dtype:
                    channel.receive(target)
                else:
                    piece = np.empty(target.shape, dtype)
                    channel.receive(piece)
                    target[...] = piece
                yield target.size * dtype.itemsize
        except OSError as error:
            raise ChunksMissing(keys) from error

    async def _whole(self, peer: str, item: Wanted) -> Any:
        """Return a chunk of a worker without fpmdask: Dask itself does not send pieces.

        Raises
        ------
        ChunksMissing
            If it is not there, or the worker does not answer.
        """
        worker = self.side.worker
        try:
            async with asyncio.timeout(PEER_SECONDS):
                while (found := await fetch_whole(worker, item.key, peer)) is None:
                    await asyncio.sleep(BUSY_SECONDS)
        except OSError as error:  # that of the time limit is one, too
            raise ChunksMissing([item.key]) from error
        if item.key not in found:
            raise ChunksMissing([item.key])
        return found[item.key]

    def _on_loop(self, work: Any) -> Any:
        loop: Any = self.side.worker.loop
        return asyncio.run_coroutine_threadsafe(work, loop.asyncio_loop).result()


def _check(answer: Mapping[str, Any] | None, keys: Sequence[Any]) -> None:
    if answer is None:
        raise ChunksMissing(keys)
    if "missing" in answer:
        raise ChunksMissing(answer["missing"])
    if "unusable" in answer:
        raise PartitionError(answer["unusable"])
