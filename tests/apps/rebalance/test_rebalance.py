"""`Balancer.rebalance`: the same rows in the same order, where the shares want them."""

import asyncio
import threading
import time
from importlib import import_module

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, Worker, futures_of, get_worker, wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.errors import ChunksLostError, CoordinatorError, KernelError, PartitionError
from fpmdask.lab.cluster import registered
from fpmdask.runtime.client.rows import partitions_of
from tests.apps.rebalance.placed import array_on, frame_on, keys_in_order, rows_on
from tests.eventually import no_data, nothing_left, side_of, until

CONFIG = {
    "distributed.scheduler.active-memory-manager.start": False,
    "fpmdask.timing.min-seconds": 0.002,
    "fpmdask.timing.budget-seconds": 0.01,
}
EVEN = [30, 30, 30]
SHARES = {"0": 50, "1": 30, "2": 10}
SPEEDS = {"0": 4.0, "1": 2.0, "2": 1.0}
VALUES = np.arange(90.0)


def cluster(workers=3, config=None, **options):
    threads = [("127.0.0.1", 1)] * workers
    both = {**CONFIG, **(config or {})}
    return gen_cluster(client=True, nthreads=threads, config=both, timeout=60, **options)


def emulated(x, *more):
    """Take as long as a worker of its speed would."""
    time.sleep(len(x) / SPEEDS[str(get_worker().name)] * 1e-3)


JOINED = threading.Event()


def waits_for_another(x):
    assert JOINED.wait(30)
    emulated(x)


# ---- order, values, places


@pytest.mark.slow
@cluster()
async def test_rows_by_a_distribution_keep_their_order_and_those_that_stay_do_not_move(
    c, s, *workers
):
    balancer = await fpmdask.Balancer(c)
    values = np.arange(180.0).reshape(90, 2)
    x = await array_on(c, workers, values, EVEN, [0, 1, 2])
    y = await array_on(c, workers, VALUES.astype("i4"), EVEN, [0, 1, 2])
    x2, y2 = await balancer.rebalance(x, y, distribution=SHARES)
    assert x2.chunks[0] == y2.chunks[0]
    assert x2.dtype == "f8"
    assert y2.dtype == "i4"
    for found in (x2, y2):
        rows, _ = await rows_on(c, found)
        assert {name: n for name, (n, _) in rows.items()} == SHARES
        assert max(chunks for _, chunks in rows.values()) <= 3
    report = balancer.report
    assert report.bytes_moved == 20 * (16 + 4)
    assert dict(zip(report.workers, report.distribution.tolist(), strict=True)) == SHARES
    assert {*report.phases} == {"prepare", "measure", "move"}
    assert report.reason == "given"
    # again, by the report: nothing moves
    again = await balancer.rebalance(x2, distribution=report)
    assert balancer.report.bytes_moved == 0
    assert again.chunks == x2.chunks
    np.testing.assert_array_equal(await c.compute(x2), values)
    np.testing.assert_array_equal(await c.compute(y2), np.arange(90))
    del x, y, x2, y2, again, found
    await nothing_left(s)


@cluster()
async def test_chunks_that_stay_are_the_same_memory(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, [10] * 9, [0, 0, 0, 0, 0, 1, 1, 1, 2])
    frame = pd.DataFrame({"a": VALUES, "b": VALUES.astype(str)})
    y = await frame_on(c, workers, frame, [10] * 9, [0, 0, 0, 0, 0, 1, 1, 1, 2])
    x2, y2 = await balancer.rebalance(x, y, distribution=SHARES)
    assert balancer.report.bytes_moved == 0
    assert x2.chunks == x.chunks
    assert y2.divisions == y.divisions
    data = {key: value for worker in workers for key, value in worker.data.items()}
    for old, new in zip(keys_in_order(x), keys_in_order(x2), strict=True):
        assert np.shares_memory(data[old], data[new])
    for old, new in zip(keys_in_order(y), keys_in_order(y2), strict=True):
        assert data[old] is data[new]


