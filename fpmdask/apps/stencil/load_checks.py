"""After which iterations a team checks its load balance, for moving rows. Pure.

A check is an all-reduce: each worker must check after the same iterations. So these follow from
what the all-reduces give, which is the same on all.
"""

from __future__ import annotations

from math import ceil

# From one check to the next there are at most so many times as many iterations as before.
GROWTH = 8
# Where iterations were too short to say anything, so many times as many as should do are timed.
SPARE = 1.2


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

    def moved(self, done: int) -> None:
        """Begin anew: the first iteration is not typical, as memory is new, channels are opened."""
        self.since, self._next, self._ahead = done + 1, done + 2, 1

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
