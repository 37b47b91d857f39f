"""Products written to Zarr: larger than the memory, resumable, refused at once where bad."""

import asyncio
import sys

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Worker
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul.client import stored
from fpmdask.apps.matmul.client.checkpoint import MARK, Checkpoint, joined, missing
from fpmdask.apps.matmul.coordinator import distribute
from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.errors import CoordinatorError, PartitionError
from tests.eventually import nothing_left
from tests.tuned import SHORT_ROUNDS

pytestmark = pytest.mark.usefixtures("short_rounds")
CONFIG = {"distributed.scheduler.active-memory-manager.start": False, **SHORT_ROUNDS}


def cluster(**options):
    nthreads = [("127.0.0.1", 1)] * 2
    settings = {"client": True, "nthreads": nthreads, "config": CONFIG, "timeout": 60}
    # Zarr keeps threads of its own
    return gen_cluster(**settings, clean_kwargs={"threads": False}, **options)


@pytest.fixture
def small_memory(monkeypatch):
    """Memory for tiles of a few units only."""
    monkeypatch.setattr(stored, "free_nbytes", lambda workers: 2 * 60_000.0)


def on_disk(path, values, chunks):
    made = zarr.create_array(str(path), shape=values.shape, chunks=chunks, dtype=values.dtype)
    made[:] = values
    return made


def matrices(tmp_path):
    random = np.random.default_rng(0)
    a, b = random.integers(-9, 9, (50, 30)) * 1.0, random.integers(-9, 9, (30, 40)) * 1.0
    lazy = [da.from_zarr(on_disk(tmp_path / name, x, (16, 16))) for name, x in (("a", a), ("b", b))]
    return lazy[0], lazy[1], a @ b


def on_store(array):
    """What others see of an array: its attributes, too."""
    return zarr.open_array(array.store, path=array.path)


@pytest.mark.parametrize("chunks", [(16, 16), (7, 40), (50, 40), (5, 1)])
@cluster()
async def test_the_stored_product_equals_numpy(c, s, *workers, tmp_path, small_memory, chunks):
    a, b, expected = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=chunks, dtype="f8")
    balancer = await fpmdask.Balancer(c)
    if chunks == (50, 40):
        with pytest.raises(PartitionError, match=r"out writes as one.*smaller chunks"):
            await balancer.matmul(a, b, out=out)
        return
    result = await balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], expected)
    np.testing.assert_array_equal(await c.compute(result), expected)
    assert MARK not in on_store(out).attrs
    del result
    await nothing_left(s)


@cluster()
async def test_the_report_of_sums_over_k_says_who_made_them(c, s, *workers, tmp_path):
    a, b, expected = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(16, 16), dtype="f8")
    balancer = await fpmdask.Balancer(c)
    await balancer.matmul(a, b, out=out, layout="inner")
    np.testing.assert_array_equal(out[:], expected)
    report = balancer.report
    assert report.layout["name"] == "inner"
    assert sum(report) == 30 == sum(share["units"] for share in report.shares)


@cluster()
async def test_named_workers_that_start_again_write_on(
    c, s, *workers, tmp_path, small_memory, monkeypatch
):
    a, b, expected = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    balancer = await fpmdask.Balancer(c, workers=["0"])
    write, started = stored._write, []

    async def restarting(*args):
        if not started:
            await workers[0].close()
            started.append(await Worker(s.address, nthreads=1, name="0"))
        await write(*args)

    monkeypatch.setattr(stored, "_write", restarting)
    await asyncio.wait_for(balancer.matmul(a, b, out=out), 30)
    np.testing.assert_array_equal(out[:], expected)
    await started[0].close()


@cluster()
async def test_shards_are_written_whole(c, s, *workers, tmp_path, small_memory):
    a, b, expected = matrices(tmp_path)
    out = zarr.create_array(
        str(tmp_path / "c"), shape=(50, 40), chunks=(5, 5), shards=(20, 10), dtype="f8"
    )
    balancer = await fpmdask.Balancer(c)
    await balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], expected)


@cluster()
async def test_the_same_call_goes_on_after_a_failure(
    c, s, *workers, tmp_path, small_memory, monkeypatch
):
    """A disk that is full at the third tile: two are kept, and nothing is left on the cluster."""
    a, b, expected = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    balancer = await fpmdask.Balancer(c)
    write, written = stored._write, []

    async def full(client, tile, target, row, column):
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append((row, column))
        await write(client, tile, target, row, column)

    monkeypatch.setattr(stored, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        await balancer.matmul(a, b, out=out)
    await nothing_left(s)
    assert written == [(0, 0), (0, 10)]
    assert on_store(out).attrs[MARK]["done"] == [[0, 50, 0, 20]]

    async def counted(client, tile, target, row, column):
        assert (row, column) not in written
        written.append((row, column))
        await write(client, tile, target, row, column)

    monkeypatch.setattr(stored, "_write", counted)
    await balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], expected)
    assert len(set(written)) == len(written) > 2


