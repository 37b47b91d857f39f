"""What goes wrong in `Balancer.stencil` ends in a right result or an error, and leaves nothing."""

import asyncio
import gc
import os
import re
import resource
import signal
import threading
import time
from contextlib import contextmanager

import dask
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster, Worker, get_worker
from distributed.core import Status

import fpmdask
from fpmdask.apps.stencil import jacobi
from fpmdask.errors import CoordinatorError, MissingWorkersError, PartitionError, StorageError
from fpmdask.lab.cluster import registered
from tests.apps.stencil.test_mheta import KEPT, MEMORY, SLOW, U0
from tests.apps.stencil.test_out_of_core import bytes_for
from tests.apps.stencil.test_stencil import cluster, local, of, worker_name
from tests.apps.stencil.test_storage import snapshots, stored, zarr_cluster
from tests.eventually import nothing_left, until
from tests.killing import SIGNALS
from tests.tuned import tuned

pytestmark = [
    *SIGNALS,
    # that of a connection which a ping, or Dask, has given up
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
    ),
]
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def connections_that_were_given_up():
    """Collect them here, where they are no failure."""
    yield
    gc.collect()


@contextmanager
def processes():
    options = {"n_workers": 3, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(processes=True, **options) as workers, Client(workers) as client:
        yield client, client.run(os.getpid)


def slowly(block):
    time.sleep(0.01)
    return jacobi(block)


def files_in(folder):
    """Return what is in a folder but chunks and metadata of Zarr arrays."""
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    return [name for name in names if name != "zarr.json" and not name.isdigit()]


@pytest.mark.parametrize(
    ("how", "keeps"),
    [
        (signal.SIGKILL, True),
        (signal.SIGSTOP, False),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.thorough),
        pytest.param(signal.SIGSTOP, True, marks=pytest.mark.thorough),
    ],
)
def test_a_worker_that_dies_or_stops_in_the_middle(tmp_path, how, keeps):
    """One that goes on afterwards writes to nothing any more."""
    u0 = RANDOM.random((60, 20))
    out = zarr.create_array(
        str(tmp_path / "out"), shape=(0, 60, 20), chunks=(1, 25, 20), dtype="f8"
    )
    checkpoint = {"checkpoint": tmp_path / "kept", "checkpoint_every": 4} if keeps else {}
    source = stored(tmp_path / "u0", u0, (25, 20))
    events, dead = [], []
    with dask.config.set({"fpmdask.hang": "5s"}), processes() as (client, pids):
        victim = sorted(pids.values())[1]

        def heard(event):
            events.append(event)
            if event["event"] == "saved" and event["iteration"] == 10 and not dead:
                dead.append(victim)
                os.kill(victim, how)

        def slowly(block):
            time.sleep(0.01)
            return jacobi(block)

        balancer = fpmdask.Balancer(client, progress=heard)
        found = balancer.stencil(slowly, source, 25, out=out, save_every=5, **checkpoint)
        saved = [5, 10, 15, 20, 25]
        wanted = snapshots(u0, saved)
        np.testing.assert_array_equal(out[...], wanted)
        assert out.attrs.asdict() == {"fpmdask.out": {"iterations": saved}}
        assert [event for event in events if event["event"] == "starting over"]
        again = [event["iteration"] for event in events if event["event"] == "saved"]
        assert again.count(5) == (1 if keeps else 2)
        assert len(balancer.report.workers) == 2 or how == signal.SIGKILL  # a nanny starts another
        if how == signal.SIGSTOP:
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.5)
            np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "out"))[...], wanted)
        np.testing.assert_array_equal(found.compute(), wanted[-1])
        assert files_in(tmp_path) == []


def test_a_worker_that_stops_with_a_part_of_what_was_sent():
    """It is sent again at once, to the others: nobody waits for whom nobody can wake."""
    u0, dead = RANDOM.random((60, 20)), []
    with dask.config.set({"fpmdask.hang": "1s"}), processes() as (client, pids):
        victim = sorted(pids.values())[1]

        def heard(event):
            if event["event"] == "progress" and event["phase"] == "iterate" and not dead:
                dead.append(victim)
                os.kill(victim, signal.SIGSTOP)

        def slowly(block):
            time.sleep(0.01)
            return jacobi(block)

        balancer = fpmdask.Balancer(client, progress=heard)
        try:
            began = time.monotonic()
            found = balancer.stencil(slowly, u0, 25)
            assert dead
            assert time.monotonic() - began < 50, "not the 60 s of `fpmdask.recovery`"
            np.testing.assert_array_equal(found.compute(), local(jacobi, u0, 25))
        finally:
            os.kill(victim, signal.SIGCONT)


