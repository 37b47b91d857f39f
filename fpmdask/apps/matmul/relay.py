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
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from fpmdask.apps.matmul.plan import MatmulSpec, Tile, needed
from fpmdask.coordinator.links import Link, slow_links
from fpmdask.coordinator.space import RunSpace
from fpmdask.errors import PartitionError, RunCancelledError
from fpmdask.runtime.regions import Box, size, view
from fpmdask.runtime.worker.exchange import Fetch, FetchFailed, Want

# What a worker offers a chunk as that it relays.
RELAYED = "fpmdask-relayed"
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
            box = slice_of(spec, key, panel)
            if box is not None:
                owner = holders[key][0]
                nbytes[owner] = nbytes.get(owner, 0) + size(box)
        return max(nbytes.values(), default=0)

    return sorted(panels, key=waiting)


def chunk_nbytes(spec: MatmulSpec, key: Any) -> int:
    """Return the bytes of a chunk."""
    rows, columns = spec.chunk_shape(key)
    return rows * columns * spec.dtype.itemsize


class Relaying:
    """Receives the chunks that a share's order wants relayed, and offers what has arrived.

    Parameters
    ----------
    space
        The run on this worker; its exchange knows the owners.
    spec
        The product.
    wanted
        Keys, and who holds each.
    panels
        Ranges of K, in the order in which they are needed.
    """

    def __init__(
        self,
        space: RunSpace,
        spec: MatmulSpec,
        wanted: Iterable[tuple[Any, str]],
        panels: Sequence[tuple[int, int]],
    ) -> None:
        self._space, self._spec, self._panels = space, spec, panels
        self._fetches: dict[str, Fetch] = {}  # by owner, the one that goes on
        self._spent: dict[str, tuple[int, float]] = {}  # by owner: bytes and CPU-seconds
        self._stopped = threading.Event()
        by_owner: dict[str, list[Any]] = {}
        for key, owner in wanted:
            if relayed_key(key) not in space.offers:
                by_owner.setdefault(owner, []).append(tuple(key))
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
            self._stopped.set()
            for fetch in list(self._fetches.values()):
                fetch.stop()
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

    def _receive(self, owner: str, keys: Sequence[Any]) -> None:
        """Receive the chunks of one owner, in its turn of the panels."""
        exchange, spec, nbytes, cpu = self._space.exchange, self._spec, 0, 0.0
        chunks = {key: np.empty(spec.chunk_shape(key), spec.dtype) for key in keys}
        came = dict.fromkeys(keys, 0)
        try:
            for panel in self._panels:
                for key, chunk in chunks.items():
                    if (box := slice_of(spec, key, panel)) is None:
                        continue
                    fetch = self._slice(owner, key, box, chunk)
                    nbytes, cpu = nbytes + fetch.nbytes, cpu + fetch.cpu_seconds
                    came[key] += size(box)
                    exchange.offer(relayed_key(key), chunk, box=box)
        except (FetchFailed, PartitionError, RunCancelledError):
            pass  # who asks for them here is refused, and goes to the owner
        finally:
            self._spent[owner] = nbytes, cpu + time.thread_time()
            for key, chunk in chunks.items():
                if came[key] < chunk.size:
                    exchange.retire(relayed_key(key))

    def _slice(self, owner: str, key: Any, box: Box, chunk: np.ndarray) -> Fetch:
        """Receive a slice into its chunk."""
        want = Want(key, box, view(chunk, box), (owner,), shape=chunk.shape)
        fetch = self._space.exchange.fetch([want], check=check_of(self._spec), at_once=0)
        self._fetches[owner] = fetch
        if self._stopped.is_set():
            fetch.stop()
        fetch.wait()
        return fetch


def check_of(spec: MatmulSpec) -> Callable[[Want, np.dtype[Any]], None]:
    """Return what refuses chunks of A and B as `MatmulSpec.check_chunk` does."""
    return lambda want, found: spec.check_chunk(want.key, found)


def relayed_key(key: Any) -> tuple[str, Any]:
    """Return the name under which a worker offers a chunk that it relays."""
    return RELAYED, tuple(key)


def slice_of(spec: MatmulSpec, key: Any, panel: tuple[int, int]) -> Box | None:
    """Return what of a chunk a panel needs, None for nothing.

    Examples
    --------
    >>> halves = ((4, 4), (4, 4))
    >>> spec = MatmulSpec((8, 8, 8), np.dtype("f8"), halves, halves, "a", "b")
    >>> slice_of(spec, ("a", 0, 1), (3, 6)), slice_of(spec, ("b", 1, 0), (3, 6))
    (((0, 4), (0, 2)), ((0, 2), (0, 4)))
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
    return ((0, rows), (low, high)) if across else ((low, high), (0, columns))
