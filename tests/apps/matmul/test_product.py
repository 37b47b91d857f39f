"""`Balancer.matmul` on in-process clusters: right results, right places, nothing left."""

import asyncio
import threading
import time
import weakref
from collections import Counter

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, get_worker, wait
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.security import Security
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul.tile import Tile
from fpmdask.apps.matmul.tiling import LAYOUTS
from fpmdask.apps.matmul.worker import share
from fpmdask.errors import ChunksLostError, PartitionError
from fpmdask.layout import Rectangle, br, kl, nrrp
from tests.eventually import no_data, nothing_left, side_of, until
from tests.tuned import SHORT_ROUNDS

pytestmark = pytest.mark.usefixtures("short_rounds")
CONFIG = {"distributed.scheduler.active-memory-manager.start": False, **SHORT_ROUNDS}


def cluster(**options):
    nthreads = [("127.0.0.1", 1), ("127.0.0.1", 1), ("127.0.0.1", 2)]
    settings = {"client": True, "nthreads": nthreads, "config": CONFIG, "timeout": 60}
    return gen_cluster(**{**settings, **options})


def random(shape, dtype, seed=0):
    values = np.random.default_rng(seed).uniform(-9, 9, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * np.random.default_rng(seed + 1).uniform(-9, 9, shape)
    return values.astype(dtype)


def tolerance(dtype, inner):
    kind = np.dtype(dtype)
    return inner * np.finfo(kind).eps if kind.kind in "fc" else 0


@cluster()
async def test_any_chunks_dtypes_and_shapes_equal_numpy(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    cases = [
        ("f8", (60, 50, 40), ((20, 25, 15), (7, 43)), ((50,), (40,))),
        ("f4", (60, 50, 40), ((60,), (50,)), ((1, 49), (13, 27))),
        ("c16", (31, 17, 23), ((30, 1), (17,)), ((16, 1), (5, 18))),
        ("c8", (12, 70, 9), ((5, 7), (35, 35)), ((70,), (9,))),
        ("i8", (20, 30, 10), ((20,), (10, 20)), ((15, 15), (10,))),
        ("f2", (8, 6, 5), ((8,), (6,)), ((6,), (5,))),
        ("bool", (8, 6, 5), ((4, 4), (6,)), ((6,), (5,))),
        ("f8", (1, 1, 1), ((1,), (1,)), ((1,), (1,))),
        ("f8", (2, 500, 1), ((1, 1), (250, 250)), ((500,), (1,))),
        ("f8", (100, 1, 30), ((33, 33, 34), (1,)), ((1,), (30,))),
    ]
    for dtype, (m, k, n), a_chunks, b_chunks in cases:
        a, b = random((m, k), dtype, 1), random((k, n), dtype, 2)
        result = await balancer.matmul(
            da.from_array(a, chunks=a_chunks), da.from_array(b, chunks=b_chunks), max_rounds=2
        )
        expected = a @ b
        assert result.dtype == expected.dtype
        assert result.shape == expected.shape
        got = await c.compute(result)
        scale = max(1.0, float(np.abs(expected.astype("c16")).max()))
        np.testing.assert_allclose(got, expected, atol=4 * scale * tolerance(dtype, k), rtol=0)


@cluster()
async def test_halves_are_rounded_once_as_in_numpy(c, s, *workers):
    """Sums of whole numbers, exact in single precision, over five panels; halves end at 2048."""
    balancer = await fpmdask.Balancer(c)
    draw = np.random.default_rng(0).integers
    a, b = draw(-20, 21, (60, 600)).astype("f2"), draw(-20, 21, (600, 50)).astype("f2")
    x, y = (c.persist(da.from_array(values, chunks=200)) for values in (a, b))
    expected = a @ b
    assert np.abs(expected).max() > 4096
    result = await balancer.matmul(x, y, max_rounds=1)
    assert result.dtype == np.float16
    assert {task.nbytes for key, task in s.tasks.items() if key[0] == result.name} <= {
        2 * rows * columns for rows in result.chunks[0] for columns in result.chunks[1]
    }
    np.testing.assert_array_equal(await c.compute(result), expected)
    await workers[0].close()  # what it held is made again
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_vectors_multiply_as_in_numpy(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, v, w = random((60, 50), "f8"), random(50, "f8", 1), random(60, "f8", 2)
    lazy = {id(x): da.from_array(x, chunks=17) for x in (a, v, w)}
    for left, right in [(a, v), (w, a), (v, v)]:
        result = await balancer.matmul(lazy[id(left)], lazy[id(right)], max_rounds=1)
        assert result.shape == (left @ right).shape
        np.testing.assert_allclose(await c.compute(result), left @ right)
        again = await balancer.matmul(left, right, max_rounds=1)
        np.testing.assert_allclose(await c.compute(again), left @ right)
        del result, again
    await nothing_left(s)


@cluster()
async def test_mixed_dtypes_and_orders_follow_numpy(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, b = random((30, 20), "f4"), np.asfortranarray(random((20, 10), "f8"))
    result = await balancer.matmul(da.from_array(a, chunks=7).T.T, b, max_rounds=1)
    assert result.dtype == np.float64
    np.testing.assert_allclose(await c.compute(result), a @ b, rtol=1e-12, atol=1e-9)
    transposed = await balancer.matmul(da.from_array(b, chunks=6).T, a.T, max_rounds=1)
    np.testing.assert_allclose(await c.compute(transposed), b.T @ a.T, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@cluster()
async def test_nan_and_inf_propagate_as_in_numpy(c, s, *workers, layout):
    balancer = await fpmdask.Balancer(c)
    a, b = random((12, 9), "f8"), random((9, 8), "f8")
    a[3, 4], b[5, 6] = np.nan, np.inf
    result = await balancer.matmul(a, b, layout=layout, max_rounds=1)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(await c.compute(result), a @ b)


@cluster()
async def test_chunks_lie_where_the_report_says_and_go_with_the_array(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = da.random.random((90, 60), chunks=(30, 20))
    result = await balancer.matmul(x, x.T, layout="rows", max_rounds=1)
    report = balancer.report
    assert result.chunks == (tuple(part["units"] for part in report.shares), (90,))
    names = {worker.address: str(worker.name) for worker in workers}
    for key in [key for row in result.__dask_keys__() for key in row]:
        task = s.tasks[key]
        while task.run_spec is None:  # the graph is still on its way to the scheduler
            await asyncio.sleep(0.01)
        assert [names[ws.address] for ws in task.who_has] == [report.shares[key[1]]["worker"]]
        # unpinned, and with a task that makes it again
        assert not task.worker_restrictions
        assert not task.resource_restrictions
    assert sum(report) == 90
    del result, x
    await no_data(s, workers)


def memory(chunk):
    """Return what a chunk's elements are part of."""
    while chunk.base is not None:
        chunk = chunk.base
    return chunk


@cluster()
async def test_a_chunk_that_is_dropped_is_freed_beside_others_of_its_part(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, b = random((90, 50), "f8", 1), random((50, 70), "f8", 2)
    shares = {"0": 40, "1": 30, "2": 20}
    result = await balancer.matmul(a, b, layout="columns", distribution=shares)
    assert balancer.report.layout["name"] == "columns"
    rows, columns = (len(sizes) for sizes in result.chunks)
    arrays = {
        key: weakref.ref(memory(worker.data[key]))
        for worker in workers
        for i, j in np.ndindex(rows, columns)
        if (key := (result.name, i, j)) in worker.data
    }
    held = Counter(w.name for key in arrays for w in workers if key in w.data)
    assert len(arrays) == rows * columns > max(held.values()) > 1
    kept = c.persist(result.blocks[0, 0])
    await wait(kept)
    del result
    await until(lambda: sum(array() is not None for array in arrays.values()) == 1, True)
    np.testing.assert_allclose(await c.compute(kept), (a @ b)[: kept.shape[0], : kept.shape[1]])


@pytest.mark.parametrize("layout", ["columns", "nrrp"])
@cluster()
async def test_every_layout_equals_numpy_and_chunks_lie_where_tiles_do(c, s, *workers, layout):
    balancer = await fpmdask.Balancer(c)
    for dtype, a_chunks, b_chunks in (
        ("f8", ((40, 50), (7, 43)), ((25, 25), (30, 40))),
        ("f4", ((90,), (50,)), ((50,), (70,))),
        ("i8", ((20, 70), (10, 40)), ((1, 49), (69, 1))),
    ):
        a, b = random((90, 50), dtype, 1), random((50, 70), dtype, 2)
        result = await balancer.matmul(
            da.from_array(a, chunks=a_chunks),
            da.from_array(b, chunks=b_chunks),
            layout=layout,
            distribution={"0": 40, "1": 30, "2": 20}
            if layout == "columns"
            else {"0": 4, "1": 81, "2": 5},
        )
        places = await c.who_has(result)  # before it is computed: that makes copies
        expected = a @ b
        np.testing.assert_allclose(
            await c.compute(result), expected, rtol=0, atol=tolerance(dtype, 50) * 81 * 50
        )
        assert len(result.chunks[0]) > 1
        assert len(result.chunks[1]) > 1
        rows, columns = ([0, *np.cumsum(sizes).tolist()] for sizes in result.chunks)
        held = {str(w.address): str(w.name) for w in workers}
        tiles = {part["worker"]: Tile.of(part["tile"]) for part in balancer.report.shares}
        assert all(tile.is_rectangle for tile in tiles.values()) == (layout == "columns")
        for worker, whole in tiles.items():
            for tile in whole.rectangles:
                for i in range(rows.index(tile.row0), rows.index(tile.row1)):
                    for j in range(columns.index(tile.column0), columns.index(tile.column1)):
                        (address,) = places[result.name, i, j]
                        assert held[address] == worker
        del result
        await nothing_left(s)


@cluster()
async def test_a_layout_made_elsewhere_is_taken_as_it_is(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, b = random((90, 50), "f8", 1), random((50, 70), "f8", 2)
    x, y = da.from_array(a, chunks=20), da.from_array(b, chunks=30)
    for layout in (
        br([3.0, 2.0, 1.0], (9, 7)),
        kl([1.0, 2.0, 1.5], (9, 7), grid=(3, 1)),
        nrrp([9.0, 0.5, 0.5], (9, 9)),
    ):
        result = await balancer.matmul(x, y, layout=dict(zip("012", layout.zones, strict=True)))
        report = balancer.report
        assert (report.reason, report.layout["name"]) == ("given", "given")
        areas = {share["worker"]: Tile.of(share["tile"]).area for share in report.shares}
        sides = layout.shape
        for name, area in zip("012", layout.areas, strict=True):
            assert areas[name] == pytest.approx(area * 90 * 70 / sides[0] / sides[1], rel=0.15)
        np.testing.assert_allclose(await c.compute(result), a @ b)
    upright = {
        "0": [Rectangle(0, 1, 1, 1), Rectangle(0, 0, np.int64(2), 1)],
        "2": [Rectangle(1, 1, 1, 1)],
    }
    result = await balancer.matmul(x, y, layout=upright)
    np.testing.assert_allclose(await c.compute(result), a @ b)
    only = await balancer.matmul(x, y, layout={"1": [Rectangle(0, 0, 1, 1)]})
    assert [share["worker"] for share in balancer.report.shares] == ["1"]
    np.testing.assert_allclose(await c.compute(only), a @ b)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ("cubes", "layout = 'cubes'; give one of 'auto', 'rows', 'columns', 'nrrp'"),
        (None, "layout = None"),
        ({"0": [(0, 0, 1, 1)]}, "give a sequence of fpmdask.layout.Rectangle"),
        ({"0": 7}, "give a sequence of fpmdask.layout.Rectangle"),
        ({}, "no blocks"),
        ({"0": [Rectangle(0, 0, 1, 1)], "1": [Rectangle(1, 1, 1, 1)]}, "in 0 zones"),
        ({"0": [Rectangle(0, 0, 2, 2)], "1": [Rectangle(1, 1, 1, 1)]}, "in 2 zones"),
        ({"0": [Rectangle(0, 0, 1, 1), Rectangle(1, 1, 1, 1)],
          "1": [Rectangle(0, 1, 1, 1), Rectangle(1, 0, 1, 1)]}, "without its lower right corner"),
        ({"0": [Rectangle(0, 1, 3, 1), Rectangle(1, 0, 1, 1)], "1": [Rectangle(0, 0, 1, 1)],
          "2": [Rectangle(2, 0, 1, 1)]}, "without its lower right corner"),
        ({"0": [Rectangle(0, 0, 1.5, 1)]}, "whole numbers"),
        ({"0": [Rectangle(0, 0, 1, 1)], 0: [Rectangle(1, 0, 1, 1)]}, "names 0 twice"),
        ({"0": [Rectangle(0, 0, 91, 1)]}, "give a layout of no more blocks"),
        ({"nobody": [Rectangle(0, 0, 1, 1)]}, "names nobody"),
    ],
)  # fmt: skip
@cluster()
async def test_bad_layouts_are_refused(c, s, *workers, layout, says):
    balancer = await fpmdask.Balancer(c)
    x = da.from_array(random((90, 50), "f8", 1), chunks=20)
    with pytest.raises(PartitionError, match=says):
        await balancer.matmul(x, x.T, layout=layout)
    with pytest.raises(PartitionError, match="no room for distribution"):
        await balancer.matmul(x, x.T, layout={"0": [Rectangle(0, 0, 1, 1)]}, distribution={"0": 90})


@cluster(config={**CONFIG, "fpmdask.channels": False})
async def test_pieces_travel_in_dask_messages_where_there_are_no_channels(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    assert [(await side_of(worker)).channels for worker in workers] == [None] * len(workers)
    a, b = random((90, 50), "f8", 1), random((50, 70), "f4", 2)
    result = await balancer.matmul(da.from_array(a, chunks=20), da.from_array(b, chunks=30))
    np.testing.assert_allclose(await c.compute(result), a @ b)


@cluster()
async def test_pieces_travel_in_dask_messages_where_a_channel_cannot_be_reached(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for worker in workers:
        (await side_of(worker)).channels.address = ("127.0.0.1", 1)
    a, b = random((90, 50), "f8", 1), random((50, 70), "f8", 2)
    result = await balancer.matmul(da.from_array(a, chunks=20), da.from_array(b, chunks=30))
    np.testing.assert_allclose(await c.compute(result), a @ b)


@cluster()
async def test_a_chunk_of_columns_lost_after_the_run_is_made_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.random((90, 60), chunks=(30, 20)))
    expected = await c.compute(x @ x.T)
    result = await balancer.matmul(x, x.T, layout="columns", max_rounds=1)
    await workers[0].close()
    np.testing.assert_allclose(await c.compute(result), expected)


@cluster()
async def test_a_chunk_lost_after_the_run_is_made_again_from_the_inputs(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.random((90, 60), chunks=(30, 20)))
    expected = await c.compute(x @ x.T)
    result = await balancer.matmul(x, x.T, max_rounds=1)
    await workers[0].close()
    np.testing.assert_allclose(await c.compute(result), expected)
    del x  # and so it goes on when only the result is left
    await workers[1].close()
    np.testing.assert_allclose(await c.compute(result), expected)


@pytest.mark.parametrize("layout", ["rows", "columns", "nrrp"])
@cluster()
async def test_a_worker_that_leaves_in_the_run_loses_nothing(c, s, *workers, layout):
    """A worker leaves while the others multiply; shares of the lost tiles move."""
    started = asyncio.Event()
    balancer = await fpmdask.Balancer(
        c, progress=lambda event: started.set() if event["event"] == "share" else None
    )
    x = c.persist(da.random.random((600, 300), chunks=(50, 60)))
    await wait(x)
    whole = await c.compute(x)
    expected = whole @ whole.T
    distribution = {str(workers[0].name): 590, str(workers[1].name): 5, str(workers[2].name): 5}
    original = share.panel_update

    def slow(*args, **options):
        original(*args, **options)
        if args[2].size > 600 * 200:
            time.sleep(1.0)

    share.panel_update = slow
    try:
        product = balancer.matmul(x, x.T, layout=layout, distribution=distribution)
        run = asyncio.ensure_future(product)
        await started.wait()
        await workers[0].close(timeout=1)
        result = await run
    finally:
        share.panel_update = original
    np.testing.assert_allclose(await c.compute(result), expected)
    report = balancer.report
    assert str(workers[0].name) in report.left_out
    assert {part["worker"] for part in report.shares} == {"1", "2"}
    # what was finished is kept: the parts of five rows, or as much, are still there
    assert sorted(part["units"] for part in report.shares)[:2] == pytest.approx([5, 5], abs=1)
    assert sum(part["units"] for part in report.shares) == pytest.approx(600)


@cluster()
async def test_cells_are_put_together_where_two_losses_have_moved_an_edge(c, s, *workers):
    """The edge between what 1 and 2 had is none any more: 0 has both, and cells that end at it."""
    x = c.persist(da.random.random((600, 300), chunks=(50, 60)))
    await wait(x)
    whole = await c.compute(x)
    zones = {
        "0": [Rectangle(0, 0, 4, 1)],
        "1": [Rectangle(0, 1, 2, 1)],
        "2": [Rectangle(2, 1, 2, 1)],
    }
    named = {str(worker.name): worker for worker in workers}
    begun = asyncio.Event()
    balancer = await fpmdask.Balancer(
        c, progress=lambda event: begun.set() if event["event"] == "share" else None
    )
    original = share.panel_update

    def slow(*args, **options):
        original(*args, **options)
        if str(get_worker().name) != "0":
            time.sleep(0.5)

    share.panel_update = slow
    try:
        run = asyncio.ensure_future(balancer.matmul(x, x.T, layout=zones))
        await begun.wait()
        for name in "12":
            begun.clear()
            await named[name].close(timeout=1)
            if name == "1":
                await asyncio.sleep(0.2)
        result = await run
    finally:
        share.panel_update = original
    np.testing.assert_allclose(await c.compute(result), whole @ whole.T)
    assert {part["worker"] for part in balancer.report.shares} == {"0"}


@cluster()
async def test_products_of_the_same_inputs_follow_each_other_at_once(c, s, *workers):
    """Chunks of the transpose are let go and made again under the same names meanwhile."""
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.default_rng(0).integers(0, 9, (300, 400), chunks=(50, 40)).astype("f8"))
    whole = await c.compute(x)
    rows = {"0": 100, "1": 100, "2": 100}
    for _ in range(12):
        await balancer.matmul(x, x.T, distribution=rows)
    result = await balancer.matmul(x, x.T, distribution=rows)
    np.testing.assert_array_equal(await c.compute(result), whole @ whole.T)


@cluster()
async def test_a_result_is_cut_anew_as_any_dask_array(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, b = random((90, 50), "f8", 1), random((50, 70), "f8", 2)
    result = await balancer.matmul(da.from_array(a, chunks=20), da.from_array(b, chunks=30))
    assert " against " in balancer.report.layout["why"]
    again = result.rechunk((25, 40))
    assert again.chunks == ((25, 25, 25, 15), (40, 30))
    np.testing.assert_allclose(await c.compute(again), a @ b)
    np.testing.assert_allclose(await c.compute(again @ again.T), a @ b @ (a @ b).T)


class Tasks(SchedulerPlugin):
    """Keys of all tasks that the scheduler has had to do with."""

    name = "tasks"

    def __init__(self):
        self.keys = set()

    def transition(self, key, start, finish, *args, **options):
        self.keys.add(key)


@pytest.mark.parametrize("layout", ["rows", "columns"])
@cluster()
async def test_a_product_has_few_tasks(c, s, *workers, layout):
    """One per worker and one per chunk of C, however many chunks and panels A and B have."""
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.ones((300, 300), chunks=10))
    await wait(x)
    tasks = Tasks()
    s.add_plugin(tasks)
    result = await balancer.matmul(x, x, layout=layout, distribution=dict.fromkeys("012", 100))
    while any(s.tasks[key].run_spec is None for row in result.__dask_keys__() for key in row):
        await asyncio.sleep(0.01)  # the graph is still on its way to the scheduler
    shares, chunks = len(balancer.report.shares), len(result.chunks[0]) * len(result.chunks[1])
    assert len(tasks.keys | s.tasks.keys()) - x.npartitions <= len(workers) + shares + chunks
    assert chunks <= len(workers) ** 2


@cluster()
async def test_lost_chunks_without_a_task_are_named(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    (future,) = await c.scatter([np.ones((6, 6))], workers=[workers[0].address])
    x = da.Array({("x", 0, 0): future}, "x", chunks=((6,), (6,)), dtype="f8")
    x = c.persist(x)
    await wait(x)
    await workers[0].close()
    with pytest.raises(ChunksLostError, match=r"1 input chunks are gone .*\('x', 0, 0\)"):
        await balancer.matmul(x, np.ones((6, 2)), max_rounds=1)


@cluster(worker_kwargs={"memory_limit": "400 MB"})
async def test_what_does_not_fit_is_refused_with_numbers_before_anything_starts(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = da.zeros((40_000, 10), chunks=(10_000, 10))
    with pytest.raises(PartitionError, match=r"40000 rows of C do not fit.*bytes free.*out="):
        await balancer.matmul(x, da.zeros((10, 40_000), chunks=(10, 10_000)))
    assert not s.plugins["fpmdask"].runs
    del x
    await nothing_left(s)


@cluster()
async def test_bad_matrices_are_refused_at_once(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    ok = np.ones((4, 4))
    unknown = da.from_array(np.arange(16.0), chunks=4)
    unknown = unknown[unknown > 3][:, None]
    for a, b, message in [
        (ok, np.ones((3, 4)), "columns of A must be the rows of B"),
        (ok, np.ones((4, 4, 4)), "B has 3 dimensions"),
        (ok, np.ones(3), "the columns of A must be the rows of B"),
        (ok.astype(object), ok, "dtype object"),
        (ok, np.full((4, 4), "x"), "numeric dtype"),
        (ok.tolist(), ok, "A is a list"),
        (unknown, np.ones((1, 4)), "compute_chunk_sizes"),
        (ok, unknown, r"B has chunks of unknown size; call B\.compute_chunk_sizes"),
        (np.ones((0, 1)), unknown.T, r"B has chunks of unknown size"),
        (ok, unknown.T, r"B has chunks of unknown size; call B\.compute_chunk_sizes"),
    ]:
        with pytest.raises(PartitionError, match=message):
            balancer.matmul(a, b)
    with pytest.raises(PartitionError, match="give one of 'auto', 'rows', 'columns'"):
        balancer.matmul(ok, ok, layout="spiral")
    with pytest.raises(PartitionError, match="rebalance = 'no'; give True, False or None"):
        balancer.matmul(ok, ok, rebalance="no")
    with pytest.raises(PartitionError, match="sum to 3"):
        balancer.matmul(ok, ok, distribution={"0": 3})
    with pytest.raises(PartitionError, match="names nobody"):
        await balancer.matmul(ok, ok, distribution={"nobody": 4})
    assert not s.plugins["fpmdask"].runs


@pytest.mark.parametrize(("m", "k", "n"), [(3, 0, 2), (0, 4, 2), (3, 4, 0), (0, 0, 0)])
@cluster()
async def test_empty_matrices_multiply_as_in_numpy(c, s, *workers, m, k, n):
    balancer = await fpmdask.Balancer(c)
    a, b = np.ones((m, k), "i2"), da.ones((k, n), dtype="f4")
    found = await balancer.matmul(a, b)
    expected = a @ np.ones((k, n), "f4")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(await c.compute(found), expected)
    none = await balancer.matmul(np.ones(0), np.ones(0))
    assert await c.compute(none) == 0
    with pytest.raises(PartitionError, match="dtype object"):
        await balancer.matmul(a.astype(object), b)


@cluster()
async def test_an_input_that_cannot_be_computed_raises_its_own_exception(c, s, *workers):
    balancer = await fpmdask.Balancer(c)

    def broken(block):
        raise ZeroDivisionError("in the input")

    x = da.ones((4, 4), chunks=2).map_blocks(broken, dtype="f8", meta=np.empty((0, 0)))
    with pytest.raises(ZeroDivisionError, match="in the input"):
        await balancer.matmul(x, np.ones((4, 4)))


security = Security.temporary()


@gen_cluster(
    client=True,
    security=security,
    config=SHORT_ROUNDS,
    scheduler_kwargs={"protocol": "tls://"},
    worker_kwargs={"protocol": "tls://"},
)
async def test_tls_clusters_work_like_plain_ones(c, s, *workers):
    assert s.address.startswith("tls://")
    balancer = await fpmdask.Balancer(c)
    a, b = random((40, 30), "f8"), random((30, 20), "f8")
    result = await balancer.matmul(a, b, max_rounds=1)
    np.testing.assert_allclose(await c.compute(result), a @ b)


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 3,
    security=security,
    config=SHORT_ROUNDS,
    scheduler_kwargs={"protocol": "tls://"},
    worker_kwargs={"protocol": "tls://"},
)
async def test_a_worker_that_leaves_an_encrypted_cluster_is_replaced(c, s, *workers, monkeypatch):
    """While panels are on their way: the next one comes while one is held back."""
    original, held, go_on = share.panel_update, threading.Event(), threading.Event()

    def paused(*args, **options):
        held.set()
        go_on.wait(20)
        original(*args, **options)

    monkeypatch.setattr(share, "panel_update", paused)
    balancer = await fpmdask.Balancer(c)
    values = random((900, 900), "f8")
    x = c.persist(da.from_array(values, chunks=150))
    await wait(x)
    run = asyncio.ensure_future(balancer.matmul(x, x.T, layout="rows", max_rounds=1))
    await asyncio.to_thread(held.wait, 20)
    await workers[0].close(executor_wait=False)
    go_on.set()
    result = await run
    assert [*balancer.report.left_out] == [str(workers[0].name)]
    np.testing.assert_allclose(await c.compute(result), values @ values.T)


def test_synchronous_clients_work_on_processes():
    with (
        dask.config.set({"fpmdask.timing.min-seconds": 0.01}),
        Client(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as client,
        fpmdask.Balancer(client) as balancer,
    ):
        a, b = random((300, 200), "f8"), random((200, 100), "f8")
        result = balancer.matmul(a, b, max_rounds=2)
        np.testing.assert_allclose(result.compute(), a @ b)
        assert "matmul" in balancer._repr_html_()
        assert sum(balancer.report) == 300
