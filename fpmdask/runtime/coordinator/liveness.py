"""Signs of life of workers: a stopped worker is told from one that is only slow.

On the scheduler's event loop. A message of ours, a heartbeat of Dask's and the answer to a ping are
signs of life. A worker whose process is stopped (SIGSTOP, a suspended machine, a dead disk under
its memory) keeps its connections open, so that the scheduler lists it, with all that it holds,
until ``distributed.scheduler.worker-ttl``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, TypeVar

from distributed.metrics import time as wall_time

from fpmdask.runtime.patience import SILENT_SECONDS
from fpmdask.runtime.protocol import WORKER_STOPPED
from fpmdask.runtime.version import RECEIVED

if TYPE_CHECKING:
    from distributed import Scheduler

# A worker that lives answers a ping sooner than this.
PING_SECONDS = 1.0
# How often it is looked while an answer is waited for.
LOOK_SECONDS = 0.25

Value = TypeVar("Value")


class Liveness:
    """When each worker has last given a sign of life, and which ones have stopped.

    Parameters
    ----------
    scheduler
        Knows when it has last had a heartbeat of each worker.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._heard: dict[str, float] = {}
        self._stopped: dict[str, float] = {}  # address -> its last heartbeat

    def heard(self, address: str) -> None:
        """Take note of a message of a worker."""
        if address in self._scheduler.workers:
            self._heard[address] = time.monotonic()
        self._stopped.pop(address, None)

    def left(self, address: str) -> None:
        """Forget a worker that has left the cluster."""
        self._heard.pop(address, None)
        self._stopped.pop(address, None)

    def silent_seconds(self, address: str) -> float:
        """Return how long ago a worker has last given a sign of life, 0 for one that has left."""
        state = self._scheduler.workers.get(address)
        if state is None:
            return 0.0
        since_message = time.monotonic() - self._heard.get(address, -float("inf"))
        return max(0.0, min(since_message, wall_time() - state.last_seen))

    @property
    def any_stopped(self) -> bool:
        """Whether a worker was found stopped that has sent no message since."""
        return bool(self._stopped)

    def has_stopped(self, address: str) -> bool:
        """Tell whether a worker was found stopped and has given no sign of life since."""
        state = self._scheduler.workers.get(address)
        return state is not None and self._stopped.get(address) == state.last_seen

    def without_stopped(self, addresses: Iterable[str]) -> list[str]:
        """Return those of some workers that were not found stopped."""
        return [address for address in addresses if not self.has_stopped(address)]

    def found_stopped(self, address: str, last_seen: float) -> None:
        """Take note of a worker that did not answer, and when it had last given a heartbeat.

        What others fetch from it they give up: its results may be made again elsewhere, and Dask
        waits for as long as the connection is open. Of one that has left Dask tells them.
        """
        if address not in self._scheduler.workers or self._stopped.get(address) == last_seen:
            return
        self._stopped[address] = last_seen
        for worker, state in self._scheduler.workers.items():
            # an unknown message ends a worker: only to one whose heartbeats tell that it has the
            # plugin (the resource ``fpm`` may come from a preload, long before)
            if worker != address and RECEIVED in state.metrics:
                self._scheduler.worker_send(worker, WORKER_STOPPED.message(worker=address))

    async def stopped(self, addresses: Iterable[str]) -> list[str]:
        """Return those of some silent workers that were found stopped, or do not answer a ping."""
        every = sorted(addresses)
        asked = self.without_stopped(every)
        answered = await asyncio.gather(*map(self._answers_ping, asked))
        ok = {address for address, there in zip(asked, answered, strict=True) if there}
        return [address for address in every if address not in ok]

    async def answer(self, address: str, asking: Awaitable[Value], what: str) -> Value:
        """Return what a worker answers to a short question of ours.

        Raises
        ------
        TimeoutError
            If the worker stops before; the message says for what was waited.
        """
        asked = asyncio.ensure_future(asking)
        try:
            while not asked.done():
                await asyncio.wait([asked], timeout=LOOK_SECONDS)
                silent = self.silent_seconds(address)
                if (
                    not asked.done()
                    and silent >= SILENT_SECONDS
                    and await self.stopped([address])
                    and not asked.done()
                ):
                    raise TimeoutError(f"no sign of life for {silent:.1f} s while it was to {what}")
            return await asked
        finally:
            asked.cancel()

    async def _answers_ping(self, address: str) -> bool:
        state = self._scheduler.workers.get(address)
        if state is None:
            return False
        last_seen = state.last_seen
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self._scheduler.rpc(address).identity()
        except (OSError, TimeoutError):
            self.found_stopped(address, last_seen)
            return False
        self.heard(address)
        return True
