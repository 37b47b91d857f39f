"""What an application's run can do on the cluster: measure, run steps, find and publish chunks."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed.utils import offload

from fpmdask.coordinator.identity import Fingerprint, KernelId, WorkerIdentity, canonical
from fpmdask.coordinator.measuring import Instruction, Measure, Measuring, Member
from fpmdask.coordinator.tickets import Answer, Order
from fpmdask.coordinator.worker import timed
from fpmdask.errors import (
    ChunksLostError,
    CoordinatorError,
    PartitionError,
    RunCancelledError,
)
from fpmdask.models import PiecewiseLinearModel

if TYPE_CHECKING:
    from fpmdask.coordinator.plugin import CoordinatorPlugin

PREPARE_SECONDS = 30.0
# Planning the next round for more workers takes over 10 ms and is done in a thread.
PLANNED_IN_LOOP = 32

LimitOf = Callable[[str], float]


class KernelFailed(CoordinatorError):
    """A step raised on a worker; ``error`` is the exception as plain data."""

    def __init__(self, message: str, error: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.error = dict(error)


class RunContext:
    """One run on the scheduler, from its leases to its report.

    Attributes
    ----------
    spec : dict
        What the client asked for, plain data.
    workers : dict
        Address → `WorkerIdentity` of the workers that take part, in worker order.
    report : dict
        Facts collected for `fpmdask.coordinator.Report`, plain data.
    """

    def __init__(
        self, coordinator: CoordinatorPlugin, run: str, client: str, spec: dict[str, Any]
    ) -> None:
        self.coordinator = coordinator
        self.scheduler = coordinator.scheduler
        self.run = run
        self.client = client
        self.spec = spec
        self.workers: dict[str, WorkerIdentity] = {}
        self.left_out: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        self.news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.report: dict[str, Any] = {"phases": {}, "rounds": [], "log": None}
        self._prepared: set[str] = set()
        self._kernel_ids: dict[str, KernelId] = {}
        self._kernel: dict[str, Any] | None = None
        self._inbox: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self._limit_of: LimitOf | None = None
        self._errors: dict[str, Mapping[str, Any]] = {}
        self._started = time.monotonic()

    # ---- progress

    def emit(self, event: str, **facts: Any) -> None:
        """Tell the client what happened; it reads this at its next poll."""
        self.events.append(
            {"event": event, "seconds": round(time.monotonic() - self._started, 4), **facts}
        )
        # from a planning thread, too
        self._loop.call_soon_threadsafe(self.news.set)

    def name(self, address: str) -> str:
        """Return the name of a worker, also of one that is gone."""
        known = self.scheduler.workers.get(address) or self.coordinator.identities.get(address)
        return address if known is None else str(known.name)

    # ---- membership

    async def acquire(self, kernel: dict[str, Any] | None) -> None:
        """Wait for the leases of the wanted workers, and prepare them with ``kernel``.

        Raises
        ------
        CoordinatorError
            If a named worker is not there, or no worker can take part.
        KernelFailed
            If the kernel cannot be opened on any worker.
        """
        self._kernel = kernel
        wanted = self._wanted()
        stuck = self.coordinator.leases.stuck
        for address in [address for address in wanted if address in stuck]:
            self.leave_out(address, f"still occupied by a call of run {stuck[address]}")
        held = await self.coordinator.lease(self.run, wanted)
        present = [address for address in wanted if address in held]
        answers = await asyncio.gather(*(self._prepare(address) for address in present))
        for address, failure in zip(present, answers, strict=True):
            if failure is not None:
                self.leave_out(address, failure)
        # they have answered in any order
        self.workers = {a: self.workers[a] for a in present if a in self.workers}
        if not self.workers:
            if self._errors:
                raise self._kernel_failure("the kernel cannot be opened on any worker")
            reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
            raise CoordinatorError(f"no worker can take part ({reasons or 'none is connected'})")

    def _wanted(self) -> list[str]:
        states = self.scheduler.workers
        names = self.spec.get("workers")
        if names is None:
            return sorted(states, key=lambda a: (len(str(states[a].name)), str(states[a].name)))
        by_name = {str(state.name): address for address, state in states.items()}
        unknown = [name for name in names if name not in by_name and name not in states]
        if unknown:
            raise CoordinatorError(
                f"no worker {', '.join(unknown)} in the cluster; connected are: "
                f"{', '.join(by_name) or 'none'}"
            )
        return list(dict.fromkeys(by_name.get(name, name) for name in names))

    async def _prepare(self, address: str, patience: float = PREPARE_SECONDS) -> str | None:
        """Introduce a worker; return why it cannot take part, or None."""
        try:
            answer = await asyncio.wait_for(
                self.scheduler.rpc(address).fpmdask_prepare(run=self.run, kernel=self._kernel),
                patience,
            )
        except (OSError, TimeoutError) as error:
            return f"did not answer: {error!r}"
        if answer is None:  # what Dask answers where there is no such handler
            return "has not finished starting"
        if "unusable" in answer:
            return str(answer["unusable"])
        self._prepared.add(address)
        identity = WorkerIdentity(
            answer["name"], Fingerprint.from_json(answer["fingerprint"]), answer["start"]
        )
        self.coordinator.identities[address] = identity
        if "error" in answer:
            self._errors[address] = answer["error"]
            return f"{answer['error']['type']}: {answer['error']['message']}"
        self.workers[address] = identity
        if self._kernel is not None:
            self._kernel_ids[address] = KernelId(
                self._kernel["name"],
                answer["implementation"],
                canonical(self._kernel["parameters"]),
            )
        return None

    def leave_out(self, address: str, reason: str) -> None:
        """Note that a worker takes no further part."""
        self.workers.pop(address, None)
        self.left_out[self.name(address)] = reason
        self.emit("left out", worker=self.name(address), reason=reason)

    def worker_left(self, address: str) -> None:
        """Hook: a worker is gone."""
        if address in self.workers:
            self.leave_out(address, "left the cluster")
            self.post(("left", address))

    async def worker_joined(self, address: str) -> None:
        """Hook: a worker has come; it takes part from the next round."""
        if self.spec.get("workers") is not None or self._kernel is None:
            return
        give_up = time.monotonic() + PREPARE_SECONDS
        failure: str | None = "has not finished starting"
        while failure and time.monotonic() < give_up and address in self.scheduler.workers:
            await asyncio.sleep(0.1)
            failure = await self._prepare(address)
        if failure or not self.coordinator.leases.extend(self.run, address):
            self.workers.pop(address, None)
            return
        self.emit("joined", worker=self.name(address))
        self.post(("joined", address))

    # ---- measuring

    async def measure(
        self,
        units: int,
        *,
        epsilon: float,
        max_rounds: int,
        policy: Mapping[str, Any],
        deadline: float,
        hang: float,
        scout: int = 0,
        least_gain: float = 0.0,
        limit_of: LimitOf | None = None,
    ) -> Measuring:
        """Run DFPA with the prepared kernel; return the concluded measurement.

        Raises
        ------
        PartitionError
            If the workers' limits do not suffice for ``units``.
        KernelFailed
            If the kernel raised on every worker.
        """
        self._limit_of = limit_of
        self._inbox = asyncio.Queue()
        members = {address: self._member(address) for address in self.workers}
        machine = Measuring(
            units,
            members,
            epsilon=epsilon,
            max_rounds=max_rounds,
            scout=scout,
            least_gain=least_gain,
        )
        self.report["log"] = {"header": machine.header, "events": machine.log}
        instructions = machine.start()
        slots = self.coordinator.slots
        while not machine.concluded:
            began, rounds = time.perf_counter(), len(machine.rounds)
            number = machine.round
            orders = [
                Order(
                    i.worker,
                    timed,
                    {"units": i.units, "policy": policy, "deadline": deadline},
                    slots,
                )
                for i in instructions
                if isinstance(i, Measure)
            ]
            self.dispatch(orders, [(order.worker, number) for order in orders])
            timer = asyncio.get_running_loop().call_later(
                deadline + hang, self.post, ("overdue", number, deadline + hang)
            )
            step_seconds: list[float] = []
            try:
                instructions = []
                while not instructions:
                    event = await self.next_event()
                    if len(machine.members) > PLANNED_IN_LOOP and len(machine.pending) <= 1:
                        # the answer that ends the round: planning would hold the event loop
                        instructions = await offload(self._feed, machine, event, step_seconds)
                    else:
                        instructions = self._feed(machine, event, step_seconds)
            finally:
                timer.cancel()
            wall = time.perf_counter() - began
            for record in machine.rounds[rounds:]:
                self._tell_round(record, wall, max(step_seconds, default=0.0))
        return self._concluded(machine)

    def _member(self, address: str) -> Member:
        limit = math.inf if self._limit_of is None else self._limit_of(address)
        known = self.coordinator.library.find(self._kernel_ids[address], self.workers[address])
        if known is None:
            return Member(self.name(address), limit)
        return Member(self.name(address), limit, known[0], prior=not known[1])

    def _feed(
        self, machine: Measuring, event: tuple[Any, ...], step_seconds: list[float]
    ) -> list[Instruction]:
        """Give one event to the machine; stale ones are dropped, with a note to the client."""
        match event:
            case ("left", address):
                return machine.left(address)
            case ("joined", address):
                return machine.joined(address, self._member(address))
            case ("overdue", number, limit):
                instructions: list[Instruction] = []
                if number == machine.round:
                    for address in sorted(machine.pending):
                        reason = f"no answer within {limit:g} s"
                        self.leave_out(address, reason)
                        instructions = machine.overdue(address, number, reason)
                return instructions
            case ("answer", (address, number), answer):
                if number != machine.round or address not in machine.pending:
                    self.emit(
                        "stale", worker=self.name(address), answered=number, current=machine.round
                    )
                    return []
                return self._feed_answer(machine, address, number, answer, step_seconds)
        raise AssertionError(event)

    def _feed_answer(
        self,
        machine: Measuring,
        address: str,
        number: int,
        answer: Answer,
        step_seconds: list[float],
    ) -> list[Instruction]:
        if answer.get("left"):
            return machine.left(address)
        if "error" in answer:
            self._errors[address] = answer["error"]
            reason = f"{answer['error']['type']}: {answer['error']['message']}"
            self.leave_out(address, reason)
            return machine.failed(address, number, reason)
        step_seconds.append(float(answer["elapsed"]))
        return machine.answered(address, number, float(answer["seconds"]))

    def _tell_round(self, record: Any, wall: float, kernel: float) -> None:
        facts = {
            "number": record.number,
            "units": {self.name(w): n for w, n in record.units.items()},
            "kernel_seconds": {self.name(w): s for w, s in record.seconds.items()},
            "imbalance": record.imbalance,
            "wall_seconds": wall,
            "overhead_seconds": wall - kernel,
        }
        self.report["rounds"].append(facts)
        self.emit("round", **facts)

    def _concluded(self, machine: Measuring) -> Measuring:
        for address, member in machine.members.items():
            model, identity = member.model, self.workers.get(address)
            if (
                isinstance(model, PiecewiseLinearModel)
                and identity is not None
                and not member.prior
            ):
                self.coordinator.library.store(self._kernel_ids[address], identity, model)
        result = machine.result
        if result is not None:
            self.set_result(
                result.distribution,
                result.seconds,
                result.imbalance,
                result.reason,
                result.proposal,
            )
            self.report["models"] = {
                self.name(address): member.model.to_json()
                for address, member in machine.members.items()
                if member.model is not None
            }
            return machine
        if self._errors and not machine.members:
            raise self._kernel_failure("the kernel failed on every worker")
        if not machine.members:
            raise CoordinatorError(str(machine.failure))
        raise PartitionError(str(machine.failure))

    def set_result(
        self,
        distribution: Mapping[str, int],
        seconds: Mapping[str, float],
        imbalance: float | None,
        reason: str,
        proposal: Mapping[str, int],
    ) -> None:
        """Note the distribution that was found or given, for the report."""
        self.report["names"] = {address: self.name(address) for address in distribution}
        self.report["result"] = {
            "distribution": dict(distribution),
            "seconds": dict(seconds),
            "imbalance": imbalance,
            "reason": reason,
            "proposal": dict(proposal),
        }

    def _kernel_failure(self, what: str) -> KernelFailed:
        address, error = next(iter(self._errors.items()))
        where = self.name(address)
        return KernelFailed(f"{what}; on {where}: {error['type']}: {error['message']}", error)

    # ---- steps and chunks, for applications

    def dispatch(self, orders: Sequence[Order], tags: Sequence[Any]) -> None:
        """Submit steps to pinned workers; answers come as events ("answer", tag, answer)."""
        answers = self.coordinator.tickets.submit(self.run, orders)
        for answer, tag in zip(answers, tags, strict=True):
            answer.add_done_callback(partial(self._post_answer, tag))

    def _post_answer(self, tag: Any, done: asyncio.Future[Answer]) -> None:
        if not done.cancelled():
            self.post(("answer", tag, done.result()))

    def post(self, event: tuple[Any, ...]) -> None:
        """Put an event into the run's inbox."""
        self._inbox.put_nowait(event)

    async def next_event(self) -> tuple[Any, ...]:
        """Wait for the run's next event: left, joined, answer, or what the application posts."""
        return await self._inbox.get()

    def model_of(self, address: str) -> PiecewiseLinearModel | None:
        """Return the worker's model of the prepared kernel, if it has one."""
        known = self.coordinator.library.find(self._kernel_ids[address], self.workers[address])
        return None if known is None else known[0]

    def holders(self, keys: Iterable[Any]) -> dict[Any, list[str]]:
        """Return who holds each chunk.

        Raises
        ------
        ChunksLostError
            If a chunk is in nobody's memory and cannot be made again.
        """
        places: dict[Any, list[str]] = {}
        lost = []
        for key in keys:
            state = self.scheduler.tasks.get(key)
            if state is None or (not state.who_has and state.run_spec is None):
                lost.append(key)
            elif state.state == "erred":
                raise CoordinatorError(f"chunk {key} cannot be computed: {state.exception_text}")
            else:
                places[key] = [holder.address for holder in state.who_has or ()]
        if lost:
            raise ChunksLostError(
                f"{len(lost)} input chunks were only on workers that are gone and have no task to "
                f"make them again: {', '.join(map(str, lost[:8]))}{', …' * (len(lost) > 8)}. "
                "Build the inputs as persisted collections, or replicate scattered data"
            )
        return places

    async def wait_for_chunks(self, keys: Sequence[Any], patience: float) -> dict[Any, list[str]]:
        """Return `holders` once every chunk is in memory somewhere, within ``patience`` seconds."""
        give_up = time.monotonic() + patience
        while True:
            places = self.holders(keys)
            missing = [key for key, addresses in places.items() if not addresses]
            if not missing:
                return places
            if time.monotonic() > give_up:
                raise ChunksLostError(
                    f"{len(missing)} input chunks were not made again within {patience:g} s: "
                    f"{', '.join(map(str, missing[:8]))}"
                )
            await asyncio.sleep(0.05)

    def free_nbytes(self, address: str) -> float:
        """Return the bytes a plan may still put on a worker (inf: it has no memory limit)."""
        state = self.scheduler.workers[address]
        if not state.memory_limit:
            return math.inf
        target = self.coordinator.spill_target * state.memory_limit
        return max(0.0, target - state.memory.optimistic)

    async def publish(self, keys: Mapping[str, Mapping[Any, int]]) -> bool:
        """Make parts Dask data of the calling client: worker → {Dask key: part}.

        Nothing is published and False returned when one of the workers is gone.
        """
        answers = await asyncio.gather(
            *(
                self.scheduler.rpc(address).fpmdask_publish(run=self.run, keys=dict(parts))
                for address, parts in keys.items()
            ),
            return_exceptions=True,
        )
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        gone = [address for address in keys if address not in self.scheduler.workers]
        if failures or gone:
            for address in keys.keys() - set(gone):
                message = {"op": "free-keys", "keys": list(keys[address]), "stimulus_id": self.run}
                self.scheduler.worker_send(address, message)
            if not all(isinstance(failure, OSError) for failure in failures):
                raise failures[0]
            return False
        if self.client not in self.scheduler.clients:
            # it left at this moment, and its cancellation is on the way: the scheduler would make
            # a client of this name that never ends and holds the result for ever
            raise RunCancelledError(f"the client of run {self.run} has disconnected")
        for address, answer in zip(keys, answers, strict=True):
            assert not isinstance(answer, BaseException)
            nbytes = answer["nbytes"]
            self.scheduler.update_data(
                who_has={key: [address] for key in nbytes}, nbytes=nbytes, client=self.client
            )
            for key, name in answer["types"].items():
                # what a computed task has and a scattered one has not; the recipe comes later
                self.scheduler.tasks[key].type = name
        return True

    async def close(self) -> None:
        """Tell all the workers that the run is over, and give the leases back."""
        # Only to those that know the message: an unknown one ends a worker.
        for address in self._prepared & self.scheduler.workers.keys():
            # one way: nobody needs the answer, and a worker that hangs must not hold the run
            self.scheduler.worker_send(address, {"op": "fpmdask-forget", "run": self.run})
        self.coordinator.give_back(self.run)