@pytest.mark.parametrize("needs", ["memory", "distribution"])
def test_a_worker_without_which_the_others_cannot_go_on_comes_back(tmp_path, needs):
    """Its nanny starts another one of its name, for which the run waits."""
    u0, dead = RANDOM.random((60, 20)), []
    given = {
        "memory": {"memory": bytes_for(u0, 25)},
        "distribution": {"distribution": dict.fromkeys("012", 20)},
    }
    source = stored(tmp_path / "u0", u0, (25, 20))
    with processes() as (client, pids):

        def heard(event):
            if event["event"] == "progress" and event["phase"] == "iterate" and not dead:
                dead.extend(sorted(pids.values())[1:2])
                os.kill(dead[0], signal.SIGKILL)

        def slowly(block):
            time.sleep(0.01)
            return jacobi(block)

        names = {str(worker["name"]) for worker in registered(client).values()}
        assert names == {*"012"}
        balancer = fpmdask.Balancer(client, progress=heard)
        found = balancer.stencil(slowly, source, 25, **given[needs])
        assert dead
        np.testing.assert_array_equal(found.compute(), local(jacobi, u0, 25))
        assert len(balancer.report.workers) == 3


def test_a_worker_without_which_the_others_cannot_go_on_is_lost_before_it_begins(
    tmp_path,
):
    """The call was checked with it, and it is killed while it opens the kernel."""
    u0, events = RANDOM.random((60, 20)), []

    class Opening:
        """An update that is unpickled once there is a file, by workers that make one each."""

        def __reduce__(self):
            return opened, (tmp_path,)

        def __call__(self, block):
            return jacobi(block)

    def opened(folder):
        (folder / str(os.getpid())).touch()
        while not (folder / "go").exists():
            time.sleep(0.02)
        return Opening()

    with processes() as (client, pids):
        victim = sorted(pids.values())[1]

        def kill():
            while not (tmp_path / str(victim)).exists():
                time.sleep(0.02)
            os.kill(victim, signal.SIGKILL)
            time.sleep(0.2)  # until the scheduler has heard of it
            (tmp_path / "go").touch()

        killing = threading.Thread(target=kill)
        killing.start()
        balancer = fpmdask.Balancer(client, progress=events.append)
        found = balancer.stencil(Opening(), u0, 5, memory=bytes_for(u0, 25))
        killing.join()
        np.testing.assert_array_equal(found.compute(), local(jacobi, u0, 5))
        assert len(balancer.report.workers) == 3
        (waited,) = [event for event in events if event["event"] == "waiting"]
        assert "the result has 60 rows" in waited["reason"]


@pytest.mark.parametrize("given", ["memory", "distribution", "out"])
@zarr_cluster(config=tuned(runtime={"rejoin_seconds": 0.5}))
async def test_a_worker_without_which_the_others_cannot_go_on_is_gone(
    c, s, *workers, tmp_path, given
):
    """The error says what is missing, and since when; the others go on with the next call."""
    u0, gone, events = RANDOM.random((60, 20)), [], []
    options = {
        "memory": {"memory": bytes_for(u0, 25)},
        "distribution": {"distribution": dict.fromkeys("012", 20)},
        "out": {"distribution": dict.fromkeys("012", 20), "out": tmp_path / "out"},
    }

    def heard(event):
        events.append(event)
        if event["event"] == "progress" and event["phase"] == "iterate" and not gone:
            gone.append(asyncio.ensure_future(workers[1].close()))

    balancer = await fpmdask.Balancer(c, progress=heard)
    needs = r"the result has 60 rows, .* 50 rows" if given == "memory" else "distribution names 1 "
    kind = PartitionError if given == "memory" else MissingWorkersError
    with pytest.raises(kind, match=rf"{needs}.*; this came after: .*1"):
        await balancer.stencil(slowly, u0, 200, **options[given])
    await asyncio.gather(*gone)
    (waited,) = [event for event in events if event["event"] == "waiting"]
    assert [*waited["workers"]] == ["1"]
    assert re.search(needs, waited["reason"])
    assert [*tmp_path.iterdir()] == []
    found = await balancer.stencil(jacobi, u0, 25)
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 25))
    del found
    await nothing_left(s)


