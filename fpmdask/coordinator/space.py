"""What one run keeps on a worker, and what its steps wait for there."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fpmdask.timing import Kernel, Scratch
from fpmdask.tuning import DEFAULT, Tuning

RELAYED = "fpmdask-relayed"
RELAY_SECONDS = 60.0

Slice = tuple[int, int, int, int]  # row start, row stop, column start, column stop


def relayed_key(key: Any) -> tuple[str, Any]:
    """Return the name under which a worker offers a chunk that it relays."""
    return RELAYED, tuple(key)


class Sliced(Protocol):
    """What may be offered to other workers instead of an array of one row."""

    def piece(self, low: int, high: int) -> Any:
        """Return elements of it: what NumPy makes an array of one row, with its dtype and nbytes.

        That happens when it is sent.
        """


class Part(Protocol):
    """A part of a run's result that is on this worker."""

    def chunk(self, bounds: Sequence[int]) -> Any:
        """Return the chunk of the result at ``bounds``, with memory of its own."""


@dataclass
class RunSpace:
    """What one run keeps on this worker, until `WorkerSide.forget`."""

    run: str
    scratch: Scratch
    tuning: Tuning = DEFAULT  # the scheduler's
    cancelled: threading.Event = field(default_factory=threading.Event)
    kernel: Kernel | None = None
    parts: dict[int, Part] = field(default_factory=dict)
    partial: dict[int, Any] = field(default_factory=dict)
    kept: dict[Any, Any] = field(default_factory=dict)  # from one attempt to the next
    # to other workers, beside chunks; None for what will not come
    offered: dict[Any, np.ndarray | Sliced | None] = field(default_factory=dict)
    _ready: dict[Any, list[Slice]] = field(default_factory=dict)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _notes: dict[str, queue.SimpleQueue[Any]] = field(default_factory=dict)

    def notes(self, to: str) -> queue.SimpleQueue[Any]:
        """Return what the coordinator tells a step, by the name that step listens to.

        None among them says that the run is over.
        """
        notes = self._notes.setdefault(to, queue.SimpleQueue())
        if self.cancelled.is_set():
            notes.put(None)
        return notes

    def arrived(self, key: Any, value: np.ndarray | None, ready: Slice) -> None:
        """Offer one more slice of what others may wait for; None: it will not come."""
        with self._news:
            if not self.cancelled.is_set():
                self.offered[key] = value
                self._ready.setdefault(key, []).append(ready)
            self._news.notify_all()

    def is_ready(self, key: Any, wanted: Slice) -> bool:
        """Tell whether all of a slice has arrived, or will not; slices come in any order."""
        row0, row1, column0, column1 = wanted
        there = 0  # elements; no two of the slices that arrive overlap
        for r0, r1, c0, c1 in self._ready.get(key, ()):
            height, width = min(r1, row1) - max(r0, row0), min(c1, column1) - max(c0, column0)
            there += max(0, height) * max(0, width)
        return there >= (row1 - row0) * (column1 - column0)

    def wait_for(self, key: Any, wanted: Slice, seconds: float) -> np.ndarray | None:
        """Return what is offered once a slice of it is there; None where it fails."""
        with self._news:
            there = self._news.wait_for(
                lambda: self.is_ready(key, wanted) or self.cancelled.is_set(), seconds
            )
        found = self.offered.get(key) if there else None
        return found if isinstance(found, np.ndarray) else None

    def cancel(self) -> None:
        """Make the steps of the run stop at their next check, and keep nothing for it."""
        self.cancelled.set()
        with self._news:
            self._news.notify_all()
        for notes in list(self._notes.values()):
            notes.put(None)
        self.parts.clear()
        self.partial.clear()
        self.kept.clear()
        self.offered.clear()
