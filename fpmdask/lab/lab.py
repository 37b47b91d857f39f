"""The lab that a program uses."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import TracebackType

from fpmdask.errors import LabError
from fpmdask.lab.assembly import Assembly
from fpmdask.lab.definition import BACKENDS, LabDefinition, WorkerDefinition, check_quota
from fpmdask.lab.parsing import load
from fpmdask.lab.processes import Process, kill
from fpmdask.lab.state import LabState, read_state
from fpmdask.lab.teardown import take_down


class Lab:
    """A heterogeneous Dask cluster on this machine, which ends when its driver ends.

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
        self._parts: Assembly | None = None

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

        Raises
        ------
        LabError
            If there is no such definition or it says something that cannot be.
        """
        return cls(load(name_or_path, name=name), backend=backend, detached=detached)

    @property
    def workers(self) -> tuple[WorkerDefinition, ...]:
        """The workers' definitions, in the definition's order."""
        return self.definition.workers

    @property
    def state(self) -> LabState:
        """What is recorded of this lab; a `LabError` if it is not up."""
        return self._assembly().state

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
        if self._parts is not None:
            raise LabError(f"the lab {self.definition.name!r} is already up; take it down first")
        self._parts = Assembly(self.definition, self._wanted)
        try:
            self._parts.build(detached=self._detached)
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Take the lab down; nothing to do if it is down already.

        Raises
        ------
        LabError
            If something would not go; it stays recorded, and ``fpmdask lab down`` tries again.
        """
        parts, self._parts = self._parts, None
        if parts is None:
            return
        current = read_state(parts.ledger.path)
        if current is not None and current.identity == parts.state.identity:
            take_down(parts.ledger.path, parts.state)

    def __enter__(self) -> Lab:
        return self.up() if self._parts is None else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.down()

    def __repr__(self) -> str:
        where = "down" if self._parts is None else self.scheduler_address or "starting"
        return f"<Lab {self.definition.name!r}: {len(self.workers)} workers, {where}>"

    def worker_pid(self, name: str) -> int:
        """Return the pid of the process that runs a worker's tasks.

        Parameters
        ----------
        name : str
            The worker.

        Raises
        ------
        LabError
            If there is no such worker or it does not run.
        """
        process = self._process(name)
        if not self._worker(name).nanny:
            return process.pid
        for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
            for pid in children.read_text("ascii").split():
                # The nanny's other child is multiprocessing's resource tracker.
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
        raise LabError(f"the nanny of worker {name!r} has no worker now; see {self.log(name)}")

    def log(self, name: str) -> Path:
        """Return the file that a worker or ``"scheduler"`` writes its output to."""
        return self._assembly().log(name)

    def kill_worker(self, name: str) -> None:
        """End a worker with SIGKILL (under a nanny: the worker, which the nanny starts again).

        Parameters
        ----------
        name : str
            The worker.
        """
        if self._worker(name).nanny:
            os.kill(self.worker_pid(name), signal.SIGKILL)
        else:
            kill([self._process(name)])

    def restart_worker(self, name: str) -> None:
        """Start a worker anew under its name and quota, ending it first if it still runs.

        Parameters
        ----------
        name : str
            The worker.
        """
        worker = self._worker(name)
        quota = self.state.quotas.get(name)
        self._assembly().start_workers((worker,), {name: quota})

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
        self._assembly().set_quota(name, cores)

    def _assembly(self) -> Assembly:
        if self._parts is None:
            raise LabError(f"the lab {self.definition.name!r} is not up; call up() or use `with`")
        return self._parts

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
