"""A deadline that a kernel checks between its sub-steps."""

import math
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from fpmdask.errors import KernelError

Clock = Callable[[], float]


class DeadlinePassed(Exception):
    """The time that a measurement may take is over; the size measured is too large."""


class Deadline:
    """The moment, some seconds after its creation, by which a measurement must be over.

    Parameters
    ----------
    seconds : float
        Time allowed, > 0; ``inf`` never passes.
    clock : callable, optional
        Returns seconds; ``time.perf_counter`` by default.

    Raises
    ------
    KernelError
        If `seconds` is NaN or not positive.

    Examples
    --------
    >>> now = 0.0
    >>> deadline = Deadline(2.0, clock=lambda: now)
    >>> deadline.check()
    >>> now = 2.5
    >>> deadline.expired, deadline.remaining
    (True, 0.0)
    """

    __slots__ = ("_clock", "_end", "seconds")

    def __init__(self, seconds: float, clock: Clock = time.perf_counter) -> None:
        if math.isnan(seconds) or seconds <= 0:
            raise KernelError(f"a deadline of {seconds} s; it must be > 0 (inf: none)")
        self.seconds = float(seconds)
        self._clock = clock
        self._end = clock() + self.seconds

    @property
    def remaining(self) -> float:
        """Seconds left, 0 once passed."""
        return max(0.0, self._end - self._clock())

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._clock() > self._end

    def check(self) -> None:
        """Raise if the deadline has passed.

        Raises
        ------
        DeadlinePassed
            If it has.
        """
        if self.expired:
            raise DeadlinePassed(f"not finished within {self.seconds:g} s")

    def __repr__(self) -> str:
        return f"Deadline({self.seconds:g}, remaining={self.remaining:g})"


@runtime_checkable
class Interruptible(Protocol):
    """A kernel with a ``deadline``, set by `measure` before ``setup`` and cleared at the end.

    Its ``setup`` and ``run`` call ``self.deadline.check()`` between sub-steps, if it is not None.
    """

    deadline: Deadline | None
