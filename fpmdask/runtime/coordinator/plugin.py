"""The coordinator: a scheduler plugin that owns models, leases and runs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

import fpmdask
from fpmdask import config
from fpmdask.runtime.app import code, find, messages
from fpmdask.runtime.coordinator import models
from fpmdask.runtime.coordinator.client_runs import ClientRuns
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.history import History
from fpmdask.runtime.coordinator.installation import worker_shim
from fpmdask.runtime.coordinator.known_workers import KnownWorkers
from fpmdask.runtime.coordinator.leasing import Leasing
from fpmdask.runtime.coordinator.library import ModelLibrary
from fpmdask.runtime.coordinator.lineage import Recompute
from fpmdask.runtime.coordinator.observability import observe
from fpmdask.runtime.coordinator.stored_models import StoredModels
from fpmdask.runtime.coordinator.tickets import Tickets
from fpmdask.runtime.protocol import (
    HELLO,
    MEMORY,
    REFUSED,
    REFUSED_BY_WORKER,
    STEP_ANSWER,
    STEP_EVENT,
    CoordinatorSettings,
    Greeting,
)
from fpmdask.runtime.rpc import Notice, answer_calls, take_notices
from fpmdask.runtime.version import PLUGIN, check_version
from fpmdask.runtime.wire import MalformedError, check_message

if TYPE_CHECKING:
    from distributed import Scheduler

logger = logging.getLogger(__name__)


# Workers have taken in their plugin by then, but for those that have stopped.
INSTALL_SECONDS = 1.0


def restore(version: str, settings: CoordinatorSettings) -> CoordinatorPlugin:
    """Rebuild a pickled coordinator, on a scheduler of the same version only."""
    check_version(version)
    check_message(CoordinatorSettings, settings, "the coordinator's settings")
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
        settings = CoordinatorSettings(apps=self.apps, slots=self.slots)
        return restore, (fpmdask.__version__, settings)

    # ---- life

    async def start(self, scheduler: Scheduler) -> None:
        """Take the handlers; awaits nothing, so that two installations cannot interleave."""
        if getattr(self, "scheduler", None) is scheduler:
            return  # preloaded: a scheduler that comes up starts its plugins again
        self.tuning = config.tuning()  # the scheduler's, read once
        self.scheduler = scheduler
        self.known_workers = KnownWorkers(scheduler)
        self.leasing = Leasing(self)
        self.library = ModelLibrary()
        self.stored_models = StoredModels(self, config.setting("models-url"))
        self.clients = ClientRuns(self)
        self.history = History()
        self._side_tasks: set[asyncio.Task[Any]] = set()
        self._ready: asyncio.Task[None] | None = None
        self._client: Client | None = None
        answer_calls(
            scheduler.handlers,
            {
                HELLO: self.hello,
                MEMORY: self.known_workers.accounts.of,
                **self.clients.handlers(),
                **models.handlers(self),
            },
        )
        notices: dict[Notice, Callable[..., None]] = {
            STEP_ANSWER: self._answer,
            STEP_EVENT: self._event,
            REFUSED_BY_WORKER: self._refused,
        }
        take_notices(scheduler.stream_handlers, notices, self._refuse)
        self._observing = self.beside(observe(scheduler))

    @property
    def runs(self) -> dict[str, RunContext]:
        """Those that go on: by id."""
        return self.clients.going

    async def hello(self, version: str) -> Greeting:
        """Greet a client: check its version, and be ready for runs when this returns."""
        check_version(version)
        if self._ready is None or (self._ready.done() and self._ready.exception()):
            self._ready = asyncio.create_task(self._make_ready())
        await asyncio.shield(self._ready)
        return Greeting(fpmdask.__version__, len(self.scheduler.workers))

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
        self.tickets = Tickets(self.scheduler, self._client, self.leasing.call_returned)
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
        self.leasing.close()
        await self.stored_models.close()
        await self.clients.close()
        tasks = [*self._side_tasks]
        if self._ready is not None:
            tasks.append(self._ready)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self.tickets.close()
            await self._client.close()

    # ---- events of the cluster

    def _answer(self, worker: str, run: str, ticket: int, answer: Mapping[str, Any]) -> None:
        self.known_workers.liveness.heard(worker)
        if (step := self.tickets.step_of(worker, ticket)) is None:
            return  # nobody waits for it
        try:
            check_message(step.answers, answer, f"the answer of {step.name}")
        except MalformedError:
            self.tickets.answer(worker, ticket, {"cancelled": True})
            raise
        if "malformed" in answer:  # it was sent what it does not know
            self._end_by(run, MalformedError(str(answer["malformed"])))
        self.tickets.answer(worker, ticket, answer)

    def _event(self, worker: str, run: str, ticket: int, event: Mapping[str, Any]) -> None:
        self.known_workers.liveness.heard(worker)
        context, step = self.runs.get(run), self.tickets.step_of(worker, ticket)
        if context is not None and step is not None and worker in context.workers:
            check_message(step.event, event, f"the event of {step.name}")
            context.steps.post(("news", worker, event))

    def _refused(self, worker: str, run: str, reason: str) -> None:
        """End the run whose message a worker has not taken."""
        self._end_by(run, MalformedError(reason))

    def _refuse(self, worker: str, run: str, error: Exception) -> None:
        """Tell a worker that its message was not taken, and end the run."""
        self.scheduler.worker_send(worker, REFUSED.message(run=run, reason=str(error)))
        self._end_by(run, error)

    def _end_by(self, run: str, error: Exception) -> None:
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
        return Recompute(self.scheduler, self._client, self.known_workers.liveness, lost, run)

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
        self.known_workers.left(worker)
        self.leasing.left(worker)
        for context in list(self.runs.values()):
            context.members.worker_left(worker)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Cancel the runs of a client that is gone."""
        self.clients.client_left(client)
