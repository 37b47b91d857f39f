"""The iterations of a team: what its workers are told, at first and after what they took."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from fpmdask.apps.stencil.coordinator.joiners import Joiners
from fpmdask.apps.stencil.coordinator.known_machine import WHY
from fpmdask.apps.stencil.coordinator.progress import TeamProgress
from fpmdask.apps.stencil.coordinator.results import published, report
from fpmdask.apps.stencil.coordinator.revising import Revising, as_trial
from fpmdask.apps.stencil.coordinator.room import Room, room_of
from fpmdask.apps.stencil.coordinator.sharing import Sharing, Split, ordered
from fpmdask.apps.stencil.neighbours import spans_of, with_joined
from fpmdask.apps.stencil.plan import Speed, costs_of
from fpmdask.apps.stencil.spec import ITERATE, StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel
from fpmdask.runtime.coordinator.chunks import free_nbytes_of, wait_for_chunks, without_fpmdask
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.membership import KernelFailed
from fpmdask.runtime.coordinator.team import Attempt
from fpmdask.runtime.explain import ALONE

if TYPE_CHECKING:
    from fpmdask.apps.stencil.planner import Planner

# A disturbed instrumented iteration is made again, so often in all at most.
INSTRUMENTED = 3


class Iterations(Attempt):
    """All iterations with the workers that are there now."""

    room: Room
    sharing: Sharing

    def __init__(self, context: RunContext, spec: StencilSpec, number: int) -> None:
        super().__init__(context, number)
        self.spec, self.split = spec, Split()
        self.progress = TeamProgress(context, spec.iterations, number)
        self.joiners = Joiners(self, spec)
        self.order: dict[str, Any] = {}  # what all workers are told at first
        self.measuring = 0.0  # seconds until rows are shared out by what was measured
        self.every, self.moves = 1, 0  # iterations between exchanges; how often rows have moved
        self.exchange: float | None = None  # what one takes, as far as that is known

    async def run(self) -> dict[str, Any]:
        """Iterate and publish."""
        context, spec = self.context, self.spec
        began = time.perf_counter()
        self._expect(None, 0)
        inputs = (*spec.fields, *spec.args)
        places = await wait_for_chunks(context, [key for one in inputs for key in one.keys])
        workers = ordered(context, spec, places)
        self.room = room_of(context, spec, await free_nbytes_of(context, workers))
        self.sharing = Sharing(context, spec, workers, self.room)
        self.split = split = await self.sharing.first()
        given, tries = context.spec["distribution"] is not None, self.sharing.tries
        self.every = self._first_every()
        self.order = common = {
            "spec": spec.to_json(),
            "fields": [[places[key] for key in one.keys] for one in spec.fields],
            "args": [[places[key] for key in one.keys] for one in spec.args],
            "bare": without_fpmdask(context.scheduler, places),
            "trial": tries and split.planner is None,
            "probe": tries and split.reason == "unknown",
            "output": context.spec["output"],
            "checkpoint": context.spec["checkpoint"],
            "prefetch": context.spec["prefetch"],
            "again": context.spec["rule"] == "mheta" and not given,
            "joins": False,
            "load_checks": not given,
            **self._first_note(),
        }
        memory = {w: None if math.isinf(n) else n for w, n in self.room.memory.items()}
        each = {w: {"memory": memory[w], **self._known_of(w)} for w in split.shares}
        self.dispatch(ITERATE, {worker: {**common, **own} for worker, own in each.items()})
        self.progress.workers = self.workers
        self.work = split.having
        if common["probe"]:
            await self._probed()
        answers = await (self._planned() if split.planner else self._tried())
        self._expect(None, 0)
        value = await published(context, spec, split, answers)
        seconds = time.perf_counter() - began - self.measuring
        report(context, split, self.sharing.learned, answers, seconds, self.measuring)
        if split.planner is not None:
            await self._report_mheta(split.planner, answers)
        return value

    async def _report_mheta(self, planner: Planner, answers: Mapping[str, Any]) -> None:
        machines, shares = self.sharing.machines, self.split.shares
        histories = [answers[worker]["history"] for worker in shares]
        said = await asyncio.to_thread(planner.report, histories)
        if self.context.spec["machine"] is None:
            machines.keep(planner, list(shares), said["phases"])
        if machines.used:
            said["why"] = WHY + said["why"]
        self.context.report["mheta"] = said

    def __exit__(self, kind: object, *rest: object) -> None:
        """Tell the workers of an attempt that has failed, and all that have joined, to end."""
        super().__exit__(kind, *rest)
        self.joiners.end()

    def _check(self, worker: str, answer: Mapping[str, Any]) -> None:
        if "raised" in answer:
            error = answer["raised"]
            says = f"update raised on worker {self.context.name(worker)}"
            what = f"{says}: {error['type']}: {error['message']}"
            raise KernelFailed(what, {**error, "summary": says})
        super()._check(worker, answer)

    def _heard(self, worker: str, news: Mapping[str, Any]) -> None:
        """Take in what a worker tells amid its step."""
        self.progress.heard(worker, news)
        if "longest_seconds" in news and news["attempt"] == self.number:
            self.context.steps.longest_call = news["longest_seconds"]

    def _expect(self, seconds: float | None, left: int) -> None:
        """Take note of how long the iterations to come should take each, None: unknown."""
        steps = self.context.steps
        steps.expected, steps.longest_call = None if seconds is None else left * seconds, seconds

    # ---- what comes first

    def _first_note(self) -> dict[str, Any]:
        """Return what workers are told before they load their rows."""
        return {
            "rows": _rows(self.split.shares),
            "instrument": self.split.instruments,
            "history": self.split.planner is not None,
            "expected": self._expected(),
            "every": self.every,
            "planned": self._planned_seconds(),
        }

    def _planned_seconds(self) -> float | None:
        """Return what an iteration should take in core, with its part of an exchange."""
        longest = max(self.split.planned.values(), default=0.0)
        if not longest or self.split.planner is not None:
            return None
        if len(self.split.having) < 2 or not self.spec.depth[0]:
            return longest
        default = self.context.tuning.stencil.exchange_seconds
        exchange = default if self.exchange is None else self.exchange
        return longest + exchange / self.every

    def _first_every(self) -> int:
        """Return how many iterations come between exchanges, before one has been measured.

        More than one only where computing takes less time than messages are known to.
        """
        split, seconds = self.split, self.context.tuning.stencil.exchange_seconds
        longest = max(split.planned.values(), default=math.inf)
        given = self.context.spec["distribution"] is not None
        if given or split.planner is not None or longest >= seconds or self._streams(split.shares):
            return 1
        left = self.spec.iterations - self.sharing.made
        told = {w: Speed(split.row_seconds.get(w), seconds, 0.0) for w in split.shares}
        return Revising(self.context, self.spec, split, self.room, {}, left).every(
            {}, split.shares, told
        )

    def _expected(self) -> float | None:
        """Return the seconds that an iteration should take, None where nobody knows."""
        planner = self.split.planner
        if planner is None or self.context.spec["rule"] != "mheta" or self.split.reason == "given":
            return None
        seconds = planner.expected
        return None if seconds is None or not math.isfinite(seconds) else seconds

    async def _probed(self) -> None:
        """Tell the workers who has which rows, by what a row has taken each of them."""
        began = time.perf_counter()
        told = await self.everyone("probe", "measure", self._heard, counts=True)
        self.sharing.made = told[self.workers[0]]["made"]
        seconds = {worker: told[worker]["probe"] for worker in self.split.shares}
        await self.sharing.by_probes(self.split, seconds)
        self.every = self._first_every()
        self._tell_first()
        self.measuring += time.perf_counter() - began

    def _tell_first(self) -> None:
        """Tell the workers who has which rows, before they load any."""
        self.work, note = self.split.having, self._first_note()
        for worker in self.workers:
            self.tell(worker, **note, **self._known_of(worker))

    def _known_of(self, worker: str) -> dict[str, Any]:
        # who has no memory for what is written as one takes none of it from others
        known = self.split.row_seconds.get(worker) if self.room.memory[worker] else None
        return {"row_seconds": known}

    # ---- without MHETA

    async def _tried(self) -> dict[str, Any]:
        """Return the workers' answers; rows move by what iterations take, at first and later."""
        self.progress.tell_iterations()
        while True:
            answers = await self.everyone("trial", "iterate", self._heard)
            if not any("trial" in told for told in answers.values()):
                return answers
            await self._revise(answers)

    async def _revise(
        self, told: Mapping[str, Mapping[str, Any]], middle: float | None = None
    ) -> None:
        """Tell the workers with which shares to go on, after what iterations took.

        Where it is known what those took, `middle` seconds each, the team looks again after some
        that take other times than they should, or than these where rows stay.
        """
        split, spec = self.split, self.spec
        done = next(iter(told.values()))["trial"]
        left = spec.iterations - done
        if spec.tolerance is not None:
            left = min(done, left)  # it may end at any time
        revising = Revising(
            self.context, spec, split, self.room, told, left, self.every, self.exchange
        )
        self.exchange = revising.exchange
        while True:
            ready = self.joiners.ready()
            before, speeds = with_joined(split.shares, ready), revising.speeds(ready)
            found = await revising.revised(before, speeds)
            if ready.keys() <= self.context.workers.keys():
                break
        if ready and not any(found.shares[worker] for worker in ready):
            self.joiners.refuse(ready, found.why)
            before, ready = {w: rows for w, rows in before.items() if w not in ready}, {}
        shares = {worker: found.shares[worker] for worker in before}
        every = 1
        if not self._streams(shares) and split.planner is None:
            every = revising.every(before, shares, speeds)
        # who has no rows from now on is as fast as it was last
        measured = {w: speeds[w].row_seconds for w in split.having}
        split.row_seconds |= {w: seconds for w, seconds in measured.items() if seconds}
        split.shares = shares
        if shares != before:
            split.reason = ALONE if found.alone else "measured"
        spent = [(speeds[w].row_seconds or 0.0) * rows for w, rows in shares.items()]
        self._expect(max(spent), left)
        split.planned = dict(zip(shares, spent, strict=True))
        again, self.every = shares != before or every != self.every, every
        if split.planner is not None:
            split.planner = self._planner_with(split.planner, before, ready)
            if again:
                split.planner.begin([*shares.values()])
        expected = max(spent) if middle and shares != before else middle
        piece = self._piece(before)
        self._tell_shares(before, done, found.why, again=again, piece=piece, expected=expected)

    # ---- with MHETA

    async def _planned(self) -> dict[str, Any]:
        """Return the workers' answers; rows move where MHETA says so."""
        split = self.split
        if split.instruments:
            await self._instrument(split.planner)
        self.progress.tell_iterations()
        while True:
            answers = await self.everyone("again", "iterate", self._heard)
            if not any("again" in told for told in answers.values()):
                return answers
            await self._again(answers)

    async def _instrument(self, planner: Planner | None) -> None:
        """Tell the workers who has which rows, as MHETA says after the instrumented iteration.

        Where that was disturbed, and its figures contradict one another, it is made again.
        """
        assert planner is not None
        split, began = self.split, time.perf_counter()
        for left in reversed(range(INSTRUMENTED)):
            told = await self.everyone("measured", "instrument", self._heard, counts=True)
            split.instruments, self.sharing.made = False, told[self.workers[0]]["made"]
            fits, before = False, [*split.shares.values()]
            raised = [one["raised"] for one in told.values() if one["raised"] is not None]
            try:
                if raised:
                    raise PartitionError(f"the update raised in a sample of rows: {raised[0]}")
                news = [told[worker]["measured"] for worker in split.shares]
                row_seconds = [split.row_seconds[worker] for worker in split.shares]
                await asyncio.to_thread(planner.fit, news, row_seconds)
                fits = True
                found = await asyncio.to_thread(
                    planner.choose, before, self.sharing.made, placed=False
                )
            except PartitionError as error:
                if left and not fits and not raised:
                    split.instruments = True
                    self._tell_first()
                    continue
                planner.give_up(str(error))
                models = [ConstantModel(1 / split.row_seconds[worker]) for worker in split.shares]
                await self.sharing.share(split, models)
                # without I/O and messages, of which nothing is known: the team soon looks again
                planner.expected = max(split.row_seconds[w] * n for w, n in split.shares.items())
            else:
                split.shares = dict(zip(split.shares, found.rows, strict=True))
            break
        split.reason = "measured"
        planner.begin([*split.shares.values()])
        self._expect(self._expected(), self.spec.iterations - self.sharing.made)
        self._tell_first()
        self.measuring += time.perf_counter() - began
        self._emit_shares()
        self._ask_for_check()

    async def _again(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on as MHETA says after what iterations have taken."""
        split = self.split
        assert split.planner is not None
        news = [told[worker] for worker in split.shares]
        middle, done = max(one["middle"] for one in news), news[0]["again"]
        adapts = self.context.spec["rule"] == "mheta"
        if split.planner.figures is not None and adapts:
            try:
                await asyncio.to_thread(split.planner.update, [*split.shares.values()], news)
                # not the most: one that has few rows of a long chunk of Zarr decodes all of it
                byte_seconds = median(one["byte_seconds"] for one in news)
                await self._choose(split.planner, done, middle, byte_seconds)
            except PartitionError as error:
                split.planner.give_up(str(error))
            else:
                return
        tried = {w: as_trial(told[w], rows) for w, rows in split.shares.items()}
        await self._revise(tried, middle if adapts else None)

    async def _choose(self, own: Planner, done: int, middle: float, byte_seconds: float) -> None:
        """Go on with the rows that the planner chooses.

        Parameters
        ----------
        middle
            Seconds of an iteration so far.
        byte_seconds
            What it takes to bring a byte of rows into new buffers.

        Raises
        ------
        PartitionError
            If it can make nothing of its figures.
        """
        split = self.split
        while True:
            ready = self.joiners.ready()
            before = with_joined(split.shares, ready)
            planner = self._planner_with(own, before, ready)
            found = await asyncio.to_thread(
                planner.choose, [*before.values()], done, byte_seconds=byte_seconds
            )
            if ready.keys() <= self.context.workers.keys():
                break
        shares = dict(zip(before, found.rows, strict=True))
        if not ready or any(shares[worker] for worker in ready):
            split.planner, split.shares = planner, shares
        else:  # the same without them
            self.joiners.refuse(ready, found.why)
            before, split.shares = split.shares, {w: shares[w] for w in shares if w not in ready}
            own.noted(planner, [self.context.name(worker) for worker in ready])
        # where rows stay they take what they took
        expected = found.seconds if found.moves else middle
        known = math.isfinite(expected)
        self._expect(expected if known else None, self.spec.iterations - done)
        self._go_on(before, done, expected if known else None, found.why)

    def _planner_with(
        self, planner: Planner, before: Mapping[str, int], joined: Mapping[str, Speed]
    ) -> Planner:
        """Return a planner that knows of workers which have joined, too."""
        told = {w: joined.get(w, Speed(None, 0.0, 0.0)) for w in before}
        wraps = self.spec.boundary[0] == "periodic"
        costs = costs_of(told, before, self.spec.depth[0], wraps=wraps)
        for at, worker in enumerate(before):
            if worker in joined:
                nbytes = self.room.memory[worker]
                memory = None if math.isinf(nbytes) else math.floor(nbytes)
                name, most = self.context.name(worker), self.room.most[worker]
                planner = planner.with_joined(at, name, memory, most, costs[worker])
        return planner

    def _go_on(
        self, before: Mapping[str, int], done: int, expected: float | None, why: str = ""
    ) -> None:
        """Tell the workers with which rows they go on, after an iteration under MHETA."""
        split = self.split
        assert split.planner is not None
        again, piece = split.shares != before, self._piece(before)
        if again:
            split.planner.begin([*split.shares.values()])
        self._tell_shares(before, done, why, again=again, piece=piece, expected=expected)

    # ---- what all are told

    def _tell_shares(
        self,
        before: Mapping[str, int],
        done: int,
        why: str,
        *,
        again: bool,
        piece: int | None,
        expected: float | None = None,
    ) -> None:
        """Tell the team, and who is of it from now on, with which rows to go on.

        Parameters
        ----------
        before
            The rows that all of these have, after `done` iterations.
        again
            Whether rows are brought into new buffers.
        piece
            How many at once; None: all.
        """
        context, shares = self.context, self.split.shares
        channels, joined = context.members.channels, [w for w in shares if w not in self.workers]
        for worker in joined:
            self.joiners.take_in(worker, shares[worker], done, why)
        self.workers += joined
        self.work = self.split.having
        self._emit_shares()
        note = {
            "rows": _rows(shares) if again else None,
            "moves": shares != before,
            "every": self.every,
            "piece": piece,
            "expected": expected,
            "planned": self._planned_seconds(),
            "channels": {w: channels[w] for w in joined if w in channels},
        }
        entry = {
            "done": done,
            "before": _rows(before),
            "moved": self.moves,
            "history": self.split.planner is not None,
        }
        for worker in self.workers:
            self.tell(worker, **note, **(entry if worker in joined else {}))
        self.moves += again
        self._ask_for_check()

    def _emit_shares(self) -> None:
        rows = {self.context.name(worker): rows for worker, rows in self.split.shares.items()}
        self.context.emit("shared out", rows=rows, every=self.every)

    def _streams(self, shares: Mapping[str, int]) -> bool:
        """Tell whether a worker has more rows than it can hold in core."""
        return any(rows > self.room.in_core[worker] for worker, rows in shares.items())

    def _piece(self, before: Mapping[str, int]) -> int | None:
        """Return how many rows move at once; None: all, where none are on disk, nor will be."""
        if not (self._streams(before) or self._streams(self.split.shares)):
            return None
        nbytes = max(1, self.spec.row_nbytes)
        return max(1, self.context.tuning.stencil.band_nbytes // nbytes)

    # ---- workers that join

    def beside(self, event: tuple[Any, ...]) -> None:
        """Have workers that join, and are ready to, be taken in at the team's next look."""
        match event:
            case ("joined", worker) if worker not in self.workers and self.order["load_checks"]:
                having = len(self.split.having)
                room = self.joiners.invite(worker, self.order, self.sharing.learned, having)
                if room is not None:
                    self.room = self.room.with_joined(room)
                    self._ask_for_check()
            case _ if self.joiners.heard(event):
                self._ask_for_check()

    def _ask_for_check(self) -> None:
        """Have the team look, as workers wait for being taken in."""
        if self.joiners.ready():
            for worker in self.workers:
                self.tell(worker, load_check=True)


def _rows(shares: Mapping[str, int]) -> list[tuple[str, int, int]]:
    return [(worker, *span) for worker, span in spans_of(shares).items()]
