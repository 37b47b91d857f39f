"""What a lab is made of, as values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fpmdask.errors import LabError

BACKENDS = ("auto", "root", "duty-cycle")
SCHEDULERS = ("host", "namespace")
# The kernel refuses a CPU quota of less than one millisecond per period.
SMALLEST_QUOTA_SECONDS = 0.001


@dataclass(frozen=True)
class WorkerDefinition:
    """One worker of a lab and the processor that it pretends to be.

    Parameters
    ----------
    name : str
        Name on the scheduler; lower case letters, digits, ``-`` and ``_``.
    cpu : float or None
        Quota in CPU-seconds per second (cores); ``None`` is no quota.
    nthreads : int
        Threads of the worker, ≥ 1; also its BLAS threads (``OMP_NUM_THREADS`` and the like).
    memory : int or None
        Memory in bytes, both Dask's limit and that of the memory cgroup; ``None`` gives an equal
        part of what the machine has left.
    swap : int
        Bytes that may be paged out beyond ``memory``; the lab makes the swap space.
    rate : int or None
        Rate of the worker's link in bit/s, both directions; ``None`` is no limit.
    disk_overhead, disk_seconds_per_byte : float
        Seconds that a read or a write of an out-of-core program takes at least: so many a call,
        and so many a byte. 0 leaves the disk as fast as it is.
    affinity : tuple of int
        CPUs that the worker may run on; empty for all.
    environment : tuple of (str, str)
        Variables added to the worker's environment.
    memory_manager : bool
        Whether Dask manages the memory (spills, pauses); off in paging experiments.
    nanny : bool
        Whether a nanny watches the worker.
    preload : tuple of str
        Modules for ``--preload``.
    arguments : tuple of str
        Further arguments of ``dask worker``.

    Notes
    -----
    A slow disk is configuration of the worker, ``fpmdask.lab.disk``, which its block file applies
    (`fpmdask.runtime.worker.block_file`): a call that is done earlier sleeps for the rest of its
    time, without the GIL. Not the kernel's block I/O groups, for these reasons:

    1. ``blkio.throttle`` (cgroup version 1) is a token bucket: credit that gathers while a program
       computes makes its next read nearly free. At 60 MiB/s, 96 MiB in direct reads of 8 MiB take
       1.52 s, with computing of the same length between them 0.84 s. It hides what MHETA models.
    2. It has bytes per second and calls per second, but no overhead of a call.
    3. Buffered writes are throttled where the program waits for them (``fdatasync``), and not where
       the kernel writes them back later. The limit belongs to one block device; a network file
       system has none.
    4. It needs root; the duty cycle does not.
    """

    name: str
    cpu: float | None = None
    nthreads: int = 1
    memory: int | None = None
    swap: int = 0
    rate: int | None = None
    disk_overhead: float = 0.0
    disk_seconds_per_byte: float = 0.0
    affinity: tuple[int, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    memory_manager: bool = True
    nanny: bool = False
    preload: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabDefinition:
    """A cluster of unequal workers, as written in a definition file.

    Parameters
    ----------
    name : str
        Name of the lab.
    workers : tuple of WorkerDefinition
        At least one, with different names.
    description : str
        One line for people.
    backend : {"auto", "root", "duty-cycle"}
        How the workers are made unequal.
    scheduler : {"host", "namespace"}
        Where the scheduler runs: beside the driver, or in a network namespace of its own.
    period : float
        Period of the CPU quota in seconds.
    pin : bool
        Whether workers keep to one CPU each; see `one_cpu_each`.
    imports : tuple of str
        Modules that every worker imports before its quota applies.
    dashboard : bool
        Whether the scheduler serves its dashboard.
    dask : tuple of (str, str)
        Dask configuration of the scheduler and the workers, as environment variables.
    """

    name: str
    workers: tuple[WorkerDefinition, ...]
    description: str = ""
    backend: str = "auto"
    scheduler: str = "host"
    period: float = 0.010
    pin: bool = False
    imports: tuple[str, ...] = ("numpy", "dask.array")
    dashboard: bool = False
    dask: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return asdict(self)


def one_cpu_each(
    workers: Sequence[WorkerDefinition], cpus: Iterable[int]
) -> dict[str, tuple[int, ...]]:
    """Return the CPUs of those workers that may run on some only: their `affinity`, or one.

    One for workers of one thread and a quota of at most a core, which stand for machines with one
    core: the one that has the least of the others so far, the largest quotas first. With threads on
    two CPUs a process loses quota: the kernel gives each CPU a slice for a period, of which what is
    left over is lost. One with a tenth of a core, whose threads wake up a few times, does nothing
    for some periods.

    Examples
    --------
    >>> shares = {"a": 0.4, "b": 0.3, "c": 0.3, "d": None}
    >>> workers = [WorkerDefinition(name, cpu) for name, cpu in shares.items()]
    >>> one_cpu_each(workers, [0, 1])
    {'a': (0,), 'b': (1,), 'c': (1,)}
    """
    found = {worker.name: worker.affinity for worker in workers if worker.affinity}
    taken = dict.fromkeys(sorted(cpus), 0.0)
    for worker in workers:
        for cpu in taken.keys() & {*worker.affinity}:
            taken[cpu] += (worker.cpu or 0.0) / len(worker.affinity)
    for worker in sorted(workers, key=lambda one: -(one.cpu or 0.0)):
        if not worker.affinity and worker.nthreads == 1 and 0 < (worker.cpu or 0.0) <= 1:
            cpu = min(taken, key=taken.__getitem__)
            taken[cpu] += worker.cpu or 0.0
            found[worker.name] = (cpu,)
    return found


def check_quota(cores: float, period: float, where: str) -> None:
    """Refuse a quota that the kernel cannot keep.

    Parameters
    ----------
    cores : float
        CPU-seconds per second.
    period : float
        Seconds.
    where : str
        Whose quota it is, for the message.

    Raises
    ------
    LabError
        If the quota is not a positive number or is under one millisecond per period.
    """
    if not (math.isfinite(cores) and cores > 0):
        raise LabError(f"cpu of {where} is {cores!r}; it must be a number of cores > 0")
    if cores * period < SMALLEST_QUOTA_SECONDS * (1 - 1e-9):
        raise LabError(
            f"cpu of {where} is {cores} of a core: {cores * period * 1e3:.3g} ms in each period of "
            f"{period * 1e3:.3g} ms; the kernel's smallest quota is 1 ms, so make the period at "
            f"least {SMALLEST_QUOTA_SECONDS / cores:.3g} s"
        )
