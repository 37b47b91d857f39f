"""The Dask processes of a lab: command lines, start, registration."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fpmdask.errors import LabError
from fpmdask.lab.definition import LabDefinition, WorkerDefinition
from fpmdask.lab.processes import Process

START_SECONDS = 120.0
# Part of the machine's memory that the workers share; the rest is the scheduler's, the driver's
# and the page cache's.
SHARED_MEMORY = 0.8
# What Dask's nannies set.
_MALLOC, TRIM_THRESHOLD = "MALLOC_TRIM_THRESHOLD_", "65536"
# The settings of a slow disk, fpmdask.lab.disk, which a worker's block file reads.
_DISK = "DASK_FPMDASK__LAB__DISK__"
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def scheduler_command(definition: LabDefinition, address: str, folder: Path) -> list[str]:
    """Return the scheduler's command line; it writes where it listens to ``scheduler.json``."""
    return [
        *(sys.executable, "-m", "distributed.cli.dask_scheduler"),
        *("--host", address, "--port", "0"),
        *("--scheduler-file", str(folder / "scheduler.json")),
        *(("--dashboard-address", f"{address}:0") if definition.dashboard else ("--no-dashboard",)),
    ]


def worker_command(
    worker: WorkerDefinition, address: str, scheduler: str, folder: Path, memory: int
) -> list[str]:
    """Return a worker's command line.

    Parameters
    ----------
    worker : WorkerDefinition
        What it is to be.
    address : str
        Where it listens.
    scheduler : str
        The scheduler's address.
    folder : Path
        The lab's folder.
    memory : int
        Bytes, for a worker without a limit of its own.
    """
    limit = (worker.memory or memory) if worker.memory_manager else 0
    return [
        *(sys.executable, "-m", "distributed.cli.dask_worker", scheduler),
        *("--name", worker.name, "--nthreads", str(worker.nthreads), "--host", address),
        *("--memory-limit", str(limit), "--local-directory", str(folder / worker.name)),
        *("--no-dashboard", "--death-timeout", f"{START_SECONDS:.0f}"),
        "--nanny" if worker.nanny else "--no-nanny",
        *(part for module in worker.preload for part in ("--preload", module)),
        *worker.arguments,
    ]


def environment(definition: LabDefinition, worker: WorkerDefinition | None) -> dict[str, str]:
    """Return a process's environment: this one's, the definition's, and what a nanny would set.

    Notes
    -----
    Without a nanny Dask leaves BLAS its default, a thread per core of the machine, and a worker
    held to a part of a core wastes its quota on switching between them. As many as the worker
    has threads is what a machine of that size would use, for every program that runs on the lab.
    And malloc keeps freed arrays of up to 32 MB, so that a worker's memory fills up with nothing;
    a nanny has it give them back.
    """
    values = {**os.environ, **dict(definition.dask)}
    if worker is not None:
        values.setdefault(_MALLOC, TRIM_THRESHOLD)
        values |= dict.fromkeys(_BLAS_THREADS, str(worker.nthreads))
        if worker.disk_overhead or worker.disk_seconds_per_byte:
            values |= {
                f"{_DISK}OVERHEAD_SECONDS": repr(worker.disk_overhead),
                f"{_DISK}SECONDS_PER_BYTE": repr(worker.disk_seconds_per_byte),
            }
        values |= dict(worker.environment)
    return values


def memory_share(workers: tuple[WorkerDefinition, ...], total: int) -> int:
    """Return the memory in bytes of each worker whose definition gives none.

    Parameters
    ----------
    workers : tuple of WorkerDefinition
        All workers.
    total : int
        Bytes that this machine has.

    Raises
    ------
    LabError
        If the limits given do not fit the machine.

    Examples
    --------
    >>> memory_share((WorkerDefinition("a", memory=300), WorkerDefinition("b")), 1000)
    500
    """
    given = sum(worker.memory or 0 for worker in workers)
    shared = int(total * SHARED_MEMORY)
    open_ended = sum(worker.memory is None for worker in workers)
    if given > shared or (open_ended and given == shared):
        raise LabError(
            f"the workers' memory limits sum to {given} bytes; this machine has {total}, of which "
            f"the lab uses at most {shared}; lower the limits"
        )
    return (shared - given) // open_ended if open_ended else 0


def scheduler_address(folder: Path, process: Process, log: Path) -> str:
    """Wait until the scheduler listens and return its address."""
    file = folder / "scheduler.json"

    def address() -> str | None:
        try:
            return str(json.loads(file.read_text(encoding="utf-8"))["address"])
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    found = _wait(address, {process: log}, "the scheduler to listen")
    return str(found)


def connect(address: str) -> Any:
    """Return a client of the scheduler that is nobody's default, to be used as a context."""
    from distributed import Client

    client: Any = Client
    return client(address, set_as_default=False)


def wait_for_workers(client: Any, started: Mapping[Process, Path], names: set[str]) -> list[str]:
    """Wait until workers of these names are registered and return their addresses.

    Parameters
    ----------
    client : distributed.Client
        Connected to the scheduler.
    started : mapping of Process to Path
        The workers' processes and logs; one that ends meanwhile is an error.
    names : set of str
        Whom to wait for.
    """

    def addresses() -> list[str]:
        found = _addresses(client, names)
        return found if len(found) == len(names) else []

    return list(_wait(addresses, started, f"the workers {', '.join(sorted(names))} to register"))


def wait_until_gone(client: Any, names: set[str]) -> None:
    """Wait until no workers of these names are registered: the scheduler takes a name once."""
    _wait(lambda: not _addresses(client, names), {}, "the scheduler to forget a worker")


def registered(client: Any) -> dict[str, dict[str, Any]]:
    """Return the workers that the scheduler knows now: address → ``name`` and the like.

    ``client.scheduler_info`` asks, too, but returns what was heard last: every two seconds the
    client asks for none of the workers, beside that, and where this answer comes in between, there
    are none.
    """
    return dict(client.sync(client.scheduler.identity, n_workers=-1)["workers"])


def _addresses(client: Any, names: set[str]) -> list[str]:
    found = registered(client).items()
    return [address for address, worker in found if worker["name"] in names]


def _wait(done: Callable[[], Any], started: Mapping[Process, Path], what: str) -> Any:
    deadline = time.monotonic() + START_SECONDS
    while not (result := done()):
        for process, log in started.items():
            if not process.alive():
                raise LabError(f"the {process.role} ended while waiting for {what}: {tail(log)}")
        if time.monotonic() > deadline:
            raise LabError(f"waited {START_SECONDS:.0f} s in vain for {what}")
        time.sleep(0.05)
    return result


def tail(log: Path, lines: int = 3) -> str:
    """Return the last lines of a log as one."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"no log, {error.strerror}"
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(said[-lines:]) or "it said nothing"
