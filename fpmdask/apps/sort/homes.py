"""Tasks that run where their data is, and anywhere once that is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar
from uuid import uuid4

import dask.array as da
import numpy as np
from dask._task_spec import GraphNode
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future, futures_of

from fpmdask.apps.matmul.inputs import finished
from fpmdask.errors import CoordinatorError

# How often it is looked whether the workers are still there.
LOOK_SECONDS = 0.5
# What is disturbed so often is given up.
MOST_ATTEMPTS = 20
AGAIN_SECONDS = 0.2

Value = TypeVar("Value")


class HomeLeft(Exception):
    """A worker left to which tasks were pinned."""


def token(what: str) -> str:
    """Return a name that no other tasks have."""
    return f"fpmdask-{what}-{uuid4().hex}"


async def again(stage: Callable[[], Awaitable[Value]]) -> Value:
    """Return what a stage returns; it starts over where a worker that it needs leaves.

    Raises
    ------
    CoordinatorError
        If that happens `MOST_ATTEMPTS` times.
    """
    for _ in range(MOST_ATTEMPTS):
        try:
            return await stage()
        except HomeLeft as left:
            reason = str(left)
        await asyncio.sleep(AGAIN_SECONDS)  # the scheduler may not know yet who is gone
    raise CoordinatorError(f"given up after {MOST_ATTEMPTS} attempts; the last one: {reason}")


async def places(client: Client, futures: Sequence[Future[Any]]) -> list[str]:
    """Return a worker that holds each of some results.

    Raises
    ------
    HomeLeft
        If one is held by nobody.
    """
    scheduler: Any = client.scheduler
    holders = await scheduler.who_has(keys=[future.key for future in futures])
    found = [min(holders.get(future.key) or [""]) for future in futures]
    if not all(found):
        raise HomeLeft("a worker left with the only copy of a partition, which is made again")
    return found


async def made(
    client: Client,
    name: str,
    tasks: Mapping[Any, GraphNode],
    homes: Mapping[Any, str],
    given: Sequence[Future[Any]],
    shared: Mapping[Any, GraphNode],
) -> list[Future[Any]]:
    """Run tasks at their homes and return the futures of ``(name, 0)``, ``(name, 1)``, ….

    Parameters
    ----------
    tasks
        Those that are pinned, all of them needed for the results.
    homes
        Address of the worker of each.
    given, shared
        What they need: results, and tasks that run anywhere.

    Raises
    ------
    HomeLeft
        If one of the workers leaves before all is done. What a task raises is raised here.

    Notes
    -----
    Pinned hard, as Dask's stealing would move what others may run. Once all is done the pins are
    taken off: whatever is lost later is made again by anybody.
    """
    count = sum(1 for key in tasks if isinstance(key, tuple) and key[0] == name)
    at = {key: (homes[key],) for key in tasks}
    annotations = {"workers": at.__getitem__, "allow_other_workers": False}
    layers: dict[str, Any] = {
        name: MaterializedLayer(dict(tasks), annotations=annotations),
        f"{name}-shared": MaterializedLayer(dict(shared)),
        f"{name}-given": MaterializedLayer({future.key: future for future in given}),
    }
    needs = {layer: set(layers) - {name} if layer == name else set[str]() for layer in layers}
    graph = HighLevelGraph(layers, needs)
    # what `persist` takes: an array of any objects
    lazy = da.Array(graph, name, chunks=((np.nan,) * count,), dtype=object)
    persisted = client.persist(lazy, optimize_graph=False)
    addresses = set(chain.from_iterable(at.values()))
    done = asyncio.ensure_future(finished(client, persisted))
    try:
        while not done.done():
            await asyncio.wait([done], timeout=LOOK_SECONDS)
            if not done.done():
                await _check_there(client, addresses)
        await done
    finally:
        done.cancel()
    scheduler: Any = client.scheduler
    await scheduler.set_restrictions(worker=dict.fromkeys(tasks))
    await _check_there(client, addresses)  # who left before that is waited for in vain
    found = {future.key: future for future in futures_of(persisted)}
    return [found[name, n] for n in range(count)]


async def _check_there(client: Client, addresses: set[str]) -> None:
    scheduler: Any = client.scheduler
    if gone := addresses - set(await scheduler.ncores()):
        raise HomeLeft(f"{', '.join(sorted(gone))} left")
