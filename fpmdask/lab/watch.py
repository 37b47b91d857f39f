"""The process that watches over a lab: `python -m fpmdask.lab.watch STATE`.

It takes the lab down when the driver that owns it dies, however it dies. With the duty-cycle
backend it also holds the workers to their quotas. It ends with the lab, or once nothing needs it: a
lab of control groups has been handed over, so that no driver owns it any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from fpmdask.lab.processes import Process
from fpmdask.lab.state import LabState, read_state
from fpmdask.lab.teardown import take_down
from fpmdask.lab.throttle import Throttle

LOOK_SECONDS = 0.25
# 4 ms bounds what a worker overdraws between two looks; 250 looks per second at six workers cost
# about one per cent of a core.
TICK_SECONDS = 0.004
# Longer than a tick by enough to be exact, short against the kernels that are timed.
DUTY_PERIOD_SECONDS = 0.040


class DutyCycle:
    """Stops and continues the workers of one lab."""

    def __init__(self) -> None:
        self._accounts: dict[Process, Throttle] = {}
        self._seen: dict[Process, tuple[float, float]] = {}
        self._stopped: set[Process] = set()

    def follow(self, state: LabState) -> None:
        """Take over the quotas of a state."""
        wanted = {}
        for name, cores in state.quotas.items():
            process = state.process(f"worker {name}")
            if process is not None and process.alive():
                wanted[process] = cores
        for process in set(self._accounts) - set(wanted):
            self._continue(process)
            del self._accounts[process]
            self._seen.pop(process, None)
        for process, cores in wanted.items():
            if process not in self._accounts or self._accounts[process].cores != cores:
                self._accounts[process] = Throttle(cores, DUTY_PERIOD_SECONDS)

    def tick(self) -> None:
        """Book what each worker used, stop those in debt, continue those that are not."""
        for process, account in list(self._accounts.items()):
            try:
                # The CPU clock of another process, as clock_getcpuclockid(3) computes it.
                used = time.clock_gettime((~process.pid << 3) | 2)
            except OSError:
                del self._accounts[process]
                continue
            now = time.monotonic()
            before, used_before = self._seen.get(process, (now, used))
            self._seen[process] = now, used
            if account.step(elapsed=now - before, used=used - used_before):
                self._continue(process)
            elif process not in self._stopped:
                process.send(signal.SIGSTOP)
                self._stopped.add(process)

    def release(self) -> None:
        """Continue all that is stopped."""
        for process in list(self._stopped):
            self._continue(process)

    def _continue(self, process: Process) -> None:
        if process in self._stopped:
            process.send(signal.SIGCONT)
            self._stopped.discard(process)


def watch(path: Path) -> None:
    """Watch over the lab recorded in a file until it, its driver or the need is gone.

    Parameters
    ----------
    path : Path
        The lab's state file.
    """
    duty = DutyCycle()
    changed, looked = 0, 0.0
    pause = 0.0
    try:
        while True:
            if time.monotonic() - looked >= LOOK_SECONDS or _changed(path) != changed:
                looked, changed = time.monotonic(), _changed(path)
                state = read_state(path)
                if state is None or not _mine(state) or _needs_no_watch(state):
                    return
                if state.owner is not None and not state.owner.alive():
                    take_down(path, state)
                    return
                pause = LOOK_SECONDS
                if state.backend == "duty-cycle":
                    duty.follow(state)
                    pause = TICK_SECONDS
            duty.tick()
            time.sleep(pause)
    finally:
        duty.release()


def _changed(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def _mine(state: LabState) -> bool:
    """Whether a state lists this process; if not it is a later lab of the same name."""
    return any(process.pid == os.getpid() for process in state.processes)


def _needs_no_watch(state: LabState) -> bool:
    """Whether a lab is to outlive its driver and the kernel itself keeps its quotas."""
    return state.owner is None and state.backend == "root"


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    watch(Path(sys.argv[1]))
