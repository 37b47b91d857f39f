"""How long workers are waited for. Pure: times are arguments."""

from __future__ import annotations

from collections.abc import Iterable

# A worker is silent at the earliest after so long: six heartbeats of a small cluster.
SILENT_SECONDS = 3.0
# A worker is late when it is silent for so many times as long as its step should take.
LATE = 5.0
# After so long it is told that a worker is waited for.
TOLD_SECONDS = 1.0


class StepTimes:
    """Steps that were started together: who has not answered, and how long the others took.

    No I/O; times are arguments, in seconds of one clock.
    """

    def __init__(self, workers: Iterable[str], began: float) -> None:
        self.open: list[str] = list(workers)
        self.began = began
        self._count = len(self.open)
        self._longest = 0.0

    def ended(self, worker: str, now: float) -> None:
        """Take note of an answer."""
        self.open.remove(worker)
        self._longest = now - self.began

    def patience(self, expected: float | None, hang: float) -> float:
        """Return for how many seconds a worker that has not answered may be silent.

        Parameters
        ----------
        expected
            Seconds that a step should take; where None, what at least half of the workers took.
        hang
            The most, and the answer where nothing is known.

        Examples
        --------
        >>> steps = StepTimes(["a", "b", "c"], began=10.0)
        >>> steps.patience(2.0, 30.0), steps.patience(None, 30.0)
        (10.0, 30.0)
        >>> steps.ended("a", 10.1)
        >>> steps.ended("b", 10.2)
        >>> steps.patience(None, 30.0), steps.patience(100.0, 30.0), steps.patience(None, 2.0)
        (3.0, 30.0, 2.0)
        """
        if expected is None and 2 * (self._count - len(self.open)) >= self._count:
            expected = self._longest
        late = hang if expected is None else max(SILENT_SECONDS, LATE * expected)
        return min(hang, late)
