"""Pieces of arrays from other workers, straight into their place.

A task offers arrays to its peers and fetches boxes of what they offer, or of Dask's chunks::

    exchange.offer(key, array, version=3, readers=[peer]).wait_read()
    exchange.fetch([Want(key, box, out, [peer], version=3)]).wait()

Bytes go over channels; over Dask's messages where no channel reaches a worker, and as whole chunks
from workers without fpmdask. What is not offered yet is waited for at its holder.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
from distributed import Worker

from fpmdask.errors import RunCancelledError
from fpmdask.runtime.dask_private import fetch_whole
from fpmdask.runtime.regions import Box, shape_of
from fpmdask.runtime.validation import MalformedError
from fpmdask.runtime.worker.channel import Channel
from fpmdask.runtime.worker.fetch import (
    Arrived,
    Asked,
    Check,
    Fetch,
    FetchFailed,
    Open,
    Want,
    by_holder,
    not_from,
    refused,
    safe,
)
from fpmdask.runtime.worker.offers import Offer, Offers, Refused, Source
from fpmdask.runtime.worker.peers import Peers
from fpmdask.runtime.worker.serving import checked_chunk, piece_of

# A peer that does not answer a message for so long is taken for gone.
PEER_SECONDS = 120.0
# A worker that sends as much as it may is asked again after so long.
BUSY_SECONDS = 0.1
# Peers that send at once to one `fetch`.
AT_ONCE = 8
# All fetches of a run together: threads are made when they are needed, and most of them wait.
MOST_THREADS = 64
# How long is waited in one piece for what this worker itself is to offer.
OWN_SECONDS = 1.0


class Exchange:
    """What one run offers and fetches on a worker.

    Parameters
    ----------
    worker, peers
        The worker, and its connections.
    run
        Id of the run.
    offers
        What it offers here.
    cancelled
        Is set when the run is over.
    """

    def __init__(
        self, worker: Worker, peers: Peers, run: str, offers: Offers, cancelled: threading.Event
    ) -> None:
        self._worker, self._peers, self._run = worker, peers, run
        self.offers, self._cancelled = offers, cancelled
        self._channels: dict[str, tuple[Any, ...]] = {}
        self._bare: set[str] = set()
        self._idle: dict[str, list[Channel]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._fetches: weakref.WeakSet[Fetch] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._by_message = threading.Lock()  # an answer is in memory beside its targets

    @property
    def address(self) -> str:
        """The worker's."""
        address: str = self._worker.address
        return address

    def know(self, channels: Mapping[str, Sequence[Any]], bare: Iterable[str] = ()) -> None:
        """Take note where workers listen, and which ones are without fpmdask."""
        with self._lock:
            self._channels.update({peer: tuple(at) for peer, at in channels.items()})
            self._bare.update(bare)

    def offer(
        self,
        key: Any,
        source: np.ndarray | Source,
        version: int = 0,
        box: Box | None = None,
        readers: Iterable[str] = (),
    ) -> Offer:
        """Offer an array, or a box of it that is ready now: see `Offers.offer`."""
        return self.offers.offer(key, source, version, box, readers)

    def retire(self, key: Any) -> None:
        """Offer it no more: whoever waits for it is refused."""
        self.offers.retire(key)

    def here(self, pieces: Sequence[tuple[Any, Box, Sequence[int]]]) -> dict[int, np.ndarray]:
        """Return views of those of some pieces of chunks that are on this worker, by their place.

        Parameters
        ----------
        pieces
            Key, box and shape of the chunk of each.

        Raises
        ------
        PartitionError
            If a chunk is not what its array says.
        """

        async def look() -> dict[Any, Any]:
            data: Mapping[Any, Any] = self._worker.data
            return {key: data[key] for key, _, _ in pieces if key in data}

        chunks = self._on_loop(look()) if pieces else {}
        return {
            n: piece_of(key, chunks[key], box, shape)
            for n, (key, box, shape) in enumerate(pieces)
            if key in chunks
        }

    def fetch(
        self,
        wants: Iterable[Want],
        arrived: Arrived | None = None,
        check: Check = safe,
        at_once: int = AT_ONCE,
    ) -> Fetch:
        """Begin to receive; returns at once.

        Parameters
        ----------
        wants
            What is wanted. What one holder is asked for comes in this order.
        arrived
            Is called with each when it is in its place, before the next one of its holder is
            received, in several threads.
        check
            Raises where a dtype is not that of its place; safe casts are allowed by default.
        at_once
            Peers that are received from at once, by as many threads. With 0 this thread asks all
            before it returns, and receives in `Fetch.wait`: one thread less where one would only
            wait for the other.

        Raises
        ------
        RunCancelledError
            If the run is over.
        ValueError
            If the shape of a target is not that of its box.
        """
        every = list(wants)
        for want in every:
            if want.out.shape != shape_of(want.box):
                raise ValueError(
                    f"{want.key}: box {want.box} does not fit into a target of {want.out.shape}"
                )
        jobs = by_holder(Open(want, self._in_turn(want)) for want in every)
        fetch = Fetch(min(at_once or 1, len(jobs)), self._cancelled)
        threads = self._pool(fetch)

        def let_go(asked: deque[Asked]) -> None:
            """Close what is open: `close` may do that while this thread still asks."""
            while asked:
                with suppress(IndexError):
                    self._let_go(fetch, asked.popleft(), usable=False)

        def work(asked: deque[Asked]) -> None:
            began = time.thread_time()
            try:
                while (jobs or asked) and not fetch.stopped.is_set():
                    if not asked:
                        with suppress(IndexError):  # another thread has taken the last one
                            asked.append(self._ask(fetch, *jobs.popleft()))
                        continue
                    one = asked.popleft()
                    jobs.extend(by_holder(self._given(fetch, one, arrived, check)))
            except BaseException as error:
                fetch.failed(error)
            finally:
                let_go(asked)
                fetch.job_ended(time.thread_time() - began)

        if not at_once and jobs:
            asked: deque[Asked] = deque()
            fetch.in_wait = partial(work, asked)
            try:
                while jobs:
                    asked.append(self._ask(fetch, *jobs.popleft()))
                    if fetch.stopped.is_set():
                        raise RunCancelledError("the run is over")
            except BaseException:
                fetch.cancel()
                let_go(asked)  # what was asked after `close` had let go of the others
                raise
        try:
            for _ in range(min(at_once, len(jobs))):
                threads.submit(work, deque())
        except RuntimeError as error:  # the run has ended since
            fetch.stop()
            raise RunCancelledError("the run is over") from error
        return fetch

    def close(self) -> None:
        """End what is being fetched, and close all channels, once the run is over."""
        with self._lock:
            idle = [(peer, channel) for peer, some in self._idle.items() for channel in some]
            self._idle.clear()
            threads, self._threads = self._threads, None
            fetches = [*self._fetches]
        for fetch in fetches:
            fetch.stop()
            fetch.work()  # nobody may ever wait for it
        for peer, channel in idle:
            self._peers.close(peer, channel)
        if threads is not None:
            threads.shutdown(wait=False)

    def _pool(self, fetch: Fetch) -> ThreadPoolExecutor:
        with self._lock:
            if self._cancelled.is_set():
                raise RunCancelledError("the run is over")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(MOST_THREADS, "fpmdask-fetch")
            self._fetches.add(fetch)
            return self._threads

    def _in_turn(self, want: Want) -> tuple[str, ...]:
        """Return the holders in the order in which they are asked, always the same one.

        This worker first; the load of replicated chunks is spread over their holders.
        """
        own, holders = self._worker.address, tuple(want.holders)
        if own in holders:
            return (own, *(peer for peer in holders if peer != own))
        first = crc32(f"{own}{want.key}".encode()) % len(holders) if holders else 0
        return (*holders[first:], *holders[:first])

    # ---- from one holder; in threads

    def _ask(self, fetch: Fetch, peer: str, open_: list[Open], *, new: bool = False) -> Asked:
        """Ask a holder through a channel, if there is a way."""
        asked = Asked(peer, open_)
        address = self._channels.get(peer)
        if (
            address is None
            or peer == self.address
            or peer not in self._peers
            or peer in self._bare
            or peer in self._peers.unreachable
        ):
            return asked
        try:
            asked.channel, asked.used = self._channel(peer, address, new=new)
        except OSError:  # a firewall, perhaps: Dask's messages may go through
            self._peers.unreachable.add(peer)
            return asked
        fetch.use(asked.channel)
        try:
            with suppress(OSError):  # its answer does not come, either
                asked.channel.ask(self._request(open_))
        except BaseException:
            self._let_go(fetch, asked, usable=False)
            raise
        return asked

    def _given(
        self, fetch: Fetch, asked: Asked, arrived: Arrived | None, check: Check
    ) -> Iterable[Open]:
        """Receive what a holder was asked for; return what it does not give."""

        peer, open_ = asked.peer, asked.open

        def place(one: Open, piece: Any, nbytes: int) -> None:
            check(one.want, piece.dtype)
            one.want.out[...] = piece
            there(one, nbytes)

        def there(one: Open, nbytes: int) -> None:
            fetch.received(nbytes)
            if nbytes:  # none for what is here
                self._peers.traffic.received(peer, nbytes)
            if arrived is not None:
                arrived(one.want)

        if asked.channel is not None:
            rest = self._through(fetch, asked, there, check)
            if rest is None and asked.used:  # the other end has closed it meanwhile, perhaps
                asked = self._ask(fetch, peer, open_, new=True)
                if asked.channel is not None:
                    rest = self._through(fetch, asked, there, check)
            return rest if rest is not None else not_from(asked, "has closed the connection")
        if peer == self.address:
            return self._from_here(fetch, open_, place)
        if peer not in self._peers:
            return not_from(asked, "has left the cluster")
        if peer in self._bare:
            return self._whole_chunks(peer, open_, place)
        return self._messages(fetch, peer, open_, place)

    def _through(
        self, fetch: Fetch, asked: Asked, there: Callable[[Open, int], None], check: Check
    ) -> list[Open] | None:
        """Receive what was asked for; return what does not come, None where there is no answer."""
        channel, open_ = asked.channel, asked.open
        assert channel is not None
        done, answered, usable = 0, False, False
        try:
            header = channel.answer()
            answered = True
            if "dtypes" not in header:
                usable = True
                return refused(asked.peer, open_, header)
            for one, kind in zip(open_, header["dtypes"], strict=True):
                dtype, out = np.dtype(kind), one.want.out
                check(one.want, dtype)
                target = out if dtype == out.dtype else np.empty(out.shape, dtype)
                channel.receive(target)
                if target is not out:
                    out[...] = target
                done += 1
                there(one, target.nbytes)
            usable = True
        except MalformedError as error:
            raise MalformedError(f"{asked.peer}: {error}") from error
        except OSError as error:
            if fetch.stopped.is_set():
                return []
            if answered:
                return [one.not_from(asked.peer, str(error)) for one in open_[done:]]
            return None
        finally:
            self._let_go(fetch, asked, usable=usable)
        return []

    def _let_go(self, fetch: Fetch, asked: Asked, *, usable: bool) -> None:
        """Keep a channel for the next request, or close it where an answer is still under way."""
        channel, asked.channel = asked.channel, None
        if channel is None:
            return
        fetch.give_back(channel)
        with self._lock:
            keep = usable and not fetch.stopped.is_set() and not self._cancelled.is_set()
            if keep:
                self._idle.setdefault(asked.peer, []).append(channel)
        if not keep:
            self._peers.close(asked.peer, channel)

    def _channel(
        self, peer: str, address: tuple[Any, ...], *, new: bool = False
    ) -> tuple[Channel, bool]:
        """Return a channel that nobody uses, and whether it has been used before."""
        with self._lock:
            if self._cancelled.is_set():
                raise RunCancelledError("the run is over")
            idle = self._idle.get(peer)
            if idle and not new:
                return idle.pop(), True
        return self._peers.open(peer, address), False

    def _request(self, open_: Sequence[Open]) -> dict[str, Any]:
        wanted = [one.want.request for one in open_]
        return {"run": self._run, "reader": self._worker.address, "wanted": wanted}

    def _messages(
        self,
        fetch: Fetch,
        peer: str,
        open_: Sequence[Open],
        place: Callable[[Open, Any, int], None],
    ) -> list[Open]:
        """Ask by Dask's messages; return what does not come."""
        answer: Mapping[str, Any] | None = {"waiting": True}
        first = True
        while answer is not None and "waiting" in answer:
            if fetch.stopped.is_set():
                return []
            # what is there comes to one fetch after the other: it is in memory beside its targets
            with self._by_message if first else nullcontext():
                asking = self._peers.ask(peer, PEER_SECONDS, wait=not first, **self._request(open_))
                answer = self._answer(fetch, asking)
                for one, piece in zip(open_, (answer or {}).get("pieces", ()), strict=False):
                    place(one, piece, piece.nbytes)
            first = False
        if answer is None:
            return [one.not_from(peer, "does not answer") for one in open_]
        return [] if "pieces" in answer else refused(peer, open_, answer)

    def _answer(self, fetch: Fetch, asking: Any) -> dict[str, Any] | None:
        """Wait for the answer to a message, unless the fetch is stopped."""
        question = _Question(self._submit(asking))
        fetch.use(question)
        try:
            return question.answer.result()
        except CancelledError:
            if not fetch.stopped.is_set():
                raise
            return {"pieces": ()}
        finally:
            fetch.give_back(question)

    def _from_here(
        self,
        fetch: Fetch,
        open_: Sequence[Open],
        place: Callable[[Open, Any, int], None],
    ) -> Iterator[Open]:
        """Copy what this worker holds or offers itself; yield what it has not got."""
        own = self._worker.address
        of_chunks = [(one, one.want.shape) for one in open_ if one.want.shape is not None]
        chunks = self.here([(one.want.key, one.want.box, shape) for one, shape in of_chunks])
        for n, (one, _) in enumerate(of_chunks):
            if n in chunks:
                place(one, chunks[n], 0)
            else:
                yield one.not_from(own, "has not got it")
        for one in open_:
            want = one.want
            if want.shape is not None:
                continue
            piece = None
            try:
                while piece is None and not fetch.stopped.is_set():
                    piece = self.offers.wait_for(want.key, want.box, want.version, OWN_SECONDS)
            except Refused as refused:
                yield one.not_from(own, str(refused))
                continue
            if piece is not None:
                place(one, piece if isinstance(piece, np.ndarray) else np.asarray(piece), 0)
                self.offers.was_sent(want.key, want.box, want.version, own)

    def _whole_chunks(
        self, peer: str, open_: Sequence[Open], place: Callable[[Open, Any, int], None]
    ) -> Iterator[Open]:
        """Take whole chunks of a worker without fpmdask: Dask itself does not send pieces."""
        for one in open_:
            want = one.want
            if want.shape is None:
                yield one.not_from(peer, "is without fpmdask")
                continue
            found = self._on_loop(self._whole(peer, want.key))
            if found is None:
                yield one.not_from(peer, "does not give it")
                continue
            chunk = checked_chunk(want.key, found, want.shape)
            place(one, piece_of(want.key, chunk, want.box, want.shape), chunk.nbytes)

    def whole_chunk(self, key: Any, holders: Sequence[str]) -> Any:
        """Return one of Dask's chunks, of any type, from here or from a worker that holds it.

        Raises
        ------
        FetchFailed
            If none of them gives it.
        """

        async def look() -> Any:
            data: Mapping[Any, Any] = self._worker.data
            return [data[key]] if key in data else []

        if here := self._on_loop(look()):
            return here[0]
        for peer in holders:
            if (found := self._on_loop(self._whole(peer, key))) is not None:
                return found
        raise FetchFailed({key: (holders[-1] if holders else "nobody", "does not give it")})

    async def _whole(self, peer: str, key: Any) -> Any:
        async def found() -> Mapping[Any, Any]:
            while (found := await fetch_whole(self._worker, key, peer)) is None:
                await asyncio.sleep(BUSY_SECONDS)
            return found

        return (await self._peers.answer(peer, found(), PEER_SECONDS) or {}).get(key)

    def _on_loop(self, work: Any) -> Any:
        return self._submit(work).result()

    def _submit(self, work: Any) -> Future[Any]:
        loop: Any = self._worker.loop
        return asyncio.run_coroutine_threadsafe(work, loop.asyncio_loop)


@dataclass(frozen=True, eq=False)
class _Question:
    """A message whose answer a thread waits for."""

    answer: Future[dict[str, Any] | None]

    def shut(self) -> None:
        self.answer.cancel()
