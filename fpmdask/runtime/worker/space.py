"""What one run keeps on a worker, and what its steps wait for there."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.offers import Offers
from fpmdask.timing import Kernel, Scratch
from fpmdask.tuning import DEFAULT, Tuning


class Part(Protocol):
    """A part of a run's result that is on this worker."""

    def chunk(self, bounds: Sequence[int]) -> Any:
        """Return the chunk of the result at ``bounds``, with memory of its own."""


@dataclass(frozen=True)
class Whole:
    """A part that is one chunk, of any type."""

    value: Any

    def chunk(self, bounds: Sequence[int]) -> Any:
        """Return it."""
        return self.value


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
    withdrawn: set[Any] = field(default_factory=set)  # keys that are not to be published
    offers: Offers = field(init=False)
    exchange: Exchange = field(init=False)  # by whoever makes the space on a worker
    _notes: dict[str, queue.SimpleQueue[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offers = Offers(self.cancelled)

    def notes(self, to: str) -> queue.SimpleQueue[Any]:
        """Return what the coordinator tells a step, by the name that step listens to.

        None among them says that the run is over.
        """
        notes = self._notes.setdefault(to, queue.SimpleQueue())
        if self.cancelled.is_set():
            notes.put(None)
        return notes

    def cancel(self) -> None:
        """Make the steps of the run stop at their next check, and keep nothing for it."""
        self.cancelled.set()
        self.offers.close()
        if hasattr(self, "exchange"):
            self.exchange.close()
        for notes in list(self._notes.values()):
            notes.put(None)
        self.parts.clear()
        self.partial.clear()
        self.kept.clear()
