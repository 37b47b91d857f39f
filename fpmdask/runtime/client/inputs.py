"""Collections that applications take in."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dask.sizeof import sizeof
from distributed import Client, Future, futures_of, wait
from distributed.client import FuturesCancelledError

from fpmdask.errors import ChunksLostError, CoordinatorError, NoWorkersError, named
from fpmdask.runtime.client.progress import tell
from fpmdask.runtime.memory import Account
from fpmdask.runtime.protocol import MEMORY

# So often the call's progress is told how many chunks are there.
LOOK_SECONDS = 0.5
# What is in this process is sent to the workers so often, where one that holds some of it leaves.
SENDINGS = 3

Given = ParamSpec("Given")
Result = TypeVar("Result")


def letting_go(function: Callable[Given, Awaitable[Result]]) -> Callable[Given, Awaitable[Result]]:
    """Have a coroutine function's exceptions hold nothing of what it was given.

    Their frames would hold collections on the workers for as long as an exception lives.
    """

    @wraps(function)
    async def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return await function(*args, **kwargs)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            del args, kwargs  # this frame is not cleared
            raise

    return call


async def finished(client: Client, persisted: Any, phase: str | None = None) -> None:
    """Wait until all chunks of a collection, or of several, are in memory.

    Parameters
    ----------
    phase
        What the call's progress is told that goes on, with how many chunks are there; None: no one
        is told.

    Raises
    ------
    ChunksLostError
        If a chunk is gone and cannot be made again.
    """
    futures = futures_of(persisted)
    try:
        with client.as_current():  # `wait` takes the default client, which may be another one
            waiting = asyncio.ensure_future(wait(futures))
        await telling(waiting, futures, phase)
    except FuturesCancelledError as cancelled:
        traceback.clear_frames(cancelled.__traceback__)  # they hold all the futures
        lost = [future.key for future in futures if future.cancelled()]
        raise ChunksLostError(
            f"{len(lost)} input chunks are gone and have no task to make them again: {named(lost)}"
        ) from None
    for future in futures:
        if future.status == "error":
            await future  # raises what the chunk's task raised


async def telling(
    work: asyncio.Future[Any], futures: Sequence[Future[Any]], phase: str | None
) -> None:
    """Wait for work, and tell the call's progress how many futures are done meanwhile."""
    began = time.monotonic()
    try:
        while not (await asyncio.wait([work], timeout=LOOK_SECONDS))[0]:
            tell_done(futures, phase, time.monotonic() - began)
        await work
    finally:
        work.cancel()


def tell_done(futures: Sequence[Future[Any]], phase: str | None, seconds: float) -> None:
    """Tell the call's progress how many futures of a phase are done."""
    if phase is not None:
        done = sum(future.done() for future in futures)
        counted = {"done": done, "total": len(futures), "unit": "chunks"}
        tell({"event": "progress", "seconds": round(seconds, 4), "phase": phase, **counted})


async def taking_part(client: Client, names: Sequence[str] | None) -> dict[str, Any]:
    """Return what the scheduler knows of each worker with these names or addresses, by address."""
    scheduler: Any = client.scheduler
    known = (await scheduler.identity(n_workers=-1))["workers"]
    return {
        address: worker
        for address, worker in known.items()
        if names is None or str(worker["name"]) in names or address in names
    }


async def accounts(client: Client, workers: Sequence[str] | None) -> dict[str, Account]:
    """Return what the coordinator knows of the memory of workers with these names, by address."""
    return {**await MEMORY.ask(client.scheduler, workers=workers)}


async def rooms(client: Client, workers: Sequence[str] | None) -> dict[str, float]:
    """Return address -> the bytes of inputs that may still be brought to a worker, by its names.

    Raises
    ------
    CoordinatorError
        If none of them is connected.
    """
    there = await accounts(client, workers)
    found = {address: account.free_for_all() for address, account in there.items()}
    if not found:
        lack = CoordinatorError if workers else NoWorkersError
        raise lack(f"no worker of {workers or 'the cluster'} is connected; start one")
    return found


def shared_out(sizes: Sequence[int], room: Mapping[str, float]) -> list[str]:
    """Return the worker of each of some blocks: as many bytes for each as it has room for.

    Examples
    --------
    >>> shared_out([4, 4, 4, 4], {"a": 100, "b": 100}), shared_out([4, 4, 4], {"a": 100, "b": 5})
    (['a', 'b', 'a', 'b'], ['a', 'b', 'a'])
    """
    given = dict.fromkeys(room, 0)
    found = []
    for size in sizes:
        # where no worker has room, whoever lacks least of it
        lacking = {worker: max(0.0, given[worker] + size - room[worker]) for worker in room}
        taker = min(room, key=lambda worker: (lacking[worker], given[worker]))
        given[taker] += size
        found.append(taker)
    return found


async def scattered(
    client: Client, blocks: Mapping[Any, Any], workers: Sequence[str] | None
) -> dict[Any, Future[Any]]:
    """Send arrays or frames straight to the workers with these names, as they have room.

    Those of a worker that is lost meanwhile are sent to the others.

    Raises
    ------
    ChunksLostError
        If none of these workers takes what is left.
    """
    found: dict[Any, Future[Any]] = {}
    lost: dict[str, BaseException] = {}  # address → why nothing is sent there any more
    while left := {key: block for key, block in blocks.items() if key not in found}:
        room = {w: free for w, free in (await rooms(client, workers)).items() if w not in lost}
        if not room:
            raise ChunksLostError(
                "an input cannot be sent to any worker, as all of them were lost meanwhile: "
                + "; ".join(f"{worker} ({error})" for worker, error in lost.items())
            )
        of: dict[str, dict[Any, Any]] = {}
        homes = shared_out([*map(sizeof, left.values())], room)
        for (key, block), home in zip(left.items(), homes, strict=True):
            of.setdefault(home, {})[key] = block
        sent = await asyncio.gather(
            *(
                client.scatter(own, workers=[home], direct=True, hash=False)
                for home, own in of.items()
            ),
            return_exceptions=True,
        )
        for home, own in zip(of, sent, strict=True):
            if not isinstance(own, BaseException):
                found |= own
            elif await _is_lost(client, workers, home, own):
                lost[home] = own
            else:
                raise own
    return found


async def _is_lost(
    client: Client, workers: Sequence[str] | None, home: str, error: BaseException
) -> bool:
    """Tell whether an error of sending says that its worker is lost."""
    if isinstance(error, TimeoutError | KeyError):  # the scheduler knows of it no more, or it waits
        return home not in await rooms(client, workers)
    return isinstance(error, OSError)  # of the connection