@cluster()
async def test_what_is_asked_of_several_frames_is_asked_at_once(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    frame, asked, gather = pd.DataFrame({"a": VALUES}), [], s.handlers["gather"]

    async def noting(keys, **more):
        asked.append(len(keys))
        return await gather(keys=keys, **more)

    s.handlers["gather"] = noting
    frames = [await frame_on(c, workers, frame, [10 * n, 90 - 10 * n], [0, 2]) for n in (1, 3, 5)]
    weights = await array_on(c, workers, VALUES + 1, EVEN, [0, 1, 2])
    asked.clear()
    found = await balancer.rebalance(*frames, seconds=SPEEDS, weights=weights)
    assert [one.known_divisions for one in found] == [True] * 3
    # lengths of the partitions given, weights, ends of those made
    assert asked == [6, 3, sum(one.npartitions for one in found)]


@cluster()
async def test_what_is_cut_has_memory_of_its_own(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    frame = pd.DataFrame({"a": VALUES})
    y = await frame_on(c, workers, frame, EVEN, [0, 1, 2])
    x2, y2 = await balancer.rebalance(x, y, distribution=SHARES)
    old = {key: workers[n].data[key] for n, key in enumerate(keys_in_order(x))}
    for key in keys_in_order(x2):
        for worker in workers:
            if key in worker.data and len(worker.data[key]) != 30:
                assert worker.data[key].base is None
                assert not any(np.shares_memory(worker.data[key], one) for one in old.values())
    assert len(await c.compute(y2)) == 90


FRAME = pd.DataFrame(
    {
        "number": VALUES,
        "nullable": pd.array([None, 1, 2] * 30, dtype="Int64"),
        "kind": pd.Categorical(["a", "b", "c"] * 30, ["c", "b", "a"], ordered=True),
        "object": [None, "x", 3] * 30,
        "date": pd.date_range("2024", periods=90, tz="Europe/Berlin"),
    },
    index=pd.Index(VALUES.astype(int) * 2, name="label"),
)


@pytest.mark.slow
@cluster()
async def test_frames_keep_dtypes_index_and_divisions(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    ddf = await frame_on(c, workers, FRAME, EVEN, [2, 0, 1])
    x = await array_on(c, workers, VALUES, [45, 45], [0, 1])
    ddf2, s2, x2 = await balancer.rebalance(ddf, ddf["kind"], x, distribution=SHARES)
    assert isinstance(ddf2, dd.DataFrame)
    assert isinstance(s2, dd.Series)
    assert ddf2.known_divisions
    rows, lengths = await rows_on(c, ddf2)
    assert {name: n for name, (n, _) in rows.items()} == SHARES
    for part in (s2, x2):
        assert (await rows_on(c, part))[1] == lengths
    pd.testing.assert_frame_equal(await c.compute(ddf2), FRAME)
    pd.testing.assert_series_equal(await c.compute(s2), FRAME["kind"])
    np.testing.assert_array_equal(await c.compute(x2), VALUES)
    edges = np.cumsum([0, *lengths])
    assert list(ddf2.divisions) == [*FRAME.index[edges[:-1]], FRAME.index[-1]]
    pd.testing.assert_frame_equal(await c.compute(ddf2.loc[20:40]), FRAME.loc[20:40])
    # without known divisions they stay unknown; where equal labels are parted they get unknown
    unknown = await frame_on(c, workers, FRAME, EVEN, [0, 1, 2], known=False)
    assert not (await balancer.rebalance(unknown, distribution=SHARES)).known_divisions
    equal = FRAME.set_index(np.repeat([0, 1, 2], 30))
    parted = await frame_on(c, workers, equal, EVEN, [0, 1, 2])
    assert not (await balancer.rebalance(parted, distribution=SHARES)).known_divisions
    kept = await balancer.rebalance(parted, distribution={"0": 60, "1": 30, "2": 0})
    assert kept.divisions == (0, 1, 2, 2)


@cluster()
async def test_of_frames_only_the_rows_that_must_move_do(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    frame = pd.DataFrame({"a": np.random.default_rng(0).random(90_000)})
    ddf = await frame_on(c, workers, frame, [30_000] * 3, [0, 1, 2])
    shares = {name: 1000 * rows for name, rows in SHARES.items()}
    found = await balancer.rebalance(ddf, distribution=shares)
    assert 160_000 <= balancer.report.bytes_moved < 170_000
    pd.testing.assert_frame_equal(await c.compute(found), frame)


@pytest.mark.slow
@cluster()
async def test_arrays_of_other_types(c, s, *workers):
    from scipy import sparse

    balancer = await fpmdask.Balancer(c)
    records = np.zeros(90, [("a", "f8"), ("b", "i4")])
    records["b"] = np.arange(90)
    cases = {
        "structured": records,
        "object": np.array([None, "x", (1, 2)] * 30, dtype=object),
        "text": np.array(["a", "bc", ""] * 30),
        "date": np.arange(90).astype("M8[D]"),
        "bool": VALUES > 30,
        "4-d": np.arange(90 * 2 * 3 * 2).reshape(90, 2, 3, 2),
    }
    for name, values in cases.items():
        x = await array_on(c, workers, values, EVEN, [0, 1, 2])
        found = await balancer.rebalance(x, distribution=SHARES)
        assert found.dtype == values.dtype, name
        np.testing.assert_array_equal(await c.compute(found), values, name)
    matrix = sparse.random_array((90, 40), density=0.2, format="csr", rng=np.random.default_rng(0))
    x = await array_on(c, workers, matrix, EVEN, [0, 1, 2], meta=sparse.csr_array((0, 0)))
    found = await balancer.rebalance(x, distribution=SHARES)
    blocks = await c.gather(c.compute(list(found.to_delayed().ravel())))
    np.testing.assert_array_equal(sparse.vstack(blocks).toarray(), matrix.toarray())
    assert await rows_of(c, found) == SHARES


async def rows_of(c, x):
    """Return worker name → rows."""
    return {name: rows for name, (rows, _) in (await rows_on(c, x))[0].items()}


@pytest.mark.slow
@cluster()
async def test_lazy_numpy_and_unknown_collections(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    lazy = da.arange(90, chunks=20).astype(float)
    columns = da.ones((90, 4), chunks=(20, 2))
    unknown = lazy[lazy >= 0]
    plain = FRAME.drop(columns="object")  # which from_pandas makes strings of
    ddf = dd.from_pandas(plain, npartitions=4)
    made = await balancer.rebalance(lazy, columns, unknown, VALUES, ddf, distribution=SHARES)
    for found, expected in zip(made[:-1], (VALUES, np.ones((90, 4)), VALUES, VALUES), strict=True):
        assert await rows_of(c, found) == SHARES
        np.testing.assert_array_equal(await c.compute(found), expected)
    pd.testing.assert_frame_equal(await c.compute(made[-1]), plain)


@cluster()
async def test_masks_are_kept(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    values = np.ma.masked_array(VALUES, VALUES % 3 == 0)
    for x in (values, da.from_array(values, chunks=20)):
        found = await c.compute(await balancer.rebalance(x, distribution=SHARES))
        np.testing.assert_array_equal(np.ma.getmaskarray(found), values.mask)
        np.testing.assert_array_equal(found.compressed(), values.compressed())


@pytest.mark.slow
@cluster()
async def test_empty_collections(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x, ddf = da.zeros((0, 3)), dd.from_pandas(FRAME.iloc[:0], npartitions=1)
    x2, ddf2 = await balancer.rebalance(x, ddf, distribution={"0": 0})
    assert x2.shape == (0, 3)
    assert len(await c.compute(ddf2)) == 0
    found = await balancer.rebalance(x, kernel=emulated)
    assert found.shape == (0, 3)
    assert balancer.report.distribution.tolist() == [0, 0, 0]
    found = await balancer.rebalance(x, seconds={"0": 1.0}, weights=[], groups=[])
    assert found.shape == (0, 3)
    some = await array_on(c, workers, VALUES, [0, 90, 0], [0, 1, 2])
    found = await balancer.rebalance(some, distribution=SHARES)
    assert 0 not in found.chunks[0]
    np.testing.assert_array_equal(await c.compute(found), VALUES)


@cluster()
async def test_what_is_right_already_is_returned_as_it_is(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    # divisions hold, though labels are in no order within a partition
    frame = FRAME.set_index(np.arange(90).reshape(3, 30)[:, ::-1].ravel())
    ddf = await frame_on(c, workers, frame, EVEN, [0, 1, 2], known=False)
    parts = partitions_of(ddf)
    keys = [part.key for part in parts]
    ddf = dd.from_graph(
        dict(zip(keys, parts, strict=True)), frame[:0], (0, 30, 60, 89), keys, "own"
    )
    before = {*s.tasks}
    for seconds in (1.0, 1.01):
        x2, ddf2 = await balancer.rebalance(x, ddf, seconds={"0": 1.0, "1": 1.0, "2": seconds})
        assert x2.name == x.name
        assert ddf2.divisions == ddf.divisions
        assert balancer.report.bytes_moved == 0
        assert balancer.report.distribution.tolist() == EVEN
    assert not any("rebalance" in str(key) for key in s.tasks.keys() - before)
    # fewer rows than workers: the third one could do nothing before the others are done
    few = await array_on(c, workers, VALUES[:2], [1, 1], [2, 1])
    assert (await balancer.rebalance(few, seconds={"1": 1.0, "2": 1.0})).name == few.name
    assert balancer.report.reason == "as held"


# ---- shares


@pytest.mark.slow
@cluster()
async def test_shares_by_a_kernel(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    values = np.arange(2100.0)
    x = await array_on(c, workers, values, [700] * 3, [0, 1, 2])
    x2 = await balancer.rebalance(x, kernel=emulated)
    report = balancer.report
    rows = await rows_of(c, x2)
    assert rows == dict(zip(report.workers, report.distribution.tolist(), strict=True))
    assert rows["0"] > 1.5 * rows["1"] > 2 * rows["2"]
    assert report.rounds
    assert report.phases["measure"] > 0
    assert report.predicted_seconds > 0
    # within epsilon already: nothing moves
    with dask.config.set({"fpmdask.epsilon": 0.5}):
        x3 = await balancer.rebalance(x2, kernel=emulated)
    assert balancer.report.reason == "as held"
    assert balancer.report.bytes_moved == 0
    assert x3.chunks == x2.chunks
    np.testing.assert_array_equal(await c.compute(x2), values)


@pytest.mark.slow
@cluster()
async def test_a_kernel_gets_local_rows_of_all_collections_and_rows_of_others_where_there_are_none(
    c, s, *workers
):
    balancer = await fpmdask.Balancer(c)

    def kernel(x, frame):
        assert len(x) == len(frame) > 0
        np.testing.assert_array_equal(x, frame["number"].to_numpy())
        assert not x.flags.writeable
        emulated(x)

    x = await array_on(c, workers, VALUES, [60, 30], [0, 1])
    ddf = await frame_on(c, workers, FRAME, [20, 40, 30], [0, 0, 1])
    x2, ddf2 = await balancer.rebalance(x, ddf, kernel=kernel)
    assert (await rows_of(c, x2)) == (await rows_of(c, ddf2))
    assert (await rows_of(c, x2))["2"] > 0
    pd.testing.assert_frame_equal(await c.compute(ddf2), FRAME)


@pytest.mark.slow
@cluster()
async def test_what_a_kernel_raises_is_raised_with_the_workers_name(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])

    def fails(x):
        if str(get_worker().name) == "1":
            raise ZeroDivisionError("oh")
        emulated(x)

    with pytest.raises(ZeroDivisionError, match="oh") as raised:
        await balancer.rebalance(x, kernel=fails)
    assert "on 1: ZeroDivisionError: oh" in "".join(raised.value.__notes__)
    with pytest.raises(KernelError, match="cannot be sent"):
        await balancer.rebalance(x, kernel=lambda x, s=s: s)
    del x, raised
    await nothing_left(s)


@cluster()
async def test_a_kernel_of_no_time_leaves_rows_where_they_are(c, s, *workers, monkeypatch):
    measuring = import_module("fpmdask.timing.measure")  # not the function of this name
    monkeypatch.setattr(measuring, "SHORTEST_SECONDS", 1.0)  # on any machine, with any load
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, [50, 30, 10], [0, 1, 2])
    with pytest.warns(UserWarning, match="too little time"):
        x2 = await balancer.rebalance(x, kernel=len)
    assert balancer.report.bytes_moved == 0
    assert x2.chunks == x.chunks
    # those of a worker that takes no part have to go: none of the others gets all of them
    two = await fpmdask.Balancer(c, workers=["0", "1"])
    y = await array_on(c, workers, VALUES, [90], [2])
    with pytest.warns(UserWarning, match="too little time"):
        y2 = await two.rebalance(y, kernel=len)
    assert await rows_of(c, y2) == {"0": 45, "1": 45, "2": 0}


@cluster()
async def test_a_kernel_may_take_columns_away(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    ddf = await frame_on(c, workers, FRAME, EVEN, [0, 1, 2])

    def kernel(frame):
        frame["more"] = frame.pop("number")
        emulated(frame)

    found = await balancer.rebalance(ddf, kernel=kernel)
    pd.testing.assert_frame_equal(await c.compute(found), FRAME)
    pd.testing.assert_frame_equal(await c.compute(ddf), FRAME)


@cluster()
async def test_a_worker_that_holds_no_whole_group_is_timed_with_more_than_a_row(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    values = np.arange(3000.0)
    x = await array_on(c, workers, values, [3000], [2])

    def kernel(x):
        assert len(x) > 1
        emulated(x)

    found = await balancer.rebalance(x, kernel=kernel, groups=values < 2100)
    np.testing.assert_array_equal(await c.compute(found), values)


@cluster()
async def test_shares_by_seconds(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    x2 = await balancer.rebalance(x, seconds={"0": 1.0, "1": 2.0, "2": 4.0})
    rows = await rows_of(c, x2)
    assert rows["1"] == 26
    assert rows["0"] in (51, 52)
    # they finish together now: nothing moves
    x3 = await balancer.rebalance(x2, seconds={"0": 1.7, "1": 1.75, "2": 1.7})
    assert balancer.report.bytes_moved == 0
    assert balancer.report.reason == "as held"
    # one that holds nothing is taken for an average one
    y = await array_on(c, workers, VALUES, [45, 45], [0, 1])
    y2 = await balancer.rebalance(y, seconds={"0": 1.0, "1": 1.0})
    assert await rows_of(c, y2) == {"0": 30, "1": 30, "2": 30}
    assert x3.chunks == x2.chunks
    np.testing.assert_array_equal(await c.compute(x2), VALUES)


@cluster()
async def test_shares_of_partition(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    models = {
        name: {"format": "fpmdask.model", "version": 1, "kind": "constant", "units_per_second": v}
        for name, v in (("0", 5.0), ("1", 3.0), ("2", 1.0))
    }
    shares = await balancer.partition(("emulated", {"models": models}), 90)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    for given in (shares, shares.report):
        assert await rows_of(c, await balancer.rebalance(x, distribution=given)) == SHARES


@pytest.mark.slow
@cluster()
async def test_weights_and_groups(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    weights = np.where(VALUES < 30, 2.0, 0.5)  # 90 in all
    for given in (weights, da.from_array(weights, chunks=7), pd.Series(weights)):
        found = await balancer.rebalance(x, distribution=SHARES, weights=given)
        shares = {share["worker"]: share["weight"] for share in balancer.report.shares}
        assert all(abs(shares[name] - units) <= 2 for name, units in SHARES.items())
        np.testing.assert_array_equal(await c.compute(found), VALUES)
    series = dd.from_pandas(pd.Series(np.arange(90) // 9), npartitions=3)
    for groups in (np.arange(90) // 9, series, np.array(list("abcdefghij")).repeat(9)):
        found = await balancer.rebalance(x, seconds={"0": 1.0, "1": 2.0, "2": 4.0}, groups=groups)
        edges = np.cumsum(found.chunks[0])
        assert not (edges % 9).any()
        rows = await rows_of(c, found)
        assert rows["0"] > rows["1"] > rows["2"] > 0
        np.testing.assert_array_equal(await c.compute(found), VALUES)
    both = await balancer.rebalance(
        x, distribution=SHARES, groups=np.arange(90) // 10, weights=weights
    )
    assert not (np.cumsum(both.chunks[0]) % 10).any()
    timed = await balancer.rebalance(x, kernel=emulated, weights=weights, groups=series)
    np.testing.assert_array_equal(await c.compute(timed), VALUES)


@cluster()
async def test_weights_with_an_earlier_report(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    weights = np.where(VALUES < 30, 4.0, 0.5)
    first = await balancer.rebalance(x, seconds={"0": 1.0, "1": 2.0, "2": 4.0}, weights=weights)
    again = await balancer.rebalance(x, distribution=balancer.report, weights=weights)
    assert again.chunks == first.chunks


@cluster()
async def test_a_share_of_nothing_has_no_rows_without_weight(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    shares = {"0": 0, "1": 30, "2": 30}
    found = await balancer.rebalance(x, distribution=shares, weights=1.0 * (VALUES >= 30))
    assert (await rows_of(c, found))["0"] == 0


@cluster()
async def test_seconds_are_of_the_rows_held_though_their_edges_are_within_a_group(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    groups = VALUES >= 80
    found = await balancer.rebalance(x, seconds={"0": 1.0, "1": 2.0, "2": 4.0}, groups=groups)
    assert await rows_of(c, found) == {"0": 80, "1": 0, "2": 10}


# ---- what goes wrong

BAD = {
    "no collection": ((), {"seconds": {"0": 1}}, "found no collection"),
    "a list": (([1, 2],), {"seconds": {"0": 1}}, "found a list"),
    "an index": ((FRAME.index,), {"seconds": {"0": 1}}, "found a Index"),
    "a dask index": (
        (dd.from_pandas(FRAME, npartitions=1).index,),
        {"seconds": {"0": 1}},
        "found a Index",
    ),
    "delayed": ((dask.delayed(1),), {"seconds": {"0": 1}}, "found a Delayed"),
    "no rows": ((da.ones(()),), {"seconds": {"0": 1}}, "no dimensions"),
    "none of them": ((VALUES,), {}, "found none of them; give one of kernel"),
    "two": ((VALUES,), {"seconds": {"0": 1}, "kernel": len}, "found kernel and seconds"),
    "kernel": ((VALUES,), {"kernel": "sum"}, "kernel is a str"),
    "seconds": ((VALUES,), {"seconds": [1, 2]}, "give a mapping"),
    "0 s": ((VALUES,), {"seconds": {"0": 0.0}}, "gives 0 0.0; give a finite number > 0"),
    "nan s": ((VALUES,), {"seconds": {"0": np.nan}}, "finite number > 0"),
    "lacking": ((VALUES,), {"seconds": {"9": 1.0}}, "seconds names 9"),
    "negative": ((VALUES,), {"distribution": {"0": 91, "1": -1}}, "gives 1 -1 rows; give an int"),
    "parts": ((VALUES,), {"distribution": {"0": 45.5, "1": 44.5}}, "gives 0 45.5 rows"),
    "frames": ((VALUES, FRAME[1:]), {"distribution": {"0": 90}}, "of .90, 89. rows"),
    "a bool": ((VALUES,), {"distribution": {"0": True}}, "give an int >= 0"),
    "sum": ((VALUES,), {"distribution": {"0": 91}}, "91 rows in all, there are 90"),
    "name": ((VALUES,), {"distribution": {"x": 90}}, "distribution names x"),
    "lengths": ((VALUES, VALUES[1:]), {"distribution": {"0": 90}}, "of .90, 89. rows"),
    "weights": ((VALUES,), {"distribution": {"0": 90}, "weights": [1.0]}, "weights have the shape"),
    "weight": ((VALUES,), {"distribution": {"0": 90}, "weights": -VALUES}, r"weights\[1\] is -1"),
    "nan": ((VALUES,), {"distribution": {"0": 90}, "weights": VALUES * np.nan}, r"weights\[0\]"),
    "zeros": ((VALUES,), {"seconds": {"0": 1}, "weights": 0 * VALUES}, "the weights are 0 in all"),
    "inf": ((VALUES,), {"seconds": {"0": 1}, "weights": [1e308] * 90}, "the weights are inf in"),
    "mask": ((VALUES,), {"kernel": len, "weights": np.ma.masked_less(VALUES, 2)}, "are masked in"),
    "nothing": ((VALUES,), {"distribution": {"0": 0}, "weights": VALUES / 4005}, "0 units .* 1;"),
    "text": ((VALUES,), {"distribution": {"0": 90}, "weights": ["a"] * 90}, "weights are no num"),
    "units": ((VALUES,), {"distribution": {"0": 9}, "weights": VALUES}, "9 units .* 4005"),
    "groups": ((VALUES,), {"distribution": {"0": 90}, "groups": [0]}, "groups have the shape"),
    "parted": ((VALUES,), {"distribution": {"0": 90}, "groups": VALUES % 2}, "begins again at row"),
    "no id": ((VALUES,), {"distribution": {"0": 90}, "groups": VALUES * np.nan}, "NaN"),
    "None": ((VALUES,), {"kernel": len, "groups": [None] * 90}, "group id is missing"),
    "NA": ((VALUES,), {"kernel": len, "groups": [pd.NA] + ["a"] * 89}, "group id is missing"),
    "complex": ((VALUES,), {"kernel": len, "weights": VALUES * 1j}, "of dtype complex"),
    "dates": ((VALUES,), {"kernel": len, "weights": VALUES.astype("M8[s]")}, "of dtype datetime"),
    "dicts": ((VALUES,), {"kernel": len, "groups": np.array([{}] * 90)}, "give hashable ones"),
    "no seconds": ((VALUES,), {"seconds": {}}, "seconds names no worker"),
    "a scalar": ((dd.from_pandas(FRAME, 2)["number"].sum(),), {"kernel": len}, "found a Scalar"),
    "columns": ((da.from_array(np.ones((9, 9)))[:, da.ones(9) > 0],), {"kernel": len}, "unknown"),
}


@cluster()
async def test_lazy_inputs_are_not_computed_for_what_is_refused(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = da.ones(90, chunks=30)
    for options in (
        {"distribution": {"0": 91}},
        {"distribution": {"0": 9}, "weights": VALUES},
        {"kernel": len, "weights": -VALUES},
        {"kernel": len, "weights": VALUES[1:]},
        {"kernel": len, "groups": VALUES % 2},
        {"kernel": len, "weights": da.ones(89)},
        {"kernel": len, "weights": da.ones((90, 1))},
        {"kernel": len, "weights": da.ones(90, dtype=complex)},
        {"kernel": len, "weights": dd.from_pandas(FRAME, npartitions=2)},
        {"kernel": len, "weights": dd.from_pandas(FRAME, npartitions=2)["date"]},
        {"kernel": len, "weights": dask.delayed(1)},
        {"kernel": len, "groups": da.ones(91)},
    ):
        with pytest.raises(PartitionError):
            await balancer.rebalance(x, **options)
    for collections in ((x,), (x, x, x)):
        with pytest.raises(KernelError, match=r"one argument|3 arguments"):
            await balancer.rebalance(*collections, kernel=lambda a, b: None)
    with pytest.raises(PartitionError, match=r"of .90, 89. rows"):
        await balancer.rebalance(x, FRAME[1:], distribution=SHARES)
    assert not s.tasks


@pytest.mark.slow
@cluster()
async def test_bad_input_is_refused_at_once(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for what, (collections, options, message) in BAD.items():
        error = CoordinatorError if what in ("name", "lacking") else PartitionError
        with pytest.raises(error, match=message):
            await balancer.rebalance(*collections, **options)
        assert balancer.report is None
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    with pytest.raises(PartitionError, match="seconds lack 1, 2, which hold rows"):
        await balancer.rebalance(x, seconds={"0": 1.0})
    del x
    await nothing_left(s)


@pytest.mark.slow
def test_no_plan_exceeds_a_workers_memory():
    """On processes: what workers in one process have beside data is that of all."""
    million = 1_000_000
    calm = {f"distributed.worker.memory.{what}": False for what in ("spill", "pause", "terminate")}
    with (
        dask.config.set(calm),
        LocalCluster(
            n_workers=3, threads_per_worker=1, memory_limit="320 MB", dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        balancer = fpmdask.Balancer(client)
        chunks = {
            ("zeros", n): client.submit(np.zeros, 10 * million, key=("zeros", n), workers=[worker])
            for n, worker in enumerate(registered(client))
        }
        wait([*chunks.values()])
        x = da.Array(chunks, "zeros", ((10 * million,) * 3,), dtype=float)
        held = client.has_what()
        with pytest.raises(PartitionError, match=r"worker 0 needs \d+ bytes for its share"):
            balancer.rebalance(x, distribution={"0": 30 * million, "1": 0, "2": 0})
        assert client.has_what() == held
        # chunks that repeat one number in memory take all of it elsewhere
        ones = client.persist(da.ones(30 * million, chunks=10 * million))
        with pytest.raises(PartitionError, match=r"worker 0 needs \d+ bytes for its share"):
            balancer.rebalance(ones, distribution={"0": 30 * million, "1": 0, "2": 0})
        del ones
        # shares that are found stay within it
        found = balancer.rebalance(x, seconds={"0": 0.01, "1": 1.0, "2": 1.0})
        assert found.shape == x.shape
        assert 10 * million < balancer.report.distribution[0] < 28 * million


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kernel", "seconds", "distribution"])
@cluster(config={"fpmdask.tuning.runtime.retry-seconds": 0.05})
async def test_a_worker_that_is_lost_while_rows_move(c, s, *workers, way):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    frame = await frame_on(c, workers, FRAME, EVEN, [0, 1, 2])
    publish = (await side_of(workers[2])) and workers[2].handlers["fpmdask_publish"]
    closing = []

    async def leaves(**arguments):
        answer = await publish(**arguments)
        closing.append(asyncio.ensure_future(workers[2].close()))
        await asyncio.sleep(3600)
        return answer

    workers[2].handlers["fpmdask_publish"] = leaves
    given = {"kernel": emulated, "seconds": dict.fromkeys("012", 1.0), "distribution": SHARES}
    if way == "seconds":
        given["seconds"] = {"0": 1.0, "1": 2.0, "2": 4.0}
    running = balancer.rebalance(x, frame, **{way: given[way]})
    if way == "distribution":
        with pytest.raises(CoordinatorError, match="the distribution names 2"):
            await running
    else:
        x2, frame2 = await running
        rows = await rows_of(c, x2)
        assert rows["0"] > rows["1"] > 0
        assert sum(rows.values()) == 90
        np.testing.assert_array_equal(await c.compute(x2), VALUES)
        pd.testing.assert_frame_equal(await c.compute(frame2), FRAME)
        del x2, frame2
    await asyncio.gather(*closing)
    del x, frame, running
    await nothing_left(s)


@cluster(config={"fpmdask.tuning.runtime.retry-seconds": 0.05, "fpmdask.recovery": "1s"})
async def test_what_is_in_this_process_is_sent_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    publish = (await side_of(workers[2])) and workers[2].handlers["fpmdask_publish"]
    closing = []

    async def leaves(**arguments):
        answer = await publish(**arguments)
        closing.append(asyncio.ensure_future(workers[2].close()))
        await asyncio.sleep(3600)
        return answer

    workers[2].handlers["fpmdask_publish"] = leaves
    x, frame = await balancer.rebalance(VALUES, FRAME, kernel=emulated)
    np.testing.assert_array_equal(await c.compute(x), VALUES)
    pd.testing.assert_frame_equal(await c.compute(frame), FRAME)
    await asyncio.gather(*closing)


@cluster()
async def test_a_worker_that_joins_gets_rows_at_the_next_call(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    JOINED.clear()
    running = asyncio.ensure_future(balancer.rebalance(x, kernel=waits_for_another))
    await until(lambda: any("timed" in str(key) for key in s.tasks))
    async with Worker(s.address, name="3", nthreads=1):
        await until(lambda: any(event["event"] == "joined" for event in events))
        JOINED.set()
        x2 = await running
        assert sum((await rows_of(c, x2)).values()) == 90
        x3 = await balancer.rebalance(x2, distribution={"0": 30, "1": 30, "3": 30})
        assert (await rows_of(c, x3))["3"] == 30
        np.testing.assert_array_equal(await c.compute(x3), VALUES)


@pytest.mark.slow
@cluster()
async def test_chunks_that_are_lost_later_are_made_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES.reshape(90, 1), EVEN, [0, 1, 2])
    frame = await frame_on(c, workers, FRAME, EVEN, [0, 1, 2])
    x2, frame2 = await balancer.rebalance(x, frame, distribution=SHARES)
    del x, frame
    await workers[0].close()
    np.testing.assert_array_equal(await c.compute(x2), VALUES.reshape(90, 1))
    pd.testing.assert_frame_equal(await c.compute(frame2), FRAME)


@pytest.mark.slow
@cluster(config={"fpmdask.recovery": "1s"})
async def test_what_nobody_can_make_again_is_named(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    (future,) = await c.scatter([VALUES], workers=[workers[0].address], hash=False)
    x = c.persist(da.Array({("lost", 0): future}, "lost", ((90,),), dtype=float))
    await asyncio.gather(*futures_of(x))
    await workers[0].close()
    with pytest.raises(ChunksLostError):
        await balancer.rebalance(x, distribution={"1": 90})


@cluster()
async def test_a_cancelled_call_leaves_nothing(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = await array_on(c, workers, VALUES, EVEN, [0, 1, 2])
    publish = (await side_of(workers[1])) and workers[1].handlers["fpmdask_publish"]
    asked, release = asyncio.Event(), asyncio.Event()

    async def held(**arguments):
        answer = await publish(**arguments)
        asked.set()
        await release.wait()
        return answer

    workers[1].handlers["fpmdask_publish"] = held
    running = asyncio.ensure_future(balancer.rebalance(x, distribution=SHARES))
    await asyncio.wait_for(asked.wait(), 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    release.set()
    del x, running
    await no_data(s, workers)


@pytest.mark.slow
def test_a_synchronous_client():
    with (
        LocalCluster(
            n_workers=2, processes=False, threads_per_worker=1, dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        balancer = fpmdask.Balancer(client)
        x = da.arange(90, chunks=10).persist()
        x2 = balancer.rebalance(x, distribution={"0": 60, "1": 30})
        np.testing.assert_array_equal(x2.compute(), np.arange(90))
        assert balancer.report.distribution.tolist() == [60, 30]
