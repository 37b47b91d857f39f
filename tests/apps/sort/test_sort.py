"""`Balancer.sort` on a cluster: exact for any keys and dtype, whatever happens meanwhile."""

import asyncio
import threading
import time
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Worker, futures_of, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster
from hypothesis import given
from hypothesis import strategies as st

import fpmdask
from fpmdask.apps.sort import worker as share
from fpmdask.apps.sort.client import arrays
from fpmdask.apps.sort.coordinator import run, sorting
from fpmdask.errors import ChunksLostError, CoordinatorError, PartitionError
from fpmdask.runtime.coordinator import speeds as shares
from fpmdask.runtime.coordinator.team import Attempt
from fpmdask.runtime.worker.fetch import FetchFailed
from fpmdask.sorting.spec import SortSpec
from fpmdask.tuning import DEFAULT
from tests.eventually import nothing_left, side_of, until

CONFIG = {"distributed.scheduler.active-memory-manager.start": False}
RANDOM = np.random.default_rng(0)
ARRAYS = {
    "uniform": RANDOM.random(5000),
    "f4": RANDOM.random(500).astype("f4"),
    "f2": RANDOM.random(300).astype("f2"),
    "special": np.array([np.nan, 1.0, -0.0, 0.0, np.inf, -np.inf, np.nan] * 100),
    "int64": RANDOM.integers(-(2**62), 2**62, 3000),
    "uint8": RANDOM.integers(0, 256, 3000).astype("u1"),
    "bool": RANDOM.random(400) < 0.3,
    "equal": np.zeros(4000),
    "skewed": RANDOM.zipf(1.3, 4000),
    "ordered": np.arange(3000),
    "reversed": np.arange(3000)[::-1],
    "complex": RANDOM.random(500) + 1j * RANDOM.integers(0, 2, 500),
    "dates": np.array(["2024-05-01", "NaT", "1970-01-01"] * 70, "M8[ns]"),
    "deltas": RANDOM.integers(-99, 99, 300).astype("m8[s]"),
    "bytes": np.array([b"b", b"abc", b"", b"zz"] * 50),
    "text": np.array(["b", "äbc", "", "zz"] * 50, "U8"),
    "complex and not": np.array([1 + 2j, np.nan, complex(0, np.nan), 1 - 1j, -0.0] * 60),
    "one": np.array([3.0]),
    "two": np.array([2, 1]),
}
NUMBERS = [*np.typecodes["AllInteger"], *"efdgFDG?", ">i4", ">u8", ">f8", ">c16"]


def cluster(workers=3, nthreads=1, **options):
    threads = [("127.0.0.1", nthreads)] * workers
    return gen_cluster(client=True, nthreads=threads, config=CONFIG, timeout=60, **options)


async def without_channels(workers):
    for worker in workers:
        side = await side_of(worker)
        await side.channels.close()
        side.channels = None


