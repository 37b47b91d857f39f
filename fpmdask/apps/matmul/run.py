"""The product's run on the scheduler: measure, share rows out, follow the shares, publish C."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from fpmdask.apps.matmul.kernel import panel_depth
from fpmdask.apps.matmul.plan import Assignment, MatmulSpec, RowsPlan, limits, panels, rows_within
from fpmdask.apps.matmul.share import multiply_share
from fpmdask.coordinator.chunks import free_nbytes, holders, publish, wait_for_chunks
from fpmdask.coordinator.context import KernelFailed, RunContext
from fpmdask.coordinator.rounds import measure
from fpmdask.coordinator.tickets import Order
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.timing import TimingPolicy

# One update at the depth of `panel_depth` takes about a seventieth of the product, or is repeated
# until a worker's CPU-quota periods (10 to 100 ms) do not dominate.
TIMING = TimingPolicy(min_repetitions=1, min_seconds=0.06, budget_seconds=0.12, warmup=0)
# The product uses what all rounds say together; another one improves that by about a fifth of the
# gain that it promises.
LEAST_GAIN = 0.12
# Operations per second and worker, to tell small products: a factor of ten does not matter.
GUESSED_SPEED = 2e10
# The scouting round is this much smaller than an even share.
SCOUT = 8

# A share that takes so many times as long as all others together is given to others.
OVERDUE = 10.0


async def run(context: RunContext) -> dict[str, Any]:
    """Multiply; the value names the result's keys and row chunks."""
    spec = MatmulSpec.from_json(context.spec["product"])
    began = time.perf_counter()
    depth = context.spec["depth"] or panel_depth(spec.shape[1])
    parameters = {"width": spec.shape[2], "depth": depth, "dtype": spec.dtype.str}
    await context.acquire({"name": "matmul.panel", "parameters": parameters})
    prepared = time.perf_counter()
    free = [free_nbytes(context, address) for address in context.workers]
    bounds = dict(zip(context.workers, limits(spec, free), strict=True))
    distribution = await _distribution(context, spec, bounds)
    measured = time.perf_counter()
    seconds = context.report["result"]["seconds"].values()
    if any(seconds):  # per panel of the timed depth
        context.report["predicted_seconds"] = max(seconds) * spec.shape[1] / depth
    product = RowsProduct(context, spec, distribution, bounds)
    value = await product.multiply()
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": measured - prepared,
        "multiply": time.perf_counter() - measured,
    }
    return value


def least_gain(shape: tuple[int, int, int], workers: int) -> float:
    """Return the gain in time of an (M × K)·(K × N) product that pays for another round of DFPA.

    Large products pay a fixed share of their time for a round, small ones the time of a round.
    """
    product = 2.0 * math.prod(shape) / (GUESSED_SPEED * max(1, workers))
    return max(LEAST_GAIN, TIMING.budget_seconds / product)


