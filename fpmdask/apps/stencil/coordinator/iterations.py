"""The iterations of a team: who has which rows, at first and after what they took."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fpmdask.apps.stencil.coordinator.progress import TeamProgress
from fpmdask.apps.stencil.coordinator.room import room_of
from fpmdask.apps.stencil.neighbours import spans_of
from fpmdask.apps.stencil.plan import (
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
    free_nbytes_of,
    publish,
    wait_for_chunks,
    without_fpmdask,
)
from fpmdask.runtime.coordinator.context import KernelFailed, RunContext
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
        self.limits: dict[str, float] = {}  # the most rows
        self.learned = Learned(context, "stencil", {"row_nbytes": spec.row_nbytes})
        self.reason = "even"
        self.planner: Planner | None = None  # of runs whose iterations MHETA predicts
        self.instruments = False
        self.row_seconds: list[float] | None = None  # of each, where it computes for long
        self.progress = TeamProgress(context, spec.iterations, number)

    async def run(self) -> dict[str, Any]:
        """Iterate and publish."""
        context, spec = self.context, self.spec
        began = time.perf_counter()
        inputs = (*spec.fields, *spec.args)
        places = await wait_for_chunks(context, [key for one in inputs for key in one.keys])
        await self._share_out(places)
        given = context.spec["distribution"] is not None
        common = {
            "spec": spec.to_json(),
            "fields": [[places[key] for key in one.keys] for one in spec.fields],
            "args": [[places[key] for key in one.keys] for one in spec.args],
            "bare": without_fpmdask(context.scheduler, places),
            "trial": self._tries() and self.planner is None,
            "probe": self._tries() and self.reason == "unknown",
            "output": context.spec["output"],
            "checkpoint": context.spec["checkpoint"],
            "prefetch": context.spec["prefetch"],
            "again": context.spec["rule"] == "mheta" and not given,
            **self._first_note(),
        }
        memory = {w: None if math.isinf(n) else n for w, n in self.room.memory.items()}
        self.dispatch(ITERATE, {w: {**common, "memory": memory[w]} for w in self.shares})
        self.progress.workers = self.workers
        self.work = {worker: rows for worker, rows in self.shares.items() if rows}
        if common["probe"]:
            told = await self.everyone("probe", "measure", self.progress.heard, counts=True)
            await self._by_probes({worker: told[worker]["probe"] for worker in self.shares})
        answers = await (self._planned() if self.planner else self._tried(given=given))
        context.expected = None
        value = await self._publish(answers)
        self._report(answers, time.perf_counter() - began)
        if self.planner is not None:
            histories = [answers[worker]["history"] for worker in self.shares]
            context.report["mheta"] = await asyncio.to_thread(self.planner.report, histories)
        return value

    async def _tried(self, *, given: bool) -> dict[str, Any]:
        """Return the workers' answers; rows move once, by what the first iterations take."""
        self.progress.tell_iterations()
        answers = await self.everyone("trial", "iterate", self.progress.heard)
        if any("trial" in told for told in answers.values()):
            await self._revise(answers, given=given)
            answers = await self.everyone(None, "iterate", self.progress.heard)
        return answers

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
        self.limits = self.room.most
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
        known = [self.learned.of(worker) for worker in workers]
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
            limits, self.limits = [most[worker] for worker in workers], most
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
        equal = dict(zip(workers, even(units, len(workers)).tolist(), strict=True))
        least = max(least, LEAST_INSTRUMENTED)
        if all(least <= rows <= room.most[worker] for worker, rows in equal.items()):
            self.planner = await asyncio.to_thread(self._new_planner, workers)
            self.instruments, self.shares = True, equal
            each = zip(models, equal.values(), strict=True)
            self.row_seconds = [float(model.time(rows)) / rows for model, rows in each]

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
        if self.planner is None or self.context.spec["rule"] != "mheta":
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
            self._go_on(before, None)

    async def _again(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on as MHETA says after what iterations have taken."""
        assert self.planner is not None
        news = [told[worker] for worker in self.shares]
        middle = max(one["middle"] for one in news)
        if self.planner.figures is None:
            self._go_on(self.shares, None)
            return
        try:
            await asyncio.to_thread(self.planner.update, [*self.shares.values()], news)
            await self._choose(news[0]["again"], middle)
        except PartitionError as error:
            self.planner.give_up(str(error))
            self._go_on(self.shares, None)

    async def _choose(self, done: int, middle: float | None) -> None:
        """Go on with the rows that the planner chooses.

        Raises
        ------
        PartitionError
            If it can make nothing of its figures.
        """
        assert self.planner is not None
        before = self.shares
        rows = [*before.values()]
        found = await asyncio.to_thread(self.planner.choose, rows, done)
        self.shares = dict(zip(before, found.rows, strict=True))
        # where rows stay they take what they took
        expected = found.seconds if found.moves or middle is None else middle
        known = math.isfinite(expected)
        self.context.expected = (self.spec.iterations - done) * expected if known else None
        self._go_on(before, expected if known else None)

    def _go_on(self, before: Mapping[str, int], expected: float | None) -> None:
        """Tell the workers with which rows they go on."""
        assert self.planner is not None
        moves = self.shares != before
        piece = self._piece(before, on_disk=self.instruments)
        # after the instrumented iteration rows are on disk, in blocks of another size
        again = moves or self.instruments
        self.instruments = False
        if again:
            self.planner.begin([*self.shares.values()])
        self.work = {worker: rows for worker, rows in self.shares.items() if rows}
        self.context.emit("shared out", rows=self._by_name(), every=1)
        for worker in self.workers:
            self.tell(
                worker,
                rows=_rows(self.shares) if again else None,
                moves=moves,
                piece=piece,
                expected=expected,
            )

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

    async def _revise(self, told: Mapping[str, Mapping[str, Any]], *, given: bool) -> None:
        """Tell the workers with which shares to go on, after what the first iterations took."""
        speeds = {
            worker: Speed(one["row_seconds"], one["exchange_seconds"], one["byte_seconds"])
            for worker, one in told.items()
        }
        spec, before = self.spec, self.shares
        left = spec.iterations - next(iter(told.values()))["trial"]
        if not given:
            self.shares = await asyncio.to_thread(
                revised,
                before,
                speeds,
                left,
                spec.row_nbytes,
                self.limits,
                spec.least,
            )
        most = min(left, self.context.tuning.stencil.most_every)
        worth = 0.0
        if self.shares == before and left:  # else the buffers are new in any case
            worth = moving_seconds(before, before, speeds, spec.row_nbytes) / left
        every = exchange_every(speeds, self.shares, spec.depth[0], most, worth)
        streams = self._streams(self.shares)
        if streams:
            every = 1
        piece = None
        if streams or self._streams(before):
            piece = max(1, self.context.tuning.stencil.band_nbytes // max(1, spec.row_nbytes))
        moves = self.shares != before or every > 1
        if self.shares != before:
            self.reason = "measured"
        spent = [(speeds[w].row_seconds or 0.0) * rows for w, rows in self.shares.items()]
        self.context.expected = left * max(spent)
        self.work = {worker: rows for worker, rows in self.shares.items() if rows}
        self.context.emit("shared out", rows=self._by_name(), every=every)
        for worker in self.workers:
            self.tell(worker, rows=_rows(self.shares) if moves else None, every=every, piece=piece)

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
                self.learned.keep(worker, taught(self.learned.of(worker), rows, spent))
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


def _rows(shares: Mapping[str, int]) -> list[tuple[str, int, int]]:
    return [(worker, *span) for worker, span in spans_of(shares).items()]
