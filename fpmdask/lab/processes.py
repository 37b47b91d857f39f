"""Processes known by pid and start time, so that a reused pid is never touched."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# The child waits for one line, written once its pid is recorded and it is in its cgroups; if
# the driver dies before that, the line never comes and the child ends.
_GATE = 'read go || exit 1; exec "$@" </dev/null'


@dataclass(frozen=True)
class Process:
    """A process that a lab started.

    Parameters
    ----------
    role : str
        What it does: ``scheduler``, ``watch``, ``owner`` or ``worker NAME``.
    pid : int
        Process id.
    started : int
        Start time in clock ticks since boot, from ``/proc/PID/stat``.
    """

    role: str
    pid: int
    started: int

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Send a signal if the process still is the one recorded; say whether it was sent."""
        if not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def reap(self) -> None:
        """Collect the exit status if the process is an ended child of this one."""
        if _stat(self.pid) != ("Z", self.started):
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def start_time(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot, None unless it runs."""
    state, started = _stat(pid)
    return None if state in "ZX" else started


def _stat(pid: int) -> tuple[str, int]:
    """Return a process's state (``"X"`` if there is none) and start time."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    state, *rest = stat.rpartition(")")[2].split()
    return state, int(rest[18])


def identify(role: str, pid: int) -> Process:
    """Return the record of a process that runs now; start time 0 if it already ended."""
    return Process(role, pid, start_time(pid) or 0)


def boot_id() -> str:
    """Return the identity of this boot: pids recorded under another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def spawn(
    role: str,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    prepare: Callable[[Process], None],
) -> Process:
    """Start a process in a session of its own, held back until it is recorded and prepared.

    Parameters
    ----------
    role : str
        What it does.
    argv : sequence of str
        Program (found in the PATH) and arguments.
    environment : mapping
        The whole environment of the process.
    log : Path
        File that its output is appended to.
    prepare : callable
        Called with the process before the program begins.

    Returns
    -------
    Process
        The process; it keeps its pid when the program begins.
    """
    reading, writing = os.pipe()
    try:
        process = identify(role, _launch(argv, environment, log, reading))
        prepare(process)
        with contextlib.suppress(BrokenPipeError):
            os.write(writing, b"go\n")
    finally:
        os.close(reading)
        os.close(writing)
    return process


def _launch(argv: Sequence[str], environment: Mapping[str, str], log: Path, gate: int) -> int:
    """Start the shell that waits at the gate, in a session of its own, and return its pid.

    Not a `subprocess.Popen`: a lab that stays outlives the object, which warns when it goes.
    """
    return os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", _GATE, "sh", *argv],
        environment,
        setsid=True,
        setsigmask=(),
        file_actions=[
            (os.POSIX_SPAWN_DUP2, gate, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def kill(processes: Sequence[Process], *, seconds: float = 30.0) -> tuple[Process, ...]:
    """Kill processes with their sessions and wait until they are gone.

    Parameters
    ----------
    processes : sequence of Process
        Those that no longer run, or whose pid is now another process's, are left alone.
    seconds : float
        How long to wait.

    Returns
    -------
    tuple of Process
        Those that still run.
    """
    for process in processes:
        if process.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGKILL)
            process.send(signal.SIGKILL)
    deadline = time.monotonic() + seconds
    while True:
        for process in processes:
            process.reap()
        left = tuple(process for process in processes if process.alive())
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)
