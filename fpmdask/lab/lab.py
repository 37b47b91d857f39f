"""A heterogeneous Dask cluster emulated on one Linux machine."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fpmdask.errors import LabError
from fpmdask.lab import backends, cluster
from fpmdask.lab.definition import (
    BACKENDS,
    LabDefinition,
    WorkerDefinition,
    check_quota,
    load,
)
from fpmdask.lab.processes import Process, boot_id, identify, kill, spawn
from fpmdask.lab.state import LabState, Ledger, exclusive, read_state, recorded, state_path
from fpmdask.lab.teardown import take_down


class Lab:
    """A lab that lives as long as this object is up, and ends with the driver however that ends.

    Parameters
    ----------
    definition : LabDefinition
        What to make.
    backend : {"auto", "root", "duty-cycle"}, optional
        In place of the definition's.
    detached : bool
        Whether the lab stays when the driver ends.

    Examples
    --------
    >>> lab = Lab.from_toml("hcl6")
    >>> [worker.cpu for worker in lab.workers]
    [0.4, 0.3, 0.25, 0.2, 0.15, 0.1]

    As a context manager it is up inside::

        with Lab.from_toml("hcl6") as lab, Client(lab.scheduler_address) as client:
            ...
    """

    def __init__(
        self, definition: LabDefinition, *, backend: str | None = None, detached: bool = False
    ) -> None:
        self.definition = definition
        self._wanted = backend or definition.backend
        if self._wanted not in BACKENDS:
            raise LabError(f"backend is {backend!r}; allowed are {', '.join(BACKENDS)}")
        self._detached = detached
        self._ledger: Ledger | None = None
        self._backend: backends.Backend | None = None
        self._memory = 0

    @classmethod
    def from_toml(
        cls,
        name_or_path: str | Path,
        *,
        name: str | None = None,
        backend: str | None = None,
        detached: bool = False,
    ) -> Lab:
        """Return the lab of a definition that comes with fpmdask or of a TOML file, not yet up.

        Parameters
        ----------
        name_or_path : str or Path
            For example ``"hcl6"`` or ``"./mine.toml"``.
        name : str, optional
            Another name for this lab, so that it can be up beside one of the same definition.
        backend : {"auto", "root", "duty-cycle"}, optional
            In place of the definition's.
        detached : bool
            Whether the lab stays when the driver ends.
        """
        return cls(load(name_or_path, name=name), backend=backend, detached=detached)

    @property
    def workers(self) -> tuple[WorkerDefinition, ...]:
        """The workers' definitions, in the definition's order."""
        return self.definition.workers

    @property
    def state(self) -> LabState:
        """What is recorded of this lab.

        Raises
        ------
        LabError
            If the lab is not up.
        """
        if self._ledger is None:
            raise LabError(f"the lab {self.definition.name!r} is not up; call up() or use `with`")
        return self._ledger.state

    @property
    def scheduler_address(self) -> str:
        """Where clients connect."""
        return self.state.scheduler_address

    @property
    def backend(self) -> str:
        """``"root"`` or ``"duty-cycle"``."""
        return self.state.backend

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of all processes of the lab that run."""
        return tuple(process.pid for process in self.state.processes if process.alive())

    def up(self) -> Lab:
        """Start the scheduler and the workers and return when all are registered.

        Raises
        ------
        LabError
            If a lab of this name is up already, or this machine cannot make it; nothing is left.

        Notes
        -----
        The workers start without their quotas and get them once they have registered and
        imported what they need: the imports alone would take a tenth of a core over ten seconds.
        """
        if self._ledger is not None:
            raise LabError(f"the lab {self.definition.name!r} is already up; take it down first")
        self._memory = cluster.memory_share(self.workers, _machine_memory())
        self._ledger = self._begin()
        try:
            self._build()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Take the lab down; nothing to do if it is down already."""
        ledger, self._ledger, self._backend = self._ledger, None, None
        if ledger is None:
            return
        current = read_state(ledger.path)
        if current is not None and current.identity == ledger.state.identity:
            take_down(ledger.path, ledger.state)

    def __enter__(self) -> Lab:
        return self.up() if self._ledger is None else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.down()

    def __repr__(self) -> str:
        where = self.scheduler_address if self._ledger is not None else "down"
        return f"<Lab {self.definition.name!r}: {len(self.workers)} workers, {where}>"

    def worker_pid(self, name: str) -> int:
        """Return the pid of the process that runs a worker's tasks.

        Raises
        ------
        LabError
            If there is no such worker or it does not run.
        """
        process = self._process(name)
        if not self._worker(name).nanny:
            return process.pid
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii")
        for pid in children.split():
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        raise LabError(f"the nanny of worker {name!r} has no worker; see {self.log(name)}")

    def log(self, name: str) -> Path:
        """Return the file that a worker or ``"scheduler"`` writes to."""
        return Path(self.state.folder) / f"{name}.log"

    def kill_worker(self, name: str) -> None:
        """End a worker with SIGKILL (with a nanny: the worker, which the nanny starts again)."""
        if self._worker(name).nanny:
            os.kill(self.worker_pid(name), signal.SIGKILL)
        else:
            kill([self._process(name)])

    def restart_worker(self, name: str) -> None:
        """Start a worker anew under its name and quota, ending it if it still runs."""
        worker = self._worker(name)
        process = self.state.process(f"worker {name}")
        if process is not None:
            kill([process])
        self._start_workers((worker,), {name: self.state.quotas.get(name, worker.cpu)})

    def set_quota(self, name: str, cores: float | None) -> None:
        """Change a worker's CPU quota while it runs.

        Parameters
        ----------
        name : str
            The worker.
        cores : float or None
            CPU-seconds per second, > 0; ``None`` takes the quota away.
        """
        self._worker(name)
        if cores is not None:
            check_quota(cores, self.definition.period, f"worker {name!r}")
        ledger, backend = self._parts()
        backend.set_quota(name, cores)
        quotas = {k: v for k, v in ledger.state.quotas.items() if k != name}
        ledger.record(quotas=quotas if cores is None else {**quotas, name: float(cores)})

    def _begin(self) -> Ledger:
        """Record the lab, once the remains of those whose drivers are gone are cleared away."""
        definition = self.definition
        chosen = backends.choose(self._wanted)
        with exclusive():
            clear_stale()
            path = state_path(definition.name)
            if (other := read_state(path)) is not None:
                owner = f"process {other.owner.pid}" if other.owner else "`fpmdask lab up`"
                raise LabError(
                    f"a lab named {definition.name!r} is already up, started by {owner}; take it "
                    f"down with `fpmdask lab down {definition.name}` or give this one another name "
                    "(their workers would share the cores)"
                )
            identity = secrets.token_hex(3)
            folder = Path(tempfile.gettempdir()) / f"fpmdask-{definition.name}-{identity}"
            state = LabState(
                name=definition.name,
                identity=identity,
                backend=chosen,
                boot=boot_id(),
                folder=str(folder),
                # A detached lab belongs to its maker until it is up.
                owner=identify("owner", os.getpid()),
                period=definition.period,
            )
            return Ledger(path, state)

    def _build(self) -> None:
        assert self._ledger is not None
        ledger, state = self._ledger, self._ledger.state
        folder = Path(state.folder)
        folder.mkdir(mode=0o700)
        if not self._detached or state.backend == "duty-cycle":
            watch = (sys.executable, "-m", "fpmdask.lab.watch", str(ledger.path))
            self._spawn("watch", watch, dict(os.environ), folder / "watch.log", None)
        kinds = {"root": backends.RootBackend, "duty-cycle": backends.DutyCycleBackend}
        self._backend = kinds[state.backend](self.definition, ledger)
        self._backend.prepare()
        log = folder / "scheduler.log"
        command = cluster.scheduler_command(
            self.definition, self._backend.address("scheduler"), folder
        )
        scheduler = self._spawn(
            "scheduler",
            (*self._backend.command("scheduler"), *command),
            cluster.environment(self.definition, None),
            log,
            None,
        )
        ledger.record(scheduler_address=cluster.scheduler_address(folder, scheduler, log))
        self._start_workers(self.workers, {worker.name: worker.cpu for worker in self.workers})
        if self._detached:
            ledger.record(owner=None)

    def _start_workers(
        self, workers: tuple[WorkerDefinition, ...], quotas: Mapping[str, float | None]
    ) -> None:
        from distributed import Client

        started = {}
        for worker in workers:
            self.set_quota(worker.name, None)
            started[self._start(worker)] = self.log(worker.name)
        names = {worker.name for worker in workers}
        with Client(self.scheduler_address, set_as_default=False) as client:
            cluster.wait_for_workers(client, started, names)
            addresses = [
                address
                for address, info in client.scheduler_info(n_workers=-1)["workers"].items()
                if info["name"] in names
            ]
            if self.definition.imports:
                code = f"import {', '.join(self.definition.imports)}"
                client.run(exec, code, workers=addresses)
        for name, cores in quotas.items():
            if cores is not None:
                self.set_quota(name, cores)

    def _start(self, worker: WorkerDefinition) -> Process:
        _, backend = self._parts()
        command = cluster.worker_command(
            worker,
            backend.address(worker.name),
            self.scheduler_address,
            Path(self.state.folder),
            self._memory,
        )
        return self._spawn(
            f"worker {worker.name}",
            (*backend.command(worker.name), *command),
            cluster.environment(self.definition, worker),
            self.log(worker.name),
            worker,
        )

    def _spawn(
        self,
        role: str,
        argv: tuple[str, ...],
        environment: dict[str, str],
        log: Path,
        worker: WorkerDefinition | None,
    ) -> Process:
        assert self._ledger is not None
        ledger = self._ledger

        def prepare(process: Process) -> None:
            ledger.record(processes=(process,))
            if worker is not None:
                if worker.affinity:
                    os.sched_setaffinity(process.pid, worker.affinity)
                self._parts()[1].place(process, worker)

        return spawn(role, argv, environment=environment, log=log, prepare=prepare)

    def _parts(self) -> tuple[Ledger, backends.Backend]:
        if self._ledger is None or self._backend is None:
            raise LabError(f"the lab {self.definition.name!r} is not up; call up() or use `with`")
        return self._ledger, self._backend

    def _worker(self, name: str) -> WorkerDefinition:
        for worker in self.workers:
            if worker.name == name:
                return worker
        names = ", ".join(worker.name for worker in self.workers)
        raise LabError(f"no worker is named {name!r}; this lab has {names}")

    def _process(self, name: str) -> Process:
        self._worker(name)
        process = self.state.process(f"worker {name}")
        if process is None or not process.alive():
            raise LabError(f"the worker {name!r} does not run; start it with restart_worker")
        return process


def clear_stale() -> tuple[LabState, ...]:
    """Take down the labs whose drivers are gone; the caller holds the lock."""
    stale = [(path, state) for path, state in recorded() if state.condition() == "stale"]
    for path, state in stale:
        take_down(path, state)
    return tuple(state for _, state in stale)


def _machine_memory() -> int:
    from distributed.system import MEMORY_LIMIT

    memory: Any = MEMORY_LIMIT
    return int(memory)
