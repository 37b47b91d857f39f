"""Who takes work off whom when some have finished their parts of C before others: pure decisions.

::

        panels of K ──▶ i        first                 m
                        ┌─────────┬────────────────────┐
        rows of the     │ giver   │ giver              │
        giver's part    │         ├────────────────────┤
        of C            │         │ helper             │ lines
                        └─────────┴────────────────────┘

The helper multiplies the released lines by the panels that are left, and its sum is added to the
giver's part in the end: C's chunks stay as they were laid out, and a helper that is lost costs no
more than its own work.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate

from fpmdask.apps.matmul.stealing import Helpers, level_of
from fpmdask.apps.matmul.tile import Tile
from fpmdask.tuning import DEFAULT, MatmulTuning

# A helper's task has to be sent and to begin, and its result to be fetched.
OVERHEAD_SECONDS = 0.15
# A help multiplies for so many times as long as it takes to begin it and to receive its panels.
WORTH = 1.0
# A giver that begins its next panel sooner than this cannot be told in time.
LEAD_SECONDS = 0.15
# A rate is that of the last panels that took so long: quotas of CPU come in periods of 0.1 s.
RATE_SECONDS = 0.3


@dataclass(frozen=True)
class Help:
    """`helper` is to multiply `tile`, which `giver` releases from panel `first` of its part on."""

    number: int
    helper: str
    giver: str
    part: int
    tile: Tile
    first: int


@dataclass
class _Part:
    worker: str
    whole: Tile
    depths: Sequence[int]
    index: int | None = None  # of the panel in work
    since: float = 0.0
    stalled: bool = False  # that panel has not arrived
    stalls: float = 0.0  # seconds that do not count
    paused: bool = False  # waits for chunks that are made again, and begins that panel anew
    pauses: float = 0.0  # seconds
    done: float = 0.0
    marks: list[tuple[float, float]] = field(default_factory=list)  # (busy, done) of panels
    released: list[Help] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tile: Tile | None = self.whole  # None while it is open what the giver keeps
        self.ends = [0, *accumulate(self.depths)]

    def copy(self) -> "_Part":
        """Return a part of its own with the same state. O(panels)."""
        made = copy(self)
        made.marks, made.released = [*self.marks], [*self.released]
        return made

    def depth(self, first: int, last: int | None = None) -> int:
        """Return how deep the panels `first … last` are together."""
        end = self.ends[-1 if last is None else last]
        return max(0, end - self.ends[min(first, len(self.depths))])

    @property
    def busy(self) -> float:
        """When the panel in work was begun, by a clock that stands still meanwhile."""
        return self.since - self.stalls - self.pauses

    def settle(self) -> None:
        """Find what is kept when a help is refused: the giver refuses those after it, too."""
        self.tile = self.whole
        for help in self.released:
            self.tile = None if self.tile is None else self.tile.without(help.tile)

    def rate_in(self, seconds: float) -> float | None:
        """Return the rate in the last whole panels that took so long, None before."""
        for busy, done in reversed(self.marks):
            if self.busy - busy >= seconds:
                return (self.done - done) / (self.busy - busy)
        return None

    def rate(self) -> float | None:
        """Return the rate in the last `RATE_SECONDS`, or so far."""
        found = self.rate_in(RATE_SECONDS)
        if found is None and self.marks and self.busy > self.marks[0][0]:
            found = self.done / (self.busy - self.marks[0][0])
        return found

    def work(self, first: int, last: int | None = None) -> float:
        """Return multiplications of the panels `first … last`: of all lines until some go."""
        found = self.whole.area * self.depth(first, last)
        for help in self.released if self.tile is not None else ():
            found -= help.tile.area * self.depth(max(first, help.first), last)
        return float(found)


@dataclass(frozen=True)
class _Late:
    """The part that is expected last, and who could multiply lines of it, in lines per second.

    `rates` has that and the end of each worker that could give, without help.
    """

    state: _Part
    part: int
    first: int
    lines: int
    across: int
    rates: Mapping[str, tuple[float, float]]
    helpers: Helpers
    per_line: float
    receiving: float


@dataclass
class Tail:
    """Follow how far the parts are; find the worker that is last, and take work off it.

    Parameters
    ----------
    itemsize : int
        Bytes of an element.
    work_per_byte : float
        Multiplications that a worker could do in the time that a received or sent byte costs it.
    arriving : mapping of str to float, optional
        Seconds per byte of the links to the workers; 0 where there is none.
    uneven : collection of str, optional
        Workers behind slow links: their stalls count in their pace, and nobody takes lines off
        them while it still computes itself.
    tuning : MatmulTuning, optional
        When help is worth it.
    beside : Counter, optional
        Worker -> elements that it holds for others, sums that it helps with from now on among them.

    Notes
    -----
    Work is counted in multiplications, time in seconds on the caller's clock. A worker's rate is
    that of its last panels of `RATE_SECONDS`, so that a change in mid-run shows; where the panel in
    work takes longer, that counts, less up to `steady_seconds` in which it had not arrived. All
    could finish at the time ``T`` by which those that are done before can have multiplied what is
    left of the others' parts, each after `OVERHEAD_SECONDS` and the panels that it has to receive;
    those count whose help multiplies for as long as it takes to begin it, and in any case one. A
    worker that has nothing to do takes from the one that is expected last as many lines as it can
    finish by ``T``, or as that one has too many, whichever is less, and only where the last one
    finishes at least `help_gain_seconds` earlier. Where the last one, by whole panels of
    `steady_seconds`, would need `help_early` times as long as ``T``, workers that still compute do
    so, too, and multiply these lines after their own part, unless its panels come unevenly; nobody
    ever waits for one that waits for it. Nobody is idle meanwhile: who waits for others to multiply
    its lines helps, and takes lines back that these do not come to in time, or are late with: the
    panels that they need have to cross its link, instead of a sum. O(workers · (log workers +
    panels)) per question and per help that is made or taken back.

    Examples
    --------
    >>> tail = Tail(itemsize=8, work_per_byte=0.0)
    >>> tail.began(0, "fast", Tile(0, 0, 100, 100), [10] * 10)
    >>> tail.began(1, "slow", Tile(100, 0, 200, 100), [10] * 10)
    >>> for second in range(11):
    ...     tail.reached(0, second, second)
    ...     tail.reached(1, second // 2, second)
    >>> tail.ended(0, 10.0)
    []
    >>> [help] = tail.helps(10.0)
    >>> help.helper, help.giver, help.tile.bounds, help.first
    ('fast', 'slow', (118, 200, 0, 100), 6)
    """

    itemsize: int
    work_per_byte: float
    arriving: Mapping[str, float] = field(default_factory=dict)
    uneven: Collection[str] = ()
    tuning: MatmulTuning = DEFAULT.matmul
    _parts: dict[int, _Part] = field(default_factory=dict)
    _rates: dict[str, float] = field(default_factory=dict)
    _helps: dict[int, Help] = field(default_factory=dict)  # that have not ended
    _since: dict[str, float] = field(default_factory=dict)  # of helpers: when the first could begin
    beside: Counter[str] = field(default_factory=Counter)
    _room: dict[str, float] = field(default_factory=dict)
    _back: dict[int, float] = field(default_factory=dict)  # part -> until when lines taken back
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

    def reached(self, part: int, index: int, now: float, *, arrived: bool = True) -> None:
        """Take note that a part's panel `index` is in work since `now`, or waited for.

        Up to `steady_seconds` of the stalls of a part say nothing of its worker's speed. What it
        stalls beyond that, and all of it behind a slow link, is its pace.
        """
        state = self._parts.get(part)
        if state is None or (state.index is not None and index < state.index):
            return
        if state.paused:
            state.pauses += now - state.since
            state.since, state.paused = now, False
        if index == state.index:
            if arrived and state.stalled:
                begun = self._begun(state, now)
                state.stalls += begun - state.since
                state.since, state.stalled = begun, False
            return
        if state.index is not None:
            state.marks.append((state.busy, state.done))
            state.done += state.work(state.index, index)
        state.index, state.since = index, now
        state.stalled = not arrived and state.worker not in self.uneven
        rate = state.rate()
        if rate is not None:
            self._rates[state.worker] = rate

    def sooner(self, worker: str, seconds: float) -> None:
        """Take note that what was heard of a worker's parts was so much earlier than it seemed."""
        for state in self._parts.values():
            if state.worker == worker:
                state.since -= seconds
                state.marks = [(busy - seconds, done) for busy, done in state.marks]

    def paused(self, part: int) -> None:
        """Take note that a part is not computed until it is heard of again.

        Nobody takes lines off it meanwhile, and how long that is says nothing of its worker.
        """
        state = self._parts.get(part)
        if state is not None and state.index is not None:
            state.paused = True

    def ended(self, part: int, now: float) -> list[Help]:
        """Take note that a part is finished; return the helps that nobody waits for any more."""
        self.multiplied(part, now)
        self._parts.pop(part, None)
        void = [help for help in self.open_helps if help.part == part]
        self._void(void, now)
        return void

    def multiplied(self, part: int, now: float) -> None:
        """Take note that a part is multiplied, but for what others have taken over."""
        state = self._parts.get(part)
        if state is not None:
            self.reached(part, len(state.depths), now)
            self._since[state.worker] = now
        self._back.pop(part, None)

    def taken_back(self, parts: Collection[int], now: float) -> list[Help]:
        """Return the helps that givers who wait with these parts end sooner by themselves.

        They are void. That is where the helper has to finish its own part first, and is later than
        it seemed, or is slower than it was: what is late by so long is expected to be late by as
        long again.
        """
        given: dict[int, list[Help]] = {part: [] for part in parts if part in self._parts}
        for help in self.open_helps:
            if help.part in given:
                given[help.part].append(help)
        found: list[Help] = []
        if not any(given.values()):
            return found
        own = self._computing(now)
        ends = self._ends(now, own)
        for part, helps in given.items():
            worker = self._parts[part].worker
            if worker not in self._rates:
                continue
            doing = [help for help in self.open_helps if help.helper == worker]
            needed = own.get(worker, 0.0) + sum(self._seconds_of(h, worker) for h in doing)
            back = []
            for help in helps:
                later = ends[help.number] - now
                later += help.tile.area * self.itemsize * self.arriving.get(worker, 0.0)
                sooner = needed + self._seconds_of(help, worker)
                if sooner + self.tuning.help_gain_seconds < later:
                    needed = sooner
                    back.append(help)
            for help in back:
                self._learn(help, now)
            self._void(back, now)
            if back:
                self._back[part] = now + needed
                ends = self._ends(now, own)
            found += back
        return found

    def _learn(self, help: Help, now: float) -> None:
        """Take note that a helper has not multiplied so much since it began with that."""
        seconds = now - self._since[help.helper] - OVERHEAD_SECONDS
        first = self._first_of(help.helper)
        if help.number == first and help.helper not in self._computing(now) and seconds > 0:
            most = self._work_of(help) / seconds
            self._rates[help.helper] = min(self._rates[help.helper], most)

    def help_ended(self, number: int, now: float) -> Help | None:
        """Take note that a help is finished or void; return it, None where it is not known."""
        help = self._helps.get(number)
        if help is not None:
            if number == self._first_of(help.helper):  # one after it begins now
                self._since[help.helper] = now
            del self._helps[number]
        return help

    def _first_of(self, helper: str) -> int:
        """Return the number of the help that a helper does first of those that have not ended."""
        return min(help.number for help in self.open_helps if help.helper == helper)

    def _void(self, helps: Sequence[Help], now: float) -> None:
        """Take note that nobody waits for the sums of these helps."""
        for help in helps:
            self.help_ended(help.number, now)
            self.beside[help.helper] -= help.tile.area

    @property
    def open_helps(self) -> list[Help]:
        """The helps that have not ended."""
        return [*self._helps.values()]

    def refused(self, number: int, now: float) -> Help | None:
        """Take note that the giver was beyond the first panel already, and keeps the lines."""
        if number in self._helps:  # a sum that is there stays until the run ends
            self._void([self._helps[number]], now)
        for state in self._parts.values():
            for help in state.released:
                if help.number == number:
                    state.released.remove(help)
                    state.settle()
                    return help
        return None

    def failed(self, number: int, now: float) -> Help | None:
        """Take note that a help has failed: its helper gets no other one."""
        help = self._helps.get(number)
        if help is not None:
            self._void([help], now)
            self._unable.add(help.helper)
        return help

    def left(self, worker: str, now: float) -> list[Help]:
        """Take note that a worker is gone; return the helps that it gave or got."""
        for part in [part for part, state in self._parts.items() if state.worker == worker]:
            del self._parts[part]
            self._back.pop(part, None)
        self._rates.pop(worker, None)
        void = [help for help in self.open_helps if worker in (help.helper, help.giver)]
        self._void(void, now)
        return void

    def helps(self, now: float) -> list[Help]:
        """Return what those who have nothing to do are to take over now."""
        made = []
        busy = self._computing(now).keys()
        helping = {help.helper for help in self.open_helps} - busy
        # whose lines are all multiplied adds them up now, or multiplies those that came back
        waiting = {help.part for help in self.open_helps} - self._back.keys()
        helping |= {
            state.worker
            for part, state in self._parts.items()
            if state.index == len(state.depths) and part not in waiting
        }
        free = self._rates.keys() - helping - self._unable
        late: dict[bool, _Late | None] = {}
        for worker in sorted(free, key=lambda w: (w in busy, -self._rates[w], w)):
            early = worker in busy
            if early not in late:
                late[early] = self._late(now, early=early)
            found = late[early]
            if found is None or (early and found.state.worker in self._waited_for_by(worker)):
                continue
            help = self._help_by(worker, found, now)
            if help is not None:
                made.append(help)
                late.clear()
        return made

    def snapshot(self) -> "Tail":
        """Return a copy that nothing changes meanwhile, to be asked for `helps` in a thread.

        O(workers + panels begun).
        """
        return replace(
            self,
            beside=self.beside.copy(),
            _parts={part: state.copy() for part, state in self._parts.items()},
            _rates={**self._rates},
            _helps={**self._helps},
            _since={**self._since},
            _room={**self._room},
            _back={**self._back},
            _unable={*self._unable},
        )

    def take(self, help: Help, planned: "Tail", now: float) -> bool:
        """Take over a help that a `snapshot` has made; tell whether it still holds.

        The helps of a snapshot are taken in the order in which it has made them, before another
        snapshot is asked. One holds as long as its giver is still to multiply these lines, and its
        helper is there, is able and has room.
        """
        state = self._parts.get(help.part)
        if state is None or state.paused or not self._has_begun_and_goes_on(state):
            return False
        before = planned._parts[help.part].released
        if state.released != before[: before.index(help)]:
            return False
        able = help.helper in self._rates and help.helper not in self._unable
        if not able or self._room[help.helper] - self.beside[help.helper] < help.tile.area:
            return False
        self._begin(help, now)
        return True

    @property
    def size(self) -> int:
        """How many parts or workers `helps` looks at: also workers that are done may help."""
        return max(len(self._parts), len(self._rates))

    @staticmethod
    def _has_begun_and_goes_on(state: _Part) -> bool:
        return state.index is not None and state.index < len(state.depths)

    def _late(self, now: float, *, early: bool) -> "_Late | None":
        """Return the part that is expected last, and what it takes to help; None if it does not."""
        if any(state.worker not in self._rates for state in self._parts.values()):
            return None  # too early to tell
        left = self._busy_for(now)
        giving = [
            (left[state.worker], part)
            for part, state in self._parts.items()
            if self._has_begun_and_goes_on(state)
            and state.tile is not None
            and not state.paused
            and not (early and state.worker in self.uneven)
        ]
        if not giving:
            return None
        latest, part = max(giving)
        state = self._parts[part]
        steady = state.rate_in(self.tuning.steady_seconds) if early else None
        if early and steady is None:
            return None
        first = self._first(state, now)
        depth = state.depth(first)
        assert state.tile is not None
        _, lines, across = state.tile.last_lines()
        if state.tile.is_rectangle:
            lines -= 1  # a part is never given away whole
        sum_nbytes = across * self.itemsize  # of a line
        # the giver saves the multiplications, and has to receive the sum
        saved = across * depth - sum_nbytes * self.work_per_byte
        if saved <= 0:
            return None
        # what helpers multiply for a line, its panels and its sum; the panels that all lines share
        per_line = across * depth + (2 * sum_nbytes + self.itemsize * depth) * self.work_per_byte
        for_all = sum_nbytes * depth * self.work_per_byte
        # both have multiplied before the sum crosses the giver's link: seconds per line
        receiving = sum_nbytes * self.arriving.get(state.worker, 0.0)
        able: dict[str, tuple[float, float, float]] = {}
        for worker, rate in self._rates.items():
            room = self._room.get(worker, 0.0) - self.beside[worker]
            if worker == state.worker or worker in self._unable or room < across:
                continue
            able[worker] = (
                rate / (per_line + rate * receiving),
                left[worker] + OVERHEAD_SECONDS + for_all / rate,
                max(1.0, WORTH * (OVERHEAD_SECONDS * rate + for_all) / per_line),
            )
        if not able:
            return None  # nobody has room for a line, or is able
        rates = {
            self._parts[n].worker: (self._rate(self._parts[n], now) / saved, seconds)
            for seconds, n in giving
        }
        if early:
            assert steady is not None
            seconds = self._seconds_left(state, now, steady)
            rates[state.worker] = steady / saved, seconds
            level = level_of([*rates.values()], [one[:2] for one in able.values()])
            if seconds < self.tuning.help_early * level:
                return None
            rates[state.worker] = self._rate(state, now) / saved, latest
        helpers = Helpers([*rates.values()], able)
        return _Late(state, part, first, lines, across, rates, helpers, per_line, receiving)

    def _help_by(self, helper: str, late: "_Late", now: float) -> Help | None:
        if helper not in late.helpers.able:
            return None
        level = late.helpers.level_with(helper)
        pace, latest = late.rates[late.state.worker]
        own, begin, least = late.helpers.able[helper]
        room = self._room[helper] - self.beside[helper]
        can = own * (level - begin)
        count = int(min(can, pace * (latest - level), late.lines, room / late.across))
        if count < least:
            return None
        seconds = begin + count * late.per_line / self._rates[helper]
        gain = latest - max(level, seconds) - count * late.receiving
        if gain < self.tuning.help_gain_seconds:
            return None
        state = late.state
        assert state.tile is not None
        tile = state.tile.last(count)
        help = Help(self._made, helper, state.worker, late.part, tile, late.first)
        self._begin(help, now)
        return help

    def _begin(self, help: Help, now: float) -> None:
        """Take note of a help from now on."""
        state, helper = self._parts[help.part], help.helper
        self._made = help.number + 1
        self.beside[helper] += help.tile.area
        state.released.append(help)
        state.settle()
        if all(other.helper != helper for other in self.open_helps):
            self._since[helper] = now
        self._helps[help.number] = help

    def _busy_for(self, now: float) -> dict[str, float]:
        """Return worker -> seconds until it is done with its parts and with its helps."""
        own = self._computing(now)
        left = {**dict.fromkeys(self._rates, 0.0), **own}
        for number, end in self._ends(now, own).items():
            helper = self._helps[number].helper
            left[helper] = max(left[helper], end - now)
        for part, until in self._back.items():
            worker = self._parts[part].worker
            left[worker] = max(left[worker], until - now)
        return left

    def _ends(self, now: float, computing: Mapping[str, float] | None = None) -> dict[int, float]:
        """Return when each open help is expected to end; a worker does its own in turn."""
        own = dict(self._computing(now) if computing is None else computing)
        for part, until in self._back.items():
            own[self._parts[part].worker] = max(0.0, until - now)
        ends: dict[int, float] = {}
        free: dict[str, float] = {}
        for number, help in sorted(self._helps.items()):
            helper = help.helper
            if helper in free:
                begun = free[helper]
            elif helper in own:
                begun = now + own[helper]
            else:
                begun = self._since[helper]
            end = begun + OVERHEAD_SECONDS + self._seconds_of(help, helper)
            if end < now:  # what is late by so long is expected to be so by as long again
                end = now + (now - end)
            ends[number] = free[helper] = end
        return ends

    def _computing(self, now: float) -> dict[str, float]:
        """Return worker -> seconds that its own parts still need, of those that are not done."""
        left: dict[str, float] = {}
        for state in self._parts.values():
            if state.index is None or state.index < len(state.depths):
                needed = self._seconds_left(state, now) if state.worker in self._rates else 0.0
                left[state.worker] = left.get(state.worker, 0.0) + needed
        return left

    def _seconds_of(self, help: Help, worker: str) -> float:
        """Return how long a worker needs for a help: its panels, its product and its sum."""
        if help.part not in self._parts or worker not in self._rates:
            return 0.0
        return max(
            self._received(help) * self.arriving.get(worker, 0.0),
            self._work_of(help) / self._rates[worker],
        )

    def _work_of(self, help: Help) -> float:
        """Return the multiplications of a help, those that a worker could do instead of moving."""
        depth, area = self._parts[help.part].depth(help.first), help.tile.area
        moved = self._received(help) + 2 * area * self.itemsize
        return area * depth + moved * self.work_per_byte

    def _received(self, help: Help) -> int:
        """Return the bytes of the panels that a help needs."""
        depth = self._parts[help.part].depth(help.first)
        return (help.tile.height + help.tile.width) * depth * self.itemsize

    def _waited_for_by(self, worker: str) -> set[str]:
        """Return the worker, whose sums it waits for, whose those wait for, and so on."""
        found = {worker}
        while True:
            more = {help.helper for help in self.open_helps if help.giver in found}
            if more <= found:
                return found
            found |= more

    def _rate(self, state: _Part, now: float) -> float:
        rate, begun = self._rates[state.worker], self._begun(state, now)
        if state.index is None or state.index >= len(state.depths) or now <= begun:
            return rate
        return min(rate, state.work(state.index, state.index + 1) / (now - begun))

    def _begun(self, state: _Part, now: float) -> float:
        """Return since when the panel in work counts as multiplied."""
        if state.paused:
            return now
        if not state.stalled:
            return state.since
        return min(now, state.since + self.tuning.steady_seconds - state.stalls)

    def _seconds_left(self, state: _Part, now: float, pace: float | None = None) -> float:
        rate = pace or self._rate(state, now)
        if state.index is None:
            return state.work(0) / rate
        return max(0.0, self._begun(state, now) + state.work(state.index) / rate - now)

    def _first(self, state: _Part, now: float) -> int:
        """Return the first panel that the giver can be told of in time."""
        assert state.index is not None
        index = state.index + 1
        begins = self._begun(state, now) + state.work(state.index, index) / self._rate(state, now)
        while index < len(state.depths) and begins < now + LEAD_SECONDS:
            begins += state.work(index, index + 1) / self._rate(state, now)
            index += 1
        return index
