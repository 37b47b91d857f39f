"""Connections of one worker to the others: who is gone, who cannot be reached, what is open."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

from distributed import Worker

from fpmdask.runtime.protocol import PIECES
from fpmdask.runtime.recent import Recent
from fpmdask.runtime.worker.channel import Channel
from fpmdask.runtime.worker.traffic import Traffic
from fpmdask.tuning import RuntimeTuning

Answer = TypeVar("Answer")

# So many of the peers that were lost last are known as such while runs go on.
MOST_PEERS = 1 << 12


class Peers:
    """How a worker reaches the others; from its event loop and from any thread.

    Parameters
    ----------
    worker
        Whose connections these are.
    tuning
        How long others are waited for.

    Attributes
    ----------
    unreachable : Recent
        Addresses of workers that no channel reaches: Dask's messages may.
    traffic : Traffic
        What was received from each.
    """

    def __init__(self, worker: Worker, tuning: RuntimeTuning) -> None:
        self._worker, self._tuning = worker, tuning
        self._gone = Recent(MOST_PEERS)  # since the first of the runs that go on
        self.unreachable = Recent(MOST_PEERS)
        self.traffic = Traffic()
        self._channels: dict[str, set[Channel]] = {}  # no peer without one
        self._asked: dict[str, set[asyncio.Task[Any]]] = {}
        self._opening = Lock()  # guards `_channels`

    def __contains__(self, peer: str) -> bool:
        """Tell whether a worker has not left, as far as is known."""
        return peer not in self._gone

    def open(self, peer: str, address: Sequence[Any]) -> Channel:
        """Open a channel to another worker, which `gone` shuts; in a thread.

        Raises
        ------
        OSError
            If it is gone, or cannot be reached.
        """
        if peer in self._gone:
            raise ConnectionError(f"{peer} has left the cluster")
        host, port = address
        opened = Channel((host, port), self._context(), self._tuning)
        with self._opening:
            self._channels.setdefault(peer, set()).add(opened)
        if peer in self._gone:  # meanwhile: `gone` has not shut this one
            self.close(peer, opened)
            raise ConnectionError(f"{peer} has left the cluster")
        return opened

    def close(self, peer: str, channel: Channel) -> None:
        """Close a channel."""
        with self._opening:
            channels = self._channels.get(peer, set())
            channels.discard(channel)
            if not channels:
                self._channels.pop(peer, None)
        channel.close()

    @contextmanager
    def channel(self, peer: str, address: Sequence[Any]) -> Iterator[Channel]:
        """Open a channel for a while, as `open` does."""
        opened = self.open(peer, address)
        try:
            yield opened
        finally:
            self.close(peer, opened)

    def _context(self) -> ssl.SSLContext | None:
        if not self._worker.address.startswith("tls://"):
            return None
        arguments: Mapping[str, Any] = self._worker.security.get_connection_args("worker")
        context: ssl.SSLContext = arguments["ssl_context"]
        return context

    async def ask(self, peer: str, seconds: float, **request: Any) -> Mapping[str, Any] | None:
        """Return what another worker answers to `PIECES`; None where it is gone."""
        question = PIECES.ask(self._worker.rpc(peer), **request)
        return await self.answer(peer, question, seconds)

    async def answer(
        self, peer: str, question: Coroutine[Any, Any, Answer], seconds: float
    ) -> Answer | None:
        """Return what another worker answers to a question; None where it is gone, or too late."""
        if peer in self._gone:
            question.close()
            return None
        asking = asyncio.ensure_future(question)
        self._asked.setdefault(peer, set()).add(asking)
        try:
            done, _ = await asyncio.wait([asking], timeout=seconds)
            if not done or asking.cancelled() or isinstance(asking.exception(), OSError):
                return None
            return asking.result()
        finally:
            asking.cancel()
            others = self._asked.get(peer, set())
            others.discard(asking)
            if not others:
                self._asked.pop(peer, None)

    def gone(self, peer: str) -> None:
        """Ask a worker that has left no more: a new connection is tried for half a minute."""
        self._gone.add(peer)
        self._stop_asking(peer)

    def back(self, peer: str) -> None:
        """Ask a worker again: one has come to the address of one that had left."""
        self._gone.discard(peer)
        self.unreachable.discard(peer)

    def forget(self) -> None:
        """Stop asking all, and know of none that it is gone: no run goes on."""
        with self._opening:
            peers = {*self._asked, *self._channels}
        for peer in peers:
            self._stop_asking(peer)
        self._gone.clear()
        self.unreachable.clear()

    def _stop_asking(self, peer: str) -> None:
        for asking in self._asked.pop(peer, ()):
            asking.cancel()
        with self._opening:
            opened = [*self._channels.get(peer, ())]
        for channel in opened:
            channel.shut()
