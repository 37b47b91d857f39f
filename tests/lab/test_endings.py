"""However a driver ends, the machine is clean; and labs of ordinary users and labs that stay."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from fpmdask.errors import LabError
from fpmdask.lab import Lab, LabState, doctor, down, status, up
from fpmdask.lab.cluster import registered
from fpmdask.lab.state import read_state, state_path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

DEFINITION = """
[lab]
imports = []
[[workers]]
name = "a"
cpu = 0.5
[[workers]]
name = "b"
cpu = 0.25
"""
DRIVER = """
import sys, time
from fpmdask.lab import Lab
with Lab.from_toml(sys.argv[1], name=sys.argv[2], backend=sys.argv[3]) as lab:
    print("up", flush=True)
    time.sleep(60)
"""
# What an ordinary user does, with shares measured while both workers spin.
ORDINARY = """
import json, os, sys, time
from distributed import Client
from fpmdask.lab import Lab
from fpmdask.lab.cluster import registered

def spin(seconds):
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        pass
    return (time.process_time() - cpu) / (time.perf_counter() - wall)

def measure(client, seconds):
    workers = registered(client)
    tasks = {w["name"]: client.submit(spin, seconds, workers=[a], pure=False)
             for a, w in workers.items()}
    return {name: task.result() for name, task in tasks.items()}

if __name__ == "__main__":
    with Lab.from_toml(sys.argv[1], name=sys.argv[2]) as lab:
        with Client(lab.scheduler_address) as client:
            before = measure(client, 3.0)
            lab.set_quota("a", 0.1)
            lab.restart_worker("b")
            after = measure(client, 3.0)
        print(json.dumps({
            "user": os.geteuid(), "backend": lab.backend, "notes": lab.state.notes,
            "before": before, "after": after, "state": lab.state.to_json(),
        }))
"""


UP = "import sys; from fpmdask.cli import main; main(['lab', 'up', *sys.argv[1:]])"


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    file = tmp_path / "two.toml"
    file.write_text(DEFINITION)
    return file


@pytest.fixture(params=["root", pytest.param("duty-cycle", marks=pytest.mark.thorough)])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "root":
        request.getfixturevalue("root")
    return str(request.param)


@pytest.fixture
def start(definition: Path) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Start drivers, and end those that a test leaves."""
    drivers = []

    def start(name: str, backend: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", DRIVER, str(definition), name, backend]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        driver.kill()
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()


def wait_up(driver: subprocess.Popen[str]) -> None:
    assert driver.stdout is not None
    assert driver.stdout.readline() == "up\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_driver_that_ends_leaves_nothing(
    number: signal.Signals,
    backend: str,
    prefix: str,
    start: Callable[[str, str], subprocess.Popen[str]],
    until: Callable[..., Any],
    traces: Callable[[LabState], set[str]],
) -> None:
    name = f"{prefix}-ends"
    driver = start(name, backend)
    wait_up(driver)
    state = read_state(state_path(name))
    assert state is not None
    assert state.backend == backend
    assert len(traces(state)) >= 4
    driver.send_signal(number)
    driver.wait(timeout=60)
    until(lambda: not traces(state), "the watch to clean up")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_ends_while_the_lab_comes_up_leaves_nothing(
    number: signal.Signals,
    backend: str,
    prefix: str,
    start: Callable[[str, str], subprocess.Popen[str]],
    until: Callable[..., Any],
    traces: Callable[[LabState], set[str]],
) -> None:
    name = f"{prefix}-early"
    driver = start(name, backend)

    def begun() -> LabState | None:
        state = read_state(state_path(name))
        return state if state is not None and len(state.processes) >= 2 else None

    state = until(begun, "the first processes")
    driver.send_signal(number)
    assert driver.wait(timeout=60) != 0
    until(lambda: not traces(state), "the driver or the watch to clean up")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_lab_up_that_is_ended_leaves_nothing(
    number: signal.Signals,
    code: int,
    backend: str,
    definition: Path,
    prefix: str,
    until: Callable[..., Any],
    traces: Callable[[LabState], set[str]],
) -> None:
    name = f"{prefix}-half"
    options = (str(definition), "--name", name, "--backend", backend)
    maker = subprocess.Popen([sys.executable, "-c", UP, *options], stderr=subprocess.DEVNULL)

    def begun() -> LabState | None:
        state = read_state(state_path(name))
        return state if state is not None and state.process("scheduler") is not None else None

    state = until(begun, "the scheduler")
    maker.send_signal(number)
    assert maker.wait(timeout=20) == code
    until(lambda: not traces(state), "the maker or the watch to clean up")


def test_what_driver_and_watch_leave_is_cleared_by_the_next_lab(
    backend: str,
    prefix: str,
    start: Callable[[str, str], subprocess.Popen[str]],
    traces: Callable[[LabState], set[str]],
) -> None:
    name = f"{prefix}-both"
    driver = start(name, backend)
    wait_up(driver)
    state = read_state(state_path(name))
    assert state is not None
    watch = state.process("watch")
    assert watch is not None
    watch.send(signal.SIGKILL)
    driver.kill()
    driver.wait()
    assert traces(state)
    assert {lab.name: lab.condition for lab in status()}[name] == "stale"
    second = start(f"{prefix}-next", backend)
    wait_up(second)
    assert traces(state) == set()
    assert [lab.condition for lab in status() if lab.name == f"{prefix}-next"] == ["up"]


