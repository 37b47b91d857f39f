"""`Balancer.stencil` with less memory than its rows need."""

import asyncio
import os
import resource
import signal
import threading
import time

import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, get_worker

import fpmdask
from fpmdask.apps.stencil import gray_scott, jacobi
from fpmdask.apps.stencil.sizes import Sizes, in_core_nbytes, most_rows
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.rows import Rows
from tests.apps.stencil.test_stencil import cluster, local, of
from tests.eventually import nothing_left, until
from tests.tuned import tuned

pytestmark = pytest.mark.slow
RANDOM = np.random.default_rng(0)


def bytes_for(x, rows, prefetch=True, fields=1):
    """Return bytes that hold the result of so many rows of jacobi's, and not these in core."""
    one = Rows((), (len(x),), 0, x.dtype.str, x.shape)
    spec = StencilSpec((one,) * fields, (), (1, 1), ("reflect",) * 2, 1)
    nbytes = 1000.0
    while most_rows(spec, [nbytes], prefetch=prefetch)[1][0] < rows:
        nbytes *= 1.01
    assert most_rows(spec, [nbytes], prefetch=prefetch)[0][0] < rows
    return int(nbytes)


def open_block_files():
    """Return how many files without a name this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").endswith("(deleted)")
        except OSError:  # it has been closed since
            continue
    return found


async def no_files(before):
    await until(lambda: open_block_files() <= before, collecting=True)


@pytest.mark.parametrize("prefetch", [True, False])
@cluster(config=tuned(stencil={"trial_seconds": 0.0, "band_nbytes": 5000}))
async def test_rows_move_from_disk_to_disk(c, s, *workers, prefetch):
    """As a worker slows down amid the run."""
    files, events = open_block_files(), []
    balancer = await fpmdask.Balancer(c, progress=events.append)

    def update(blocks):
        worker = get_worker()
        worker.calls = getattr(worker, "calls", 0) + 1
        slow = str(worker.name) == "1" and worker.calls > 20
        time.sleep(1e-3 * (len(blocks[0]) - 2) * (1 + 9 * slow))
        return gray_scott()(blocks)

    u0 = tuple(RANDOM.random((2, 180, 4)))
    memory = bytes_for(u0[0], 85, prefetch, fields=2)
    given = {"boundary": "periodic", "prefetch": prefetch}
    found = await balancer.stencil(update, u0, 40, memory=memory, **given)
    rows = [event["rows"] for event in events if event["event"] == "shared out"]
    shares = {share["worker"]: share for share in balancer.report.shares}
    assert rows[-1]["1"] < rows[0]["1"] - 10
    assert max(share["blocks"] for share in shares.values()) > 1
    assert max(share["io_seconds"] for share in shares.values()) > 0
    assert balancer.report.phases["move"] > 0
    wanted = await balancer.stencil(gray_scott(), u0, 40, **given)
    assert not any(share["blocks"] for share in balancer.report.shares)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(*(await c.gather(c.compute([one, other]))))
    del found, wanted, one, other
    await nothing_left(s)
    await no_files(files)


@cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_halos_for_several_iterations_fit_into_memory(c, s, *workers):
    """Where calls have a fixed cost they are exchanged less often, as far as there is room."""
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((60, 8))
    one = Rows((), (60,), 0, "<f8", u0.shape)
    spec = StencilSpec((one,), (), (1, 1), ("reflect",) * 2, 60)
    row = Sizes.of(spec, prefetch=True).in_core

    def fixed(block):
        time.sleep(0.02)  # more than what other processes add to the time of 20 rows
        return jacobi(block)

    for memory, most in ((None, 64), (in_core_nbytes(spec, 20) + 8 * row, 2)):
        given = {"distribution": "even", "memory": memory}
        events.clear()
        found = await balancer.stencil(fixed, u0, 30, **given)
        np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 30))
        every = [event["every"] for event in events if event["event"] == "shared out"]
        assert 1 < max(every) <= most


@cluster()
async def test_some_in_core_and_others_out_of_core_until_a_tolerance(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((120, 9))
    x = da.from_array(u0, chunks=(50, 9))
    memory = {"1": bytes_for(u0, 60)}
    given = {"tolerance": 2e-2, "check_every": 3, "distribution": {"0": 40, "1": 60, "2": 20}}
    wanted = await balancer.stencil(jacobi, x, 500, **given)
    iterations = {share["iterations"] for share in balancer.report.shares}
    found = await balancer.stencil(jacobi, x, 500, memory=memory, **given)
    blocks = {share["worker"]: share["blocks"] for share in balancer.report.shares}
    assert blocks["1"] > 1
    assert not blocks["0"]
    assert {share["iterations"] for share in balancer.report.shares} == iterations
    assert iterations != {500}
    np.testing.assert_array_equal(*(await c.gather(c.compute([found, wanted]))))


@cluster()
async def test_what_does_not_fit_is_refused_at_once(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    calls = []

    def chunk(block):
        calls.append(block)
        return block

    x = da.zeros((300, 1000), chunks=(100, 1000)).map_blocks(chunk, meta=np.zeros((0, 0)))
    with pytest.raises(PartitionError, match=r"the result has 300 rows.*of 111 rows.*give out="):
        await balancer.stencil(jacobi, x, 5, memory="300 kB", prefetch=False)
    with pytest.raises(PartitionError, match=r"of 0 rows \(bytes: 0 1000, 1 1000, 2 1000\)"):
        await balancer.stencil(jacobi, x, 5, memory=1000)
    given = {"0": 200, "1": 100}
    with pytest.raises(PartitionError, match="gives 0 200 rows, and it has 1000000 bytes of mem"):
        await balancer.stencil(jacobi, x, 5, distribution=given, memory={"0": 1e6})
    with pytest.raises(CoordinatorError, match=r"memory names nobody \(not connected\)"):
        await balancer.stencil(jacobi, x, 5, memory={"nobody": 1e6})
    assert not calls
    await nothing_left(s)


@cluster()
async def test_a_full_disk_is_said_and_leaves_nothing(c, s, *workers):
    files = open_block_files()
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((300, 100))
    memory = bytes_for(u0, 105)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(PartitionError, match=r"on worker \d the disk of .* has no room for"):
            await balancer.stencil(jacobi, u0, 5, memory=memory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await nothing_left(s)
    await no_files(files)
    found = await balancer.stencil(jacobi, u0, 5, memory=memory)
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 5))


@cluster()
async def test_a_cancelled_call_closes_its_files(c, s, *workers):
    events, files = [], open_block_files()
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((300, 100))
    going = of(balancer.stencil(jacobi, u0, 10**7, memory=bytes_for(u0, 105)))
    running = asyncio.ensure_future(going)
    await until(lambda: [event for event in events if event["event"] == "shared out"])
    assert open_block_files() > files
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not any(worker.state.executing_count for worker in workers))
    del running, going
    await nothing_left(s)
    await no_files(files)
    assert not [t for t in threading.enumerate() if "fpmdask-prefetch" in t.name]


class Peak:
    """The most memory that processes have had since it was made."""

    def __init__(self, pids):
        self._processes = [psutil.Process(pid) for pid in pids]
        self._stop = threading.Event()
        self.before = [process.memory_info().rss for process in self._processes]
        self._peak = list(self.before)
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self):
        while not self._stop.wait(0.002):
            for n, process in enumerate(self._processes):
                self._peak[n] = max(self._peak[n], process.memory_info().rss)

    def stop(self):
        self._stop.set()
        self._thread.join()
        return [peak - before for peak, before in zip(self._peak, self.before, strict=True)]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    folder = str(tmp_path_factory.mktemp("local"))
    with LocalCluster(local_directory=folder, **options) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def stored(tmp_path):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(tmp_path / "u0", shape=(6000, 2000), chunks=(50, 2000), dtype="f8")
    array[...] = RANDOM.random((6000, 2000))
    return array


@pytest.mark.parametrize("prefetch", [True, False])
def test_memory_is_bounded(client, stored, tmp_path, prefetch):
    """96 MB of rows on two workers: 48 MB each in core, and out of core not much more than said."""
    balancer = fpmdask.Balancer(client)
    zarr = pytest.importorskip("zarr")
    options = {"chunks": (5, 2000), "dtype": "f8", "overwrite": True}

    def made(rows):
        return zarr.create_array(tmp_path / "out", shape=(rows, 2000), **options)

    balancer.stencil(jacobi, stored[:100], 3, memory="800kB", out=made(100), distribution="even")
    assert min(share["blocks"] for share in balancer.report.shares) > 0  # modules are imported
    peak = Peak(client.run(os.getpid).values())
    distribution = dict.fromkeys(balancer.report.workers, 3000)
    given = {"prefetch": prefetch, "distribution": distribution}
    out = made(6000)
    balancer.stencil(jacobi, stored, 3, memory="30MB", out=out, **given)
    taken = peak.stop()
    assert min(share["blocks"] for share in balancer.report.shares) > 0
    # its own pieces: bands of an update and what it makes of them, requests, the bounce buffer
    assert max(taken) < 30e6 + 16e6
    in_core = balancer.stencil(jacobi, stored, 3, distribution=distribution)
    assert not any(share["blocks"] for share in balancer.report.shares)
    assert float(out[...].sum()) == pytest.approx(float(in_core.sum().compute()), rel=1e-12)


def test_a_worker_that_is_killed_starts_the_others_again(client, stored, tmp_path):
    events = []
    balancer = fpmdask.Balancer(client, progress=events.append)
    pids = client.run(os.getpid)
    marks = tmp_path / "marks"
    marks.mkdir()
    victim = [*pids.values()][1]

    def update(block):
        if os.getpid() == victim:
            (marks / str(time.monotonic_ns())).touch()
            time.sleep(0.01)
        return jacobi(block)

    def kill():
        while len(list(marks.iterdir())) < 30:
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    u0 = stored[:]
    found = balancer.stencil(update, stored, 8, memory="100MB")
    killer.join()
    assert [event for event in events if event["event"] == "starting over"]
    np.testing.assert_array_equal(found.compute(), local(jacobi, u0, 8))