@pytest.mark.parametrize("ends", ["all leave", "cancelled"])
@cluster(config=tuned(runtime={"rejoin_seconds": 5.0}))
async def test_what_ends_the_wait_for_a_worker_that_is_lost(c, s, *workers, ends):
    u0, gone, events = RANDOM.random((60, 20)), [], []

    def heard(event):
        events.append(event)
        if event["event"] == "progress" and event["phase"] == "iterate" and not gone:
            gone.append(asyncio.ensure_future(workers[1].close()))

    balancer = await fpmdask.Balancer(c, progress=heard)
    call = balancer.stencil(slowly, u0, 200, memory=bytes_for(u0, 25))
    running = asyncio.ensure_future(of(call))
    await until(lambda: [event for event in events if event["event"] == "waiting"])
    if ends == "all leave":
        await asyncio.gather(*gone, workers[0].close(), workers[2].close())
        with pytest.raises(CoordinatorError, match=r"no worker is left; .* after this: .*1"):
            await running
        return
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.gather(*gone)
    del call, running
    found = await balancer.stencil(jacobi, u0, 5)
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 5))
    del found
    await nothing_left(s)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.thorough)]
)
def test_a_worker_that_dies_or_stops_amid_the_write(tmp_path, how):
    """What it has written, or begun to, is written anew by the others."""
    u0, events, dead = RANDOM.random((1200, 400)), [], []
    out = zarr.create_array(str(tmp_path / "out"), shape=u0.shape, chunks=(2, 400), dtype="f8")
    with dask.config.set({"fpmdask.hang": "2s"}), processes() as (client, pids):
        victim = sorted(pids.values())[1]

        def heard(event):
            events.append(event)
            if event["event"] == "progress" and event["phase"] == "write" and not dead:
                dead.append(victim)
                os.kill(victim, how)

        balancer = fpmdask.Balancer(client, progress=heard)
        try:
            found = balancer.stencil(jacobi, u0, 3, out=out)
            assert [event for event in events if event["event"] == "starting over"]
            wanted = local(jacobi, u0, 3)
            np.testing.assert_array_equal(out[...], wanted)
        finally:
            if how == signal.SIGSTOP:
                os.kill(victim, signal.SIGCONT)
        if how == signal.SIGSTOP:  # it writes no more
            time.sleep(0.5)
            np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "out"))[...], wanted)
        np.testing.assert_array_equal(found.compute(), wanted)


@pytest.mark.parametrize("what", ["out", "checkpoint"])
def test_a_full_disk(tmp_path, what):
    """Files may not get longer than a limit, which fails as a full disk does."""
    u0 = RANDOM.random((3000, 40))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with processes() as (client, pids):
        balancer = fpmdask.Balancer(client)
        given = {"out": tmp_path / "out"}
        if what == "checkpoint":
            given = {"checkpoint": tmp_path / "kept", "checkpoint_every": 2}
        # `out` is one chunk here, which one of them writes
        full = [*pids] if what == "out" else [max(pids, key=pids.__getitem__)]
        limit = 50_000, unlimited[1]
        client.run(resource.setrlimit, resource.RLIMIT_FSIZE, limit, workers=full)
        says = {"out": "cannot write to out at file://", "checkpoint": "kept cannot be used: "}
        kind = {"out": OSError, "checkpoint": StorageError}
        workers = registered(client).values()
        shares = {str(worker["name"]): 1000 for worker in workers}
        with pytest.raises(kind[what], match=says[what]):
            balancer.stencil(jacobi, u0, 5, distribution=shares, **given)
        assert files_in(tmp_path) == []
        client.run(resource.setrlimit, resource.RLIMIT_FSIZE, unlimited, workers=full)
        found = balancer.stencil(jacobi, u0, 5, distribution=shares, **given)
        np.testing.assert_array_equal(found.compute(), local(jacobi, u0, 5))
        assert files_in(tmp_path) == []


@cluster(
    config={"fpmdask.hang": "1s", **tuned(stencil={"trial_seconds": 0.0})},
    worker_kwargs={"memory_limit": 0},  # else the memory's monitor has it go on
)
async def test_a_paused_worker_is_sent_nothing(c, s, *workers):
    """Its memory is full: Dask would wait 30 s for it to go on, and then fail."""
    balancer = await fpmdask.Balancer(c)
    workers[1].status = Status.paused
    await until(lambda: s.workers[workers[1].address].status == Status.paused)
    u0 = RANDOM.random((30, 8))
    async with asyncio.timeout(20):
        found = await balancer.stencil(jacobi, u0, 4)
        np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 4))
    assert "1" not in balancer.report.workers
    workers[1].status = Status.running
    del found
    await nothing_left(s)


