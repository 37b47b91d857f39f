"""Timeouts: of workers that compute and are silent, and of work that no worker has room for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from fpmdask.runtime.coordinator.context import RunContext


class Silence:
    """When workers were heard of last; posts ``("overdue",)`` once one is silent for too long.

    What the caller passes as `patience` is worker → seconds that it may be silent.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._heard: dict[str, float] = {}
        self._excused = 0.0  # until when nobody's silence counts
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, worker: str) -> None:
        """Take note of a sign of life."""
        self._heard[worker] = time.monotonic()

    def excuse(self) -> None:
        """Count nobody's silence until now: each may have waited for what has just come."""
        self._excused = time.monotonic()

    def watch(self, patience: Mapping[str, float]) -> None:
        """Look again once the first of some workers may be overdue."""
        self.stop()
        due = [self._since(worker) + seconds for worker, seconds in patience.items()]
        if due:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, min(due) - time.monotonic()), self._context.steps.post, ("overdue",)
            )

    def overdue(self, patience: Mapping[str, float]) -> dict[str, float]:
        """Return the workers that are overdue, and for how long each has been silent."""
        now = time.monotonic()
        silent = {worker: now - self._since(worker) for worker in patience}
        return {
            worker: seconds for worker, seconds in silent.items() if seconds >= patience[worker]
        }

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _since(self, worker: str) -> float:
        return max(self._excused, self._heard.get(worker, 0.0))


class Stranded:
    """Posts ``("stranded",)`` where nobody has had room for some work for too long.

    A worker is waited for (a nanny restarts one) as long as chunks are.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, *, waiting: bool) -> None:
        """Begin to wait where there is such work, end it where there is none."""
        if not waiting:
            self.stop()
        elif self._timer is None:
            patience = self._context.spec["recovery"]
            self._context.emit("waiting for workers", patience=patience)
            self._timer = asyncio.get_running_loop().call_later(
                patience, self._context.steps.post, ("stranded",)
            )

    def stop(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