@pytest.mark.slow
@cluster()
async def test_arrays_sort_as_in_numpy(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for name, values in ARRAYS.items():
        x = da.from_array(values, chunks=max(1, values.size // 7))
        for descending in (False, np.True_):
            found = await balancer.sort(x, descending=descending)
            expected = np.sort(values)[::-1] if descending else np.sort(values)
            assert found.dtype == expected.dtype, name
            np.testing.assert_array_equal(await c.compute(found), expected, name)
            assert found.shape == values.shape
        del found, x
    await nothing_left(s)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zeros only", "few values", "some zeros"])
@cluster()
async def test_many_negative_zeros_stay_as_many(c, s, *workers, kind):
    """Where zeros are a few of many keys NumPy's own sort takes the sign off some."""
    random, count = np.random.default_rng(3), 120_000
    zeros = random.choice([-0.0, 0.0], count)
    values = {
        "zeros only": zeros,
        "few values": random.choice([-1.0, -0.0, 0.0, 1.0], count),
        "some zeros": np.where(random.random(count) < 0.6, zeros, random.normal(size=count)),
    }[kind]
    balancer = await fpmdask.Balancer(c)
    for descending in (False, True):
        found = await c.compute(await balancer.sort(values, descending=descending))
        for some in (values, found):
            assert np.count_nonzero(some == 0) > count // 3
        assert np.signbit(found[found == 0]).sum() == np.signbit(values[values == 0]).sum()
        assert np.signbit(found).sum() == np.signbit(values).sum()


@pytest.mark.slow
@pytest.mark.parametrize("channels", [True, False])
@cluster(nthreads=2)
async def test_runs_in_order_only_within_blocks_and_parts_of_many_buckets(
    c, s, *workers, channels, tuning
):
    tuning(sort={"block_nbytes": 1 << 12, "block_samples": 1 << 10, "bucket_nbytes": 1 << 13})
    balancer = await fpmdask.Balancer(c)
    if not channels:
        await without_channels(workers)
    count = 120_000
    more = {
        "many": RANDOM.random(count),
        "most": np.where(RANDOM.random(count) < 0.95, 7.0, RANDOM.random(count)),
        "many ordered": np.arange(count),
        "many reversed": np.arange(count)[::-1],
    }
    for name, values in (ARRAYS | more).items():
        x = da.from_array(values, chunks=max(1, values.size // 7))
        descending = name.startswith(("many ", "special"))
        found = await balancer.sort(x, descending=descending)
        expected = np.sort(values)[::-1] if descending else np.sort(values)
        np.testing.assert_array_equal(await c.compute(found), expected, name)
        if name in more:
            report = balancer.report
            wanted = dict(zip(report.workers, report.distribution, strict=True))
            for part in report.shares:  # not all the same where earlier sorts took long
                assert abs(part["units"] / wanted[part["worker"]] - 1) <= 0.01, name


@pytest.mark.slow
@cluster()
async def test_every_kind_of_number_sorts_as_in_numpy(c, s, *workers):
    """Chunks without keys are among those with some."""
    balancer = await fpmdask.Balancer(c)
    for name in NUMBERS:
        values = (RANDOM.random(301) * 99 - 30).astype("f8").astype(name)
        if values.dtype.kind == "c":
            values += (1j * RANDOM.integers(0, 9, 301)).astype(name)
        x = c.persist(da.from_array(values, chunks=((0, 100, 0, 0, 200, 1, 0),)))
        found = await balancer.sort(x)
        assert found.dtype == np.sort(values).dtype, name
        np.testing.assert_array_equal(await c.compute(found), np.sort(values), name)
        at = await c.compute(await balancer.argsort(x))
        np.testing.assert_array_equal(np.sort(at), np.arange(301), name)
        np.testing.assert_array_equal(values[at], np.sort(values), name)


@pytest.mark.parametrize("channels", [True, False])
@cluster(nthreads=2)
async def test_one_part_per_thread_lies_on_its_worker(c, s, *workers, channels):
    balancer = await fpmdask.Balancer(c)
    if not channels:
        await without_channels(workers)
    values = RANDOM.random(300_000)
    x = c.persist(da.from_array(values, chunks=30_000))
    found = await balancer.sort(x)
    assert len(found.chunks[0]) == 6
    holders = await c.who_has(futures_of(found))
    assert sorted(len(addresses) for addresses in holders.values()) == [1] * 6
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))
    shares = balancer.report.shares
    assert sum(share["units"] for share in shares) == 300_000
    assert sum(share["keys_sorted"] for share in shares) == 300_000
    # two of three keys have another home, and some chunks are handed over
    moved = balancer.report.bytes_moved_per_byte
    assert 0.6 < moved == balancer.report.bytes_moved / 2_400_000 < 0.8


@cluster()
async def test_a_key_moves_once_and_only_to_another_worker(c, s, *workers):
    values = RANDOM.permutation(300_000).astype("f8")  # each of them once
    thirds = [
        c.persist(da.from_array(third, chunks=25_000), workers=[worker.address])
        for third, worker in zip(np.split(values, 3), workers, strict=True)
    ]
    await wait(thirds)
    balancer = await fpmdask.Balancer(c)
    found = await balancer.sort(da.concatenate(thirds))
    parts = futures_of(found)
    holders = await c.who_has(parts)
    stayed = 0
    for part, keys in zip(parts, await c.gather(parts), strict=True):
        (address,) = holders[part.key]
        at = [worker.address for worker in workers].index(address)
        stayed += np.isin(keys, values[at * 100_000 : (at + 1) * 100_000]).sum()
    assert balancer.report.bytes_moved == 8 * (300_000 - stayed)


@cluster()
async def test_shares_follow_measured_speeds_and_are_known_later(c, s, *workers, tuning):
    brief = {"timing_min_seconds": 0.002, "timing_budget_seconds": 0.004}
    tuning(sort={"few_keys": 0, **brief})
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.default_rng(1).random(60_000, chunks=5_000))
    found = await balancer.sort(x)
    first = balancer.report
    assert first.rounds
    assert [share["units"] for share in first.shares] == pytest.approx(
        [n for n in first.distribution if n], rel=0.01
    )
    await balancer.sort(x)
    assert balancer.report.reason == "known"
    assert not balancer.report.rounds
    np.testing.assert_array_equal(await c.compute(found), np.sort(await c.compute(x)))


@cluster()
async def test_who_is_through_soon_is_given_more(c, s, *workers, monkeypatch):
    """Its own seconds are too few to say much, but not beside those of the others."""
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.from_array(RANDOM.random(60_000), chunks=5_000))
    seconds = [0.01] + [1.0] * (len(workers) - 1)

    def taken(context):
        units = 60_000 // len(workers)
        return [
            (worker, units, took) for worker, took in zip(context.workers, seconds, strict=True)
        ]

    monkeypatch.setattr(run, "_taken", taken)
    await balancer.sort(x)
    await balancer.sort(x)
    assert balancer.report.reason == "known"
    share, *others = [n for n in balancer.report.distribution if n]
    assert share > 50 * max(others)
    seconds = [0.01] * len(workers)  # all too short to tell anything
    await balancer.sort(x)
    await balancer.sort(x)
    assert [n for n in balancer.report.distribution if n] == [share, *others]


@cluster()
async def test_the_first_step_of_a_run_corrects_what_the_kernel_told(c, s, *workers, tuning):
    tuning(sort={"few_keys": 0}, runtime={"learned_least_seconds": 0.0})
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random(120_000)
    x = c.persist(da.from_array(values, chunks=5_000))
    found = await balancer.sort(x)
    report = balancer.report
    assert report.reason == "measured"
    speeds = [share["keys_sorted"] / share["phases"]["sort"] for share in report.shares]
    fair = [120_000 * speed / sum(speeds) for speed in speeds]
    assert [n for n in report.distribution if n] == pytest.approx(fair, abs=2)
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))