@cluster(2, config=tuned(stencil={"trial_seconds": 0.0}))
async def test_a_worker_that_joins_in_the_middle_disturbs_nothing(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((30, 8))

    def slowly(block):
        time.sleep(0.01)
        return jacobi(block)

    running = asyncio.ensure_future(of(balancer.stencil(slowly, u0, 40)))
    await until(lambda: [event for event in events if event["event"] == "shared out"])
    async with Worker(s.address, nthreads=1, name="late"):
        found = await running
        np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 40))
        found = await balancer.stencil(slowly, u0, 4)
        assert "late" in balancer.report.workers
        np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 4))
        del found
        del running
    await nothing_left(s)


@pytest.mark.parametrize("streamed", [False, True])
@cluster(config=tuned(stencil={"trial_seconds": 0.0, "band_nbytes": 500}))
async def test_a_tolerance_that_is_never_met_ends_after_all_iterations(c, s, *workers, streamed):
    """NaN is in every difference that it reaches: nothing is below a tolerance."""
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((60, 8))
    memory = bytes_for(u0, 30) if streamed else None
    for start, tolerance in ((u0, 0.0), (np.where(u0 == u0[3, 3], np.nan, u0), 1e9)):
        found = await balancer.stencil(
            jacobi, start, 7, tolerance=tolerance, check_every=2, memory=memory
        )
        np.testing.assert_array_equal(await c.compute(found), local(jacobi, start, 7))
        assert {share["iterations"] for share in balancer.report.shares} == {7}
    del found
    await nothing_left(s)


@cluster(config=tuned(stencil={"news_seconds": 0.0}))
async def test_a_worker_may_be_silent_for_as_long_as_its_longest_call_takes(c, s, *workers):
    """An update may hold the interpreter; `StepTimes.patience` has the rule."""
    calls = []

    def heard(event):
        if event["event"] == "iterated":
            calls.extend(run.steps.longest_call for run in s.plugins["fpmdask"].runs.values())

    def slow(block):
        time.sleep(0.2)
        return jacobi(block)

    balancer = await fpmdask.Balancer(c, progress=heard)
    u0 = RANDOM.random((30, 8))
    found = await balancer.stencil(slow, u0, 5, distribution="even")
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 5))
    assert any(call is not None and call >= 0.2 for call in calls)


@zarr_cluster(config=SLOW)
async def test_a_worker_that_leaves_amid_the_instrumented_sample(c, s, *workers, tmp_path):
    """The last of three would wait for the middle one, which has given up with the first."""
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)

    def update(block, *_):
        slow = str(get_worker().name) != "2"
        time.sleep((0.02 if slow else 0.002) * len(block))
        return jacobi(block)

    source, constant = (
        stored(tmp_path / name, values, (10, 50)) for name, values in (("u0", U0), ("kept", KEPT))
    )
    given = {"memory": MEMORY, "args": (constant,)}
    running = asyncio.ensure_future(of(balancer.stencil(update, source, 4, **given)))
    await until(lambda: any(event.get("step") == "instrument" for event in events))
    await asyncio.sleep(0.2)
    await workers[0].close(timeout=1)
    found = await asyncio.wait_for(running, 40)
    np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 4))
    assert [event for event in events if event["event"] == "starting over"]
    assert sorted(balancer.report.workers) == ["1", "2"]


CALLS = []


def hanging(block):
    """Take 4 s instead of 10 ms once."""
    if worker_name() == "1":
        CALLS.append(1)
        time.sleep(4.0 if len(CALLS) == 100 else 0.0)
    time.sleep(0.01)
    return jacobi(block)


@pytest.mark.slow
@cluster(config={"fpmdask.hang": "1s", **tuned(stencil={"trial_seconds": 0.0})})
async def test_an_update_that_does_not_return_is_told_and_waited_for(c, s, *workers):
    """Nobody can tell it from one that takes long: its worker gives signs of life."""
    balancer = await fpmdask.Balancer(c)
    CALLS.clear()
    u0 = RANDOM.random((30, 9))
    with pytest.warns(UserWarning, match="nothing was heard of worker 0, 1, 2 for"):
        found = await balancer.stencil(hanging, u0, 150, distribution="even")
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 150))