def scout_rows(rows: int, workers: int) -> int:
    """Return the rows of the scouting round.

    Enough to tell the workers apart, few enough that the slowest of them, with a quarter of the
    mean speed, takes no longer than in a balanced round.
    """
    return max(1, rows // (SCOUT * workers))


async def _distribution(
    context: RunContext, spec: MatmulSpec, bounds: Mapping[str, float]
) -> dict[str, int]:
    """Return rows per worker address: as given, or by DFPA."""
    given = context.spec["distribution"]
    if given is None:

        def limit_of(address: str) -> float:
            if address in bounds:
                return bounds[address]
            return rows_within(spec, free_nbytes(context, address))  # it joined later

        measuring = context.spec["measuring"]
        if measuring["policy"] is None:
            measuring = {**measuring, "policy": TIMING.to_json()}
        machine = await measure(
            context,
            spec.shape[0],
            limit_of=limit_of,
            scout=scout_rows(spec.shape[0], len(bounds)),
            least_gain=least_gain(spec.shape, len(bounds)),
            **measuring,
        )
        result = machine.result
        assert result is not None
        seconds = {
            worker: result.seconds[worker] if model is None else float(model.time(units))
            for worker, units in result.proposal.items()
            for model in [machine.members[worker].model]
        }
        context.set_result(
            result.proposal, seconds, result.imbalance, result.reason, result.proposal
        )
        return dict(result.proposal)
    addresses = {context.name(address): address for address in context.workers}
    unknown = [name for name in given if name not in addresses]
    if unknown:
        raise PartitionError(
            f"the distribution names {', '.join(unknown)}; taking part are {', '.join(addresses)}"
        )
    # the rows in the order of the mapping; workers that it does not name get none
    chosen = {addresses[name]: int(rows) for name, rows in given.items()}
    chosen |= {address: 0 for address in context.workers if address not in chosen}
    over = [f"{context.name(a)}: {n} > {bounds[a]:g}" for a, n in chosen.items() if n > bounds[a]]
    if over:
        raise PartitionError(f"rows beyond what fits into memory: {'; '.join(over)}")
    context.set_result(chosen, dict.fromkeys(chosen, 0.0), None, "given", chosen)
    return chosen


class RowsProduct:
    """Shell around `RowsPlan`: submits its assignments, feeds it what happens, publishes C."""

    def __init__(
        self,
        context: RunContext,
        spec: MatmulSpec,
        distribution: Mapping[str, int],
        bounds: Mapping[str, float],
    ) -> None:
        self.context = context
        self.spec = spec
        self.panels = panels(spec)
        workers = list(distribution)
        self.turn = {worker: n for n, worker in enumerate(workers)}
        models = [context.model_of(worker) for worker in workers]
        self.plan = RowsPlan(
            spec.shape[0],
            models,
            list(distribution.values()),
            workers,
            limits=[bounds.get(worker) for worker in workers],
        )
        self.began = time.monotonic()
        self.overdue: asyncio.TimerHandle | None = None
        self.assignments: dict[int, Assignment] = {}
        self.shares: dict[int, dict[str, Any]] = {}
        self.recoveries: set[asyncio.Task[None]] = set()
        self.keys = [
            (name, i, j)
            for name, (rows, columns) in (
                (spec.a_name, spec.a_chunks),
                (spec.b_name, spec.b_chunks),
            )
            for i in range(len(rows))
            for j in range(len(columns))
        ]

    async def multiply(self) -> dict[str, Any]:
        """Follow the plan until C is complete and published."""
        places = await self._wait_for_chunks()
        try:
            self._assign(self.plan.assign(), places)
            while True:
                while not self.plan.done:
                    await self._next_event()
                published = await self._publish()
                if published is not None:
                    return published
                await self._next_event()
        finally:
            for task in self.recoveries:
                task.cancel()
            if self.overdue is not None:
                self.overdue.cancel()

    def _assign(self, assignments: Sequence[Assignment], holders: dict[Any, list[str]]) -> None:
        orders = []
        for assignment in assignments:
            self.assignments[assignment.part] = assignment
            # Everybody starts with another panel, so that not all ask the same owner at once.
            turn = self.turn[assignment.worker] * len(self.panels) // len(self.turn)
            payload = {
                "part": assignment.part,
                "rows": (assignment.row0, assignment.row1),
                "product": self.spec.to_json(),
                "panels": [*self.panels[turn:], *self.panels[:turn]],
                "holders": holders,
            }
            # It uses all threads of its worker, and the buffers of the one scratch.
            slots = self.context.coordinator.slots
            orders.append(Order(assignment.worker, multiply_share, payload, slots))
        self.context.dispatch(orders, [assignment.part for assignment in assignments])

    async def _next_event(self) -> None:
        match await self.context.next_event():
            case ("left", worker):
                self._reassign(self.plan.left(worker), f"{self.context.name(worker)} left")
            case ("joined", _):
                pass  # a running product is not re-partitioned for a worker that joins
            case ("found", part, places):
                self._assign([self.assignments[part]], places)
            case ("gave up", error):
                raise error
            case ("overdue", seconds):
                self._give_up_on_silent(seconds)
            case ("answer", part, answer):
                self._answered(part, answer)

    def _answered(self, part: int, answer: dict[str, Any]) -> None:
        assignment = self.assignments.get(part)
        if assignment is None or answer.get("left") or not self.plan.owns(part, assignment.worker):
            return  # its worker is gone, and the plan knows
        name = self.context.name(assignment.worker)
        if "missing" in answer:
            task = asyncio.create_task(self._recover(part, answer["missing"]))
            self.recoveries.add(task)
            task.add_done_callback(self.recoveries.discard)
        elif "error" in answer:
            error = answer["error"]
            reason = f"{error['type']}: {error['message']}"
            self.context.leave_out(assignment.worker, reason)
            try:
                moved = self.plan.failed(part, assignment.worker)
            except (CoordinatorError, PartitionError) as story:
                raise KernelFailed(f"no worker could multiply its share ({story})", error) from None
            self._reassign(moved, f"{name} failed: {reason}")
        elif "cancelled" in answer:
            raise CoordinatorError(f"{name} dropped its share of run {self.context.run}")
        else:
            self.plan.finished(part, assignment.worker)
            rows = assignment.row1 - assignment.row0
            self.shares[part] = {"worker": name, "part": part, "units": rows, **answer}
            self.context.emit("share", worker=name, units=rows, seconds_taken=answer["seconds"])
            self._watch()

    def _watch(self) -> None:
        """Give those that still compute ten times what the others took, and no less than `hang`."""
        if self.overdue is not None:
            self.overdue.cancel()
        patience = max(
            self.context.spec["measuring"]["hang"], OVERDUE * (time.monotonic() - self.began)
        )
        self.overdue = asyncio.get_running_loop().call_later(
            patience, self.context.post, ("overdue", patience)
        )

    def _give_up_on_silent(self, seconds: float) -> None:
        """Move the shares of workers whose call does not return; it cannot be cancelled."""
        for worker in {assignment.worker for assignment in self.plan.assign()}:
            reason = f"its share was not finished {seconds:g} s after the last other one"
            self.context.leave_out(worker, reason)
            self._reassign(self.plan.left(worker), f"{self.context.name(worker)}: {reason}")

    def _reassign(self, assignments: Sequence[Assignment], why: str) -> None:
        if not assignments:
            return
        self.context.emit(
            "re-partitioned",
            reason=why,
            units={self.context.name(a.worker): a.row1 - a.row0 for a in assignments},
        )
        self._assign(assignments, holders(self.context.scheduler, self.keys))

    async def _wait_for_chunks(self) -> dict[Any, list[str]]:
        context = self.context
        return await wait_for_chunks(context.scheduler, self.keys, context.spec["recovery"])

    async def _recover(self, part: int, missing: Sequence[Any]) -> None:
        """Wait until lost chunks are in memory again, then let the share go on."""
        self.context.emit("waiting for chunks", count=len(missing))
        try:
            places = await self._wait_for_chunks()
        except CoordinatorError as error:
            self.context.post(("gave up", error))
        else:
            self.context.post(("found", part, places))

    async def _publish(self) -> dict[str, Any] | None:
        """Make the parts chunks of one dask array; None when a worker left meanwhile."""
        name = f"fpmdask-matmul-{uuid4().hex}"
        parts = self.plan.parts
        keys: dict[str, dict[Any, int]] = {}
        for i, part in enumerate(parts):
            keys.setdefault(part.worker, {})[(name, i, 0)] = part.part
        if not await publish(self.context, keys):
            return None
        self.context.report["shares"] = [self.shares[part.part] for part in parts]
        return {"name": name, "rows": [part.row1 - part.row0 for part in parts]}
