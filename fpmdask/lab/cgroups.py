"""CPU and memory control groups, version 1 and 2, as plans of files to write."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path

from fpmdask.errors import LabError

MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Hierarchy:
    """Where a controller's groups are made.

    Parameters
    ----------
    controller : {"cpu", "memory"}
        The controller.
    version : {1, 2}
        Of the cgroup interface.
    root : Path
        Folder that the lab's group is made in.
    """

    controller: str
    version: int
    root: Path


def find(controller: str, mountinfo: str | None = None) -> Hierarchy | None:
    """Return where groups of a controller are made on this machine, or None.

    Parameters
    ----------
    controller : str
        ``cpu`` or ``memory``.
    mountinfo : str, optional
        The content of ``/proc/self/mountinfo``; read if not given.

    Notes
    -----
    A controller that version 1 holds is not available to version 2, so version 1 goes first.
    """
    text = mountinfo if mountinfo is not None else MOUNTINFO.read_text("utf-8")
    unified = None
    for line in text.splitlines():
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        folder = Path(mount.split()[4].replace("\\040", " "))
        if kind == "cgroup" and controller in options.split(","):
            return Hierarchy(controller, 1, folder)
        if kind == "cgroup2":
            with contextlib.suppress(OSError):
                if controller in (folder / "cgroup.controllers").read_text("ascii").split():
                    unified = Hierarchy(controller, 2, folder)
    return unified


def groups(hierarchies: list[Hierarchy], lab: str, worker: str | None = None) -> tuple[Path, ...]:
    """Return the folders of a lab's groups or of one worker's, without repeats (version 2)."""
    path = lab if worker is None else f"{lab}/{worker}"
    return tuple(dict.fromkeys(hierarchy.root / path for hierarchy in hierarchies))


def cpu_plan(
    hierarchy: Hierarchy, group: Path, cores: float | None, period: float
) -> tuple[tuple[Path, str], ...]:
    """Return the files and contents that set a CPU quota and the weight to go with it.

    Parameters
    ----------
    hierarchy : Hierarchy
        cpu's.
    group : Path
        The worker's group.
    cores : float or None
        CPU-seconds per second; ``None`` lifts the quota.
    period : float
        Seconds.

    Notes
    -----
    Where other work leaves the lab less than its quotas sum to, quotas alone no longer bind and
    the kernel makes all workers equal; with weights in proportion the ratios of speeds remain.

    Examples
    --------
    >>> cpu_plan(Hierarchy("cpu", 2, Path("/c")), Path("/c/g"), 0.25, 0.01)
    ((PosixPath('/c/g/cpu.weight'), '25'), (PosixPath('/c/g/cpu.max'), '2500 10000'))
    """
    microseconds = round(period * 1e6)
    quota = None if cores is None else round(cores * period * 1e6)
    weight = weight_plan(hierarchy, group, 1.0 if cores is None else cores)
    if hierarchy.version == 2:
        return (*weight, (group / "cpu.max", f"{quota or 'max'} {microseconds}"))
    if quota is None:
        return (*weight, (group / "cpu.cfs_quota_us", "-1"))
    return (
        *weight,
        # Without this the new period could make of the old quota more than the kernel allows.
        (group / "cpu.cfs_quota_us", "-1"),
        (group / "cpu.cfs_period_us", str(microseconds)),
        (group / "cpu.cfs_quota_us", str(quota)),
    )


def weight_plan(
    hierarchy: Hierarchy, group: Path, processes: float
) -> tuple[tuple[Path, str], ...]:
    """Return the file and content that make a group weigh like that many ordinary processes."""
    if hierarchy.version == 2:
        return ((group / "cpu.weight", str(min(max(round(100 * processes), 1), 10_000))),)
    return ((group / "cpu.shares", str(min(max(round(1024 * processes), 2), 262_144))),)


def memory_plan(
    hierarchy: Hierarchy, group: Path, memory: int, swap: int
) -> tuple[tuple[Path, str], ...]:
    """Return the files and contents that limit memory, and what may be paged out beyond it.

    Parameters
    ----------
    hierarchy : Hierarchy
        The memory controller's.
    group : Path
        The worker's group.
    memory, swap : int
        Bytes.

    Examples
    --------
    >>> memory_plan(Hierarchy("memory", 2, Path("/c")), Path("/c/g"), 10, 5)
    ((PosixPath('/c/g/memory.max'), '10'), (PosixPath('/c/g/memory.swap.max'), '5'))
    """
    if hierarchy.version == 2:
        plan = ((group / "memory.max", str(memory)), (group / "memory.swap.max", str(swap)))
    else:
        plan = (
            (group / "memory.limit_in_bytes", str(memory)),
            (group / "memory.memsw.limit_in_bytes", str(memory + swap)),
        )
    # Without swap accounting the kernel has no file for swap: nothing to write to forbid it.
    return plan if swap or plan[1][0].exists() else plan[:1]


def write(plan: tuple[tuple[Path, str], ...]) -> None:
    """Write a plan.

    Raises
    ------
    LabError
        With the file and the reason, if the kernel refuses.
    """
    for path, value in plan:
        try:
            path.write_text(value, encoding="ascii")
        except OSError as error:
            raise LabError(
                f"cannot write {value!r} to {path}: {error.strerror}; `fpmdask doctor` says what "
                "this machine allows"
            ) from error


def usable(hierarchy: Hierarchy) -> str | None:
    """Return why no group can be made in a hierarchy, or None; it makes none.

    Notes
    -----
    With version 2 it hands the controller down from the root, as making a group does: the kernel
    refuses that where the root of a container has processes of its own.
    """
    root = hierarchy.root
    if not os.access(root, os.W_OK) or os.statvfs(root).f_flag & os.ST_RDONLY:
        return f"{root} cannot be written"
    if hierarchy.version == 2:
        try:
            _hand_down(hierarchy, root)
        except OSError as error:
            return f"{root} does not hand {hierarchy.controller} down: {error.strerror}"
    return None


def _hand_down(hierarchy: Hierarchy, parent: Path) -> None:
    control = parent / "cgroup.subtree_control"
    if hierarchy.controller not in control.read_text("ascii").split():
        control.write_text(f"+{hierarchy.controller}", encoding="ascii")


def create(group: Path, controllers: list[Hierarchy]) -> None:
    """Make a group and, with version 2, hand the controllers down to it."""
    try:
        for hierarchy in controllers:
            if hierarchy.version == 2 and group.is_relative_to(hierarchy.root):
                _hand_down(hierarchy, group.parent)
        group.mkdir()
    except OSError as error:
        raise LabError(
            f"cannot make the control group {group}: {error.strerror}; `fpmdask doctor` says what "
            "this machine allows"
        ) from error


def members(group: Path) -> tuple[int, ...]:
    """Return the pids in a group; none if it does not exist."""
    try:
        return tuple(int(pid) for pid in (group / "cgroup.procs").read_text("ascii").split())
    except OSError:
        return ()


def remove(group: Path, *, seconds: float = 30.0) -> bool:
    """Remove an empty group, waiting for its last processes to go; say whether it is gone."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            os.rmdir(group)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True
