"""Where `out` is: for the client, for every worker, and for the inputs."""

import os
import signal
import sys

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul.client import stored, target
from fpmdask.apps.matmul.client.checkpoint import MARK, Checkpoint
from fpmdask.errors import PartitionError
from fpmdask.lab.cluster import registered
from fpmdask.runtime import zarr_storage
from fpmdask.runtime.client import zarr_target
from tests.tuned import SHORT_ROUNDS

pytestmark = pytest.mark.usefixtures("short_rounds")
CONFIG = {"distributed.scheduler.active-memory-manager.start": False, **SHORT_ROUNDS}


def cluster(**options):
    nthreads = [("127.0.0.1", 1)] * 2
    settings = {"client": True, "nthreads": nthreads, "config": CONFIG, "timeout": 60}
    # Zarr keeps threads of its own
    return gen_cluster(**settings, clean_kwargs={"threads": False}, **options)


def on_disk(path, values):
    made = zarr.create_array(str(path), shape=values.shape, chunks=(10, 10), dtype=values.dtype)
    made[:] = values
    return made


def factors():
    random = np.random.default_rng(0)
    return random.integers(-9, 9, (50, 30)) * 1.0, random.integers(-9, 9, (30, 40)) * 1.0


@pytest.fixture
def processes():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local,
        Client(local) as client,
    ):
        yield client


@pytest.fixture
def elsewhere(processes, tmp_path, monkeypatch):
    """Two workers, the second in a folder of its own; both folders have an array `c`."""
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home, other):
        folder.mkdir()
        on_disk(folder / "c", np.zeros((50, 40)))
    first, second = sorted(processes.run(os.getpid))
    monkeypatch.chdir(home)
    processes.run(os.chdir, str(home), workers=[first])
    processes.run(os.chdir, str(other), workers=[second])
    return processes, second


@pytest.mark.slow
def test_a_relative_path_is_the_clients(elsewhere):
    client, _ = elsewhere
    a, b = factors()
    out = zarr.open_array("c", mode="r+")
    assert not out.store.root.is_absolute()
    result = fpmdask.Balancer(client).matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], a @ b)
    np.testing.assert_array_equal(result.compute(), a @ b)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("asked", [True, False])
def test_a_place_that_workers_do_not_share_is_refused(elsewhere, monkeypatch, asked):
    """One path, for a worker another disk: it says so when it is asked, and when it writes."""
    client, second = elsewhere
    name = registered(client)[second]["name"]
    a, b = factors()
    out = zarr.open_array("/proc/self/cwd/c", mode="r+")

    async def unasked(client, target, workers, answer_seconds):
        pass

    if not asked:  # whoever writes is elsewhere
        monkeypatch.setattr(stored, "check_reached", unasked)
        client.run(os.chdir, os.path.realpath("../other"))
        name = "."
    events = []
    balancer = fpmdask.Balancer(client, progress=events.append)
    with pytest.raises(PartitionError, match=f"worker {name} does not find.*/proc/self/cwd/c"):
        balancer.matmul(a, b, out=out)
    # nothing was begun: what takes its time to ask may say that it goes on
    assert ({event["event"] for event in events} <= {"progress", "failed"}) is asked
    assert MARK not in zarr.open_array("c").attrs


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_workers_that_take_no_part_need_not_reach_it(elsewhere):
    client, second = elsewhere
    (first,) = set(registered(client)) - {second}
    a, b = factors()
    out = zarr.open_array("/proc/self/cwd/c", mode="r+")
    fpmdask.Balancer(client, workers=[first]).matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], a @ b)


@pytest.mark.slow
def test_a_worker_that_hangs_is_not_waited_for(elsewhere):
    client, second = elsewhere
    workers = {a: str(a) for a in registered(client)}
    out = zarr.open_array(os.path.abspath("c"), mode="r+")
    (pid,) = client.run(os.getpid, workers=[second]).values()
    known, unknown = (target.Target(out, run, (), None) for run in ("this call", "another"))
    with Checkpoint(out, "this call"):  # both have imported what they need to answer
        client.sync(zarr_target.check_reached, client, known, workers, 30.0)
    os.kill(pid, signal.SIGSTOP)
    (first,) = {*workers} - {second}
    try:
        with Checkpoint(out, "this call"):
            client.sync(zarr_target.check_reached, client, known, workers, 1.0)
            with pytest.raises(PartitionError, match=f"worker {first} does not find"):
                client.sync(zarr_target.check_reached, client, unknown, workers, 1.0)
    finally:
        os.kill(pid, signal.SIGCONT)


class Locked(zarr.storage.LocalStore):
    """A folder in which the client may write no metadata."""

    async def set(self, key, value):
        if key.endswith("zarr.json"):
            raise PermissionError(13, "Permission denied", key)
        await super().set(key, value)


@cluster()
async def test_what_cannot_be_written_to_is_refused_before_anything_is_computed(
    c, s, *workers, tmp_path
):
    a, b = factors()
    on_disk(tmp_path / "c", np.zeros((50, 40)))
    out = zarr.open_array(Locked(tmp_path / "c"))
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    with pytest.raises(PartitionError, match=r"cannot be written to.*Permission denied"):
        await balancer.matmul(a, b, out=out)
    assert {event["event"] for event in events} <= {"progress", "failed"}


@cluster()
async def test_an_array_that_is_gone_is_refused(c, s, *workers, tmp_path):
    a, b = factors()
    out = on_disk(tmp_path / "c", np.zeros((50, 40)))
    (tmp_path / "c" / "zarr.json").unlink()
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(PartitionError, match=r"out is not at .* any more"):
        balancer.matmul(a, b, out=out)


def read_from(folder, way):
    """The array in `folder`, by one of several ways to it."""
    link = folder.parent / "link"
    link.symlink_to(folder)
    local = zarr.storage.LocalStore(folder)
    match way:
        case "path":
            return da.from_zarr(str(folder)).T[::2]
        case "relative path":
            return da.from_zarr(zarr.open_array(os.path.relpath(folder)))
        case "link":
            return da.from_zarr(str(link))
        case "argument":
            return da.from_array(zarr.open_array(local), inline_array=True)
        case "fsspec":
            return da.from_zarr(
                zarr.open_array(zarr.storage.FsspecStore.from_url(f"file://{folder}"))
            )
        case "wrapped":
            return da.from_zarr(zarr.open_array(zarr.storage.LoggingStore(local)))
    raise AssertionError(way)


@pytest.mark.parametrize("way", ["path", "relative path", "link", "argument", "fsspec", "wrapped"])
@cluster()
async def test_an_input_is_not_written_over(c, s, *workers, tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    balancer = await fpmdask.Balancer(c)
    values = np.arange(400.0).reshape(20, 20)
    out = on_disk(tmp_path / "both", values)
    x = read_from(tmp_path / "both", way)
    ones = da.ones((20, x.shape[0]), chunks=10)
    for a, b in [(ones, x), (x.T, ones.T)]:
        with pytest.raises(PartitionError, match="which an input is read from"):
            balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], values)


def test_the_same_path_in_another_kind_of_storage_is_another_place(tmp_path):
    on_disk(tmp_path / "c", np.zeros((50, 40)))
    local = zarr.open_array(str(tmp_path / "c"))
    remote = zarr.create_array(
        f"memory://{tmp_path}/c", shape=(50, 40), chunks=(10, 10), dtype="f8"
    )
    assert zarr_storage.place(local)[1].strip("/") == zarr_storage.place(remote)[1].strip("/")
    assert zarr_storage.place(local) != zarr_storage.place(remote)
