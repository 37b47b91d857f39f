"""The full model of one worker, built with few measurements (GBBP)."""

import heapq
import math
import operator
from typing import Literal

from fpmdask.errors import KernelError
from fpmdask.models import PiecewiseLinearModel
from fpmdask.timing.interval import Interval, Sample, State, between, check_effort, sample

BuilderReason = Literal["accurate", "points", "too large"]


class FullModelBuilder:
    """Chooses the sizes whose times make the piecewise linear speed accurate over a whole range.

    Parameters
    ----------
    low, high : int
        The range of sizes, 1 <= low <= high.
    accuracy : float
        Relative error of the interpolated speed that is accepted, within (0, 1). No interval
        narrower than this part of its left end is looked into: a cliff is located that well.
    max_points : int
        Measurements at most, >= 1.

    Raises
    ------
    KernelError
        For values out of range, and from `tell` without a size asked.

    Notes
    -----
    The speed is supposed to be increasing or constant at first and decreasing afterwards, as
    memory hierarchies make it. Then::

        climb     low, 2 low, 4 low … while the speed rises, in longer steps while it rises
                  straight; then high
        bisect    the middle c of [a, b] is measured; it splits the interval in two
        inflect   c is on the chord and equal to neither end: each half that still changes much
                  must confirm the straight line by one more measurement

        speed  |     c                a half is closed when its ends are equal and the speed is
               |   .   .  b           monotone between them (flat), when it is narrower than the
               |  .     ''·----.      accuracy (cliff), or when it confirmed the chord
               | a
               +------------------ units

    The intervals wait in the order of the area that a monotone speed may still lie in, so that a
    limit on the points costs where it matters least. At most O(log(high / low) / accuracy)
    measurements, O(log) work each.

    1. The original takes the speed at `high` for zero; here it is measured, and `inf` told there or
       anywhere makes one unit less the new `high` and looks for the largest size that fits.
    2. Bands of the original, from fluctuations of the load: the confidence half-width told with a
       time widens what counts as equal, so that noise is not bisected. Untold noise ends at
       `max_points` or at the narrowest intervals.
    3. Intervals with ends more than four times apart are halved at the geometric mean.

    References
    ----------
    A. Lastovetsky, R. Reddy, R. Higgins (2006), Building the Functional Performance Model of a
    Processor.

    Examples
    --------
    >>> builder = FullModelBuilder(10, 1000)
    >>> while (units := builder.ask()) is not None:
    ...     builder.tell(units / 50.0)
    >>> builder.reason, builder.points
    ('accurate', ((10, 0.2), (15, 0.3), (20, 0.4), (141, 2.82), (1000, 20.0)))
    """

    def __init__(
        self, low: int, high: int, *, accuracy: float = 0.05, max_points: int = 60
    ) -> None:
        self.low, self.high = operator.index(low), operator.index(high)
        if not 1 <= self.low <= self.high:
            raise KernelError(f"sizes from {low} to {high}; allowed is 1 <= low <= high")
        check_effort(accuracy, max_points)
        self.accuracy = accuracy
        self.max_points = max_points
        self.measurements = 0
        self.reason: BuilderReason | None = None
        self._samples: dict[int, Sample] = {}
        self._climbed: list[Sample] = []
        self._stride = 2
        self._climbing = True
        self._limit: int | None = None
        self._waiting: list[Interval] = []
        self._current: Interval | None = None
        self._next: int | None = self.low

    def ask(self) -> int | None:
        """Return the size to measure, the same one until `tell`; None when the model is built."""
        return self._next

    def tell(self, seconds: float, half_width: float = 0.0) -> None:
        """Take the time of the size last asked.

        Parameters
        ----------
        seconds : float
            > 0; ``inf`` says that the size is too large.
        half_width : float, optional
            Of the time's confidence interval; 0 or ``inf`` if unknown.

        Raises
        ------
        KernelError
            If nothing is asked, or a value is out of range; nothing happens then.
        """
        units = self._next
        if units is None:
            raise KernelError(
                f"the model is built ({self.reason}); nothing is asked, a time cannot be told"
            )
        found: Sample | int = units
        if seconds != math.inf:
            found = self._samples[units] = sample(units, seconds, half_width)
        else:
            self._shrink(units)
        self.measurements += 1
        self._next = None
        if self._current is not None:
            self._split(self._current, found)
        elif self._climbing and not isinstance(found, int):
            self._climb(found)
        else:
            self._start_bisection(found)
        self._choose()

    @property
    def limit(self) -> int | None:
        """The most units that may fit, None if no size was too large."""
        return self._limit

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """The measured (units, seconds), increasing in units."""
        return tuple((units, self._samples[units].seconds) for units in sorted(self._samples))

    @property
    def model(self) -> PiecewiseLinearModel:
        """The model of what has been measured.

        Raises
        ------
        KernelError
            If that is nothing.
        """
        if not self._samples:
            raise KernelError(f"no size from {self.low} on has been measured; tell one first")
        units, seconds = zip(*self.points, strict=True)
        return PiecewiseLinearModel.from_points(units, seconds)

    def _climb(self, new: Sample) -> None:
        """Go up while the speed rises, in longer steps while it rises straight."""
        before, climbed = self._climbed[-1:], self._climbed
        climbed.append(new)
        if new.units == self.high:
            self._start_bisection(None)
        elif before and (new.speed <= before[0].speed or new.flat_to(before[0], self.accuracy)):
            self._climbing = False
            self._next = self.high
        else:
            straight = len(climbed) > 2 and self._on_chord(*climbed[-3:])
            self._stride = self._stride * 2 if straight else 2
            self._next = min(new.units * self._stride, self.high)

    def _start_bisection(self, top: Sample | int | None) -> None:
        """Queue what lies between the climb's sizes and the top, if that is another one."""
        climbed = self._climbed
        self._climbing = False
        ends: list[Sample | int] = [*climbed] if top is None else [*climbed, top]
        speeds = [0.0 if isinstance(end, int) else end.speed for end in ends]
        straight = {
            at for at in range(1, len(climbed) - 1) if self._on_chord(*climbed[at - 1 : at + 2])
        }
        for at in range(len(ends) - 1):
            # The largest speed is next to the largest one measured
            near_top = at == len(ends) - 2 or max(speeds) in speeds[at : at + 2]
            chord = straight & {at, at + 1}
            self._push(
                climbed[at],
                ends[at + 1],
                "open" if near_top else "inflect" if chord else "monotone",
            )

    def _split(self, interval: Interval, found: Sample | int) -> None:
        """Bisect an interval at what was found in its middle, or close it."""
        left, right = interval.left, interval.right
        if isinstance(found, int):
            self._push(left, found, "too large")
        elif isinstance(right, int):
            self._push(left, found, "open")
            self._push(found, right, "too large")
        else:
            state = self._state_of_halves(interval.state, left, found, right)
            if state is not None:
                self._push(left, found, state)
                self._push(found, right, state)

    def _state_of_halves(
        self, state: State, left: Sample, found: Sample, right: Sample
    ) -> State | None:
        """Return what a measurement in the middle says of both halves, None if all is known."""
        flat = found.flat_to(left, self.accuracy) or found.flat_to(right, self.accuracy)
        if not self._on_chord(left, found, right):
            bump = found.speed > max(left.speed, right.speed)
            return "open" if bump and not flat else "monotone"
        if flat:  # no sign of a slope: that half is done, of the other nothing new is known
            return "inflect" if state == "inflect" else "monotone"
        return None if state == "inflect" else "inflect"

    def _shrink(self, units: int) -> None:
        """Forget everything from a size on that was too large."""
        self._limit = self.high = units - 1
        self._samples = {size: kept for size, kept in self._samples.items() if size < units}
        self._waiting = [interval for interval in self._waiting if interval.end <= units]
        heapq.heapify(self._waiting)

    def _choose(self) -> None:
        """Decide on the next size, or that there is none."""
        self._current = None
        if self._next is None:
            self._next = self._from_waiting()
        if not self._samples:
            self.reason, self._next = "too large", None
        elif self._next is None:
            self.reason = "accurate"
        elif self.measurements >= self.max_points:
            self.reason, self._next, self._current = "points", None, None

    def _from_waiting(self) -> int | None:
        while self._waiting:
            interval = heapq.heappop(self._waiting)
            if not interval.settled(self.accuracy):
                self._current = interval
                return interval.middle
        return None

    def _push(self, left: Sample, right: Sample | int, state: State) -> None:
        heapq.heappush(self._waiting, between(left, right, state, self.accuracy))

    def _on_chord(self, left: Sample, middle: Sample, right: Sample) -> bool:
        return middle.on_chord(left, right, self.accuracy)
