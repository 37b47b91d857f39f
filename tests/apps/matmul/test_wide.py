"""C of few rows: shared out by columns, made of the same chunks, where they are."""

import asyncio
import time

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import wait
from distributed.utils_test import gen_cluster
from hypothesis import given
from hypothesis import strategies as st

import fpmdask
from fpmdask.apps.matmul.communication_cost import held_bytes, homes
from fpmdask.apps.matmul.plan import MatmulSpec, Tile, by_columns, needed
from fpmdask.apps.matmul.relays import slice_of
from fpmdask.apps.matmul.worker import share
from fpmdask.errors import PartitionError
from fpmdask.layout import Rectangle
from tests.apps.matmul.test_inputs import leave_free, reads_of, source
from tests.apps.matmul.test_product import cluster, random, tolerance
from tests.eventually import nothing_left
from tests.tuned import SHORT_ROUNDS

EVEN = {"0": 1000, "1": 1000, "2": 1000}


def whole_numbers(shape, seed):
    return np.random.default_rng(seed).integers(-9, 9, shape).astype("f8")


def workers_with(report):
    return {part["worker"] for part in report.shares if part["units"]}


async def held_by_columns(c, values, workers):
    """Return an array of which each worker holds as many columns."""
    parts = np.hsplit(values, len(workers))
    futures = [
        (await c.scatter([part], workers=[worker.address]))[0]
        for part, worker in zip(parts, workers, strict=True)
    ]
    graph = {("held", 0, j): future for j, future in enumerate(futures)}
    chunks = (values.shape[:1], tuple(part.shape[1] for part in parts))
    return da.Array(graph, "held", chunks=chunks, dtype=values.dtype)


