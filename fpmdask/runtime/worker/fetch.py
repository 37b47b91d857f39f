"""What is fetched from other workers: wants, who is asked next for them, and how a fetch goes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fpmdask.errors import PartitionError, RunCancelledError
from fpmdask.runtime.protocol import Wanted
from fpmdask.runtime.regions import Box
from fpmdask.runtime.worker.channel import Channel


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
class Open:
    """What is not there yet: who is asked for it next, and why it did not come so far."""

    want: Want
    turns: tuple[str, ...]
    why: tuple[str, str] = ("nobody", "holds it")

    def not_from(self, peer: str, why: str) -> Open:
        """Go on to the next holder after `peer`, which is the first one."""
        return Open(self.want, self.turns[1:], (peer, why))


@dataclass(slots=True)
class Asked:
    """What one holder is asked for, and the channel through which it was."""

    peer: str
    open: list[Open]
    channel: Channel | None = None
    used: bool = False  # the channel, before


class Waited(Protocol):
    """What a thread waits for: shut, the wait ends."""

    def shut(self) -> None: ...


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
        self._in_use: set[Waited] = set()
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
        self.work()
        self._done.wait()
        failure, self._failure = self._failure, None
        if failure is not None and not self._run_over.is_set():
            try:
                raise failure
            finally:
                del failure  # it holds this frame
        if failure is not None or self.stopped.is_set():
            raise RunCancelledError("what was fetched is not wanted any more")

    def work(self) -> None:
        """Do what was left to whoever waits, once."""
        with self._lock:
            work, self.in_wait = self.in_wait, None
        if work is not None:
            work()

    def cancel(self) -> None:
        """Receive no more; returns when no thread writes to the targets any longer."""
        self.stop()
        with suppress(FetchFailed, PartitionError, RunCancelledError):
            self.wait()

    def stop(self) -> None:
        """Receive no more; what waits for it ends soon."""
        self.stopped.set()
        with self._lock:
            for waited in self._in_use:
                waited.shut()

    def failed(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = error
        self.stop()  # nobody waits for what others send

    def received(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes

    def use(self, waited: Waited) -> None:
        with self._lock:
            self._in_use.add(waited)
        if self.stopped.is_set():
            waited.shut()

    def give_back(self, waited: Waited) -> None:
        with self._lock:
            self._in_use.discard(waited)

    def job_ended(self, cpu_seconds: float) -> None:
        with self._lock:
            self.cpu_seconds += cpu_seconds
            self._left -= 1
            ended = not self._left
        if ended:
            self._done.set()


def by_holder(open_: Iterable[Open]) -> deque[tuple[str, list[Open]]]:
    """Return (holder, what it is asked for).

    Raises
    ------
    FetchFailed
        If nobody is left that could be asked for something.
    """
    found: dict[str, list[Open]] = {}
    failed: dict[Any, tuple[str, str]] = {}
    for one in open_:
        if one.turns:
            found.setdefault(one.turns[0], []).append(one)
        else:
            failed[one.want.key] = one.why
    if failed:
        raise FetchFailed(failed)
    return deque(found.items())


def not_from(asked: Asked, why: str) -> list[Open]:
    return [one.not_from(asked.peer, why) for one in asked.open]


def refused(peer: str, open_: Sequence[Open], header: Mapping[str, Any]) -> list[Open]:
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
