"""Workers that are busy with somebody else's tasks: a step pinned to one would wait for these.

On the scheduler; no I/O, times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

# What the tasks begin with that a client of ours pins to workers.
OURS = "fpmdask"
# How often it is looked whether busy workers are free.
LOOK_SECONDS = 0.05


class Occupied(NamedTuple):
    """What a worker without a free thread does: its longest task, its prefix and its seconds."""

    task: str
    seconds: float
    key: Any


def occupied(state: WorkerState) -> Occupied | None:
    """Return what a worker is busy with, None if a thread of it is free of tasks of others.

    Tasks that have seceded occupy no thread. Seconds are those of the worker's last heartbeat.
    """
    running = {task for task in state.processing - state.long_running if not is_ours(task.key)}
    if len(running) < state.nthreads:
        return None
    seconds = {task: state.executing.get(task, 0.0) for task in running}
    longest = max(running, key=lambda task: (seconds[task], str(task.key)))
    return Occupied(longest.prefix.name, round(seconds[longest], 1), longest.key)


def is_ours(key: Any) -> bool:
    """Tell whether a task is one that we, or a client of ours, have pinned to a worker."""
    name = key[0] if isinstance(key, tuple) else key
    return isinstance(name, str) and name.startswith(OURS)


class Busy:
    """Since when workers were seen busy with one and the same task.

    Whoever has waited for that once, and gone on without the worker, need not wait again.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[Any, float]] = {}

    def seen(self, states: Iterable[WorkerState], now: float) -> dict[str, tuple[Occupied, float]]:
        """Return address → (what, for how many seconds it was seen) of the busy ones of some."""
        found = {}
        for state in states:
            what = occupied(state)
            if what is None:
                self._since.pop(state.address, None)
                continue
            key, since = self._since.get(state.address, (None, now))
            if key != what.key:
                since = now
            self._since[state.address] = what.key, since
            found[state.address] = what, now - since
        return found

    def left(self, address: str) -> None:
        """Forget a worker that has left the cluster."""
        self._since.pop(address, None)
