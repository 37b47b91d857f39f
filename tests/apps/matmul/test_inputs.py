"""Lazy inputs: every chunk is read once, by a worker that needs it."""

import asyncio
import math
import time

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import get_worker, wait
from distributed.utils_test import gen_cluster
from hypothesis import given
from hypothesis import strategies as st

import fpmdask
from fpmdask.apps.matmul.client.inputs import is_lazy
from fpmdask.apps.matmul.communication_cost import held_bytes, homes, moved_bytes
from fpmdask.apps.matmul.coordinator import distribute, run
from fpmdask.apps.matmul.place import placed
from fpmdask.apps.matmul.plan import needed
from fpmdask.apps.matmul.spec import MatmulSpec
from fpmdask.apps.matmul.tile import Tile
from fpmdask.apps.matmul.tiling import LAYOUTS
from fpmdask.errors import ChunksLostError, PartitionError
from fpmdask.layout import Rectangle
from fpmdask.partition import proportional
from tests.eventually import nothing_left, until
from tests.tuned import SHORT_ROUNDS

CONFIG = {"distributed.scheduler.active-memory-manager.start": False, **SHORT_ROUNDS}
ROWS = {"0": 60, "1": 40, "2": 20}


def cluster(**options):
    nthreads = [("127.0.0.1", 1)] * 3
    return gen_cluster(client=True, nthreads=nthreads, config=CONFIG, timeout=60, **options)


def read(seed, shape, block_info=None):
    """Task: read a chunk; its worker, which is in this process, knows what to do besides."""
    worker, at = get_worker(), block_info[None]
    worker.hook(at["chunk-location"])
    worker.reads.append((seed, at["chunk-location"]))
    (row0, row1), (column0, column1) = at["array-location"]
    return values_of(seed, shape)[row0:row1, column0:column1]


def values_of(seed, shape):
    return np.random.default_rng(seed).integers(-9, 9, shape).astype("f8")


def source(workers, shape, chunks, seed, hook=lambda block: None):
    """Return a lazy array of whole numbers and the numbers."""
    for worker in workers:
        worker.hook, worker.reads = hook, []
    chunks = da.core.normalize_chunks(chunks, shape)
    lazy = da.map_blocks(read, seed, shape, chunks=chunks, dtype="f8", meta=np.empty((0, 0)))
    return lazy, values_of(seed, shape)


def held_back(only=None):
    """Return an event and a list, and a hook that sets the one and waits for the other to fill.

    At every block, or at `only` one.
    """
    begun, release = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def hook(block):
        if only in (None, block):
            loop.call_soon_threadsafe(begun.set)
            while not release:
                time.sleep(0.005)

    return begun, release, hook


def reads_of(workers, seed):
    return [(at, str(w.name)) for w in workers for of, at in w.reads if of == seed]


@pytest.mark.parametrize("layout", ["rows", "columns", "nrrp"])
@cluster()
async def test_every_chunk_is_read_once_by_a_worker_that_needs_it(c, s, *workers, layout):
    balancer = await fpmdask.Balancer(c)

    def slow(block):  # long enough for Dask to steal from who has more to read
        time.sleep(0.05)

    a, values_a = source(workers, (120, 80), (10, 20), 1, slow)
    b, values_b = source(workers, (80, 90), (40, 15), 2, slow)
    result = await balancer.matmul(a, b, layout=layout, distribution=ROWS)
    report = balancer.report
    reads_a, reads_b = (reads_of(workers, seed) for seed in (1, 2))
    tiles = {share["worker"]: Tile.of(share["tile"]) for share in report.shares}
    assert sorted(at for at, _ in reads_a) == [(i, j) for i in range(12) for j in range(4)]
    assert sorted(at for at, _ in reads_b) == [(i, j) for i in range(2) for j in range(6)]
    for (i, _), name in reads_a:
        assert tiles[name].row0 < 10 * (i + 1)
        assert tiles[name].row1 > 10 * i
    for (_, j), name in reads_b:
        assert tiles[name].column0 < 15 * (j + 1)
        assert tiles[name].column1 > 15 * j
    own = {("a", *at): name for at, name in reads_a} | {("b", *at): name for at, name in reads_b}
    spec = MatmulSpec((120, 80, 90), np.dtype("f8"), a.chunks, b.chunks, "a", "b")
    for share in report.shares:  # what it has not read itself comes once, and only what it needs
        wanted = needed(spec, tiles[share["worker"]])
        others = sum(n for key, n in wanted.items() if own[key] != share["worker"])
        assert share["nbytes_received"] == others
    assert report.phases["read"] > 0
    np.testing.assert_array_equal(await c.compute(result), values_a @ values_b)


