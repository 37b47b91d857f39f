"""How long to repeat a kernel, and what came out."""

import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, Self

from fpmdask.errors import KernelError

Reason = Literal["precise", "repetitions", "budget", "deadline"]


@dataclass(frozen=True)
class TimingPolicy:
    """When a measurement is good enough, and what it may cost.

    Parameters
    ----------
    relative_error : float
        Half-width of the confidence interval that is wanted, relative to the mean, > 0.
    confidence : float
        Of the interval, within (0, 1).
    min_repetitions, max_repetitions : int
        1 <= min <= max.
    min_seconds : float
        Time that the repetitions cover at least, >= 0. A CPU quota is dealt out in periods of 10 to
        100 ms; what is much shorter falls inside a period or over its end.
    budget_seconds : float
        Time that the repetitions take at most, > 0; no repetition is begun that would, by the mean
        so far, end later. A single repetition may take longer.
    warmup : int
        Runs ahead of the first repetition, >= 0. One that takes `min_seconds` or longer is counted
        as a repetition, too dear to be dropped, unless the next run takes less than half of it.

    Raises
    ------
    KernelError
        For values out of range.

    Examples
    --------
    >>> policy = TimingPolicy(relative_error=0.02)
    >>> TimingPolicy.from_json(policy.to_json()) == policy
    True
    """

    relative_error: float = 0.05
    confidence: float = 0.95
    min_repetitions: int = 2
    max_repetitions: int = 100_000
    min_seconds: float = 0.1
    budget_seconds: float = 1.0
    warmup: int = 1

    def __post_init__(self) -> None:
        for name in ("min_repetitions", "max_repetitions", "warmup"):
            self._set_int(name)
        self._need("relative_error", self.relative_error > 0, "> 0")
        self._need("confidence", 0 < self.confidence < 1, "within (0, 1)")
        self._need("min_repetitions", self.min_repetitions >= 1, ">= 1")
        self._need(
            "max_repetitions",
            self.max_repetitions >= self.min_repetitions,
            f">= min_repetitions = {self.min_repetitions}",
        )
        self._need("min_seconds", 0 <= self.min_seconds < math.inf, ">= 0 and finite")
        self._need("budget_seconds", self.budget_seconds > 0, "> 0")
        self._need("warmup", self.warmup >= 0, ">= 0")

    def _set_int(self, name: str) -> None:
        try:
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        except TypeError:
            self._need(name, False, "an int")

    def _need(self, name: str, fulfilled: bool, allowed: str) -> None:
        if not fulfilled:
            raise KernelError(f"{name} = {getattr(self, name)!r}; it must be {allowed}")

    def to_json(self) -> dict[str, float | int]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, float | int]) -> Self:
        """Make a policy from `to_json`'s values; missing ones get their default.

        Raises
        ------
        KernelError
            For unknown fields or values out of range.
        """
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise KernelError(f"unknown {unknown} in a timing policy; known are {sorted(known)}")
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks them


@dataclass(frozen=True)
class Timing:
    """What a measurement found.

    Parameters
    ----------
    seconds : float
        Mean of one repetition; ``inf`` if the deadline passed before one was complete.
    half_width : float
        Of the confidence interval around `seconds`; ``inf`` if there were too few repetitions to
        know.
    repetitions : int
        Repetitions counted.
    total_seconds : float
        Time that they took together; after a deadline, the time until it was noticed.
    reason : {"precise", "repetitions", "budget", "deadline"}
        Why it ended: precise enough, as many repetitions or as much time as allowed, or too large;
        "deadline" goes with ``seconds = inf`` and only with it.
    """

    seconds: float
    half_width: float
    repetitions: int
    total_seconds: float
    reason: Reason

    @property
    def relative_error(self) -> float:
        """`half_width` relative to `seconds`; ``inf`` if unknown."""
        return self.half_width / self.seconds if math.isfinite(self.seconds) else math.inf
