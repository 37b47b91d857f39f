"""Chunks of workers behind slow links leave them once: one worker gets them whole, and serves them.

The order of a share says which chunks its worker relays, in the order in which panels need them;
threads receive them while the first panels are multiplied. Others ask the relay instead of the
owner, and wait there until the chunk has come.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np

from fpmdask.apps.matmul.plan import MatmulSpec, Tile, needed
from fpmdask.coordinator.channel import Channel
from fpmdask.coordinator.links import Link, slow_links
from fpmdask.coordinator.space import RunSpace, relayed_key
from fpmdask.coordinator.worker import WorkerSide

# Sending that takes less of the product's time is hidden behind the multiplication.
HIDDEN = 0.5


def relays(
    spec: MatmulSpec,
    tiles: Mapping[str, Sequence[Tile]],
    holders: Mapping[Any, Sequence[str]],
    links: Mapping[str, Link],
    room: Mapping[str, float],
    seconds: float = math.nan,
) -> dict[Any, str]:
    """Return which worker relays which chunk: key -> address.

    Parameters
    ----------
    spec
        The product.
    tiles
        Worker -> its tiles of C: the larger, the faster it is.
    holders
        Key -> workers that hold the chunk.
    links
        Worker -> its link.
    room
        Worker -> bytes that it may take.
    seconds
        What the product is expected to take; NaN where that is not known.

    Returns
    -------
    dict
        Chunks that only workers behind slow links hold and that more than one other worker needs,
        where their owner would send them for more than half of the product: what takes less is
        hidden behind the multiplication, as on a worker whose link looks slow because it has
        little CPU. All chunks of an owner go to one relay, so that they leave in the order of
        panels: of those with room for them that which relays fewest bytes for its speed.
    """
    slow = slow_links(links)
    if not slow:
        return {}
    needing: dict[Any, list[int]] = {}
    for worker, own in tiles.items():
        wanted: Counter[Any] = Counter()
        for tile in own:
            wanted.update(needed(spec, tile))
        for key, nbytes in wanted.items():
            if holders[key] and slow.issuperset(holders[key]) and worker not in holders[key]:
                needing.setdefault(key, []).append(nbytes)
    by_owner: dict[str, list[Any]] = {}
    leaving: Counter[str] = Counter()
    for key in sorted(needing, key=str):
        owner = holders[key][0]
        leaving[owner] += sum(needing[key])
        if len(needing[key]) > 1:
            by_owner.setdefault(owner, []).append(key)
    areas = {w: sum(tile.area for tile in own) for w, own in tiles.items()}
    left = {w: room[w] for w in tiles if w in links and w not in slow and areas[w]}
    relayed: Counter[str] = Counter()
    chosen: dict[Any, str] = {}
    for owner, keys in by_owner.items():
        if leaving[owner] * links[owner].sending < HIDDEN * seconds:
            continue
        nbytes = sum(chunk_nbytes(spec, key) for key in keys)
        able = [worker for worker, free in left.items() if free >= nbytes]
        if able:
            relay = min(able, key=lambda worker: (relayed[worker] + nbytes) / areas[worker])
            relayed[relay] += nbytes
            left[relay] -= nbytes
            chosen |= dict.fromkeys(keys, relay)
    return chosen


def in_order_of_arrival(
    spec: MatmulSpec,
    panels: Sequence[tuple[int, int]],
    relayed: Mapping[Any, str],
    holders: Mapping[Any, Sequence[str]],
) -> list[tuple[int, int]]:
    """Return panels, those first for which slow links have little to send.

    While these are multiplied the rest arrives.
    """

    def waiting(panel: tuple[int, int]) -> int:
        nbytes: dict[str, int] = {}
        for key in relayed:
            source = slice_of(spec, key, panel)
            if source is not None:
                r0, r1, c0, c1 = source
                owner = holders[key][0]
                nbytes[owner] = nbytes.get(owner, 0) + (r1 - r0) * (c1 - c0)
        return max(nbytes.values(), default=0)

    return sorted(panels, key=waiting)


def chunk_nbytes(spec: MatmulSpec, key: Any) -> int:
    """Return the bytes of a chunk."""
    rows, columns = spec.chunk_shape(key)
    return rows * columns * spec.dtype.itemsize


class Relaying:
    """Receives the chunks that a share's order wants relayed, until the run is over.

    Parameters
    ----------
    side, space
        The worker, and the run on it.
    spec
        The product.
    wanted
        Keys, and who holds each: (key, address, address of its channel).
    """

    def __init__(
        self,
        side: WorkerSide,
        space: RunSpace,
        spec: MatmulSpec,
        wanted: Iterable[tuple[Any, str, tuple[str, int]]],
        panels: Sequence[tuple[int, int]],
    ) -> None:
        self._side, self._space, self._spec, self._panels = side, space, spec, panels
        self._channels: set[Channel] = set()
        self._spent: dict[str, tuple[int, float]] = {}  # by owner: bytes and CPU-seconds
        by_owner: dict[str, list[tuple[Any, tuple[str, int]]]] = {}
        for key, owner, address in wanted:
            if relayed_key(key) not in space.offered:
                by_owner.setdefault(owner, []).append((tuple(key), (address[0], address[1])))
        self._threads = [
            threading.Thread(target=self._receive, args=item, name="fpmdask-relay", daemon=True)
            for item in by_owner.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            for channel in list(self._channels):
                channel.shut()
        for thread in self._threads:
            thread.join()

    @property
    def nbytes_received(self) -> int:
        """Return the bytes that have been received, once the call is over."""
        return sum(nbytes for nbytes, _ in self._spent.values())

    @property
    def cpu_seconds(self) -> float:
        """Return what receiving them took, once the call is over."""
        return sum(seconds for _, seconds in self._spent.values())

    def _receive(self, owner: str, wanted: Sequence[tuple[Any, tuple[str, int]]]) -> None:
        chunks: dict[Any, np.ndarray] = {}
        nbytes = 0
        try:
            with ExitStack() as opened:
                channel = opened.enter_context(self._side.channel(owner, wanted[0][1]))
                self._channels.add(channel)
                for panel in self._panels:
                    for key, _ in wanted:
                        source = slice_of(self._spec, key, panel)
                        if source is None:
                            continue
                        if not self._slice(channel, key, source, chunks):
                            return
                        r0, r1, c0, c1 = source
                        nbytes += (r1 - r0) * (c1 - c0) * chunks[key].itemsize
                        self._space.arrived(relayed_key(key), chunks[key], source)
        except OSError:
            pass  # who asks for them here hears that they are missing, and goes to the owner
        finally:
            self._spent[owner] = nbytes, time.thread_time()
            for key, _ in wanted:
                rows, columns = self._spec.chunk_shape(key)
                whole = (0, rows, 0, columns)
                if not self._space.is_ready(relayed_key(key), whole):
                    self._space.arrived(relayed_key(key), None, whole)

    def _slice(
        self,
        channel: Channel,
        key: Any,
        source: tuple[int, int, int, int],
        chunks: dict[Any, np.ndarray],
    ) -> bool:
        """Receive a slice into its chunk; tell whether it came."""
        if self._space.cancelled.is_set():
            return False
        shape = self._spec.chunk_shape(key)
        channel.ask(self._space.run, [(key, source, shape)])
        answer = channel.answer()
        if "dtypes" not in answer:
            return False
        dtype = np.dtype(answer["dtypes"][0])
        if key not in chunks:
            chunks[key] = np.empty(shape, dtype)
        r0, r1, c0, c1 = source
        channel.receive(chunks[key][r0:r1, c0:c1])
        return True


def slice_of(
    spec: MatmulSpec, key: Any, panel: tuple[int, int]
) -> tuple[int, int, int, int] | None:
    """Return what of a chunk a panel needs, None for nothing.

    Examples
    --------
    >>> halves = ((4, 4), (4, 4))
    >>> spec = MatmulSpec((8, 8, 8), np.dtype("f8"), halves, halves, "a", "b")
    >>> slice_of(spec, ("a", 0, 1), (3, 6)), slice_of(spec, ("b", 1, 0), (3, 6))
    ((0, 4, 0, 2), (0, 2, 0, 4))
    >>> slice_of(spec, ("a", 0, 0), (4, 8)) is None
    True
    """
    name, row, column = key
    rows, columns = spec.chunk_shape(key)
    of_a = name == spec.a_name
    across = of_a != spec.transposed  # K runs along the rows of the chunk as it lies
    depths, at = spec.a_chunks[1] if of_a else spec.b_chunks[0], column if across else row
    begin, length = sum(depths[:at]), depths[at]
    low, high = max(0, panel[0] - begin), min(length, panel[1] - begin)
    if low >= high:
        return None
    return (0, rows, low, high) if across else (low, high, 0, columns)