@cluster()
async def test_one_lazy_input_and_the_same_array_twice(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, values = source(workers, (60, 60), (20, 20), 1)
    held = await c.persist(da.from_array(values, chunks=30))
    for left, right in ((a, held), (held, a), (a, values), (a, a), (a, a.T), (a.T, a + 1)):
        result = await balancer.matmul(left, right)
        numpy = [await c.compute(x) if isinstance(x, da.Array) else x for x in (left, right)]
        np.testing.assert_array_equal(await c.compute(result), numpy[0] @ numpy[1])


@cluster()
async def test_only_what_may_be_read_anywhere_is_read_late(c, s, *workers):
    free, _ = source(workers, (60, 60), (20, 20), 1)
    assert is_lazy(free)
    assert is_lazy(free.T + 1)
    assert not is_lazy(c.persist(free))
    assert not is_lazy(c.persist(free).T)
    assert not is_lazy(np.ones((2, 2)))
    with dask.annotate(workers=[workers[1].address]):
        assert not is_lazy(free)
        bound = da.ones((60, 60), chunks=20)
    assert not is_lazy(bound)
    future = c.submit(np.ones, (20, 20))
    assert not is_lazy(da.from_delayed(future, (20, 20), dtype=float))
    balancer = await fpmdask.Balancer(c)
    result = await balancer.matmul(bound, free)
    np.testing.assert_array_equal(
        await c.compute(result), np.ones((60, 60)) @ await c.compute(free)
    )


@cluster()
async def test_what_is_in_memory_already_is_not_read_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, values = source(workers, (60, 60), (20, 20), 1)
    held = await c.persist(a)
    before = len(reads_of(workers, 1))
    result = await balancer.matmul(a, a)  # the same keys, and no futures in the graph
    np.testing.assert_array_equal(await c.compute(result), values @ values)
    assert len(reads_of(workers, 1)) == before == 9
    del held


@cluster()
async def test_a_chunk_that_cannot_be_read_raises_its_own_exception(c, s, *workers):
    balancer = await fpmdask.Balancer(c)

    def broken(block):
        if block == (1, 1):
            raise OSError("no such file: chunk 1.1")

    a, _ = source(workers, (60, 60), (20, 20), 1, broken)
    with pytest.raises(OSError, match=r"chunk 1\.1"):
        await balancer.matmul(a, a.T)
    a, values = source(workers, (60, 60), (20, 20), 1)
    result = await balancer.matmul(a, a.T)
    np.testing.assert_array_equal(await c.compute(result), values @ values.T)
    del a, result
    await nothing_left(s)


@cluster()
async def test_a_worker_that_leaves_while_inputs_are_read_is_replaced(c, s, *workers):
    begun, release, slow = held_back((0, 0))
    balancer = await fpmdask.Balancer(c)
    a, values = source(workers, (120, 80), (10, 20), 1, slow)
    running = asyncio.ensure_future(balancer.matmul(a, a.T, layout="rows", distribution=ROWS))
    await begun.wait()
    closing = asyncio.ensure_future(workers[2].close(timeout=1))
    await asyncio.sleep(0.1)
    release.append(True)
    await closing
    result = await running
    np.testing.assert_array_equal(await c.compute(result), values @ values.T)


@cluster()
async def test_a_run_that_is_given_up_while_inputs_are_read_leaves_nothing(c, s, *workers):
    begun, release, slow = held_back()
    balancer = await fpmdask.Balancer(c)
    a, _ = source(workers, (40, 40), (20, 20), 1, slow)
    running = asyncio.ensure_future(balancer.matmul(a, a.T))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    release.append(True)
    del a, running
    await nothing_left(s)
    await until(lambda: not s.plugins["fpmdask"].runs)


@cluster()
async def test_a_worker_that_leaves_before_the_reading_reads_nothing(c, s, *workers, monkeypatch):
    original = run.wait_for_chunks

    async def leaving(*args):
        await workers[1].close(timeout=1)
        return await original(*args)

    balancer = await fpmdask.Balancer(c)
    a, values = source(workers, (120, 80), (10, 20), 1)
    b = c.persist(da.ones((80, 40), chunks=20))
    await wait(b)
    monkeypatch.setattr(run, "wait_for_chunks", leaving)
    result = await balancer.matmul(a, b, distribution=ROWS)
    assert "1" not in {name for _, name in reads_of(workers, 1)}
    assert list(balancer.report.left_out) == ["1"]
    np.testing.assert_array_equal(await c.compute(result), values @ np.ones((80, 40)))


@cluster()
async def test_chunks_of_c_that_are_lost_later_are_made_again_from_what_was_read(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, values = source(workers, (120, 80), (10, 20), 1)
    result = await balancer.matmul(a, a.T, distribution=ROWS)
    await workers[0].close()
    np.testing.assert_array_equal(await c.compute(result), values @ values.T)


@cluster()
async def test_scattered_chunks_that_are_lost_while_others_are_read_end_the_run(c, s, *workers):
    begun, release, slow = held_back()
    balancer = await fpmdask.Balancer(c)
    b, _ = source(workers, (40, 60), (40, 20), 1, slow)
    running = asyncio.ensure_future(balancer.matmul(np.ones((120, 40)), b, distribution=ROWS))
    await begun.wait()
    closing = asyncio.ensure_future(workers[0].close(timeout=1))
    release.append(True)
    await closing
    gone = r"1 input chunks (were only on workers that are|are) gone"
    with pytest.raises(ChunksLostError, match=gone):
        await running


@pytest.mark.parametrize("count", [1, 3])
@cluster()
async def test_what_is_on_its_way_to_a_worker_that_is_lost_goes_to_the_others(
    c, s, *workers, count
):
    """`count` of three workers break the connection once they have been sent to."""
    balancer = await fpmdask.Balancer(c)
    values = np.random.default_rng(0).random((120, 40))
    lost = []

    async def lose(comm, **data):
        lost.append(comm)
        comm.abort()

    for worker in workers[:count]:
        worker.handlers["update_data"] = lose
    if count == len(workers):
        with pytest.raises(ChunksLostError, match="all of them were lost meanwhile: tcp://"):
            await balancer.matmul(values, values.T)
    else:
        result = await balancer.matmul(values, values.T)
        np.testing.assert_allclose(await c.compute(result), values @ values.T, rtol=1e-12)
    assert len(lost) >= count


def leave_free(monkeypatch, megabytes):
    free = dict(zip(ROWS, megabytes, strict=True))
    monkeypatch.setattr(
        distribute, "free_nbytes", lambda context, address: 1e6 * free[context.name(address)]
    )


@pytest.mark.parametrize(
    ("side", "megabytes", "message"),
    [(300, 14, "1200 rows of C do not fit"), (1200, 18, "are to be read do not fit: one has 1")],
)
@cluster()
async def test_what_does_not_fit_with_its_inputs_is_refused_before_reading(
    c, s, *workers, side, megabytes, message, monkeypatch
):
    """There is room for C and the panels, but not for as much of A and B, or for a whole one."""
    leave_free(monkeypatch, [megabytes] * 3)
    balancer = await fpmdask.Balancer(c)
    a, _ = source(workers, (1200, 1200), (side, side), 1)
    with pytest.raises(PartitionError, match=message):
        await balancer.matmul(a, a.T, distribution=dict.fromkeys(ROWS, 400))
    assert reads_of(workers, 1) == []


@cluster()
async def test_who_has_room_reads_what_others_have_none_for(c, s, *workers, monkeypatch):
    """Beside C and its panels, two workers have room for two of eight chunks each."""
    leave_free(monkeypatch, [15, 15, 100])
    balancer = await fpmdask.Balancer(c)
    a, values = source(workers, (1200, 1200), (600, 600), 1)
    b, _ = source(workers, (1200, 1200), (600, 600), 1)
    result = await balancer.matmul(a, b + 1, distribution=dict.fromkeys(ROWS, 400))
    np.testing.assert_array_equal(await c.compute(result), values @ (values + 1))
    names = [name for _, name in reads_of(workers, 1)]
    assert max(names.count("0"), names.count("1")) <= 2


@cluster()
async def test_an_array_by_itself_is_read_once(c, s, *workers, monkeypatch):
    """There is no room to read it twice."""
    leave_free(monkeypatch, [15, 18.5, 15])
    balancer = await fpmdask.Balancer(c)
    a, values = source(workers, (1200, 1200), (1200, 1200), 1)
    result = await balancer.matmul(a, a, distribution=dict.fromkeys(ROWS, 400))
    assert reads_of(workers, 1) == [((0, 0), "1")]
    np.testing.assert_array_equal(await c.compute(result), values @ values)


@given(st.data())
def test_homes_need_what_they_read_and_reading_there_moves_less(data):
    sizes = st.lists(st.integers(1, 30), min_size=1, max_size=6).map(tuple)
    rows, inner, columns = data.draw(sizes), data.draw(sizes), data.draw(sizes)
    shape = sum(rows), sum(inner), sum(columns)
    spec = MatmulSpec(shape, np.dtype("f8"), (rows, inner), (inner, columns), "a", "b")
    shares = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any))
    names = [f"w{n}" for n in range(len(shares))]
    rows_of = proportional(shape[0], [max(n, 1e-9) for n in shares])
    layout = data.draw(st.sampled_from(LAYOUTS[1:]))
    tiles = placed(spec, layout, dict(zip(names, map(int, rows_of), strict=True))).tiles
    found = homes(spec, tiles, "ab")
    assert set(found) == set(spec.keys)
    busy = [name for name, own in tiles.items() if own]
    assert set(found.values()) <= set(busy)
    parts = list(tiles.values())
    there = held_bytes(spec, names, {key: [home] for key, home in found.items()})
    received, _ = moved_bytes(spec, parts, there)
    elsewhere, _ = moved_bytes(spec, parts, held_bytes(spec, names, {}))
    assert (received <= elsewhere).all()
    if len(busy) == 1:
        assert received.sum() == 0


