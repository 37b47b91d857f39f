"""Products as sums over ranges of K: shared out by speed, right for any shape, chunks and dtype."""

import tracemalloc
from itertools import accumulate, cycle, pairwise, product
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from distributed import Worker, futures_of, wait
from distributed.utils_test import gen_cluster
from hypothesis import given
from hypothesis import strategies as st

import fpmdask
from fpmdask.apps.matmul import tasks as sum_tasks
from fpmdask.apps.matmul.coordinator import split_k
from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.apps.matmul.split_k import in_chunks, moves_less, places, segments, worth_handing_over
from fpmdask.apps.matmul.tiling import INNER, LAYOUTS
from fpmdask.errors import PartitionError
from fpmdask.runtime.placement import dealt
from tests.eventually import nothing_left

CONFIG = {"distributed.scheduler.active-memory-manager.start": False}
RANDOM = np.random.default_rng(0)


def cluster(workers=3, nthreads=1, **options):
    threads = [("127.0.0.1", nthreads)] * workers
    settings = {"client": True, "nthreads": threads, "config": CONFIG, "timeout": 60}
    return gen_cluster(**{**settings, **options})


def chunked(values, rows, columns):
    return da.from_array(values, chunks=(rows, columns))


def longer(chunk):
    return np.pad(chunk, ((0, 1), (0, 0)))


def spec_of(a, b):
    return MatmulSpec.build(
        shape=(a.shape[0], a.shape[1], b.shape[1]),
        inner=b.shape[0],
        dtypes=(a.dtype, b.dtype),
        a_chunks=a.chunks,
        b_chunks=b.chunks,
        a_name=a.name,
        b_name=b.name,
    )


