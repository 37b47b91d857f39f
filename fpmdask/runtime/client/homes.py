"""Tasks that run where their data is, and anywhere once that is needed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future, futures_of

from fpmdask.errors import ChunksLostError, CoordinatorError, named
from fpmdask.runtime.client.inputs import finished
from fpmdask.runtime.dask_private import GraphNode
from fpmdask.runtime.patience import LATE, SILENT_SECONDS, TOLD_SECONDS
from fpmdask.tuning import DEFAULT, RuntimeTuning

# How often it is looked whether the workers are still there.
LOOK_SECONDS = 0.5
# A worker's status under which it begins no task.
PAUSED = "paused"
STOPPED = (
    "it has been paused, and done nothing: its memory is full; give it more (memory_limit), add "
    "workers, or let go of what it holds"
)
SILENT = (
    "nothing was heard of it; restart it, or raise fpmdask.hang if its tasks keep it busy for so "
    "long"
)
BUSY = "busy with tasks of others"

Value = TypeVar("Value")
Tell = Callable[[Mapping[str, Any]], None]


class HomeLeft(Exception):
    """A worker left to which tasks were pinned, or is waited for no longer."""


class Waiting:
    """What is heard of workers while tasks that are pinned to them are waited for.

    Parameters
    ----------
    patience
        Seconds for which a worker may give no sign of life.

    Notes
    -----
    Looks are counted instead of a clock read: what the scheduler was too busy to hear, or the
    client to ask for, is not held against a worker.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._seen: dict[str, tuple[tuple[Any, ...], int]] = {}

    def silent(self) -> set[str]:
        """Return those that have given no sign of life in so many looks that they may have stopped.

        Not those that are paused.
        """
        return {
            address
            for address, (sign, looks) in self._seen.items()
            if looks * LOOK_SECONDS >= SILENT_SECONDS and sign[0] != PAUSED
        }

    def fresh(self) -> set[str]:
        """Return those that have given a sign of life since the look before."""
        return {address for address, (_, looks) in self._seen.items() if not looks}

    def look(self, workers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
        """Take in what the scheduler knows of the workers, every `LOOK_SECONDS`.

        Yields the addresses of those without a sign of life, and whether they are paused.
        """
        for address, worker in workers.items():
            sign = _sign_of_life(worker)
            before, looks = self._seen.get(address, (None, 0))
            looks = looks + 1 if sign == before else 0
            self._seen[address] = sign, looks
            if looks * LOOK_SECONDS > self.patience:
                yield address, sign[0] == PAUSED


def _sign_of_life(worker: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what changes as long as a worker may still do something."""
    metrics = worker["metrics"]
    if worker["status"] == PAUSED and not metrics["task_counts"].get("executing"):
        return PAUSED, metrics["managed_bytes"], metrics["spilled_bytes"]
    return "", worker["last_seen"]


def token(what: str) -> str:
    """Return a name that no other tasks have."""
    return f"fpmdask-{what}-{uuid4().hex}"


class Homes:
    """Where the tasks of one sort or product run: on workers that stay.

    Parameters
    ----------
    client
    hang
        Seconds after which a worker that does nothing, or is silent, is waited for no longer.
    tell
        Is called with an event when a worker is waited for, or is waited for no longer, and with
        how many tasks are done.
    tuning
        The client's.

    Notes
    -----
    A worker that tasks of others keep busy is avoided once the patience for it has passed: what it
    holds is sent to others, as its threads are not needed for that.
    """

    def __init__(
        self, client: Client, hang: float, tell: Tell, tuning: RuntimeTuning = DEFAULT.runtime
    ) -> None:
        self.client, self.tuning = client, tuning
        self.patience = max(hang, tuning.stage_patience_seconds)
        self.scheduler: Any = client.scheduler
        self._tell, self._began = tell, time.monotonic()
        self._avoided: set[str] = set()
        self._told = False
        self.stage = ""  # what the tasks are for, in what the progress tells

    def enter(self, stage: str, low: float, high: float) -> None:
        """Begin a stage, which takes the part of the call from ``low`` to ``high``, about."""
        self.stage = stage
        self._emit("stage", stage=stage, low=low, high=high)

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
            except HomeLeft as left:
                reason = str(left)
            await asyncio.sleep(self.tuning.retry_seconds)
        raise CoordinatorError(f"given up after {attempts} attempts; the last one: {reason}")

    async def places(self, futures: Sequence[Future[Any]]) -> list[str]:
        """Return a worker for each of some results: one that holds it, unless all these are busy.

        None that has stopped; the least loaded of the others where all its holders are busy.

        Raises
        ------
        HomeLeft
            If one is held by nobody.
        ChunksLostError
            If one is held by a stopped worker only and has no task to make it again.
        """
        keys = [future.key for future in futures]
        holders, impossible = await self.scheduler.fpmdask_holders(client=self.client.id, keys=keys)
        if impossible:
            raise ChunksLostError(
                f"{len(impossible)} inputs are only on workers that give no sign of life, and have "
                f"no task to make them again: {named(impossible)}; restart these workers, or "
                "replicate scattered data"
            )
        if not all(map(holders.get, keys)):
            raise HomeLeft("a worker left with the only copy of a result, which is made again")
        every = {worker for there in holders.values() for worker in there}
        if late := [worker for worker, (_, _, late) in (await self._busy(every)).items() if late]:
            self._leave_out(late, (await self.scheduler.identity(n_workers=-1))["workers"])
        free = every - self._avoided or {*await self.scheduler.ncores()} - self._avoided or every
        taken: Counter[str] = Counter()
        found = []
        for key in keys:
            there = free.intersection(holders[key])
            found.append(min(there or free, key=lambda worker: (taken[worker], worker)))
            taken[found[-1]] += not there
        return found

    async def _busy(
        self, workers: Iterable[str], waited: float = 0.0
    ) -> dict[str, tuple[str, float, bool]]:
        """Return what keeps some workers busy, but for those that are avoided."""
        asked = sorted({*workers} - self._avoided)
        found: dict[str, tuple[str, float, bool]]
        found = await self.scheduler.fpmdask_busy(workers=asked, waited=waited)
        return found

    def _leave_out(
        self, workers: Iterable[str], there: Mapping[str, Any], reason: str = BUSY
    ) -> None:
        self._avoided.update(workers)
        for worker in workers:
            name = str(there[worker]["name"]) if worker in there else worker
            self._emit("left out", worker=name, reason=reason)

    def _emit(self, event: str, **facts: Any) -> None:
        self._tell({"event": event, "seconds": round(time.monotonic() - self._began, 4), **facts})

    def usable(self, workers: Iterable[str]) -> set[str]:
        """Return those of some workers that have not stopped, and are not busy, as far as is known.

        All of them where these are none: somebody has to do it.
        """
        every = {*workers}
        return every - self._avoided or every

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
        return await self._watched(self._answers(persisted, futures), homes, futures)

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
        HomeLeft
            If one of the workers leaves before all is done. What a task raises is raised
            here.

        Notes
        -----
        Pinned hard, as Dask's stealing would move what others may run. Once all is done the pins
        are taken off: whatever is lost later is made again by anybody.
        """
        persisted, futures = self._started(name, tasks, homes, given, shared)
        await self._watched(finished(self.client, persisted), homes, futures)
        await self.scheduler.set_restrictions(worker=dict.fromkeys([*tasks, *shared]))
        # who left before that is waited for in vain
        self._check_there(set(homes.values()), await self.scheduler.ncores())
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

    async def _watched(
        self, work: Awaitable[Value], homes: Mapping[Any, str], futures: Sequence[Future[Any]]
    ) -> Value:
        """Return what is awaited, and tell how many of its futures are done meanwhile.

        Raises
        ------
        HomeLeft
            If one of the workers leaves before, or stops.
        CoordinatorError
            If one of them is paused, or not heard of, and stays so.
        """
        done = asyncio.ensure_future(work)
        waiting = Waiting(self.patience)
        began = others = time.monotonic()
        try:
            while not done.done():
                count = sum(future.done() for future in futures)
                of = {"done": count, "total": len(futures), "unit": "tasks"}
                self._emit("progress", phase=self.stage, **of)
                await asyncio.wait([done], timeout=LOOK_SECONDS)
                if not done.done():
                    others = await self._look(waiting, homes, began, others)
            return await done
        finally:
            done.cancel()

    async def _look(
        self, waiting: Waiting, homes: Mapping[Any, str], began: float, others: float
    ) -> float:
        """Look once at all homes; return when one that lives last executed a task.

        `others` is what that was before. A home that gives no sign of life is given up once the
        others have nothing to do, since they are done or wait for it, and `LATE` times as long has
        passed as they took.
        """
        there = (await self.scheduler.identity(n_workers=-1))["workers"]
        addresses = set(homes.values())
        self._check_there(addresses, there)
        looks = [*waiting.look({home: there[home] for home in addresses})]
        silent, now = waiting.silent(), time.monotonic()
        busy = await self._busy(addresses, now - others)
        for home in (addresses & waiting.fresh()) - busy.keys():
            if there[home]["metrics"]["task_counts"].get("executing"):
                others = now
        patience = min(self.patience, max(SILENT_SECONDS, LATE * (others - began)))
        if silent and now - began >= patience:
            stopped = await self.scheduler.fpmdask_stopped(workers=sorted(silent))
            if stopped:
                self._leave_out(stopped, there, "gave no sign of life")
                raise HomeLeft(f"{', '.join(stopped)} gave no sign of life")
        if now - others >= LOOK_SECONDS:
            self._leave_busy(busy, there, now - others)
        for address, paused in looks:
            if not paused or await self._has_to_begin(homes, address):
                raise CoordinatorError(
                    f"worker {there[address]['name']} keeps the others waiting: for "
                    f"{self.patience:g} s {STOPPED if paused else SILENT}"
                )
        return others

    def _leave_busy(
        self,
        busy: Mapping[str, tuple[str, float, bool]],
        there: Mapping[str, Any],
        waited: float,
    ) -> None:
        """Tell of homes that others keep busy; leave them if the rest has waited for long."""
        if busy and not self._told and waited >= TOLD_SECONDS:
            self._told = True
            tasks = {str(there[home]["name"]): task for home, (task, _, _) in busy.items()}
            spent = {str(there[home]["name"]): seconds for home, (_, seconds, _) in busy.items()}
            self._emit("waiting", workers=[*tasks], tasks=tasks, busy_seconds=spent)
        late = [home for home, (_, _, late) in busy.items() if late]
        if late and len(there) > len(self._avoided) + len(late):
            self._leave_out(late, there)
            raise HomeLeft(f"{', '.join(late)} are busy")

    async def _has_to_begin(self, homes: Mapping[Any, str], address: str) -> bool:
        """Tell whether a worker has tasks of ours that could run."""
        own = [key for key, home in homes.items() if home == address]
        states = await self.scheduler.get_task_status(keys=own)
        return not {"no-worker", "processing"}.isdisjoint(states.values())

    def _check_there(self, addresses: set[str], there: Mapping[str, Any]) -> None:
        if gone := addresses - there.keys():
            raise HomeLeft(f"{', '.join(sorted(gone))} left")