@pytest.mark.parametrize("megabytes", [[4, 4, 4], [4, 4, math.inf]])
@cluster()
async def test_inputs_that_do_not_fit_are_not_sent(c, s, *workers, megabytes, monkeypatch):
    """NumPy arrays, and dask arrays that are bound to a worker: none of these is read late."""
    leave_free(monkeypatch, megabytes)
    balancer = await fpmdask.Balancer(c)
    a, values = source(workers, (400, 2000), (100, 2000), 1)
    with dask.annotate(workers=[workers[1].address]):
        bound = a + 0
    options = {"distribution": {"0": 140, "1": 140, "2": 120}}
    for x, y in ((values, values.T), (bound, values.T)):
        if math.isinf(megabytes[2]):
            result = await balancer.matmul(x, y, **options)
            np.testing.assert_array_equal(await c.compute(result), values @ values.T)
            continue
        says = "12800000 bytes of A and B are .* C takes 1280000, 12000000 bytes are free"
        with pytest.raises(PartitionError, match=says):
            await balancer.matmul(x, y, **options)
        assert not s.tasks
        assert reads_of(workers, 1) == []


@cluster()
async def test_a_layout_that_does_not_fit_is_refused_before_anything_is_sent(
    c, s, *workers, monkeypatch
):
    """As rows its shares would fit: the panels of tall parts take more."""
    leave_free(monkeypatch, [3, 9, 9])
    balancer = await fpmdask.Balancer(c)
    a, b = np.ones((4000, 200)), np.ones((200, 30))
    zones = {name: [Rectangle(0, n, 1, 1)] for n, name in enumerate("012")}
    says = r"the part of 0 does not fit.* 3000000 are free; .* or give it less of C"
    with pytest.raises(PartitionError, match=says):
        await balancer.matmul(a, b, layout=zones)
    assert not s.tasks
    assert balancer.report is None