@cluster()
async def test_numpy_and_unknown_chunks_and_few_keys(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.integers(0, 1000, 2000)
    found = await balancer.sort(values)
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))
    x = da.from_array(values, chunks=300)
    some = x[x > 500]
    assert np.isnan(some.chunks[0][0])
    found = await balancer.sort(some)
    np.testing.assert_array_equal(await c.compute(found), np.sort(values[values > 500]))
    nothing = await balancer.sort(x[x > 5000])
    assert (await c.compute(nothing)).size == 0
    assert (await c.compute(await balancer.sort(np.empty(0)))).size == 0


@cluster()
async def test_named_workers_only(c, s, *workers):
    balancer = await fpmdask.Balancer(c, workers=["0", "2"])
    values = RANDOM.random(1000)
    x = c.persist(da.from_array(values, chunks=100))
    await wait(x)
    found = await balancer.sort(x)
    assert [share["worker"] for share in balancer.report.shares] == ["0", "2"]
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))


@pytest.mark.parametrize("step", ["measure", "sort", "count", "exchange", "publish"])
@cluster()
async def test_a_worker_that_leaves_in_any_step_costs_nothing_but_time(
    c, s, *workers, step, tuning
):
    reached = asyncio.Event()
    if step == "measure":
        long = {"timing_min_seconds": 0.3, "timing_budget_seconds": 0.5}
        tuning(sort={"few_keys": 0, **long})

    def progress(event):
        if event["event"] == "step" and event["step"] == step and event["attempt"] == 0:
            reached.set()

    balancer = await fpmdask.Balancer(c, progress=progress)
    x = c.persist(da.random.default_rng(1).random(200_000, chunks=10_000))
    expected = np.sort(await c.compute(x))
    running = asyncio.ensure_future(balancer.sort(x))
    if step == "measure":  # there is no event where it begins
        await until(lambda: workers[1].state.executing)
    else:
        await reached.wait()
    await workers[1].close(timeout=1)
    found = await asyncio.wait_for(running, 30)
    np.testing.assert_array_equal(await c.compute(found), expected)
    assert bool(balancer.report.rounds) == (step == "measure")
    del found, x, running
    await nothing_left(s)


