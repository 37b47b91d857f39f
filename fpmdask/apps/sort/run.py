"""The sort's run on the scheduler: shares, splitters, exchange; again where a worker was lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any
from uuid import uuid4

import numpy as np
from distributed.utils import offload

from fpmdask.apps.sort.kernel import NAME
from fpmdask.apps.sort.plan import (
    SortSpec,
    candidates,
    check_fits,
    cuts,
    dealt,
    exchange,
    recipe,
    sample_count,
)
from fpmdask.apps.sort.share import sort_share
from fpmdask.coordinator.chunks import free_nbytes, publish, wait_for_chunks
from fpmdask.coordinator.context import CLOSING, KernelFailed, RunContext
from fpmdask.coordinator.identity import KernelId, canonical
from fpmdask.coordinator.rounds import measure
from fpmdask.coordinator.tickets import Order
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.models import ConstantModel, Model, PiecewiseLinearModel
from fpmdask.partition import geometric
from fpmdask.timing import TimingPolicy

# CPU-quota periods are 10 ms and more: shorter timings say little.
TIMING = TimingPolicy(min_repetitions=1, min_seconds=0.12, budget_seconds=0.2, warmup=1)
# Fewer keys than this per worker are not worth measuring anybody.
FEW = 1 << 17
# A step that takes a worker so many times as long as the others is not waited for; where nobody is
# done, no longer than keys take at the slowest.
OVERDUE = 10.0
SECONDS_PER_KEY = 1e-6
# A worker that does not say so soon that it is there hangs.
PING_SECONDS = 5.0
AGAIN_SECONDS = 0.2
# A sort that is disturbed so often is given up.
MOST_ATTEMPTS = 20
# Rounds of DFPA: times per key hardly depend on the number, so that little is left to find.
ROUNDS = 1
# What a sort took teaches about its workers where it took so long; half of it counts each time.
LEARNED = "sort.share"
LEAST_SECONDS = 0.05


class LostWorker(Exception):
    """A worker was lost in the middle: the others start over."""


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If the keys, twice, do not fit into the workers' memory.
    """
    spec = SortSpec.from_json(context.spec["sort"])
    bounds = {address: _room(context, spec, address) for address in context.candidates()}
    if sum(bounds.values()) < spec.units:
        raise PartitionError(
            f"{spec.units} keys of {spec.nbytes_per_key} bytes need "
            f"{2 * spec.units * spec.nbytes_per_key} bytes beside the input; the workers have room "
            f"for {sum(bounds.values()):.0f} keys; add workers or memory"
        )


async def run(context: RunContext) -> dict[str, Any]:
    """Sort; the value names the result's keys and their sizes."""
    spec = SortSpec.from_json(context.spec["sort"])
    began = time.perf_counter()
    await context.acquire({"name": NAME, "parameters": {"dtype": spec.dtype.str}})
    prepared = time.perf_counter()
    shares = await _shares(context, spec)
    measured = time.perf_counter()
    attempt = 0
    while True:
        sorting = Sorting(context, spec, attempt)
        try:
            value = await sorting.run(shares)
            break
        except LostWorker as lost:
            sorting.stop()
            context.emit("starting over", reason=str(lost))
            attempt += 1
            await asyncio.sleep(AGAIN_SECONDS)  # the scheduler may not know yet who is gone
            if not context.workers or attempt > MOST_ATTEMPTS:
                raise CoordinatorError(f"the sort was given up after this: {lost}") from None
            shares = await _shares(context, spec)
        except BaseException:
            sorting.stop()
            raise
    _learn(context, spec)
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": measured - prepared,
        "sort": time.perf_counter() - measured,
    }
    return value


def _room(context: RunContext, spec: SortSpec, address: str) -> float:
    """Return the keys that a worker can take: a run to be sorted, and a part of the result."""
    return free_nbytes(context, address) // (2 * spec.nbytes_per_key)


