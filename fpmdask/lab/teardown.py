"""Taking down what a state records: those names and pids, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

from fpmdask.errors import LabError
from fpmdask.lab import cgroups, swap
from fpmdask.lab.commands import run
from fpmdask.lab.processes import boot_id, kill
from fpmdask.lab.state import LabState

NETNS = Path("/run/netns")
NETWORK_CLASS = Path("/sys/class/net")


def take_down(path: Path, state: LabState) -> None:
    """Remove everything that a lab made, then its state file.

    Parameters
    ----------
    path : Path
        The state file.
    state : LabState
        What it records.

    Raises
    ------
    LabError
        If something would not go; the file stays, so that it can be tried again.

    Notes
    -----
    Each step goes on after a failure, and all of them may be done twice.
    """
    problems = _end_processes(state)
    for namespace in state.namespaces:
        if (NETNS / namespace).exists():
            problems += _attempt(("ip", "netns", "delete", namespace))
    for link in (*state.veths, state.bridge):
        if link and (NETWORK_CLASS / link).exists():
            problems += _attempt(("ip", "link", "delete", link))
    for group in sorted(state.groups, reverse=True):
        if not cgroups.remove(Path(group)):
            problems.append(f"the control group {group} still has members")
    for file in state.swap_files:
        try:
            swap.remove(Path(file))
        except LabError as error:
            problems.append(str(error))
    shutil.rmtree(state.folder, ignore_errors=True)
    if problems:
        found = "; ".join(problems)
        raise LabError(f"the lab {state.name!r} is not wholly down: {found}; take it down again")
    path.unlink(missing_ok=True)


def _end_processes(state: LabState) -> list[str]:
    """Kill what runs; the watch first, lest it takes the lab down at the same time."""
    if state.boot != boot_id():
        return []
    others = tuple(p for p in state.processes if p.pid != os.getpid())
    left = kill([p for p in others if p.role == "watch"])
    left += kill([p for p in others if p.role != "watch"])
    for group in state.groups:
        for pid in cgroups.members(Path(group)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return [f"process {p.pid} ({p.role}) does not end" for p in left]


def _attempt(argv: tuple[str, ...]) -> list[str]:
    try:
        run(argv)
    except LabError as error:
        # A namespace takes its veth pair along a moment later, so a link may vanish meanwhile.
        vanished = argv[1] == "link" and not (NETWORK_CLASS / argv[-1]).exists()
        return [] if vanished else [str(error)]
    return []
