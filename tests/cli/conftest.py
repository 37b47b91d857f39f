"""Runs on emulated workers, made by driving `Measuring`, for commands to read."""

import pytest
from click.testing import CliRunner

from fpmdask.cli import main
from fpmdask.runtime.coordinator.instructions import Member
from fpmdask.runtime.coordinator.measuring import Measuring
from fpmdask.runtime.report import build

SPEEDS = {"alpha": 600.0, "beta": 400.0, "gamma": 250.0, "delta": 150.0}
UNITS = 4000


def address(name):
    return f"tcp://127.0.0.1:{40000 + list(SPEEDS).index(name)}"


def share(name, units):
    return {
        "worker": name,
        "part": list(SPEEDS).index(name),
        "units": units,
        "seconds": units / SPEEDS[name],
        "nbytes_received": 1000,
    }


def measured_run(leaves=None):
    """Return the report of a run that DFPA balanced; the worker ``leaves`` leaves in round 1."""
    names = {address(name): name for name in SPEEDS}
    run = Measuring(
        UNITS, {a: Member(name) for a, name in names.items()}, epsilon=0.1, max_rounds=10
    )
    pending = run.start()
    if leaves:
        run.left(address(leaves))
        pending = [task for task in pending if task.worker != address(leaves)]
    while not run.concluded:
        following = []
        for task in pending:
            # a little slower when it has more to do, as real workers are
            speed = SPEEDS[names[task.worker]] * (1 - task.units / (20 * UNITS))
            following = run.answered(task.worker, task.round, task.units / speed)
        pending = following
    result = run.result
    raw = {
        "run": "matmul-0123456789ab",
        "names": names,
        "result": vars(result),
        "phases": {"prepare": 0.1, "measure": 1.0, "multiply": 3.0},
        "rounds": [
            {
                "number": record.number,
                "units": {names[a]: n for a, n in record.units.items()},
                "kernel_seconds": {names[a]: s for a, s in record.seconds.items()},
                "imbalance": record.imbalance,
                "wall_seconds": 1.0,
                "overhead_seconds": 0.01,
            }
            for record in run.rounds
        ],
        "shares": [share(names[a], n) for a, n in result.distribution.items()],
        "left_out": {names.get(a, a): why for a, why in run.left_out.items()},
        "models": {names[a]: member.model.to_json() for a, member in run.members.items()},
        "log": {"header": run.header, "events": run.log},
    }
    return build(raw, "matmul")


def given_run():
    """Return the report of a run whose distribution was given, an even split."""
    even = UNITS // len(SPEEDS)
    raw = {
        "run": "matmul-given",
        "names": {address(name): name for name in SPEEDS},
        "result": {
            "distribution": {address(name): even for name in SPEEDS},
            "seconds": {address(name): 0.0 for name in SPEEDS},
            "imbalance": None,
            "reason": "given",
            "proposal": {address(name): even for name in SPEEDS},
        },
        "phases": {"prepare": 0.1, "measure": 0.0, "multiply": 7.0},
        "rounds": [],
        "shares": [share(name, even) for name in SPEEDS],
        "left_out": {},
        "log": None,
    }
    return build(raw, "matmul")


@pytest.fixture
def run_log(tmp_path):
    """Return the path of a saved run."""
    path = tmp_path / "run.json"
    measured_run().save(path)
    return path


@pytest.fixture
def fpm():
    """Return a function that runs a command line and returns click's result."""

    def run(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return run