@cluster(nthreads=2)
async def test_any_dtype_and_chunks(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for dtype in ("f8", "f4", "c16", "i2", "?", "f2"):
        left, right = (RANDOM.integers(0, 3, shape).astype(dtype) for shape in ((7, 500), (500, 5)))
        a, b = chunked(left, 3, 64), chunked(right, 77, 2)
        found = await balancer.matmul(a, b, layout="inner")
        expected = left @ right
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(await c.compute(found), expected, rtol=1e-2)
    report = balancer.report
    assert (report.layout["name"], report.layout["why"]) == ("inner", "asked for")
    assert sum(report.distribution) == 500 == sum(share["units"] for share in report.shares)
    assert {"prepare", "measure", "multiply"} == report.phases.keys()
    assert report.measured_seconds > 0
    del a, b, found
    await nothing_left(s)


@cluster()
async def test_halves_are_rounded_once(c, s, *workers):
    """Also those of a matrix by its own transpose, a chunk of which sums up to what is no half."""
    balancer = await fpmdask.Balancer(c)
    tall = c.persist(da.ones((5 * 2049, 2), chunks=(2049, 2), dtype="f2"))
    await wait(tall)
    found = await balancer.matmul(tall.T, tall, layout="inner")
    np.testing.assert_array_equal(await c.compute(found), np.full((2, 2), 5 * 2049, "f2"))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # as NumPy warns, on workers
@cluster()
async def test_nan_and_inf_propagate_as_in_numpy(c, s, *workers):
    """Also where a matrix is multiplied by its own transpose, whose halves are made once."""
    balancer = await fpmdask.Balancer(c)
    a, b = RANDOM.random((6, 500)), RANDOM.random((500, 5))
    a[3, 4], b[300, 2], a[5, 450] = np.nan, np.inf, -np.inf
    b[450, 1] = 0
    x = c.persist(chunked(a, 6, 60))
    for right, expected in ((b, b), (x.T, a.T)):
        found = await balancer.matmul(x, right, layout="inner")
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(await c.compute(found), a @ expected)


@cluster()
async def test_parts_of_a_larger_product_are_on_all_workers(c, s, *workers, tuning):
    tuning(matmul={"sum_part_nbytes": 1})
    balancer = await fpmdask.Balancer(c)
    x = RANDOM.random((3000, 20))
    tall = c.persist(chunked(x, 250, 20))
    await wait(tall)
    found = await balancer.matmul(tall.T, tall, layout="inner")
    assert found.chunks == ((7, 7, 6), (20,))
    holders = await c.who_has(futures_of(found))
    assert sorted(holders.values()) == sorted((worker.address,) for worker in workers)
    np.testing.assert_allclose(await c.compute(found), x.T @ x)
    # sums, and what of the input is not where it is multiplied
    least = 2 * 20 * 20 * 8
    assert least <= balancer.report.bytes_moved < least + 2 * x.nbytes


@cluster()
async def test_no_more_workers_add_up_than_hold_few_bytes_each(c, s, *workers, tuning):
    tuning(matmul={"sum_part_nbytes": 3 * 600 * 8 // 2})
    balancer = await fpmdask.Balancer(c)
    v, b = RANDOM.random(500), RANDOM.random((500, 600))
    for left, chunks in ((v, ((300, 300),)), (v[None], ((1,), (300, 300)))):
        x, y = c.persist([da.from_array(left, chunks=100), chunked(b, 100, 600)])
        await wait([x, y])
        found = await balancer.matmul(x, y, layout="inner")
        assert found.chunks == chunks
        np.testing.assert_allclose(await c.compute(found), left @ b)
        nbytes = [share["nbytes_received"] for share in balancer.report.shares]
        assert sum(nbytes) >= 2 * 600 * 8


@cluster()
async def test_bytes_are_counted_as_they_are_sent(c, s, *workers):
    balancer = await fpmdask.Balancer(c, workers=["0"])
    ones = chunked(np.ones((4, 6000), "i1"), 4, 3000)
    a = c.persist(ones, workers=[workers[1].address], allow_other_workers=False)
    await wait(a)
    await balancer.matmul(a, np.ones((6000, 1)), layout="inner")
    assert balancer.report.bytes_moved == ones.nbytes


@pytest.mark.parametrize("kinds", ["i1 f8", "f2 f2", "f4 f8", "i1 i8", "f8 >f8", "f8 f8"])
def test_a_range_is_converted_a_little_at_a_time(kinds, monkeypatch):
    worker = SimpleNamespace(state=SimpleNamespace(nthreads=1))
    monkeypatch.setattr(sum_tasks, "get_worker", lambda: worker)
    left, right = kinds.split()
    a = np.asfortranarray(RANDOM.integers(0, 2, (32, 300_000)).astype(left))
    b = RANDOM.integers(0, 2, (2 * 300_000, 1)).astype(right)[::2]
    expected = a[:, :3000].astype("f8") @ b[:3000].astype("f8")
    spec = spec_of(da.from_array(a, chunks=-1), da.from_array(b, chunks=-1))
    whole = [((0, 3000, 300_000, 0, 0),)] * 2
    np.testing.assert_array_equal(sum_tasks.summed(spec.to_json(), [whole], [a], [b])[0], expected)
    tracemalloc.start()
    try:
        whole = [((0, 300_000, 300_000, 0, 0),)] * 2
        sum_tasks.summed(spec.to_json(), [whole], [a], [b])
        assert tracemalloc.get_traced_memory()[1] < 4 * sum_tasks.PANEL_NBYTES
    finally:
        tracemalloc.stop()


@cluster()
async def test_it_is_taken_where_it_moves_less(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    tall = c.persist(da.random.default_rng(1).random((200_000, 20), chunks=(10_000, 20)))
    await wait(tall)
    found = await balancer.matmul(tall.T, tall)
    report = balancer.report
    assert report.layout["name"] == "inner", report.layout
    assert report.layout["why"] == "the workers' sums have 0.0064 MB, A and B 64"
    assert report.bytes_moved == 2 * 20 * 20 * 8  # all multiply what they hold
    x = await c.compute(tall)
    np.testing.assert_allclose(await c.compute(found), x.T @ x)
    v = RANDOM.random(20)
    rows = await balancer.matmul(tall, v)  # rows stay where they are, though K is 20 times N
    # which of these goes by the speeds; with one column all have the same tiles
    assert balancer.report.layout["name"] in ("rows", "columns", "nrrp")
    assert {share["tile"][2:] for share in balancer.report.shares} == {(0, 1)}
    np.testing.assert_allclose(await c.compute(rows), x @ v)
    square = chunked(RANDOM.random((300, 300)), 100, 100)
    await balancer.matmul(square, square)
    assert balancer.report.layout["name"] != "inner"


@cluster()
async def test_vectors_numpy_and_lazy_inputs(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x, y = RANDOM.random(30_000), RANDOM.random(30_000)
    dot = await balancer.matmul(x, da.from_array(y, chunks=4000), layout="inner")
    np.testing.assert_allclose(await c.compute(dot), x @ y)
    lazy = da.random.default_rng(1).random((5, 9000), chunks=(5, 1000))
    found = await balancer.matmul(lazy, lazy.T, layout="inner")
    full = await c.compute(lazy)
    np.testing.assert_allclose(await c.compute(found), full @ full.T)


@cluster(nthreads=2)
async def test_a_matrix_by_its_transpose_is_received_once(c, s, *workers, monkeypatch):
    monkeypatch.setattr(split_k, "worth_handing_over", lambda *given: True)
    balancer = await fpmdask.Balancer(c)
    for dtype in ("f8", "c8", "i2", "f2"):
        values = (RANDOM.random((900, 8)) * 9).astype(dtype)
        tall = c.persist(chunked(values, 900, 3))  # all of a column on one worker
        await wait(tall)
        expected = values.T @ values
        for a, b in ((tall.T, tall), (other := c.persist(tall.T), other.T)):
            found = await balancer.matmul(a, b, layout="inner")
            report = balancer.report
            sums = 2 * expected.size * 8
            assert report.bytes_moved <= values.nbytes + sums
            np.testing.assert_allclose(await c.compute(found), expected, rtol=1e-2)
            assert found.dtype == expected.dtype
        conjugated = await balancer.matmul(tall.conj().T, tall, layout="inner")
        np.testing.assert_allclose(await c.compute(conjugated), values.conj().T @ values, rtol=1e-2)


READ: list[tuple[int, int]] = []


def read(block_id):
    READ.append(block_id)
    return np.full((10, 500), 1.0 + block_id[1])


@cluster()
async def test_what_both_inputs_are_made_of_is_read_once(c, s, *workers):
    READ.clear()
    chunks, meta = ((10,), (500,) * 6), np.empty((0, 0))
    lazy = da.map_blocks(read, chunks=chunks, dtype=float, meta=meta)
    balancer = await fpmdask.Balancer(c)
    found = await balancer.matmul(lazy, lazy.T, layout="inner")
    expected = 500.0 * sum(n * n for n in range(1, 7))
    np.testing.assert_allclose(await c.compute(found), np.full((10, 10), expected))
    assert sorted(READ) == [(0, n) for n in range(6)]


@cluster()
async def test_an_error_lets_go_of_the_inputs(c, s, *workers):
    """While it lives, once the caller has let go of them, too."""
    balancer = await fpmdask.Balancer(c)
    for layout in ("inner", "rows"):
        chunks = da.ones((90, 4), chunks=(30, 4))
        x = c.persist(chunks.map_blocks(lambda block: block[:-1], meta=np.ones((0, 0))))
        await wait(x)
        with pytest.raises(PartitionError, match=f"'{x.name}', [012], 0") as caught:
            await balancer.matmul(np.ones((4, 90)), x, layout=layout)
        del x
        await nothing_left(s)
        assert caught.value.__traceback__


@cluster()
async def test_chunks_that_are_longer_than_said_are_refused(c, s, *workers):
    """As by other layouts: their last rows would be left out."""
    balancer = await fpmdask.Balancer(c)
    x = da.ones((100, 4), chunks=(50, 4)).map_blocks(longer, dtype=float, meta=np.empty((0, 0)))
    x = c.persist(x)
    await wait(x)
    with pytest.raises(PartitionError, match=r"has the shape \(51, 4\), .* says \(50, 4\)"):
        await balancer.matmul(x.T, x, layout="inner")


@cluster()
async def test_a_product_that_does_not_fit_several_times_is_refused(c, s, *workers, monkeypatch):
    balancer = await fpmdask.Balancer(c)
    x = chunked(RANDOM.random((30, 3000)), 30, 300)
    monkeypatch.setattr(split_k, "free_nbytes", lambda context, worker: 3 * 30 * 30 * 8 - 1)
    with pytest.raises(PartitionError, match="needs 21600 bytes on each worker"):
        await balancer.matmul(x, x.T, layout="inner")
    await balancer.matmul(x, x.T)
    assert balancer.report.layout["name"] != "inner"


@cluster()
async def test_what_a_worker_lacks_of_its_range_has_to_fit(c, s, *workers, monkeypatch):
    """A matrix is on one worker and the other one on another."""
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random((6, 3000))
    x, turned = chunked(values, 6, 1000), chunked(values, 6, 1000).T[:, :5]
    x, turned = (
        c.persist(part, workers=[worker.address], allow_other_workers=False)
        for part, worker in zip((x, turned), workers, strict=False)
    )
    await wait([x, turned])
    sums, away = 3 * 6 * 5 * 8, 3000 * 5 * 8
    monkeypatch.setattr(split_k, "free_nbytes", lambda context, worker: sums + away - 1)
    with pytest.raises(PartitionError, match=f"has room for {sums - 1};"):
        await balancer.matmul(x, turned, layout="inner")
    monkeypatch.setattr(split_k, "free_nbytes", lambda context, worker: sums + away)
    found = await balancer.matmul(x, turned, layout="inner")
    np.testing.assert_allclose(await c.compute(found), values @ values.T[:, :5])


@cluster()
async def test_lines_are_handed_over_by_measured_speed(c, s, *workers, monkeypatch, tuning):
    async def measured(context, units, *given):
        found = await original(context, units, *given)
        assert sum(found.values()) == units
        return dict(zip(sorted(context.workers), (6, 3, 1), strict=True))

    original = split_k._measured
    monkeypatch.setattr(split_k, "_measured", measured)
    monkeypatch.setattr(split_k, "worth_handing_over", lambda *given: True)
    tuning(matmul={"ranges_least_nbytes": 0})
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.default_rng(1).random((40, 9000), chunks=(40, 500)))
    await wait(x)
    found = await balancer.matmul(x, x.T)
    report = balancer.report
    assert report.layout["name"] == "inner"
    shares = dict(zip(report.addresses, report, strict=True))
    by_speed = [shares[address] for address in sorted(shares)]
    assert by_speed == pytest.approx([5400, 2700, 900], rel=0.11)
    full = await c.compute(x)
    np.testing.assert_allclose(await c.compute(found), full @ full.T)
    with pytest.raises(PartitionError, match="leave one of them out"):
        await balancer.matmul(x, x.T, layout="inner", distribution={"0": 40})


@cluster()
async def test_no_worker_is_handed_more_than_it_has_memory_for(c, s, *workers, monkeypatch):
    async def measured(context, units, *given):
        await original(context, units, *given)
        return dict(zip(sorted(context.workers), (8, 1, 1), strict=True))

    original = split_k._measured
    monkeypatch.setattr(split_k, "_measured", measured)
    monkeypatch.setattr(split_k, "worth_handing_over", lambda *given: True)
    free = 3 * 40 * 40 * 8 + 1000 * 80 * 8  # the sums, and 1000 lines more
    monkeypatch.setattr(split_k, "free_nbytes", lambda context, worker: free)
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.default_rng(1).random((40, 9000), chunks=(40, 500)))
    await wait(x)
    held = [500 * sum(key[0] == x.name for key in worker.data) for worker in workers]
    held = dict(zip((worker.address for worker in workers), held, strict=True))
    found = await balancer.matmul(x, x.T, layout="inner")
    shares = dict(zip(balancer.report.addresses, balancer.report, strict=True))
    assert held[min(held)] < shares[min(held)] <= held[min(held)] + 1000
    full = await c.compute(x)
    np.testing.assert_allclose(await c.compute(found), full @ full.T)


def test_spilled_and_lazy_inputs_need_memory(monkeypatch):
    thin = da.zeros((32, 100_000), chunks=10_000)
    spec = spec_of(thin, thin.T)
    held = [SimpleNamespace(key=(thin.name, 0, n), nbytes=200) for n in range(2)]
    others = [SimpleNamespace(key=key, nbytes=999) for key in ("other", ("other", 0))]
    memory = SimpleNamespace(spilled=300)
    state = SimpleNamespace(memory=memory, has_what=[*held, *others])
    scheduler = SimpleNamespace(workers={"u": state})
    monkeypatch.setattr(split_k, "free_nbytes", lambda context, worker: 1e9)
    for lazy, left in (([], 1e9 - 300), ([thin.name], 1e9 - 300 - 32 * 100_000 * 8 / 4)):
        context = SimpleNamespace(spec={"lazy": lazy}, scheduler=scheduler)
        assert split_k._room(context, spec, "u", 4) == left
    memory.spilled = 5000  # mostly of what is not multiplied
    context = SimpleNamespace(spec={"lazy": []}, scheduler=scheduler)
    assert split_k._room(context, spec, "u", 4) == 1e9 - 400


@cluster()
async def test_a_matrix_by_itself(c, s, *workers, monkeypatch):
    """The same chunk is cut by columns for A and by rows for B."""

    async def measured(context, units, *given):
        await original(context, units, *given)
        return dict(zip(sorted(context.workers), (6, 3, 1), strict=True))

    original = split_k._measured
    monkeypatch.setattr(split_k, "_measured", measured)
    monkeypatch.setattr(split_k, "worth_handing_over", lambda *given: True)
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random((90, 90))
    x = c.persist(chunked(values, 30, 30))
    await wait(x)
    found = await balancer.matmul(x, x, layout="inner")
    np.testing.assert_allclose(await c.compute(found), values @ values)


@cluster()
async def test_named_workers_only(c, s, *workers, tuning):
    tuning(matmul={"ranges_least_nbytes": 0})
    balancer = await fpmdask.Balancer(c, workers=["0", "2"])
    x = c.persist(da.random.default_rng(1).random((4, 9000), chunks=(4, 500)))
    await wait(x)
    found = await balancer.matmul(x, x.T)
    assert set(balancer.report.workers) == {"0", "2"}
    assert sum(balancer.report) == 9000
    full = await c.compute(x)
    np.testing.assert_allclose(await c.compute(found), full @ full.T)


@cluster()
async def test_what_others_hold_is_shared_out(c, s, *workers):
    balancer = await fpmdask.Balancer(c, workers=["0", "2"])
    values = RANDOM.random((4, 9000))
    x = c.persist(chunked(values, 4, 500), workers=[workers[1].address])
    await wait(x)
    found = await balancer.matmul(x, x.T, layout="inner")
    assert set(balancer.report.workers) == {"0", "2"}
    assert min(balancer.report) > 3000
    np.testing.assert_allclose(await c.compute(found), values @ values.T)


@cluster()
async def test_what_others_hold_has_to_fit(c, s, *workers, monkeypatch):
    balancer = await fpmdask.Balancer(c, workers=["0", "2"])
    values = RANDOM.random((4, 9000))
    x = chunked(values, 4, 500)
    x, turned = c.persist([x, x.T], workers=[workers[1].address])
    await wait([x, turned])
    sums, lines = 3 * 4 * 4 * 8, 4500 * (4 + 4) * 8
    monkeypatch.setattr(split_k, "free_nbytes", lambda context, worker: sums + lines - 1)
    with pytest.raises(PartitionError, match=f"needs {sums} bytes .* has room for {sums - 1};"):
        await balancer.matmul(x, turned, layout="inner")
    monkeypatch.setattr(split_k, "free_nbytes", lambda context, worker: sums + lines)
    found = await balancer.matmul(x, turned, layout="inner")
    np.testing.assert_allclose(await c.compute(found), values @ values.T)


@cluster()
async def test_a_worker_without_fpmdask_only_gives_its_chunks(c, s, *workers, monkeypatch):
    balancer = await fpmdask.Balancer(c)
    for worker in workers:
        assert not await worker.plugins["fpmdask"].starting  # with the version that is there
    with monkeypatch.context() as patch:
        patch.setattr(fpmdask, "__version__", "0.0.1")  # as its plugin finds it
        bare = await Worker(s.address, name="bare", nthreads=1)
        assert "runs fpmdask 0.0.1" in await bare.plugins["fpmdask"].starting
    async with bare:
        values = RANDOM.random((6, 900))
        x = chunked(values, 6, 100)
        x = c.persist(x, workers=[bare.address, workers[0].address])
        await wait(x)
        assert any(key[0] == x.name for key in bare.data)
        found = await balancer.matmul(x, x.T, layout="inner")
        assert "bare" not in balancer.report.workers
        assert sum(balancer.report) == 900
        np.testing.assert_allclose(await c.compute(found), values @ values.T)


@st.composite
def cuts(draw, total):
    inner = draw(st.lists(st.integers(1, total - 1), max_size=5, unique=True))
    edges = [0, *sorted(inner), total]
    return tuple(b - a for a, b in pairwise(edges))


@given(cuts(60), cuts(60), cuts(9), cuts(7), st.data())
def test_every_line_is_multiplied_once(of_a, of_b, rows, columns, data):
    a = da.zeros((9, 60), chunks=(rows, of_a))
    b = da.zeros((60, 7), chunks=(of_b, columns))
    spec = spec_of(a, b)
    workers = ["u", "v", "w"]
    holders = {key: [data.draw(st.sampled_from(workers))] for key in spec.keys}
    shares = {worker: data.draw(st.integers(0, 60)) for worker in workers}
    shares["u"] += 1
    pieces = dealt([high - low for low, high in segments(spec)], places(spec, holders), shares)
    met = np.zeros((2, 60), int)
    starts = [[0, *accumulate(of)] for of in (of_a, of_b)]
    for own in pieces.values():
        for (column, a0, a1), (row, b0, b1) in in_chunks(spec, own):
            assert 0 <= a0 <= a1 <= of_a[column]
            assert 0 <= b0 <= b1 <= of_b[row]
            assert starts[0][column] + a0 == starts[1][row] + b0
            met[0, starts[0][column] + a0 : starts[0][column] + a1] += 1
            met[1, starts[1][row] + b0 : starts[1][row] + b1] += 1
    assert (met == 1).all()


def test_a_matrix_by_its_own_transpose_is_recognized():
    x, y = RANDOM.random((20, 5)), RANDOM.random((20, 5))
    assert sum_tasks._mirrored(x.T, x)
    assert sum_tasks._mirrored(x[3:9].T, x[3:9])
    assert not any(sum_tasks._mirrored(a.T, b) for a, b in ((x, y), (x, x[1:]), (x, x[:, :4])))


def test_a_segment_is_where_most_of_it_is():
    a = da.zeros((10, 100), chunks=((8, 2), (50, 50)))
    b = da.zeros((100, 5), chunks=(25, 5))
    spec = spec_of(a, b)
    holders = {(a.name, 0, 0): ["x"], (a.name, 1, 0): ["y"], (b.name, 1, 0): ["y"]}
    assert segments(spec) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert places(spec, holders) == [["x"], ["x"], [], []]
    holders[a.name, 1, 0] = ["y", "x"]
    holders[b.name, 1, 0] = ["y", "z"]
    assert places(spec, holders) == [["x"], ["x"], [], []]


def test_lines_are_handed_over_where_multiplying_them_takes_longer():
    thin, wide = (da.zeros((n, 100_000), chunks=10_000) for n in (32, 1000))
    assert not worth_handing_over(spec_of(thin, thin.T))
    assert worth_handing_over(spec_of(wide, wide.T))
    assert moves_less(spec_of(thin, thin.T), 100)


@cluster()
async def test_empty_chunks_and_mixed_dtypes_in_every_layout(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    cuts = [
        (((0, 2), (5,)), ((5,), (0, 2))),
        (((2,), (0, 5)), ((5, 0), (2,))),
        (((1, 0, 1), (2, 0, 3)), ((0, 1, 4), (0, 2, 0))),
    ]
    kinds = cycle([("f4", "f8"), ("u1", "i4"), ("f8", "f8"), ("bool", "c8")])
    for (a_chunks, b_chunks), layout in product(cuts, (*LAYOUTS, INNER)):
        dtypes = next(kinds)
        a = da.ones((2, 5), chunks=a_chunks, dtype=dtypes[0])
        b = da.ones((5, 2), chunks=b_chunks, dtype=dtypes[1])
        expected = np.ones((2, 5), dtypes[0]) @ np.ones((5, 2), dtypes[1])
        found = await c.compute(await balancer.matmul(a, b, layout=layout, max_rounds=1))
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
