"""A run on the scheduler: what it is asked for, and the parts that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpmdask.runtime.app import App, messages
from fpmdask.runtime.coordinator.client_messages import ClientMessages
from fpmdask.runtime.coordinator.membership import Membership
from fpmdask.runtime.coordinator.steps import Steps
from fpmdask.runtime.identity import WorkerIdentity

if TYPE_CHECKING:
    import asyncio

    from distributed import Scheduler

    from fpmdask.runtime.coordinator.lineage import Recompute
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin
    from fpmdask.tuning import Tuning

# The run of a context that only asks whether something could be run.
CHECK = "check"


class RunContext:
    """One run on the scheduler, from its leases to its report.

    Parameters
    ----------
    coordinator
        The plugin.
    run, client
        Their ids.
    spec
        What the client asked for, plain data.
    app
        What is run.

    Attributes
    ----------
    client_messages : ClientMessages
        What the client is told, and asked for.
    members : Membership
        Its workers.
    steps : Steps
        What these do, and what happens.
    report : dict
        Facts collected for `fpmdask.runtime.report.Report`, plain data.
    published : list
        Keys of the result.
    shares_now : callable or None
        Worker name → (units that it is to do, units done), where the application can tell.
    closed : bool
        Whether it is over.
    """

    def __init__(
        self,
        coordinator: CoordinatorPlugin,
        run: str,
        client: str,
        spec: dict[str, Any],
        app: App,
    ) -> None:
        declared = messages(app)
        self.coordinator = coordinator
        self.run, self.client, self.spec, self.app = run, client, spec, app
        self.client_messages = ClientMessages(run, declared.questions)
        self.members = Membership(self)
        self.steps = Steps(self, declared.steps)
        self.report: dict[str, Any] = {"phases": {}, "rounds": [], "log": None}
        self.published: list[Any] = []
        self.shares_now: Callable[[], Mapping[str, tuple[float, float]]] | None = None
        self.closed = False
        self._recompute: Recompute | None = None

    @property
    def scheduler(self) -> Scheduler:
        """Dask's."""
        return self.coordinator.scheduler

    @property
    def tuning(self) -> Tuning:
        """The scheduler's; its workers have the same."""
        return self.coordinator.tuning

    @property
    def lease(self) -> str:
        """The run that holds the workers: itself, or the one within which it is."""
        return str(self.spec.get("within") or self.run)

    @property
    def patience(self) -> float:
        """Seconds for which another run waits for a call of this one to return."""
        measuring = self.spec["measuring"]
        return float(measuring["deadline"] + measuring["hang"])

    # ---- what applications ask most

    @property
    def workers(self) -> dict[str, WorkerIdentity]:
        """Those that take part, in worker order: by address."""
        return self.members.workers

    def name(self, address: str) -> str:
        """Return the name of a worker, also of one that is gone."""
        return self.members.name(address)

    async def acquire(self, kernel: dict[str, Any] | None) -> None:
        """Wait for the wanted workers, and prepare them: `Membership.acquire`."""
        await self.members.acquire(kernel)

    def emit(self, event: str, **facts: Any) -> None:
        """Tell the client what happened: `ClientMessages.emit`."""
        self.client_messages.emit(event, **facts)

    def progress(self, phase: str, done: float, total: float | None, unit: str) -> None:
        """Tell the client how far a phase is: `ClientMessages.progress`."""
        self.client_messages.progress(phase, done, total, unit)

    def ask_client(self, request: str, **facts: Any) -> asyncio.Future[dict[str, Any]]:
        """Ask the client for what only it can do: `ClientMessages.ask`."""
        return self.client_messages.ask(request, **facts)

    # ---- its result

    def set_result(
        self,
        distribution: Mapping[str, int],
        seconds: Mapping[str, float | None],
        imbalance: float | None,
        reason: str,
        proposal: Mapping[str, int],
    ) -> None:
        """Note the distribution that was found or given, for the report.

        `seconds` are None where nothing was measured.
        """
        self.report["names"] = {address: self.name(address) for address in distribution}
        self.report["result"] = {
            "distribution": dict(distribution),
            "seconds": dict(seconds),
            "imbalance": imbalance,
            "reason": reason,
            "proposal": dict(proposal),
        }

    def recompute(self, keys: Iterable[Any]) -> None:
        """Have chunks that only stopped workers hold recomputed on others, beside the run."""
        if not (self.members.any_shunned or self.coordinator.known_workers.liveness.any_stopped):
            return
        if self._recompute is None:
            self._recompute = self.coordinator.recompute(self.run, self.members.is_lost)
        if needed := self._recompute.needed(keys):
            self.steps.background(self._recomputed(self._recompute, needed))

    async def _recomputed(self, recompute: Recompute, keys: Sequence[Any]) -> None:
        self.emit("recomputing", chunks=len(keys))
        if impossible := await recompute.again(keys):
            states = filter(None, map(self.scheduler.tasks.get, impossible))
            where = sorted({self.name(w.address) for state in states for w in state.who_has or ()})
            self.emit("waiting", workers=where, chunks=len(impossible))

    async def close(self) -> None:
        """Tell all the workers that the run is over, and give the leases back."""
        self.closed = True
        if self._recompute is not None:
            self._recompute.release()
        self.members.end()
