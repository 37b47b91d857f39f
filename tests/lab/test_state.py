"""What is recorded, by whom it is trusted, and processes that are not what they were."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fpmdask.errors import LabError
from fpmdask.lab import LabState, LabStatus, down, status
from fpmdask.lab import state as states
from fpmdask.lab.commands import run
from fpmdask.lab.processes import Process, boot_id, identify, kill, spawn, start_time
from fpmdask.lab.teardown import take_down


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder of the test's own."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setattr(states, "runtime_folder", lambda: folder)
    return folder


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = spawn(
        "worker w1",
        ("sleep", "60"),
        environment=dict(os.environ),
        log=tmp_path / "log",
        prepare=lambda process: None,
    )
    yield process
    kill([process])


def make(tmp_path: Path, **changes: object) -> LabState:
    state = LabState("x", "0a1b2c", "duty-cycle", boot_id(), str(tmp_path / "fpmdask-x"))
    return replace(state, **changes)  # type: ignore[arg-type]  # values are the test's


def test_a_state_survives_the_disk(tmp_path: Path) -> None:
    state = make(
        tmp_path,
        owner=Process("owner", 1, 2),
        processes=(Process("worker a", 3, 4),),
        groups=("/g",),
        quotas={"a": 0.5},
        notes=("n",),
    )
    ledger = states.Ledger(states.state_path("x"), state)
    assert states.read_state(ledger.path) == state
    ledger.record(groups=("/h",), scheduler_address="tcp://h:1")
    assert ledger.state.groups == ("/g", "/h")
    assert states.recorded() == ((ledger.path, ledger.state),)
    assert [path.name for path in ledger.path.parent.iterdir()] == ["x.json"]
    assert json.dumps(ledger.state.to_json())


def test_states_of_other_versions_are_refused(tmp_path: Path) -> None:
    data = make(tmp_path).to_json() | {"version": 99}
    with pytest.raises(LabError, match="version 99"):
        LabState.from_json(data)
    states.state_path("x").write_text("{")
    with pytest.raises(LabError, match="not a lab's state"):
        status()


def test_conditions(tmp_path: Path, sleeper: Process) -> None:
    me = identify("owner", os.getpid())
    scheduler = replace(sleeper, role="scheduler")
    gone = Process("scheduler", sleeper.pid, sleeper.started + 1)
    address = "tcp://h:1"
    cases = {
        "starting": {"owner": me},
        "up": {"owner": me, "processes": (scheduler,), "scheduler_address": address},
        "broken": {"owner": me, "processes": (gone,), "scheduler_address": address},
        "stale": {"owner": gone, "processes": (scheduler,), "scheduler_address": address},
    }
    for condition, changes in cases.items():
        assert make(tmp_path, **changes).condition() == condition
    detached = make(tmp_path, processes=(scheduler,), scheduler_address=address)
    assert detached.condition() == "up"
    assert replace(detached, boot="another").condition() == "stale"
    assert replace(detached, processes=(gone,)).condition() == "stale"
    seen = LabStatus.of(replace(detached, processes=(scheduler, sleeper), quotas={"w1": 0.5}))
    assert [(w.name, w.alive, w.quota) for w in seen.workers] == [("w1", True, 0.5)]
    assert json.dumps(seen.to_json())


def test_down_takes_what_stays_or_is_stale_and_leaves_what_is_in_use(
    tmp_path: Path, sleeper: Process
) -> None:
    scheduler = replace(sleeper, role="scheduler")
    labs = {
        "stays": {"processes": (scheduler,)},
        "stale": {"owner": Process("owner", sleeper.pid, 1)},
        "used": {"owner": identify("owner", os.getpid())},
    }
    for name, changes in labs.items():
        states.Ledger(states.state_path(name), make(tmp_path, name=name, **changes))
    assert [lab.name for lab in status()] == ["stale", "stays", "used"]
    assert [lab.name for lab in down()] == ["stale", "stays"]
    assert not sleeper.alive()
    assert [lab.name for lab in status()] == ["used"]
    assert [lab.name for lab in down("used")] == ["used"]
    with pytest.raises(LabError, match="'used' is recorded; recorded are: none"):
        down("used")


def test_a_process_with_a_reused_pid_is_left_alone(tmp_path: Path, sleeper: Process) -> None:
    other = replace(sleeper, started=sleeper.started - 1)
    assert kill([other]) == ()
    assert not other.send(signal.SIGKILL)
    path = states.state_path("x")
    take_down(path, states.Ledger(path, make(tmp_path, processes=(other,))).state)
    take_down(path, make(tmp_path, processes=(sleeper,), boot="another"))
    assert sleeper.alive()
    assert kill([sleeper]) == ()
    assert start_time(sleeper.pid) is None


def test_a_process_whose_maker_fails_never_begins(tmp_path: Path) -> None:
    made = []

    def prepare(process: Process) -> None:
        made.append(process)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spawn(
            "worker x",
            ("touch", str(tmp_path / "begun")),
            environment=dict(os.environ),
            log=tmp_path / "log",
            prepare=prepare,
        )
    os.waitpid(made[0].pid, 0)
    assert not (tmp_path / "begun").exists()


def test_tools_that_fail_say_why() -> None:
    with pytest.raises(LabError, match="'no-such-tool' is not installed"):
        run(("no-such-tool",))
    with pytest.raises(LabError, match="failed: exit code 1"):
        run(("false",))
    assert run(("echo", "x")) == "x\n"
