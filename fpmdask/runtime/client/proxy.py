"""The client's side: install the coordinator, start a run, follow it, cancel it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import dask
from dask.base import is_dask_collection
from dask.utils import parse_timedelta
from distributed import Client, rejoin, secede

import fpmdask
from fpmdask import config
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.client.rows import is_there
from fpmdask.runtime.dask_private import task_of_this_thread
from fpmdask.runtime.protocol import ANSWER, CANCEL, CHECK, HELLO, POLL, START, Poll
from fpmdask.runtime.remote_errors import rebuild
from fpmdask.runtime.wire import EVENTS, Messages, Request, check_message, check_named

Progress = Callable[[Mapping[str, Any]], None]
# Does what a run asks its client for, and returns the answer.
Asked = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
# Runs an application: (name, request, what answers it) → its value and the report.
Follow = Callable[..., Awaitable[tuple[Any, Any]]]

Result = TypeVar("Result")

CONNECTING_LOOK_SECONDS = 0.01
# What the scheduler gets; the client has no other use for it.
COORDINATOR = "fpmdask.runtime.coordinator.plugin", "CoordinatorPlugin"


async def install(client: Client, settings: Mapping[str, Any]) -> None:
    """Put the coordinator on the scheduler of ``client``, or find it there.

    ``settings`` are the parameters of `CoordinatorPlugin`.

    Raises
    ------
    CoordinatorError
        If the client is closed or the scheduler cannot load fpmdask.
    VersionMismatchError
        If the scheduler runs another version.
    """
    await _wait_until_connected(client)
    if client.status not in ("running", "connecting"):
        raise CoordinatorError(
            f"found a client that is {client.status}; connect a new `distributed.Client`"
        )
    module, name = COORDINATOR
    plugin = getattr(import_module(module), name)(**settings)
    try:
        # the plugin is `idempotent`: a coordinator that is there already stays
        await client.register_plugin(plugin)
    except (ImportError, AttributeError) as error:
        raise CoordinatorError(
            f"the scheduler at {_scheduler(client).address} cannot load fpmdask ({error}); install "
            f"fpmdask {fpmdask.__version__} in the scheduler's environment and the workers', from "
            "the wheel or checkout that this client has, and restart them"
        ) from error
    await HELLO.ask(_scheduler(client), version=fpmdask.__version__)


async def _wait_until_connected(client: Client) -> None:
    """Wait for a client that connects, for another thread perhaps: tasks on one worker share it."""
    most = parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
    ends = time.monotonic() + most
    while client.status in ("newly-created", "connecting") and time.monotonic() < ends:
        await asyncio.sleep(CONNECTING_LOOK_SECONDS)


def _scheduler(client: Client) -> Any:
    """Return the client's RPC to the scheduler (it has none before it is connected)."""
    if client.scheduler is None:
        raise CoordinatorError("the client is not connected; await it or connect a new one")
    return client.scheduler


async def first_worker(client: Client, progress: Progress) -> bool:
    """Wait for a worker where there is none; return whether one has come in time.

    A task that may run anywhere is what an adaptive cluster starts workers for.
    """
    patience = config.seconds("wait-for-workers")
    progress({"event": "waiting for workers", "seconds": 0.0, "patience": patience})
    anything = client.submit(_nothing, pure=False)
    try:
        await asyncio.wait_for(anything, patience)
    except TimeoutError:
        return False
    finally:
        anything.release()
    return True


def _nothing() -> None:
    """Do nothing, on a worker."""


def check_not_inside() -> None:
    """Refuse a call from within a step of a run.

    Raises
    ------
    CoordinatorError
        It would wait for the workers that the run holds, and the run for it.
    """
    key = task_of_this_thread()
    if isinstance(key, str) and key.startswith("fpmdask-"):
        raise CoordinatorError(
            "a function that a balancer calls on the workers cannot use a balancer: it would wait "
            "for workers that wait for it; call it from the client, or from a task of your own"
        )


@contextlib.contextmanager
def seceded() -> Iterator[None]:
    """Give the worker's thread back while a task waits for a run, which needs it on one thread.

    As Dask's own `compute` in a task: secede, and rejoin afterwards. Elsewhere nothing happens.
    """
    inside = task_of_this_thread() is not None
    if inside:
        try:
            secede()
        except (AttributeError, KeyError):  # no thread of the pool, or it has left that before
            inside = False
    try:
        yield
    finally:
        if inside:
            rejoin()


async def check(client: Client, app: str, spec: dict[str, Any]) -> None:
    """Raise what the run would raise before it starts, while its inputs are not there yet."""
    error = await CHECK.ask(_scheduler(client), app=app, client=client.id, spec=spec)
    if error is not None:
        raise rebuild(error)