@cluster()
async def test_one_row_is_shared_out_over_the_workers(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    w, b = whole_numbers((1, 200), 1), whole_numbers((200, 3000), 2)
    lazy = da.from_array(b, chunks=(100, 250))
    held = await held_by_columns(c, b, workers)
    for left, right in ((w, held), (w, b), (da.from_array(w), lazy), (w[0], lazy)):
        expected = w[0] @ b if left.ndim == 1 else w @ b
        result = await balancer.matmul(left, right)
        report = balancer.report
        assert sum(report) == sum(part["units"] for part in report.shares) == 3000
        assert "columns" in report.layout["transposed"]
        assert result.shape == expected.shape
        np.testing.assert_array_equal(await c.compute(result), expected)
        again = await balancer.matmul(left, right, distribution=report)
        assert balancer.report.reason == "given"
        assert list(again.chunks[-1]) == sorted_units(balancer.report)
        np.testing.assert_array_equal(await c.compute(again), expected)
        del again
        # whatever a moment's speeds are, against which moving B may cost more than multiplying
        again = await balancer.matmul(left, right, distribution=EVEN)
        assert workers_with(balancer.report) == {"0", "1", "2"}
        np.testing.assert_array_equal(await c.compute(again), expected)
        del result, again
    del left, right, lazy, held
    await nothing_left(s)


def sorted_units(report):
    """Return the units of parts that are strips of columns, from the left to the right."""
    return [part["units"] for part in sorted(report.shares, key=lambda part: part["tile"][2])]


@cluster()
async def test_a_row_times_more_than_a_worker_has_memory_for(c, s, *workers, monkeypatch):
    """B has 4.8 MB: each chunk is read once, by a worker whose columns of C need it."""
    leave_free(monkeypatch, [3.5] * 3)
    balancer = await fpmdask.Balancer(c)
    b, values = source(workers, (200, 3000), (100, 100), 1)
    w = whole_numbers((1, 200), 2)
    for options in ({}, {"distribution": EVEN}):
        for worker in workers:
            worker.reads.clear()
        result = await balancer.matmul(da.from_array(w), b, **options)
        reads = reads_of(workers, 1)
        assert sorted(at for at, _ in reads) == [(i, j) for i in range(2) for j in range(30)]
        np.testing.assert_array_equal(await c.compute(result), w @ values)
        del result
        await nothing_left(s)
    tiles = {part["worker"]: part["tile"] for part in balancer.report.shares}
    for (_, j), name in reads:
        assert tiles[name][:2] == (0, 1)
        assert tiles[name][2] <= 100 * j < tiles[name][3]
    assert balancer.report.bytes_moved <= 3 * 200 * 8  # of A, which is not where it is needed
    leave_free(monkeypatch, [2.5] * 3)
    with pytest.raises(PartitionError, match="3000 columns of C do not fit"):
        await balancer.matmul(da.from_array(w), b)


@pytest.mark.parametrize("layout", ["auto", "columns", "nrrp"])
@cluster()
async def test_any_chunks_dtypes_and_layouts_equal_numpy(c, s, *workers, layout):
    balancer = await fpmdask.Balancer(c)
    cases = [
        ("f8", (20, 50, 90), ((7, 13), (7, 43)), ((50,), (40, 50))),
        ("f4", (1, 70, 30), ((1,), (70,)), ((35, 35), (1, 29))),
        ("c16", (9, 17, 40), ((9,), (16, 1)), ((1, 16), (5, 35))),
        ("i8", (2, 30, 300), ((1, 1), (30,)), ((15, 15), (100, 200))),
        ("bool", (3, 6, 8), ((3,), (6,)), ((6,), (4, 4))),
        ("f8", (2, 1, 9), ((2,), (1,)), ((1,), (9,))),
    ]
    named = {worker.address: str(worker.name) for worker in workers}
    for dtype, (m, k, n), a_chunks, b_chunks in cases:
        a, b = random((m, k), dtype, 1), random((k, n), dtype, 2)
        lazy = da.from_array(a, chunks=a_chunks), da.from_array(b, chunks=b_chunks)
        unequal = {"0": 1, "1": n - 2, "2": 1} if layout == "nrrp" else None
        result = await balancer.matmul(*lazy, layout=layout, max_rounds=2, distribution=unequal)
        report, expected = balancer.report, a @ b
        assert "transposed" in report.layout
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        places = await c.who_has(result)
        scale = 4 * max(1.0, float(np.abs(expected.astype("c16")).max()))
        found = await c.compute(result)
        np.testing.assert_allclose(found, expected, atol=scale * tolerance(dtype, k), rtol=0)
        rows, columns = ([0, *np.cumsum(sizes).tolist()] for sizes in result.chunks)
        for part in report.shares:
            tile = Tile.of(part["tile"])
            for i, j in np.ndindex(*result.numblocks):
                if tile.holds(Tile(rows[i], columns[j], rows[i + 1], columns[j + 1])):
                    (address,) = places[result.name, i, j]
                    assert named[address] == part["worker"]


@cluster(config={**SHORT_ROUNDS, "fpmdask.channels": False})
async def test_pieces_travel_in_dask_messages_too(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, b = whole_numbers((10, 50), 1), whole_numbers((50, 90), 2)
    result = await balancer.matmul(da.from_array(a, chunks=20), da.from_array(b, chunks=30))
    assert "transposed" in balancer.report.layout
    np.testing.assert_array_equal(await c.compute(result), a @ b)


@cluster()
async def test_rows_that_the_caller_wants_stay_rows(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a, b = whole_numbers((20, 50), 1), whole_numbers((50, 90), 2)
    given = {"0": [Rectangle(0, 0, 1, 1)], "1": [Rectangle(1, 0, 1, 1)]}
    for options in (
        {"layout": "rows"},
        {"distribution": {"0": 12, "2": 8}},
        {"layout": "rows", "distribution": {"0": 12, "2": 8}},
        {"layout": given},
    ):
        result = await balancer.matmul(a, b, **options)
        assert sum(balancer.report) == 20
        assert "transposed" not in balancer.report.layout
        np.testing.assert_array_equal(await c.compute(result), a @ b)
    with pytest.raises(PartitionError, match="sum to 90; they must sum to 20, the rows of A"):
        await balancer.matmul(a, b, layout="rows", distribution={"0": 90})
    with pytest.raises(PartitionError, match="the rows of A, or as columns to 90, those of B"):
        await balancer.matmul(a, b, distribution={"0": 21})


@cluster()
async def test_chunks_lost_after_the_run_are_made_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.default_rng(0).integers(0, 9, (60, 90), chunks=20).astype("f8"))
    w = c.persist(da.from_array(whole_numbers((7, 60), 1), chunks=20))
    expected = await c.compute(w @ x)
    result = await balancer.matmul(w, x, max_rounds=1)
    assert "transposed" in balancer.report.layout
    await workers[0].close()
    np.testing.assert_array_equal(await c.compute(result), expected)
    del x, w  # and so it goes on when only the result is left
    await workers[1].close()
    np.testing.assert_array_equal(await c.compute(result), expected)


@pytest.mark.parametrize("rows", [1, 20])
@cluster()
async def test_a_worker_that_leaves_in_the_run_loses_nothing(c, s, *workers, rows):
    started = asyncio.Event()
    balancer = await fpmdask.Balancer(
        c, progress=lambda event: started.set() if event["event"] == "share" else None
    )
    values = whole_numbers((300, 600), 1), whole_numbers((rows, 300), 2)
    b, a = (c.persist(da.from_array(x, chunks=(50, 60))) for x in values)
    await wait([a, b])
    original = share.panel_update

    def slow(*args, **options):
        original(*args, **options)
        if args[2].size > rows * 200:
            time.sleep(0.5)

    share.panel_update = slow
    try:
        run = asyncio.ensure_future(balancer.matmul(a, b, distribution={"0": 590, "1": 5, "2": 5}))
        await started.wait()
        await workers[0].close(timeout=1)
        result = await run
    finally:
        share.panel_update = original
    np.testing.assert_array_equal(await c.compute(result), values[1] @ values[0])
    assert workers_with(balancer.report) == {"1", "2"}
    assert sum(part["units"] for part in balancer.report.shares) == 600


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    config=SHORT_ROUNDS,
    timeout=60,
    clean_kwargs={"threads": False},
)
async def test_a_wide_product_is_stored(c, s, *workers, tmp_path):
    a, b = whole_numbers((8, 30), 1), whole_numbers((30, 60), 2)
    out = zarr.create_array(str(tmp_path / "c"), shape=(8, 60), chunks=(5, 7), dtype="f8")
    balancer = await fpmdask.Balancer(c)
    await balancer.matmul(da.from_array(a, chunks=20), da.from_array(b, chunks=20), out=out)
    assert "transposed" in balancer.report.layout
    np.testing.assert_array_equal(out[:], a @ b)


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


@given(sizes, sizes, sizes, st.data())
def test_the_transposed_product_is_of_the_same_chunks(rows, inner, columns, data):
    shape = sum(rows), sum(inner), sum(columns)
    spec = MatmulSpec(shape, np.dtype("f8"), (rows, inner), (inner, columns), "a", "b")
    other = spec.transpose()
    assert other.transpose() == spec
    assert set(other.keys) == set(spec.keys)
    assert MatmulSpec.from_json(other.to_json()) == other
    shapes = {("a", i, k): (m, d) for i, m in enumerate(rows) for k, d in enumerate(inner)}
    shapes |= {("b", k, j): (d, n) for k, d in enumerate(inner) for j, n in enumerate(columns)}
    assert {key: spec.chunk_shape(key) for key in spec.keys} == shapes
    assert {key: other.chunk_shape(key) for key in other.keys} == shapes
    row0, row1 = sorted(data.draw(st.tuples(*[st.integers(0, shape[0])] * 2)))
    column0, column1 = sorted(data.draw(st.tuples(*[st.integers(0, shape[2])] * 2)))
    tile = Tile(row0, column0, row1, column1)
    assert needed(other, tile.transpose()) == needed(spec, tile)
    panel = tuple(sorted(data.draw(st.tuples(*[st.integers(0, shape[1])] * 2))))
    for key in spec.keys:
        assert slice_of(other, key, panel) == slice_of(spec, key, panel)
    at = data.draw(st.integers(0, shape[0]))
    tiles = {"x": [Tile(0, 0, at, shape[2])], "y": [Tile(at, 0, shape[0], shape[2])]}
    turned = {worker: [tile.transpose() for tile in own] for worker, own in tiles.items()}
    assert set(homes(other, turned, "ab")) == set(spec.keys)
    held = held_bytes(spec, "xy", dict.fromkeys(spec.keys, "x"))
    for found, expected in zip(
        held_bytes(other, "xy", dict.fromkeys(spec.keys, "x")), held[::-1], strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "wide"),
    [
        ((1, 50, 2), True),
        ((47, 50, 48), True),
        ((48, 50, 49), False),
        ((48, 50, 767), False),
        ((48, 50, 768), True),
        ((20, 50, 20), False),
        ((2, 50, 1), False),
    ],
)
def test_few_rows_are_fewer_than_sixteen_per_worker_or_than_a_sixteenth_of_the_columns(shape, wide):
    m, k, n = shape
    spec = MatmulSpec(shape, np.dtype("f8"), ((m,), (k,)), ((k,), (n,)), "a", "b")
    assert by_columns(spec, 3) == wide