async def _shares(context: RunContext, spec: SortSpec) -> dict[str, int]:
    """Return keys per worker: by models, where there are none by DFPA."""
    workers = list(context.workers)
    bounds = {
        address: _room(context, spec, address) if address in context.scheduler.workers else 0.0
        for address in workers
    }
    if sum(bounds.values()) < spec.units:
        raise PartitionError(
            f"{spec.units} keys do not fit into the memory of the {len(workers)} workers that are "
            f"left, which have room for {sum(bounds.values()):.0f}; add workers or memory"
        )
    models, reason = _models(context, spec), "known"
    if models is None and spec.units >= FEW * len(workers):
        await _measure(context, spec, bounds)
        workers = list(context.workers)
        models, reason = _models(context, spec), "measured"
    if models is None:
        models, reason = [ConstantModel(1.0)] * len(workers), "few keys"
    limits = [bounds.get(address, 0.0) for address in workers]
    found = await offload(geometric, spec.units, models, limits)
    shares = {address: int(share) for address, share in zip(workers, found, strict=True)}
    seconds = {
        address: float(model.time(shares[address])) if shares[address] else 0.0
        for address, model in zip(workers, models, strict=True)
    }
    context.set_result(shares, seconds, None, reason, shares)
    return shares


def _models(context: RunContext, spec: SortSpec) -> list[Model] | None:
    """Return the workers' models: by earlier sorts, or else by their timed kernel; None without."""
    learned = [_learned(context, spec, address) for address in context.workers]
    timed = [context.model_of(address) for address in context.workers]
    known = [model for model in (timed if None in learned else learned) if model is not None]
    return [*known] if len(known) == len(context.workers) else None


async def _measure(context: RunContext, spec: SortSpec, bounds: Mapping[str, float]) -> None:
    """Time the kernel on all workers at once, each with an even share."""
    measuring = context.spec["measuring"]
    if measuring["policy"] is None:
        measuring = {**measuring, "policy": TIMING.to_json()}
    measuring = {**measuring, "max_rounds": min(ROUNDS, measuring["max_rounds"])}
    limits = dict(bounds)
    await measure(
        context, spec.units, limit_of=lambda address: limits.get(address, 0.0), **measuring
    )


def _learned(context: RunContext, spec: SortSpec, address: str) -> PiecewiseLinearModel | None:
    """Return what earlier sorts say of a worker since its start."""
    found = context.coordinator.library.find(
        _kernel(context, spec, address), context.workers[address]
    )
    return found[0] if found is not None and found[1] else None


def _learn(context: RunContext, spec: SortSpec) -> None:
    """Keep what the sort took as models of its workers: seconds of its own steps, by keys."""
    addresses = {context.name(address): address for address in context.workers}
    for share in context.report["shares"]:
        address = addresses.get(share["worker"])
        units = (share["keys_sorted"] + share["units"]) / 2
        # not the exchange: in it workers wait for each other
        seconds = share["phases"].get("sort", 0.0) + share["phases"].get("merge", 0.0)
        if address is None or not units or seconds < LEAST_SECONDS:
            continue
        if (before := _learned(context, spec, address)) is not None:
            seconds = (seconds + float(before.time(units))) / 2
        model = PiecewiseLinearModel.from_points([units], [seconds])
        kernel = _kernel(context, spec, address)
        context.coordinator.library.store(kernel, context.workers[address], model)


def _kernel(context: RunContext, spec: SortSpec, address: str) -> KernelId:
    implementation = context.kernel_ids[address].implementation
    parameters = {"dtype": spec.dtype.str, "index": spec.index}
    return KernelId(LEARNED, implementation, canonical(parameters))


