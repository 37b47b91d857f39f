"""Speeds that rest on one measurement and look disturbed: which to measure again, what to believe.

Pure. Interference (another program, a first call, a throttled quota) only ever makes a measurement
longer. So a worker that is much slower than others like it may have been disturbed, and of
measurements that disagree the shortest is believed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

# Two workers of the same fingerprint, one this much slower: 60 : 40, which a makespan shows by a
# fifth. Quotas that no fingerprint tells make factors of four; these are measured once more.
_ALIKE = 1.5
# Cores of one cluster differ by a factor of two to three in years of processors; more is unlikely.
_PER_CORE = 3.0
# Measurements agree that differ by no more than this or by what the timer is unsure of: two
# undisturbed ones nearly always do, two disturbed ones by chance.
_AGREE = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one worker for one size.

    Parameters
    ----------
    units : int
        The size, at least 1.
    seconds : tuple of float
        Of each measurement, finite and > 0.
    half_widths : tuple of float
        Half the confidence interval of each in seconds; 0 where the timer could not tell.
    alike : str
        Workers of equal, non-empty strings have equal hardware.
    cores : float
        Threads that it computes with, > 0.
    """

    units: int
    seconds: tuple[float, ...]
    half_widths: tuple[float, ...]
    alike: str = ""
    cores: float = 1.0

    def again(self, seconds: float, half_width: float) -> "Measured":
        """Return this with one more measurement."""
        return replace(
            self,
            seconds=(*self.seconds, seconds),
            half_widths=(*self.half_widths, half_width),
        )

    @property
    def agreeing(self) -> tuple[int, ...]:
        """Places of the shortest measurement and of those that agree with it."""
        first = min(range(len(self.seconds)), key=self.seconds.__getitem__)
        least, unsure = self.seconds[first], self.half_widths[first]
        return tuple(
            i
            for i, (seconds, half_width) in enumerate(
                zip(self.seconds, self.half_widths, strict=True)
            )
            if seconds - least <= max(_AGREE * least, unsure + half_width)
        )

    @property
    def settled(self) -> tuple[float, float]:
        """Mean of the `agreeing` measurements, and its half-width; both in seconds.

        Examples
        --------
        >>> Measured(10, (8.0, 2.0, 2.1), (0.0, 0.1, 0.1)).settled
        (2.05, 0.0707...)
        """
        among = self.agreeing
        mean = sum(self.seconds[i] for i in among) / len(among)
        return mean, math.hypot(*(self.half_widths[i] for i in among)) / len(among)

    @property
    def speed(self) -> float:
        """Units per second by `settled`."""
        return self.units / self.settled[0]


def outliers(workers: Mapping[str, Measured]) -> list[str]:
    """Return the workers whose speed is doubtful and to be measured again.

    Parameters
    ----------
    workers : mapping of str to Measured
        All that were measured for the same work.

    Returns
    -------
    list of str
        Those slower, by more than they are unsure of, than the fastest other worker that is alike
        by a factor of 1.5, or than the fastest other one, per core, by a factor of 3; without
        those of which two measurements agree: a second one that says the same is evidence.

    Notes
    -----
    The reference is the fastest and not the median, since half of a small group may be disturbed.
    Speeds are never drawn together: what is confirmed counts in full. O(p**2).

    Examples
    --------
    >>> pair = {"a": Measured(10, (1.0,), (0.1,), "x"), "b": Measured(10, (4.0,), (0.1,), "x")}
    >>> outliers(pair), outliers({**pair, "b": pair["b"].again(4.1, 0.1)})
    (['b'], [])
    """
    return [name for name, own in workers.items() if _doubtful(name, own, workers)]


def _doubtful(name: str, own: Measured, workers: Mapping[str, Measured]) -> bool:
    if len(own.agreeing) > 1:
        return False
    seconds, half_width = own.settled
    fastest = own.units / max(seconds - half_width, seconds / 2)
    others = [other for key, other in workers.items() if key != name]
    alike = max((o.speed for o in others if own.alike and o.alike == own.alike), default=0.0)
    per_core = max((other.speed / other.cores for other in others), default=0.0)
    return alike > _ALIKE * fastest or per_core * own.cores > _PER_CORE * fastest