@cluster()
async def test_nothing_more_is_sorted_of_a_part_that_cannot_be_received(
    c, s, *workers, monkeypatch, tuning
):
    """Its buckets that wait to be put in order are dropped."""
    tuning(sort={"block_nbytes": 1 << 12, "bucket_nbytes": 1 << 13})
    fetched, at_work = share._Share._fetched, share._Share._at_work
    failed, sorted_then, sorted_of = [], [], {}

    def received(self, wanted, *filled):
        found = fetched(self, wanted, *filled)
        if not failed and any(
            item.key[0] == share.RUN for items in wanted.values() for item in items
        ):
            failed.append(self)
            sorted_then.append(sorted_of.get(self, 0))
            raise FetchFailed({"keys": (next(iter(wanted)), "has not got it")})
        return found

    def counted(self, work, *args):
        if work.__name__ == "put_in_order":
            time.sleep(0.02)  # meanwhile all buckets of a part arrive
            sorted_of[self] = sorted_of.get(self, 0) + 1
        return at_work(self, work, *args)

    monkeypatch.setattr(share._Share, "_fetched", received)
    monkeypatch.setattr(share._Share, "_at_work", counted)
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random(100_000)
    found = await balancer.sort(da.from_array(values, chunks=9_000))
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))
    [missed] = failed
    assert sorted_of[missed] <= sorted_then[0] + 1
    others = [count for one, count in sorted_of.items() if one is not missed]
    assert max(others) > sorted_of[missed] + 10


@cluster()
async def test_a_worker_that_leaves_while_shares_are_revised_costs_nothing_but_time(
    c, s, *workers, monkeypatch
):
    original, left = shares.Speeds.revised, []

    async def revised(self, *given):
        found = await original(self, *given)
        if not left:
            left.append(await workers[1].close(timeout=1))
            await until(lambda: workers[1].address not in s.workers)
        return found

    monkeypatch.setattr(shares.Speeds, "revised", revised)
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random(100_000)
    found = await asyncio.wait_for(balancer.sort(da.from_array(values, chunks=9_000)), 30)
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))
    assert left


@cluster(workers=2)
async def test_chunks_that_only_a_worker_without_fpmdask_holds_are_refused(
    c, s, *workers, monkeypatch, tuning
):
    tuning(runtime={"join_seconds": 0.2})
    balancer = await fpmdask.Balancer(c)
    for worker in workers:
        assert not await worker.plugins["fpmdask"].starting  # with the version that is there
    with monkeypatch.context() as patch:
        patch.setattr(fpmdask, "__version__", "0.0.1")  # as its plugin finds it
        bare = await Worker(s.address, name="bare", nthreads=1)
        assert "runs fpmdask 0.0.1" in await bare.plugins["fpmdask"].starting
    async with bare:
        x = c.persist(da.ones(1000, chunks=100), workers=[bare.address])
        await wait(x)
        with pytest.raises(CoordinatorError, match=r"10 of 10 chunks are only on .* \(bare\); "):
            await balancer.sort(x)