class Sorting:
    """One attempt with the workers that are there; `LostWorker` where they do not stay."""

    def __init__(self, context: RunContext, spec: SortSpec, attempt: int) -> None:
        self.context, self.spec, self.attempt = context, spec, attempt
        self.workers: list[str] = []

    async def run(self, shares: Mapping[str, int]) -> dict[str, Any]:
        """Go through the steps; return what the client needs to know of the result."""
        context, spec = self.context, self.spec
        places = await wait_for_chunks(context.scheduler, spec.keys, context.spec["recovery"])
        shares = {worker: n for worker, n in shares.items() if worker in context.workers}
        if sum(shares.values()) < spec.units:
            raise LostWorker("a worker left before the sort began")
        busy = {worker: share for worker, share in shares.items() if share}
        pieces = await offload(dealt, spec, [places[key] for key in spec.keys], busy)
        for worker, own in pieces.items():
            own.sort(key=lambda piece: (piece.owner != worker, piece.chunk, piece.low))
        sizes = {worker: sum(piece.size for piece in own) for worker, own in pieces.items()}
        there = [worker for worker in busy if worker in context.scheduler.workers]
        if len(there) < len(busy):
            raise LostWorker("a worker left before the sort began")
        check_fits(
            {context.name(worker): sizes[worker] + busy[worker] for worker in busy},
            {context.name(worker): 2 * _room(context, spec, worker) for worker in busy},
        )
        self.workers = list(busy)
        parts = _parts(context, busy)
        self._dispatch(pieces, sample_count(spec.units, min(size for _, size in parts), len(busy)))

        told = await self._everyone("samples", "sort")
        runs = [(w, n) for w in self.workers for n in range(len(told[w]["sizes"]))]
        told_sizes = {worker: list(told[worker]["sizes"]) for worker in self.workers}
        lengths = [told_sizes[worker][n] for worker, n in runs]
        samples = [np.frombuffer(told[w]["samples"][n], spec.dtype) for w, n in runs]
        ranks = [*accumulate(size for _, size in parts)][:-1]
        tried = await offload(candidates, samples, lengths, ranks)
        packed = tried.tobytes()
        for worker in self.workers:
            self._tell(worker, count=packed)

        told = await self._everyone("below", "count")
        below, through = (
            [np.frombuffer(told[worker][side][n], np.int64) for worker, n in runs]
            for side in ("below", "through")
        )
        at = await offload(cuts, below, through, ranks)
        edges = await offload(lambda: np.column_stack([np.zeros(len(runs), np.int64), at, lengths]))
        wanted = await offload(exchange, edges, runs, parts)
        for worker in self.workers:
            self._tell(worker, exchange=wanted[worker])

        answers = await self._everyone(None, "exchange")
        found = (edges[:, 1:] - edges[:, :-1]).sum(0).tolist()
        self._report(parts, found, answers)
        value = await self._publish(parts, found)
        if spec.index:
            value["plan"] = await offload(recipe, self.workers, pieces, told_sizes, wanted)
        return value

    def stop(self) -> None:
        """Tell the workers that this attempt is over."""
        for worker in self.workers:
            self.context.tell(worker, f"sort {self.attempt}", {"stop": True})

    def _dispatch(self, pieces: Mapping[str, Sequence[Any]], samples: int) -> None:
        context = self.context
        orders = [
            Order(
                worker,
                sort_share,
                {
                    "sort": self.spec.to_json(),
                    "attempt": self.attempt,
                    "samples": samples,
                    "channels": dict(context.channels),
                    "pieces": [(p.chunk, p.low, p.high, p.owner) for p in pieces[worker]],
                },
                context.coordinator.slots,
            )
            for worker in self.workers
        ]
        context.dispatch(orders, [(worker, f"sort {self.attempt}") for worker in self.workers])

    def _tell(self, worker: str, **note: Any) -> None:
        self.context.tell(worker, f"sort {self.attempt}", note)

    async def _everyone(self, what: str | None, step: str) -> dict[str, Any]:
        """Return what all workers tell under ``what``, their answers where that is None."""
        self.context.emit("step", step=step, attempt=self.attempt)
        heard: dict[str, Any] = {}
        began = last = time.monotonic()
        while len(heard) < len(self.workers):
            patience = max(
                self.context.spec["measuring"]["hang"],
                OVERDUE * (last - began) if heard else SECONDS_PER_KEY * self.spec.units,
            )
            try:
                due = last + patience - time.monotonic()
                event = await asyncio.wait_for(self.context.next_event(), due)
            except TimeoutError:
                await self._give_up(set(self.workers) - heard.keys(), heard, patience)
                last = time.monotonic()
                continue
            match event:
                case ("left", worker) if worker in self.workers:
                    raise LostWorker(f"{self.context.name(worker)} left")
                case ("news", worker, news) if news.get("attempt") == self.attempt:
                    if what in news:
                        heard[worker], last = news, time.monotonic()
                case ("answer", (worker, name), answer) if name == f"sort {self.attempt}":
                    self._check(worker, answer)
                    heard[worker], last = answer, time.monotonic()
        return heard

    async def _give_up(self, silent: set[str], heard: Mapping[str, Any], patience: float) -> None:
        """Leave out those that hang: who is not there, otherwise who is late though others are not.

        Raises
        ------
        LostWorker
            If anybody hangs. Where all are there and nobody is done, it may just take long.
        """

        async def there(worker: str) -> bool:
            try:
                asking = self.context.scheduler.rpc(worker).identity()
                await asyncio.wait_for(asking, PING_SECONDS)
            except (OSError, TimeoutError):
                return False
            return True

        workers = sorted(silent)
        answered = await asyncio.gather(*map(there, workers))
        gone = [worker for worker, ok in zip(workers, answered, strict=True) if not ok]
        reason = f"nothing heard for {patience:.0f} s"
        for worker in gone or (workers if heard else ()):
            if worker in self.context.workers:
                self.context.give_up_on(worker, reason)
            self.context.shun(worker)
        if gone or heard:
            raise LostWorker(reason)

    def _check(self, worker: str, answer: Mapping[str, Any]) -> None:
        context = self.context
        if "unusable" in answer:
            raise PartitionError(answer["unusable"])
        if "missing" in answer:
            raise LostWorker(f"{context.name(worker)} did not get all it needs")
        if answer.get("left") or "cancelled" in answer:
            if worker in context.workers:
                context.leave_out(worker, CLOSING)
            raise LostWorker(f"{context.name(worker)} {CLOSING}")
        if "error" in answer:
            error = answer["error"]
            reason = f"{error['type']}: {error['message']}"
            if worker in context.workers:
                context.leave_out(worker, reason)
            if not context.workers:
                raise KernelFailed(f"no worker could sort its share ({reason})", error)
            raise LostWorker(f"{context.name(worker)} failed: {reason}")

    def _report(
        self,
        parts: Sequence[tuple[str, int]],
        found: Sequence[int],
        answers: Mapping[str, Any],
    ) -> None:
        context = self.context
        units = dict.fromkeys(self.workers, 0)
        for (worker, _), size in zip(parts, found, strict=True):
            units[worker] += size
        context.report["shares"] = [
            {"worker": context.name(worker), "units": units[worker], **answers[worker]}
            for worker in self.workers
        ]

    async def _publish(
        self, parts: Sequence[tuple[str, int]], found: Sequence[int]
    ) -> dict[str, Any]:
        """Make the parts chunks of one dask array."""
        self.context.emit("step", step="publish", attempt=self.attempt)
        name = f"fpmdask-sort-{uuid4().hex}"
        order = range(len(parts))
        at = dict(zip(reversed(order) if self.spec.descending else order, order, strict=True))
        keys: dict[str, list[tuple[Any, int, Any]]] = {}
        for part, (worker, _) in enumerate(parts):
            keys.setdefault(worker, []).append(((name, at[part]), part, ()))
        if not await publish(self.context, keys):
            raise LostWorker("a worker left while the result was published")
        sizes = [found[part] for part in sorted(order, key=at.__getitem__)]
        return {"name": name, "sizes": sizes}


def _parts(context: RunContext, shares: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (worker, keys) of the result's parts in order: one per thread of a worker."""
    parts = []
    for worker, share in shares.items():
        threads = min(max(1, context.scheduler.workers[worker].nthreads), max(1, share >> 14))
        for n in range(threads):
            parts.append((worker, share * (n + 1) // threads - share * n // threads))
    return parts