# What another process runs: it stops before it writes its fourth tile.
CLIENT = """
import sys, time
import dask.array as da, zarr
from distributed import Client
import fpmdask
from fpmdask.apps.matmul.client import stored

address, folder = sys.argv[1:]
write, count = stored._write, 0

async def stopping(*args):
    global count
    count += 1
    if count == 4:
        print("three are written", flush=True)
        time.sleep(600)
    await write(*args)

stored._write, stored.free_nbytes = stopping, lambda workers: 2 * 60_000.0
with Client(address) as client:
    a, b = (da.from_zarr(zarr.open_array(f"{folder}/{name}")) for name in "ab")
    fpmdask.Balancer(client).matmul(a, b, out=zarr.open_array(f"{folder}/c"))
"""


@cluster()
async def test_another_client_goes_on_where_one_was_killed(
    c, s, *workers, tmp_path, small_memory, monkeypatch
):
    _, _, expected = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, s.address, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert await killed.stdout.readline() == b"three are written\n"
    finally:
        killed.kill()
        await killed.wait()
    done = on_store(out).attrs[MARK]["done"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c" / "c").rglob("*")}
    files = {path for path in before if path.is_file()}
    assert sum((r1 - r0) * (c1 - c0) for r0, r1, c0, c1 in done) == 100 * len(files) > 0

    a, b = (da.from_zarr(zarr.open_array(str(tmp_path / name))) for name in "ab")
    balancer = await fpmdask.Balancer(c)
    await balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], expected)
    assert {path: path.stat().st_mtime_ns for path in files} == {p: before[p] for p in files}
    assert MARK not in on_store(out).attrs
    del a, b
    await nothing_left(s)


@cluster()
async def test_a_write_that_fails_on_a_worker_leaves_nothing(c, s, *workers, tmp_path):
    a, b, _ = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    (tmp_path / "c" / "c").write_text("where the folder of chunks would be")
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(OSError, match=r"worker . cannot write to out .*c/c.*mend this"):
        await balancer.matmul(a, b, out=out)
    await nothing_left(s)


@cluster()
async def test_tiles_of_another_product_do_not_count(c, s, *workers, tmp_path, small_memory):
    a, b, expected = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    earlier = Checkpoint(out, "earlier")
    earlier.begin(["another"])
    earlier.add((0, 50, 0, 20))
    balancer = await fpmdask.Balancer(c)
    await balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], expected)


@cluster()
async def test_tiles_that_another_product_began_to_overwrite_do_not_count(
    c, s, *workers, tmp_path, small_memory, monkeypatch
):
    a, b, expected = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    balancer = await fpmdask.Balancer(c)
    write, written = stored._write, []

    async def torn(client, tile, target, row, column):
        await write(client, tile, target, row, column)
        written.append((row, column))
        if len(written) > 1:  # one tile of A·B is done, none of -A·B
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(stored, "_write", torn)
    for left in (a, -a):
        with pytest.raises(OSError, match="No space left"):
            await balancer.matmul(left, b, out=out)
    assert written[0] == written[2]
    monkeypatch.setattr(stored, "_write", write)
    await balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], expected)


@cluster()
async def test_an_out_that_cannot_be_is_refused_at_once(c, s, *workers, tmp_path):
    a, b, _ = matrices(tmp_path)
    path = str(tmp_path / "c")
    zarr.create_array(path, shape=(50, 40), chunks=(10, 10), dtype="f8")
    store = zarr.storage.ZipStore(str(tmp_path / "c.zip"), mode="w")
    zipped = zarr.create_array(store, shape=(50, 40), chunks=(10, 10), dtype="f8")
    balancer = await fpmdask.Balancer(c)
    for out, message in [
        (np.zeros((50, 40)), "out is a ndarray; give a zarr.Array"),
        (path, "out is a str; give a zarr.Array"),
        (zarr.zeros((40, 50), dtype="f8"), r"shape \(40, 50\); C has \(50, 40\)"),
        (zarr.zeros((50, 40), dtype="f4"), "dtype float32; C has float64"),
        (zarr.open_array(path, mode="r"), "read-only"),
        (zarr.zeros((50, 40), dtype="f8"), "in a MemoryStore.*give an array in a store"),
        (zipped, "in a ZipStore.*give an array in a store"),
        (zarr.open_array(path)._async_array, "out is a AsyncArray; give a zarr.Array"),
    ]:
        with pytest.raises(PartitionError, match=message):
            balancer.matmul(a, b, out=out)
    out = zarr.open_array(path, mode="r+")
    with pytest.raises(PartitionError, match=r"shape \(50, 40\); C has \(50,\)"):
        balancer.matmul(a, b[:, 0], out=out)
    with pytest.raises(PartitionError, match="no distribution of whole rows"):
        balancer.matmul(a, b, out=out, distribution={"0": 50})
    assert not s.plugins["fpmdask"].runs


