"""The client's side: install the coordinator, start a run, follow it, cancel it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from distributed import Client, rejoin, secede

import fpmdask
from fpmdask import config
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.dask_private import task_of_this_thread
from fpmdask.runtime.remote_errors import rebuild

Progress = Callable[[Mapping[str, Any]], None]
# Runs an application: (name, request) → its value and the report.
Follow = Callable[[str, dict[str, Any]], Awaitable[tuple[Any, Any]]]


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
    await _scheduler(client).fpmdask_hello(version=fpmdask.__version__)


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
    error = await _scheduler(client).fpmdask_check(app=app, client=client.id, spec=spec)
    if error is not None:
        raise rebuild(error)


async def follow(
    client: Client,
    app: str,
    spec: dict[str, Any],
    progress: Progress | None,
    asked: Progress | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Run ``app`` and return its value and the report; a cancelled wait cancels the run.

    ``progress`` hears of its events, ``asked`` of what it wants of this client.
    """
    start = _scheduler(client).fpmdask_start(app=app, client=client.id, spec=spec)
    starting = asyncio.ensure_future(start)
    seen = requested = 0
    try:
        run = await asyncio.shield(starting)
        while True:
            answer = await _scheduler(client).fpmdask_poll(run=run, seen=seen, asked=requested)
            seen += len(answer["events"])
            requested += len(answer["requests"])
            if asked is not None:
                for request in answer["requests"]:
                    asked(request)
            if progress is not None:
                for event in answer["events"]:
                    progress(event)
            if "result" in answer:
                break
    except BaseException:
        # also KeyboardInterrupt and CancelledError: nothing must go on without its caller
        if client.status == "running":
            await asyncio.shield(_cancel(client, starting))
        raise
    result = answer["result"]
    if "error" in result:
        raise rebuild(result["error"])
    return result["value"], result["report"]


async def _cancel(client: Client, starting: asyncio.Future[str]) -> None:
    """Cancel a run, also one whose start is on the way."""
    with contextlib.suppress(OSError, CoordinatorError):  # the scheduler is gone, or did not start
        await _scheduler(client).fpmdask_cancel(run=await starting)
