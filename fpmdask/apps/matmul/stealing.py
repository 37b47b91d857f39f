"""Work stealing at the end of a product: who takes lines of C off whom. Pure decisions.

::

        panels of K ──▶ i        first                 m
                        ┌─────────┬────────────────────┐
        rows of the     │ victim  │ victim             │
        victim's part   │         ├────────────────────┤
        of C            │         │ thief              │ lines
                        └─────────┴────────────────────┘

The thief multiplies the released lines by the panels that are left, and its sum is added to the
victim's part in the end: C's chunks stay as they were laid out, and a thief that is lost costs no
more than its own work.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil

from fpmdask.apps.matmul.tile import Tile
from fpmdask.tuning import DEFAULT, MatmulTuning

# A thief's task has to be sent and to begin, and its result to be fetched.
OVERHEAD_SECONDS = 0.15
# So many steals are planned at once at most: with 1,000 workers each takes 0.1 ms.
AT_ONCE = 32


@dataclass(frozen=True)
class Steal:
    """`thief` is to multiply `tile`, which `victim` releases from panel `first` of its part on.

    It is expected to be done when it is `due`.
    """

    number: int
    thief: str
    victim: str
    part: int
    tile: Tile
    first: int
    due: float


@dataclass
class _Part:
    worker: str
    whole: Tile
    depths: Sequence[int]
    index: int = -1  # of the panel in work
    since: float = 0.0
    paused: bool = False  # waits for chunks that are made again, and begins that panel anew
    released: list[Steal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tile: Tile | None = self.whole  # None while it is open what the victim keeps
        self.ends = [0, *accumulate(self.depths)]

    @property
    def in_work(self) -> bool:
        return 0 <= self.index < len(self.depths)

    def settle(self) -> None:
        """Find what is kept when a steal is refused: the victim refuses those after it, too."""
        self.tile = self.whole
        for steal in self.released:
            self.tile = None if self.tile is None else self.tile.without(steal.tile)

    def depth(self, first: int, last: int | None = None) -> int:
        """Return how deep the panels `first … last` are together."""
        end = self.ends[-1 if last is None else last]
        return max(0, end - self.ends[min(first, len(self.depths))])

    def work(self, first: int, last: int | None = None) -> float:
        """Return multiplications of the panels `first … last`: of all lines until some go."""
        found = self.whole.area * self.depth(first, last)
        for steal in self.released if self.tile is not None else ():
            found -= steal.tile.area * self.depth(max(first, steal.first), last)
        return float(found)

    def pace(self, known: float, now: float) -> float:
        """Return multiplications per second; of the panel in work where that takes longer."""
        if not self.in_work or self.paused or now <= self.since:
            return known
        return min(known, self.work(self.index, self.index + 1) / (now - self.since))

    def seconds_left(self, known: float, now: float) -> float:
        if self.index < 0:
            return self.work(0) / known
        begun = now if self.paused else self.since
        return max(0.0, begun + self.work(self.index) / self.pace(known, now) - now)


@dataclass
class Stealing:
    """Follow how far the parts are; have workers that are done take lines off the last ones.

    Parameters
    ----------
    itemsize : int
        Bytes of an element.
    work_per_byte : float
        Multiplications that a worker could do in the time that a byte of a sum costs it that it
        sends or receives.
    arriving : mapping of str to float, optional
        Seconds per byte of the links to the workers; 0 where there is none.
    tuning : MatmulTuning, optional
        When a steal is worth it.
    beside : Counter, optional
        Worker -> elements that it holds for others, sums that it steals from now on among them.

    Notes
    -----
    Work is counted in multiplications, time in seconds on the caller's clock. All would end at the
    same level if work moved for nothing: the mean of the workers' ends, weighted by their paces. A
    worker that has nothing to do is a thief. Its victim is the worker that is expected last, and
    loses as many lines as the thief can multiply until that level, or in as long as it takes to
    begin with them, whichever is more, but never so many that the thief would end after the
    victim. O(workers) per question and per steal.

    Examples
    --------
    >>> stealing = Stealing(itemsize=8, work_per_byte=0.0)
    >>> stealing.began(0, "fast", Tile(0, 0, 100, 100), [10] * 10)
    >>> stealing.began(1, "slow", Tile(100, 0, 200, 100), [10] * 10)
    >>> stealing.reached(0, 9, 9.0, pace=1e5)
    >>> stealing.reached(1, 5, 10.0, pace=5e4)
    >>> stealing.ended(0)
    []
    >>> [steal] = stealing.steals(10.0)
    >>> steal.thief, steal.victim, steal.tile.bounds, steal.first
    ('fast', 'slow', (118, 200, 0, 100), 6)
    """

    itemsize: int
    work_per_byte: float
    arriving: Mapping[str, float] = field(default_factory=dict)
    tuning: MatmulTuning = DEFAULT.matmul
    beside: Counter[str] = field(default_factory=Counter)
    open: dict[int, Steal] = field(default_factory=dict)  # that have not ended
    _parts: dict[int, _Part] = field(default_factory=dict)
    _paces: dict[str, float] = field(default_factory=dict)
    _room: dict[str, float] = field(default_factory=dict)
    _made: int = 0
    _unable: set[str] = field(default_factory=set)

    def began(
        self, part: int, worker: str, tile: Tile, depths: Sequence[int], room: float = float("inf")
    ) -> None:
        """Take note of a part that `worker` is to compute, with panels of these depths.

        `room` is how many elements more than its parts the worker may hold, those that it holds
        already for others (`beside`) among them.
        """
        self._parts[part] = _Part(worker, tile, depths)
        self._room[worker] = room

    def reached(self, part: int, index: int, now: float, pace: float | None = None) -> None:
        """Take note that a part's panel `index` is in work, and of its worker's pace of late.

        After the last panel a part is multiplied, but for what others have taken over.
        """
        state = self._parts.get(part)
        if state is None or index < state.index:
            return
        if pace:
            self._paces[state.worker] = pace
        if state.paused or state.index != index:
            state.index, state.since, state.paused = index, now, False

    def paused(self, part: int) -> None:
        """Take note that a part is not computed until it is heard of again: nobody steals of it."""
        if part in self._parts:
            self._parts[part].paused = True

    def ended(self, part: int) -> list[Steal]:
        """Take note that a part is finished; return the steals that nobody waits for any more."""
        self._parts.pop(part, None)
        return self._void([steal for steal in self.open.values() if steal.part == part])

    def left(self, worker: str) -> list[Steal]:
        """Take note that a worker is gone; return the steals that it made or suffered."""
        for part in [part for part, state in self._parts.items() if state.worker == worker]:
            del self._parts[part]
        self._paces.pop(worker, None)
        return self._void([s for s in self.open.values() if worker in (s.thief, s.victim)])

    def refused(self, number: int) -> Steal | None:
        """Take note that the victim was beyond the first panel already, and keeps the lines."""
        for state in self._parts.values():
            for steal in state.released:
                if steal.number == number:
                    state.released.remove(steal)
                    state.settle()
                    self._void([steal] if number in self.open else [])
                    return steal
        return None

    def failed(self, number: int) -> Steal | None:
        """Take note that a steal has failed: its thief gets no other one."""
        steal = self.open.get(number)
        if steal is not None:
            self._void([steal])
            self._unable.add(steal.thief)
        return steal

    def _void(self, steals: list[Steal]) -> list[Steal]:
        """Take note that nobody waits for the sums of these steals."""
        for steal in steals:
            del self.open[steal.number]
            self.beside[steal.thief] -= steal.tile.area
        return steals

    def steals(self, now: float) -> list[Steal]:
        """Return what those who have nothing to do are to take over now."""
        busy, waiting = set(self._unable), set()
        left, paces = dict.fromkeys(self._paces, 0.0), dict(self._paces)
        for known in self.open.values():
            busy.add(known.thief)
            waiting.add(known.part)
            if known.thief in left:  # what is late is expected to be so by as long again
                left[known.thief] = abs(known.due - now)
        victims: dict[str, int] = {}
        for part, state in self._parts.items():
            if state.worker not in left:
                return []  # too early to tell
            left[state.worker] += state.seconds_left(self._paces[state.worker], now)
            if state.in_work and not state.paused and state.tile is not None:
                victims[state.worker] = part
                paces[state.worker] = state.pace(paces[state.worker], now)
            # whose lines are all multiplied adds them up now, or multiplies what has failed
            if state.index != len(state.depths) or part not in waiting:
                busy.add(state.worker)
        made: list[Steal] = []
        ends = (paces[worker] * max(seconds, OVERHEAD_SECONDS) for worker, seconds in left.items())
        level = sum(ends) / (sum(paces.values()) or 1.0)
        able = [worker for worker in left.keys() - busy if self._room[worker] > self.beside[worker]]
        thieves = sorted(able, key=lambda worker: (-paces[worker], worker))
        for thief in thieves[:AT_ONCE] if victims else ():
            victim = max(victims, key=lambda worker: (left[worker], worker))
            state, known_pace = self._parts[victims[victim]], self._paces[victim]
            before = state.seconds_left(known_pace, now)
            steal = self._steal(thief, victims[victim], left[victim], level, now)
            if steal is not None:
                made.append(steal)
                left[victim] += state.seconds_left(known_pace, now) - before
        return made

    def _steal(
        self, thief: str, part: int, latest: float, level: float, now: float
    ) -> Steal | None:
        """Take lines of a part that is expected to end in `latest` seconds, if it is worth it."""
        state, pace = self._parts[part], self._paces[thief]
        assert state.tile is not None
        depth, (_, lines, across) = state.depth(state.index + 1), state.tile.last_lines()
        # an element of a sum is sent and received; the victim has to receive it
        moving = self.itemsize * self.work_per_byte
        line = across * (depth + 2 * moving) / pace
        saved = across * (depth - moving) / state.pace(self._paces[state.worker], now)
        # both have multiplied before the sum crosses the victim's link
        crossing = across * self.itemsize * self.arriving.get(state.worker, 0.0)
        if saved <= crossing:
            return None
        gain = self.tuning.help_gain_seconds / (saved - crossing)
        least = ceil(max(OVERHEAD_SECONDS / line, gain))
        together = (latest - OVERHEAD_SECONDS) / (line + saved)
        share = (level - OVERHEAD_SECONDS) * pace / (across * depth)
        room = (self._room[thief] - self.beside[thief]) / across
        lines -= state.tile.is_rectangle  # a part is never stolen whole
        count = int(min(max(least, share), together, lines, room))
        if count < least:
            return None
        due = now + OVERHEAD_SECONDS + count * (line + crossing)
        tile = state.tile.last(count)
        steal = Steal(self._made, thief, state.worker, part, tile, state.index + 1, due)
        self._made += 1
        self.beside[thief] += tile.area
        self.open[steal.number] = steal
        state.released.append(steal)
        state.settle()
        return steal
