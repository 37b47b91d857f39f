"""The full model of one worker in two parameters, built with few measurements."""

import math
import operator
from collections import deque

import numpy as np

from fpmdask.errors import KernelError
from fpmdask.models import SurfaceModel
from fpmdask.timing.drops import Bridge, Gap, Line, bridge, line_through, straight
from fpmdask.timing.gbbp import BuilderReason, FullModelBuilder
from fpmdask.timing.interval import check_effort, middle, sample


class SurfaceModelBuilder:
    r"""Chooses the (rows, width) whose times make the speed accurate over a whole range of both.

    Parameters
    ----------
    max_rows, max_width : int
        The largest sizes.
    min_rows, min_width : int, optional
        The smallest, >= 1.
    triangular : bool, optional
        Whether only rows <= width occur, as in the product of square matrices.
    accuracy : float, optional
        Relative error of the interpolated speed that is accepted, within (0, 1).
    max_points : int, optional
        Measurements at most, >= 1; a single line of constant width takes a quarter of them at most.

    Raises
    ------
    KernelError
        For values out of range, and from `tell` without a size asked.

    Notes
    -----
    Lines of constant width are built by `FullModelBuilder`: the widest, the narrowest, and then
    those that are needed. Between two lines the model is asked for the speed at the middle width::

        rows |            /|      | lines        Where the measured speeds are those of the model
             |         x / |      x tests        the gap is closed, otherwise a line is built there
             |       /|\   |      \ drop         and both halves are tested. Tests are at the most,
             |      / | x  |                     the middle and the fewest rows, and right below
             |    /|  x \  |                     and above each drop; a line uses them.
             |   / |  x  \ |
             +-------------- width       The model is that of the lines: a few tests are a poor
                                         line, and what they confirm needs none.

    1. *Drops.* Where memory is full the speed drops, at other rows at every width, so that speeds
       taken at equal rows are wrong in the whole band that the drop crosses between two lines. A
       gap whose lines drop equally often is tested along the drops (`Bridge`), and where that is
       confirmed the model gets columns in between, close enough for the drop to move by
       `accuracy` from one to the next. Where only one of the lines drops, or both do not
       correspond, the gap is halved until its widths differ by `accuracy`.
    2. What stays unknown then is where a drop is within `accuracy` of rows and of widths: about
       2 % of the sizes of the paper's range are off by more than 5 %, next to the drop. A fall by
       less than twice the accuracy is no drop: between lines it may cost as much.
    3. *The reason* is "accurate" only if no line and no gap was cut short by a limit on points.

    A size too large at one width is too large at all greater ones. The paper's range is
    ``rows <= width <= 10240``; it took up to 60 points.

    References
    ----------
    A. Lastovetsky, R. Reddy (2009), section 4: the full models of the matrix multiplication.

    Examples
    --------
    >>> builder = SurfaceModelBuilder(640, 640, min_rows=10, min_width=40)
    >>> while (size := builder.ask()) is not None:
    ...     builder.tell(size[0] * size[1] / 1e6)
    >>> builder.reason, len(builder.points) < 20
    ('accurate', True)
    """

    def __init__(
        self,
        max_rows: int,
        max_width: int,
        *,
        min_rows: int = 1,
        min_width: int = 1,
        triangular: bool = True,
        accuracy: float = 0.05,
        max_points: int = 120,
    ) -> None:
        self.rows = operator.index(min_rows), operator.index(max_rows)
        self.widths = operator.index(min_width), operator.index(max_width)
        if triangular and min_width >= 1:  # narrower ones have no rows
            self.widths = max(self.widths[0], self.rows[0]), self.widths[1]
        for name, (least, most) in (("rows", self.rows), ("widths", self.widths)):
            if not 1 <= least <= most:
                raise KernelError(f"{name} from {least} to {most}; allowed is 1 <= min <= max")
        check_effort(accuracy, max_points)
        self.triangular = triangular
        self.accuracy = accuracy
        self.max_points = max_points
        self.measurements = 0
        self.reason: BuilderReason | None = None
        self._told: dict[tuple[int, int], tuple[float, float]] = {}
        self._lines: dict[int, FullModelBuilder] = {}
        self._ahead: deque[int | Gap] = deque([self.widths[1]])
        if self.widths[0] < self.widths[1]:
            self._ahead.extend([self.widths[0], Gap(*self.widths)])
        self._line: int | None = None
        self._tests: dict[tuple[int, int], float] = {}
        self._tested: Bridge | None = None
        self._bridges: list[Bridge] = []
        self._gap: Gap | None = None
        self._next: tuple[int, int] | None = None
        self._choose()

    def ask(self) -> tuple[int, int] | None:
        """Return the (rows, width) to measure, the same until `tell`; None when all is built."""
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
        if self._next is None:
            raise KernelError(
                f"the model is built ({self.reason}); nothing is asked, a time cannot be told"
            )
        if seconds != math.inf:
            sample(self._next[0], seconds, half_width)
        self._told[self._next] = seconds, half_width
        self.measurements += 1
        self._choose()

    @property
    def points(self) -> tuple[tuple[int, int, float], ...]:
        """The measured (rows, width, seconds), increasing in width and rows."""
        order = sorted(self._told, key=lambda size: (size[1], size[0]))
        return tuple(
            (*size, self._told[size][0]) for size in order if self._told[size][0] < math.inf
        )

    def limit(self, width: int) -> int:
        """Return the most rows that may fit at `width`: those allowed, less where too many."""
        most = min(self.rows[1], width) if self.triangular else self.rows[1]
        too_large = [
            rows - 1
            for (rows, at), (seconds, _) in self._told.items()
            if seconds == math.inf and at <= width
        ]
        return min(most, *too_large, most)

    @property
    def model(self) -> SurfaceModel:
        """The model of the lines measured so far, with columns between those that drop alike.

        Tests that a line passed add nothing to it.

        Raises
        ------
        KernelError
            If nothing is measured.
        """
        kept = [point for point in self.points if point[1] in self._lines]
        if not kept:
            raise KernelError("no size has been measured; tell one first")
        rows, widths, seconds = np.array(kept, dtype=np.float64).T
        columns = [(rows, widths, seconds)]
        for found in self._bridges:
            for width in found.widths(self.accuracy):
                if (top := self.limit(width)) >= self.rows[0]:
                    rows, seconds = found.column(width, self.rows[0], top)
                    columns.append((rows, np.full_like(rows, width), seconds))
        return SurfaceModel.from_points(*(np.concatenate(c) for c in zip(*columns, strict=True)))

    def _choose(self) -> None:
        """Go on until a size has to be measured or nothing is left to do."""
        self._next = None
        while self._next is None and self.reason is None:
            if self._line is not None:
                self._next = self._along_line(self._line)
            elif self._gap is not None:
                self._next = self._test(self._gap)
            elif self._ahead:
                self._begin(self._ahead.popleft())
            else:
                cut_short = any(line.reason == "points" for line in self._lines.values())
                self.reason = (
                    "too large" if not self.points else "points" if cut_short else "accurate"
                )
        if self._next is not None and self.measurements >= self.max_points:
            self.reason, self._next = "points" if self.points else "too large", None

    def _begin(self, step: int | Gap) -> None:
        if isinstance(step, int):
            self._start_line(step)
        elif step.high - step.low > max(1.0, self.accuracy * step.low):
            self._gap = step
            self._tests = self._tests_of(step)
            if not self._tests:
                self._split(self._gap)
                self._gap = None

    def _tests_of(self, gap: Gap) -> dict[tuple[int, int], float]:
        """Return sizes and expected times that confirm what is between two lines, none if open."""
        if not (self._measured(gap.low) and self._measured(gap.high)):
            return {}
        low, high = self._measured_line(gap.low), self._measured_line(gap.high)
        found = bridge(low, high)
        if found is not None and not found.along and low.falls_to(high):
            self._gap = gap = Gap(gap.low, gap.high, half_way=True)
        width, least = gap.width, self.rows[0]
        top = self.limit(width)
        if found is None and not low.drops() and top < high.drops()[0][0][0]:
            found = straight(low, high)
        if found is None or top < least:
            return {}
        self._tested = found
        rows, slack = {top, middle(least, top), least}, 1 + self.accuracy / 2
        for before, after in found.drops(width):
            rows |= {int(before / slack), math.ceil(after * slack)}
        inside = sorted((r for r in rows if least <= r <= top), reverse=True)
        return {(r, width): found.seconds(r, width) for r in inside}

    def _measured_line(self, width: int) -> Line:
        samples = [
            sample(rows, *times)
            for (rows, at), times in self._told.items()
            if at == width and times[0] < math.inf
        ]
        return line_through(samples, width, self.accuracy)

    def _start_line(self, width: int) -> None:
        top = self.limit(width)
        if top >= self.rows[0]:
            share = max(3, self.max_points // 4)
            self._lines[width] = FullModelBuilder(
                self.rows[0], top, accuracy=self.accuracy, max_points=share
            )
            self._line = width

    def _measured(self, width: int) -> bool:
        return width in self._lines and bool(self._lines[width].points)

    def _along_line(self, width: int) -> tuple[int, int] | None:
        line = self._lines[width]
        while (rows := line.ask()) is not None:
            if (rows, width) not in self._told:
                return rows, width
            line.tell(*self._told[rows, width])
        self._line = None
        return None

    def _test(self, gap: Gap) -> tuple[int, int] | None:
        """Return the next test of a gap; split the gap when one has failed."""
        for size, expected in self._tests.items():
            if size not in self._told:
                return size
            seconds, half_width = self._told[size]
            if seconds == math.inf or not sample(size[0], seconds, half_width).close_to(
                size[0] / expected, self.accuracy, 0.0
            ):
                self._split(gap)
                break
        else:
            self._close(gap)
        self._gap = None
        return None

    def _close(self, gap: Gap) -> None:
        """Take the speeds between two lines as confirmed, as far as they correspond."""
        found = self._tested
        if found is None:
            return
        if found.along:
            self._bridges.append(found)
        elif found.high.drops():  # where only one drops, the tests were below it
            self._start_line(gap.width)
            self._ahead.append(Gap(gap.width, gap.high))

    def _split(self, gap: Gap) -> None:
        self._start_line(gap.width)
        self._ahead.extend([Gap(gap.low, gap.width), Gap(gap.width, gap.high)])
