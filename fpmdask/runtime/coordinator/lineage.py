"""Recompute what only stopped workers hold, from its lineage, on workers that live.

On the scheduler's event loop. Dask recomputes what was lost with a worker that has left; one that
has stopped is still listed as a holder. What is recomputed gets keys of its own first, since a
worker that goes on would otherwise be told to compute what it holds; its result then becomes a
replica of the original key, the only one. Nobody else's tasks change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future, wait
from distributed.client import FuturesCancelledError

from fpmdask.runtime.dask_private import GraphNode, list_replicas, unlist_replicas
from fpmdask.runtime.patience import SILENT_SECONDS
from fpmdask.runtime.protocol import LIST_AGAIN, REPLICATE
from fpmdask.runtime.version import RECEIVED

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState

    from fpmdask.runtime.coordinator.liveness import Liveness

PREFIX = "fpmdask-recompute"
# How often it is looked whether those that recompute have stopped as well.
LOOK_SECONDS = 0.5


def lineage(
    tasks: Mapping[Any, TaskState], wanted: Iterable[Any], lost: Collection[str]
) -> tuple[dict[Any, GraphNode], set[Any], list[Any]]:
    """Return what must be computed so that some keys exist on workers that are not lost.

    Parameters
    ----------
    tasks
        The scheduler's tasks, by key.
    wanted
        The keys.
    lost
        Addresses of workers whose results cannot be used.

    Returns
    -------
    dict
        Key → task of everything that must be computed.
    set
        Keys of results that these tasks take from other workers.
    list
        Keys that are wanted or needed, and that nobody can compute. O(tasks).
    """
    again: dict[Any, GraphNode] = {}
    given: set[Any] = set()
    impossible: list[Any] = []
    open_, seen = [*wanted], set(wanted)
    while open_:
        key = open_.pop()
        state = tasks.get(key)
        if state is not None and any(held.address not in lost for held in state.who_has or ()):
            given.add(key)
        elif state is None or state.run_spec is None:
            impossible.append(key)
        else:
            again[key] = state.run_spec
            open_ += [need for need in state.run_spec.dependencies if need not in seen]
            seen |= state.run_spec.dependencies
    return again, given, impossible


def unlist_lost(
    scheduler: Scheduler,
    liveness: Liveness,
    keys: Iterable[Any],
    lost: Callable[[str], bool],
    run: str,
) -> None:
    """Have workers that are lost to a run listed no more as holders of what others hold.

    Those that have stopped tell what they hold once they go on.
    """

    def tells(address: str) -> bool:
        # an unknown message ends a worker: who has no plugin is told nothing
        known = RECEIVED in scheduler.workers[address].metrics
        return known and liveness.has_stopped(address)

    for address, own in unlist_replicas(scheduler, keys, lost, tells, run).items():
        scheduler.worker_send(address, LIST_AGAIN.message(keys=own))


class Recompute:
    """Recomputes chunks, for one run or one call, and keeps them until `release`.

    Parameters
    ----------
    scheduler, client
        The client is the coordinator's.
    liveness
        Knows whether a worker that is asked stops.
    lost
        Tells whether what a worker (its address) holds cannot be used.
    run
        Its id.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        client: Client,
        liveness: Liveness,
        lost: Callable[[str], bool],
        run: str,
    ) -> None:
        self._scheduler, self._client, self._liveness = scheduler, client, liveness
        self._lost, self._run = lost, run
        self._released = False
        # They keep what was recomputed although Dask drops surplus replicas of the originals.
        self._kept: dict[Any, Future[Any]] = {}
        self._going: set[Any] = set()
        self._impossible: set[Any] = set()

    def needed(self, keys: Iterable[Any]) -> list[Any]:
        """Return those of some keys that only stopped workers hold, and nobody recomputes yet.

        Without those for which there is no way.
        """
        found = []
        for key in keys:
            if key in self._going or key in self._impossible:
                continue
            state = self._scheduler.tasks.get(key)
            held = [holder.address for holder in (state and state.who_has) or ()]
            if held and all(map(self._lost, held)):
                found.append(key)
        return found

    async def again(self, keys: Collection[Any]) -> list[Any]:
        """Recompute what only stopped workers hold; return the keys for which there is no way.

        That is data without a task (scattered, for one), and what raises this time.
        """
        self._going.update(keys)
        try:
            lost = set(filter(self._lost, self._scheduler.workers))
            possible: list[Any] = []
            without_task: list[Any] = []
            tasks: dict[Any, GraphNode] = {}
            given: set[Any] = set()
            for key in keys:
                if key in self._kept:
                    continue
                own, own_given, impossible = lineage(self._scheduler.tasks, [key], lost)
                if impossible:
                    without_task.append(key)
                else:
                    possible.append(key)
                    tasks |= own
                    given |= own_given
            raised = await self._compute(tasks, given, possible, lost) if possible else []
            failed = without_task + raised
            self._impossible.update(failed)
            await self._as_replicas([key for key in keys if key in self._kept])
            return failed
        finally:
            self._going.difference_update(keys)

    def release(self) -> None:
        """Let go of all that was recomputed, and of what is being recomputed once it is there."""
        self._released = True
        for future in self._kept.values():
            future.release()
        self._kept.clear()

    async def _compute(
        self,
        tasks: Mapping[Any, GraphNode],
        given: Collection[Any],
        wanted: Collection[Any],
        lost: Collection[str],
    ) -> list[Any]:
        """Compute tasks on workers that are not lost; return the wanted keys whose tasks raise."""
        batch = uuid4().hex
        names = {key: f"{PREFIX}-{batch}-{n}" for n, key in enumerate(tasks)}
        living = [address for address in self._scheduler.workers if address not in lost]
        graph = {
            names[key]: task.substitute(
                {need: names[need] for need in task.dependencies if need in names}, key=names[key]
            )
            for key, task in tasks.items()
        }
        annotations = {"workers": living, "allow_other_workers": False}
        futures: dict[Any, Future[Any]] = {key: Future(key, self._client) for key in given}
        layers = {
            PREFIX: MaterializedLayer(graph, annotations=annotations),
            f"{PREFIX}-given": MaterializedLayer(futures),
        }
        needs = {PREFIX: {f"{PREFIX}-given"}, f"{PREFIX}-given": set[str]()}
        made = self._client.get(
            HighLevelGraph(layers, needs),
            [names[key] for key in wanted],
            sync=False,
            fifo_timeout="0 ms",
        )
        # cancelled is what was lost again: whoever needs it asks again
        with self._client.as_current(), suppress(FuturesCancelledError):
            while not self._released:
                try:
                    await wait(made, timeout=LOOK_SECONDS)
                    break
                except TimeoutError:
                    if await self._any_stopped(names.values()):
                        break
        raised = []
        for key, future in zip(wanted, made, strict=True):
            if future.status == "finished" and not self._released:
                self._kept[key] = future
                continue
            if future.status == "error":
                raised.append(key)
            future.release()
        return raised

    async def _any_stopped(self, keys: Iterable[str]) -> bool:
        """Tell whether one of the workers that compute some keys has stopped."""
        states = filter(None, map(self._scheduler.tasks.get, keys))
        at = {state.processing_on.address for state in states if state.processing_on is not None}
        silent = {a for a in at if self._liveness.silent_seconds(a) >= SILENT_SECONDS}
        return bool(silent and await self._liveness.stopped(silent))

    async def _as_replicas(self, keys: Iterable[Any]) -> None:
        """Have workers list what was recomputed under its original keys, too."""
        of: dict[str, list[tuple[Any, Any]]] = {}
        for key in keys:
            state = self._scheduler.tasks.get(self._kept[key].key)
            held = [holder.address for holder in (state and state.who_has) or ()]
            living = [address for address in held if not self._lost(address)]
            if living:
                of.setdefault(min(living), []).append((key, self._kept[key].key))
            else:
                self._kept.pop(key).release()  # lost as well: it is made again when it is asked for
        asked = (
            self._liveness.answer(
                address, REPLICATE.ask(self._scheduler.rpc(address), names=own), "list chunks"
            )
            for address, own in of.items()
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for address, answer in zip(of, answers, strict=True):
            if not isinstance(answer, BaseException):
                list_replicas(self._scheduler, address, answer.keys, self._run)
                unlist_lost(self._scheduler, self._liveness, answer.keys, self._lost, self._run)
            elif not isinstance(answer, OSError):
                raise answer