@cluster()
async def test_only_a_tile_has_to_fit(c, s, *workers, tmp_path, small_memory, monkeypatch):
    a, b, expected = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    monkeypatch.setattr(distribute, "free_nbytes", lambda context, address: 30_000.0)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(PartitionError, match="50 rows of C do not fit"):
        await balancer.matmul(a, b)
    await balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], expected)


@cluster()
async def test_a_worker_that_is_not_there_is_named(c, s, *workers, tmp_path):
    a, b, _ = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    balancer = await fpmdask.Balancer(c, workers=["nobody"])
    with pytest.raises(CoordinatorError, match="nobody"):
        await balancer.matmul(a, b, out=out)
    with pytest.raises(CoordinatorError, match="no worker"):
        await balancer.matmul(a[:, :0], b[:0], out=out)


def test_columns_are_halved_before_rows():
    spec = MatmulSpec((64, 8, 64), np.dtype("f8"), ((64,), (8,)), ((8,), (64,)), "a", "b")
    shapes = [stored.tile_shape(spec, (10, 20), nbytes, 1) for nbytes in (1e6, 7e4, 4e4, 15e3)]
    assert shapes == [(64, 64), (64, 40), (64, 20), (20, 20)]
    with pytest.raises(PartitionError, match="10 × 20 elements"):
        stored.tile_shape(spec, (10, 20), 1000, 1)


def test_a_tile_is_minutes_of_work_at_most():
    long = 1 << 18
    spec = MatmulSpec((long,) * 3, np.dtype("f8"), ((long,),) * 2, ((long,),) * 2, "a", "b")
    rows, columns = stored.tile_shape(spec, (1024, 1024), float("inf"), 4)
    assert 2.0 * rows * long * columns <= 4 * stored.MOST_OPERATIONS < 4.0 * rows * long * columns


def full_after(tiles, monkeypatch):
    """A disk that is full once so many tiles are written; what undoes that."""
    write, written = stored._write, []

    async def full(client, tile, target, row, column):
        if len(written) == tiles:
            raise OSError(28, "No space left on device")
        written.append((row, column))
        await write(client, tile, target, row, column)

    monkeypatch.setattr(stored, "_write", full)
    return lambda: monkeypatch.setattr(stored, "_write", write)


