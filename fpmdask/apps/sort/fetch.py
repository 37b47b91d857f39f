"""Pieces of one-dimensional arrays from other workers, straight into their place."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from fpmdask.coordinator.channel import Channel
from fpmdask.coordinator.worker import WorkerSide
from fpmdask.errors import PartitionError

# A peer that does not answer for so long is taken for gone.
PEER_SECONDS = 120.0
# Peers that send at once.
AT_ONCE = 8


class PeersMissing(Exception):
    """A worker does not give what it was asked for; the coordinator finds out why."""


@dataclass(frozen=True)
class Wanted:
    """Keys ``low … high`` of an array of `length` that a worker has under `key`, and their place.

    `shape` is that of the array there: one axis for chunks, a row for what a run offers.
    """

    key: Any
    low: int
    high: int
    shape: tuple[int, ...]
    target: np.ndarray

    @property
    def request(self) -> tuple[Any, tuple[int, int, int, int], tuple[int, ...]]:
        """What its holder is asked."""
        return self.key, (0, 1, self.low, self.high), self.shape


class Filling:
    """Tells which targets are complete of those that keys of several peers come into.

    Parameters
    ----------
    coming : mapping of str to sequence of (int, int)
        Peer -> the targets that its keys come into, one after the other, and how many into each.
    complete : callable
        Called with each that is, in the thread that hears of its last keys.

    Examples
    --------
    >>> filling = Filling({"a": [(0, 3), (1, 1)], "b": [(1, 1)]}, print)
    >>> filling.add("b", 1)
    >>> filling.add("a", 2)
    >>> filling.add("a", 2)
    0
    1
    """

    def __init__(
        self,
        coming: Mapping[str, Sequence[tuple[int, int]]],
        complete: Callable[[int], None],
    ) -> None:
        self._coming = {peer: deque(into) for peer, into in coming.items()}
        self._complete = complete
        self._missing: Counter[int] = Counter()
        for into in coming.values():
            for target, count in into:
                self._missing[target] += count
        self._lock = threading.Lock()

    def add(self, peer: str, count: int) -> None:
        """Take note of so many more keys of a peer; from any thread."""
        into = self._coming[peer]
        there = []
        with self._lock:
            while count:
                target, wanted = into.popleft()
                some = min(count, wanted)
                if some < wanted:
                    into.appendleft((target, wanted - some))
                count -= some
                self._missing[target] -= some
                if not self._missing[target]:
                    there.append(target)
        for target in there:
            self._complete(target)


class Fetcher:
    """Asks peers over one channel each, by Dask's messages where there is no way for a channel."""

    def __init__(self, side: WorkerSide, run: str, channels: Mapping[str, tuple[str, int]]) -> None:
        self.side, self.run, self.addresses = side, run, channels
        self._open = ExitStack()
        self._channels: dict[str, Channel] = {}
        self._by_message = threading.Lock()  # an answer is in memory beside its targets

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channels."""
        self._open.close()

    def receive(
        self,
        wanted: Mapping[str, Sequence[Wanted]],
        arrived: Callable[[str, int], None] = lambda peer, keys: None,
    ) -> int:
        """Fill the targets of what is wanted from each peer; return the bytes that came.

        Those of a peer are filled in their order; `arrived` hears of each, in several threads, how
        long it is. Several peers send at once, so that none is waited for while others could.

        Raises
        ------
        PeersMissing
            If one is gone, or has not got a piece.
        PartitionError
            If a chunk is not what its array says.
        """
        failures: list[BaseException] = []

        def of(peer: str) -> int:
            if failures:
                return 0
            items = wanted[peer]
            try:
                return self._received(peer, self._asked(peer, items), items, partial(arrived, peer))
            except BaseException as error:
                failures.append(error)
                for channel in list(self._channels.values()):
                    channel.shut()  # nobody waits for what others send
                return 0

        if not wanted:
            return 0
        with ThreadPoolExecutor(min(AT_ONCE, len(wanted)), "fpmdask-receive") as threads:
            received = sum(threads.map(of, wanted))
        if failures:
            first = failures[0]
            failures.clear()
            try:
                raise first
            finally:
                del first  # it holds this frame
        return received

    def _asked(self, peer: str, items: Sequence[Wanted]) -> Channel | None:
        address = self.addresses.get(peer)
        if address is None or peer in self.side.unreachable:
            return None
        try:
            channel = self._channels.get(peer)
            if channel is None:
                opening = self.side.channel(peer, (address[0], address[1]))
                channel = self._channels[peer] = self._open.enter_context(opening)
        except OSError:  # a firewall, perhaps: Dask's messages may go through
            self.side.unreachable.add(peer)
            return None
        try:
            channel.ask(self.run, [item.request for item in items])
        except OSError as error:
            raise PeersMissing(peer) from error
        return channel

    def _received(
        self,
        peer: str,
        channel: Channel | None,
        items: Sequence[Wanted],
        arrived: Callable[[int], None],
    ) -> int:
        if channel is None:
            with self._by_message:
                return self._received_by_message(peer, items, arrived)
        nbytes = 0
        try:
            kinds = _checked(peer, channel.answer())["dtypes"]
            for item, kind in zip(items, kinds, strict=True):
                dtype, target = np.dtype(kind), item.target
                check_dtype(dtype, target.dtype)
                row = target if dtype == target.dtype else np.empty(target.shape, dtype)
                channel.receive(row.reshape(1, -1))
                if row is not target:
                    target[...] = row
                nbytes += row.nbytes
                arrived(target.size)
        except OSError as error:
            raise PeersMissing(peer) from error
        return nbytes

    def _received_by_message(
        self, peer: str, items: Sequence[Wanted], arrived: Callable[[int], None]
    ) -> int:
        asking = self.side.ask(peer, PEER_SECONDS, self.run, [item.request for item in items])
        loop: Any = self.side.worker.loop
        answer = asyncio.run_coroutine_threadsafe(asking, loop.asyncio_loop).result()
        pieces = _checked(peer, answer)["pieces"]
        for item, piece in zip(items, pieces, strict=True):
            check_dtype(piece.dtype, item.target.dtype)
            item.target[...] = piece[0]
            arrived(item.target.size)
        return sum(piece.nbytes for piece in pieces)


def check_dtype(found: np.dtype[Any], declared: np.dtype[Any]) -> None:
    """Refuse a chunk whose keys would change.

    Raises
    ------
    PartitionError
        If they do not fit into the array's dtype.
    """
    if not np.can_cast(found, declared, "safe"):
        raise PartitionError(
            f"a chunk has dtype {found}, its dask array says {declared}; give map_blocks the right "
            "dtype"
        )


def _checked(peer: str, answer: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if answer is None or "missing" in answer:
        raise PeersMissing(peer)
    if "unusable" in answer:
        raise PartitionError(answer["unusable"])
    return answer
