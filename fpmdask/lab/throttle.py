"""The duty cycle: a worker runs while it has CPU time left and is stopped while it has not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Throttle:
    """The account of one worker's CPU time.

    Parameters
    ----------
    cores : float
        CPU-seconds earned per second.
    period : float
        Seconds whose earnings may be saved up.

    Notes
    -----
    A worker earns ``cores`` CPU-seconds per second, saves at most a period's worth and may run
    into debt by what it uses between two looks; it is stopped while its account is not positive.
    Over many periods it gets exactly its quota, like a worker in a cpu control group, and an
    idle worker is never stopped.

    Examples
    --------
    >>> account = Throttle(cores=0.5, period=0.04)
    >>> account.step(elapsed=0.01, used=0.01), account.step(elapsed=0.01, used=0.03)
    (True, False)
    """

    cores: float
    period: float

    def __post_init__(self) -> None:
        self._balance = self.cores * self.period

    def step(self, *, elapsed: float, used: float) -> bool:
        """Book the seconds since the last look and the CPU-seconds used; say whether to run."""
        earned = self._balance + self.cores * elapsed - used
        self._balance = min(earned, self.cores * self.period)
        return self._balance > 0
