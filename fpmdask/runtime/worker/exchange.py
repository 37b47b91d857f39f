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
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
from distributed import Worker

from fpmdask.errors import PartitionError, RunCancelledError
from fpmdask.runtime.dask_private import fetch_whole
from fpmdask.runtime.regions import Box, shape_of
from fpmdask.runtime.worker.channel import Channel
from fpmdask.runtime.worker.offers import Offer, Offers, Refused, Source
from fpmdask.runtime.worker.peers import Peers
from fpmdask.runtime.worker.serving import Wanted, checked_chunk, piece_of

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


@dataclass(frozen=True, slots=True)
class Want:
    """A box of an array that other workers hold, and where it goes.

    Parameters
    ----------
    key
        Of a chunk, or of what is offered.
    box
        (start, stop) per axis, in the holder's array.
    out
        Any writable array of the box's shape. It is filled in place; its dtype may be another one
        that holds the values.
    holders
        Addresses; if one does not give it, the next one is asked.
    version
        Of what is offered.
    shape
        Of the Dask chunk, which is refused if it has another one. None: it is what a run offers,
        and waited for.
    """

    key: Any
    box: Box
    out: np.ndarray
    holders: Sequence[str]
    version: int = 0
    shape: tuple[int, ...] | None = None

    @property
    def request(self) -> Wanted:
        """What its holder is asked."""
        return self.key, self.box, self.version, self.shape


class FetchFailed(Exception):
    """No holder gives some of what is wanted.

    Attributes
    ----------
    why : dict
        Key → (the holder that was asked last, its reason).
    """

    def __init__(self, why: Mapping[Any, tuple[str, str]]) -> None:
        some = [f"{key}: {peer} {reason}" for key, (peer, reason) in [*why.items()][:8]]
        super().__init__("; ".join(some))
        self.why = dict(why)

    @property
    def keys(self) -> list[Any]:
        """What is not given."""
        return [*self.why]

    @property
    def peers(self) -> list[str]:
        """The holders that were asked last."""
        return sorted({peer for peer, _ in self.why.values()})


Arrived = Callable[[Want], None]
Check = Callable[[Want, np.dtype[Any]], None]


def safe(want: Want, found: np.dtype[Any]) -> None:
    """Refuse values that would change in the dtype of their place: see `check_safe`."""
    check_safe(found, want.out.dtype)


def check_safe(found: np.dtype[Any], declared: np.dtype[Any]) -> None:
    """Refuse a chunk whose values would change in the dtype that its array says.

    Raises
    ------
    PartitionError
        With both.
    """
    if not np.can_cast(found, declared, "safe"):
        raise PartitionError(
            f"a chunk has dtype {found}, its dask array says {declared}; give map_blocks the right "
            "dtype"
        )


@dataclass(frozen=True, slots=True)
class _Open:
    """What is not there yet: who is asked for it next, and why it did not come so far."""

    want: Want
    turns: tuple[str, ...]
    why: tuple[str, str] = ("nobody", "holds it")

    def not_from(self, peer: str, why: str) -> _Open:
        """Go on to the next holder after `peer`, which is the first one."""
        return _Open(self.want, self.turns[1:], (peer, why))


@dataclass(slots=True)
class _Asked:
    """What one holder is asked for, and the channel through which it was."""

    peer: str
    open: list[_Open]
    channel: Channel | None = None
    used: bool = False  # the channel, before


