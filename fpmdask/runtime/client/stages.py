"""Stages that a client drives: tasks pinned to where their data is, on workers that a run holds.

In the client's process, on its event loop. The coordinator says where tasks can be, and whether the
workers go on (`fpmdask.runtime.coordinator.client_stages`). Once a stage is done, whatever of it is
lost is made again by any worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future, futures_of

from fpmdask.errors import CoordinatorError
from fpmdask.runtime.client.inputs import finished
from fpmdask.runtime.client.progress import tell
from fpmdask.runtime.dask_private import GraphNode
from fpmdask.runtime.protocol import LOOK, PLACES
from fpmdask.tuning import DEFAULT, RuntimeTuning

# How often the coordinator is asked whether the workers go on.
LOOK_SECONDS = 0.5

Value = TypeVar("Value")


class WorkerLeft(Exception):
    """A worker left to which tasks were pinned, or is waited for no longer."""


def token(what: str) -> str:
    """Return a name that no other tasks have."""
    return f"fpmdask-{what}-{uuid4().hex}"


class Stages:
    """The stages of one sort or product: each starts over where a worker leaves that it needs.

    Parameters
    ----------
    client
    run
        The run that holds the workers for it.
    tuning
        The client's.

    Attributes
    ----------
    threads, bare
        As `places` has found last: worker → its threads, of those that may be used, and those of
        them that have no fpmdask.
    stage
        What the tasks are for, in what the call's progress tells of them.
    """

    def __init__(self, client: Client, run: str, tuning: RuntimeTuning = DEFAULT.runtime) -> None:
        self.client, self.run, self.tuning = client, run, tuning
        self.scheduler: Any = client.scheduler
        self.threads: Mapping[str, int] = {}
        self.bare: Sequence[str] = ()
        self.stage = ""
        self._began = time.monotonic()

    def enter(self, stage: str, low: float, high: float) -> None:
        """Begin a stage, which takes the part of the call from ``low`` to ``high``, about."""
        self.stage = stage
        self._emit("stage", stage=stage, low=low, high=high)

    def _emit(self, event: str, **facts: Any) -> None:
        tell({"event": event, "seconds": round(time.monotonic() - self._began, 4), **facts})

    async def again(self, stage: Callable[[], Awaitable[Value]]) -> Value:
        """Return what a stage returns; it starts over where a worker that it needs leaves.

        Raises
        ------
        CoordinatorError
            If that happens `most_attempts` times.
        """
        attempts = self.tuning.most_attempts
        for _ in range(attempts):
            try:
                return await stage()
            except WorkerLeft as left:
                reason = str(left)
            await asyncio.sleep(self.tuning.retry_seconds)
        raise CoordinatorError(f"given up after {attempts} attempts; the last one: {reason}")

    async def places(self, futures: Sequence[Future[Any]]) -> list[str]:
        """Return a worker for each of some results: one that holds it, unless all these are busy.

        Raises
        ------
        ChunksLostError
            If one is lost and cannot be made again.
        """
        keys = [future.key for future in futures]
        found = await PLACES.ask(self.scheduler, run=self.run, keys=keys)
        self.threads, self.bare = found.threads, found.bare
        return [*found.places]

    async def bundles(self, futures: Sequence[Future[Any]]) -> list[tuple[str, list[int]]]:
        """Return (worker, numbers of some results that it holds), one for each of its threads."""
        held: dict[str, list[int]] = {}
        for n, worker in enumerate(await self.places(futures)):
            held.setdefault(worker, []).append(n)
        return [
            (worker, numbers[n::count])
            for worker, numbers in sorted(held.items())
            for count in [min(self.threads[worker], len(numbers))]
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
        return await self.watched(self._answers(persisted, futures), homes, futures)

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
            What they need: results, and tasks that run at any of the homes.

        Raises
        ------
        WorkerLeft
            If one of the workers leaves before all is done. What a task raises is raised
            here.

        Notes
        -----
        Pinned hard, as Dask's stealing would move what others may run. Once all is done the pins
        are taken off: whatever is lost later is made again by anybody.
        """
        persisted, futures = self._started(name, tasks, homes, given, shared)
        await self.watched(finished(self.client, persisted), homes, futures)
        # who has left before that is waited for in vain
        await self._look(homes, 0.0, done=[*tasks, *shared])
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
        anywhere = {"workers": sorted(set(homes.values())), "allow_other_workers": False}
        layers: dict[str, Any] = {
            name: MaterializedLayer(dict(tasks), annotations=annotations),
            # not anywhere: a worker that has stopped looks idle to the scheduler
            f"{name}-shared": MaterializedLayer(dict(shared), annotations=anywhere),
            f"{name}-given": MaterializedLayer({future.key: future for future in given}),
        }
        needs = {layer: set(layers) - {name} if layer == name else set[str]() for layer in layers}
        graph = HighLevelGraph(layers, needs)
        # what `persist` takes: an array of any objects
        lazy = da.Array(graph, name, chunks=((np.nan,) * count,), dtype=object)
        persisted: da.Array = self.client.persist(lazy, optimize_graph=False)
        found = {future.key: future for future in futures_of(persisted)}
        return persisted, [found[name, n] for n in range(count)]

    async def watched(
        self, work: Awaitable[Value], homes: Mapping[Any, str], futures: Sequence[Future[Any]]
    ) -> Value:
        """Return what is awaited, and tell how many of its futures are done meanwhile.

        ``homes`` has the workers at which that is, by anything.

        Raises
        ------
        WorkerLeft
            If one of the workers leaves before, or stops.
        CoordinatorError
            If one of them is paused, or not heard of, and stays so.
        """
        done, began = asyncio.ensure_future(work), time.monotonic()
        try:
            self._tell_progress(futures)
            while not (await asyncio.wait([done], timeout=LOOK_SECONDS))[0]:
                self._tell_progress(futures)
                await self._look(homes, time.monotonic() - began)
            return await done
        finally:
            done.cancel()

    def _tell_progress(self, futures: Sequence[Future[Any]]) -> None:
        count = sum(future.done() for future in futures)
        of = {"done": count, "total": len(futures), "unit": "tasks"}
        self._emit("progress", phase=self.stage, **of)

    async def _look(
        self, homes: Mapping[Any, str], seconds: float, done: Sequence[Any] = ()
    ) -> None:
        at = sorted(set(homes.values()))
        found = await LOOK.ask(self.scheduler, run=self.run, homes=at, seconds=seconds, done=done)
        if found.left is not None:
            raise WorkerLeft(found.left)
