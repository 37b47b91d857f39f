"""What is known of the workers of one scheduler, whatever run they take part in.

On the scheduler's event loop. The coordinator owns one `KnownWorkers`; a worker that leaves the
cluster is forgotten in all its parts at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpmdask.runtime.coordinator.accounts import Accounts
from fpmdask.runtime.coordinator.busy import Busy
from fpmdask.runtime.coordinator.liveness import Liveness
from fpmdask.runtime.identity import WorkerIdentity

if TYPE_CHECKING:
    from distributed import Scheduler

    from fpmdask.runtime.links import Link


class KnownWorkers:
    """The state of workers that outlives a run.

    Attributes
    ----------
    accounts : Accounts
        Their memory.
    liveness : Liveness
        Their last signs of life.
    busy : Busy
        Since when they have been busy with tasks of others.
    identities : dict
        Address → `WorkerIdentity`, of those that have been prepared for a run.
    links : dict
        `WorkerIdentity` → its `Link`, of those whose links were measured.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.liveness = Liveness(scheduler)
        self.accounts = Accounts(scheduler, self.liveness)
        self.busy = Busy()
        self.identities: dict[str, WorkerIdentity] = {}
        self.links: dict[WorkerIdentity, Link] = {}

    def left(self, address: str) -> None:
        """Forget a worker that has left the cluster."""
        self.liveness.left(address)
        self.busy.left(address)
        identity = self.identities.pop(address, None)
        if identity is not None:
            self.links.pop(identity, None)
