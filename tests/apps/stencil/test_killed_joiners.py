"""Workers that are killed just after they have joined a stencil that iterates."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import dask
import numpy as np
import pytest

import fpmdask
from fpmdask.apps.stencil import jacobi
from tests.apps.stencil.test_stencil import local
from tests.killing import SIGNALS, nothing_left, of_kind, pids, processes
from tests.tuned import tuned

pytestmark = SIGNALS
ROWS, ITERATIONS = 60, 60
# who tries to reach one that is dead waits for so long, until the test fails
PATIENT = {"distributed.comm.timeouts.connect": "1h"}
QUICK = tuned(stencil={"trial_seconds": 0.0, "load_check_seconds": 0.02, "news_seconds": 0.0})


@pytest.fixture(scope="module")
def client():
    with dask.config.set({**PATIENT, **QUICK}), processes(2) as client:
        yield client


@contextmanager
def joining(client):
    """Yield the process of a worker that starts."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", client.scheduler.address]
    options = ["--name", "late", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("when", "streamed"),
    [("probed", False), ("moving", False), ("moving", True), ("iterating", False)],
)
def test_the_others_go_on(client, tmp_path, when, streamed):
    """What it was to compute they compute, from the rows that they had when it was taken in."""
    pids(client, 2)
    events, joined, taken, dead = [], *(tmp_path / name for name in ("joined", "taken", "dead"))
    u0 = np.random.default_rng(0).random((ROWS, 8 if streamed else 2000))
    memory = {"0": 3200, "1": 3200} if streamed else None
    balancer = fpmdask.Balancer(client)
    balancer.stencil(jacobi, u0[:8], 2)  # modules are imported
    with joining(client) as late:
        dies = {"probed": joined, "iterating": taken}.get(when, tmp_path / "never")

        def heard(event):
            events.append(event)
            if event["event"] == "joined":
                joined.touch()
            if event["event"] == "taken in":
                taken.touch()
                if when == "moving":
                    late.kill()
                    dead.touch()

        def update(block):
            if os.getpid() == late_pid and dies.exists():
                dead.touch()
                os.kill(late_pid, signal.SIGKILL)
            if not dead.exists():  # there are iterations left when it comes, and it pays
                time.sleep((0.004 if joined.exists() else 0.01) * (len(block) - 2))
            return jacobi(block)

        late_pid = late.pid
        balancer.progress = heard
        given = {"memory": memory, "distribution": "balanced"}
        found = balancer.stencil(update, u0, ITERATIONS, **given).compute()
        assert late.wait(20) == -signal.SIGKILL
    np.testing.assert_array_equal(found, local(jacobi, u0, ITERATIONS))
    assert of_kind(events, "joined")
    started_over = of_kind(events, "starting over")
    assert len(started_over) == len(of_kind(events, "taken in")) == (when != "probed")
    assert {*balancer.report.workers} == {"0", "1"}
    assert sum(balancer.report.distribution) == ROWS
    assert any(share["blocks"] for share in balancer.report.shares) == streamed
    nothing_left(client)
