"""By when all workers end if those that are done take lines off the others: pure arithmetic."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from fpmdask.partition.validate import FloatArray

# Of all lines so small a part is none.
ROUNDING = 1e-12


class Helpers:
    """Workers that could take lines off the part that is expected last.

    Parameters
    ----------
    givers
        As for `level_of`.
    able
        Worker -> its lines per second, from when on (seconds), and how many lines are worth while.
    """

    def __init__(
        self,
        givers: Sequence[tuple[float, float]],
        able: Mapping[str, tuple[float, float, float]],
    ) -> None:
        self.able = able
        self._givers = np.array(givers, dtype=np.float64)
        self._at = {worker: at for at, worker in enumerate(sorted(able))}
        self._facts = np.array([able[worker] for worker in self._at], dtype=np.float64)

    def level_with(self, helper: str) -> float:
        """Return when all end if `helper` helps, and as many others as it is worth while for.

        Notes
        -----
        The answer is the same for all that it is worth while for whoever helps: O(helpers · log²
        helpers) once for these together, and for each of the others.
        """
        level, worth = self._without_exception
        at = self._at[helper]
        return level if worth[at] else self._level(at)[0]

    @cached_property
    def _without_exception(self) -> tuple[float, np.ndarray]:
        return self._level(None)

    def _level(self, always: int | None) -> tuple[float, np.ndarray]:
        """Return when all end, and for whom it is worth while all the time while others drop out.

        `always` helps in any case.
        """
        pace, begin, least = self._facts.T
        helping = np.ones(pace.size, dtype=bool)
        worth = np.ones(pace.size, dtype=bool)
        while True:
            level = _level_of(self._givers, self._facts[helping, :2])
            idle = helping & (pace * (level - begin) < least)
            if always is not None:
                idle[always] = False
            (which,) = np.nonzero(idle)
            if not which.size:
                return level, worth
            worth &= ~idle
            # with the slower half of them gone it may be worth while for the others
            slower = which[np.argsort(pace[which], kind="stable")]
            helping[slower[: (which.size + 1) // 2]] = False


def level_of(
    givers: Sequence[tuple[float, float]], helpers: Sequence[tuple[float, float]]
) -> float:
    """Return when all end if the givers' lines that are left then are the helpers' by then.

    Parameters
    ----------
    givers
        Of each its lines per second, and when it would end (seconds); at least one.
    helpers
        Of each its lines per second, and from when on (seconds).

    Examples
    --------
    >>> level_of([(1.0, 9.0)], [(2.0, 3.0), (9.0, 7.0)])
    5.0
    """
    return _level_of(np.array(givers), np.array(helpers))


def _level_of(givers: FloatArray, helpers: FloatArray) -> float:
    """Return `level_of` arrays of two columns. O((givers + helpers) log (givers + helpers))."""
    helpers = helpers.reshape(-1, 2)
    at = np.concatenate([helpers[:, 1], givers[:, 1]])
    change = np.concatenate([helpers[:, 0], -givers[:, 0]])
    order = np.argsort(at, kind="stable")
    at = np.concatenate([[0.0], at[order]])
    pace = givers[:, 0].sum() + np.concatenate([[0.0], np.cumsum(change[order])])
    lacking = float(givers[:, 0] @ givers[:, 1])
    done = np.concatenate([[0.0], np.cumsum(pace[:-1] * np.diff(at))])
    # where all givers have ended there is nothing left but rounding
    last = int(np.searchsorted(done, lacking * (1 - ROUNDING))) - 1
    return float(at[last] + (lacking - done[last]) / pace[last]) if last >= 0 else 0.0
