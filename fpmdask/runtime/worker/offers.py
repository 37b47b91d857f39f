"""What one run offers to other workers: arrays, or what is read when it is sent, in versions.

Used from any thread of a worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fpmdask.errors import RunCancelledError
from fpmdask.runtime.regions import Box, is_covered, is_within, size, view, whole

# No version comes after this one.
LAST_VERSION = 1 << 62


class Source(Protocol):
    """What may be offered instead of an array: it is read when it is sent."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""

    def read(self, box: Box) -> Any:
        """Return a box of it: an array, `Scattered`, or what NumPy makes an array.

        The last two have `nbytes`.
        """


def rows_of(source: np.ndarray | Source, low: int, high: int) -> Any:
    """Return rows of what may be offered: of an array a view."""
    if isinstance(source, np.ndarray):
        return source[low:high]
    return source.read(((low, high), *whole(source.shape[1:])))


class Refused(Exception):
    """What is asked for will not come."""


@dataclass
class _Entry:
    version: int
    source: np.ndarray | Source | None  # None: retired
    ready: list[Box] = field(default_factory=list)
    unread: dict[str, int] = field(default_factory=dict)  # reader -> elements it has not fetched


class Offer:
    """A version of something that is offered, for whoever has offered it."""

    def __init__(self, offers: Offers, key: Any, version: int) -> None:
        self._offers, self.key, self.version = offers, key, version

    def wait_read(self) -> None:
        """Return when all readers have fetched this version; its memory may be overwritten then.

        Readers that have left the cluster are not waited for, nor is a version that was retired or
        replaced.

        Raises
        ------
        RunCancelledError
            If the run ends before.
        """
        self._offers.wait_read(self.key, self.version)


class Offers:
    """What a run offers on this worker.

    Parameters
    ----------
    cancelled
        Is set when the run is over.
    """

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        self._entries: dict[Any, _Entry] = {}
        self._news = threading.Condition()
        self._gone: set[str] = set()

    def offer(
        self,
        key: Any,
        source: np.ndarray | Source,
        version: int = 0,
        box: Box | None = None,
        readers: Iterable[str] = (),
    ) -> Offer:
        """Offer an array, or a box of it that is ready now.

        Parameters
        ----------
        key
            Strings, numbers, and tuples of these.
        source
            Its memory must stay as it is until it is retired, or all `readers` have read it.
        version
            Of what is in the memory: a newer version replaces an older one.
        box
            What is ready; offer the same version again for more, in boxes that do not overlap. None
            for all.
        readers
            Addresses of workers for which `Offer.wait_read` waits; each fetches all of it, once.

        Raises
        ------
        ValueError
            If the version is older than the one that is offered, or the box lies outside.
        RunCancelledError
            If the run is over.
        """
        box = whole(source.shape) if box is None else box
        if not is_within(box, source.shape):
            raise ValueError(f"{key}: box {box} is not within the shape {tuple(source.shape)}")
        with self._news:
            if self._cancelled.is_set():
                raise RunCancelledError("the run is over")
            entry = self._entries.get(key)
            if entry is not None and version < entry.version:
                raise ValueError(f"{key}: version {version} comes after version {entry.version}")
            if entry is None or version > entry.version or entry.source is None:
                count = size(whole(source.shape))
                unread = {reader: count for reader in readers if reader not in self._gone and count}
                entry = self._entries[key] = _Entry(version, source, unread=unread)
            entry.ready.append(box)
            self._news.notify_all()
        return Offer(self, key, version)

    def retire(self, key: Any) -> None:
        """Offer it no more, or never: whoever waits for it is refused. Let go of its memory."""
        with self._news:
            entry = self._entries.get(key)
            self._entries[key] = _Entry(0 if entry is None else entry.version, None)
            self._news.notify_all()

    def end(self, key: Any) -> None:
        """Refuse whoever waits for any version of it, now and later."""
        with self._news:
            self._entries[key] = _Entry(LAST_VERSION, None)
            self._news.notify_all()

    def __contains__(self, key: Any) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.source is not None

    def __iter__(self) -> Iterator[Any]:
        """Return the keys of what is offered now."""
        with self._news:
            there = [key for key, entry in self._entries.items() if entry.source is not None]
        return iter(there)

    def wait_for(self, key: Any, box: Box, version: int = 0, seconds: float = 0.0) -> Any:
        """Return a box once it is there, None after so many seconds.

        An array is a view; what is read when it is sent is what `Source.read` returns.

        Raises
        ------
        Refused
            If it will not come: it is retired, a newer version is offered, the run is over, or the
            box lies outside.
        """
        give_up = time.monotonic() + seconds
        with self._news:
            while (entry := self._ready(key, box, version)) is None:
                left = give_up - time.monotonic()
                if left <= 0:
                    return None
                self._news.wait(left)
        source = entry.source
        assert source is not None  # retired, it would have been refused
        return view(source, box) if isinstance(source, np.ndarray) else source.read(box)

    def _ready(self, key: Any, box: Box, version: int) -> _Entry | None:
        if self._cancelled.is_set():
            raise Refused("has ended the run")
        entry = self._entries.get(key)
        if entry is None or (version > entry.version and entry.source is not None):
            return None
        if entry.source is None:
            if version > entry.version:
                return None
            raise Refused("has retired it")
        if version < entry.version:
            raise Refused(f"offers version {entry.version}, not {version}")
        if not is_within(box, entry.source.shape):
            raise Refused(f"offers the shape {tuple(entry.source.shape)}, without {box}")
        return entry if is_covered(box, entry.ready) else None

    def was_sent(self, key: Any, box: Box, version: int, reader: str) -> None:
        """Take note that a worker has been sent a box."""
        with self._news:
            entry = self._entries.get(key)
            if entry is None or entry.version != version or reader not in entry.unread:
                return
            entry.unread[reader] -= size(box)
            if entry.unread[reader] <= 0:
                del entry.unread[reader]
                self._news.notify_all()

    def left(self, peer: str) -> None:
        """Wait for a worker that has left the cluster no more."""
        with self._news:
            self._gone.add(peer)
            for entry in self._entries.values():
                entry.unread.pop(peer, None)
            self._news.notify_all()

    def joined(self, peer: str) -> None:
        """Wait again for a worker with the address of one that had left."""
        with self._news:
            self._gone.discard(peer)

    def wait_read(self, key: Any, version: int) -> None:
        """Do what `Offer.wait_read` says."""
        with self._news:
            while not self._cancelled.is_set():
                entry = self._entries.get(key)
                if entry is None or entry.version != version or not entry.unread:
                    return
                self._news.wait()
        raise RunCancelledError("the run is over")

    def close(self) -> None:
        """Let go of all, once the run is over: who waits is told."""
        with self._news:
            self._entries.clear()
            self._news.notify_all()
