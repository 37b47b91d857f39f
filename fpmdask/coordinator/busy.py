"""Workers that are busy with somebody else's tasks: a step pinned to one would wait for these.

On the scheduler; pure functions of the scheduler's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState


class Occupied(NamedTuple):
    """What a worker without a free thread does: the prefix of its longest task, and its seconds."""

    task: str
    seconds: float


def occupied(state: WorkerState) -> Occupied | None:
    """Return what a worker is busy with, None if a thread of it is free.

    Tasks that have seceded occupy no thread. Seconds are those of the worker's last heartbeat.
    """
    running = state.processing - state.long_running
    if len(running) < state.nthreads:
        return None
    seconds = {task: state.executing.get(task, 0.0) for task in running}
    longest = max(running, key=lambda task: (seconds[task], task.key))
    return Occupied(longest.prefix.name, round(seconds[longest], 1))
