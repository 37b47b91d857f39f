"""The iterations of a team: who has which rows, at first and after what they took."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fpmdask.apps.stencil.coordinator.joiners import Joiners
from fpmdask.apps.stencil.coordinator.known_machine import WHY, KnownMachines
from fpmdask.apps.stencil.coordinator.progress import TeamProgress
from fpmdask.apps.stencil.coordinator.room import free_room, room_of
from fpmdask.apps.stencil.neighbours import spans_of, with_joined
from fpmdask.apps.stencil.plan import (
    Revision,
    Speed,
    exchange_every,
    moving_seconds,
    revised,
    shared,
)
from fpmdask.apps.stencil.sizes import fits_with_room
from fpmdask.apps.stencil.spec import ITERATE, StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel, Model
from fpmdask.partition import even
from fpmdask.runtime.coordinator.checks import check_names
from fpmdask.runtime.coordinator.chunks import (
    free_nbytes,
    free_nbytes_of,
    publish,
    wait_for_chunks,
    without_fpmdask,
)
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.membership import KernelFailed
from fpmdask.runtime.coordinator.speeds import Learned, taught
from fpmdask.runtime.coordinator.team import Attempt, LostWorker

if TYPE_CHECKING:
    from fpmdask.apps.stencil.planner import Planner

# Fewer iterations are over before other shares could pay.
LEAST_TRIED = 3
# Rows that every worker has in the instrumented iteration, at least: blocks of two sizes.
LEAST_INSTRUMENTED = 5


class Iterations(Attempt):
    """All iterations with the workers that are there now."""

    def __init__(self, context: RunContext, spec: StencilSpec, number: int) -> None:
        super().__init__(context, number)
        self.spec, self.shares = spec, dict[str, int]()
        self.in_core = False  # whether all rows are to be
        self.learned = Learned(context, "stencil", {"row_nbytes": spec.row_nbytes})
        self.reason = "even"
        self.machines = KnownMachines(context)
        self.planner: Planner | None = None  # of runs whose iterations MHETA predicts
        self.instruments = False
        self.row_seconds: list[float] | None = None  # of each, where it computes for long
        self.progress = TeamProgress(context, spec.iterations, number)
        self.joiners = Joiners(context, lambda worker: self.tell(worker, stop=True))
        self.order: dict[str, Any] = {}  # what all workers are told at first
        self.every, self.moves = 1, 0  # iterations between exchanges; how often rows have moved

    async def run(self) -> dict[str, Any]:
        """Iterate and publish."""
        context, spec = self.context, self.spec
        began = time.perf_counter()
        inputs = (*spec.fields, *spec.args)
        places = await wait_for_chunks(context, [key for one in inputs for key in one.keys])
        await self._share_out(places)
        given, rule = context.spec["distribution"] is not None, context.spec["rule"]
        self.order = common = {
            "spec": spec.to_json(),
            "fields": [[places[key] for key in one.keys] for one in spec.fields],
            "args": [[places[key] for key in one.keys] for one in spec.args],
            "bare": without_fpmdask(context.scheduler, places),
            "trial": self._tries() and self.planner is None,
            "probe": self._tries() and self.reason == "unknown",
            "output": context.spec["output"],
            "checkpoint": context.spec["checkpoint"],
            "prefetch": context.spec["prefetch"],
            # a machine from before is confirmed or dropped as a whole, at the end of the run
            "again": rule == "mheta" and not given and not self.machines.used,
            "joins": False,
            "load_checks": not given,
            **self._first_note(),
        }
        memory = {w: None if math.isinf(n) else n for w, n in self.room.memory.items()}
        self.dispatch(ITERATE, {w: {**common, "memory": memory[w]} for w in self.shares})
        self.progress.workers = self.workers
        self.work = {worker: rows for worker, rows in self.shares.items() if rows}
        if common["probe"]:
            told = await self.everyone("probe", "measure", self.progress.heard, counts=True)
            await self._by_probes({worker: told[worker]["probe"] for worker in self.shares})
        answers = await (self._planned() if self.planner else self._tried())
        context.steps.expected = None
        value = await self._publish(answers)
        self._report(answers, time.perf_counter() - began)
        if self.planner is not None:
            histories = [answers[worker]["history"] for worker in self.shares]
            said = await asyncio.to_thread(self.planner.report, histories)
            if context.spec["machine"] is None:
                self.machines.keep(self.planner, list(self.shares), said["phases"])
            if self.machines.used:
                said["why"] = WHY + said["why"]
            context.report["mheta"] = said
        return value

    def __exit__(self, kind: object, *rest: object) -> None:
        """Tell the workers of an attempt that has failed, and all that have joined, to end."""
        super().__exit__(kind, *rest)
        self.joiners.end()

    async def _tried(self) -> dict[str, Any]:
        """Return the workers' answers; rows move once, by what the first iterations take."""
        self.progress.tell_iterations()
        while True:
            answers = await self.everyone("trial", "iterate", self.progress.heard)
            if not any("trial" in told for told in answers.values()):
                return answers
            await self._revise(answers)

    async def _planned(self) -> dict[str, Any]:
        """Return the workers' answers; rows move where MHETA says so."""
        if self.instruments:
            told = await self.everyone("measured", "instrument", self.progress.heard, counts=True)
            if not all("measured" in one for one in told.values()):
                assert self.planner is not None
                self.planner.give_up("the run has ended with its first iteration")
                return told
            self.progress.iterated = next(iter(told.values()))["done"]
            await self._measured(told)
        self.progress.tell_iterations()
        while True:
            answers = await self.everyone("again", "iterate", self.progress.heard)
            if not any("again" in told for told in answers.values()):
                return answers
            await self._again(answers)

    def _tries(self) -> bool:
        """Tell whether measuring can pay."""
        return len(self.shares) > 1 and self.spec.iterations >= LEAST_TRIED

    def _first_note(self) -> dict[str, Any]:
        """Return what workers are told before they load their rows."""
        planned = self.planner is not None
        return {
            "rows": _rows(self.shares),
            "instrument": self.instruments,
            "history": planned,
            "expected": self._expected(),
        }

    async def _share_out(self, places: Mapping[Any, Sequence[str]]) -> None:
        """Decide who begins with which rows."""
        context, spec = self.context, self.spec
        workers = self._ordered(places)
        units = spec.shape[0]
        self.room = room_of(context, spec, await free_nbytes_of(context, workers))
        rule, saved = context.spec["rule"], context.spec["machine"]
        if (given := context.spec["distribution"]) is not None:
            self.shares, self.reason = self._given(given, workers), "given"
        elif rule == "even":
            await self._share([ConstantModel(1.0)] * len(workers), workers)
        else:
            await self._by_what_is_known(workers)
        if saved is not None and len(workers) > 1 and self.reason != "unknown":
            models, each = self._known(workers), max(1, units // len(workers))
            per_row = None if models is None else [float(m.time(each)) / each for m in models]
            await self._by_machine(saved, workers, per_row)

    def _known(self, workers: Sequence[str]) -> list[Model] | None:
        """Return what earlier runs have taught of workers, None unless of all of them."""
        here = self.context.workers  # some may have left at this moment
        known = [self.learned.of(worker) if worker in here else None for worker in workers]
        models: list[Model] = [model for model in known if model is not None]
        return models if len(models) == len(workers) else None

    async def _by_what_is_known(self, workers: Sequence[str]) -> None:
        models, saved = self._known(workers), self.context.spec["machine"]
        if models is not None:
            self.reason = "known"
            await (self._by_speeds if saved is None else self._share)(models, workers)
            return
        await self._share([ConstantModel(1.0)] * len(workers), workers)
        complete = saved is not None and saved["program"] is not None
        self.reason = "unknown" if self._tries() and not complete else "even"

    async def _share(self, models: Sequence[Model], workers: Sequence[str]) -> None:
        """Have all workers compute equally long, in core if the rule says so and all rows fit."""
        room, units = self.room, self.spec.shape[0]
        within = self.context.spec["rule"] in ("in-core", "mheta")
        for most in [room.in_core, room.most] if within else [room.most]:
            limits, self.in_core = [most[worker] for worker in workers], most is room.in_core
            try:
                found = await asyncio.to_thread(shared, units, models, limits, self.spec.least)
            except PartitionError:  # they need more; or none may have less than a halo
                if most is room.most:
                    raise
            else:
                break
        self.shares = dict(zip(workers, found, strict=True))

    async def _by_speeds(self, models: Sequence[Model], workers: Sequence[str]) -> None:
        """Share out by known speeds; if that is not in core for certain, MHETA is to say how."""
        await self._share(models, workers)
        if self.context.spec["rule"] != "mheta" or not self._tries():
            return
        room, units, least = self.room, self.spec.shape[0], self.spec.least
        most = [room.most[worker] for worker in workers]
        balanced = await asyncio.to_thread(shared, units, models, most, least)
        memory = [room.memory[worker] for worker in workers]
        if fits_with_room(self.spec, memory, balanced, prefetch=self.context.spec["prefetch"]):
            return
        if await self._by_known_machine(workers):
            return
        equal = dict(zip(workers, even(units, len(workers)).tolist(), strict=True))
        least = max(least, LEAST_INSTRUMENTED)
        if all(least <= rows <= room.most[worker] for worker, rows in equal.items()):
            self.planner = await asyncio.to_thread(self._new_planner, workers)
            self.instruments, self.shares = True, equal
            each = zip(models, equal.values(), strict=True)
            self.row_seconds = [float(model.time(rows)) / rows for model, rows in each]

    async def _by_known_machine(self, workers: Sequence[str]) -> bool:
        """Share out by what earlier runs have measured of all these workers, if they have."""
        planner = await asyncio.to_thread(self._new_planner, workers)
        found = self.machines.of(planner, workers)
        if found is not None:
            await self._by_machine(found, workers)
        self.machines.used = found is not None and self.planner is not None
        return self.machines.used

    def _new_planner(self, workers: Sequence[str]) -> Planner:
        """Return a planner; in a thread, since it loads MHETA."""
        from fpmdask.apps.stencil.planner import Planner

        memory = [self.room.memory[worker] for worker in workers]
        return Planner(
            self.spec,
            [self.context.name(worker) for worker in workers],
            [None if math.isinf(nbytes) else math.floor(nbytes) for nbytes in memory],
            [self.room.most[worker] for worker in workers],
            prefetch=self.context.spec["prefetch"],
        )

    async def _by_machine(
        self,
        saved: Mapping[str, Any],
        workers: Sequence[str],
        seconds_per_row: Sequence[float] | None = None,
    ) -> None:
        """Share out as a saved machine says, if it knows how fast workers compute."""
        planner = await asyncio.to_thread(self._new_planner, workers)
        if not planner.know(saved, seconds_per_row):
            return
        self.planner, self.instruments = planner, False
        if self.context.spec["rule"] == "mheta" and self.reason != "given":
            rows = [*self.shares.values()]
            found = await asyncio.to_thread(planner.choose, rows, 0, placed=False)
            self.shares = dict(zip(workers, found.rows, strict=True))
            self.reason = "predicted"
        planner.begin([*self.shares.values()])

    def _expected(self) -> float | None:
        """Return the seconds that an iteration should take, None where nobody knows."""
        if self.planner is None or self.context.spec["rule"] != "mheta" or self.machines.used:
            return None
        return self.planner.expected if self.reason != "given" else None

    async def _measured(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on as MHETA says after the instrumented iteration."""
        assert self.planner is not None
        planner, self.reason = self.planner, "measured"
        try:
            news = [told[worker]["measured"] for worker in self.shares]
            await asyncio.to_thread(planner.fit, news, self.row_seconds)
            await self._choose(next(iter(told.values()))["done"], None)
        except PartitionError as error:  # noise, or a worker that was disturbed
            planner.give_up(str(error))
            models = [ConstantModel(1 / told[worker]["row_seconds"]) for worker in self.shares]
            before = self.shares
            await self._share(models, list(before))
            self._go_on(before, next(iter(told.values()))["done"], None)

    async def _again(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on as MHETA says after what iterations have taken."""
        assert self.planner is not None
        news = [told[worker] for worker in self.shares]
        middle, done = max(one["middle"] for one in news), news[0]["again"]
        if self.planner.figures is None or self.context.spec["rule"] != "mheta":
            await self._revise({w: _as_trial(told[w], rows) for w, rows in self.shares.items()})
            return
        try:
            await asyncio.to_thread(self.planner.update, [*self.shares.values()], news)
            await self._choose(done, middle)
        except PartitionError as error:
            self.planner.give_up(str(error))
            self._go_on(self.shares, done, None)

    async def _choose(self, done: int, middle: float | None) -> None:
        """Go on with the rows that the planner chooses.

        Raises
        ------
        PartitionError
            If it can make nothing of its figures.
        """
        assert self.planner is not None
        while True:
            ready = self.joiners.ready()
            before = with_joined(self.shares, ready)
            planner = self._planner_with(before, ready)
            found = await asyncio.to_thread(planner.choose, [*before.values()], done)
            if ready.keys() <= self.context.workers.keys():
                break
        shares = dict(zip(before, found.rows, strict=True))
        if not ready or any(shares[worker] for worker in ready):
            self.planner, self.shares = planner, shares
        else:  # the same without them
            self.joiners.refuse(ready, found.why)
            before, self.shares = self.shares, {w: n for w, n in shares.items() if w not in ready}
            self.planner.noted(planner, list(ready))
        # where rows stay they take what they took
        expected = found.seconds if found.moves or middle is None else middle
        known = math.isfinite(expected)
        self.context.steps.expected = (self.spec.iterations - done) * expected if known else None
        self._go_on(before, done, expected if known else None, found.why)

    def _planner_with(self, before: Mapping[str, int], joined: Mapping[str, float]) -> Planner:
        """Return a planner that knows of workers which have joined, too."""
        assert self.planner is not None
        planner = self.planner
        for at, worker in enumerate(before):
            if worker in joined:
                nbytes = self.room.memory[worker]
                planner = planner.with_joined(
                    at,
                    self.context.name(worker),
                    None if math.isinf(nbytes) else math.floor(nbytes),
                    self.room.most[worker],
                    joined[worker],
                )
        return planner

    def _go_on(
        self, before: Mapping[str, int], done: int, expected: float | None, why: str = ""
    ) -> None:
        """Tell the workers with which rows they go on, after an iteration under MHETA."""
        assert self.planner is not None
        # after the instrumented iteration rows are on disk, in blocks of another size
        again = self.shares != before or self.instruments
        piece = self._piece(before, on_disk=self.instruments)
        self.instruments = False
        if again:
            self.planner.begin([*self.shares.values()])
        self._tell_shares(before, done, why, again=again, piece=piece, expected=expected)

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
        context, joined = self.context, [w for w in self.shares if w not in self.workers]
        channels = context.members.channels
        for worker in joined:
            self.joiners.take_in(worker, self.shares[worker], done, why)
        self.workers += joined
        self.work = {worker: rows for worker, rows in self.shares.items() if rows}
        context.emit("shared out", rows=self._by_name(), every=self.every)
        note = {
            "rows": _rows(self.shares) if again else None,
            "moves": self.shares != before,
            "every": self.every,
            "piece": piece,
            "expected": expected,
            "channels": {w: channels[w] for w in joined if w in channels},
        }
        entry = {
            "done": done,
            "before": _rows(before),
            "moved": self.moves,
            "history": self.planner is not None,
        }
        for worker in self.workers:
            self.tell(worker, **note, **(entry if worker in joined else {}))
        self.moves += again
        self._ask_for_check()

    # ---- workers that join

    def beside(self, event: tuple[Any, ...]) -> None:
        """Have workers that join, and are ready to, be taken in at the team's next look."""
        match event:
            case ("joined", worker) if worker not in self.workers and self.order["load_checks"]:
                self._invite(worker)
            case ("left", worker):
                self.joiners.drop(worker)
            case ("news", worker, {"attempt": self.number, "probe": float(seconds)}) if (
                worker in self.joiners
            ):
                self.joiners.add(worker, seconds)
                self._ask_for_check()
            case ("answer", (worker, self.name), answer) if worker in self.joiners:
                reason = answer.get("error") or answer.get("raised") or {}
                self.joiners.refuse([worker], str(reason.get("message", "its step has ended")))

    def _ask_for_check(self) -> None:
        """Have the team look, as workers wait for being taken in."""
        if self.joiners.ready():
            for worker in self.workers:
                self.tell(worker, load_check=True)

    def _invite(self, worker: str) -> None:
        """Begin a worker's step: it says what a row takes it, and waits."""
        context, spec, units = self.context, self.spec, self.spec.shape[0]
        if worker in self.joiners or worker not in context.workers:
            return
        room = free_room(context, spec, {worker: free_nbytes(context, worker)})
        each = max(1, units // (1 + len(self.work)))
        if room.most[worker] < spec.least:
            self.joiners.refuse([worker], "it has no memory for rows")
            return
        self.room, known = self.room.with_joined(room), self.learned.of(worker)
        row_seconds = None if known is None else float(known.time(each)) / each
        memory, low = room.memory[worker], (units - each) // 2
        self.joiners.add(worker, row_seconds)
        order = {
            **self.order,
            "joins": True,
            "trial": False,
            "probe": row_seconds is None,
            "rows": [(worker, low, low + each)],
            "instrument": False,
            "history": False,
            "expected": None,
            "memory": None if math.isinf(memory) else memory,
        }
        self.dispatch_beside(worker, ITERATE, order)
        self._ask_for_check()

    def _streams(self, shares: Mapping[str, int]) -> bool:
        """Tell whether a worker has more rows than it can hold in core."""
        return any(rows > self.room.in_core[worker] for worker, rows in shares.items())

    def _piece(self, before: Mapping[str, int], *, on_disk: bool = False) -> int | None:
        """Return how many rows move at once; None: all, where none are on disk, nor will be."""
        if not (on_disk or self._streams(before) or self._streams(self.shares)):
            return None
        nbytes = max(1, self.spec.row_nbytes)
        return max(1, self.context.tuning.stencil.band_nbytes // nbytes)

    def _ordered(self, places: Mapping[Any, Sequence[str]]) -> list[str]:
        """Return the workers in the order of the rows that they hold now, so that few move."""
        held: dict[str, list[int]] = {}
        first, row = self.spec.fields[0], 0
        for key, rows in zip(first.keys, first.lengths, strict=first.stored is None):
            for worker in places[key]:
                held.setdefault(worker, []).append(row)
            row += rows
        workers = list(self.context.workers)
        middle = {w: sum(own) / len(own) for w, own in held.items()}
        at = {w: middle.get(w, row * (n + 0.5) / len(workers)) for n, w in enumerate(workers)}
        return sorted(workers, key=at.__getitem__)

    def _given(self, given: Mapping[str, int], workers: Sequence[str]) -> dict[str, int]:
        context, least = self.context, self.spec.least
        check_names(context, given, workers, "the distribution")
        for name, rows in given.items():
            if 0 < rows < least:
                raise PartitionError(
                    f"distribution gives {name} {rows} rows, and a halo has {least}; give 0 or "
                    "that many"
                )
        return {worker: int(given.get(context.name(worker), 0)) for worker in workers}

    async def _by_probes(self, seconds: Mapping[str, float | None]) -> None:
        """Tell the workers who has which rows, by what a row has taken each of them."""
        known = sorted(one for one in seconds.values() if one)
        middle = known[len(known) // 2]
        models = [ConstantModel(1 / (one or middle)) for one in seconds.values()]
        self.reason, saved = "measured", self.context.spec["machine"]
        if saved is not None:
            await self._share(models, list(seconds))
            await self._by_machine(
                saved, list(seconds), [one or middle for one in seconds.values()]
            )
        else:
            await self._by_speeds(models, list(seconds))
        self.work = {worker: rows for worker, rows in self.shares.items() if rows}
        note = self._first_note()
        for worker in self.workers:
            self.tell(worker, **note)

    async def _revise(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Tell the workers with which shares to go on, after what iterations took."""
        context, spec = self.context, self.spec
        done = next(iter(told.values()))["trial"]
        left = spec.iterations - done
        if spec.tolerance is not None:
            left = min(done, left)  # it may end at any time
        while True:
            ready = self.joiners.ready()
            before = with_joined(self.shares, ready)
            speeds = self._speeds(told, ready)
            found = await asyncio.to_thread(self._revised, before, speeds, left)
            if ready.keys() <= context.workers.keys():
                break
        if ready and not any(found.shares[worker] for worker in ready):
            self.joiners.refuse(ready, found.why)
            before = {w: rows for w, rows in before.items() if w not in ready}
        self.shares = {worker: found.shares[worker] for worker in before}
        most = min(left, context.tuning.stencil.most_every)
        worth = 0.0
        if self.shares == before and left:  # else the buffers are new in any case
            worth = moving_seconds(before, before, speeds, spec.row_nbytes) / left
        every = exchange_every(speeds, self.shares, spec.depth[0], most, worth)
        if self._streams(self.shares) or self.planner is not None:
            every = 1
        if self.shares != before:
            self.reason = "measured"
        spent = [(speeds[w].row_seconds or 0.0) * rows for w, rows in self.shares.items()]
        context.steps.expected = left * max(spent)
        again = self.shares != before or every != self.every
        self.every = every
        if self.planner is not None:
            joined = {w: seconds for w, seconds in ready.items() if w in self.shares}
            self.planner = self._planner_with(before, joined)
            if again:
                self.planner.begin([*self.shares.values()])
        self._tell_shares(before, done, found.why, again=again, piece=self._piece(before))

    def _speeds(
        self, told: Mapping[str, Mapping[str, Any]], ready: Mapping[str, float]
    ) -> dict[str, Speed]:
        """Return what workers of the team have told, and what is taken for those that join."""
        streams = self.context.spec["rule"] == "mheta"
        found = {}
        for worker in self.shares:
            one = told[worker]
            seconds = one["row_seconds"]
            if seconds is not None and streams:
                seconds += one["io_seconds"]
            found[worker] = Speed(seconds, one["exchange_seconds"], one["byte_seconds"])
        exchange = max(one.exchange_seconds for one in found.values())
        byte = max(one.byte_seconds for one in found.values())
        return found | {worker: Speed(row, exchange, byte) for worker, row in ready.items()}

    def _revised(self, before: Mapping[str, int], told: Mapping[str, Speed], left: int) -> Revision:
        """Return with which shares to go on, in core if the rule says so and all rows fit."""
        context, spec, rule = self.context, self.spec, self.context.spec["rule"]
        same = before.keys() == self.shares.keys()
        if context.spec["distribution"] is not None or (same and rule == "even"):
            return Revision(dict(before))
        rooms = [self.room.most]
        if self.in_core or (not same and rule in ("in-core", "mheta")):
            rooms.insert(0, self.room.in_core)
        alone = not same and len(self.work) == 1
        for room in rooms:
            try:
                return revised(
                    before,
                    told,
                    left,
                    spec.row_nbytes,
                    room,
                    spec.least,
                    equal=rule == "even",
                    exchange=context.tuning.stencil.exchange_seconds if alone else 0.0,
                )
            except PartitionError:  # they need more
                if room is rooms[-1]:
                    raise
        raise AssertionError

    def _by_name(self) -> dict[str, int]:
        return {self.context.name(worker): rows for worker, rows in self.shares.items()}

    def _check(self, worker: str, answer: Mapping[str, Any]) -> None:
        if "raised" in answer:
            error = answer["raised"]
            raise KernelFailed(
                f"update raised on worker {self.context.name(worker)}: {error['type']}: "
                f"{error['message']}",
                {**error, "summary": f"update raised on worker {self.context.name(worker)}"},
            )
        super()._check(worker, answer)

    async def _publish(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """Make each worker's rows a chunk of the result."""
        context, spec = self.context, self.spec
        iterations = max(answer["iterations"] for answer in answers.values())
        if context.spec["output"] is not None:
            return {"iterations": iterations}
        names = [f"fpmdask-stencil-{uuid4().hex}" for _ in spec.fields]
        having = [worker for worker, rows in self.shares.items() if rows]
        after = (0,) * (len(spec.shape) - 1)
        keys = {
            worker: [((name, n, *after), field, ()) for field, name in enumerate(names)]
            for n, worker in enumerate(having)
        }
        if not await publish(context, keys):
            raise LostWorker("a worker left while the result was published")
        return {
            "names": names,
            "sizes": [self.shares[worker] for worker in having],
            "iterations": iterations,
        }

    def _report(self, answers: Mapping[str, Any], seconds: float) -> None:
        context = self.context
        longest = max(answer["computing"] for answer in answers.values())
        tells = longest >= context.tuning.runtime.learned_least_seconds
        for worker, answer in answers.items():
            computed, rows = answer["rows_computed"], self.shares[worker]
            known = worker in context.workers and computed and rows and answer["computing"] > 0
            if tells and known:
                spent = answer["computing"] / computed * rows
                before = self.learned.agreeing(worker, taught(None, rows, spent))
                self.learned.keep(worker, taught(before, rows, spent))
        context.report["shares"] = [
            {
                "worker": context.name(worker),
                "units": self.shares[worker],
                "seconds": answer["total"],
                "compute_seconds": answer["computing"],
                "wait_seconds": max(
                    0.0,
                    answer["total"]
                    - sum(answer[k] for k in ("computing", "io", "loading", "moving", "saving")),
                ),
                "io_seconds": answer["io"],
                "blocks": answer["blocks"],
                "nbytes_received": answer["nbytes_received"],
                "iterations": answer["iterations"],
            }
            for worker, answer in answers.items()
        ]
        loading, moving = (max(a[k] for a in answers.values()) for k in ("loading", "moving"))
        phases = context.report["phases"]
        phases["prepare"] += loading
        phases["move"] = moving
        phases["iterate"] = max(0.0, seconds - loading - moving)
        spent = {worker: answer["computing"] or None for worker, answer in answers.items()}
        context.set_result(self.shares, spent, None, self.reason, self.shares)


def _as_trial(told: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return what a worker has told of its last iterations as it tells of the first ones."""
    return {
        "trial": told["again"],
        "row_seconds": told["compute"] / rows if rows else None,
        "io_seconds": told["io"] / rows if rows else 0.0,
        "exchange_seconds": told["send"] + told["receive"],
        "byte_seconds": told["byte_seconds"],
    }


def _rows(shares: Mapping[str, int]) -> list[tuple[str, int, int]]:
    return [(worker, *span) for worker, span in spans_of(shares).items()]
