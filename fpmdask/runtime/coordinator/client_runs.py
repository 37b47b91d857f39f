"""Runs of clients: started, polled, answered, cancelled; their results until these are taken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fpmdask.errors import CoordinatorError, FpmdaskError, PartitionError
from fpmdask.runtime import protocol
from fpmdask.runtime.app import App, code, find
from fpmdask.runtime.coordinator.client_stages import ClientStages
from fpmdask.runtime.coordinator.context import CHECK, RunContext
from fpmdask.runtime.coordinator.membership import KernelFailed
from fpmdask.runtime.dask_private import release_for
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.rpc import Call
from fpmdask.runtime.wire import ErrorFacts, check_message

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin

logger = logging.getLogger(__name__)

# A poll is answered after this many seconds even without news, so that dead comms are noticed.
POLL_SECONDS = 10.0
# So long is waited for workers to give free memory back before a run is refused for want of it.
TRIM_SECONDS = 5.0
# A run that has not ended so long after it was cancelled is cancelled again.
CANCEL_SECONDS = 5.0


class ClientRuns:
    """All runs that go on, or whose results their clients have not taken.

    Attributes
    ----------
    going : dict
        Id → `RunContext`.
    """

    def __init__(self, coordinator: CoordinatorPlugin) -> None:
        self._coordinator = coordinator
        self.going: dict[str, RunContext] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._results: dict[str, dict[str, Any]] = {}
        self._stages: dict[str, ClientStages] = {}
        # the last run of each client, and what it has published
        self._answered: dict[str, tuple[str, list[Any]]] = {}

    def handlers(self) -> dict[Call[Any], Callable[..., Any]]:
        """Return what answers clients' calls."""
        return {
            protocol.CHECK: self.check,
            protocol.START: self.start,
            protocol.POLL: self.poll,
            protocol.ANSWER: self.answer,
            protocol.CANCEL: self.cancel,
            protocol.PLACES: self.places,
            protocol.LOOK: self.look,
        }

    async def close(self) -> None:
        """Cancel all."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def check(self, app: str, client: str, spec: dict[str, Any]) -> ErrorFacts | None:
        """Return why ``app`` could not run with ``spec`` now, or None; nothing is started."""
        refusal = self._refusal(app, client, spec)
        if refusal is not None and refusal["type"] == PartitionError.__name__:
            await self._trim()  # free memory that seems to be used may be what lacks
            refusal = self._refusal(app, client, spec)
        return refusal

    async def _trim(self) -> None:
        """Have all workers give back what their malloc keeps."""
        asked = (
            protocol.TRIM.ask(self._coordinator.scheduler.rpc(address))
            for address in self._coordinator.scheduler.workers
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), TRIM_SECONDS)

    def _refusal(self, app: str, client: str, spec: dict[str, Any]) -> ErrorFacts | None:
        try:
            found = find(app, self._coordinator.apps)
            check_message(code(found.request, app), spec, f"the request of {app}", partial=True)
            if found.check is not None:
                code(found.check, app)(RunContext(self._coordinator, CHECK, client, spec, found))
        except FpmdaskError as error:
            return describe_error(error)
        return None

    async def start(self, app: str, client: str, spec: dict[str, Any]) -> str:
        """Start a run of ``app`` for ``client``; return the run's id.

        ``within`` in its spec names a run of this client whose workers it uses.
        """
        found = find(app, self._coordinator.apps)
        check_message(code(found.request, app), spec, f"the request of {app}")
        within = spec.get("within")
        if within is not None and getattr(self.going.get(within), "client", None) != client:
            raise CoordinatorError(f"run {within} has ended: no other one can use its workers")
        if client not in self._coordinator.scheduler.clients:
            raise CoordinatorError(f"client {client} is not connected to this scheduler")
        run = f"{found.name}-{uuid4().hex[:12]}"
        context = RunContext(self._coordinator, run, client, spec, found)
        self.going[run] = context
        self._coordinator.history.begin(context)
        self._tasks[run] = asyncio.create_task(self._drive(context, found))
        return run

    async def poll(self, run: str, seen: int, asked: int) -> dict[str, Any]:
        """Return the events after the first ``seen``, and the result once there is one.

        And what the client is asked for after the first ``asked`` requests.
        """
        context = self._running(run)
        told = (
            len(context.client_messages.events) > seen
            or len(context.client_messages.requests) > asked
        )
        if not told and run not in self._results:
            context.client_messages.news.clear()
            with contextlib.suppress(TimeoutError):  # no news: an empty answer
                await asyncio.wait_for(context.client_messages.news.wait(), POLL_SECONDS)
        answer: dict[str, Any] = {
            "events": context.client_messages.events[seen:],
            "requests": context.client_messages.requests[asked:],
        }
        if run in self._results:
            answer["result"] = self._results[run]
            # a client that gives up while this answer travels cancels its last run
            if context.client in self._coordinator.scheduler.clients:  # else nobody would drop this
                self._answered[context.client] = run, context.published
            self._forget(run)
        return answer

    async def answer(self, run: str, number: int, answer: Mapping[str, Any]) -> None:
        """Take in what a client answers to a request of its run, unless that has ended."""
        if (context := self.going.get(run)) is not None:
            context.client_messages.answered(number, answer)

    async def cancel(self, run: str) -> None:
        """Stop a run; release what it has published, which its client has not taken.

        Unknown runs have ended already.
        """
        task = self._tasks.get(run)
        while task is not None and not task.done():
            task.cancel()  # again if it is lost, as by `asyncio.wait_for` before Python 3.12
            await asyncio.wait([task], timeout=CANCEL_SECONDS)
        ended = {of: (client, keys) for client, (of, keys) in self._answered.items()}
        if (context := self.going.get(run)) is not None:
            ended[run] = context.client, context.published
        self._forget(run)
        client, keys = ended.get(run, ("", []))
        if client in self._coordinator.scheduler.clients:
            release_for(self._coordinator.scheduler, client, keys, run)

    async def places(self, run: str, keys: Sequence[Any]) -> protocol.Places:
        """Return where a client's tasks can be, of some results: `ClientStages.places`."""
        return await self._stages_of(run).places(keys)

    async def look(
        self, run: str, homes: Sequence[str], seconds: float, done: Sequence[Any]
    ) -> protocol.Look:
        """Return why a client's stage must start over: `ClientStages.look`.

        Tasks that are ``done`` are no longer pinned.
        """
        stages = self._stages_of(run)
        await stages.unpin(done)
        return protocol.Look(await stages.look(homes, seconds))

    def _stages_of(self, run: str) -> ClientStages:
        if run not in self._stages:
            self._stages[run] = ClientStages(self._running(run))
        return self._stages[run]

    def _running(self, run: str) -> RunContext:
        if run not in self.going:
            raise CoordinatorError(f"found no run {run!r}; it ended or its client disconnected")
        return self.going[run]

    def _forget(self, run: str) -> None:
        self.going.pop(run, None)
        self._coordinator.history.end(run, None)
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
            if not isinstance(error, FpmdaskError):
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
        self._coordinator.history.end(context.run, result)
        context.client_messages.news.set()
        self._coordinator.stored_models.changed()

    def client_left(self, client: str) -> None:
        """Cancel the runs of a client that is gone."""
        self._answered.pop(client, None)
        for run, context in list(self.going.items()):
            if context.client == client:
                self._coordinator.beside(self.cancel(run))