@pytest.mark.slow
@cluster()
async def test_positions_are_a_permutation_that_sorts(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for name, values in ARRAYS.items():
        x = c.persist(da.from_array(values, chunks=max(1, values.size // 7)))
        for descending in (False, True):
            found = await balancer.argsort(x, descending=descending)
            assert found.dtype == np.int64
            at = await c.compute(found)
            np.testing.assert_array_equal(np.sort(at), np.arange(values.size), name)
            expected = np.sort(values)[::-1] if descending else np.sort(values)
            np.testing.assert_array_equal(values[at], expected, name)
        del found, x
    assert (await c.compute(await balancer.argsort(np.empty(0)))).dtype == np.int64
    await nothing_left(s)


@pytest.mark.parametrize("kind", ["S", "U"])
@pytest.mark.parametrize("lazy", [False, True])
@cluster()
async def test_elements_of_no_bytes_sort_too(c, s, *workers, kind, lazy):
    balancer = await fpmdask.Balancer(c)
    field = np.zeros(30, [("text", f"{kind}0"), ("number", "i4")])["text"]
    x = da.from_array(field, chunks=4) if lazy else field
    found = await asyncio.wait_for(balancer.sort(x), 30)
    np.testing.assert_array_equal(await c.compute(found), field)
    positions = await asyncio.wait_for(balancer.argsort(x), 30)
    assert sorted(await c.compute(positions)) == [*range(30)]
    del found, positions
    await nothing_left(s)


@pytest.mark.parametrize("at_once", [1, DEFAULT.sort.group_nbytes])
@pytest.mark.parametrize("descending", [False, True])
@cluster(nthreads=2)
async def test_positions_that_are_lost_are_made_again_as_they_were(
    c, s, *workers, descending, at_once, tuning
):
    """Also of equal keys, which are in the order of the workers' runs."""
    tuning(sort={"group_nbytes": at_once})
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.default_rng(1).integers(0, 5, 200_000, chunks=10_000))
    found = await balancer.argsort(x, descending=descending)
    before = await c.compute(found)
    await workers[0].close(timeout=1)
    np.testing.assert_array_equal(await c.compute(found), before)


@pytest.mark.parametrize("at_once", [3_000, DEFAULT.sort.group_nbytes])
@cluster()
async def test_a_result_that_is_lost_is_made_again(c, s, *workers, at_once, tuning):
    tuning(sort={"group_nbytes": at_once})
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.default_rng(1).integers(0, 999, 20_000, chunks=1_000))
    found = await balancer.sort(x, descending=True)
    expected = np.sort(await c.compute(x))[::-1]
    await workers[0].close(timeout=1)
    np.testing.assert_array_equal(await c.compute(found), expected)


@given(
    st.lists(st.sampled_from([np.nan, -0.0, 0.0, 1.0, np.inf]) | st.floats(), max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
    st.integers(1, 5),
    st.booleans(),
)
def test_lost_parts_are_made_again_of_groups_of_chunks(values, cuts, groups, descending):
    x = np.array(values, "f8")
    pieces = np.array_split(x, 4)
    spec = SortSpec(x.dtype, tuple(map(len, pieces)), "x", descending)
    edges = [0, *sorted(min(cut, x.size) for cut in cuts), x.size]
    parts = [np.sort(x)[low:high] for low, high in pairwise(edges)]
    ends = [*map(share.ends_of, parts)]
    expected = [part[::-1] for part in reversed(parts)] if descending else parts
    graph = arrays._keys_again(spec, "y", [part.size for part in expected], ends, groups)
    most = -(-len(pieces) // groups)
    inputs = set(spec.keys)
    assert all(len(inputs & task.dependencies) <= most for task in graph.values())
    made = dask.get(
        graph | dict(zip(spec.keys, pieces, strict=True)),
        [("y", n) for n in range(len(parts))],
    )
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@cluster()
async def test_a_numpy_array_is_sent_again_where_a_worker_with_blocks_of_it_leaves(c, s, *workers):
    leaving = []

    def progress(event):
        if event["event"] == "step" and event["step"] == "count" and not leaving:
            leaving.append(asyncio.ensure_future(workers[1].close(timeout=1)))

    balancer = await fpmdask.Balancer(c, progress=progress)
    x = RANDOM.random(3_000_000)
    with dask.config.set({"fpmdask.recovery": "1s"}):
        found = await balancer.sort(x)
    await leaving[0]
    np.testing.assert_array_equal(await c.compute(found), np.sort(x))
    del found
    await nothing_left(s)


@cluster()
async def test_lost_chunks_are_named(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    futures = await c.scatter(
        {("only", n): np.arange(10.0) for n in range(3)}, direct=True, hash=False
    )
    x = da.Array(futures, "only", chunks=((10, 10, 10),), dtype="f8")
    (lost,) = workers[0].data
    await workers[0].close(timeout=1)
    with pytest.raises(ChunksLostError, match=rf"1 input chunks .*: \('only', {lost[1]}\)"):
        await balancer.sort(x)


@pytest.mark.parametrize("step", ["sort", "count", "exchange"])
@cluster()
async def test_the_only_copy_that_is_lost_on_the_way_is_named(c, s, *workers, step):
    lost = asyncio.Event()

    def progress(event):
        if event["event"] == "step" and event["step"] == step:
            lost.set()

    balancer = await fpmdask.Balancer(c, progress=progress)
    data = {("only", n): RANDOM.random(1_000_000) for n in range(3)}
    futures = await c.scatter(data, direct=True, hash=False)
    x = da.Array(futures, "only", chunks=((1_000_000,) * 3,), dtype="f8")
    (key,) = workers[1].data
    running = asyncio.ensure_future(balancer.sort(x))
    await lost.wait()
    await workers[1].close(timeout=1)
    with pytest.raises(ChunksLostError, match=f"1 input chunks were only on .*'only', {key[1]}"):
        await asyncio.wait_for(running, 30)


@cluster()
async def test_bad_arrays_are_refused_at_once(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    ones = np.ones(4)
    for x, says in [
        ([1, 2], "found a list, which is no array; give a dask or NumPy array"),
        (np.ones((2, 2)), "found 2 dimensions"),
        (np.array([1, "a"], object), "found dtype object"),
        (np.zeros(3, [("a", "i4")]), "structured dtype"),
        (np.ma.array(ones), "without a mask"),
        (da.from_array(np.ma.array(ones)), "without a mask"),
        (np.float64(3), "found a float64"),
    ]:
        with pytest.raises(PartitionError, match=says):
            balancer.sort(x)
    with pytest.raises(PartitionError, match="descending = 1"):
        balancer.sort(ones, descending=1)
    wrong = da.ones(8, chunks=4).map_blocks(lambda block: block[:1], dtype="f8")
    with pytest.raises(PartitionError, match="its dask array says"):
        await balancer.sort(wrong)
    assert not s.plugins["fpmdask"].runs


@cluster()
async def test_chunks_of_another_kind_are_refused(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    ones = da.ones(8, chunks=2, dtype="i8")
    for real, declared in [("f8", "int64"), ("i8", "int32"), ("f8", "float32"), ("U9", "<U1")]:
        x = ones.map_blocks(lambda block, real=real: block.astype(real), dtype=declared)
        with pytest.raises(PartitionError, match=f"its dask array says {declared}"):
            await balancer.sort(x)


@cluster()
async def test_narrower_chunks_become_what_the_array_says(c, s, *workers):
    """Also those of a part that is made again."""
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.arange(6000, chunks=500).map_blocks(lambda b: b.astype("f4"), dtype="f8"))
    found = await balancer.sort(x, descending=True)
    await workers[0].close(timeout=1)
    kinds = c.map(lambda chunk: chunk.dtype.str, futures_of(found), pure=False)
    assert set(await c.gather(kinds)) == {np.dtype("f8").str}
    np.testing.assert_array_equal(await c.compute(found), np.arange(6000.0)[::-1])


@cluster()
async def test_a_worker_that_hangs_is_not_waited_for(c, s, *workers, monkeypatch):
    """Its chunks have copies elsewhere; it is left out after the patience for hanging workers."""
    balancer = await fpmdask.Balancer(c)
    release = threading.Event()
    original = share._Share._runs

    def hangs(self):
        if str(self.side.worker.name) == "1" and not release.is_set():
            release.wait(60)
        return original(self)

    monkeypatch.setattr(share._Share, "_runs", hangs)
    x = c.persist(da.random.default_rng(1).random(30_000, chunks=1_000))
    await wait(x)
    await c.replicate(futures_of(x))
    with dask.config.set({"fpmdask.hang": "1s"}):
        found = await asyncio.wait_for(balancer.sort(x), 40)
    assert "as late as the others" in balancer.report.left_out["1"]
    release.set()
    np.testing.assert_array_equal(await c.compute(found), np.sort(await c.compute(x)))


@pytest.mark.parametrize("others", [0, 2])
@cluster()
async def test_paused_workers_are_named_or_done_without(
    c, s, *workers, others, monkeypatch, tuning
):
    tuning(runtime={"rejoin_seconds": 0.0})
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random(3000)
    x = c.persist(da.from_array(values, chunks=100))
    await wait(x)
    await c.replicate(futures_of(x))
    stopped = workers[others:]
    dispatch = Attempt.dispatch

    def pausing(self, *args):
        for worker in stopped:
            worker.memory_manager.memory_pause_fraction = False  # nobody wakes it up
            worker.status = Status.paused
        dispatch(self, *args)

    monkeypatch.setattr(Attempt, "dispatch", pausing)
    with dask.config.set({"fpmdask.hang": "1s"}):
        sorting = asyncio.wait_for(balancer.sort(x), 20)
        if others:
            found = await sorting
            assert "it is paused" in balancer.report.left_out["2"]
            np.testing.assert_array_equal(await c.compute(found), np.sort(values))
        else:
            with pytest.raises(CoordinatorError, match=r"it is paused.* its memory is full"):
                await sorting
    for worker in stopped:
        worker.status = Status.running


@cluster()
async def test_numpy_keys_go_to_the_named_workers_only(c, s, *workers):
    balancer = await fpmdask.Balancer(c, workers=["0", "2"])
    values = RANDOM.random(6000)
    held = []

    def heard(event):
        held.append([len(worker.data) for worker in workers])

    balancer.progress = heard
    found = await balancer.sort(values)
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))
    assert all(on_second == 0 for _, on_second, _ in held)
    assert any(min(first, third) > 0 for first, _, third in held)


@cluster()
async def test_steps_in_which_nobody_is_done_may_take_long(c, s, *workers, monkeypatch):
    original = share._Share._runs
    monkeypatch.setattr(share._Share, "_runs", lambda self: (time.sleep(3), original(self))[1])
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random(1000)
    with dask.config.set({"fpmdask.hang": "1s"}):
        found = await balancer.sort(values)
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))
    assert not balancer.report.left_out


@cluster(worker_kwargs={"memory_limit": 0})
async def test_workers_without_a_memory_limit_sort(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random(5000)
    np.testing.assert_array_equal(await c.compute(await balancer.sort(values)), np.sort(values))
    order = await balancer.argsort(values)
    np.testing.assert_array_equal(await c.compute(order), np.argsort(values))


def check_shares(report):
    """Every part is within a hundredth of its share; on a machine that others use, none is even."""
    wanted = dict(zip(report.workers, report.distribution.tolist(), strict=True))
    for part in report.shares:
        assert abs(part["units"] / wanted[part["worker"]] - 1) <= 0.01


@cluster(nthreads=2)
async def test_counts_are_repeated_where_samples_mislead(c, s, *workers, monkeypatch):
    """With two samples of each run the first counts cannot meet any share."""
    monkeypatch.setattr(sorting, "sample_count", lambda *_: 2)
    steps = []
    balancer = await fpmdask.Balancer(c, progress=lambda e: steps.append(e.get("step")))
    values = RANDOM.random(300_000)  # few: the same for everybody
    for descending in (False, True):
        found = await balancer.sort(values, descending=descending)
        expected = np.sort(values)[::-1] if descending else np.sort(values)
        np.testing.assert_array_equal(await c.compute(found), expected)
        check_shares(balancer.report)
    assert steps.count("count") > 4


@pytest.mark.parametrize("kind", ["equal", "most", "zipf", "ordered", ">f8", ">U8", "S10"])
@cluster()
async def test_skewed_keys_are_shared_out_within_a_hundredth(c, s, *workers, kind):
    count = 120_000  # few: the same for everybody
    values = {
        "equal": np.full(count, 7),
        "most": np.where(RANDOM.random(count) < 0.95, 7, RANDOM.integers(0, 99, count)),
        "zipf": RANDOM.zipf(1.3, count),
        "ordered": np.arange(count),
        ">f8": RANDOM.random(count).astype(">f8"),  # in FITS files
        ">U8": RANDOM.integers(0, 10**8, count).astype(">U8"),
        "S10": RANDOM.integers(0, 2**62, count).astype("S10"),
    }[kind]
    balancer = await fpmdask.Balancer(c)
    found = await balancer.sort(values)
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))
    check_shares(balancer.report)


@pytest.mark.parametrize("kind", ["equal", "most", "zipf"])
@cluster()
async def test_positions_of_skewed_keys_are_shared_out_within_a_hundredth(c, s, *workers, kind):
    count = 120_000
    values = {
        "equal": np.full(count, 7.0),
        "most": np.where(RANDOM.random(count) < 0.95, 7.0, RANDOM.random(count)),
        "zipf": RANDOM.zipf(1.3, count),
    }[kind]
    balancer = await fpmdask.Balancer(c)
    found = await c.compute(await balancer.argsort(values))
    np.testing.assert_array_equal(np.sort(found), np.arange(count))
    np.testing.assert_array_equal(values[found], np.sort(values))
    check_shares(balancer.report)


@cluster()
async def test_what_cannot_be_sorted_is_refused_before_it_is_computed(c, s, *workers):
    """Neither names that are unknown nor more than the memory leave a task behind."""
    x = da.random.default_rng(1).random(1000, chunks=100)
    with pytest.raises(CoordinatorError, match="no worker nope"):
        await (await fpmdask.Balancer(c, workers=["nope"])).sort(x)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(PartitionError, match="not in memory yet"):
        await balancer.sort(da.zeros(10**13, chunks=10**12))
    assert not s.tasks


@cluster()
async def test_the_report_shows_and_keeps_a_sort(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    await balancer.sort(RANDOM.random(1000))
    report = balancer.report
    assert report.app == "sort"
    assert "sort" in report._repr_html_()
    report.save(tmp_path / "run.json")
    assert type(report).load(tmp_path / "run.json").shares == report.shares


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    config=CONFIG,
    worker_kwargs={"memory_limit": "400 MB"},
)
async def test_what_does_not_fit_is_refused_with_the_numbers(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(PartitionError, match="have room for"):
        await balancer.sort(da.zeros(25_000_000, dtype="f8", chunks=1_000_000))
