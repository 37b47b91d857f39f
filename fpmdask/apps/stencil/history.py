"""What iterations have taken a worker, and whether that is as predicted. Pure.

It does not load MHETA: workers that are in core need it not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fpmdask.timing.meter import METERED

# The median of so many iterations says whether a prediction holds; it does not if it is off by so
# much, and by so many times the scatter of the run's own iterations.
WINDOW, OFF, SCATTERS = 5, 0.10, 3.0
# The standard deviation of normal noise by the median of absolute deviations.
NORMAL = 1.4826
# The instrumented iteration has so many blocks: two, and the last one half as large.
BLOCKS = 2.5
# Rows that every worker has in it, at least: blocks of two sizes.
LEAST_INSTRUMENTED = 5
# Iterations of which a worker remembers each, the last ones.
REMEMBERED = 512


def instrumented_rows(rows: int, streamed: int) -> int:
    """Return the rows of a block in the instrumented iteration.

    Parameters
    ----------
    rows
        Of the worker.
    streamed
        Those of a block that fits into its memory; 0: all rows do.

    Examples
    --------
    >>> instrumented_rows(100, 0), instrumented_rows(100, 30), instrumented_rows(4, 0)
    (40, 30, 2)
    """
    found = -int(-rows // BLOCKS)
    return max(1, min(found, streamed or found))


def sample_rows(rows: int, row_nbytes: int, nbytes: int, least: int = 1) -> int:
    """Return how many rows of a worker are iterated once to measure it.

    A quarter of them at most, but for few, and a multiple of five: two blocks, and one half as
    large.

    Parameters
    ----------
    rows
        That it would have.
    row_nbytes
        Of one.
    nbytes
        Of the sample.
    least
        Rows that a worker must have.

    Examples
    --------
    >>> sample_rows(100, 1000, 30_000), sample_rows(100, 1000, 0), sample_rows(3, 1000, 30_000)
    (25, 5, 3)
    >>> sample_rows(1000, 1000, 90_000)
    90
    """
    wanted = min(rows // 4, nbytes // max(1, row_nbytes))
    return min(rows, max(LEAST_INSTRUMENTED, least, wanted - wanted % LEAST_INSTRUMENTED))


class History:
    """What the iterations of one worker have taken, by distribution.

    The first one of a distribution is not typical: it writes to memory that is new, which may take
    ten times as long. It counts only where no other one has been made.

    Parameters
    ----------
    done
        Iterations that were made before.

    Attributes
    ----------
    phases : list of dict
        Of each distribution: ``first`` and ``count`` of its iterations, and what those that are
        typical have taken: their sums of ``seconds`` and of its parts.

    Examples
    --------
    >>> history = History()
    >>> parts = {"compute": 0.5, "io": 0.0, "send": 0.0, "receive": 0.0}
    >>> for seconds in (7.0, 1.0, 1.5, 1.25):
    ...     history.add({"seconds": seconds, **parts})
    >>> history.middle(), history.phases[-1]["count"], history.phases[-1]["seconds"]
    (1.25, 4, 3.75)
    """

    def __init__(self, done: int = 0) -> None:
        self._done = done
        self.phases: list[dict[str, Any]] = []
        self._each: deque[list[float]] = deque(maxlen=REMEMBERED)
        self._recent: deque[dict[str, float]] = deque(maxlen=4 * WINDOW)
        self.begin()

    def begin(self) -> None:
        """Begin with another distribution."""
        count = sum(phase["count"] for phase in self.phases)
        if not self.phases or self.phases[-1]["count"]:
            sums = dict.fromkeys(("seconds", *METERED), 0.0)
            self.phases.append({"first": self._done + count + 1, "count": 0, **sums})
        self._recent.clear()

    def add(self, spent: Mapping[str, float]) -> None:
        """Add an iteration: its ``seconds``, and those of its parts."""
        phase = self.phases[-1]
        phase["count"] += 1
        for name, seconds in spent.items():
            phase[name] = seconds + (phase[name] if phase["count"] > 2 else 0.0)
        self._each.append([spent[name] for name in ("seconds", *METERED)])
        if phase["count"] == 2:
            self._recent.clear()
        self._recent.append(dict(spent))

    @property
    def is_full(self) -> bool:
        """Whether the last `WINDOW` iterations of this distribution can be judged now."""
        return not typical(self.phases[-1]) % WINDOW and len(self._recent) >= WINDOW

    def middle(self) -> float:
        """Return the median seconds of the last iterations."""
        return float(np.median([one["seconds"] for one in [*self._recent][-WINDOW:]]))

    def scatter(self) -> float:
        """Return the scatter of this distribution's iterations before the last ones."""
        seconds = [one["seconds"] for one in self._recent]
        return scatter(seconds[:-WINDOW] or seconds)

    def medians(self) -> dict[str, float]:
        """Return the median of what each part took in the last iterations."""
        recent = [*self._recent][-WINDOW:]
        return {part: float(np.median([one[part] for one in recent])) for part in METERED}

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"phases": self.phases, "iterations": list(self._each)}


def median_parts(iterations: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the medians of what iterations spent on computing, on I/O, and on neither.

    Parameters
    ----------
    iterations
        As of `History.to_json`: seconds, and those of their parts.

    Examples
    --------
    >>> median_parts([[1.0, 0.5, 0.25, 0.0, 0.125], [2.0, 0.5, 0.25, 0.0, 1.125]])
    {'compute': 0.5, 'io': 0.25, 'beside': 0.75}
    """
    compute, io = (1 + METERED.index(part) for part in ("compute", "io"))
    return {
        "compute": float(np.median([one[compute] for one in iterations])),
        "io": float(np.median([one[io] for one in iterations])),
        "beside": float(np.median([one[0] - one[compute] - one[io] for one in iterations])),
    }


def typical(phase: Mapping[str, Any]) -> int:
    """Return of how many iterations a phase has the sums.

    Examples
    --------
    >>> [typical({"count": count}) for count in (0, 1, 2, 9)]
    [0, 1, 1, 8]
    """
    count: int = phase["count"]
    return count - (count > 1)


def scatter(seconds: Sequence[float]) -> float:
    """Return the standard deviation of iterations, outliers tamed; 0 of less than three.

    Examples
    --------
    >>> round(scatter([1.0, 1.1, 0.9, 9.0, 1.0]), 3)
    0.148
    """
    if len(seconds) < 3:
        return 0.0
    middle = np.median(seconds)
    return NORMAL * float(np.median(np.abs(np.subtract(seconds, middle))))


def is_off(middle: float, noise: float, expected: float) -> bool:
    """Tell whether the median of some iterations is not what was expected of them.

    Examples
    --------
    >>> is_off(1.2, 0.01, 1.0), is_off(1.2, 0.1, 1.0), is_off(1.05, 0.0, 1.0)
    (True, False, False)
    """
    return abs(middle - expected) > max(OFF * expected, SCATTERS * noise)
