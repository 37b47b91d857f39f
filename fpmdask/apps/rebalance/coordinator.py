"""A run on the scheduler: shares, the plan, and the rows that move."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from itertools import chain, count, pairwise
from typing import Any
from uuid import uuid4

from fpmdask.apps.rebalance.plan import blocks_of, planned, units_of
from fpmdask.apps.rebalance.spec import RebalanceSpec
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.models import ConstantModel, Model
from fpmdask.partition import geometric, imbalance
from fpmdask.runtime.coordinator.chunks import (
    check_reachable,
    free_nbytes,
    free_nbytes_of,
    unpublished,
    wait_for_chunks,
    without_fpmdask,
)
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.rounds import measure
from fpmdask.runtime.coordinator.team import Attempt, LostWorker, attempted
from fpmdask.runtime.report import TOO_SHORT
from fpmdask.runtime.rows import Span, held
from fpmdask.timing.measure import SHORTEST_SECONDS

# Steps on workers.
KNOW = "fpmdask.apps.rebalance.worker:know"
PLACE = "fpmdask.apps.rebalance.worker:place"
# Sums of weights become so many whole units.
UNITS = 1e9
# Of a worker's free memory, what rows to be timed may take: the kernel needs some, too.
TIMED = 0.5
# A first, short round has this part of an even share: an even one lasts as long as the slowest
# worker needs, several times as long as one by the speeds that the short one finds.
SCOUT = 16
# More chunks than this on one worker, some of them new, are joined where there is memory.
FEW = 4
# A worker is told the units of about so many of its ranges of rows.
UNITS_TOLD = 1000


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If the inputs that are not in memory yet do not fit into the workers' memory.
    """
    workers = context.candidates()
    for what in ("distribution", "seconds"):
        _check_names(context, context.spec[what], workers, what)
    coming = float(context.spec["coming"])
    free = sum(free_nbytes(context, address) for address in workers)
    if coming > free:
        raise PartitionError(
            f"the collections need {coming:.0f} bytes that are not in memory yet; the workers have "
            f"room for {free:.0f} bytes; add workers or memory"
        )


def _check_names(
    context: RunContext, given: Mapping[str, float] | None, workers: Sequence[str], what: str
) -> None:
    names = {context.name(worker) for worker in workers}
    if unknown := [name for name, value in (given or {}).items() if name not in names and value]:
        why = [f"{name} ({context.left_out.get(name, 'not connected')})" for name in unknown]
        raise CoordinatorError(
            f"{what} names {', '.join(why)}; workers that take part are {', '.join(sorted(names))}"
        )


async def run(context: RunContext) -> dict[str, Any]:
    """Place the rows anew; the value names the results' keys and the rows of each chunk."""
    began = time.perf_counter()
    spec = RebalanceSpec.from_json(context.spec["rebalance"])
    await context.acquire(context.spec["kernel"])
    phases = {"prepare": time.perf_counter() - began, "measure": 0.0, "move": 0.0}
    context.report["phases"] = phases
    speeds: dict[str, float] = {}

    async def attempt(number: int) -> dict[str, Any]:
        with Placement(context, spec, number, speeds) as placement:
            return await placement.run()

    return await attempted(context, count(), attempt)


