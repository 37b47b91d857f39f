"""Workers whose process is stopped: they keep their connections, and the scheduler lists them."""

import asyncio
import gc
import os
import signal
import time
from contextlib import contextmanager
from functools import partial
from itertools import product

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef
from distributed import Client, LocalCluster, wait

import fpmdask
from fpmdask.apps.stencil import jacobi
from fpmdask.errors import ChunksLostError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.chunk_facts import divisions_of, rows_of, values_of
from fpmdask.runtime.client.rows import partitions_of
from fpmdask.runtime.client.stages import Stages, WorkerLeft, token
from fpmdask.runtime.coordinator.library import ModelLibrary
from tests.killing import SIGNALS
from tests.tuned import tuned

pytestmark = [
    *SIGNALS,
    # that of a connection which a ping, or Dask, has given up
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
    ),
]
WORKERS = 3


class Stopping:
    """Notes events, and stops a worker when the first of some name comes."""

    def __init__(self, pid=None):
        self.pid, self.at, self.events = pid, None, []

    def __call__(self, event):
        self.events.append(event)
        if event["event"] == self.at:
            self.at = None
            os.kill(self.pid, signal.SIGSTOP)

    def resume(self, event):
        if event["event"] == "left out":
            os.kill(self.pid, signal.SIGCONT)
        self(event)

    def reasons(self):
        return [event["reason"] for event in self.events if event["event"] == "left out"]


@pytest.fixture(autouse=True)
def connections_that_were_given_up():
    """Collect them here, where they are no failure."""
    yield
    gc.collect()


@contextmanager
def started():
    """Three processes; with this `hang` the test times out where a stopped one is waited for."""
    settings = {
        "fpmdask.hang": "1h",
        # what Dask takes for surplus replicas it drops at once, not after up to 2 s
        "distributed.scheduler.active-memory-manager.interval": "20ms",
        **tuned(stencil={"news_seconds": 0.1}),
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as local,
    ):
        yield local


@contextmanager
def connected(local):
    """Connect a client, with the process of each worker; all of them go on in the end."""
    with Client(local) as client:
        client.run_on_scheduler(forget_models)
        pids = client.run(os.getpid)
        try:
            yield client, pids
        finally:
            for pid in pids.values():
                os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def local():
    """One cluster for most tests: who was stopped goes on."""
    with started() as local:
        yield local


@pytest.fixture
def cluster(local):
    with connected(local) as found:
        yield found


def matmul(balancer, client):
    x = da.random.RandomState(1).random_sample((600, 600), chunks=200).persist()
    y = da.random.RandomState(2).random_sample((600, 600), chunks=200).persist()
    expected = x.compute() @ y.compute()
    return (lambda: balancer.matmul(x, y)), lambda c: np.testing.assert_allclose(c, expected)


def sort(balancer, client):
    x = da.random.RandomState(1).random_sample(900_000, chunks=100_000).persist()
    expected = np.sort(x.compute())
    return (lambda: balancer.sort(x)), lambda y: np.testing.assert_array_equal(y, expected)


def rows(balancer, client):
    pd = pytest.importorskip("pandas")
    import dask.dataframe as dd

    keys = np.random.default_rng(1).random(30_000)
    frame = pd.DataFrame({"k": keys, "text": np.arange(len(keys)).astype(str)})
    ddf = dd.from_pandas(frame, npartitions=9).persist()
    expected = frame.sort_values("k")
    return (lambda: balancer.sort_values(ddf, "k")), lambda found: np.testing.assert_array_equal(
        found[["k", "text"]].to_numpy(), expected.to_numpy()
    )


def slow_jacobi(block):
    time.sleep(0.01)
    return jacobi(block)


def iterated(u, times):
    for _ in range(times):
        u = jacobi(np.pad(u, 1, mode="symmetric"))
    return u


def stencil(balancer, client):
    u0 = da.random.RandomState(1).random_sample((90, 20), chunks=(10, 20)).persist()
    expected = iterated(u0.compute(), 40)
    return (lambda: balancer.stencil(slow_jacobi, u0, 40)), lambda u: np.testing.assert_array_equal(
        u, expected
    )


# what a worker is stopped amid
EVENTS = {matmul: "round", sort: "step", rows: "step", stencil: "iterated"}


