"""Sorts on processes of which one is killed at any moment."""

import contextlib
import os
import signal
import threading
import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait
from hypothesis import given, settings
from hypothesis import strategies as st

import fpmdask
from fpmdask.lab.cluster import registered
from tests.resident import peak, status

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(300)]


@contextlib.contextmanager
def processes():
    options = {"n_workers": 3, "threads_per_worker": 1, "dashboard_address": ":0"}
    # a cluster gives up a worker that is away so long after another time that it was lost
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"})
    with patient, LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def client():
    with processes() as client:
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


STEPS = ["sort", "count", "exchange", "publish"]
# Bytes of malloc and of messages that a worker may have beside what is planned.
SLACK = 16 << 20


# the cluster's own threads draw random numbers while Hypothesis looks whether strategies do
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
@settings(max_examples=8)
@given(
    what=st.sampled_from(["sort", "argsort", "sort_values"]),
    moment=st.one_of(st.floats(0, 1.1), st.sampled_from(STEPS)),
    victim=st.integers(0, 2),
    kind=st.sampled_from(["uniform", "equal", "zipf"]),
    seed=st.integers(0, 9),
)
def test_a_worker_killed_at_any_moment_costs_nothing_but_time(
    client, seconds, what, moment, victim, kind, seed
):
    """At a moment, in parts of what an undisturbed sort takes, or as one of its steps begins."""
    pid = sorted(client.run(os.getpid).values())[victim]
    dead = threading.Event()

    def kill():
        if not dead.is_set():
            dead.set()
            os.kill(pid, signal.SIGKILL)

    def progress(event):
        if event["event"] == "step" and event["step"] == moment:
            kill()

    balancer = fpmdask.Balancer(client, progress=progress)
    random = da.random.default_rng(seed)
    made = {
        "uniform": lambda: random.random(3_000_000, chunks=250_000),
        "equal": lambda: da.zeros(3_000_000, chunks=250_000),
        "zipf": lambda: random.zipf(1.5, 3_000_000, chunks=250_000),
    }
    x = client.persist(made[kind]())
    wait(x)
    values = x.compute()
    if what == "sort_values":
        x = client.persist(dd.from_dask_array(x, columns="k").to_frame("k"))
        wait(x)
    arguments = (x, "k") if what == "sort_values" else (x,)
    if what not in seconds:
        calm = fpmdask.Balancer(client)
        getattr(calm, what)(*arguments)
        began = time.monotonic()
        getattr(calm, what)(*arguments)
        seconds[what] = time.monotonic() - began
    killing = threading.Timer(0.0 if moment in STEPS else moment * seconds[what], kill)
    if moment not in STEPS:
        killing.start()
    try:
        found = getattr(balancer, what)(*arguments).compute()
    finally:
        if moment in STEPS:
            kill()  # a sort of rows may go through other steps
        else:
            killing.join()
    if what == "sort":
        np.testing.assert_array_equal(found, np.sort(values))
    elif what == "sort_values":
        np.testing.assert_array_equal(found["k"].to_numpy(), np.sort(values))
        np.testing.assert_array_equal(values[found.index], np.sort(values))
    else:
        np.testing.assert_array_equal(np.sort(found), np.arange(values.size))
        np.testing.assert_array_equal(values[found], np.sort(values))
    killed(client, pid)


def steps_of_a_sort_that_loses_a_worker(client, what, moment):
    """Sort, with a worker killed when ``moment`` is told the first time; return what was told.

    What is told a second time has "again" behind its name.
    """
    pid = min(client.run(os.getpid).values())
    told = []

    def progress(event):
        name = event.get("step", event["event"])
        told.append(f"{name} again" if name in told else name)
        if told[-1] == moment and told.count(moment) == 1:
            os.kill(pid, signal.SIGKILL)

    balancer = fpmdask.Balancer(client, progress=progress)
    x = client.persist(da.random.default_rng(7).random(3_000_000, chunks=250_000))
    wait(x)
    values = x.compute()
    if what == "sort":
        found = balancer.sort(x).compute()
    else:
        x = client.persist(dd.from_dask_array(x, columns="k").to_frame("k"))
        wait(x)
        frame = balancer.sort_values(x, "k").compute()
        found = frame["k"].to_numpy()
        np.testing.assert_array_equal(values[frame.index], found)
        np.testing.assert_array_equal(np.sort(frame.index), np.arange(values.size))
    np.testing.assert_array_equal(found, np.sort(values))
    assert moment in told
    killed(client, pid)
    return told


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", [pytest.param("sort", marks=pytest.mark.thorough), "sort_values"])
def test_a_worker_killed_as_a_step_begins_costs_nothing_but_time(client, what, step):
    told = steps_of_a_sort_that_loses_a_worker(client, what, step)
    # what is lost once all parts are there may be made again without another sort
    assert "sort again" in told or step == "publish"


def test_a_worker_killed_while_rows_of_one_prefix_are_set_apart_costs_nothing_but_time(client):
    """Rows that travel with keys which do not hold all of them are counted once more."""
    told = steps_of_a_sort_that_loses_a_worker(client, "sort_values", "count again")
    assert "sort again" in told


@pytest.mark.parametrize("what", ["sort", "sort_values"])
def test_a_worker_killed_once_it_is_measured_costs_nothing_but_time(what):
    """On processes of its own, as what is known of workers is not measured again."""
    with processes() as client:
        steps_of_a_sort_that_loses_a_worker(client, what, "round")


@pytest.mark.parametrize(("what", "nbytes_per_key"), [("sort", 16), ("argsort", 56)])
def test_a_worker_needs_memory_for_a_run_and_a_part(what, nbytes_per_key):
    """With positions of both, and what it takes to order them; nothing is pickled or copied."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(memory_limit="1 GB", **options) as cluster, Client(cluster) as client:
        balancer = fpmdask.Balancer(client)
        getattr(balancer, what)(np.arange(300_000.0))  # imports what it needs
        x = client.persist(da.random.default_rng(1).random(8_000_000, chunks=1_000_000))
        wait(x)
        before = client.run(status, "VmRSS")
        found = getattr(balancer, what)(x)
        most = client.run(peak)
        workers = registered(client)
        shares = {share["worker"]: share for share in balancer.report.shares}
        for address, worker in workers.items():
            share = shares[str(worker["name"])]
            keys = max(share["units"], share["keys_sorted"])
            assert most[address] - before[address] <= nbytes_per_key * keys + SLACK
        assert len(found) == 8_000_000