class Fetch:
    """Pieces that are on their way.

    Attributes
    ----------
    nbytes : int
        Received from other workers so far.
    cpu_seconds : float
        What receiving them took so far.
    """

    def __init__(self, count: int, run_over: threading.Event) -> None:
        self._run_over = run_over
        self.nbytes, self.cpu_seconds = 0, 0.0
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self.stopped = threading.Event()
        self._in_use: set[Channel] = set()
        self._left = count
        self.in_wait: Callable[[], None] | None = None  # what `wait` does itself
        self._done = threading.Event()
        if not count:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether nothing more comes: all is there, or it has failed."""
        return self._done.is_set()

    def wait(self) -> None:
        """Return when all is in its place.

        Raises
        ------
        FetchFailed
            If no holder gives a piece.
        PartitionError
            If a chunk is not what its array says.
        RunCancelledError
            If the run is over, or the fetch was cancelled.
        """
        work, self.in_wait = self.in_wait, None
        if work is not None:
            work()
        self._done.wait()
        failure, self._failure = self._failure, None
        if failure is not None and not self._run_over.is_set():
            try:
                raise failure
            finally:
                del failure  # it holds this frame
        if failure is not None or self.stopped.is_set():
            raise RunCancelledError("what was fetched is not wanted any more")

    def cancel(self) -> None:
        """Receive no more; returns when no thread writes to the targets any longer."""
        self.stop()
        with suppress(FetchFailed, PartitionError, RunCancelledError):
            self.wait()

    def stop(self) -> None:
        """Receive no more; what waits for it ends soon."""
        self.stopped.set()
        with self._lock:
            for channel in self._in_use:
                channel.shut()

    def failed(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = error
        self.stop()  # nobody waits for what others send

    def received(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes

    def use(self, channel: Channel) -> None:
        with self._lock:
            self._in_use.add(channel)
        if self.stopped.is_set():
            channel.shut()

    def give_back(self, channel: Channel) -> None:
        with self._lock:
            self._in_use.discard(channel)

    def job_ended(self, cpu_seconds: float) -> None:
        with self._lock:
            self.cpu_seconds += cpu_seconds
            self._left -= 1
            ended = not self._left
        if ended:
            self._done.set()


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
        jobs = _by_holder(_Open(want, self._in_turn(want)) for want in every)
        fetch = Fetch(min(at_once or 1, len(jobs)), self._cancelled)
        threads = self._pool(fetch)

        def work(asked: deque[_Asked]) -> None:
            began = time.thread_time()
            try:
                while (jobs or asked) and not fetch.stopped.is_set():
                    if not asked:
                        with suppress(IndexError):  # another thread has taken the last one
                            asked.append(self._ask(fetch, *jobs.popleft()))
                        continue
                    one = asked.popleft()
                    jobs.extend(_by_holder(self._given(fetch, one, arrived, check)))
            except BaseException as error:
                fetch.failed(error)
            finally:
                for one in asked:
                    self._let_go(fetch, one, usable=False)
                fetch.job_ended(time.thread_time() - began)

        if not at_once and jobs:
            asked = deque(self._ask(fetch, *job) for job in jobs)
            jobs.clear()
            fetch.in_wait = partial(work, asked)
        for _ in range(min(at_once, len(jobs))):
            threads.submit(work, deque())
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

    def _ask(self, fetch: Fetch, peer: str, open_: list[_Open], *, new: bool = False) -> _Asked:
        """Ask a holder through a channel, if there is a way."""
        asked = _Asked(peer, open_)
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
        with suppress(OSError):  # its answer does not come, either
            asked.channel.ask(self._request(open_))
        return asked

    def _given(
        self, fetch: Fetch, asked: _Asked, arrived: Arrived | None, check: Check
    ) -> Iterable[_Open]:
        """Receive what a holder was asked for; return what it does not give."""

        def place(one: _Open, piece: Any, nbytes: int) -> None:
            check(one.want, piece.dtype)
            one.want.out[...] = piece
            there(one, nbytes)

        def there(one: _Open, nbytes: int) -> None:
            fetch.received(nbytes)
            if arrived is not None:
                arrived(one.want)

        peer, open_ = asked.peer, asked.open
        if asked.channel is not None:
            rest = self._through(fetch, asked, there, check)
            if rest is None and asked.used:  # the other end has closed it meanwhile, perhaps
                asked = self._ask(fetch, peer, open_, new=True)
                if asked.channel is not None:
                    rest = self._through(fetch, asked, there, check)
            return rest if rest is not None else _not_from(asked, "has closed the connection")
        if peer == self.address:
            return self._from_here(fetch, open_, place)
        if peer not in self._peers:
            return _not_from(asked, "has left the cluster")
        if peer in self._bare:
            return self._whole_chunks(peer, open_, place)
        return self._messages(fetch, peer, open_, place)

    def _through(
        self, fetch: Fetch, asked: _Asked, there: Callable[[_Open, int], None], check: Check
    ) -> list[_Open] | None:
        """Receive what was asked for; return what does not come, None where there is no answer."""
        channel, open_ = asked.channel, asked.open
        assert channel is not None
        done, answered, usable = 0, False, False
        try:
            header = channel.answer()
            answered = True
            if "dtypes" not in header:
                usable = True
                return _refused(asked.peer, open_, header)
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
        except OSError as error:
            if fetch.stopped.is_set():
                return []
            if answered:
                return [one.not_from(asked.peer, str(error)) for one in open_[done:]]
            return None
        finally:
            self._let_go(fetch, asked, usable=usable)
        return []

    def _let_go(self, fetch: Fetch, asked: _Asked, *, usable: bool) -> None:
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

    def _request(self, open_: Sequence[_Open]) -> dict[str, Any]:
        wanted = [one.want.request for one in open_]
        return {"run": self._run, "reader": self._worker.address, "wanted": wanted}

    def _messages(
        self,
        fetch: Fetch,
        peer: str,
        open_: Sequence[_Open],
        place: Callable[[_Open, Any, int], None],
    ) -> list[_Open]:
        """Ask by Dask's messages; return what does not come."""
        answer: dict[str, Any] | None = {"waiting": True}
        first = True
        while answer is not None and "waiting" in answer:
            if fetch.stopped.is_set():
                return []
            # what is there comes to one fetch after the other: it is in memory beside its targets
            with self._by_message if first else nullcontext():
                asking = self._peers.ask(peer, PEER_SECONDS, wait=not first, **self._request(open_))
                answer = self._on_loop(asking)
                for one, piece in zip(open_, (answer or {}).get("pieces", ()), strict=False):
                    place(one, piece, piece.nbytes)
            first = False
        if answer is None:
            return [one.not_from(peer, "does not answer") for one in open_]
        return [] if "pieces" in answer else _refused(peer, open_, answer)

    def _from_here(
        self,
        fetch: Fetch,
        open_: Sequence[_Open],
        place: Callable[[_Open, Any, int], None],
    ) -> Iterator[_Open]:
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
        self, peer: str, open_: Sequence[_Open], place: Callable[[_Open, Any, int], None]
    ) -> Iterator[_Open]:
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

    async def _whole(self, peer: str, key: Any) -> Any:
        try:
            async with asyncio.timeout(PEER_SECONDS):
                while (found := await fetch_whole(self._worker, key, peer)) is None:
                    await asyncio.sleep(BUSY_SECONDS)
        except OSError:  # that of the time limit is one, too
            return None
        assert found is not None
        return found.get(key)

    def _on_loop(self, work: Any) -> Any:
        loop: Any = self._worker.loop
        return asyncio.run_coroutine_threadsafe(work, loop.asyncio_loop).result()


def _by_holder(open_: Iterable[_Open]) -> deque[tuple[str, list[_Open]]]:
    """Return (holder, what it is asked for).

    Raises
    ------
    FetchFailed
        If nobody is left that could be asked for something.
    """
    found: dict[str, list[_Open]] = {}
    failed: dict[Any, tuple[str, str]] = {}
    for one in open_:
        if one.turns:
            found.setdefault(one.turns[0], []).append(one)
        else:
            failed[one.want.key] = one.why
    if failed:
        raise FetchFailed(failed)
    return deque(found.items())


def _not_from(asked: _Asked, why: str) -> list[_Open]:
    return [one.not_from(asked.peer, why) for one in asked.open]


def _refused(peer: str, open_: Sequence[_Open], header: Mapping[str, Any]) -> list[_Open]:
    """Return what to ask others for, and what to ask the same holder for again.

    Raises
    ------
    PartitionError
        If a chunk is not what its array says.
    """
    if "unusable" in header:
        raise PartitionError(header["unusable"])
    why = dict(header["missing"])
    return [one.not_from(peer, why[one.want.key]) if one.want.key in why else one for one in open_]
