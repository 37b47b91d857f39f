"""Where a speed drops, and what lies between two lines of constant width that both drop."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpmdask.models import PiecewiseLinearModel
from fpmdask.timing.interval import Sample, middle

FloatArray = NDArray[np.float64]

# Sizes per drop that two lines have in common: both ends and what is between
_LEVELS = 5
# Rows beyond the last drop keep their ratio; so far it is written down
_BEYOND = 1e6
# Columns derived between two lines at most
_MOST_COLUMNS = 100


@dataclass(frozen=True)
class Gap:
    """Widths between two neighbouring lines, and the one where the model is put to the test.

    Parameters
    ----------
    low, high : int
        The widths of the lines.
    half_way : bool, optional
        Test half way, where a step from one speed to the other is furthest from their mean.
    """

    low: int
    high: int
    half_way: bool = False

    @property
    def width(self) -> int:
        """The width of the tests."""
        return (self.low + self.high) // 2 if self.half_way else middle(self.low, self.high)


@dataclass(frozen=True)
class Line:
    """The times of one width.

    Parameters
    ----------
    width : int
        The width.
    model : PiecewiseLinearModel
        Seconds as a function of rows.
    least : float
        Relative fall of the speed that is a drop: more than what accuracy and noise explain.
    """

    width: int
    model: PiecewiseLinearModel
    least: float

    @property
    def rows(self) -> FloatArray:
        """The measured rows, increasing."""
        return self.model.units

    def speed(self, rows: FloatArray) -> FloatArray:
        """Return rows times width per second."""
        return self.width * np.asarray(self.model.speed(rows), dtype=np.float64)

    def falls_to(self, other: "Line") -> bool:
        """Whether a line further out is slower by more than `least` at rows known of both."""
        rows = np.union1d(self.rows, other.rows)
        rows = rows[rows <= min(self.rows[-1], other.rows[-1])]
        return bool(
            (other.speed(rows) < (1.0 - max(self.least, other.least)) * self.speed(rows)).any()
        )

    def drops(self) -> list[tuple[FloatArray, FloatArray]]:
        """Return the (rows, speeds) of each steep run: the speed falls faster than 1 / rows."""
        rows = self.rows
        speeds = self.speed(rows)
        steep = np.diff(np.log(speeds)) < -np.diff(np.log(rows))
        edges = np.flatnonzero(np.diff(np.concatenate(([False], steep, [False]))))
        runs = [slice(a, b + 1) for a, b in edges.reshape(-1, 2).tolist()]
        found = [(rows[run], speeds[run]) for run in runs]
        return [(r, s) for r, s in found if s[-1] < (1.0 - self.least) * s[0]]


@dataclass(frozen=True)
class Bridge:
    """What is between two lines whose drops correspond: the speeds along the drops.

    Parameters
    ----------
    low, high : Line
        The lines.
    low_rows, high_rows : ndarray of float
        Rows of each that correspond, increasing: the fewest, then `_LEVELS` per drop, then one
        far out.

    Notes
    -----
    Memory is full at a certain rows x width, so the area at which a drop is met is taken as
    linear in the width: exact for drops at constant rows, at a constant area and at any sum of
    both. Between the drops the rows are stretched, the speeds are linear in the width.
    """

    low: Line
    high: Line
    low_rows: FloatArray
    high_rows: FloatArray

    @property
    def along(self) -> bool:
        """Whether there are drops; without any, the speeds are mixed at equal rows."""
        return self.low_rows.size > 2

    def rows(self, width: float) -> FloatArray:
        """Return what corresponds at a width between both to `low_rows` and `high_rows`."""
        part = self._part(width)
        areas = (1 - part) * self.low.width * self.low_rows
        return np.asarray((areas + part * self.high.width * self.high_rows) / width)

    def drops(self, width: float) -> list[tuple[float, float]]:
        """Return the first and last rows of each drop at a width."""
        rows = self.rows(width)[1:-1].reshape(-1, _LEVELS)
        return [(float(row[0]), float(row[-1])) for row in rows]

    def seconds(self, rows: int, width: int) -> float:
        """Return the time of a size between both lines."""
        return rows * width / float(self._speeds(np.array([float(rows)]), width)[0])

    def column(self, width: int, least: int, most: int) -> tuple[FloatArray, FloatArray]:
        """Return the (rows, seconds) of a width between both, from `least` to `most` rows."""
        here = self.rows(width)
        knots = [
            np.interp(line.rows, rows, here)
            for line, rows in ((self.low, self.low_rows), (self.high, self.high_rows))
        ]
        inside = np.union1d(*knots)
        inside = inside[(inside > least) & (inside < most)]
        rows = np.unique(np.concatenate(([float(least)], inside, [float(most)])))
        return rows, rows * width / self._speeds(rows, width)

    def widths(self, accuracy: float) -> list[int]:
        """Return widths close enough for the drops to move by `accuracy` from one to the next."""
        moved = float(np.abs(np.log(self.high_rows / self.low_rows)).max())
        parts = min(math.ceil(moved / math.log1p(accuracy)), _MOST_COLUMNS)
        found = np.linspace(self.low.width, self.high.width, parts + 1)[1:-1].round()
        ends = (self.low.width, self.high.width)
        return [width for width in np.unique(found).astype(int).tolist() if width not in ends]

    def _part(self, width: float) -> float:
        return (width - self.low.width) / (self.high.width - self.low.width)

    def _speeds(self, rows: FloatArray, width: float) -> FloatArray:
        """Mix both speeds; beyond the end of the shorter line the longer one tells the shape."""
        part = self._part(width)
        if not self.along:
            return np.asarray((1 - part) * self.low.speed(rows) + part * self.high.speed(rows))
        here = self.rows(width)
        both = ((self.low, self.low_rows, 1 - part), (self.high, self.high_rows, part))
        ends = [float(np.interp(line.rows[-1], own, here)) for line, own, _ in both]
        known = np.minimum(rows, min(ends))
        mixed = sum(share * line.speed(np.interp(known, here, own)) for line, own, share in both)
        line, own, _ = both[int(np.argmax(ends))]
        rest = line.speed(np.interp(rows, here, own)) / line.speed(np.interp(known, here, own))
        return np.asarray(mixed * rest)


def straight(low: Line, high: Line) -> Bridge:
    """Return what is between two lines at equal rows, whether or not they drop."""
    ends = [np.array([1.0, _BEYOND]) * line.rows[0] for line in (low, high)]
    return Bridge(low, high, *ends)


def bridge(low: Line, high: Line) -> Bridge | None:
    """Return what is between two lines along their drops, None if these do not correspond."""
    drops = low.drops(), high.drops()
    if len(drops[0]) != len(drops[1]):
        return None
    rows: tuple[list[float], list[float]] = ([low.rows[0]], [high.rows[0]])
    tops = [float(line.speed(line.rows).max()) for line in (low, high)]
    for pair in zip(*drops, strict=True):
        levels = [speeds / top for (_, speeds), top in zip(pair, tops, strict=True)]
        first, last = min(level[0] for level in levels), max(level[-1] for level in levels)
        for (at, _), level, kept in zip(pair, levels, rows, strict=True):
            common = np.linspace(first, last, _LEVELS)
            kept.extend(np.interp(-common, -level, at).tolist())
    low_rows, high_rows = (np.array([*kept, kept[-1] * _BEYOND]) for kept in rows)
    # Levels that do not overlap, or a drop from the first row on, correspond to nothing
    if (np.diff(low_rows) <= 0).any() or (np.diff(high_rows) <= 0).any():
        return None
    return Bridge(low, high, low_rows, high_rows)


def line_through(samples: Sequence[Sample], width: int, accuracy: float) -> Line:
    """Return the line of what was measured at one width, in any order, at least one size."""
    ordered = sorted(samples, key=lambda found: found.units)
    model = PiecewiseLinearModel.from_points(
        [found.units for found in ordered], [found.seconds for found in ordered]
    )
    return Line(width, model, 2 * accuracy + max(found.spread for found in ordered))
