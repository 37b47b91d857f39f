"""Sums of what iterations spend on computing, I/O and messages, where no events are needed.

These have the methods of `fpmdask.mheta.instrument.Recorder`, and workers load them without that
package, which takes a slow one half a second. The clock is injected. A meter owns the sums of one
node.
"""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from fpmdask.timing.deadline import Clock

# Of the parts of a prediction; what waiting for a message takes is not told from receiving it.
METERED = ("compute", "io", "send", "receive")


class NoRecorder:
    """Has the methods with which a program records, and records nothing."""

    records = False

    def at(self, section: int, tile: int | None = None) -> None:
        """As `fpmdask.mheta.instrument.Recorder.at`."""

    def stage(self, stage: int, rows: int) -> AbstractContextManager[Any]:
        """As `Recorder.stage`; so are the others."""
        return NOTHING

    def compute(self, rows: int) -> AbstractContextManager[Any]:
        """Do nothing."""
        return NOTHING

    def wait(self, array: str) -> AbstractContextManager[Any]:
        """Do nothing."""
        return NOTHING

    def read(self, array: str, rows: int, nbytes: float) -> AbstractContextManager[Any]:
        """Do nothing."""
        return NOTHING

    write = issue = read

    def send(
        self, peer: int | None = None, nbytes: float | None = None
    ) -> AbstractContextManager[Any]:
        """Do nothing."""
        return NOTHING

    receive = send


NOTHING: AbstractContextManager[Any] = nullcontext()


class Meter(NoRecorder):
    """Has the methods of a `Recorder`, and sums up seconds instead of keeping events.

    Parameters
    ----------
    clock : callable
        Returns seconds and never goes back.

    Notes
    -----
    Computing is the seconds of the stages without their reads, writes, issues and waits, as in
    `fit`. The program is not to block where it issues a prefetch.

    Examples
    --------
    >>> import itertools
    >>> meter = Meter(clock=map(float, itertools.count()).__next__)
    >>> with meter.stage(0, rows=2):
    ...     with meter.read("A", rows=2, nbytes=16):
    ...         pass
    ...     with meter.compute(2):
    ...         pass
    >>> with meter.send(peer=1, nbytes=8):
    ...     pass
    >>> meter.taken()
    {'seconds': 7.0, 'compute': 2.0, 'io': 1.0, 'send': 1.0, 'receive': 0.0}
    >>> meter.taken()
    {'seconds': 1.0, 'compute': 0.0, 'io': 0.0, 'send': 0.0, 'receive': 0.0}
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock()
        self._spent = dict.fromkeys(METERED, 0.0)

    def taken(self) -> dict[str, float]:
        """Return the seconds since this was asked last, in sum and by parts."""
        now, spent = self._clock(), self._spent
        seconds, self._began = now - self._began, now
        self._spent = dict.fromkeys(METERED, 0.0)
        return {"seconds": seconds, **spent}

    def stage(self, stage: int, rows: int) -> "Metered":
        """Time a stage."""
        return Metered(self, "compute")

    def compute(self, rows: int) -> "Metered":
        """Do nothing: the stage is timed."""
        return Metered(self, None)

    def read(self, array: str, rows: int, nbytes: float) -> "Metered":
        """Time a read, a write, or the issue of a prefetch."""
        return Metered(self, "io")

    write = issue = read

    def wait(self, array: str) -> "Metered":
        """Time the wait for a prefetch."""
        return Metered(self, "io")

    def send(self, peer: int | None = None, nbytes: float | None = None) -> "Metered":
        """Time the sending of a message."""
        return Metered(self, "send")

    def receive(self, peer: int | None = None, nbytes: float | None = None) -> "Metered":
        """Time waiting for a message and receiving it."""
        return Metered(self, "receive")

    def add(self, part: str | None, seconds: float) -> None:
        """Add seconds to a part; I/O is inside of a stage, and no computing."""
        if part is None:
            return
        self._spent[part] += seconds
        if part == "io":
            self._spent["compute"] -= seconds


class Metered:
    """Something that is timed in a ``with`` block; `nbytes` and `peer` may be set meanwhile."""

    __slots__ = ("_meter", "_part", "_start", "nbytes", "peer")

    def __init__(self, meter: Meter, part: str | None) -> None:
        self._meter, self._part, self._start = meter, part, 0.0
        self.nbytes: float | None = None
        self.peer: int | None = None

    def __enter__(self) -> Self:
        self._start = self._meter._clock() if self._part is not None else 0.0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._part is not None:
            self._meter.add(self._part, self._meter._clock() - self._start)
