"""Which rows each worker computes next, so that all finish together (no I/O).

Guided self-scheduling with speed functions: whoever is about to have nothing to do gets a part of
what it should do until the moment at which all can be done together. That moment follows from what
the calls so far took: each worker's seconds as a function of rows, fixed costs and memory cliffs
included. The first calls are short, as nothing is known; later ones get shorter again towards the
end. Rows stay where they are held as far as the balance allows.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fpmdask.runtime.rows import Span
from fpmdask.tuning import DEFAULT, BlocksTuning

# The end is looked for in so many steps at most, until so small a part of the rows is missing.
STEPS, CLOSE = 60, 1e-3
MOMENT, LONGEST = 1e-3, 1e9


class SpeedFunction:
    """Seconds of one call as a function of its rows, from what calls took.

    Examples
    --------
    A fixed cost of 1 s, and 0.1 s per row:

    >>> speed = SpeedFunction({10: 2.0, 40: 5.0})
    >>> round(speed.seconds(100), 6), round(speed.rows(6.0))
    (11.0, 50)
    """

    def __init__(
        self, points: Mapping[int, float] = {}, tuning: BlocksTuning = DEFAULT.blocks
    ) -> None:
        self._tuning = tuning
        self.points = {rows: seconds for rows, seconds in points.items() if rows > 0 < seconds}
        self._fit()

    def add(self, rows: int, seconds: float) -> None:
        """Take in what a call took; the mean where that many rows were timed before."""
        if rows <= 0 or seconds <= 0:
            return
        before = self.points.get(rows)
        self.points[rows] = seconds if before is None else (before + seconds) / 2
        self._fit()

    def anew(self) -> SpeedFunction:
        """Return one of which nothing is known."""
        return SpeedFunction(tuning=self._tuning)

    def __bool__(self) -> bool:
        return bool(self.points)

    @property
    def sure(self) -> bool:
        """Whether several sizes were timed."""
        return len(self.points) >= self._tuning.sure_sizes

    @property
    def fixed(self) -> float:
        """Seconds of a call on no rows."""
        return self._seconds[0]

    @property
    def largest(self) -> int:
        """Most rows that were timed."""
        return max(self.points, default=0)

    def _fit(self) -> None:
        known, short = sorted(self.points.items()), self._tuning.short_seconds
        self.cliff: int | None = None
        if not known:
            return
        best = max(known, key=lambda p: p[0] / p[1] if p[1] >= short else 0.0)
        largest = known[-1]
        if best[1] >= short and largest[0] / largest[1] < self._tuning.cliff * best[0] / best[1]:
            self.cliff = best[0]
            known = [point for point in known if point[0] <= best[0]]
        long = [point for point in known if point[1] >= short]
        known = long or known[-1:]
        rows = [float(r) for r, _ in known]
        seconds: list[float] = np.maximum.accumulate([s for _, s in known]).tolist()
        slope = mean = seconds[-1] / rows[-1]
        fixed = 0.0
        if len(rows) > 1:
            slope = (seconds[-1] - seconds[0]) / (rows[-1] - rows[0])
            fixed = min(max(0.0, seconds[0] - slope * rows[0]), seconds[0])
            last = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
            slope = min(max(last, mean / 2), 2 * mean)
        self._rows: list[float] = [0.0, *rows]
        self._seconds: list[float] = [fixed, *seconds]
        self._slope = slope

    def seconds(self, rows: float) -> float:
        """Return what so many rows take; several calls beyond a cliff."""
        if rows <= 0:
            return 0.0
        if self.cliff is not None and rows > self.cliff:
            calls, rest = divmod(rows, self.cliff)
            return calls * self._seconds[-1] + self.seconds(rest)
        n = bisect_left(self._rows, rows)
        if n == len(self._rows):
            return self._seconds[-1] + (rows - self._rows[-1]) * self._slope
        return _between(rows, self._rows[n - 1 : n + 1], self._seconds[n - 1 : n + 1])

    def rows(self, seconds: float) -> float:
        """Return how many rows are done in so many seconds."""
        if seconds <= self._seconds[0]:
            return 0.0
        if self.cliff is not None and seconds > self._seconds[-1]:
            return self.cliff * seconds / self._seconds[-1]
        n = bisect_left(self._seconds, seconds)
        if n == len(self._seconds):
            return self._rows[-1] + (seconds - self._seconds[-1]) / self._slope
        return _between(seconds, self._seconds[n - 1 : n + 1], self._rows[n - 1 : n + 1])


def _between(at: float, of: Sequence[float], values: Sequence[float]) -> float:
    width = of[1] - of[0]
    return values[1] if width <= 0 else values[0] + (at - of[0]) / width * (values[1] - values[0])


@dataclass
class Member:
    """One worker: what is known of it, and what it has been given."""

    speed: SpeedFunction
    known: bool = False  # by earlier runs
    # its speed is a prior, which the first call refutes that disagrees by more than this part of it
    doubted_by: float | None = None
    quota: float | None = None  # rows that it is to have, where the caller says so
    limit: float = math.inf  # rows for whose results it has memory
    given: int = 0
    free_at: float = 0.0  # when what it has been given is done
    spans: list[Span] = field(default_factory=list)  # rows that it holds, and nobody was given

    def took(self, rows: int, seconds: float) -> None:
        """Take in what a call took; a prior that it refutes is forgotten.

        Examples
        --------
        >>> members = [Member(SpeedFunction({100: 1.0}), doubted_by=0.2) for _ in range(2)]
        >>> members[0].took(50, 0.55), members[1].took(50, 5.0)
        (None, None)
        >>> [member.speed.points for member in members]
        [{100: 1.0, 50: 0.55}, {50: 5.0}]
        """
        if self.doubted_by is not None and rows > 0 < seconds:
            expected = self.speed.seconds(rows)
            if abs(seconds - expected) > self.doubted_by * expected:
                self.speed = self.speed.anew()
            self.doubted_by = None
        self.speed.add(rows, seconds)


class SelfScheduling:
    """Hands rows out to workers, call by call.

    Parameters
    ----------
    rows : int
        All.
    held : mapping
        Worker → spans of rows that it holds; None → those that no member holds.
    members : mapping of str to Member
    edges : sequence of int
        Of the chunks. Cuts are moved there where they are near.
    whole : bool
        Whether only whole chunks are handed out.
    now : float
        Seconds, on the clock of all methods.
    tuning : BlocksTuning, optional

    Examples
    --------
    Two workers of which nothing is known: a short call for each, then what is right.

    >>> members = {"a": Member(SpeedFunction()), "b": Member(SpeedFunction())}
    >>> plan = SelfScheduling(960, {"a": [(0, 960)]}, members, [0, 960], False, 0.0)
    >>> plan.next("a", 0.0), plan.next("b", 0.0)
    ((0, 10), (950, 960))
    >>> plan.done("a", (0, 10), 0.1, 0.1), plan.done("b", (950, 960), 0.2, 0.2)
    (None, None)
    >>> plan.next("a", 0.2), plan.next("b", 0.2)
    ((10, 50), (930, 950))
    """

    def __init__(
        self,
        rows: int,
        held: Mapping[str | None, Sequence[Span]],
        members: Mapping[str, Member],
        edges: Sequence[int],
        whole: bool,
        now: float,
        tuning: BlocksTuning = DEFAULT.blocks,
    ) -> None:
        self._tuning = tuning
        self.members = dict(members)
        self._edges, self._whole = sorted({*edges}), whole
        self._began = now
        self._even = rows / max(1, len(members))
        self._known_end, self._changes = now, len(members)
        self.left_over: list[Span] = []  # that nobody holds who takes part
        self.rest = 0
        for owner, spans in held.items():
            for span in spans:
                self._put(owner, span)

    def _put(self, owner: str | None, span: Span) -> None:
        member = self.members.get(owner or "")
        spans = self.left_over if member is None else member.spans
        spans.append(span)
        spans.sort()
        self.rest += span[1] - span[0]

    # ---- events

    def done(self, worker: str, span: Span, seconds: float, now: float) -> None:
        """A call on a span of rows took so many seconds."""
        if (member := self.members.get(worker)) is not None:
            member.took(span[1] - span[0], seconds)
            member.free_at = max(now, member.free_at)
            self._changes += 1

    def returned(self, worker: str, span: Span) -> None:
        """A call was not done; whoever is free does it."""
        if (member := self.members.get(worker)) is not None:
            member.given -= span[1] - span[0]
        self._put(None, span)
        self._changes += len(self.members)

    def left(self, worker: str) -> None:
        """A worker is gone; its results are `returned` one by one."""
        member = self.members.pop(worker, None)
        for span in member.spans if member is not None else ():
            self.rest -= span[1] - span[0]
            self._put(None, span)
        for other in self.members.values():  # nobody else has quotas for what it was to do
            other.quota = None

    def joined(self, worker: str, member: Member) -> None:
        """A worker has come; it gets nothing where the caller says who gets what."""
        if any(other.quota is not None for other in self.members.values()):
            member.quota = 0
        self.members.setdefault(worker, member)
        self._changes += len(self.members)

    def busy_until(self, worker: str, now: float) -> None:
        """A worker has something to do, or nothing: when what it was given is done at least."""
        self.members[worker].free_at = now

    # ---- decisions

    def next(self, worker: str, now: float, *, idle: bool = True) -> Span | None:
        """Return the rows that a worker computes after what it has been given; None for nothing.

        ``idle``: it has nothing to do, so that it gets some rows, however late it is.
        """
        member = self.members[worker]
        wanted = min(self._wanted(member, now, idle), member.limit - member.given, self.rest)
        if wanted < 1 or not self.rest:
            return None
        source = self._source(member, now)
        enough = math.inf
        if member.speed:
            tuning, fixed = self._tuning, member.speed.fixed
            least = max(tuning.chunk_seconds, tuning.chunk_fixed * fixed)
            enough = member.speed.rows(least)
        span = self._cut(source, int(wanted), enough, at_end=source is not member.spans)
        size = span[1] - span[0]
        member.given += size
        self.rest -= size
        if member.speed:
            member.free_at = max(now, member.free_at) + member.speed.seconds(size)
        return span

    def expected(self, worker: str, span: Span) -> float | None:
        """Return what a call should take, by the slowest of all where a worker was never timed."""
        size, member = span[1] - span[0], self.members.get(worker)
        if member is not None and member.speed:
            return member.speed.seconds(size)
        timed = [other.speed for other in self.members.values() if other.speed]
        return max((speed.seconds(size) for speed in timed), default=None)

    def _wanted(self, member: Member, now: float, idle: bool) -> float:
        speed, tuning = member.speed, self._tuning
        if member.quota is not None:
            return max(0.0, member.quota - member.given)
        if not speed:
            return max(1.0, self._even * tuning.probe_part)
        end = self._end(now)
        share = min(speed.rows(end - max(now, member.free_at)), self.rest)
        run = end - self._began
        by_fixed = min(tuning.least_fixed * speed.fixed, tuning.least_fixed_part * run)
        least = max(tuning.least_seconds, tuning.least_part * run, by_fixed)
        if speed.seconds(share) < least:
            return max(1.0, share, speed.rows(tuning.least_seconds + speed.fixed)) if idle else 0.0
        part = share * tuning.share_part
        if speed.seconds(share - part) < least:
            part = share
        of_run = tuning.call_part_known if member.known else tuning.call_part
        most = speed.rows(max(tuning.call_seconds, of_run * run, tuning.call_fixed * speed.fixed))
        if not member.known:
            most = min(most, tuning.growth * speed.largest)
        if speed.cliff is not None:
            most = min(most, speed.cliff)
        return min(max(1.0, round(part)), max(1.0, most))

    def _end(self, now: float) -> float:
        """Return when all rows that are left can be done, by all workers together.

        By Newton's method, as the rows that are done by some time are piecewise linear in it. Found
        anew after an eighth of the workers has ended a call: O(workers) then, O(1) otherwise.
        """
        if self._changes <= len(self.members) // 8 and self._known_end > now:
            return self._known_end
        self._changes = 0
        members = [m for m in self.members.values() if m.quota is None]
        timed = [m for m in members if m.speed]
        scale = len(members) / len(timed)  # others are as fast as the mean of those that are known
        low, end = now, max(self._known_end, now + MOMENT)
        high = math.inf
        for _ in range(STEPS):
            rows = rate = 0.0
            for m in timed:
                free = max(now, m.free_at)
                done = min(m.speed.rows(end - free), m.limit - m.given) if end > free else 0.0
                rows += scale * done
                if done > 0:
                    rate += scale * done / (end - free)
            if abs(rows - self.rest) <= CLOSE * self.rest or end - now > LONGEST:
                break
            low, high = (end, high) if rows < self.rest else (low, end)
            end = end + (self.rest - rows) / rate if rate else now + 2 * (end - now)
            if not low < end < high:
                end = 2 * low - now + MOMENT if math.isinf(high) else (low + high) / 2
        self._known_end = end
        return end

    def _source(self, member: Member, now: float) -> list[Span]:
        """Return the spans from which a worker takes: its own, else those of whom they hinder."""
        if member.spans:
            return member.spans
        if self.left_over:
            return self.left_over
        holding = [m for m in self.members.values() if m.spans]
        timed = all(m.speed for m in holding)
        end = self._end(now) if timed and not any(m.quota is not None for m in holding) else None

        def surplus(one: Member) -> float:
            rows = sum(stop - start for start, stop in one.spans)
            if one.quota is not None:
                return rows - (one.quota - one.given)
            return rows - (one.speed.rows(end - max(now, one.free_at)) if end is not None else 0)

        return max(holding, key=surplus).spans

    def _cut(self, spans: list[Span], wanted: int, enough: float, *, at_end: bool) -> Span:
        """Take rows off the first span, or off the last one's end; of one chunk, if `enough`."""
        start, stop = spans.pop(-1 if at_end else 0)
        at = stop - wanted if at_end else start + wanted
        at = self._snapped(at, start, stop, wanted, at_end=at_end)
        if at_end:
            edge = self._edges[max(0, bisect_left(self._edges, stop) - 1)]
            at = edge if at < edge and stop - edge >= enough else at
        else:
            edge = self._edges[min(bisect_right(self._edges, start), len(self._edges) - 1)]
            at = edge if edge < at and edge - start >= enough else at
        rest = at - start if at_end else stop - at
        if not start < at < stop or (rest < self._tuning.left_part * wanted and not self._whole):
            return start, stop
        kept, taken = ((start, at), (at, stop)) if at_end else ((at, stop), (start, at))
        if at_end:
            spans.append(kept)
        else:
            spans.insert(0, kept)
        return taken

    def _snapped(self, at: int, start: int, stop: int, wanted: int, *, at_end: bool) -> int:
        """Return a place near a cut at which no chunk is cut; an edge where none may be."""
        n = bisect_right(self._edges, at)
        below, above = self._edges[max(0, n - 1)], self._edges[min(n, len(self._edges) - 1)]
        if self._whole:
            nearest = below if at - below <= above - at else above
            if nearest <= start or nearest >= stop:  # one chunk at least
                return below if at_end and below > start else above
            return nearest
        near = self._tuning.snap_part * wanted
        inside = [edge for edge in (below, above) if abs(edge - at) <= near]
        return min(inside, key=lambda edge: abs(edge - at), default=at)


def quotas(spans: Mapping[str | None, Sequence[Span]], workers: Iterable[str]) -> dict[str, int]:
    """Return worker → the rows that it holds.

    Examples
    --------
    >>> quotas({"a": [(0, 3), (5, 6)], None: [(3, 5)]}, ["a", "b"])
    {'a': 4, 'b': 0}
    """
    return {w: sum(stop - start for start, stop in spans.get(w, ())) for w in workers}
