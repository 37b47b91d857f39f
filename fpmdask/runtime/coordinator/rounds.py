"""DFPA's rounds on the cluster: the thin shell around `Measuring`."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.instructions import Instruction, Measure, Member
from fpmdask.runtime.coordinator.measuring import Measuring
from fpmdask.runtime.coordinator.membership import CLOSING
from fpmdask.runtime.coordinator.tickets import Answer, Order
from fpmdask.runtime.coordinator.windows import windows
from fpmdask.runtime.identity import Fingerprint, canonical
from fpmdask.runtime.wire import TIMED

# Planning the next round for more workers may take 10 ms and is done in a thread.
PLANNED_IN_LOOP = 8
# So many workers' limits and models are looked up in one step of the event loop.
AT_ONCE = 64

# Shares that rest on one round: two more tell a disturbed measurement from a slow worker.
REPEATS = 2

LimitOf = Callable[[str], float]
Planned = TypeVar("Planned")


async def measure(
    context: RunContext,
    units: int,
    *,
    epsilon: float,
    max_rounds: int,
    policy: Mapping[str, Any],
    deadline: float,
    hang: float,
    scout: int = 0,
    least_gain: float = 0.0,
    thorough: bool = False,
    repeats: int = 0,
    limit_of: LimitOf | None = None,
) -> Measuring:
    """Run DFPA with the run's prepared kernel; return the concluded measurement.

    Raises
    ------
    PartitionError
        If the workers' limits do not suffice for ``units``.
    KernelFailed
        If the kernel raised on every worker.
    """
    rounds = Rounds(context, policy, deadline, hang, limit_of)
    members = await rounds.members()
    if sum(member.limit for member in members.values()) < units:
        # what earlier runs found too large is needed now: it must show again
        rounds.heed_earlier = False
        members = await rounds.members()
    context.steps.forget_events()
    context.progress("measure", 0, None, "rounds")

    def begun() -> tuple[Measuring, list[Instruction]]:
        machine = Measuring(
            units,
            members,
            epsilon=epsilon,
            max_rounds=max_rounds,
            scout=scout,
            least_gain=least_gain,
            thorough=thorough,
            repeats=repeats,
        )
        return machine, machine.start()

    machine, instructions = await _planned(len(members), begun)
    context.report["log"] = {"header": machine.header, "events": machine.log}
    while not machine.concluded:
        instructions = await rounds.follow(machine, instructions)
    await rounds.conclude(machine)
    return machine


async def _planned(workers: int, plan: Callable[[], Planned]) -> Planned:
    """Return what `plan` returns; for more than `PLANNED_IN_LOOP` workers it runs in a thread."""
    return plan() if workers <= PLANNED_IN_LOOP else await asyncio.to_thread(plan)


def hardware(fingerprint: Fingerprint, implementation: str) -> tuple[str, float]:
    """Return what workers of equal hardware and kernel share, and the cores that one has."""
    alike = f"{implementation} {canonical(fingerprint.to_json())}"
    quota = math.inf if fingerprint.quota is None else fingerprint.quota
    cores = min(float(fingerprint.nthreads), quota)
    return hashlib.sha256(alike.encode()).hexdigest()[:12], cores


@dataclass
class Rounds:
    """Submits what `Measuring` wants, feeds it what happens, reports each round."""

    context: RunContext
    policy: Mapping[str, Any]
    deadline: float
    hang: float
    limit_of: LimitOf | None
    heed_earlier: bool = True
    step_seconds: list[float] = field(default_factory=list)

    async def follow(
        self, machine: Measuring, instructions: list[Instruction]
    ) -> list[Instruction]:
        """Carry out one round; return the instructions that end it."""
        began, before, number = time.perf_counter(), len(machine.rounds), machine.round
        self.step_seconds.clear()
        orders = [self._order(i) for i in instructions if isinstance(i, Measure)]
        self.context.steps.dispatch(orders, [(order.worker, number) for order in orders])
        patience = self.deadline + self.hang
        timer = asyncio.get_running_loop().call_later(
            patience, self.context.steps.post, ("overdue", number, patience)
        )
        following: list[Instruction] = []
        try:
            while not following:
                event = await self.context.steps.next_event()
                # the answer that ends the round: planning would hold the event loop
                planning = len(machine.members) if len(machine.pending) <= 1 else 0
                following = await _planned(planning, partial(self._feed, machine, event))
        finally:
            timer.cancel()
        wall = time.perf_counter() - began
        for record in machine.rounds[before:]:
            self._tell_round(record, wall, max(self.step_seconds, default=0.0))
        return following

    def _order(self, instruction: Measure) -> Order:
        payload = {"units": instruction.units, "policy": self.policy, "deadline": self.deadline}
        return Order(instruction.worker, TIMED, payload, self.context.coordinator.slots)

    async def members(self) -> dict[str, Member]:
        """Return all workers of the run as members, found `AT_ONCE` in a step of the event loop."""
        found: dict[str, Member] = {}
        async for window in windows(list(self.context.workers), AT_ONCE):
            found |= {a: self.member(a) for a in window if a in self.context.workers}
        # some may have come or left meanwhile
        return {a: found.get(a) or self.member(a) for a in self.context.workers}

    def member(self, address: str) -> Member:
        """Return the worker as a member: its limit, and its model where one is known."""
        limit = math.inf if self.limit_of is None else self.limit_of(address)
        library = self.context.coordinator.library
        kernel, identity = self.context.members.kernel_ids[address], self.context.workers[address]
        if self.heed_earlier:
            now = time.monotonic()
            limit = min(limit, library.limit(kernel, identity, self.deadline, now))
        known = library.find(kernel, identity)
        alike, cores = hardware(identity.fingerprint, kernel.implementation)
        name = self.context.name(address)
        if known is None:
            return Member(name, limit, alike=alike, cores=cores)
        return Member(name, limit, known[0], prior=not known[1], alike=alike, cores=cores)

    def _feed(self, machine: Measuring, event: tuple[Any, ...]) -> list[Instruction]:
        """Give one event to the machine; stale ones are dropped, with a note to the client."""
        match event:
            case ("left", address):
                return machine.left(address)
            case ("joined", address):
                if address not in self.context.workers:
                    return []  # it has left again
                return machine.joined(address, self.member(address))
            case ("news", *_):
                return []  # of what was given up before this measurement
            case ("overdue", number, limit):
                instructions: list[Instruction] = []
                if number == machine.round:
                    for address in sorted(machine.pending):
                        reason = f"no answer within {limit:g} s"
                        self.context.members.give_up_on(address, reason)
                        instructions = machine.overdue(address, number, reason)
                return instructions
            case ("answer", (address, number), answer):
                if number != machine.round or address not in machine.pending:
                    self.context.emit(
                        "stale",
                        worker=self.context.name(address),
                        answered=number,
                        current=machine.round,
                    )
                    return []
                return self._feed_answer(machine, address, number, answer)
        raise AssertionError(event)

    def _feed_answer(
        self,
        machine: Measuring,
        address: str,
        number: int,
        answer: Answer,
    ) -> list[Instruction]:
        if answer.get("left"):
            return machine.left(address)
        if "cancelled" in answer:  # its worker is closing, and the scheduler does not know yet
            self.context.members.leave_out(address, CLOSING)
            return machine.left(address)
        if "error" in answer:
            self.context.members.errors[address] = answer["error"]
            reason = f"{answer['error']['type']}: {answer['error']['message']}"
            self.context.members.leave_out(address, reason)
            return machine.failed(address, number, reason)
        self.step_seconds.append(float(answer["elapsed"]))
        half_width = float(answer.get("half_width", math.inf))
        told = half_width if math.isfinite(half_width) else None  # one repetition tells nothing
        return machine.answered(address, number, float(answer["seconds"]), told)

    def _tell_round(self, record: Any, wall: float, kernel: float) -> None:
        facts = {
            "number": record.number,
            "units": {self.context.name(w): n for w, n in record.units.items()},
            "kernel_seconds": {self.context.name(w): s for w, s in record.seconds.items()},
            "imbalance": record.imbalance,
            "wall_seconds": wall,
            "overhead_seconds": wall - kernel,
        }
        self.context.report["rounds"].append(facts)
        told = {"phase": "measure", "done": record.number, "unit": "rounds"}
        self.context.emit("round", **facts, **told)

    async def conclude(self, machine: Measuring) -> None:
        """Store the models and note the result; raise if there is none."""
        self._remember_too_large(machine)
        for address, member in machine.members.items():
            model, identity = member.model, self.context.workers.get(address)
            if (
                isinstance(model, PiecewiseLinearModel)
                and identity is not None
                and not member.prior
            ):
                self.context.coordinator.library.store(
                    self.context.members.kernel_ids[address],
                    identity,
                    model,
                    machine.half_widths(address),
                )
        result = machine.result
        self.context.report["uncertainty"] = machine.uncertainty
        if result is not None:
            self.context.set_result(
                result.distribution,
                result.seconds,
                result.imbalance,
                result.reason,
                result.proposal,
            )
            members = {self.context.name(a): member.limit for a, member in machine.members.items()}
            limits = {name: limit for name, limit in members.items() if math.isfinite(limit)}
            self.context.report["limits"] = limits
            models = await _planned(len(machine.members), partial(_models_of, machine))
            names = self.context.name
            self.context.report["models"] = {names(a): model for a, model in models.items()}
            return
        if self.context.members.errors and not machine.members:
            raise self.context.members.kernel_failure("the kernel failed on every worker")
        if not machine.members:
            raise CoordinatorError(str(machine.failure))
        late = any(s == math.inf for record in machine.rounds for s in record.seconds.values())
        cure = f". Sizes not finished within deadline = {self.deadline:g} s count as limits"
        raise PartitionError(f"{machine.failure}{cure if late else ''}")

    def _remember_too_large(self, machine: Measuring) -> None:
        library, now = self.context.coordinator.library, time.monotonic()
        for record in machine.rounds:
            for address, seconds in record.seconds.items():
                if seconds != math.inf:
                    continue
                identity = self.context.workers.get(address)
                if identity is not None:
                    kernel, units = self.context.members.kernel_ids[address], record.units[address]
                    library.found_too_large(kernel, identity, units, self.deadline, now)


def _models_of(machine: Measuring) -> dict[str, dict[str, Any]]:
    """Return address -> model as plain data, of a measurement that has ended."""
    return {address: model.to_json() for address, model in machine.models.items()}
