"""The watch: holds workers back, lets go when it ends, and goes when its lab goes."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fpmdask.lab import LabState
from fpmdask.lab.processes import Process, boot_id, identify, kill, spawn
from fpmdask.lab.state import Ledger, read_state
from fpmdask.lab.watch import DutyCycle, watch


@pytest.fixture
def spinner(tmp_path: Path) -> Iterator[Process]:
    process = spawn(
        "worker w1",
        (sys.executable, "-S", "-c", "while True: pass"),
        environment=dict(os.environ),
        log=tmp_path / "log",
        prepare=lambda process: None,
    )
    yield process
    kill([process])


@pytest.fixture
def state(tmp_path: Path, spinner: Process) -> LabState:
    return LabState(
        name="x",
        identity="0a1b2c",
        backend="duty-cycle",
        boot=boot_id(),
        folder=str(tmp_path / "fpmdask-x"),
        owner=identify("owner", os.getpid()),
        processes=(spinner,),
        quotas={"w1": 0.05},
    )


def stopped(process: Process) -> bool:
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def run_until_stopped(duty: DutyCycle, process: Process) -> None:
    while not stopped(process):
        duty.tick()


def test_a_worker_in_debt_is_stopped_and_released_at_the_end(
    state: LabState, spinner: Process
) -> None:
    duty = DutyCycle()
    duty.follow(state)
    run_until_stopped(duty, spinner)
    duty.release()
    assert not stopped(spinner)


def test_a_worker_whose_quota_is_taken_away_runs_on(state: LabState, spinner: Process) -> None:
    duty = DutyCycle()
    duty.follow(state)
    run_until_stopped(duty, spinner)
    duty.follow(replace(state, quotas={}))
    assert not stopped(spinner)
    duty.tick()
    assert not stopped(spinner)


def test_a_worker_that_ends_is_forgotten(state: LabState, spinner: Process) -> None:
    duty = DutyCycle()
    duty.follow(state)
    run_until_stopped(duty, spinner)
    kill([spinner])
    duty.tick()
    duty.follow(state)
    duty.release()


def test_the_watch_goes_with_its_lab(tmp_path: Path, state: LabState, spinner: Process) -> None:
    path = tmp_path / "x.json"
    watch(path)
    Ledger(path, state)
    watch(path)
    assert spinner.alive(), "a lab that does not list this process is not this watch's"


def test_the_watch_takes_down_the_lab_of_a_driver_that_is_gone(
    tmp_path: Path, state: LabState, spinner: Process
) -> None:
    path, me = tmp_path / "x.json", identify("watch", os.getpid())
    gone = Process("owner", os.getpid(), 1)
    Ledger(path, replace(state, owner=gone, processes=(spinner, me)))
    watch(path)
    assert not spinner.alive()
    assert read_state(path) is None


def test_the_watch_leaves_a_lab_of_control_groups_that_has_no_driver(
    tmp_path: Path, state: LabState, spinner: Process
) -> None:
    path, me = tmp_path / "x.json", identify("watch", os.getpid())
    handed_over = replace(state, backend="root", owner=None, processes=(spinner, me), quotas={})
    Ledger(path, handed_over)
    watch(path)
    assert spinner.alive()
    assert read_state(path) == handed_over


def test_signals_go_to_the_recorded_process_only(spinner: Process) -> None:
    assert not replace(spinner, started=1).send(signal.SIGSTOP)
    assert not stopped(spinner)
    assert spinner.send(signal.SIGCONT)
