"""Stages of a client: what it has done by tasks of its own on workers that a run holds for it.

On the scheduler's event loop. An application whose stages are tasks of the client, of collections
that only it has, names `run`, and its client calls `fpmdask.runtime.client.proxy.leased`: no other
run measures or computes on these workers meanwhile. The client pins its tasks to workers that it
asks for, and asks again and again whether these go on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from fpmdask import config
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.coordinator.busy import Occupied, is_ours
from fpmdask.runtime.coordinator.chunks import AT_ONCE, wait_for_chunks, without_fpmdask
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.lineage import unlist_lost
from fpmdask.runtime.coordinator.team import PAUSED, does_nothing, executes
from fpmdask.runtime.coordinator.windows import windows
from fpmdask.runtime.dask_private import run_anywhere, unrunnable
from fpmdask.runtime.patience import LATE, SILENT_SECONDS, TOLD_SECONDS
from fpmdask.runtime.protocol import Places

SILENT = (
    "nothing was heard of it; restart it, or raise fpmdask.hang if its tasks keep it busy for so "
    "long"
)
BUSY = "busy with tasks of others"


def check(context: RunContext) -> None:
    """Refuse where no worker, or not every named one, is connected."""
    context.members.candidates()


async def run(context: RunContext) -> dict[str, Any]:
    """Hold the wanted workers until the client is done; the value is its answer."""
    context.report["only_holds"] = True  # the report of a run within this one counts
    await context.members.hold(context.members.candidates())
    return await context.ask_client("work")


class ClientStages:
    """Where the tasks of the stages of one run can be, and whether the workers go on.

    A worker that tasks of others keep busy is avoided once the patience for it has passed: what it
    holds is sent to others, as its threads are not needed for that.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        hang = float(context.spec["measuring"]["hang"])
        self._patience = max(hang, context.tuning.runtime.stage_patience_seconds)
        self._busy_patience = config.seconds("busy-patience")
        self._avoided: set[str] = set()
        self._senders: set[str] = set()  # that hold what stages have asked for
        self._told = False
        # what paused workers hold, and since when
        self._paused: dict[str, tuple[Any, float]] = {}
        # when one that lives was last seen at work
        self._worked = 0.0

    async def places(self, keys: Sequence[Any]) -> Places:
        """Return a worker for each of some results: one that holds it.

        None that has stopped; the least loaded of the others where all its holders are busy.

        Raises
        ------
        ChunksLostError
            As `wait_for_chunks`.
        """
        holders = await wait_for_chunks(self._context, keys)
        every = {*chain.from_iterable(holders.values())}
        self._avoid(self._late(self._busy(every, time.monotonic()), 0.0), BUSY)
        self._senders |= every
        workers = self._context.scheduler.workers
        usable = workers.keys() - self._avoided or {*workers}
        threads = {worker: workers[worker].nthreads for worker in usable}
        bare = without_fpmdask(self._context.scheduler, {"": [*usable]})
        free = every - self._avoided or usable
        taken: Counter[str] = Counter()
        places = []
        context = self._context
        liveness = context.coordinator.known_workers.liveness
        async for window in windows(keys, AT_ONCE):
            if liveness.any_stopped:
                lost = context.members.is_lost
                unlist_lost(context.scheduler, liveness, window, lost, context.run)
            for key in window:
                there = free.intersection(holders[key])
                places.append(min(there or free, key=lambda worker: (taken[worker], worker)))
                taken[places[-1]] += not there
        return Places(places, threads, bare)

    async def unpin(self, keys: Sequence[Any]) -> None:
        """Let tasks that are done run on any worker: whoever makes lost results again."""
        tasks = self._context.scheduler.tasks
        async for window in windows(keys, AT_ONCE):
            run_anywhere(filter(None, map(tasks.get, window)))

    async def look(self, homes: Sequence[str], seconds: float) -> str | None:
        """Return why a stage must start over that is at these workers since so many seconds.

        A worker that gives no sign of life is given up once the others have nothing to do, since
        they are done or wait for it, and `LATE` times as long has passed as they took.

        Raises
        ------
        CoordinatorError
            If a worker is paused, or not heard of, and stays so.
        """
        context, now = self._context, time.monotonic()
        workers, liveness = context.scheduler.workers, context.coordinator.known_workers.liveness
        if gone := set(homes) - workers.keys():
            return f"{self._names(gone)} left"
        busy = self._busy(homes, now)
        self._worked = max(self._worked, now - seconds)
        quiet: dict[str, float] = {}
        for home in homes:
            quiet[home] = min(seconds, self._quiet_seconds(home, now))
            if home not in busy and executes(workers[home]):
                self._worked = max(self._worked, now - quiet[home])
        for sender in self._senders & workers.keys() - set(homes):
            # those at work may wait for what it holds
            quiet[sender] = min(seconds, liveness.silent_seconds(sender))
        waited = now - self._worked
        silent = {w for w in quiet if quiet[w] >= SILENT_SECONDS and w not in self._paused}
        patience = min(self._patience, max(SILENT_SECONDS, LATE * (seconds - waited)))
        stopped = await liveness.stopped(silent) if silent and seconds >= patience else []
        if stopped:
            self._senders.difference_update(stopped)
            return self._avoid(stopped, "gave no sign of life")
        if busy and waited >= TOLD_SECONDS:
            if not self._told:
                self._told = True
                context.members.emit_busy(busy)
            late = self._late(busy, waited)
            if late and len(workers) > len(self._avoided) + len(late):
                return self._avoid(late, BUSY)
        for home in workers.keys() & homes:  # others may have left meanwhile
            paused = home in self._paused
            if quiet[home] > self._patience and not (paused and not self._has_to_begin(home)):
                raise CoordinatorError(
                    f"worker {context.name(home)} keeps the others waiting for "
                    f"{self._patience:g} s: {PAUSED if paused else SILENT}"
                )
        return None

    def _quiet_seconds(self, home: str, now: float) -> float:
        """Return for how long a worker has given no sign that it may still do something."""
        state = self._context.scheduler.workers[home]
        if not does_nothing(state):
            self._paused.pop(home, None)
            return self._context.coordinator.known_workers.liveness.silent_seconds(home)
        held = state.metrics["managed_bytes"], state.metrics["spilled_bytes"]
        before, since = self._paused.get(home, (held, now))
        self._paused[home] = held, since if held == before else now
        return now - self._paused[home][1]

    def _has_to_begin(self, home: str) -> bool:
        """Tell whether a paused worker has tasks of ours that could run."""
        scheduler = self._context.scheduler
        waiting = (t for t in unrunnable(scheduler) if home in (t.worker_restrictions or ()))
        return any(is_ours(task.key) for task in chain(waiting, scheduler.workers[home].processing))

    def _busy(self, homes: Iterable[str], now: float) -> dict[str, tuple[Occupied, float]]:
        workers = self._context.scheduler.workers
        states = [workers[home] for home in sorted({*homes} - self._avoided) if home in workers]
        return self._context.coordinator.known_workers.busy.seen(states, now)

    def _late(self, busy: Mapping[str, tuple[Occupied, float]], waited: float) -> list[str]:
        """Return the busy workers that are to be waited for no longer."""
        return [w for w, (_, seen) in busy.items() if max(waited, seen) >= self._busy_patience]

    def _avoid(self, workers: Sequence[str], reason: str) -> str:
        self._avoided.update(workers)
        for worker in workers:
            self._context.members.leave_out(worker, reason)
        return f"{self._names(workers)}: {reason}"

    def _names(self, workers: Iterable[str]) -> str:
        return ", ".join(sorted(map(self._context.name, workers)))
