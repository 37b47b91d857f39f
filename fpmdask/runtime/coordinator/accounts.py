"""The memory of workers, as the scheduler knows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fpmdask import config
from fpmdask.runtime.coordinator.windows import windows
from fpmdask.runtime.memory import Account

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState

# The memory of so many workers is looked up in one step of the event loop.
ACCOUNTS_AT_ONCE = 64


class Accounts:
    """Accounts of the workers of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.spill_target = float(config.setting("spill-target"))

    async def of(self, workers: Sequence[str] | None) -> dict[str, Account]:
        """Return the `account` of each worker that has one of some names, by address."""
        found = {}
        async for window in windows([*self._scheduler.workers.items()], ACCOUNTS_AT_ONCE):
            for address, state in window:
                if workers is None or str(state.name) in workers or address in workers:
                    found[address] = self.account(state)
        return found

    def account(self, state: WorkerState) -> Account:
        """Return the account of a worker's memory."""
        memory = state.memory
        # not `memory.spilled`, which is the size on disk
        spilled = max(0, state.nbytes - memory.managed)
        held = memory.managed, spilled, memory.unmanaged_old
        return Account(state.memory_limit, self.spill_target, *held)
