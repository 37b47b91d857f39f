"""Putting a lab together: what is recorded, started and awaited, in this order."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fpmdask.errors import LabError
from fpmdask.lab import backends, cluster
from fpmdask.lab.definition import LabDefinition, WorkerDefinition, one_cpu_each
from fpmdask.lab.processes import Process, boot_id, identify, kill, spawn
from fpmdask.lab.state import LabState, Ledger, exclusive, read_state, recorded, state_path
from fpmdask.lab.teardown import take_down


class Assembly:
    """The parts of a lab that is being made or is up.

    Parameters
    ----------
    definition : LabDefinition
        What to make.
    wanted : {"auto", "root", "duty-cycle"}
        The backend.

    Raises
    ------
    LabError
        If a lab of this name is recorded, or this machine cannot make it.
    """

    def __init__(self, definition: LabDefinition, wanted: str) -> None:
        self.definition = definition
        self._memory = cluster.memory_share(definition.workers, _machine_memory())
        self.ledger = _begin(definition, backends.choose(wanted))
        self.folder = Path(self.ledger.state.folder)
        self.backend: backends.Backend | None = None
        self._cpus = {worker.name: worker.affinity for worker in definition.workers}
        if definition.pin:
            self._cpus = one_cpu_each(definition.workers, os.sched_getaffinity(0))

    @property
    def state(self) -> LabState:
        """What is recorded now."""
        return self.ledger.state

    def build(self, *, detached: bool) -> None:
        """Make everything and return when all workers are registered.

        Notes
        -----
        A detached lab belongs to its maker until it is up: the watch, which is the first process,
        takes it down if the maker dies before. After that its duty cycle needs the watch; control
        groups do not, and the watch ends.
        """
        self.folder.mkdir(mode=0o700)
        watch = (sys.executable, "-m", "fpmdask.lab.watch", str(self.ledger.path))
        self._spawn("watch", watch, dict(os.environ), self.log("watch"), None)
        if self.state.backend == "root":
            self.backend = backends.RootBackend(self.definition, self.ledger)
        else:
            self.backend = backends.DutyCycleBackend(self.definition, self.ledger)
        self.backend.prepare()
        self._start_scheduler(self.backend)
        workers = self.definition.workers
        self.start_workers(workers, {worker.name: worker.cpu for worker in workers})
        if detached:
            self.ledger.record(owner=None)

    def log(self, name: str) -> Path:
        """Return the file that a process writes to."""
        return self.folder / f"{name}.log"

    def set_quota(self, name: str, cores: float | None) -> None:
        """Put a quota in force, or None of it, and record it."""
        assert self.backend is not None
        self.backend.set_quota(name, cores)
        quotas = {k: v for k, v in self.state.quotas.items() if k != name}
        self.ledger.record(quotas=quotas if cores is None else {**quotas, name: float(cores)})

    def start_workers(
        self, workers: tuple[WorkerDefinition, ...], quotas: Mapping[str, float | None]
    ) -> None:
        """Start workers, await their registration, then put their quotas in force.

        Parameters
        ----------
        workers : tuple of WorkerDefinition
            Those of these names that still run are ended first.
        quotas : mapping of str to float or None
            Cores, by name.
        """
        with cluster.connect(self.state.scheduler_address) as client:
            names = {worker.name for worker in workers}
            old = [self.state.process(f"worker {name}") for name in names]
            kill([process for process in old if process is not None])
            cluster.wait_until_gone(client, names)
            started = {}
            for worker in workers:
                self.set_quota(worker.name, None)
                started[self._start_worker(worker)] = self.log(worker.name)
            addresses = cluster.wait_for_workers(client, started, names)
            if self.definition.imports:
                code = f"import {', '.join(self.definition.imports)}"
                client.run(exec, code, workers=addresses)
        for name, cores in quotas.items():
            if cores is not None:
                self.set_quota(name, cores)

    def _start_scheduler(self, backend: backends.Backend) -> None:
        command = cluster.scheduler_command(
            self.definition, backend.address("scheduler"), self.folder
        )
        process = self._spawn(
            "scheduler",
            (*backend.command("scheduler"), *command),
            cluster.environment(self.definition, None),
            self.log("scheduler"),
            None,
        )
        address = cluster.scheduler_address(self.folder, process, self.log("scheduler"))
        self.ledger.record(scheduler_address=address)

    def _start_worker(self, worker: WorkerDefinition) -> Process:
        assert self.backend is not None
        command = cluster.worker_command(
            worker,
            self.backend.address(worker.name),
            self.state.scheduler_address,
            self.folder,
            self._memory,
        )
        return self._spawn(
            f"worker {worker.name}",
            (*self.backend.command(worker.name), *command),
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
        def prepare(process: Process) -> None:
            self.ledger.record(processes=(process,))
            if worker is not None and self.backend is not None:
                if cpus := self._cpus.get(worker.name):
                    _pin(process, worker.name, cpus)
                self.backend.place(process)

        return spawn(role, argv, environment=environment, log=log, prepare=prepare)


def clear_stale() -> tuple[LabState, ...]:
    """Take down the labs whose drivers are gone; the caller holds the lock."""
    stale = [(path, state) for path, state in recorded() if state.condition() == "stale"]
    for path, state in stale:
        take_down(path, state)
    return tuple(state for _, state in stale)


def _begin(definition: LabDefinition, backend: str) -> Ledger:
    """Record a lab, once the remains of those whose drivers are gone are cleared away."""
    with exclusive():
        clear_stale()
        path = state_path(definition.name)
        if (other := read_state(path)) is not None:
            by = f"process {other.owner.pid}" if other.owner else "`fpmdask lab up`"
            raise LabError(
                f"a lab named {definition.name!r} is already {other.condition()}, started by "
                f"{by}; take it down with `fpmdask lab down {definition.name}` or give this one "
                "another name (their workers would share the cores)"
            )
        identity = secrets.token_hex(3)
        folder = Path(tempfile.gettempdir()) / f"fpmdask-{definition.name}-{identity}"
        state = LabState(
            name=definition.name,
            identity=identity,
            backend=backend,
            boot=boot_id(),
            folder=str(folder),
            owner=identify("owner", os.getpid()),
            period=definition.period,
        )
        return Ledger(path, state)


def _pin(process: Process, name: str, cpus: tuple[int, ...]) -> None:
    try:
        os.sched_setaffinity(process.pid, cpus)
    except (OSError, ValueError, TypeError) as error:
        raise LabError(
            f"worker {name!r} cannot be pinned to the CPUs {list(cpus)}: "
            f"{error}; this machine allows {sorted(os.sched_getaffinity(0))}"
        ) from error


def _machine_memory() -> int:
    from distributed.system import MEMORY_LIMIT

    memory: Any = MEMORY_LIMIT
    return int(memory)
