"""Sorts on processes of which one is killed at any moment."""

import contextlib
import os
import signal
import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait
from hypothesis import given, settings
from hypothesis import strategies as st

import fpmdask

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def client():
    options = {"n_workers": 3, "threads_per_worker": 1, "dashboard_address": ":0"}
    # a cluster gives up a worker that is away so long after another time that it was lost
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"})
    with patient, LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def seconds(client):
    """How long a sort takes that nothing happens to, by what is sorted."""
    return {}


def killed(client, pid):
    """Return once another worker is in the place of a killed one."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):
            pids = set(client.run(os.getpid).values())
            if len(pids) == 3 and pid not in pids:
                return
        time.sleep(0.1)
    raise AssertionError("the killed worker was not replaced")


@settings(max_examples=12)
@given(
    what=st.sampled_from(["sort", "argsort"]),
    moment=st.floats(0, 1.1),
    victim=st.integers(0, 2),
    kind=st.sampled_from(["uniform", "equal", "zipf"]),
    seed=st.integers(0, 9),
)
def test_a_worker_killed_at_any_moment_costs_nothing_but_time(
    client, seconds, what, moment, victim, kind, seed
):
    balancer = fpmdask.Balancer(client)
    random = da.random.default_rng(seed)
    made = {
        "uniform": lambda: random.random(3_000_000, chunks=250_000),
        "equal": lambda: da.zeros(3_000_000, chunks=250_000),
        "zipf": lambda: random.zipf(1.5, 3_000_000, chunks=250_000),
    }
    x = client.persist(made[kind]())
    wait(x)
    values = x.compute()
    if what not in seconds:
        getattr(balancer, what)(x)
        began = time.monotonic()
        getattr(balancer, what)(x)
        seconds[what] = time.monotonic() - began
    pid = sorted(client.run(os.getpid).values())[victim]
    killing = threading.Timer(moment * seconds[what], os.kill, (pid, signal.SIGKILL))
    killing.start()
    try:
        found = getattr(balancer, what)(x).compute()
    finally:
        killing.join()
    if what == "sort":
        np.testing.assert_array_equal(found, np.sort(values))
    else:
        np.testing.assert_array_equal(np.sort(found), np.arange(values.size))
        np.testing.assert_array_equal(values[found], np.sort(values))
    killed(client, pid)
