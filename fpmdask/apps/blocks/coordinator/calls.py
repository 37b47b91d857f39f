"""The calls of a run: rows are handed out call by call, results become Dask data."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from uuid import uuid4

from fpmdask.apps.blocks.coordinator.members import given_rows, known_member, learn, report
from fpmdask.apps.blocks.self_scheduling import SelfScheduling
from fpmdask.apps.blocks.spec import COMPUTE, BlocksSpec, check_shapes
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.coordinator.chunks import (
    free_nbytes,
    unpublished,
    wait_for_chunks,
    without_fpmdask,
)
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.membership import KernelFailed
from fpmdask.runtime.coordinator.tickets import Order
from fpmdask.runtime.rows import Span, common, held


class Calls:
    """The calls of a run: under way, done, and lost again."""

    def __init__(self, context: RunContext, spec: BlocksSpec) -> None:
        self.context, self.spec, self.tuning = context, spec, context.tuning.blocks
        self._number = 0
        self._edges = spec.edges
        self._places: dict[Any, list[str]] = {}
        self._bare: list[str] = []
        # number → (worker, rows, when it was given); what it answered
        self._open: dict[int, tuple[str, Span, float]] = {}
        self._order_of: dict[str, list[list[int]]] = {}
        self._done: dict[int, tuple[str, Span, Mapping[str, Any]]] = {}
        self._received: dict[str, int] = {}
        self._made: dict[str, tuple[int, int]] = {}  # rows, bytes of results
        self._known = False
        self._given_up = 0
        self._deaths: list[list[Span]] = []  # what workers may have computed when they were lost
        # (rows, chunk) of calls on no rows, which nobody has been given
        self._empty: list[tuple[Span, int]] = []
        self._chunk_of: dict[int, int] = {}
        self._rows_done = 0
        self._made_so_far: dict[str, list[int]] = {}  # calls of orders that go on
        context.shares_now = self._shares_now

    async def run(self) -> dict[str, Any]:
        """Hand out all rows, until all results are published."""
        context, spec = self.context, self.spec
        ndim, cut = context.spec["place"]
        await self._look_up()
        owners = spec.inputs[0].owners(self._edges, self._places, context.workers)
        places = held(self._edges, owners)
        now = time.monotonic()
        members = {
            worker: known_member(context, worker, spec.row_nbytes) for worker in context.workers
        }
        self._known = all(member.known for member in members.values())
        for worker, rows in given_rows(context, places).items():
            members[worker].quota = rows
        self.plan = SelfScheduling(
            spec.rows, places, members, self._edges, spec.whole, now, self.tuning
        )
        if spec.whole and spec.cuts is None:
            pairs = enumerate(pairwise(self._edges))
            self._empty = [((a, b), n) for n, (a, b) in pairs if a == b]
        elif not spec.rows:
            self._empty = [((0, 0), 0)]
        while True:
            await self._until_done()
            name = f"fpmdask-blocks-{uuid4().hex}"
            numbers = sorted(self._done, key=lambda n: (self._done[n][1], self._chunk_of[n]))
            shapes = [tuple(self._done[n][2]["shape"]) for n in numbers]
            if (sizes := context.spec["sizes"]) is not None:
                check_shapes(shapes, (ndim, cut), sizes)
            keys: dict[str, list[Any]] = {}
            for at, number in enumerate(numbers):
                worker = self._done[number][0]
                key = (name, *(at if axis == cut else 0 for axis in range(ndim)))
                keys.setdefault(worker, []).append((key, number, ()))
            if not (failed := await unpublished(context, keys)):
                break
            for worker, reason in failed.items():
                self._lost(worker, reason)
        report(context, self._done.values(), self._received, self._known)
        learn(context, self.plan.members, spec.row_nbytes)
        spans = [self._done[n][1] for n in numbers]
        chunks = [self._chunk_of[n] for n in numbers]
        blocks = [(*span, *of) for span, *of in zip(spans, shapes, chunks, strict=True)]
        return {"name": name, "blocks": blocks}

    async def _until_done(self) -> None:
        self._hand_out(self.context.workers)
        while self.plan.rest or self._open or self._empty:
            try:
                # no `wait_for`: before Python 3.12 it lost a cancellation that came with an event
                async with asyncio.timeout(self.tuning.look_seconds):
                    event = await self.context.steps.next_event()
            except TimeoutError:
                self._look_for_overdue()
                continue
            rest = self.plan.rest
            match event:
                case ("left", worker):
                    self._lost(worker)
                case ("joined", worker):
                    self.plan.joined(
                        worker, known_member(self.context, worker, self.spec.row_nbytes)
                    )
                case ("answer", (worker, numbers), answer):
                    await self._answered(worker, numbers, answer)
                case ("news", worker, {"made": numbers}):
                    self._made_so_far[worker] = numbers
                    self._tell_progress()
                    continue
                case _:
                    continue
            # who has nothing to do may do what others have not done
            self._hand_out([worker] if self.plan.rest <= rest else self.context.workers)

    def _shares_now(self) -> dict[str, tuple[float, float]]:
        """Return worker name → (rows that it was given so far, those done)."""
        found: dict[str, tuple[float, float]] = {}
        made = {number for own in self._made_so_far.values() for number in own}
        of_open = ((n, worker, span) for n, (worker, span, _) in self._open.items())
        of_done = ((n, worker, span) for n, (worker, span, _) in self._done.items())
        for number, worker, (start, stop) in (*of_open, *of_done):
            rows, done = found.get(name := self.context.name(worker), (0.0, 0.0))
            through = number in self._done or number in made
            found[name] = rows + stop - start, done + (stop - start if through else 0)
        return found

    def _tell_progress(self) -> None:
        """Tell the client how many rows are done, those of orders that go on included."""
        numbers = [n for own in self._made_so_far.values() for n in own if n in self._open]
        under_way = sum(stop - start for _, (start, stop), _ in (self._open[n] for n in numbers))
        done = self._rows_done + under_way
        self.context.progress("compute", done, self.spec.rows, "rows")

    # ---- out

    def _hand_out(self, workers: Iterable[str]) -> None:
        """Give work to those of some workers that are about to have none."""
        now = time.monotonic()
        for worker in list(workers):
            if worker not in self.plan.members or worker not in self.context.workers:
                continue
            while len(own := self._order_of.setdefault(worker, [])) < self.tuning.calls_ahead:
                member = self.plan.members[worker]
                if own and not member.speed.sure and member.quota is None:
                    break  # too little is known before its first answers
                if not own:
                    self.plan.busy_until(worker, now)
                if not (calls := self._next(worker, now, idle=not own)):
                    break
                self._assign(worker, calls)
        if (self.plan.rest or self._empty) and not self._open:
            if not self.context.workers:
                raise CoordinatorError("no worker is left; start others")
            raise PartitionError(
                f"{self.plan.rest} of {self.spec.rows} rows are left, and no worker has memory for "
                "more results; add workers or memory, or have the function return less"
            )

    def _next(self, worker: str, now: float, *, idle: bool) -> list[tuple[Span, int | None]]:
        """Return the rows of the calls of a worker's next order, and their chunk where it counts.

        Short calls go together: each order costs both sides a message.
        """
        calls: list[tuple[Span, int | None]] = [*self._empty]
        self._empty = []
        seconds = 0.0
        while seconds < self.tuning.order_seconds and len(calls) < self.tuning.order_calls:
            span = self.plan.next(worker, now, idle=idle and not calls)
            if span is None:
                break
            calls += [(part, None) for part in self._parts(span)]
            seconds += math.inf if (e := self.plan.expected(worker, span)) is None else e
        return calls

    def _assign(self, worker: str, spans: Sequence[tuple[Span, int | None]]) -> None:
        """Submit calls on some rows."""
        now = time.monotonic()
        context, state = self.context, self.context.scheduler.workers.get(worker)
        resources = state.resources if state is not None else {}
        resource = next((r for r in self.spec.resources if resources.get(r)), "")
        calls, numbers = [], []
        expected = [self.plan.expected(worker, span) or 0.0 for span, _ in spans]
        if sum(expected):
            context.steps.expected = max(context.steps.expected or 0.0, sum(expected))
        for part, at in spans:
            self._number += 1
            inputs = [one.wanted(part, self._places) for one in self.spec.inputs]
            chunk = self.spec.inputs[0].pieces(part)[0][0] if at is None else at
            calls.append((self._number, chunk, inputs))
            numbers.append(self._number)
            self._open[self._number] = worker, part, now
            self._chunk_of[self._number] = chunk
        self._order_of.setdefault(worker, []).append(numbers)
        order = {
            "channels": dict(context.members.channels),
            "bare": self._bare,
            "resource": resource,
            "calls": calls,
        }
        context.steps.dispatch(
            [Order(worker, COMPUTE, order, context.coordinator.slots)], [(worker, numbers)]
        )

    def _parts(self, span: Span) -> list[Span]:
        """Return the rows of each call: all of them at once, or chunk by chunk.

        Chunks without rows, which have two edges at one place, are calls of their own (`_empty`).
        """
        if not self.spec.whole:
            return [span]
        inside = sorted({edge for edge in self._edges if span[0] < edge < span[1]})
        return [*pairwise([span[0], *inside, span[1]])]

    # ---- in

    async def _answered(
        self, worker: str, numbers: Sequence[int], answer: Mapping[str, Any]
    ) -> None:
        own = self._order_of.get(worker, [])
        if numbers in own:
            own.remove(numbers)
        now = time.monotonic()
        for made in answer.get("made", ()):
            open_ = self._open.pop(made["number"], None)
            if open_ is None:
                continue  # it has been given to somebody else meanwhile
            _, span, _ = open_
            self._done[made["number"]] = worker, span, made
            seconds = made["waiting"] + made["computing"]
            self.plan.done(worker, span, seconds, now)
            rows, nbytes = self._made.get(worker, (0, 0))
            self._made[worker] = rows + span[1] - span[0], nbytes + made["nbytes"]
            self._rows_done += span[1] - span[0]
        self._limit(worker)
        self._received[worker] = self._received.get(worker, 0) + answer.get("nbytes_received", 0)
        if "made" in answer:
            name, done = self.context.name(worker), self._rows_done
            facts = {"phase": "compute", "done": done, "total": self.spec.rows, "unit": "rows"}
            self.context.emit("computed", worker=name, **facts)
            return
        if "unusable" in answer:
            raise PartitionError(answer["unusable"])
        lost = [n for n in numbers if n in self._open]
        if "number" in answer:
            _, (start, stop), _ = self._open.get(answer["number"], (worker, (0, 0), 0.0))
            where = f"rows {start} to {stop}, on worker {self.context.name(worker)}"
            if "unlike" in answer:
                raise PartitionError(
                    f"the function returned for {where}, {answer['unlike']}; give a meta like what "
                    "it returns, or have it return what meta says"
                )
            error = answer["raised"]
            raise KernelFailed(
                f"the function raised on {where}: {error['type']}: {error['message']}", error
            )
        if "missing" in answer or "error" in answer:
            self._give_back(worker, [n for n in numbers if n in self._open])
        if "missing" in answer:
            await self._look_up()
        elif "error" in answer and lost:
            error = answer["error"]
            reason = f"{error['type']}: {error['message']}"
            if worker in self.context.workers:
                self.context.members.leave_out(worker, reason)
            self.plan.left(worker)
            if not self.context.workers:
                raise KernelFailed(f"no worker could compute ({reason})", error)
        elif lost:  # it is closing
            self._lost(worker)

    def _lost(self, worker: str, reason: str = "does not go on") -> None:
        """Have others do what a worker was to do, and what it has done."""
        if worker in self.context.workers:
            self.context.members.leave_out(worker, reason)
        # one that joins is told nothing of who has left before, and would try to reach it
        self._places = {
            key: [holder for holder in holders if holder != worker]
            for key, holders in self._places.items()
        }
        self._order_of.pop(worker, None)
        self._made.pop(worker, None)
        given = [number for number, (where, _, _) in self._open.items() if where == worker]
        # all of them: what it answered last is lost where the next call has ended its process
        if given:
            self._count_death(set(given).difference(self._made_so_far.get(worker, ())))
        self._give_back(worker, given)
        for number, (where, span, _) in list(self._done.items()):
            if where == worker:
                del self._done[number]
                self._rows_done -= span[1] - span[0]
                self._returned(worker, number, span)
        self.plan.left(worker)

    def _give_back(self, worker: str, numbers: Iterable[int]) -> None:
        """Have others make calls that a worker was to make."""
        for number in numbers:
            _, span, _ = self._open.pop(number)
            self._returned(worker, number, span)

    def _returned(self, worker: str, number: int, span: Span) -> None:
        if span[0] == span[1]:
            self._empty.append((span, self._chunk_of[number]))
        else:
            self.plan.returned(worker, span)

    def _count_death(self, numbers: Iterable[int]) -> None:
        """Refuse to go on where calls on the same rows have cost several workers.

        Raises
        ------
        CoordinatorError
            With the rows.
        """
        rows, most, spans = self.spec.rows, self.tuning.most_deaths, []
        for number in numbers:
            start, stop = self._open[number][1]
            if start == stop:  # a chunk without rows counts as one behind the last
                start = rows + self._chunk_of[number]
            spans.append((start, max(stop, start + 1)))
        self._deaths.append(spans)
        if same := common(self._deaths, most):
            named = [f"rows {a} to {min(b, rows)}" for a, b in same if a < rows]
            if same[-1][1] > rows:
                named.append("a chunk without rows")
            if len(named) > 4:
                named[3:] = [f"{len(named) - 3} others"]
            where = " or ".join(named)
            raise CoordinatorError(
                f"{most} workers were lost, or have not returned, while they computed {where}; "
                "the function ends its process there, needs more memory than a worker has, or hangs"
            )

    def _look_for_overdue(self) -> None:
        """Give up on calls that take far too long while others have nothing to do."""
        busy = {worker for worker, _, _ in self._open.values()}
        if not self.context.workers.keys() - busy:
            return
        now, hang = time.monotonic(), float(self.context.spec["measuring"]["hang"])
        for worker in busy & self.context.workers.keys():
            own = [(span, at) for where, span, at in self._open.values() if where == worker]
            expected = [self.plan.expected(worker, span) for span, _ in own]
            if None in expected:
                continue  # nobody has done anything yet: it may just take long
            # what takes as long elsewhere just takes long
            patience = (
                max(hang, self.tuning.overdue * sum(filter(None, expected)))
                * self.tuning.overdue_growth**self._given_up
            )
            if now - min(at for _, at in own) > patience:
                reason = f"has not returned from a call for {patience:.1f} s, the others have"
                self._given_up += 1
                self.context.members.give_up_on(worker, reason)
                self._lost(worker)
        self._hand_out(self.context.workers)

    # ---- what is known

    async def _look_up(self) -> None:
        """Find out who holds the inputs."""
        every = [key for one in self.spec.inputs for key in one.keys]
        self._places = await wait_for_chunks(self.context, every)
        self._bare = without_fpmdask(self.context.scheduler, self._places)

    def _limit(self, worker: str) -> None:
        """Bound what a worker gets by the memory that it has for results."""
        if worker not in self.context.scheduler.workers or worker not in self.plan.members:
            return
        free = free_nbytes(self.context, worker)
        if math.isinf(free):
            return
        rows, nbytes = self._made.get(worker, (0, 0))
        if rows and nbytes:
            # what is done is not Dask's data yet, and may be counted already
            self.plan.members[worker].limit = rows + max(0.0, free - nbytes) / (nbytes / rows)
