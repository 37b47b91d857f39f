"""Measured speeds, and the intervals between them that a full-model builder may look into."""

import math
import operator
from dataclasses import dataclass, field
from typing import Literal

from fpmdask.errors import KernelError

# Ends further apart than this ratio: the middle is the geometric mean
_WIDE = 4
# Half of an interval whose middle was on the chord is believed without another measurement when
# its ends differ by at most so many times the accuracy: a smooth speed that changes by 15 % is
# within 0.3 % of its chord, and what a cliff could hide there is small
_CHORD_SLACK = 3

# What is known of the speed inside an interval: nothing; that it is monotone; that it was on the
# chord of a wider interval; that the right end is too large to be measured
State = Literal["open", "monotone", "inflect", "too large"]


@dataclass(frozen=True)
class Sample:
    """One measured size.

    Parameters
    ----------
    units : int
        The size.
    seconds : float
        Its time, finite and > 0.
    spread : float
        Half-width of the time's confidence interval relative to it, 0 if unknown.
    """

    units: int
    seconds: float
    spread: float = 0.0

    @property
    def speed(self) -> float:
        """Units per second."""
        return self.units / self.seconds

    def close_to(self, speed: float, accuracy: float, spread: float) -> bool:
        """Whether `speed`, known within `spread`, is this one's as far as can be told."""
        allowed = accuracy + math.hypot(self.spread, spread)
        return abs(self.speed - speed) <= allowed * max(self.speed, speed)

    def flat_to(self, other: "Sample", accuracy: float) -> bool:
        """Whether both have the same speed as far as can be told."""
        return self.close_to(other.speed, accuracy, other.spread)

    def on_chord(self, left: "Sample", right: "Sample", accuracy: float) -> bool:
        """Whether the speed lies on the straight line between two others, as far as can be told."""
        share = (self.units - left.units) / (right.units - left.units)
        speed = (1 - share) * left.speed + share * right.speed
        spread = math.hypot((1 - share) * left.spread, share * right.spread)
        return self.close_to(speed, accuracy, spread)


@dataclass(frozen=True, order=True)
class Interval:
    """Sizes between two neighbouring measurements; those that matter most sort first.

    Parameters
    ----------
    priority : float
        Minus the area that a monotone speed may lie in: relative difference of the ends times
        the logarithm of their distance.
    left : Sample
        The left end.
    right : Sample or int
        The right end; a size that was too large.
    state : State
        What is known of it.
    """

    priority: float
    left: Sample = field(compare=False)
    right: Sample | int = field(compare=False)
    state: State = field(compare=False)

    @property
    def end(self) -> int:
        """Units at the right end."""
        return self.right if isinstance(self.right, int) else self.right.units

    @property
    def middle(self) -> int:
        """The size to look at."""
        return middle(self.left.units, self.end)

    def settled(self, accuracy: float) -> bool:
        """Whether nothing in it is worth a measurement: narrow, or monotone between equal ends."""
        if self.end - self.left.units <= max(1.0, accuracy * self.left.units):
            return True
        if self.state == "open" or isinstance(self.right, int):
            return False
        slack = _CHORD_SLACK if self.state == "inflect" else 1
        return self.left.flat_to(self.right, slack * accuracy)


def middle(left: int, right: int) -> int:
    """Return the geometric mean of two sizes far apart, else the arithmetic one, rounded down."""
    return math.isqrt(left * right) if right > _WIDE * left else (left + right) // 2


def between(left: Sample, right: Sample | int, state: State, accuracy: float) -> Interval:
    """Return the interval between two ends, with its priority."""
    if isinstance(right, int):
        return Interval(-math.inf, left, right, "too large")
    low, high = sorted((left.speed, right.speed))
    unknown = 1 - low / high + (accuracy if state == "open" else 0.0)
    return Interval(-unknown * math.log(right.units / left.units), left, right, state)


def sample(units: int, seconds: float, half_width: float) -> Sample:
    """Return a checked measurement; a half-width of inf is an unknown one.

    Raises
    ------
    KernelError
        If `seconds` is not > 0 or `half_width` is negative or NaN.
    """
    if not 0 < seconds < math.inf:
        raise KernelError(f"{seconds!r} s for {units} units; seconds are > 0, inf for too large")
    if not half_width >= 0:
        raise KernelError(f"a half-width of {half_width!r} s for {units} units; it must be >= 0")
    return Sample(units, seconds, half_width / seconds if math.isfinite(half_width) else 0.0)


def check_effort(accuracy: float, max_points: int) -> None:
    """Refuse what no builder can work with.

    Raises
    ------
    KernelError
        Unless 0 < `accuracy` < 1 and `max_points` >= 1.
    """
    if not 0 < accuracy < 1 or operator.index(max_points) < 1:
        raise KernelError(
            f"accuracy {accuracy}, max_points {max_points}; allowed are 0 < accuracy < 1 and "
            "max_points >= 1"
        )
