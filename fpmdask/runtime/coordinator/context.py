"""A run on the cluster: its workers, its steps and their answers, what it tells the client."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from fpmdask import config
from fpmdask.errors import CoordinatorError, NoWorkersError
from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.app import App, messages
from fpmdask.runtime.coordinator.busy import LOOK_SECONDS, Occupied, occupied
from fpmdask.runtime.coordinator.tickets import Answer, Order
from fpmdask.runtime.identity import Fingerprint, KernelId, WorkerIdentity
from fpmdask.runtime.patience import TOLD_SECONDS, StepTimes
from fpmdask.runtime.progress import Pace
from fpmdask.runtime.wire import TIMED, Prepared, Question, Unprepared, check_message

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.lineage import Recompute
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin

PREPARE_SECONDS = 30.0
STARTING = "has not finished starting"
CLOSING = "is closing"
ENDING = {Status.closing, Status.closing_gracefully, Status.closed}
GONE = "left the cluster"
TAKEN = "used, or waited for, by another run"
# The run of a context that only asks whether something could be run.
CHECK = "check"
# The event of a background task that has ended with an exception.
FAILED = object()
# A worker that joins is asked again after so long whether it is ready and free.
JOIN_SECONDS = 0.1
# How often it is looked whether workers that compute have stopped.
STOPPED_LOOK_SECONDS = 0.25


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
        Facts collected for `fpmdask.runtime.report.Report`, plain data.
    tuning : Tuning
        The scheduler's; its workers have the same.
    """

    def __init__(
        self,
        coordinator: CoordinatorPlugin,
        run: str,
        client: str,
        spec: dict[str, Any],
        app: App,
    ) -> None:
        self.coordinator = coordinator
        self.scheduler = coordinator.scheduler
        self.tuning = coordinator.tuning
        self.run = run
        # the run that holds the workers: itself, or the one within which it is
        self.lease = str(spec.get("within") or run)
        self.client = client
        self.spec = spec
        self.workers: dict[str, WorkerIdentity] = {}
        self.left_out: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        # what the client is asked for, in order, and what it answers
        self.requests: list[dict[str, Any]] = []
        self._answers: list[tuple[Question, asyncio.Future[dict[str, Any]]]] = []
        self.news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.report: dict[str, Any] = {"phases": {}, "rounds": [], "log": None}
        self._names: dict[str, str] = {}
        self._acquired = asyncio.Event()
        self._closed = False
        self._preparing: dict[str, asyncio.Task[Any]] = {}
        self._prepared: set[str] = set()
        self._overdue: set[str] = set()
        self.kernel_ids: dict[str, KernelId] = {}
        self.channels: dict[str, tuple[str, int]] = {}
        self._kernel: dict[str, Any] | None = None
        self._inbox: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self.errors: dict[str, Mapping[str, Any]] = {}
        self.app = app
        self.messages = messages(app)
        self.published: list[Any] = []  # keys of the result
        self.expected: float | None = None  # seconds that the steps under way should take
        # worker name → (units that it is to do, units done), where the application can tell
        self.shares_now: Callable[[], Mapping[str, tuple[float, float]]] | None = None
        self._steps: list[StepTimes] = []
        self._recompute: Recompute | None = None
        self._shunned: set[str] = set()
        self._started = time.monotonic()
        self._pace = Pace()

    # ---- progress

    def emit(self, event: str, **facts: Any) -> None:
        """Tell the client what happened; it reads this at its next poll."""
        self.events.append(
            {"event": event, "seconds": round(time.monotonic() - self._started, 4), **facts}
        )
        # from a planning thread, too
        self._loop.call_soon_threadsafe(self.news.set)

    def progress(self, phase: str, done: float, total: float | None, unit: str) -> None:
        """Tell the client how far a phase is, a few times a second at most."""
        if self._pace.due(phase, time.monotonic(), last=done == total):
            self.emit("progress", phase=phase, done=done, total=total, unit=unit)

    def emit_busy(self, busy: Mapping[str, tuple[Occupied, float]]) -> None:
        """Tell the client of workers that are waited for, as tasks of others keep them busy."""
        tasks = {self.name(address): found.task for address, (found, _) in busy.items()}
        since = {self.name(address): found.seconds for address, (found, _) in busy.items()}
        self.emit("waiting", workers=[*tasks], tasks=tasks, busy_seconds=since)

    def ask_client(self, request: str, **facts: Any) -> asyncio.Future[dict[str, Any]]:
        """Ask the calling client for what only it can do; it reads this at its next poll.

        The future gets its answer; what it raises there ends the run. Requests are no events: the
        user's progress does not hear of them.
        """
        answer = self._loop.create_future()
        self._answers.append((self.messages.questions[request], answer))
        self.requests.append({"request": request, **facts})
        self.news.set()
        return answer

    def client_answers(self, number: int, answer: Mapping[str, Any]) -> None:
        """Take in what the client has answered to a request.

        Raises
        ------
        CoordinatorError
            If there is no such request, it has been answered, or the answer is malformed.
        """
        if not 0 <= number < len(self._answers) or self._answers[number][1].done():
            raise CoordinatorError(f"run {self.run} waits for no answer to a request {number}")
        question, waiting = self._answers[number]
        check_message(question.answer, answer, f"the answer to {self.requests[number]['request']}")
        waiting.set_result(dict(answer))

    def name(self, address: str) -> str:
        """Return the name of a worker, also of one that is gone."""
        known = self.scheduler.workers.get(address) or self.coordinator.identities.get(address)
        if known is not None:
            self._names[address] = str(known.name)
        return self._names.get(address, address)

    # ---- membership

    async def hold(self, wanted: Sequence[str]) -> set[str]:
        """Wait until no other run uses some workers, nor will until this one ends; return them.

        Without those that have left or are stuck. A run within another one uses the workers of
        that, and those that have joined since.
        """
        for address in wanted:
            self.name(address)  # to be remembered when it is gone
        if self.lease != self.run:
            return await self.coordinator.lease_within(self.lease, wanted, self._patience)
        if busy := self.coordinator.leases.busy(wanted):
            self.emit(
                "waiting", workers=[self.name(a) for a in busy], runs=sorted({*busy.values()})
            )
        return await self.coordinator.lease(self.run, wanted)

    async def acquire(self, kernel: dict[str, Any] | None) -> None:
        """Wait for the leases of the wanted workers, and prepare them with ``kernel``.

        Raises
        ------
        CoordinatorError
            If a named worker is not there, or no worker can take part.
        KernelFailed
            If the kernel cannot be opened on any worker.
        """
        if kernel is not None and (factory := self.app.kernels.get(kernel.get("name", ""))):
            kernel = {**kernel, "factory": factory}
        self._kernel = kernel
        wanted = self.candidates()
        held = await self.hold(wanted)
        present = [address for address in wanted if address in held]
        for address in wanted:
            if address not in held:
                self.leave_out(address, why := self._why_not(address))
                if why == TAKEN:
                    self.background(self.worker_joined(address))
        present = await self._with_free_threads(present)
        answers = await asyncio.gather(*(self._introduce(address) for address in present))
        for address, answer in zip(present, answers, strict=True):
            if isinstance(answer, str):
                self.leave_out(address, answer)
                if answer == STARTING:
                    self.background(self.worker_joined(address))
            elif address not in self.scheduler.workers:
                self.leave_out(address, self._why_not(address))
            else:
                self.workers[address] = answer
        self.background(self._look_for_stopped())
        if not self.workers:
            if self.errors:
                raise self.kernel_failure("the kernel cannot be opened on any worker")
            reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
            raise CoordinatorError(f"no worker can take part ({reasons}); start others, or wait")
        self._acquired.set()

    async def _with_free_threads(self, present: Sequence[str]) -> list[str]:
        """Return the workers that are not busy with tasks of others, for which a while is waited.

        Not for those that were seen busy with the same task for so long already. The others are
        left out and take part once they are free; where all are busy, the run waits.
        """
        states, began, told = self.scheduler.workers, time.monotonic(), False
        patience = config.seconds("busy-patience")
        while True:
            here = {address: states[address] for address in present if address in states}
            now = time.monotonic()
            busy = self.coordinator.busy.seen(here.values(), now)
            waited = now - began
            least = min((max(waited, seen) for _, seen in busy.values()), default=0.0)
            if not busy or (least >= patience and len(busy) < len(here)):
                break
            if waited >= TOLD_SECONDS and not told:
                told = True
                self.emit_busy(busy)
            await asyncio.sleep(LOOK_SECONDS)
        for address, (found, _) in busy.items():
            reason = f"busy with {found.task}, for {found.seconds:g} s when last heard of"
            self.leave_out(address, reason)
            self.background(self._take_in_when_free(address))
        return [address for address in present if address not in busy]

    async def _take_in_when_free(self, address: str) -> None:
        """Have a worker that was busy take part once a thread of it is free; its lease is held."""
        while (state := self.scheduler.workers.get(address)) is not None and occupied(state):
            await asyncio.sleep(LOOK_SECONDS)
            if self._closed:
                return
        await self._acquired.wait()
        answer = await self._introduce(address)
        if isinstance(answer, WorkerIdentity):
            self._take_in(address, answer)

    def _take_in(self, address: str, identity: WorkerIdentity) -> None:
        """Have a worker take part from now on, unless it or the run is over."""
        if self._closed or address not in self.scheduler.workers:
            return
        self.workers[address] = identity
        self.left_out.pop(self.name(address), None)
        self.emit("joined", worker=self.name(address))
        self.post(("joined", address))

    def _why_not(self, address: str) -> str:
        if address not in self.scheduler.workers:
            return GONE
        run = self.coordinator.leases.stuck.get(address)
        return TAKEN if run is None else f"still occupied by a call of run {run}"

    def candidates(self) -> list[str]:
        """Return the addresses of the workers that the run would use now, in worker order.

        Raises
        ------
        CoordinatorError
            If a named worker is not there, or there is none.
        """
        states = self.scheduler.workers
        names = self.spec.get("workers")
        if not states:
            raise NoWorkersError(
                "no worker is connected; start some (client.wait_for_workers waits for them)"
            )
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

    async def _prepare(self, address: str) -> dict[str, Any] | str:
        """Have a worker open the kernel; return its answer, or why there is none."""
        try:
            answer: dict[str, Any] | None = await self.scheduler.rpc(address).fpmdask_prepare(
                run=self.run, kernel=self._kernel, tasks=self.app.worker
            )
        except OSError as error:
            return f"did not answer: {error!r}"
        if answer is None:  # what Dask answers where there is no such handler
            state = self.scheduler.workers.get(address)
            return CLOSING if state is None or state.status in ENDING else STARTING
        check_message(Prepared | Unprepared, answer, f"what {self.name(address)} answers")
        if "unusable" in answer:
            return str(answer["unusable"])
        self._prepared.add(address)
        if self._closed:
            self.forget()
        return answer

    async def _introduce(self, address: str) -> WorkerIdentity | str:
        """Return who a worker is, ready for the kernel, or why it cannot take part."""
        # it goes on when nobody waits any more: the worker must be told then that the run is over
        preparing = self._preparing[address] = self.coordinator.beside(self._prepare(address))
        liveness = self.coordinator.liveness
        try:
            async with asyncio.timeout(PREPARE_SECONDS):
                await liveness.answer(address, asyncio.wait([preparing]), "open the kernel")
        except TimeoutError as stopped:
            return str(stopped) or f"has not opened the kernel within {PREPARE_SECONDS:g} s"
        if preparing.cancelled():
            return GONE
        answer = preparing.result()
        if isinstance(answer, str):
            return answer
        identity = WorkerIdentity(
            answer["name"], Fingerprint.from_json(answer["fingerprint"]), answer["start"]
        )
        if address in self.scheduler.workers:  # it may have left: nobody would drop this
            self.coordinator.identities[address] = identity
        if "error" in answer:
            self.errors[address] = answer["error"]
            return f"{answer['error']['type']}: {answer['error']['message']}"
        if answer["channel"] is not None:
            host, port = answer["channel"]
            self.channels[address] = (host, port)
        if "kernel" in answer:
            self.kernel_ids[address] = KernelId(**answer["kernel"])
        return identity

    def leave_out(self, address: str, reason: str) -> None:
        """Note that a worker takes no further part."""
        self.workers.pop(address, None)
        self.left_out[self.name(address)] = reason
        self.emit("left out", worker=self.name(address), reason=reason)

    def give_up_on(self, address: str, reason: str) -> None:
        """Leave out a worker whose call does not return; it gets no work until that returns."""
        self._overdue.add(address)
        self.leave_out(address, reason)

    def why_left(self, address: str) -> str:
        """Return which worker has left, or was given up, and why."""
        name = self.name(address)
        return f"{name} {self.left_out.get(name, GONE)}"

    def shun(self, address: str) -> None:
        """Have the run's workers ask one that hangs no more, and end what they wait for.

        Also if it goes on: what it holds is recomputed elsewhere, and only a worker that starts at
        its address is asked again.
        """
        self._shunned.add(address)
        self._tell_prepared({"op": "fpmdask-gone", "worker": address})

    def is_lost(self, address: str) -> bool:
        """Tell whether what a worker holds cannot be used by the run."""
        return address in self._shunned or self.coordinator.liveness.has_stopped(address)

    def worker_back(self, address: str) -> None:
        """Hook: a worker has come; it may be asked again if one of this address had left."""
        self._shunned.discard(address)
        self._tell_prepared({"op": "fpmdask-back", "worker": address})

    def worker_left(self, address: str) -> None:
        """Hook: a worker is gone; who waits for an answer of it need not."""
        if address in self._preparing:
            self._preparing.pop(address).cancel()
        self.channels.pop(address, None)
        self.shun(address)
        if address in self.workers:
            self.leave_out(address, GONE)
        if address in self._prepared:  # one that was left out may hold a part of the result
            self.post(("left", address))

    async def worker_joined(self, address: str) -> None:
        """Hook: a worker has come; it takes part from the next round."""
        wanted = self.spec.get("workers")
        if wanted is not None and not {self.name(address), address} & set(wanted):
            return  # a named worker may be restarted, under another address
        await self._acquired.wait()
        give_up = time.monotonic() + PREPARE_SECONDS
        answer: WorkerIdentity | str = STARTING
        while answer == STARTING and time.monotonic() < give_up and not self._closed:
            await asyncio.sleep(JOIN_SECONDS)
            if address not in self.scheduler.workers or address in self.workers:
                return
            answer = await self._introduce(address)
        if isinstance(answer, str) or self._closed or address not in self.scheduler.workers:
            return
        leases = self.coordinator.leases
        while address not in leases.held_by(self.lease) and not leases.extend(self.lease, address):
            await asyncio.sleep(JOIN_SECONDS)  # another run uses it, or waits for it
            if self._closed or address not in self.scheduler.workers:
                return
        self._take_in(address, answer)

    def set_result(
        self,
        distribution: Mapping[str, int],
        seconds: Mapping[str, float | None],
        imbalance: float | None,
        reason: str,
        proposal: Mapping[str, int],
    ) -> None:
        """Note the distribution that was found or given, for the report.

        `seconds` are None where nothing was measured.
        """
        self.report["names"] = {address: self.name(address) for address in distribution}
        self.report["result"] = {
            "distribution": dict(distribution),
            "seconds": dict(seconds),
            "imbalance": imbalance,
            "reason": reason,
            "proposal": dict(proposal),
        }

    def kernel_failure(self, what: str) -> KernelFailed:
        """Return the exception that tells the client what the kernel raised, and where."""
        address, error = next(iter(self.errors.items()))
        where = self.name(address)
        return KernelFailed(f"{what}; on {where}: {error['type']}: {error['message']}", error)

    # ---- steps, for applications

    def dispatch(self, orders: Sequence[Order], tags: Sequence[Any]) -> None:
        """Submit steps to pinned workers; answers come as events ("answer", tag, answer).

        Raises
        ------
        CoordinatorError
            If the application does not declare what a step and the coordinator tell each other.
        """
        declared = self.messages.steps
        for step in {order.step for order in orders}.difference(declared, [TIMED]):
            known = ", ".join(one.name for one in declared) or "none"
            raise CoordinatorError(
                f"the application {self.app.name} declares no step {step.name}; it declares "
                f"{known}: name it in its `messages`"
            )
        answers = self.coordinator.tickets.submit(self.run, orders)
        self.coordinator.history.dispatched(self, orders, answers)
        steps = StepTimes((order.worker for order in orders), time.monotonic())
        self._steps.append(steps)
        for answer, tag, order in zip(answers, tags, orders, strict=True):
            answer.add_done_callback(partial(self._post_answer, tag))
            answer.add_done_callback(partial(self._step_ended, steps, order.worker))

    def _step_ended(self, steps: StepTimes, worker: str, _: asyncio.Future[Answer]) -> None:
        steps.ended(worker, time.monotonic())
        if not steps.open:
            self._steps.remove(steps)

    async def _look_for_stopped(self) -> None:
        """Give up on workers of the run that give no sign of life while steps are late."""
        liveness, hang = self.coordinator.liveness, float(self.spec["measuring"]["hang"])
        while not self._closed:
            await asyncio.sleep(STOPPED_LOOK_SECONDS)
            # one that has done its own steps may hold what others wait for
            waited = [
                patience
                for steps in self._steps
                if steps.open
                and time.monotonic() - steps.began
                >= (patience := steps.patience(self.expected, hang))
            ]
            least = min(waited, default=math.inf)
            late = {w for w in self.workers if liveness.silent_seconds(w) >= least}
            for worker in await liveness.stopped(late) if late else ():
                if worker in self.workers:
                    reason = f"gave no sign of life for {liveness.silent_seconds(worker):.1f} s"
                    self.give_up_on(worker, reason)
                    self.shun(worker)
                    self.post(("left", worker))

    def recompute(self, keys: Iterable[Any]) -> None:
        """Have chunks that only stopped workers hold recomputed on others, beside the run."""
        if not (self._shunned or self.coordinator.liveness.any_stopped):
            return
        if self._recompute is None:
            self._recompute = self.coordinator.recompute(self.run, self.is_lost)
        if needed := self._recompute.needed(keys):
            self.background(self._recomputed(self._recompute, needed))

    async def _recomputed(self, recompute: Recompute, keys: Sequence[Any]) -> None:
        self.emit("recomputing", chunks=len(keys))
        if impossible := await recompute.again(keys):
            states = filter(None, map(self.scheduler.tasks.get, impossible))
            where = sorted({self.name(w.address) for state in states for w in state.who_has or ()})
            self.emit("waiting", workers=where, chunks=len(impossible))

    def tell(self, address: str, to: str, note: Any) -> None:
        """Tell a step on a worker something, without waiting; it listens to the name ``to``."""
        if address in self._prepared and address in self.scheduler.workers:
            message = {"op": "fpmdask-tell", "run": self.run, "to": to, "note": note}
            self.scheduler.worker_send(address, message)

    def _post_answer(self, tag: Any, done: asyncio.Future[Answer]) -> None:
        if not done.cancelled():
            self.post(("answer", tag, done.result()))

    def post(self, event: tuple[Any, ...]) -> None:
        """Put an event into the run's inbox."""
        self._inbox.put_nowait(event)

    def fail(self, error: BaseException) -> None:
        """End the run by an error, at its next event."""
        self.post((FAILED, error))

    def forget_events(self) -> None:
        """Empty the inbox: what came before a measurement began is in its members."""
        before, self._inbox = self._inbox, asyncio.Queue()
        while not before.empty():
            if (event := before.get_nowait())[0] is FAILED:
                self.post(event)

    async def next_event(self) -> tuple[Any, ...]:
        """Wait for the run's next event: left, joined, answer, or what the application posts.

        Raises
        ------
        Exception
            What ended a task of `background`.
        """
        event = await self._inbox.get()
        if event[0] is FAILED:
            raise event[1]
        return event

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` beside the run; an exception that it ends with ends the run, too."""
        task = self.coordinator.beside(work)
        task.add_done_callback(self._background_ended)
        return task

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def model_of(self, address: str) -> PiecewiseLinearModel | None:
        """Return the worker's model of the prepared kernel, if it has one."""
        if address not in self.workers:
            return None  # it has left at this moment
        known = self.coordinator.library.find(self.kernel_ids[address], self.workers[address])
        return None if known is None else known[0]

    async def close(self) -> None:
        """Tell all the workers that the run is over, and give the leases back."""
        self._closed = True
        if self._recompute is not None:
            self._recompute.release()
        self._acquired.set()  # who waits for it has nothing to join
        self.forget()
        ends = self.lease == self.run
        self.coordinator.give_back(self.lease, self._overdue, self._patience if ends else None)

    @property
    def _patience(self) -> float:
        """Seconds for which another run waits for a call of this one to return."""
        measuring = self.spec["measuring"]
        return float(measuring["deadline"] + measuring["hang"])

    def forget(self) -> None:
        """Tell the workers that the run is over: they stop what they do for it, and drop it."""
        self._tell_prepared({"op": "fpmdask-forget", "run": self.run})
        self._prepared.clear()

    def _tell_prepared(self, message: dict[str, Any]) -> None:
        """Send a message to the run's workers: one way, lest one that hangs holds the run."""
        # Only to those that know the message: an unknown one ends a worker.
        for address in self._prepared & self.scheduler.workers.keys():
            self.scheduler.worker_send(address, message)