@cluster()
async def test_what_is_in_memory_is_not_counted_again(c, s, *workers, monkeypatch):
    balancer = await fpmdask.Balancer(c)
    a, values = source(workers, (400, 2000), (100, 2000), 1)
    held = c.persist(a)
    await wait(held)
    leave_free(monkeypatch, [4, 4, 4])
    for x, y in ((held, held.T), (a, held.T)):
        result = await balancer.matmul(x, y, distribution={"0": 140, "1": 140, "2": 120})
        np.testing.assert_array_equal(await c.compute(result), values @ values.T)


@cluster()
async def test_numpy_inputs_go_to_the_named_workers_only(c, s, *workers):
    balancer = await fpmdask.Balancer(c, workers=["0", "2"])
    held = []
    balancer.progress = lambda event: held.append([len(worker.data) for worker in workers])
    a, b = values_of(1, (40, 30)), values_of(2, (30, 50))
    result = await balancer.matmul(a, b)
    np.testing.assert_array_equal(await c.compute(result), a @ b)
    assert all(second == 0 for _, second, _ in held)
    assert any(min(first, third) > 0 for first, _, third in held)


@cluster()
async def test_long_rows_of_numpy_inputs_are_cut(c, s, *workers, tuning):
    tuning(matmul={"block_nbytes": 800})
    balancer = await fpmdask.Balancer(c)
    a, b = values_of(1, (2, 250)), values_of(2, (250, 3))
    sent = {}
    balancer.progress = lambda _: [sent.update(worker.data) for worker in workers]
    result = await balancer.matmul(a, b)
    blocks = [x for key, x in sent.items() if str(key[0]).startswith("fpmdask-scattered-")]
    assert (2, 50) in {x.shape for x in blocks}
    assert all(x.nbytes <= 800 for x in blocks)
    np.testing.assert_array_equal(await c.compute(result), a @ b)
