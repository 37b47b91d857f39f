"""A product in the making: assignments go out, what happens comes back, C is published."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from uuid import uuid4

from fpmdask.apps.matmul.chunk_locations import ChunkLocations
from fpmdask.apps.matmul.coordinator.missing_chunks import MissingChunks
from fpmdask.apps.matmul.coordinator.silence import Silence
from fpmdask.apps.matmul.coordinator.stealing import WorkStealing
from fpmdask.apps.matmul.parts import Assignment, PartsPlan
from fpmdask.apps.matmul.place import (
    ByElements,
    Placement,
    by_elements,
    operations,
    work_per_byte,
)
from fpmdask.apps.matmul.plan import (
    MatmulSpec,
    Tile,
    bounds_in_c,
    needed,
    panels,
    rows_within,
)
from fpmdask.apps.matmul.relays import chunk_nbytes, in_order_of_arrival, relays
from fpmdask.apps.matmul.spec import MULTIPLY
from fpmdask.apps.matmul.tiling import chunks_of, cuts
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.coordinator.chunks import (
    free_nbytes,
    holders,
    unpublished,
    wait_for_chunks,
    without_fpmdask,
)
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.membership import CLOSING, KernelFailed
from fpmdask.runtime.coordinator.tickets import Order
from fpmdask.runtime.links import Link, slow_links
from fpmdask.runtime.progress import Pace

# The first panel of a share is so much less deep.
FIRST = 4
# Operations per second of a slow core: what a share takes at most where nothing was measured.
SLOW_CORE = 1e8


class Product:
    """Shell around `PartsPlan`: submits its assignments, feeds it what happens, publishes C."""

    def __init__(
        self,
        context: RunContext,
        spec: MatmulSpec,
        placement: Placement,
        bounds: Mapping[str, float],
        links: Mapping[str, Link],
    ) -> None:
        self.context, self.tuning = context, context.tuning.matmul
        self.links, self.slow = links, slow_links(links)
        self.spec = spec
        tiles, self.seconds = placement.tiles, placement.seconds
        depth = self.tuning.panel_depth
        self.panels: Sequence[tuple[int, int]] = panels(spec, len(tiles), depth=depth)
        self.deepest = max(k1 - k0 for k0, k1 in self.panels)
        self.width = spec.shape[2]
        self.turn = {worker: n for n, worker in enumerate(tiles)}
        self.cuts = cuts(tile for own in tiles.values() for tile in own)
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
        moving = work_per_byte(spec, self.tuning)
        self.stealing = WorkStealing(context, spec, moving, arriving, self.plan.beside)
        self.silence = Silence(context)
        self.missing = MissingChunks(context, spec.keys)
        self.stranded: asyncio.TimerHandle | None = None
        self.refused: Counter[str] = Counter()  # how often a worker could not publish
        self.pausing = False  # before C is published again
        self.assignments: dict[int, Assignment] = {}
        self.waiting: set[int] = set()  # parts that are done but for what others do of them
        self.shares: dict[int, dict[str, Any]] = {}
        self.pace = Pace()
        context.shares_now = self.shares_now

    async def multiply(self) -> dict[str, Any]:
        """Follow the plan until C is complete and published."""
        self.context.steps.expected = self.seconds
        if math.isnan(self.seconds):
            work = operations(self.spec, self.spec.shape[0])
            self.context.steps.expected = work / SLOW_CORE / len(self.turn)
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
            self.panels = await asyncio.to_thread(
                in_order_of_arrival, self.spec, self.panels, chosen, places
            )
        try:
            self._assign(assignments, places, chosen)
            self.context.emit("progress", phase="multiply", expected=self.context.steps.expected)
            while True:
                while self.pausing or not self.plan.done:
                    await self._next_event()
                    self._go_on()
                published = await self._publish()
                if published is not None:
                    return published
        finally:
            self.missing.stop()
            self.silence.stop()
            for timer in (self.stranded, self.stealing.timer):
                if timer is not None:
                    timer.cancel()

    def _limit_of(self, worker: str) -> float:
        """Return the most elements for a worker that joined: what it has memory for now."""
        if worker not in self.context.workers:
            return 0.0
        free = free_nbytes(self.context, worker)
        return rows_within(self.spec, free, self.deepest) * self.width

    def _assign(
        self,
        assignments: Sequence[Assignment],
        holders: dict[Any, list[str]],
        relays: Mapping[Any, str] | None = None,
    ) -> None:
        """Have parts computed; without `relays` the owners are asked for all chunks."""
        channels = self.context.members.channels
        reached = {key: relay for key, relay in (relays or {}).items() if relay in channels}
        product = self.spec.to_json()
        bare = without_fpmdask(self.context.scheduler, holders)
        where = ChunkLocations(holders, channels, reached).packed(self.spec)
        relaying: dict[str, list[Any]] = {}
        for key, relay in reached.items():
            for owner in holders[key][:1]:
                if owner in channels:
                    relaying.setdefault(relay, []).append((key, owner))
        orders = []
        for assignment in assignments:
            if assignment.part not in self.assignments:  # otherwise it goes on where it was
                self._begin(assignment, in_order=bool(relays))
            payload = {
                "part": assignment.part,
                "tile": assignment.tile.bounds,
                "cuts": self.cuts,
                "product": product,
                "panels": self.stealing.panels[assignment.part],
                "where": where,
                "bare": bare,
                "relay": relaying.get(assignment.worker, ()),
                "taken": self.stealing.taken.get(assignment.part, ()),
            }
            # It uses all threads of its worker, and the buffers of the one scratch.
            slots = self.context.coordinator.slots
            orders.append(Order(assignment.worker, MULTIPLY, payload, slots))
            self.silence.heard(assignment.worker)
        self.context.steps.dispatch(orders, [assignment.part for assignment in assignments])
        self._watch()

    def _begin(self, assignment: Assignment, *, in_order: bool) -> None:
        self.assignments[assignment.part] = assignment
        # Everybody starts with another panel, so that not all ask the same owner at once.
        # Relayed chunks come in the order of panels.
        turn = self.turn[assignment.worker] * len(self.panels) // len(self.turn)
        if in_order:
            turn = 0
        (k0, k1), *later = [*self.panels[turn:], *self.panels[:turn]]
        # Nobody can multiply before the first panel is there: it is a small one.
        first = k0 + max(1, (k1 - k0) // FIRST)
        panels = [(k0, first), (first, k1), *later] if first < k1 else [(k0, k1), *later]
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
                    self._tell_progress()
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
                self.turn.setdefault(worker, len(self.turn))
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
                self.pausing = False
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
            tile = assignment.tile
            rows = tile.area / self.width  # of full width; whole ones in the layout "rows"
            units = int(rows) if rows == int(rows) else rows
            at = bounds_in_c(self.spec, tile)
            facts = {"worker": name, "part": part, "units": units, "tile": at}
            self.shares[part] = {**facts, **answer}
            self.context.emit("share", worker=name, units=units, seconds_taken=answer["seconds"])
            self._tell_progress(last=self.plan.done)
            self.silence.excuse()
            self._watch()

    def _tell_progress(self, *, last: bool = False) -> None:
        """Tell the client how much of C is multiplied: of open parts as many of their panels."""
        if not self.pace.due("multiply", time.monotonic(), last=last):
            return
        left: float = self.plan.stranded
        for open_ in self.plan.assign():
            panels = len(self.stealing.panels.get(open_.part, ())) or 1
            left += open_.tile.area * max(0.0, 1.0 - self.missing.panels_of(open_.part) / panels)
        total = self.plan.elements / self.width
        done = round(total - left / self.width, 3)
        unit = "columns" if self.spec.transposed else "rows"
        self.context.emit("progress", phase="multiply", done=done, total=total, unit=unit)

    def shares_now(self) -> dict[str, tuple[float, float]]:
        """Return worker name → (its rows, those multiplied), of columns where it has few rows."""
        found: dict[str, tuple[float, float]] = {}

        def add(name: str, rows: float, done: float) -> None:
            before = found.get(name, (0.0, 0.0))
            found[name] = before[0] + rows, before[1] + done

        for share in self.shares.values():
            add(share["worker"], share["units"], share["units"])
        for help_ in self.stealing.done.values():
            add(help_["worker"], help_["units"], help_["units"])
            add(help_["helps"], -help_["units"], -help_["units"])
        for open_ in self.plan.assign():
            panels = len(self.stealing.panels.get(open_.part, ())) or 1
            rows = open_.tile.area / self.width
            part = min(1.0, self.missing.panels_of(open_.part) / panels)
            add(self.context.name(open_.worker), rows, rows * part)
        return found

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
        work = sum(share["work"] for share in self.shares.values())
        if not work:
            return {}
        spent = (s["compute_seconds"] + s["wait_seconds"] for s in self.shares.values())
        pace = sum(spent) / work * self.spec.shape[1]
        hang = self.context.spec["measuring"]["hang"]
        elements: Counter[str] = Counter()
        for assignment in self.plan.assign():
            elements[assignment.worker] += assignment.tile.area
        for steal in self.stealing.policy.open.values():
            if steal.thief in elements:  # it says nothing of these
                elements[steal.thief] += steal.tile.area
        overdue = self.tuning.overdue * pace
        return {worker: max(hang, overdue * area) for worker, area in elements.items()}

    def _give_up_on_silent(self) -> None:
        """Move the shares of workers whose call does not return; it cannot be cancelled."""
        silent = self.silence.overdue(self._patience())
        # it may be a thief that they wait for, or a chunk
        if silent and (self.stealing.give_up(silent) or self.missing.are_made()):
            self.silence.excuse()
            silent = {}
        for worker, seconds in silent.items():
            reason = f"its share was not finished, and nothing heard of it for {seconds:.3g} s"
            self.context.members.give_up_on(worker, reason)
            self.stealing.left(worker)
            self._reassign(self.plan.left(worker), f"{self.context.name(worker)}: {reason}")
        self._wait_for_workers()
        self._watch()

    def _wait_for_workers(self) -> None:
        """Where nobody has room, wait as long for a worker (a nanny restarts one) as for chunks."""
        if self.plan.stranded and self.stranded is None:
            patience = self.context.spec["recovery"]
            self.context.emit("waiting for workers", patience=patience)
            self.stranded = asyncio.get_running_loop().call_later(
                patience, self.context.steps.post, ("stranded",)
            )
        elif not self.plan.stranded and self.stranded is not None:
            self.stranded.cancel()
            self.stranded = None

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

    async def _publish(self) -> dict[str, Any] | None:
        """Make the parts chunks of one dask array; None when one of their workers cannot."""
        name = f"fpmdask-matmul-{uuid4().hex}"
        parts = self.plan.parts
        rows, columns = cuts(part.tile for part in parts)
        keys = await asyncio.to_thread(chunks_of, self.spec, name, parts, rows, columns)
        failed = await unpublished(self.context, keys)
        if failed:
            self._ask_again(failed)
            return None
        self.context.report["shares"] = [self.shares[part.part] for part in parts]
        self.context.report["helps"] = list(self.stealing.done.values())
        sizes = [[high - low for low, high in pairwise(edges)] for edges in (rows, columns)]
        heights, widths = sizes[::-1] if self.spec.transposed else sizes
        return {"name": name, "rows": heights, "columns": widths}

    def _ask_again(self, failed: Mapping[str, str]) -> None:
        """Have workers that could not publish do so, or others make their parts.

        Of those that are gone an event tells.
        """
        for worker, why in failed.items():
            self.refused[worker] += 1
            enough = self.refused[worker] >= self.tuning.publish_tries
            if worker in self.context.scheduler.workers and enough:
                reason = f"it cannot publish its part: {why}"
                self.context.members.leave_out(worker, reason)
                self.stealing.left(worker)
                self._reassign(self.plan.left(worker), f"{self.context.name(worker)}: {reason}")
                self._wait_for_workers()
        self.pausing = True
        loop = asyncio.get_running_loop()
        loop.call_later(self.tuning.publish_seconds, self.context.steps.post, ("publish",))
