"""Runs wait for leases, and for calls of earlier runs that have not returned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fpmdask.runtime.coordinator.leases import Leases

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin

# How often it is looked whether a call of an earlier run under the same lease has returned.
CALL_SECONDS = 0.02


class Leasing:
    """Gives workers to runs, each to one at a time.

    Attributes
    ----------
    book : Leases
        Who has which worker, and who waits for it.
    """

    def __init__(self, coordinator: CoordinatorPlugin) -> None:
        self._coordinator = coordinator
        self.leases = Leases()
        self._granted: dict[str, asyncio.Future[None]] = {}
        self._patience: dict[str, asyncio.TimerHandle] = {}

    async def take(self, run: str, workers: Iterable[str]) -> set[str]:
        """Wait for ``workers``; return those obtained (stuck and departed ones are not)."""
        self._granted[run] = asyncio.get_running_loop().create_future()
        self._grant(self.leases.request(run, workers))
        try:
            await self._granted[run]
        finally:
            self._granted.pop(run, None)
        return self.leases.held_by(run)

    async def take_within(self, run: str, workers: Iterable[str], patience: float) -> set[str]:
        """Return those of some workers that ``run`` holds, or nobody, without waiting for others.

        A call of an earlier run within the same one is waited for ``patience`` seconds at most.
        """
        wanted = {*workers}
        for worker in wanted - self.leases.held_by(run):
            self.leases.extend(run, worker)
        give_up = time.monotonic() + patience
        while busy := wanted & self.leases.held_by(run) & self._coordinator.tickets.occupied():
            if time.monotonic() >= give_up:
                self.give_back(run, busy, None)
            await asyncio.sleep(CALL_SECONDS)
        return wanted & self.leases.held_by(run)

    def give_back(self, run: str, overdue: Iterable[str], patience: float | None) -> None:
        """Return all of a run's leases; where patience is None, those of overdue workers only.

        A worker on which a call goes on stays occupied until the call returns; who waits for it
        waits ``patience`` seconds at most, and not at all for an overdue one.
        """
        overdue = set(overdue)
        loop = asyncio.get_running_loop()
        for worker in self.leases.held_by(run) & self._coordinator.tickets.occupied():
            if worker in overdue:
                self._grant(self.leases.block(run, worker))
            elif patience is not None:
                self.leases.linger(run, worker)
                self._patience[worker] = loop.call_later(patience, self._block, run, worker)
        if patience is not None:
            self._grant(self.leases.release(run))

    def _block(self, run: str, worker: str) -> None:
        self._patience.pop(worker, None)
        self._grant(self.leases.block(run, worker))

    def _grant(self, runs: Iterable[str]) -> None:
        for run in runs:
            waiting = self._granted.get(run)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def call_returned(self, worker: str) -> None:
        """Grant a worker on which no call of ours is any more to who waits for it."""
        if worker not in self._coordinator.tickets.occupied():
            self._stop_waiting(worker)
            self._grant(self.leases.recovered(worker))

    def _stop_waiting(self, worker: str) -> None:
        timer = self._patience.pop(worker, None)
        if timer is not None:
            timer.cancel()

    def left(self, worker: str) -> None:
        """A worker is gone: nobody waits for it."""
        self._stop_waiting(worker)
        self._grant(self.leases.left(worker))

    def close(self) -> None:
        """Wait for no call any more."""
        for timer in self._patience.values():
            timer.cancel()
