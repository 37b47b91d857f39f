"""A product in the making: assignments go out, what happens comes back, C is published."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fpmdask.apps.matmul.coordinator.missing_chunks import MissingChunks
from fpmdask.apps.matmul.coordinator.orders import MultiplyOrders
from fpmdask.apps.matmul.coordinator.publishing import Publishing
from fpmdask.apps.matmul.coordinator.shares import Shares
from fpmdask.apps.matmul.coordinator.stealing import WorkStealing
from fpmdask.apps.matmul.coordinator.timeouts import Silence, Stranded
from fpmdask.apps.matmul.parts import Assignment, PartsPlan
from fpmdask.apps.matmul.place import (
    ByElements,
    Placement,
    by_elements,
    operations,
    work_per_byte,
)
from fpmdask.apps.matmul.plan import MatmulSpec, Tile, bounds_in_c, needed, rows_within
from fpmdask.apps.matmul.relays import chunk_nbytes, relays
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.coordinator.chunks import free_nbytes, holders, wait_for_chunks
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.membership import CLOSING, KernelFailed
from fpmdask.runtime.links import Link, slow_links

# Operations per second of a slow core: what a share takes at most where nothing was measured.
SLOW_CORE = 1e8


class Product:
    """Shell around `PartsPlan`: submits its assignments, feeds it what happens, publishes C.

    Attributes
    ----------
    shares : Shares
        What each share has taken, once the product is there.
    """

    def __init__(
        self,
        context: RunContext,
        spec: MatmulSpec,
        placement: Placement,
        bounds: Mapping[str, float],
        links: Mapping[str, Link],
    ) -> None:
        self.context, self.spec = context, spec
        self.links, self.slow = links, slow_links(links)
        tiles, self.seconds, self.width = placement.tiles, placement.seconds, spec.shape[2]
        self.orders = MultiplyOrders(context, spec, tiles)
        models = {worker: context.members.model_of(worker) for worker in tiles}
        self.plan = PartsPlan(
            tiles,
            models=ByElements({w: m for w, m in models.items() if m is not None}, self.width),
            limits={
                worker: bounds[worker] * self.width if worker in bounds else self._limit_of(worker)
                for worker in tiles
            },
            by_rows=placement.layout == "rows",
        )
        arriving = {worker: link.receiving for worker, link in links.items()}
        moving = work_per_byte(spec, context.tuning.matmul)
        self.stealing = WorkStealing(context, spec, moving, arriving, self.plan.beside)
        self.silence, self.stranded = Silence(context), Stranded(context)
        self.missing = MissingChunks(context, spec.keys)
        self.shares = Shares(context, spec, self.plan, self.stealing, self.missing)
        self.publishing = Publishing(context, spec)
        self.assignments: dict[int, Assignment] = {}
        self.waiting: set[int] = set()  # parts that are done but for what others do of them
        context.shares_now = self.shares.now
        context.steps.expected = self.seconds
        if math.isnan(self.seconds):
            context.steps.expected = operations(spec, spec.shape[0]) / SLOW_CORE / len(tiles)

    async def multiply(self) -> dict[str, Any]:
        """Follow the plan until C is complete and published."""
        places = await wait_for_chunks(self.context, self.spec.keys)
        itemsize = self.spec.dtype.itemsize
        assignments = self.plan.assign()
        tiles: dict[str, list[Tile]] = {}
        for assignment in assignments:
            tiles.setdefault(assignment.worker, []).append(assignment.tile)
        chosen = await asyncio.to_thread(  # many workers or chunks would hold the event loop
            relays,
            self.spec,
            tiles,
            places,
            self.links,
            {worker: self.plan.room(worker) * itemsize for worker in tiles},
            self.seconds,
        )
        for key, worker in chosen.items():
            self.plan.beside[worker] += chunk_nbytes(self.spec, key) // itemsize
        self.stealing.relays = chosen
        if chosen:
            await self.orders.in_order_of_arrival(chosen, places)
        try:
            self._assign(assignments, places, chosen)
            self.context.emit("progress", phase="multiply", expected=self.context.steps.expected)
            while True:
                while self.publishing.pausing or not self.plan.done:
                    await self._next_event()
                    self._go_on()
                value, failed = await self.publishing.publish(self.plan.parts)
                if value is not None:
                    break
                self._give_up(self.publishing.try_again(failed))
        finally:
            for part in (self.missing, self.silence, self.stranded, self.stealing):
                part.stop()
        done = self.shares.done
        self.context.report["shares"] = [done[part.part] for part in self.plan.parts]
        self.context.report["helps"] = list(self.stealing.done.values())
        return value

    def _limit_of(self, worker: str) -> float:
        """Return the most elements for a worker that joined: what it has memory for now."""
        if worker not in self.context.workers:
            return 0.0
        free = free_nbytes(self.context, worker)
        return rows_within(self.spec, free, self.orders.deepest) * self.width

    def _assign(
        self,
        assignments: Sequence[Assignment],
        holders: dict[Any, list[str]],
        relays: Mapping[Any, str] | None = None,
    ) -> None:
        """Have parts computed; without `relays` the owners are asked for all chunks."""
        for assignment in assignments:
            if assignment.part not in self.assignments:  # otherwise it goes on where it was
                self._begin(assignment, in_order=bool(relays))
            self.silence.heard(assignment.worker)
        panels, taken = self.stealing.panels, self.stealing.taken
        orders = self.orders.orders(assignments, holders, relays or {}, panels, taken)
        self.context.steps.dispatch(orders, [assignment.part for assignment in assignments])
        self._watch()

    def _begin(self, assignment: Assignment, *, in_order: bool) -> None:
        self.assignments[assignment.part] = assignment
        panels = self.orders.panels_of(assignment.worker, in_order=in_order)
        # what a worker behind a slow link steals would come too late
        slow = assignment.worker in self.slow
        room = 0.0 if slow else self.plan.room_beside_tiles(assignment.worker)
        self.stealing.began(assignment, panels, room)

    async def _next_event(self) -> None:
        match await self.context.steps.next_event():
            case ("news", worker, news):
                self.silence.heard(worker)
                if "reached" in news:
                    self.missing.reached(news["part"], news["reached"])
                    self.shares.tell()
                self.stealing.news(news)
            case ("answer", ("help", number), answer):
                # its thief may have a share to begin with, and its victim has waited for it
                self.silence.excuse()
                self.stealing.answered(number, answer)
            case ("left", worker):
                self.missing.reset()
                self.stealing.left(worker)
                self.context.recompute(self.spec.keys)  # where it has stopped it is a holder still
                self._reassign(self.plan.left(worker), self.context.members.why_left(worker))
                self._wait_for_workers()
            case ("joined", worker) if worker in self.context.workers:
                self.orders.joined(worker)
                model, limit = self.context.members.model_of(worker), self._limit_of(worker)
                known = None if model is None else by_elements(model, self.width)
                moved = self.plan.joined(worker, known, limit)
                self._reassign(moved, f"{self.context.name(worker)} joined")
                self._wait_for_workers()
            case ("stranded",) if self.plan.stranded:
                if self.plan.refusal is not None:
                    raise self.plan.refusal
                story = "; ".join(self.plan.events)
                raise CoordinatorError(
                    f"no worker is left for {self.plan.stranded} of {self.plan.elements} elements "
                    f"of C, and none has joined within fpmdask.recovery: {story}"
                )
            case ("found", part, places):
                self.missing.found(part)
                if self.plan.owns(part, self.assignments[part].worker):
                    self._assign([self.assignments[part]], places)
            case ("look",):
                self.stealing.look()
            case ("publish",):
                self.publishing.pausing = False
            case ("overdue",):
                self._give_up_on_silent()
            case ("answer", part, answer):
                self._answered(part, answer)

    def _answered(self, part: int, answer: dict[str, Any]) -> None:
        assignment = self.assignments.get(part)
        if assignment is None or answer.get("left") or not self.plan.owns(part, assignment.worker):
            return  # its worker is gone, and the plan knows
        name = self.context.name(assignment.worker)
        self.silence.heard(assignment.worker)
        if "waiting" in answer:
            if self.stealing.multiplied(part, answer["waiting"]):
                self._add_up([assignment])
            else:
                self.waiting.add(part)
        elif "missing" in answer:
            for key in answer["missing"]:
                self.stealing.relays.pop(key, None)  # their owners have them, if anybody
            self.missing.wait_for(part, assignment.worker, answer["missing"])
            self.stealing.policy.paused(part)
        elif "unusable" in answer:
            raise PartitionError(answer["unusable"])
        elif "error" in answer:
            error = answer["error"]
            reason = f"{error['type']}: {error['message']}"
            self.context.members.leave_out(assignment.worker, reason)
            self.stealing.left(assignment.worker)
            moved = self.plan.failed(part, assignment.worker)
            if self.plan.stranded:
                story = self.plan.refusal or "; ".join(self.plan.events)
                raise KernelFailed(f"no worker could multiply its share ({story})", error)
            self._reassign(moved, f"{name} failed: {reason}")
        elif "cancelled" in answer:
            # its worker is closing, and the scheduler does not know yet
            self.context.members.leave_out(assignment.worker, CLOSING)
            self.stealing.left(assignment.worker)
            self._reassign(self.plan.left(assignment.worker), f"{name} {CLOSING}")
            self._wait_for_workers()
        else:
            self.plan.finished(part, assignment.worker)
            self.stealing.finished(part)
            self.shares.finished(assignment, answer)
            self.silence.excuse()
            self._watch()

    def _go_on(self) -> None:
        """Have shares go on for which nobody multiplies any more."""
        ready = [part for part in self.waiting if not self.stealing.waits(part)]
        self.waiting.difference_update(ready)
        again = [self.assignments[part] for part in ready]
        again = [assigned for assigned in again if self.plan.owns(assigned.part, assigned.worker)]
        if again:
            self._add_up(again)

    def _add_up(self, assignments: Sequence[Assignment]) -> None:
        """Have shares add up what others have multiplied for them, or do what these have not."""
        keys = {key for again in assignments for key in needed(self.spec, again.tile)}
        workers, relays = {again.worker for again in assignments}, self.stealing.relays
        keys |= {key for key, relay in relays.items() if relay in workers}  # it may relay them yet
        try:
            places = holders(self.context, keys)
        except CoordinatorError:  # a share that needs the chunk will find out
            places = {key: [] for key in keys}
        self._assign(assignments, places, {k: relay for k, relay in relays.items() if k in keys})

    def _watch(self) -> None:
        """Look for silent workers once the first of those that compute may be one."""
        self.silence.watch(self._patience())

    def _patience(self) -> dict[str, float]:
        """Return how long each worker that computes may be silent; no bound before one is done."""
        pace = self.shares.seconds_per_element()
        if pace is None:
            return {}
        hang = self.context.spec["measuring"]["hang"]
        elements: Counter[str] = Counter()
        for assignment in self.plan.assign():
            elements[assignment.worker] += assignment.tile.area
        for steal in self.stealing.policy.open.values():
            if steal.thief in elements:  # it says nothing of these
                elements[steal.thief] += steal.tile.area
        overdue = self.context.tuning.matmul.overdue * pace
        return {worker: max(hang, overdue * area) for worker, area in elements.items()}

    def _give_up_on_silent(self) -> None:
        """Move the shares of workers whose call does not return; it cannot be cancelled."""
        silent = self.silence.overdue(self._patience())
        # it may be a thief that they wait for, or a chunk
        if silent and (self.stealing.give_up(silent) or self.missing.are_made()):
            self.silence.excuse()
            silent = {}
        reason = "its share was not finished, and nothing heard of it for {:.3g} s"
        self._give_up({worker: reason.format(s) for worker, s in silent.items()}, overdue=True)
        self._watch()

    def _give_up(self, reasons: Mapping[str, str], *, overdue: bool = False) -> None:
        """Have others do what some workers have, which get no more work of this run."""
        members = self.context.members
        for worker, reason in reasons.items():
            (members.give_up_on if overdue else members.leave_out)(worker, reason)
            self.stealing.left(worker)
            self._reassign(self.plan.left(worker), f"{self.context.name(worker)}: {reason}")
        self._wait_for_workers()

    def _wait_for_workers(self) -> None:
        """Where nobody has room, wait for a worker to join."""
        self.stranded.watch(waiting=bool(self.plan.stranded))

    def _reassign(self, assignments: Sequence[Assignment], why: str) -> None:
        if not assignments:
            return
        self.context.emit(
            "re-partitioned",
            reason=why,
            tiles=[
                (self.context.name(a.worker), bounds_in_c(self.spec, a.tile)) for a in assignments
            ],
        )
        self._assign(assignments, holders(self.context, self.spec.keys))