class Placement(Attempt):
    """One attempt to place the rows.

    Parameters
    ----------
    speeds
        Worker → units per second, where the caller has given seconds: known from the first attempt.
    """

    def __init__(
        self, context: RunContext, spec: RebalanceSpec, number: int, speeds: dict[str, float]
    ) -> None:
        super().__init__(context, number)
        self.spec, self.speeds, self.phases = spec, speeds, context.report["phases"]
        self._received: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    async def run(self) -> dict[str, Any]:
        """Find the shares, move the rows, publish."""
        context, spec = self.context, self.spec
        began = time.perf_counter()
        keys = [key for one in spec.inputs for key in one.keys]
        self._places = await wait_for_chunks(context, keys)
        await check_reachable(context, self._places)
        self._bare = without_fpmdask(context.scheduler, self._places)
        self.phases["prepare"] += time.perf_counter() - began
        began = time.perf_counter()
        members = list(context.workers)
        if not members:
            raise LostWorker("no worker is left")
        sizes = context.scheduler.tasks
        self._nbytes = {key: int(sizes[key].nbytes) if key in sizes else 0 for key in keys}
        await asyncio.to_thread(self._look_up, members)
        if not spec.cuts.count:
            zero = dict.fromkeys(members, 0)
            context.set_result(zero, dict.fromkeys(zero), None, "as held", zero)
            return {"name": "", "chunks": []}
        self._free = await free_nbytes_of(context, members)
        shares, seconds, reason = await self._shares(members)
        self.phases["measure"] += time.perf_counter() - began
        began = time.perf_counter()
        if gone := set(members) - context.workers.keys():
            raise LostWorker(", ".join(map(context.why_left, sorted(gone))))
        plan = await asyncio.to_thread(planned, spec.cuts, self._held, shares)
        blocks = await asyncio.to_thread(self._blocks, plan)
        value = await self._move(blocks)
        self.phases["move"] += time.perf_counter() - began
        self._report(plan, blocks, seconds, reason)
        return value

    def _look_up(self, members: Sequence[str]) -> None:
        """Find out what lies where: that is where the collection is that has most bytes."""
        lead = max(self.spec.inputs, key=lambda one: sum(self._nbytes[key] for key in one.keys))
        self._edges = lead.edges
        self._owners = lead.owners(self._edges, self._places, members)
        self._held = held(self._edges, self._owners)

    # ---- shares

    async def _shares(
        self, members: Sequence[str]
    ) -> tuple[dict[str, float], dict[str, float | None], str]:
        """Return the units of each worker, the seconds that they should take, and why."""
        context, cuts = self.context, self.spec.cuts
        here = {worker: units_of(cuts, self._held.get(worker, ())) for worker in members}
        given = context.spec["distribution"]
        if given is not None:
            _check_names(context, given, members, "the distribution")
            shares = {worker: float(given.get(context.name(worker), 0)) for worker in members}
            every = sum(shares.values())
            shares = {worker: units * cuts.total / every for worker, units in shares.items()}
            return shares, dict.fromkeys(members), "given"
        # whole units from here on, as partitioners have them
        scale = 1.0 if cuts.anywhere else UNITS / cuts.total
        units = round(cuts.total * scale)
        limits = self._limits({worker: scale * n for worker, n in here.items()}, units)
        models: Mapping[str, Model]
        if context.spec["seconds"] is not None:
            models = self._told(members, here, scale)
            limits = {worker: limits[worker] for worker in models}
            found = await asyncio.to_thread(
                geometric, units, [*models.values()], [*limits.values()]
            )
            whole, reason = dict(zip(models, map(int, found), strict=True)), "measured"
        else:
            whole, models, reason = await self._measured(members, units, scale, limits)
        as_held = {worker: round(scale * here.get(worker, 0.0)) for worker in models}
        if None not in self._held and set(models) >= {w for w, n in here.items() if n}:
            balanced = all(as_held.values()) and (
                imbalance([float(m.time(as_held[w])) for w, m in models.items()])
                <= context.spec["measuring"]["epsilon"]
            )
            if balanced or reason == TOO_SHORT:
                whole, reason = as_held, reason if reason == TOO_SHORT else "as held"
        seconds: dict[str, float | None] = {
            worker: float(models[worker].time(n)) if n and worker in models else 0.0
            for worker, n in whole.items()
        }
        if reason == "as held" or reason == TOO_SHORT:
            return {worker: here.get(worker, 0.0) for worker in whole}, seconds, reason
        return {worker: n / scale for worker, n in whole.items()}, seconds, reason

    def _limits(self, here: Mapping[str, float], units: int) -> dict[str, float]:
        """Return the most units of each worker: what it holds, and what else has room.

        Raises
        ------
        PartitionError
            If that is not all of them.
        """
        every = sum(self._nbytes.values())
        # what is no array of numbers is in memory twice when it comes
        if any(one.shape is None for one in self.spec.inputs):
            every *= 2
        limits = {
            worker: math.floor(n + self._free[worker] / max(1, every) * units)
            if math.isfinite(self._free[worker])
            else math.inf
            for worker, n in here.items()
        }
        if sum(limits.values()) < units:
            free = sum(self._free.values())
            raise PartitionError(
                f"rows of {sum(self._nbytes.values())} bytes do not fit on the {len(here)} workers "
                f"that take part, which have room for {free:.0f} bytes beside what they hold; add "
                "workers or memory, or let go of what they hold"
            )
        return limits

    def _told(
        self, members: Sequence[str], here: Mapping[str, float], scale: float
    ) -> dict[str, Model]:
        """Return the speeds that follow from the caller's seconds."""
        given = self.context.spec["seconds"]
        names = {worker: self.context.name(worker) for worker in members}
        if not self.speeds:
            _check_names(self.context, given, members, "seconds")
            lacking = [name for worker, name in names.items() if here[worker] and name not in given]
            if lacking:
                raise PartitionError(
                    f"seconds lack {', '.join(lacking)}, which hold rows; give what each took"
                )
            self.speeds.update(
                (name, here[worker] * scale / given[name])
                for worker, name in names.items()
                if here[worker] and name in given
            )
        # of one that holds nothing nothing is known: it is taken for an average one
        mean = sum(self.speeds.values()) / len(self.speeds) if self.speeds else 1.0
        return {w: ConstantModel(self.speeds.get(name, mean)) for w, name in names.items()}

    async def _measured(
        self, members: Sequence[str], units: int, scale: float, limits: Mapping[str, float]
    ) -> tuple[dict[str, int], Mapping[str, Model], str]:
        """Return the units of each worker by DFPA with the caller's kernel."""
        context = self.context
        self._check_raised()
        orders = {worker: self._rows_to_time(worker, members, scale) for worker in members}
        self.dispatch(KNOW, orders)
        for worker, answer in (await self.everyone(None, "know")).items():
            self._received[worker] = answer["nbytes_received"]
        measuring = context.spec["measuring"]
        machine = await measure(
            context,
            units,
            limit_of=lambda worker: limits.get(worker, 0.0),
            scout=max(1, units // (SCOUT * len(members))),
            **measuring,
        )
        self._check_raised()
        result = machine.result
        assert result is not None  # else it has raised
        models = {w: model for w, model in machine.models.items() if w in result.proposal}
        reason = result.reason
        if max(result.seconds.values()) < SHORTEST_SECONDS:
            reason = TOO_SHORT
        return dict(result.proposal), models, reason

    def _check_raised(self) -> None:
        """Raise what the caller's kernel has raised on any worker."""
        if self.context.errors:
            raise self.context.kernel_failure("the kernel failed")

    def _rows_to_time(self, worker: str, members: Sequence[str], scale: float) -> dict[str, Any]:
        """Return the order by which a worker's kernel knows its rows, or as many of others."""
        cuts, every = self.spec.cuts, sum(self._nbytes.values())
        most = TIMED * self._free[worker] * cuts.count / max(1, every)
        spans = self._held.get(worker)
        if not spans:
            few = max(1, min(cuts.count // len(members), int(min(most, cuts.count))))
            spans = [(0, few)]
        rows, units = [0], [0.0]
        for start, stop in spans:
            low, high = cuts.place(start), cuts.place(stop)
            places = sorted({*range(low, high, max(1, (high - low) // UNITS_TOLD)), high})
            for one, two in pairwise(places):
                rows.append(rows[-1] + cuts.row(two) - cuts.row(one))
                units.append(units[-1] + scale * (cuts.units(two) - cuts.units(one)))
        inputs = []
        for one in self.spec.inputs:
            wanted = [one.wanted(span, self._places) for span in spans]
            pieces = [*chain.from_iterable(some["pieces"] for some in wanted)]
            inputs.append({**wanted[0], "pieces": pieces})
        return {"inputs": inputs, "rows": rows, "units": units, "most": most, "bare": self._bare}

    # ---- rows

    def _blocks(self, plan: Mapping[str, Sequence[Span]]) -> dict[str, list[Span]]:
        """Return the rows of each worker's chunks: of few, where it has room to join them."""
        here: dict[str | None, set[int]] = {}
        for n, owner in enumerate(self._owners):
            here.setdefault(owner, set()).add(n)
        found = {}
        for worker, spans in plan.items():
            own = blocks_of(self.spec.cuts, self._edges, spans, here.get(worker, set()))
            join = len(own) > FEW and [*spans] != self._held.get(worker, [])
            if join and self._needed(worker, spans) <= self._free[worker]:
                own = [*spans]
            found[worker] = own
        return found

    def _needed(self, worker: str, blocks: Sequence[Span], *, views: bool = False) -> float:
        """Return the bytes that making some chunks takes on a worker.

        With ``views`` what is left of a chunk that is there is not copied; all of the chunk stays
        in memory for it.
        """
        needed = 0.0
        for one in self.spec.inputs:
            for span in blocks:
                pieces = one.pieces(span)
                for chunk, start, stop in pieces:
                    key, rows = one.keys[chunk], one.lengths[chunk]
                    there = worker in self._places[key]
                    if len(pieces) == 1 and there and (views or stop - start == rows):
                        continue  # as it is
                    nbytes = self._nbytes[key] * (stop - start) / max(1, rows)
                    # what is no array of numbers is unpacked beside what came
                    needed += nbytes * (2 if one.shape is None and not there else 1)
        return needed

    async def _move(self, blocks: Mapping[str, Sequence[Span]]) -> dict[str, Any]:
        """Have each worker make its chunks, and publish them."""
        context = self.context
        order = sorted((span, worker) for worker, own in blocks.items() for span in own)
        name = f"fpmdask-rebalance-{uuid4().hex}"
        orders, keys = await asyncio.to_thread(self._orders, name, blocks, order)
        self.dispatch(PLACE, {worker: one for worker, one in orders.items() if _has_work(one)})
        for worker, answer in (await self.everyone(None, "move")).items():
            self._seconds[worker] = answer["seconds"]
            self._received[worker] = self._received.get(worker, 0) + answer["nbytes_received"]
        if failed := await unpublished(context, keys):
            for worker, reason in failed.items():
                if worker in context.workers:
                    context.leave_out(worker, reason)
            raise LostWorker(", ".join(map(context.why_left, failed)))
        return {"name": name, "chunks": [span for span, _ in order]}

    def _orders(
        self,
        name: str,
        blocks: Mapping[str, Sequence[Span]],
        order: Sequence[tuple[Span, str]],
    ) -> tuple[dict[str, dict[str, Any]], dict[str, list[Any]]]:
        """Return what each worker is to do, and the keys of its chunks.

        Raises
        ------
        PartitionError
            If a worker has no memory for it.
        """
        context, spec = self.context, self.spec
        orders: dict[str, dict[str, Any]] = {
            worker: {"chunks": [], "parcels": [], "bare": self._bare} for worker in blocks
        }
        packed = dict.fromkeys(orders, 0.0)
        keys: dict[str, list[Any]] = {}
        for at, (span, worker) in enumerate(order):
            for n, one in enumerate(spec.inputs):
                number = at * len(spec.inputs) + n
                given = one.wanted(span, self._places)
                if one.shape is None:
                    given["parcels"] = self._parcels(worker, number, given, orders, packed)
                orders[worker]["chunks"].append((number, given))
                zeros = [0] * (context.spec["dims"][n] - 1)
                zeros.insert(one.axis or 0, at)
                keys.setdefault(worker, []).append(((f"{name}-{n}", *zeros), number, ()))
        for worker, own in blocks.items():
            needed = self._needed(worker, own) + packed[worker]
            if orders[worker].setdefault("views", needed > self._free[worker]):
                needed = self._needed(worker, own, views=True) + packed[worker]
            if needed > self._free[worker]:
                raise PartitionError(
                    f"worker {context.name(worker)} needs {needed:.0f} bytes for its share beside "
                    f"what it holds, and has room for {self._free[worker]:.0f}; give it less, or "
                    "add memory"
                )
        return orders, keys

    def _parcels(
        self,
        worker: str,
        number: int,
        given: Mapping[str, Any],
        orders: Mapping[str, dict[str, Any]],
        packed: dict[str, float],
    ) -> dict[int, tuple[Any, str]]:
        """Have holders cut the pieces that a worker lacks; return these: (key, address)."""
        found: dict[int, tuple[Any, str]] = {}
        for n, (key, start, stop, rows, holders) in enumerate(given["pieces"]):
            able = [holder for holder in holders if holder in orders]
            if worker in holders or not able or (start, stop) == (0, rows):
                continue
            parcel = ("rows", self.number, number, n)
            orders[able[0]]["parcels"].append((parcel, key, given["axis"], start, stop))
            packed[able[0]] += self._nbytes[key] * (stop - start) / max(1, rows)
            found[n] = parcel, able[0]
        return found

    def _report(
        self,
        plan: Mapping[str, Sequence[Span]],
        blocks: Mapping[str, Sequence[Span]],
        seconds: Mapping[str, float | None],
        reason: str,
    ) -> None:
        context = self.context
        rows = {worker: sum(stop - start for start, stop in own) for worker, own in plan.items()}
        context.report["shares"] = [
            {
                "worker": context.name(worker),
                "units": count,
                "seconds": self._seconds.get(worker, 0.0),
                "weight": units_of(self.spec.cuts, plan[worker]),
                "chunks": len(blocks[worker]),
                "nbytes_received": self._received.get(worker, 0),
            }
            for worker, count in rows.items()
        ]
        spent = [taken for worker, n in rows.items() if n and (taken := seconds[worker])]
        balance = None
        if spent:
            balance = imbalance(spent)
            context.report["predicted_seconds"] = max(spent)
        context.set_result(rows, seconds, balance, reason, rows)


def _has_work(order: Mapping[str, Any]) -> bool:
    return bool(order["chunks"] or order["parcels"])