async def follow(
    client: Client,
    app: str,
    spec: dict[str, Any],
    progress: Progress | None,
    asked: Asked | None = None,
    declared: Messages | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Run ``app`` and return its value and the report; a cancelled wait cancels the run.

    ``progress`` hears of its events. ``asked`` does what it wants of this client, beside: a request
    names itself under ``request`` and its run under ``run``; what is raised ends the run. What
    comes is checked: all of it where the application's messages are ``declared``, else what every
    run has (the package of an application need not be installed here).
    """
    scheduler = _scheduler(client)
    start = START.ask(scheduler, app=app, client=client.id, spec=spec)
    starting = asyncio.ensure_future(start)
    seen, requested, stages = 0, 0, list[asyncio.Future[Any]]()
    try:
        run = await asyncio.shield(starting)
        result = None
        while result is None:
            polling = POLL.ask(scheduler, run=run, seen=seen, asked=requested)
            answer = await _beside(polling, stages)
            _check(answer, app, declared)
            seen += len(answer["events"])
            for request in answer["requests"]:
                if asked is None:
                    raise CoordinatorError(f"run {run} asks for {request}: this client cannot")
                doing = _answer(scheduler, run, requested, asked({"run": run, **request}))
                stages.append(asyncio.ensure_future(doing))
                requested += 1
            if progress is not None:
                for event in answer["events"]:
                    progress(event)
            result = answer.get("result")
        if "error" in result:
            raise rebuild(result["error"])
        await asyncio.gather(*stages)
    except BaseException:
        for stage in stages:
            stage.cancel()
        await asyncio.gather(*stages, return_exceptions=True)
        # also KeyboardInterrupt and CancelledError: nothing must go on without its caller
        if client.status == "running":
            await asyncio.shield(_cancel(client, starting))
        raise
    return result["value"], {**result["report"]}


def _check(answer: Poll, app: str, declared: Messages | None) -> None:
    """Refuse what a poll brings and nobody has declared."""
    known = {**EVENTS, **declared.events} if declared else EVENTS
    for event in answer["events"]:
        if declared or event.get("event") in EVENTS:
            check_named(known, event.get("event"), event, f"the event of {app}")
    if declared is None:
        return
    questions = {name: question.asked for name, question in declared.questions.items()}
    for request in answer["requests"]:
        check_named(questions, request.get("request"), request, f"the request of {app}")
    if (value := answer.get("result", {}).get("value")) is not None:
        check_message(declared.value, value, f"the value of {app}")


async def _beside(polling: Awaitable[Poll], stages: Sequence[asyncio.Future[Any]]) -> Poll:
    """Return the answer to a poll, unless a stage that goes on meanwhile raises before."""
    answer = asyncio.ensure_future(polling)
    try:
        while not answer.done():
            going = [stage for stage in stages if not stage.done()]
            await asyncio.wait([answer, *going], return_when=asyncio.FIRST_COMPLETED)
            for stage in stages:
                if stage.done():
                    await stage  # raises what it has raised
        return await answer
    finally:
        answer.cancel()


async def _answer(scheduler: Any, run: str, number: int, stage: Awaitable[Any]) -> None:
    await ANSWER.ask(scheduler, run=run, number=number, answer=await stage)


async def leased(
    follow: Follow,
    app: str,
    request: dict[str, Any],
    work: Callable[[dict[str, Any]], Awaitable[Result]],
) -> Result:
    """Return what ``work`` returns: what this client has done on workers that a run holds for it.

    ``follow`` runs ``request`` as ``app``, whose run is that of
    `fpmdask.runtime.coordinator.client_stages`; ``work`` gets the request for runs within that one.
    """
    found: list[Result] = []
    holding = {part: request[part] for part in Request.__annotations__ if part in request}
    await follow(app, holding, partial(_work, request, work, found))
    return found[0]


async def leased_load(
    follow: Follow,
    request: dict[str, Any],
    collections: Iterable[Any],
    load: Callable[[], Awaitable[Result]],
) -> Result:
    """Return what ``load`` returns: under a run's lease where it has something computed.

    Tasks that make lazy inputs would disturb what other clients have measured meanwhile.
    """
    if not any(is_dask_collection(x) and not is_there(x) for x in collections):
        return await load()
    return await leased(follow, "load", request, partial(_load, load))


async def _load(load: Callable[[], Awaitable[Result]], request: Mapping[str, Any]) -> Result:
    return await load()


async def _work(
    request: Mapping[str, Any],
    work: Callable[[dict[str, Any]], Awaitable[Result]],
    found: list[Result],
    asking: Mapping[str, Any],
) -> dict[str, Any]:
    """Do what a run holds workers for. No closure: frames of exceptions would hold ``work``."""
    found.append(await work({**request, "within": asking["run"]}))
    return {}


async def _cancel(client: Client, starting: asyncio.Future[str]) -> None:
    """Cancel a run, also one whose start is on the way."""
    with contextlib.suppress(OSError, CoordinatorError):  # the scheduler is gone, or did not start
        await CANCEL.ask(_scheduler(client), run=await starting)
