"""A run on the scheduler: who has which rows, first as known or evenly, then by what they took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from uuid import uuid4

from fpmdask.apps.stencil.plan import (
    Speed,
    exchange_every,
    moving_seconds,
    revised,
    shared,
    spans_of,
)
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel
from fpmdask.runtime.coordinator.checks import check_names, check_room
from fpmdask.runtime.coordinator.chunks import (
    free_nbytes_of,
    publish,
    wait_for_chunks,
    without_fpmdask,
)
from fpmdask.runtime.coordinator.context import KernelFailed, RunContext
from fpmdask.runtime.coordinator.speeds import Learned, taught
from fpmdask.runtime.coordinator.team import Attempt, LostWorker, attempted

ITERATE = "fpmdask.apps.stencil.worker:iterate"
# Fewer iterations are over before other shares could pay.
LEAST_TRIED = 3


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If the inputs that are not in memory yet, the buffers and the result do not fit into the
        workers' memory.
    """
    check_names(context, context.spec["distribution"], context.candidates(), "the distribution")
    needed = float(context.spec["needed"])
    check_room(context, needed, "the inputs, two buffers and the result")


async def run(context: RunContext) -> dict[str, Any]:
    """Iterate; the value names the result's keys, the rows of its chunks, and the iterations."""
    spec = StencilSpec.from_json(context.spec["stencil"])
    began = time.perf_counter()
    await context.acquire(context.spec["update"])
    context.report["phases"] = {"prepare": time.perf_counter() - began}

    async def attempt(number: int) -> dict[str, Any]:
        with Iterations(context, spec, number) as iterations:
            return await iterations.run()

    return await attempted(context, count(), attempt)


class Iterations(Attempt):
    """All iterations with the workers that are there now."""

    def __init__(self, context: RunContext, spec: StencilSpec, number: int) -> None:
        super().__init__(context, number)
        self.spec, self.shares = spec, dict[str, int]()
        self.limits: dict[str, float] = {}
        self.learned = Learned(context, "stencil", {"row_nbytes": spec.row_nbytes})
        self.reason = "even"

    async def run(self) -> dict[str, Any]:
        """Iterate and publish."""
        context, spec = self.context, self.spec
        began = time.perf_counter()
        inputs = (*spec.fields, *spec.args)
        places = await wait_for_chunks(context, [key for one in inputs for key in one.keys])
        await self._share_out(places)
        given = context.spec["distribution"] is not None
        tries = len(self.shares) > 1 and spec.iterations >= LEAST_TRIED
        order = {
            "spec": spec.to_json(),
            "fields": [[places[key] for key in one.keys] for one in spec.fields],
            "args": [[places[key] for key in one.keys] for one in spec.args],
            "bare": without_fpmdask(context.scheduler, places),
            "rows": _rows(self.shares),
            "trial": tries,
            "probe": tries and self.reason == "even",
        }
        self.dispatch(ITERATE, dict.fromkeys(self.shares, order))
        self.work = {worker: rows for worker, rows in self.shares.items() if rows}
        if order["probe"]:
            told = await self.everyone("probe", "measure", self._heard)
            await self._by_probes({worker: told[worker]["probe"] for worker in self.shares})
        context.progress("iterate", 0, spec.iterations, "iterations")
        answers = await self.everyone("trial", "iterate", self._heard)
        if any("trial" in told for told in answers.values()):
            await self._revise(answers, given=given)
            answers = await self.everyone(None, "iterate", self._heard)
        context.expected = None
        value = await self._publish(answers)
        self._report(answers, time.perf_counter() - began)
        return value

    async def _share_out(self, places: Mapping[Any, Sequence[str]]) -> None:
        """Decide who begins with which rows."""
        context, spec = self.context, self.spec
        workers = self._ordered(places)
        units = spec.shape[0]
        free = await free_nbytes_of(context, workers)
        needed = spec.row_nbytes_needed
        self.limits = {w: min(units, free[w] // max(1, needed)) for w in workers}
        if (given := context.spec["distribution"]) is not None:
            self.shares, self.reason = self._given(given, workers), "given"
            return
        known = [self.learned.of(worker) for worker in workers]
        models = [model for model in known if model is not None]
        if len(models) == len(workers):
            self.reason = "known"
        able = self.reason == "known"
        found = await asyncio.to_thread(
            shared,
            units,
            models if able else [ConstantModel(1.0)] * len(workers),
            [self.limits[worker] for worker in workers],
            spec.least,
        )
        self.shares = dict(zip(workers, found, strict=True))

    def _ordered(self, places: Mapping[Any, Sequence[str]]) -> list[str]:
        """Return the workers in the order of the rows that they hold now, so that few move."""
        held: dict[str, list[int]] = {}
        first, row = self.spec.fields[0], 0
        for key, rows in zip(first.keys, first.lengths, strict=True):
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
        models = [ConstantModel(1 / (one or known[len(known) // 2])) for one in seconds.values()]
        limits, least = [self.limits[worker] for worker in seconds], self.spec.least
        found = await asyncio.to_thread(shared, self.spec.shape[0], models, limits, least)
        self.shares, self.reason = dict(zip(seconds, found, strict=True)), "measured"
        self.work = {worker: rows for worker, rows in self.shares.items() if rows}
        for worker in self.workers:
            self.tell(worker, rows=_rows(self.shares))

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
        moves = self.shares != before or every > 1
        if self.shares != before:
            self.reason = "measured"
        spent = [(speeds[w].row_seconds or 0.0) * rows for w, rows in self.shares.items()]
        self.context.expected = left * max(spent)
        self.work = {worker: rows for worker, rows in self.shares.items() if rows}
        self.context.emit("shared out", rows=self._by_name(), every=every)
        for worker in self.workers:
            self.tell(worker, rows=_rows(self.shares) if moves else None, every=every)

    def _by_name(self) -> dict[str, int]:
        return {self.context.name(worker): rows for worker, rows in self.shares.items()}

    def _heard(self, worker: str, news: Mapping[str, Any]) -> None:
        if "iterations" in news:
            done, total = news["iterations"], self.spec.iterations
            facts = {"phase": "iterate", "done": done, "total": total, "unit": "iterations"}
            self.context.emit("iterated", **facts)

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
        names = [f"fpmdask-stencil-{uuid4().hex}" for _ in spec.fields]
        having = [worker for worker, rows in self.shares.items() if rows]
        after = (0,) * (len(spec.shape) - 1)
        keys = {
            worker: [((name, n, *after), field, ()) for field, name in enumerate(names)]
            for n, worker in enumerate(having)
        }
        if not await publish(context, keys):
            raise LostWorker("a worker left while the result was published")
        iterations = max(answer["iterations"] for answer in answers.values())
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
                    answer["total"] - sum(answer[k] for k in ("computing", "loading", "moving")),
                ),
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