@cluster()
async def test_tiles_that_another_handle_has_written_over_do_not_count(
    c, s, *workers, tmp_path, small_memory, monkeypatch
):
    a, b, expected = matrices(tmp_path)
    path = str(tmp_path / "c")
    one = zarr.create_array(path, shape=(50, 40), chunks=(10, 10), dtype="f8")
    two = zarr.open_array(path, mode="r+")
    balancer = await fpmdask.Balancer(c)
    emptied = full_after(2, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        await balancer.matmul(a, b, out=one)
    three = zarr.open_array(path, mode="r+")  # it remembers the tiles that are done
    emptied()
    await balancer.matmul(-a, b, out=two)
    np.testing.assert_array_equal(on_store(one)[:], -expected)
    await balancer.matmul(a, b, out=one)
    np.testing.assert_array_equal(on_store(one)[:], expected)
    await balancer.matmul(-a, b, out=three)
    three.attrs["note"] = "kept"
    await balancer.matmul(a, b, out=one)
    np.testing.assert_array_equal(on_store(one)[:], expected)
    assert dict(on_store(one).attrs) == {"note": "kept"}


@cluster()
async def test_less_memory_makes_smaller_tiles_of_what_is_missing(
    c, s, *workers, tmp_path, small_memory, monkeypatch
):
    a, b, expected = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    balancer = await fpmdask.Balancer(c)
    emptied = full_after(2, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        await balancer.matmul(a, b, out=out)
    emptied()
    write, written = stored._write, []

    async def counted(client, tile, target, row, column):
        written.append((row, row + tile.shape[0], column, column + tile.shape[1]))
        await write(client, tile, target, row, column)

    monkeypatch.setattr(stored, "_write", counted)
    monkeypatch.setattr(stored, "free_nbytes", lambda workers: 60_000.0)
    monkeypatch.setattr(distribute, "free_nbytes", lambda context, address: 20_000.0)
    await balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[:], expected)
    assert written == [
        (row, min(50, row + 20), column, column + 10) for row in (0, 20, 40) for column in (20, 30)
    ]


@cluster()
async def test_a_tile_that_does_not_fit_asks_for_what_helps(
    c, s, *workers, tmp_path, small_memory, monkeypatch
):
    a, b, _ = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    monkeypatch.setattr(distribute, "free_nbytes", lambda context, address: 9_000.0)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(PartitionError, match=r"do not fit.*out=, a Zarr array of small chunks$"):
        await balancer.matmul(a, b, out=out)
    assert MARK not in on_store(out).attrs


@cluster()
async def test_a_refusal_keeps_what_is_written(c, s, *workers, tmp_path, small_memory, monkeypatch):
    a, b, _ = matrices(tmp_path)
    out = zarr.create_array(str(tmp_path / "c"), shape=(50, 40), chunks=(10, 10), dtype="f8")
    balancer = await fpmdask.Balancer(c)
    full_after(2, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        await balancer.matmul(a, b, out=out)
    kept = on_store(out).attrs[MARK]
    assert "run" not in kept

    async def refuse(client, target, workers, answer_seconds):
        assert on_store(out).attrs[MARK] == {**kept, "run": target.run}
        raise PartitionError("elsewhere")

    monkeypatch.setattr(stored, "check_reached", refuse)
    with pytest.raises(PartitionError, match="elsewhere"):
        await balancer.matmul(-a, b, out=out)
    assert on_store(out).attrs[MARK] == kept


@pytest.mark.parametrize("sides", ["matrix vector", "vector matrix", "vector vector"])
@cluster()
async def test_vectors_lose_their_axis_as_in_numpy(c, s, *workers, tmp_path, small_memory, sides):
    a, b, expected = matrices(tmp_path)
    left, right = sides.split()
    row, column = (
        (3 if left == "vector" else slice(None)),
        (5 if right == "vector" else slice(None)),
    )
    expected = expected[row, column]
    out = zarr.create_array(
        str(tmp_path / "c"), shape=expected.shape, chunks=(8,) * expected.ndim, dtype="f8"
    )
    balancer = await fpmdask.Balancer(c)
    result = await balancer.matmul(a[row], b[:, column], out=out)
    np.testing.assert_array_equal(out[...], expected)
    np.testing.assert_array_equal(await c.compute(result), expected)


@pytest.mark.parametrize("shape", [(50, 0, 40), (0, 30, 40), (50, 30, 0)])
@cluster()
async def test_a_side_of_0_makes_zeros_or_nothing(c, s, *workers, tmp_path, shape):
    height, inner, width = shape
    a, b = da.ones((height, inner), chunks=16), np.ones((inner, width))
    out = on_disk(tmp_path / "c", np.full((height, width), 7.0), (16, 16))
    balancer = await fpmdask.Balancer(c)
    result = await balancer.matmul(a, b, out=out)
    np.testing.assert_array_equal(out[...], np.zeros((height, width)))
    np.testing.assert_array_equal(await c.compute(result), np.zeros((height, width)))
    if height and width:
        column = on_disk(tmp_path / "v", np.full(height, 7.0), (16,))
        await balancer.matmul(a, b[:, 0], out=column)
        np.testing.assert_array_equal(column[...], np.zeros(height))
    with pytest.raises(PartitionError, match=r"C has \(1, "):
        balancer.matmul(np.ones((1, inner)), b, out=out)


def test_what_is_missing_and_what_is_done_cover_c_once():
    random = np.random.default_rng(0)
    for _ in range(50):
        done, covered = [], np.zeros((9, 7), bool)
        while not covered.all():
            row0, row1, column0, column1 = part = missing((0, 9, 0, 7), done)[0]
            row1 = int(random.integers(row0, row1)) + 1
            column1 = int(random.integers(column0, column1)) + 1
            part = (row0, row1, column0, column1)
            assert not covered[row0:row1, column0:column1].any()
            covered[row0:row1, column0:column1] = True
            done = joined(done, part)
            assert sum((r1 - r0) * (c1 - c0) for r0, r1, c0, c1 in done) == covered.sum()
            left = covered.copy()
            for r0, r1, c0, c1 in missing((0, 9, 0, 7), done):
                assert not left[r0:r1, c0:c1].any()
                left[r0:r1, c0:c1] = True
            assert left.all()
