"""Tasks that run where their data is, and anywhere once that is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import dask.array as da
import numpy as np
from dask._task_spec import GraphNode
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future, futures_of

from fpmdask.apps.inputs import finished
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


class Homes:
    """Where the tasks of one sort run: on workers that stay."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.scheduler: Any = client.scheduler

    async def again(self, stage: Callable[[], Awaitable[Value]]) -> Value:
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

    async def places(self, futures: Sequence[Future[Any]]) -> list[str]:
        """Return a worker that holds each of some results.

        Raises
        ------
        HomeLeft
            If one is held by nobody.
        """
        holders = await self.scheduler.who_has(keys=[future.key for future in futures])
        found = []
        for future in futures:
            there = holders.get(future.key)
            if not there:
                raise HomeLeft("a worker left with the only copy of a result, which is made again")
            found.append(min(there))
        return found

    async def bundles(self, futures: Sequence[Future[Any]]) -> list[tuple[str, list[int]]]:
        """Return (worker, numbers of some results that it holds), one for each of its threads."""
        held: dict[str, list[int]] = {}
        for n, worker in enumerate(await self.places(futures)):
            held.setdefault(worker, []).append(n)
        threads = await self.scheduler.ncores()
        return [
            (worker, numbers[n::count])
            for worker, numbers in sorted(held.items())
            for count in [min(threads.get(worker, 1), len(numbers))]
            for n in range(count)
        ]

    async def asked(
        self,
        name: str,
        tasks: Mapping[Any, GraphNode],
        homes: Mapping[Any, str],
        given: Sequence[Future[Any]],
        shared: Mapping[Any, GraphNode],
    ) -> list[Any]:
        """Run tasks as `made` does and return the results themselves."""
        persisted, futures = self._started(name, tasks, homes, given, shared)
        return await self._watched(self._answers(persisted, futures), set(homes.values()))

    async def _answers(self, persisted: da.Array, futures: list[Future[Any]]) -> list[Any]:
        await finished(self.client, persisted)
        found: list[Any] = await self.client.gather(futures)
        return found

    async def made(
        self,
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
            If one of the workers leaves before all is done. What a task raises is raised
            here.

        Notes
        -----
        Pinned hard, as Dask's stealing would move what others may run. Once all is done the pins
        are taken off: whatever is lost later is made again by anybody.
        """
        persisted, futures = self._started(name, tasks, homes, given, shared)
        addresses = set(homes.values())
        await self._watched(finished(self.client, persisted), addresses)
        await self.scheduler.set_restrictions(worker=dict.fromkeys(tasks))
        # who left before that is waited for in vain
        self._check_there(addresses, await self.scheduler.ncores())
        return futures

    def _started(
        self,
        name: str,
        tasks: Mapping[Any, GraphNode],
        homes: Mapping[Any, str],
        given: Sequence[Future[Any]],
        shared: Mapping[Any, GraphNode],
    ) -> tuple[da.Array, list[Future[Any]]]:
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
        persisted: da.Array = self.client.persist(lazy, optimize_graph=False)
        found = {future.key: future for future in futures_of(persisted)}
        return persisted, [found[name, n] for n in range(count)]

    async def _watched(self, work: Awaitable[Value], addresses: set[str]) -> Value:
        """Return what is awaited.

        Raises
        ------
        HomeLeft
            If one of the workers leaves before.
        """
        done = asyncio.ensure_future(work)
        try:
            while not done.done():
                await asyncio.wait([done], timeout=LOOK_SECONDS)
                if not done.done():
                    self._check_there(addresses, await self.scheduler.ncores())
            return await done
        finally:
            done.cancel()

    def _check_there(self, addresses: set[str], there: Mapping[str, Any]) -> None:
        if gone := addresses - there.keys():
            raise HomeLeft(f"{', '.join(sorted(gone))} left")