def test_a_lab_that_stays(
    backend: str,
    definition: Path,
    prefix: str,
    until: Callable[..., Any],
    traces: Callable[[LabState], set[str]],
) -> None:
    name = f"{prefix}-stays"
    code = (
        "import json, sys; from fpmdask.lab import up;"
        "print(json.dumps(up(sys.argv[1], name=sys.argv[2], backend=sys.argv[3]).to_json()))"
    )
    command = [sys.executable, "-c", code, str(definition), name, backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    state = LabState.from_json(json.loads(done.stdout))
    try:
        (lab,) = [lab for lab in status() if lab.name == name]
        assert (lab.condition, lab.owner, lab.backend) == ("up", None, backend)
        assert {worker.name: worker.quota for worker in lab.workers} == {"a": 0.5, "b": 0.25}
        with Client(state.scheduler_address, set_as_default=False) as client:
            assert len(registered(client)) == 2
        watch = state.process("watch")
        assert watch is not None
        if backend == "root":
            until(lambda: not watch.alive(), "the watch of a lab that needs none to end")
        else:
            assert watch.alive()
        with pytest.raises(LabError, match="started by `fpmdask lab up`"):
            up(definition, name=name, backend=backend)
    finally:
        (gone,) = down(name)
    assert gone.identity == state.identity
    assert traces(state) == set()


def test_a_lab_taken_down_by_another_does_not_trouble_its_driver(
    backend: str, definition: Path, prefix: str, traces: Callable[[LabState], set[str]]
) -> None:
    with Lab.from_toml(definition, name=f"{prefix}-other", backend=backend) as lab:
        state = lab.state
        command = "import sys; from fpmdask.lab import down; down(sys.argv[1])"
        subprocess.run([sys.executable, "-c", command, state.name], timeout=60, check=True)
        assert traces(state) == set()
        assert lab.pids == ()
        with Lab.from_toml(definition, name=state.name, backend=backend) as successor:
            lab.down()
            assert successor.state.condition() == "up"


def test_a_lab_that_cannot_be_leaves_nothing(root: None, tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('[[workers]]\nname = "a"\narguments = ["--no-such-option"]')
    with pytest.raises(LabError, match=r"the worker a ended .* No such option"):
        up(file, name=f"{prefix}-wrong", backend="root")
    file.write_text('[[workers]]\nname = "a"\naffinity = [4000]')
    with pytest.raises(LabError, match="cannot be pinned to the CPUs"):
        up(file, name=f"{prefix}-wrong", backend="root")
    assert f"{prefix}-wrong" not in {lab.name for lab in status()}
    assert not list(Path("/sys/fs/cgroup").glob(f"*/*{prefix}-wrong*"))


def test_an_ordinary_user_gets_unequal_workers(
    definition: Path, prefix: str, tmp_path: Path, traces: Callable[[LabState], set[str]]
) -> None:
    name = f"{prefix}-user"
    script = tmp_path / "ordinary.py"
    script.write_text(ORDINARY)
    command = [sys.executable, str(script), str(definition), name]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("becoming an ordinary user needs setpriv (util-linux)")
        # The one capability lets the user read an interpreter installed in root's home.
        reading = "-all,+dac_read_search"
        capabilities = (f"--inh-caps={reading}", f"--ambient-caps={reading}")
        user = ("--reuid=65534", "--regid=65534", "--clear-groups")
        command = ["setpriv", *user, *capabilities, f"--bounding-set={reading}", *command]
    done = subprocess.run(
        command, env=environment, cwd="/", capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[0])
    assert said["user"] != 0
    assert said["backend"] == "duty-cycle"
    # Other work on the machine only takes away; a quota may be overdrawn by one look of the watch.
    assert 0 < said["before"]["a"] < 0.6
    assert 0 < said["before"]["b"] < 0.35
    assert 0 < said["after"]["a"] < 0.2
    assert 0 < said["after"]["b"] < 0.35
    assert traces(LabState.from_json(said["state"])) == set()


def test_the_doctor_tries_and_leaves_nothing(root: None) -> None:
    def machine() -> list[set[str]]:
        folders = ("/run/netns", "/sys/class/net", "/sys/fs/cgroup/cpu", "/var/tmp")
        return [{p.name for p in Path(f).glob("*trial*")} for f in folders]

    before = machine()
    checks = {check.name: check for check in doctor()}
    assert machine() == before
    for name in ("root", "network namespaces", "bridge and veth", "control groups: cpu"):
        assert checks[name].ok, checks[name]
    for check in checks.values():
        assert check.found
        assert check.ok or check.cure, check
        assert json.dumps(check.to_json())
