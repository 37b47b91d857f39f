"""After which iterations a team checks its load balance, for moving rows. Pure.

A check is an all-reduce: each worker must check after the same iterations. So these follow from
what the all-reduces give, which is the same on all.
"""

from __future__ import annotations

from math import ceil
from statistics import median

from fpmdask.apps.stencil.history import is_off, scatter

# From one check to the next there are at most so many times as many iterations as before.
GROWTH = 8
# Where iterations were too short to say anything, so many times as many as should do are timed.
SPARE = 1.2
# The first check comes after so many iterations, at most, however short they should be.
MOST_FIRST = 16
# Iterations on new shares that take so many times as long as they should: that was a mistake.
MISTAKE = 2.0
# After so many checks workers tell what they take in any case: one may be faster than before, which
# the iterations of all do not show.
ANYWAY = 10
# Iterations take another time than before where those of the last so many checks do, in the median.
RECENT = 3


class LoadChecks:
    """The load checks of a team, between two of which workers are timed.

    Parameters
    ----------
    least_seconds
        Of iterations that say how fast workers are.
    every_seconds
        About so long is it from one check to the next, once iterations have been timed.

    Attributes
    ----------
    since : int
        The iteration after which the timed ones begin.

    Examples
    --------
    >>> checks, seen = LoadChecks(0.1, 1.0), []
    >>> for done in range(1, 90):
    ...     if checks.due(done) and checks.are_timed(done, (done - checks.since) * 0.05):
    ...         seen.append(done)
    ...         checks.begin(done)
    >>> seen
    [4, 23, 43, 63, 83]
    """

    def __init__(self, least_seconds: float, every_seconds: float) -> None:
        self._least, self._every = least_seconds, every_seconds
        self.moved(0)

    def moved(self, done: int, seconds: float | None = None) -> None:
        """Begin anew: the first iteration is not typical, as memory is new, channels are opened.

        Iterations should take so many `seconds` each, as far as that is known.

        Examples
        --------
        >>> checks = LoadChecks(0.1, 1.0)
        >>> checks.moved(10, 0.012)
        >>> [done for done in range(10, 90) if checks.due(done)]
        [21]
        """
        count = ceil(SPARE * self._least / seconds) if seconds else 1
        self.since, self._next, self._ahead = done + 1, done + 1 + max(1, min(count, MOST_FIRST)), 1
        self._each: list[float] = []
        self._should = seconds

    def due(self, done: int) -> bool:
        """Tell whether the team checks after an iteration."""
        return done == self._next

    def are_timed(self, done: int, seconds: float) -> bool:
        """Tell whether the iterations since `since`, which took so long, say how fast workers are.

        After a check for which this is not so the next one comes when it should be; otherwise
        `begin` is called.
        """
        count = done - self.since
        if seconds < self._least:
            more = SPARE * self._least * count / seconds if seconds > 0 else 2 * count
            self._next = self.since + max(count + 1, min(ceil(more), GROWTH * count))
            return False
        found = int(self._every * count / seconds) if seconds > 0 else GROWTH * count
        self._ahead = max(1, min(found, GROWTH * count))
        return True

    def begin(self, done: int) -> None:
        """Time the iterations from here on."""
        self.since, self._next = done, done + self._ahead

    def are_off(self, done: int, seconds: float) -> bool:
        """Tell whether timed iterations take another time than those before; then begin anew.

        A check's iterations count as one, with their mean. The first ones are off where they take
        twice as long as they should, and those of every tenth check in any case.

        Examples
        --------
        >>> checks, found = LoadChecks(0.1, 1.0), []
        >>> for done, seconds in enumerate([1.0, 1.05, 1.0, 3.0, 1.0, 3.0, 3.1, 3.0], 2):
        ...     found.append(checks.are_off(done, seconds))
        ...     checks.begin(done)
        >>> found
        [False, False, False, False, False, True, False, False]
        """
        self._each.append(seconds / (done - self.since))
        before, recent = self._each[:-RECENT], self._each[-RECENT:]
        if before:
            off = is_off(median(recent), scatter(before), median(before))
        else:
            off = self._should is not None and self._each[-1] > MISTAKE * self._should
        if off or len(self._each) >= ANYWAY:
            self._each, self._should = [], None
            return True
        return False
