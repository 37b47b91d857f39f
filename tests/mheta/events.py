"""A clock with a heap of events, and processes that pass the time: the core of the simulation.

Nothing here knows what is simulated; `tests.mheta.simulated_node` does.
"""

import heapq
from collections.abc import Callable, Collection, Generator
from functools import partial
from itertools import count
from typing import Any

PARTS = ("compute", "io", "send", "wait", "receive")

# A process yields how long it is busy, or None to sleep until a message or a transfer wakes it.
Steps = Generator[float | None, None, None]


class Clock:
    """The time, in seconds, and the heap of events to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` in so many seconds; of equal times the first asked for is the first."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), action))

    def run(self) -> None:
        """Let events happen in the order of their times until there are none."""
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()


class Process:
    """A CPU that does one thing after the other, with a disk and a mailbox beside it.

    `spent` is where its seconds went, by part, since somebody last set it to zeros.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.spent = dict.fromkeys(PARTS, 0.0)
        self._mailbox: list[tuple[Any, int]] = []
        self._transferring = self._asleep = False
        self._steps: Steps

    def start(self, steps: Steps) -> None:
        """Begin to walk through `steps` when the clock runs."""
        self._steps = steps
        self.clock.after(0.0, self._resume)

    def deliver(self, tag: Any, sender: int) -> None:
        """Put a message that arrives into the mailbox."""
        self._mailbox.append((tag, sender))
        self._wake()

    def transfer(self, queue: list[float]) -> None:
        """Let the disk move one array after the other, each in so many seconds."""
        self._transferring = bool(queue)
        if queue:
            self.clock.after(queue[0], partial(self.transfer, queue[1:]))
        else:
            self._wake()

    def busy(self, part: str, seconds: float) -> Steps:
        """Keep the CPU busy."""
        self.spent[part] += seconds
        yield seconds

    def await_transfer(self) -> Steps:
        """Wait until the disk has moved what it was told to; the stall is I/O."""
        since = self.clock.now
        while self._transferring:
            yield None
        self.spent["io"] += self.clock.now - since

    def await_message(self, tag: Any, senders: Collection[int]) -> Steps:
        """Take the first message of this tag that arrives from one of the senders."""
        since = self.clock.now
        while not (found := [m for m in self._mailbox if m[0] == tag and m[1] in senders]):
            yield None
        self._mailbox.remove(found[0])
        self.spent["wait"] += self.clock.now - since

    def _resume(self) -> None:
        """Go on up to the next step that takes time."""
        self._asleep = False
        for seconds in self._steps:
            if seconds is None:
                self._asleep = True
            else:
                self.clock.after(seconds, self._resume)
            return

    def _wake(self) -> None:
        if self._asleep:
            self._resume()
