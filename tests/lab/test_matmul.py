"""Products on processes: more than memory holds, unequal memory, a disk that is full."""

import contextlib
import os
import shutil
import subprocess
import time

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client, Nanny, Scheduler, SpecCluster, wait

import fpmdask
from fpmdask.apps.matmul.client import stored as tiles
from fpmdask.lab.cluster import registered
from tests.resident import peak

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(240)]


@contextlib.contextmanager
def processes(*limits, **options):
    """Two workers with so much memory, whose own part counts from the first second on."""
    workers = {
        name: {"cls": Nanny, "options": {"nthreads": 1, "memory_limit": limit, **options}}
        for name, limit in zip(("small", "large"), limits, strict=True)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with (
        dask.config.set({"distributed.worker.memory.recent-to-old-time": "1s"}),
        SpecCluster(workers, scheduler) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        yield client


def counted(dask_scheduler):
    """Task on the scheduler: the bytes that each worker is believed to need."""
    return [worker.memory.optimistic for worker in dask_scheduler.workers.values()]


def stored(path, shape, dtype="f4", chunks=(1000, 1000)):
    """Return a matrix of small whole numbers in a Zarr array, and that array's dask array."""
    made = zarr.create_array(str(path), shape=shape, chunks=chunks, dtype=dtype, compressors=None)
    made[:] = np.random.default_rng(len(str(path))).integers(-9, 9, shape)
    return made, da.from_zarr(made)


@pytest.mark.parametrize(
    ("n", "inner", "chunk", "deep"),
    [
        (13_000, 600, 1000, 600),
        pytest.param(2000, 42_000, 250, 2100, marks=pytest.mark.thorough),
    ],
)
def test_matrices_larger_than_the_clusters_memory_multiply(tmp_path, n, inner, chunk, deep):
    limit = 320_000_000
    left, a = stored(tmp_path / "a", (n, inner), chunks=(chunk, deep))
    right, b = stored(tmp_path / "bb", (inner, n), chunks=(deep, chunk))
    out = zarr.create_array(
        str(tmp_path / "c"), shape=(n, n), chunks=(chunk, chunk), dtype="f4", compressors=None
    )
    assert max(a.nbytes + b.nbytes, out.nbytes) > 2 * limit
    with processes(limit, limit) as client:
        pids = client.run(os.getpid)
        c = fpmdask.Balancer(client).matmul(a, b, out=out)
        assert c.shape == (n, n)
        assert client.run(os.getpid) == pids  # none was started again
        assert max(client.run(peak).values()) < 0.95 * limit
    whole = right[:]
    for row in range(0, n, 1000):
        np.testing.assert_array_equal(out[row : row + 1000], left[row : row + 1000] @ whole)


def test_shares_are_what_unequal_memory_has_room_for(tmp_path):
    n, limit = 6000, 300_000_000
    with processes(limit, "4 GB") as client:
        where = [a for a, w in registered(client).items() if w["name"] == "large"]
        a = client.persist(da.ones((n, 600), chunks=600), workers=where)
        b = client.persist(da.ones((600, n), chunks=600), workers=where)
        wait([a, b])
        while min(client.run_on_scheduler(counted)) < 50_000_000:
            time.sleep(0.1)  # until what the processes themselves take is known
        balancer = fpmdask.Balancer(client)
        c = balancer.matmul(a, b)
        bytes_of = {share["worker"]: share["nbytes"] for share in balancer.report.shares}
        assert sum(bytes_of.values()) == c.nbytes
        assert 0 < bytes_of["small"] < 0.4 * c.nbytes
        (most,) = [most for at, most in client.run(peak).items() if at not in where]
        assert most < 0.95 * limit
        assert (c[::50, ::50].compute() == 600).all()


def test_a_disk_that_fills_is_said_and_loses_nothing(tmp_path, small_disk, monkeypatch):
    monkeypatch.setattr(tiles, "free_nbytes", lambda workers: 90e6)  # two tiles; one finds room
    n = 2000
    left, a = stored(tmp_path / "a", (n, 300), "f8", (500, 300))
    right, b = stored(tmp_path / "bb", (300, n), "f8", (300, 500))
    expected = left[:] @ right[:]
    out = zarr.create_array(
        str(small_disk / "c"), shape=(n, n), chunks=(500, 500), dtype="f8", compressors=None
    )
    with processes("1 GB", "1 GB") as client:
        balancer = fpmdask.Balancer(client)
        with pytest.raises(OSError, match=r"(small|large) cannot write to out .* No space left"):
            balancer.matmul(a, b, out=out)
        until = time.monotonic() + 30
        while client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.tasks]):
            assert time.monotonic() < until, "tasks are left"
            time.sleep(0.1)
        (tile,) = zarr.open_array(out.store).attrs["fpmdask.matmul"]["done"]
        kept = {path: path.stat().st_mtime_ns for path in (small_disk / "c").rglob("c/*/*")}
        subprocess.run(["mount", "-o", "remount,size=60m", str(small_disk)], check=True)
        balancer.matmul(a, b, out=out)
    written = {
        path
        for path, when in kept.items()
        if int(path.name) * 500 < tile[3] and path.stat().st_mtime_ns != when
    }
    assert kept
    assert not written
    np.testing.assert_array_equal(out[:], expected)


def test_a_full_disk_for_spills_stops_no_product(small_disk):
    n, inner = 3000, 7000
    settings = {f"distributed.worker.memory.{at}": False for at in ("spill", "pause", "terminate")}
    with (
        dask.config.set(settings),
        processes("500 MB", "4 GB", local_directory=str(small_disk)) as client,
    ):
        [where] = [a for a, w in registered(client).items() if w["name"] == "small"]
        random = da.random.default_rng(3)
        a, b = (random.random(shape, chunks=500) for shape in ((n, inner), (inner, n)))
        expected = (a[::250] @ b).compute(scheduler="threads")
        a, b = client.persist([a, b], workers=where)
        wait([a, b])  # 336 MB: beyond 300 MB they would go to the disk
        assert shutil.disk_usage(small_disk).free < 2_000_000, "one more chunk would fit"
        balancer = fpmdask.Balancer(client)
        c = balancer.matmul(a, b)
        np.testing.assert_allclose(c[::250].compute(), expected)
        del a, b, c
        until = time.monotonic() + 30
        while client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.tasks]):
            assert time.monotonic() < until, "tasks are left"
            time.sleep(0.1)
