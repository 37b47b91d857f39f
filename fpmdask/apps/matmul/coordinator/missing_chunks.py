"""Shares that lack input chunks: they go on once these are in memory again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fpmdask.errors import CoordinatorError, named
from fpmdask.runtime.coordinator.chunks import holders, wait_for_chunks
from fpmdask.runtime.coordinator.context import RunContext


@dataclass
class _Stuck:
    """A share that does not get its chunks where they are said to be."""

    reached: int  # the panel that it is at
    places: dict[Any, list[str]]
    since: float
    times: int = 0


class MissingChunks:
    """Waits for chunks that shares lack; posts ``("found", part, places)`` for each share.

    Parameters
    ----------
    context
        The run.
    keys
        All chunks of the inputs.
    """

    def __init__(self, context: RunContext, keys: Sequence[Any]) -> None:
        self._context, self._keys, self._tuning = context, keys, context.tuning.matmul
        self._reached: dict[int, int] = {}
        self._stuck: dict[int, _Stuck] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._since: float | None = None  # since when silence is put down to lost chunks

    def reached(self, part: int, panel: int) -> None:
        """Take note of how far a share is."""
        self._reached[part] = panel

    def panels_of(self, part: int) -> int:
        """Return how many panels of a share are multiplied."""
        return self._reached.get(part, 0)

    def wait_for(self, part: int, worker: str, missing: Sequence[Any]) -> None:
        """Wait for what the share of a worker lacks.

        Raises
        ------
        CoordinatorError
            If it has asked in vain, getting no further, for longer than lost chunks are waited for.
        """
        times = self._starts(part, worker, missing)
        self._waiting[part] = self._context.steps.background(
            self._until_found(part, missing, times)
        )

    def found(self, part: int) -> None:
        """Take note that what a share lacked is there."""
        del self._waiting[part]
        self.reset()

    def reset(self) -> None:
        """Count from anew how long silence is put down to lost chunks."""
        self._since = None

    def are_made(self) -> bool:
        """Tell whether lost chunks are being made again, perhaps where shares wait to begin."""
        states = map(self._context.scheduler.tasks.get, self._keys)
        if not self._waiting and all(state is None or state.who_has for state in states):
            self._since = None
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since < float(self._context.spec["recovery"])

    def stop(self) -> None:
        """Wait no more."""
        for task in self._waiting.values():
            task.cancel()

    def _starts(self, part: int, worker: str, missing: Sequence[Any]) -> int:
        """Return how often a share has asked in vain, getting no further, who has these chunks."""
        places, now = holders(self._context, missing), time.monotonic()
        reached, stuck = self._reached.get(part, 0), self._stuck.get(part)
        if stuck is None or (stuck.reached, stuck.places) != (reached, places):
            stuck = self._stuck[part] = _Stuck(reached, places, now)
        stuck.times += 1
        name = self._context.name
        often = stuck.times > self._tuning.least_starts
        if now - stuck.since > self._context.spec["recovery"] and often:
            who = sorted({name(holder) for held in places.values() for holder in held})
            raise CoordinatorError(
                f"{name(worker)} has asked {stuck.times} times for "
                f"{len(missing)} input chunks that {', '.join(who)} should have and did not get "
                f"them: {named(missing)}; restart {', '.join(who)}, or make the inputs again"
            )
        return stuck.times

    async def _until_found(self, part: int, missing: Sequence[Any], times: int) -> None:
        context = self._context
        context.emit("waiting for chunks", count=len(missing))
        # a holder that closes is still listed for a while
        turns = min(times, self._tuning.least_starts)
        await asyncio.sleep(self._tuning.restart_seconds * turns)
        await wait_for_chunks(context, missing)
        context.steps.post(("found", part, holders(context, self._keys)))
