"""One attempt to place the rows: the shares, the plan, and what moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from fpmdask.apps.rebalance.coordinator.chunk_locations import look_up
from fpmdask.apps.rebalance.coordinator.shares import Shares
from fpmdask.apps.rebalance.plan import blocks_of, planned, units_of
from fpmdask.apps.rebalance.spec import PLACE, RebalanceSpec
from fpmdask.errors import PartitionError
from fpmdask.partition import imbalance
from fpmdask.runtime.coordinator.chunks import unpublished
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.team import Attempt, LostWorker
from fpmdask.runtime.rows import Span


class Placement(Attempt):
    """One attempt to place the rows.

    Parameters
    ----------
    speeds
        As of `Shares`.
    """

    def __init__(
        self, context: RunContext, spec: RebalanceSpec, number: int, speeds: dict[str, float]
    ) -> None:
        super().__init__(context, number)
        self.spec, self.speeds = spec, speeds
        self._received: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._clock = time.perf_counter()

    async def run(self) -> dict[str, Any]:
        """Find the shares, move the rows, publish."""
        context, spec = self.context, self.spec
        self.locations = await look_up(context, spec)
        self._ended("prepare")
        if not spec.cuts.count:
            zero = dict.fromkeys(self.locations.members, 0)
            context.set_result(zero, dict.fromkeys(zero), None, "as held", zero)
            return {"name": "", "chunks": []}
        finding = Shares(self, spec, self.locations, self.speeds)
        shares, seconds, reason = await finding.found()
        self._received = finding.received
        self._ended("measure")
        if gone := set(self.locations.members) - context.workers.keys():
            raise LostWorker(", ".join(map(context.members.why_left, sorted(gone))))
        plan = await asyncio.to_thread(planned, spec.cuts, self.locations.spans, shares)
        blocks = await asyncio.to_thread(self._blocks, plan)
        value = await self._move(blocks)
        self._ended("move")
        self._report(plan, blocks, seconds, reason)
        return value

    def _ended(self, phase: str) -> None:
        """Add the time since the phase before to one."""
        before, self._clock = self._clock, time.perf_counter()
        self.context.report["phases"][phase] += self._clock - before

    def _blocks(self, plan: Mapping[str, Sequence[Span]]) -> dict[str, list[Span]]:
        """Return the rows of each worker's chunks: of few, where it has room to join them."""
        here: dict[str | None, set[int]] = {}
        for n, owner in enumerate(self.locations.owners):
            here.setdefault(owner, set()).add(n)
        found, few = {}, self.context.tuning.rebalance.few_chunks
        for worker, spans in plan.items():
            own = blocks_of(self.spec.cuts, self.locations.edges, spans, here.get(worker, set()))
            join = len(own) > few and [*spans] != self.locations.spans.get(worker, [])
            if join and self._needed(worker, spans) <= self.locations.free[worker]:
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
                    there = worker in self.locations.places[key]
                    if len(pieces) == 1 and there and (views or stop - start == rows):
                        continue  # as it is
                    nbytes = self.locations.nbytes[key] * (stop - start) / max(1, rows)
                    # what is no array of numbers is unpacked beside what came
                    needed += nbytes * (2 if one.shape is None and not there else 1)
        return needed

    async def _move(self, blocks: Mapping[str, Sequence[Span]]) -> dict[str, Any]:
        """Have each worker make its chunks, and publish them; no chunks where all is there."""
        context = self.context
        order = sorted((span, worker) for worker, own in blocks.items() for span in own)
        if self._all_there(order):
            return {"name": "", "chunks": []}
        name = f"fpmdask-rebalance-{uuid4().hex}"
        orders, keys = await asyncio.to_thread(self._orders, name, blocks, order)
        self.dispatch(PLACE, {worker: one for worker, one in orders.items() if _has_work(one)})
        for worker, answer in (await self.everyone(None, "move")).items():
            self._seconds[worker] = answer["seconds"]
            self._received[worker] = self._received.get(worker, 0) + answer["nbytes_received"]
        if failed := await unpublished(context, keys):
            for worker, reason in failed.items():
                if worker in context.workers:
                    context.members.leave_out(worker, reason)
            raise LostWorker(", ".join(map(context.members.why_left, failed)))
        return {"name": name, "chunks": [span for span, _ in order]}

    def _all_there(self, order: Sequence[tuple[Span, str]]) -> bool:
        """Tell whether the inputs are what is wanted, where it is wanted."""
        edges, places = [0, *(stop for (_, stop), _ in order)], self.locations.places
        return all(
            one.edges == edges
            and all(w in places[key] for key, (_, w) in zip(one.keys, order, strict=True))
            for one in self.spec.inputs
        )

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
            worker: {"chunks": [], "serialized": [], "bare": self.locations.bare}
            for worker in blocks
        }
        packed = dict.fromkeys(orders, 0.0)
        keys: dict[str, list[Any]] = {}
        for at, (span, worker) in enumerate(order):
            for n, one in enumerate(spec.inputs):
                number = at * len(spec.inputs) + n
                given = one.wanted(span, self.locations.places)
                if one.shape is None:
                    given["serialized"] = self._serialized(worker, number, given, orders, packed)
                orders[worker]["chunks"].append((number, given))
                key = (f"{name}-{n}", at, *[0] * (context.spec["dims"][n] - 1))
                keys.setdefault(worker, []).append((key, number, ()))
        for worker, own in blocks.items():
            free, needed = self.locations.free[worker], self._needed(worker, own) + packed[worker]
            if orders[worker].setdefault("views", needed > free):
                needed = self._needed(worker, own, views=True) + packed[worker]
            if needed > free:
                raise PartitionError(
                    f"worker {context.name(worker)} needs {needed:.0f} bytes for its share beside "
                    f"what it holds, and has room for {free:.0f}; give it less, or add memory"
                )
        return orders, keys

    def _serialized(
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
            offered = ("rows", self.number, number, n)
            orders[able[0]]["serialized"].append((offered, key, start, stop))
            packed[able[0]] += self.locations.nbytes[key] * (stop - start) / max(1, rows)
            found[n] = offered, able[0]
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
    return bool(order["chunks"] or order["serialized"])
