"""One account of a worker's memory: what a plan may still put there."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Memory that is no data of Dask is looked at from this part of the limit on.
SUSPICIOUS = 0.1


@dataclass(frozen=True)
class Account:
    """What a worker's memory is used for, in bytes.

    Parameters
    ----------
    limit
        Its memory limit, None or 0 where there is none.
    target
        Share of the limit that a plan may fill: the spill target, which is the scheduler's.
    data
        Dask's data in memory.
    spilled
        Dask's data that is not in memory, as large as it will be there.
    beside
        What its process has had beside data for some time. What came just now is mostly that of
        tasks, and goes with them.

    Examples
    --------
    >>> account = Account(limit=1000, target=0.6, data=100, spilled=50, beside=200)
    >>> account.free(), account.free(reserved=250), account.free_later(), account.free_for_all()
    (300.0, 50.0, 500.0, 450.0)
    >>> Account(limit=None, target=0.6, data=100).free()
    inf
    """

    limit: float | None
    target: float
    data: float = 0
    spilled: float = 0
    beside: float = 0

    def free(self, reserved: float = 0.0) -> float:
        """Return the bytes that a plan may put there now, beside those that are reserved."""
        return self._left(self.data + self.beside + reserved)

    def free_later(self) -> float:
        """Return what will be free once no run goes on: they take what is beside data with them."""
        return self._left(self.data)

    def free_for_all(self) -> float:
        """Return what will be free where all data are to be in memory, the spilled ones, too.

        For who brings inputs there before a run: these may be spilled, and come back in the run,
        while what the last one had beside data is free by then.
        """
        return self._left(self.data + self.spilled)

    def _left(self, used: float) -> float:
        return max(0.0, self.target * self.limit - used) if self.limit else math.inf


def is_much(unmanaged: float, limit: float | None) -> bool:
    """Tell whether memory that is no data of Dask matters to plans: malloc may keep most of it.

    Examples
    --------
    >>> is_much(150, 1000), is_much(50, 1000), is_much(150, None)
    (True, False, False)
    """
    return bool(limit) and unmanaged > SUSPICIOUS * (limit or 0)