def pid_of_inputs(client, pids):
    """Return the process of the worker that holds most inputs, wherever Dask has put them."""
    return pids[max(pids, key=lambda worker: len(client.has_what([worker])[worker]))]


@pytest.mark.parametrize(
    ("work", "at"),
    [*product([matmul, sort, rows], ["before", "during"]), (stencil, "during")],
)
def test_a_stopped_worker_is_not_waited_for(cluster, work, at):
    """Its inputs are recomputed, its work is done by others, and it may come back afterwards."""
    client, pids = cluster
    heard = Stopping()
    balancer = fpmdask.Balancer(client, progress=heard)
    call, check = work(balancer, client)
    check(call().compute())  # everybody has imported what it needs
    pid = heard.pid = pid_of_inputs(client, pids)
    if at == "before":
        os.kill(pid, signal.SIGSTOP)
    else:  # products and sorts have steps under way then
        heard.at = EVENTS[work]
        if work is matmul:
            client.run_on_scheduler(forget_models)
    result = call()
    assert heard.at is None
    assert any("no sign of life" in reason for reason in heard.reasons())
    with open(f"/proc/{pid}/stat") as file:
        assert file.read().rsplit(")", 1)[1].split()[0] == "T"  # stopped all the time
    os.kill(pid, signal.SIGCONT)
    check(result.compute())
    check(call().compute())


def partitions(client):
    pd = pytest.importorskip("pandas")
    import dask.dataframe as dd

    frame = pd.DataFrame({"a": np.arange(9000.0)})
    ddf = dd.from_pandas(frame, npartitions=9).map_partitions(lambda part: part + 1).persist()
    wait(ddf)
    return ddf


def test_who_holds_partitions_and_has_stopped_need_not_count_their_rows(cluster):
    client, pids = cluster
    ddf = partitions(client)
    expected = 2 * ddf.compute()
    balancer = fpmdask.Balancer(client)
    pid = pid_of_inputs(client, pids)
    os.kill(pid, signal.SIGSTOP)
    result = balancer.map_partitions(lambda part: part * 2, ddf)
    os.kill(pid, signal.SIGCONT)
    np.testing.assert_array_equal(result.compute(), expected)


def test_facts_about_chunks_are_found_without_a_stopped_worker(cluster):
    """Lengths and divisions, also for a run that holds the workers; weights, lazy ones, too."""
    client, pids = cluster
    balancer = fpmdask.Balancer(client)
    ddf = partitions(client)
    x = da.random.RandomState(1).random_sample(9000, chunks=1000).persist()
    some = x[x > 0.5].persist()
    weights = (x > 0.5).astype("f8").persist()
    wait([x, some, weights])
    values = x.compute()
    parts, request = partitions_of(ddf), balancer._request()
    pid = pid_of_inputs(client, pids)
    os.kill(pid, signal.SIGSTOP)

    async def divisions(request):
        return await divisions_of(client, [parts[:4], parts[4:]], balancer._follow, request)

    async def facts():
        return await asyncio.gather(
            proxy.leased(balancer._follow, "frames", request, divisions),
            rows_of(client, [some, ddf, x], [0, 0, 0], balancer._follow, request),
            values_of(client, [weights], balancer._follow, request),
            values_of(client, [x + 1, ddf["a"] + 1], balancer._follow, request),
        )

    known, (there, rows), [found], [lazy, series] = client.sync(facts)
    assert known == [(0, 1000, 2000, 3000, 3999), (4000, 5000, 6000, 7000, 8000, 8999)]
    chunks = values.reshape(9, 1000)
    assert there[0].chunks == (tuple((chunks > 0.5).sum(axis=1).tolist()),)
    assert [one.lengths for one in rows] == [there[0].chunks[0], (1000,) * 9, (1000,) * 9]
    np.testing.assert_array_equal(found, values > 0.5)
    np.testing.assert_array_equal(lazy, values + 1)
    np.testing.assert_array_equal(series, np.arange(9000) + 2)


