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

    from fpmdask.runtime.coordinator.liveness import Liveness

# The memory of so many workers is looked up in one step of the event loop.
ACCOUNTS_AT_ONCE = 64


class Accounts:
    """Accounts of the workers of one scheduler.

    Parameters
    ----------
    scheduler, liveness
        Who is there, and who of these has stopped.
    """

    def __init__(self, scheduler: Scheduler, liveness: Liveness) -> None:
        self._scheduler, self._liveness = scheduler, liveness
        self.spill_target = float(config.setting("spill-target"))

    async def of(self, workers: Sequence[str] | None) -> dict[str, Account]:
        """Return the `account` of each worker that has one of some names, by address.

        Those that have stopped, or are paused, are left out unless there are no others: Dask sends
        them no inputs.
        """
        found = {}
        async for window in windows([*self._scheduler.workers.items()], ACCOUNTS_AT_ONCE):
            for address, state in window:
                if workers is None or str(state.name) in workers or address in workers:
                    found[address] = self.account(state)
        running = {state.address for state in self._scheduler.running}
        alive = running.intersection(self._liveness.without_stopped(found))
        return {address: one for address, one in found.items() if address in alive} or found

    def account(self, state: WorkerState) -> Account:
        """Return the account of a worker's memory."""
        memory = state.memory
        # not `memory.spilled`, which is the size on disk
        spilled = max(0, state.nbytes - memory.managed)
        held = memory.managed, spilled, memory.unmanaged_old
        return Account(state.memory_limit, self.spill_target, *held)
