"""The coordinator: a scheduler plugin that owns models, leases and runs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

import fpmdask
from fpmdask import config
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.app import App, code, find, messages
from fpmdask.runtime.coordinator import models
from fpmdask.runtime.coordinator.busy import Busy
from fpmdask.runtime.coordinator.client_stages import ClientStages
from fpmdask.runtime.coordinator.context import CHECK, RunContext
from fpmdask.runtime.coordinator.history import History
from fpmdask.runtime.coordinator.installation import worker_shim
from fpmdask.runtime.coordinator.leases import Leases
from fpmdask.runtime.coordinator.library import ModelLibrary
from fpmdask.runtime.coordinator.lineage import Recompute
from fpmdask.runtime.coordinator.liveness import Liveness
from fpmdask.runtime.coordinator.membership import KernelFailed
from fpmdask.runtime.coordinator.observability import observe
from fpmdask.runtime.coordinator.stored_models import StoredModels
from fpmdask.runtime.coordinator.tickets import Tickets
from fpmdask.runtime.coordinator.windows import windows
from fpmdask.runtime.dask_private import release_for
from fpmdask.runtime.identity import WorkerIdentity
from fpmdask.runtime.memory import Account
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.version import PLUGIN, check_version
from fpmdask.runtime.wire import MalformedError, Step, check_message

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState

    from fpmdask.runtime.links import Link

logger = logging.getLogger(__name__)


# A poll is answered after this many seconds even without news, so that dead comms are noticed.
POLL_SECONDS = 10.0
# So long is waited for workers to give free memory back before a run is refused for want of it.
TRIM_SECONDS = 5.0
# Workers have taken in their plugin by then, but for those that have stopped.
INSTALL_SECONDS = 1.0
# The memory of so many workers is looked up in one step of the event loop.
ACCOUNTS_AT_ONCE = 64
# A run that has not ended so long after it was cancelled is cancelled again.
CANCEL_SECONDS = 5.0
# How often it is looked whether a call of an earlier run under the same lease has returned.
CALL_SECONDS = 0.02


def restore(version: str, settings: dict[str, Any]) -> CoordinatorPlugin:
    """Rebuild a pickled coordinator, on a scheduler of the same version only."""
    check_version(version)
    return CoordinatorPlugin(**settings)


class CoordinatorPlugin(SchedulerPlugin):
    """fpmdask on the scheduler; several clients share it and it outlives them.

    Parameters
    ----------
    apps
        Name → ``"module:attribute"`` of the applications that have one; others are found by that.
    slots
        The resource ``fpm`` of every worker.
    """

    name = PLUGIN
    idempotent = True

    def __init__(
        self,
        apps: Mapping[str, str],
        slots: int,
    ) -> None:
        self.apps = dict(apps)
        self.slots = slots

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {
            "apps": self.apps,
            "slots": self.slots,
        }
        return restore, (fpmdask.__version__, settings)

    # ---- life

    async def start(self, scheduler: Scheduler) -> None:
        """Take the handlers; awaits nothing, so that two installations cannot interleave."""
        if getattr(self, "scheduler", None) is scheduler:
            return  # preloaded: a scheduler that comes up starts its plugins again
        self.tuning = config.tuning()  # the scheduler's, read once
        self.spill_target = float(config.setting("spill-target"))
        self.scheduler = scheduler
        self.leases = Leases()
        self.liveness = Liveness(scheduler)
        self.busy = Busy()
        self.library = ModelLibrary()
        self.stored_models = StoredModels(self, config.setting("models-url"))
        self.identities: dict[str, WorkerIdentity] = {}
        self.links: dict[WorkerIdentity, Link] = {}
        self.runs: dict[str, RunContext] = {}
        self.history = History()
        self._results: dict[str, dict[str, Any]] = {}
        self._stages: dict[str, ClientStages] = {}
        # the last run of each client, and what it has published
        self._answered: dict[str, tuple[str, list[Any]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._side_tasks: set[asyncio.Task[Any]] = set()
        self._patience: dict[str, asyncio.TimerHandle] = {}
        self._granted: dict[str, asyncio.Future[None]] = {}
        self._ready: asyncio.Task[None] | None = None
        self._client: Client | None = None
        scheduler.handlers.update(
            fpmdask_hello=self.hello,
            fpmdask_check=self.check,
            fpmdask_start=self.start_run,
            fpmdask_poll=self.poll,
            fpmdask_answer=self.client_answers,
            fpmdask_cancel=self.cancel,
            fpmdask_places=self.places,
            fpmdask_look=self.look,
            fpmdask_memory=self.memory,
            **models.handlers(self),
        )
        scheduler.stream_handlers["fpmdask-answer"] = self._answer
        scheduler.stream_handlers["fpmdask-news"] = self._news
        self._observing = self.beside(observe(scheduler))

    async def hello(self, version: str) -> dict[str, Any]:
        """Greet a client: check its version, and be ready for runs when this returns."""
        check_version(version)
        if self._ready is None or (self._ready.done() and self._ready.exception()):
            self._ready = asyncio.create_task(self._make_ready())
        await asyncio.shield(self._ready)
        return {"version": fpmdask.__version__, "workers": len(self.scheduler.workers)}

    async def _make_ready(self) -> None:
        # what runs import, or their graphs, takes 0.1 s
        importing = asyncio.create_task(asyncio.to_thread(self._import))
        self._client = await Client(
            self.scheduler.address,
            asynchronous=True,
            set_as_default=False,
            security=self.scheduler.security,
            name="fpmdask-coordinator",
        )
        self.tickets = Tickets(self.scheduler, self._client, self._task_ended)
        apps = [find(app, self.apps) for app in self.apps]
        kernels = {name: where for app in apps for name, where in app.kernels.items()}
        ahead = list(dict.fromkeys(module for app in apps if app.ahead for module in app.worker))
        shim = worker_shim(self.slots, kernels, ahead, self.tuning.to_json())
        registering = self.scheduler.register_worker_plugin(
            comm=None, plugin=shim, name=PLUGIN, idempotent=True
        )
        # workers that come later get the plugin from now on; one that has stopped does not answer
        await asyncio.wait([self.beside(registering)], timeout=INSTALL_SECONDS)
        await asyncio.gather(importing, self.stored_models.load(), self._observing)
        # loaded when it is first used, to repair the points of a model: 0.1 s of the event loop
        self.beside(asyncio.to_thread(importlib.import_module, "scipy.optimize"))

    def _import(self) -> None:
        for app in self.apps:
            with contextlib.suppress(Exception):  # a run of it will say so
                found = find(app, self.apps)
                code(found.run, app)
                code(found.request, app)
                messages(found)
                for module in found.tasks:
                    importlib.import_module(module)

    async def before_close(self) -> None:
        """Leave nothing behind when the scheduler closes."""
        for timer in self._patience.values():
            timer.cancel()
        await self.stored_models.close()
        tasks: list[asyncio.Task[Any]] = [*self._tasks.values(), *self._side_tasks]
        if self._ready is not None:
            tasks.append(self._ready)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self.tickets.close()
            await self._client.close()

    # ---- handlers for clients

    async def check(self, app: str, client: str, spec: dict[str, Any]) -> dict[str, Any] | None:
        """Return why ``app`` could not run with ``spec`` now, or None; nothing is started."""
        refusal = self._refusal(app, client, spec)
        if refusal is not None and refusal["type"] == PartitionError.__name__:
            await self._trim()  # free memory that seems to be used may be what lacks
            refusal = self._refusal(app, client, spec)
        return refusal

    async def _trim(self) -> None:
        """Have all workers give back what their malloc keeps."""
        asked = (self.scheduler.rpc(address).fpmdask_trim() for address in self.scheduler.workers)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), TRIM_SECONDS)

    def _refusal(self, app: str, client: str, spec: dict[str, Any]) -> dict[str, Any] | None:
        try:
            found = find(app, self.apps)
            check_message(code(found.request, app), spec, f"the request of {app}", partial=True)
            if found.check is not None:
                code(found.check, app)(RunContext(self, CHECK, client, spec, found))
        except fpmdask.errors.FpmdaskError as error:
            return describe_error(error)
        return None

    async def start_run(self, app: str, client: str, spec: dict[str, Any]) -> str:
        """Start a run of ``app`` for ``client``; return the run's id.

        ``within`` in its spec names a run of this client whose workers it uses.
        """
        found = find(app, self.apps)
        check_message(code(found.request, app), spec, f"the request of {app}")
        within = spec.get("within")
        if within is not None and getattr(self.runs.get(within), "client", None) != client:
            raise CoordinatorError(f"run {within} has ended: no other one can use its workers")
        if client not in self.scheduler.clients:
            raise CoordinatorError(f"client {client} is not connected to this scheduler")
        run = f"{found.name}-{uuid4().hex[:12]}"
        context = RunContext(self, run, client, spec, found)
        self.runs[run] = context
        self.history.begin(context)
        self._tasks[run] = asyncio.create_task(self._drive(context, found))
        return run

    async def poll(self, run: str, seen: int, asked: int) -> dict[str, Any]:
        """Return the events after the first ``seen``, and the result once there is one.

        And what the client is asked for after the first ``asked`` requests.
        """
        context = self._running(run)
        told = len(context.told.events) > seen or len(context.told.requests) > asked
        if not told and run not in self._results:
            context.told.news.clear()
            with contextlib.suppress(TimeoutError):  # no news: an empty answer
                await asyncio.wait_for(context.told.news.wait(), POLL_SECONDS)
        answer: dict[str, Any] = {
            "events": context.told.events[seen:],
            "requests": context.told.requests[asked:],
        }
        if run in self._results:
            answer["result"] = self._results[run]
            # a client that gives up while this answer travels cancels its last run
            if context.client in self.scheduler.clients:  # else nobody would drop this
                self._answered[context.client] = run, context.published
            self._forget(run)
        return answer

    async def client_answers(self, run: str, number: int, answer: Mapping[str, Any]) -> None:
        """Take in what a client answers to a request of its run, unless that has ended."""
        if (context := self.runs.get(run)) is not None:
            context.told.answered(number, answer)

    async def cancel(self, run: str) -> None:
        """Stop a run; release what it has published, which its client has not taken.

        Unknown runs have ended already.
        """
        task = self._tasks.get(run)
        while task is not None and not task.done():
            task.cancel()  # again if it is lost, as by `asyncio.wait_for` before Python 3.12
            await asyncio.wait([task], timeout=CANCEL_SECONDS)
        ended = {of: (client, keys) for client, (of, keys) in self._answered.items()}
        if (context := self.runs.get(run)) is not None:
            ended[run] = context.client, context.published
        self._forget(run)
        client, keys = ended.get(run, ("", []))
        if client in self.scheduler.clients:
            release_for(self.scheduler, client, keys, run)

    async def places(self, run: str, keys: Sequence[Any]) -> dict[str, Any]:
        """Return where a client's tasks can be, of some results: `ClientStages.places`."""
        return await self._stages_of(run).places(keys)

    async def look(
        self, run: str, homes: Sequence[str], seconds: float, done: Sequence[Any]
    ) -> str | None:
        """Return why a client's stage must start over: `ClientStages.look`.

        Tasks that are ``done`` are no longer pinned.
        """
        stages = self._stages_of(run)
        await stages.unpin(done)
        return await stages.look(homes, seconds)

    def _stages_of(self, run: str) -> ClientStages:
        if run not in self._stages:
            self._stages[run] = ClientStages(self._running(run))
        return self._stages[run]

    def _running(self, run: str) -> RunContext:
        if run not in self.runs:
            raise CoordinatorError(f"found no run {run!r}; it ended or its client disconnected")
        return self.runs[run]

    async def memory(self, workers: Sequence[str] | None) -> dict[str, dict[str, float]]:
        """Return the fields of the `account` of each worker that has one of some names."""
        found = {}
        async for window in windows([*self.scheduler.workers.items()], ACCOUNTS_AT_ONCE):
            for address, state in window:
                if workers is None or str(state.name) in workers or address in workers:
                    found[address] = asdict(self.account(state))
        return found

    def account(self, state: WorkerState) -> Account:
        """Return the account of a worker's memory."""
        memory = state.memory
        # not `memory.spilled`, which is the size on disk
        spilled = max(0, state.nbytes - memory.managed)
        held = memory.managed, spilled, memory.unmanaged_old
        return Account(state.memory_limit, self.spill_target, *held)

    def _forget(self, run: str) -> None:
        self.runs.pop(run, None)
        self.history.end(run, None)
        self._results.pop(run, None)
        self._stages.pop(run, None)
        self._tasks.pop(run, None)

    async def _drive(self, context: RunContext, app: App) -> None:
        """Run one application to its result, its error or its cancellation."""
        result: dict[str, Any]
        context.emit("start", app=app.name, phases=dict(app.phases))
        try:
            result = {"value": await code(app.run, app.name)(context)}
        except KernelFailed as error:
            result = {"error": {**error.error, "summary": str(error)}}
        except Exception as error:
            if not isinstance(error, fpmdask.errors.FpmdaskError):
                logger.exception("run %s failed", context.run)
            result = {"error": describe_error(error)}
        finally:
            await context.close()
        result["report"] = {
            **context.report,
            "left_out": context.members.left_out,
            "run": context.run,
        }
        self._results[context.run] = result
        self.history.end(context.run, result)
        context.told.news.set()
        self.stored_models.changed()

    # ---- leases

    async def lease(self, run: str, workers: Iterable[str]) -> set[str]:
        """Wait for ``workers``; return those obtained (stuck and departed ones are not)."""
        self._granted[run] = asyncio.get_running_loop().create_future()
        self._grant(self.leases.request(run, workers))
        try:
            await self._granted[run]
        finally:
            self._granted.pop(run, None)
        return self.leases.held_by(run)

    async def lease_within(self, run: str, workers: Iterable[str], patience: float) -> set[str]:
        """Return those of some workers that ``run`` holds, or nobody, without waiting for others.

        A call of an earlier run within the same one is waited for ``patience`` seconds at most.
        """
        wanted = {*workers}
        for worker in wanted - self.leases.held_by(run):
            self.leases.extend(run, worker)
        give_up = time.monotonic() + patience
        while busy := wanted & self.leases.held_by(run) & self.tickets.occupied():
            if time.monotonic() >= give_up:
                self.give_back(run, busy, None)
            await asyncio.sleep(CALL_SECONDS)
        return wanted & self.leases.held_by(run)

    def give_back(self, run: str, overdue: Iterable[str], patience: float | None) -> None:
        """Return all of a run's leases; where patience is None, those of overdue workers only.

        A worker on which a call goes on stays occupied until the call returns; who waits for it
        waits ``patience`` seconds at most, and not at all for an overdue one.
        """
        overdue = set(overdue)
        loop = asyncio.get_running_loop()
        for worker in self.leases.held_by(run) & self.tickets.occupied():
            if worker in overdue:
                self._grant(self.leases.block(run, worker))
            elif patience is not None:
                self.leases.linger(run, worker)
                self._patience[worker] = loop.call_later(patience, self._block, run, worker)
        if patience is not None:
            self._grant(self.leases.release(run))

    def _block(self, run: str, worker: str) -> None:
        self._patience.pop(worker, None)
        self._grant(self.leases.block(run, worker))

    def _grant(self, runs: Iterable[str]) -> None:
        for run in runs:
            waiting = self._granted.get(run)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def _task_ended(self, worker: str) -> None:
        if worker not in self.tickets.occupied():
            self._stop_waiting(worker)
            self._grant(self.leases.recovered(worker))

    def _stop_waiting(self, worker: str) -> None:
        timer = self._patience.pop(worker, None)
        if timer is not None:
            timer.cancel()

    # ---- events of the cluster

    def _answer(self, worker: str, run: str = "", ticket: Any = None, **answer: Any) -> None:
        self.liveness.heard(worker)
        if (step := self.tickets.step_of(worker, ticket)) is None:
            return  # nobody waits for it
        if refusal := answer.get("malformed"):  # it was sent what it does not know
            self._end_by(run, MalformedError(str(refusal)))
        elif not self._is_declared(worker, run, step, step.answers, answer, "answer"):
            answer = {"cancelled": True}
        self.tickets.answer(worker, ticket, answer)

    def _news(self, worker: str, run: str = "", ticket: Any = None, **news: Any) -> None:
        self.liveness.heard(worker)
        context, step = self.runs.get(run), self.tickets.step_of(worker, ticket)
        if (
            context is not None
            and step is not None
            and worker in context.workers
            and self._is_declared(worker, run, step, step.event, news, "event")
        ):
            context.steps.post(("news", worker, news))

    def _is_declared(
        self, worker: str, run: str, step: Step, kind: Any, message: Mapping[str, Any], what: str
    ) -> bool:
        """Tell whether a worker's message is well-formed; else its run ends, and it is told."""
        try:
            check_message(kind, message, f"the {what} of {step.name}")
        except MalformedError as error:
            refusal = {"op": "fpmdask-refused", "run": run, "reason": str(error)}
            self.scheduler.worker_send(worker, refusal)
            self._end_by(run, error)
            return False
        return True

    def _end_by(self, run: str, error: MalformedError) -> None:
        if (context := self.runs.get(run)) is not None:
            context.steps.fail(error)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Tell the runs; never wait here for the worker itself."""
        for context in self.runs.values():
            context.members.worker_back(worker)
            context.steps.background(context.members.worker_joined(worker))

    def recompute(self, run: str, lost: Callable[[str], bool]) -> Recompute:
        """Return what recomputes for a run the chunks of workers that are lost to it."""
        assert self._client is not None  # clients are greeted before they start runs
        return Recompute(self.scheduler, self._client, self.liveness, lost, run)

    def beside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` as a task that ends with the scheduler at the latest."""
        task = asyncio.create_task(work)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)
        return task

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """End what was on the worker and tell the runs."""
        if self._client is not None:
            self.tickets.left(worker)
        self._stop_waiting(worker)
        self.liveness.left(worker)
        self.busy.left(worker)
        self._grant(self.leases.left(worker))
        for context in list(self.runs.values()):
            context.members.worker_left(worker)
        identity = self.identities.pop(worker, None)
        if identity is not None:
            self.links.pop(identity, None)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Cancel the runs of a client that is gone."""
        self._answered.pop(client, None)
        for run, context in list(self.runs.items()):
            if context.client == client:
                self.beside(self.cancel(run))