@pytest.mark.parametrize("work", [matmul, sort, stencil])
def test_a_worker_that_goes_on_once_it_was_given_up_does_no_harm(cluster, work):
    """The others ask it no more in this run, although the scheduler hears of it again."""
    client, pids = cluster
    heard = Stopping()
    balancer = fpmdask.Balancer(client, progress=heard.resume)
    call, check = work(balancer, client)
    check(call().compute())
    heard.pid = pid_of_inputs(client, pids)
    heard.at = EVENTS[work]
    client.run_on_scheduler(forget_models)
    result = call()
    assert any("no sign of life" in reason for reason in heard.reasons())
    check(result.compute())
    check(call().compute())
    del result
    give_up = time.monotonic() + 30
    while any(client.run(runs_kept).values()):  # of runs that are over it keeps nothing
        assert time.monotonic() < give_up
        time.sleep(0.02)


def runs_kept(dask_worker):
    return len(dask_worker.plugins["fpmdask"].side.spaces)


def forget_models(dask_scheduler):
    if "fpmdask" in dask_scheduler.plugins:
        dask_scheduler.plugins["fpmdask"].library = ModelLibrary()


def slow_block(n):
    time.sleep(0.5)
    return np.random.default_rng(n).random(50_000)


@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_whoever_recomputes_may_stop_as_well(cluster, at_once):
    client, pids = cluster
    heard = Stopping()
    balancer = fpmdask.Balancer(client, progress=heard)
    blocks = [dask.delayed(slow_block)(n) for n in range(6)]
    x = da.concatenate([da.from_delayed(block, (50_000,), "f8") for block in blocks]).persist()
    expected = np.sort(np.concatenate([slow_block(n) for n in range(6)]))
    np.testing.assert_array_equal(balancer.sort(x).compute(), expected)
    first, second, _ = sorted(pids, key=lambda worker: -len(client.has_what([worker])[worker]))
    heard.pid, heard.at = pids[second], "recomputing"
    os.kill(pids[first], signal.SIGSTOP)
    if at_once:
        os.kill(pids[second], signal.SIGSTOP)
    found = balancer.sort(x)
    for pid in pids.values():
        os.kill(pid, signal.SIGCONT)
    np.testing.assert_array_equal(found.compute(), expected)


def test_data_without_a_task_is_waited_for_and_named():
    with (
        started() as local,
        connected(local) as (client, pids),
        dask.config.set({"fpmdask.recovery": "5s"}),
    ):
        address, pid = sorted(pids.items())[0]
        heard = Stopping(pid)
        balancer = fpmdask.Balancer(client, progress=heard)
        block = np.random.default_rng(0).random(50_000)
        graph = {}
        for n, worker in enumerate((address, *sorted(pids.keys() - {address}))):
            graph |= client.scatter({("x", n): block}, workers=[worker], hash=False, direct=True)
        x = da.Array(graph, "x", chunks=((len(block),) * WORKERS,), dtype=block.dtype)
        expected = np.sort(np.concatenate([block] * WORKERS))
        np.testing.assert_array_equal(balancer.sort(x).compute(), expected)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ChunksLostError, match="not made again within 5 s"):
            balancer.sort(x)
        waiting = [e for e in heard.events if e["event"] == "waiting" and "chunks" in e]
        assert [event["chunks"] for event in waiting] == [1]
        os.kill(pid, signal.SIGCONT)
        np.testing.assert_array_equal(balancer.sort(x).compute(), expected)


def block_of(n):
    return np.full(1000, n)


def test_who_stops_and_holds_what_a_stage_needs_is_not_waited_for(cluster):
    """It has no task of the stage itself; those that have one wait for it, and do so no longer."""
    client, pids = cluster
    balancer = fpmdask.Balancer(client)
    home, holder, _ = sorted(pids)
    given = client.submit(block_of, 3, workers=[holder], allow_other_workers=True)
    wait(given)
    told = []

    async def attempt(stages):
        places = await stages.places([given])
        if not told:
            assert places == [holder]
            os.kill(pids[holder], signal.SIGSTOP)
        key = (token("waits"), 0)
        task = Task(key, np.sum, TaskRef(given.key))
        try:
            return await stages.asked(key[0], {key: task}, {key: home}, [given], {})
        except WorkerLeft as left:
            told.append(str(left))
            raise

    async def work(request):
        stages = Stages(client, request["within"])
        return await stages.again(partial(attempt, stages))

    request = balancer._request()
    assert client.sync(proxy.leased, balancer._follow, "frames", request, work) == [3000]
    assert ["gave no sign of life" in reason for reason in told] == [True], told
