"""Pieces of one-dimensional arrays from other workers, straight into their place."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from fpmdask.coordinator.channel import Channel
from fpmdask.coordinator.worker import WorkerSide
from fpmdask.errors import PartitionError

# A peer that does not answer for so long is taken for gone.
PEER_SECONDS = 120.0
# Asked of peers and not received yet. A peer that cannot send for two minutes gives up.
AHEAD_NBYTES = 256 << 20


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


class Fetcher:
    """Asks peers over one channel each, by Dask's messages where there is no way for a channel."""

    def __init__(self, side: WorkerSide, run: str, channels: Mapping[str, tuple[str, int]]) -> None:
        self.side, self.run, self.addresses = side, run, channels
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
        self.close()

    def close(self) -> None:
        """Close the channels."""
        self._open.close()

    def receive(self, wanted: Mapping[str, Sequence[Wanted]]) -> int:
        """Fill the targets of what is wanted from each peer; return the bytes that came.

        Peers are asked ahead, and answer in their own time: so many that little enough is on its
        way for those that wait for their turn not to take this worker for gone.

        Raises
        ------
        PeersMissing
            If one is gone, or has not got a piece.
        PartitionError
            If a chunk is not what its array says.
        """
        open_ = deque(wanted.items())
        asked: deque[tuple[str, Sequence[Wanted], Channel | None]] = deque()
        coming = received = 0
        while open_ or asked:
            while open_ and (not asked or coming < AHEAD_NBYTES):
                peer, items = open_.popleft()
                asked.append((peer, items, self._asked(peer, items)))
                coming += sum(item.target.nbytes for item in items)
            peer, items, channel = asked.popleft()
            received += self._received(peer, channel, items)
            coming -= sum(item.target.nbytes for item in items)
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

    def _received(self, peer: str, channel: Channel | None, items: Sequence[Wanted]) -> int:
        if channel is None:
            asking = self.side.ask(peer, PEER_SECONDS, self.run, [item.request for item in items])
            loop: Any = self.side.worker.loop
            answer = asyncio.run_coroutine_threadsafe(asking, loop.asyncio_loop).result()
            pieces = _checked(peer, answer)["pieces"]
            for item, piece in zip(items, pieces, strict=True):
                check_dtype(piece.dtype, item.target.dtype)
                item.target[...] = piece[0]
            return sum(piece.nbytes for piece in pieces)
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
        except OSError as error:
            raise PeersMissing(peer) from error
        return nbytes


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
