"""`Balancer.sort_values` on a cluster: the order of pandas' stable one, nothing else changed."""

import asyncio
import datetime
import itertools
import re
import subprocess
import sys
import threading
from itertools import pairwise
from operator import attrgetter

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import futures_of, wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.frames.client import sort_values as frames
from fpmdask.apps.frames.tasks import rows
from fpmdask.errors import ChunksLostError, PartitionError
from fpmdask.runtime.client.stages import Stages
from tests.eventually import in_memory, nothing_left, until

CONFIG = {
    "distributed.scheduler.active-memory-manager.start": False,
    "dataframe.convert-string": False,  # the dtypes are those of the test
}
MANAGED = ("target", "spill", "pause", "terminate")
RANDOM = np.random.default_rng(0)
ROWS = 3000
WORDS = np.array(["b", "äbc", "", "zz", "a\0", "a", None], dtype=object)


def with_nulls(values):
    return pd.Series(values).mask(RANDOM.random(ROWS) < 0.1)


FRAME = pd.DataFrame(
    {
        "float": with_nulls(RANDOM.random(ROWS)),
        "few": RANDOM.integers(0, 9, ROWS, dtype="i2"),
        "whole": RANDOM.integers(-(2**62), 2**62, ROWS),
        "flag": RANDOM.random(ROWS) < 0.5,
        "nullable": with_nulls(RANDOM.integers(0, 99, ROWS)).astype("Int64"),
        "unsure": pd.Series(RANDOM.choice([True, False, None], ROWS)).astype("boolean"),
        "word": pd.Series(RANDOM.choice(WORDS, ROWS), dtype="string[pyarrow]"),
        "object": pd.Series(RANDOM.choice(WORDS, ROWS), dtype=object),
        "bytes": pd.Series(RANDOM.choice([b"a", b"a\0", b""], ROWS), dtype=object),
        "long": [f"{'x' * (n % 90)}{n % 700}" for n in RANDOM.integers(0, 10**9, ROWS)],
        "kind": pd.Categorical(RANDOM.choice(["z", "a", "m"], ROWS), ["m", "z", "a"]),
        "date": with_nulls(RANDOM.integers(0, 2**60, ROWS).view("M8[ns]")),
        "local": pd.to_datetime(RANDOM.integers(0, 2**60, ROWS), utc=True).tz_convert("Asia/Tokyo"),
        "delta": RANDOM.integers(-99, 99, ROWS).view("m8[us]"),
        "arrow": pd.Series(RANDOM.integers(0, 99, ROWS)).astype(pd.ArrowDtype(pa.int32())),
    },
    index=pd.Index(RANDOM.integers(0, 500, ROWS), name="id"),
)
DATED = FRAME[["date", "delta", "float"]].set_index("date")
NUMBERS = pd.DataFrame({"a": RANDOM.random(ROWS), "b": RANDOM.random(ROWS)})
KEYS = [
    *((column, True) for column in FRAME.columns),
    ("id", True),
    ("id", False),
    ("long", False),
    (["few", "float"], [True, False]),
    (["kind", "word", "nullable"], [False, True, False]),
    (["object", "id"], [False, True]),
    (["flag", "local", "bytes"], False),
    (["whole", "long"], [True, False]),
    (["long", "whole"], False),
]


def cluster(workers=3, nthreads=1, **options):
    threads = [("127.0.0.1", nthreads)] * workers
    return gen_cluster(client=True, nthreads=threads, config=CONFIG, timeout=90, **options)


def frame_of(pdf, partitions=7):
    """Return a lazy dask frame with exactly these rows and dtypes, and partitions without any."""
    edges = np.linspace(0, len(pdf), partitions + 1).astype(int)
    pieces = [pdf.iloc[low:high] for low, high in pairwise(edges)]
    pieces.insert(len(pieces) // 2, pdf.iloc[:0])
    return dd.from_map(lambda piece: piece, pieces, meta=pdf.iloc[:0])


def carrying_little(by):
    """Return the rows with their keys, a number and a word: all columns take twice as long."""
    keys = {by} if isinstance(by, str) else set(by)
    return FRAME[[name for name in FRAME.columns if name in {*keys, "whole", "word"}]]


async def holders_of(c, frame):
    """Return the address where each row lies."""
    parts = futures_of(frame)
    holders, indices = await c.who_has(parts), await c.gather(c.map(attrgetter("index"), parts))
    where = [next(iter(holders[part.key])) for part in parts]
    return pd.concat(pd.Series(at, index) for at, index in zip(where, indices, strict=True))


async def check_sorted(c, found, pdf, by, ascending=True, na_position="last"):
    expected = pdf.sort_values(by, ascending=ascending, na_position=na_position, kind="stable")
    pd.testing.assert_frame_equal(await c.compute(found), expected)


@pytest.mark.slow
@cluster()
async def test_rows_sort_as_in_pandas(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for n, (by, ascending) in enumerate(KEYS):
        na_position = ("last", "first")[n % 2]
        pdf = FRAME if n % 6 == 0 else carrying_little(by)
        x = c.persist(frame_of(pdf))
        found = await balancer.sort_values(x, by, ascending, na_position)
        assert all(future.status == "finished" for future in futures_of(found)), by
        await check_sorted(c, found, pdf, by, ascending, na_position)
        assert (found.divisions[0] is not None) == (by == "id" and ascending), by
    assert balancer.report.app == "sort"
    del found, x
    await nothing_left(s)


@pytest.mark.slow
@cluster(nthreads=2)
async def test_cut_keys_sort_as_whole_ones(c, s, *workers, monkeypatch, tuning):
    """Also where nothing of them tells rows apart."""
    balancer = await fpmdask.Balancer(c)
    monkeypatch.setattr(frames, "words_needed", lambda *given: 1)
    tuning(sort={"most_distinct": 0})
    for by, ascending in KEYS[-9:]:
        pdf = carrying_little(by)
        found = await balancer.sort_values(c.persist(frame_of(pdf)), by, ascending)
        await check_sorted(c, found, pdf, by, ascending)


@cluster(nthreads=2)
async def test_one_partition_per_thread_lies_where_it_was_sorted(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = pd.DataFrame({"a": RANDOM.random(200_000), "b": np.arange(200_000)})
    found = await balancer.sort_values(frame_of(pdf, 12), "a")
    assert found.npartitions == 6
    holders = await c.who_has(futures_of(found))
    assert sorted(len(addresses) for addresses in holders.values()) == [1] * 6
    lengths = await c.gather(c.map(len, futures_of(found), pure=False))
    by_name = {str(w.name): w.address for w in workers}
    for share in balancer.report.shares:
        own = [k for k, at in holders.items() if by_name[share["worker"]] in at]
        assert len(own) == 2
    assert sum(lengths) == sum(share["units"] for share in balancer.report.shares)
    await check_sorted(c, found, pdf, "a")


@cluster(workers=2)
async def test_the_report_says_what_moving_rows_took(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = pd.DataFrame({n: RANDOM.random(100_000) for n in "abc"})
    x = c.persist(frame_of(pdf, 8))
    await wait(x)
    source = await holders_of(c, x)
    found = await balancer.sort_values(x, "a")
    target = await holders_of(c, found)
    report = balancer.report
    assert [*report.phases] == ["keys", "prepare", "measure", "sort", "rows"]
    assert all(seconds > 0 for seconds in report.phases.values())
    crossed = int((source != target[source.index]).sum())
    # three columns, the index and a key
    assert report.bytes_moved == 40 * crossed
    nbytes = sum(await c.gather(c.map(lambda part: part.memory_usage().sum(), futures_of(x))))
    assert report.bytes_moved_per_byte == pytest.approx(report.bytes_moved / nbytes, rel=0.02)
    assert {share["worker"] for share in report.shares} == {str(w.name) for w in workers}


@pytest.mark.parametrize("kind", ["equal", "most", "zipf"])
@pytest.mark.parametrize("dtype", ["f8", "Int64"])  # rows that travel with keys, and fetched ones
@cluster()
async def test_rows_of_skewed_keys_are_shared_out_within_a_hundredth(c, s, *workers, kind, dtype):
    count = 120_000
    values = {
        "equal": np.full(count, 7),
        "most": np.where(RANDOM.random(count) < 0.95, 7, RANDOM.integers(0, 99, count)),
        "zipf": np.minimum(RANDOM.zipf(1.3, count), 2**40),
    }[kind]
    pdf = pd.DataFrame({"k": pd.Series(values).astype(dtype), "n": np.arange(count)})
    balancer = await fpmdask.Balancer(c)
    found = await balancer.sort_values(frame_of(pdf), "k")
    await check_sorted(c, found, pdf, "k")
    assert all(abs(share["units"] / 40_000 - 1) <= 0.01 for share in balancer.report.shares)


@cluster()
async def test_divisions_of_an_index_in_order(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for index in [
        RANDOM.integers(0, 20, 5000),
        np.zeros(5000, int),
        RANDOM.random(5000),
        np.array(["a", "bc"])[RANDOM.integers(0, 2, 5000)],
    ]:
        pdf = pd.DataFrame({"a": np.arange(5000)}, index=pd.Index(index, name="key"))
        found = await balancer.sort_values(frame_of(pdf), "key")
        assert found.known_divisions
        expected = pdf.sort_values("key", kind="stable")
        pd.testing.assert_frame_equal(await c.compute(found), expected)
        label = expected.index[1234]
        pd.testing.assert_frame_equal(
            await c.compute(found.loc[label:label]), expected.loc[label:label]
        )


@cluster()
async def test_few_rows(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for count in (0, 1, 2, 5):
        pdf = FRAME.iloc[:count]
        found = await balancer.sort_values(frame_of(pdf, 2), ["float", "word"])
        await check_sorted(c, found, pdf, ["float", "word"])
    found = await balancer.sort_values(frame_of(FRAME.iloc[:0], 2), "id")
    assert not found.known_divisions
    same = pd.DataFrame({"a": [1.0] * 3000, "b": range(3000)})
    await check_sorted(c, await balancer.sort_values(frame_of(same), "a"), same, "a")


@cluster()
async def test_lazy_frames_and_what_is_done_with_the_result(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = pd.DataFrame({"a": RANDOM.random(1000), "b": np.arange(1000) % 7, 3: 1.0})
    x = dd.from_pandas(pdf, npartitions=5)
    lazy = x[x.b > 2].assign(c=x.a * 2)
    expected = pdf[pdf.b > 2].assign(c=pdf.a * 2).sort_values(["b", "a"], ascending=False)
    found = await balancer.sort_values(lazy, ["b", "a"], ascending=False)
    pd.testing.assert_frame_equal(await c.compute(found), expected)
    pd.testing.assert_frame_equal(
        await c.compute(found[["c"]].head(5, compute=False)), expected[["c"]].head(5)
    )
    await check_sorted(c, await balancer.sort_values(x, 3), pdf, 3)
    again = await balancer.sort_values(found, "a")
    pd.testing.assert_frame_equal(await c.compute(again), expected.sort_values("a"))


@cluster()
async def test_partitions_with_other_categories(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pieces = [
        pd.DataFrame({"a": pd.Categorical(list(text)), "n": range(len(text))})
        for text in ("bba", "zca", "", "aaxb")
    ]
    x = dd.from_map(lambda piece: piece, pieces, meta=pieces[2])
    whole = await c.compute(x)
    assert isinstance(whole.a.dtype, pd.CategoricalDtype)
    for by in ("a", "n", ["a", "n"]):
        await check_sorted(c, await balancer.sort_values(x, by, False), whole, by, False)
    ordered = x.assign(a=x.a.map_partitions(lambda a: a.cat.as_ordered()))
    with pytest.raises(PartitionError, match="categories of 'a' differ"):
        await balancer.sort_values(ordered, "n")


@cluster()
async def test_partitions_with_columns_in_another_order(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pieces = [
        pd.DataFrame({"a": [3.0, 1.0], "b": [0.0, 0.5]}),
        pd.DataFrame({"b": [9.0], "a": [2.0]}),
    ]
    x = dd.from_map(lambda piece: piece, pieces, meta=pieces[0])
    for by in ("a", "b", ["b", "a"]):
        await check_sorted(c, await balancer.sort_values(x, by), pd.concat(pieces), by)


@cluster()
async def test_partitions_of_other_dtypes(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pieces = [pd.DataFrame({"a": values}) for values in ([2.5, 1.5], [3, 1], [])]
    x = dd.from_map(lambda piece: piece, pieces, meta=pieces[0])
    found = await c.compute(await balancer.sort_values(x, "a"))
    assert found.a.tolist() == [1, 1.5, 2.5, 3]
    x = dd.from_map(lambda piece: piece, [*pieces, pd.DataFrame({"a": ["x"]})], meta=pieces[0])
    with pytest.raises(PartitionError, match=r"'a' has dtype .* its dask frame says float64"):
        await balancer.sort_values(x, "a")


ARROW_TIMES = [pd.ArrowDtype(pa.time32("s")), pd.ArrowDtype(pa.time64("us"))]


@pytest.mark.parametrize(
    ("values", "found", "declared"),
    [
        ([1.9, 1.5], "f8", "i8"),
        ([2, 1], "i8", "bool"),
        ([2**31 + 5, 1], "i8", "i4"),
        ([2**63 + 5, 1], "u8", "i8"),
        ([-1, 1], "i8", "u8"),
        ([1 + 1e-12, 1.0], "f8", "f4"),
        ([2**53 + 1, 1], "i8", "f8"),
        ([999, 5], "M8[ns]", "M8[s]"),
        ([datetime.time(5), datetime.time(1)], *ARROW_TIMES),
    ],
)
def test_keys_that_their_declared_dtype_does_not_hold_are_refused(values, found, declared):
    column = pd.Series(np.array(values)).astype(found)
    with pytest.raises(PartitionError, match="which does not hold all of its values"):
        rows._as_declared(column, "a", pd.Series([]).astype(declared).dtype)


@pytest.mark.parametrize(
    ("values", "found", "declared"),
    [
        ([2.0, np.nan], "f8", "Int64"),
        ([3, 1], "f8", "i8"),
        ([1, 0], "i8", "bool"),
        ([5, 0], "u8", "i8"),
        ([3, 1], "M8[s]", "M8[ns]"),
        (["b", None], object, "string"),
    ],
)
def test_keys_that_it_holds_are_taken_in_it(values, found, declared):
    column = pd.Series(values, dtype=object).astype(found)
    made = rows._as_declared(column, "a", pd.Series([]).astype(declared).dtype)
    assert made.isna().tolist() == column.isna().tolist()
    assert made.dropna().tolist() == column.dropna().tolist()


@pytest.mark.parametrize("step", ["look", "keys", "sort", "exchange", "ends", "sorted-rows"])
@cluster()
async def test_a_worker_that_leaves_costs_nothing_but_time(c, s, *workers, step, monkeypatch):
    left = []

    def leaving(original):
        async def run(self, name, *more):
            if name.startswith(f"fpmdask-{step}-") and not left:
                left.append(asyncio.ensure_future(workers[1].close(timeout=1)))
                await asyncio.sleep(0)
            return await original(self, name, *more)

        return run

    def progress(event):
        if event["event"] == "step" and event["step"] == step and not left:
            left.append(asyncio.ensure_future(workers[1].close(timeout=1)))

    for run in (Stages.made, Stages.asked):
        monkeypatch.setattr(Stages, run.__name__, leaving(run))
    balancer = await fpmdask.Balancer(c, progress=progress)
    x = c.persist(frame_of(FRAME, 12))
    await wait(x)
    found = await asyncio.wait_for(balancer.sort_values(x, "id"), 60)
    assert left
    await left[0]
    assert found.known_divisions
    await check_sorted(c, found, FRAME, "id")
    del found, x
    await nothing_left(s)


@pytest.mark.parametrize("words", [1, None])
@cluster()
async def test_a_result_that_is_lost_is_made_again(c, s, *workers, words, monkeypatch):
    if words:
        monkeypatch.setattr(frames, "words_needed", lambda *given: words)
    balancer = await fpmdask.Balancer(c)
    x = c.persist(frame_of(FRAME, 12))
    found = await balancer.sort_values(x, ["whole", "long"], [False, True])
    await workers[0].close(timeout=1)
    await check_sorted(c, found, FRAME, ["whole", "long"], [False, True])
    await workers[1].close(timeout=1)
    await check_sorted(c, found, FRAME, ["whole", "long"], [False, True])
    del found, x
    await nothing_left(s)


@cluster()
async def test_only_the_result_keeps_memory(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = c.persist(frame_of(FRAME))
    await wait(x)
    before = in_memory(s)
    found = await balancer.sort_values(x, "float")
    own = {future.key for future in futures_of(found)}
    await until(lambda: in_memory(s) - before == own)
    pinned = (t for t in s.tasks.values() if t.worker_restrictions and not t.loose_restrictions)
    assert not any(pinned)
    del found
    await until(lambda: s.tasks.keys() <= before, collecting=True)


@cluster()
async def test_lost_partitions_are_named(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pieces = {("only", n): pd.DataFrame({"a": [n]}) for n in range(3)}
    futures = await c.scatter(pieces, direct=True, hash=False)
    x = dd.from_graph(futures, pieces["only", 0], (None,) * 4, [*pieces], "given")
    await workers[0].close(timeout=1)
    keys = ", ".join(map(str, x.__dask_keys__()))  # Dask gives up all where one has no input
    with pytest.raises(ChunksLostError, match=re.escape(keys)) as raised:
        await balancer.sort_values(x, "a")
    assert "3 input chunks are gone" in str(raised.value)


@pytest.mark.slow
@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    # the workers' memory is that of the test's process
    config=CONFIG | {f"distributed.worker.memory.{what}": False for what in MANAGED},
    worker_kwargs={"memory_limit": "400 MB"},
)
async def test_what_does_not_fit_is_refused_with_the_numbers(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = dd.from_map(
        lambda n: pd.DataFrame({"a": np.zeros(n)}),
        [8_000_000] * 5,
        meta=pd.DataFrame({"a": [0.0]}),
    )
    x = c.persist(x)
    await wait(x)
    with pytest.raises(PartitionError, match=r"partitions of 320\d+ bytes .* have room for"):
        await balancer.sort_values(x, "a")
    assert not s.plugins["fpmdask"].runs


refused, calls = threading.Event(), itertools.count()


def block_of_zeros(n):
    """Return 64 MB of a lazy frame; the fourth call and later ones wait until it is refused."""
    if next(calls) > 2:
        refused.wait(60)
    return pd.DataFrame({"a": np.zeros(8_000_000)})


@pytest.mark.slow
@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 2)] * 2,
    # the workers' memory is that of the test's process
    config=CONFIG | {f"distributed.worker.memory.{what}": False for what in MANAGED},
    worker_kwargs={"memory_limit": "400 MB"},
)
async def test_a_lazy_frame_is_refused_before_all_of_it_is_there(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = dd.from_map(block_of_zeros, range(8), meta=pd.DataFrame({"a": [0.0]}))
    with pytest.raises(PartitionError, match=r"of 8 partitions have \d+ bytes .*; add workers"):
        await balancer.sort_values(x, "a")
    refused.set()
    del x
    await nothing_left(s)


@cluster(worker_kwargs={"memory_limit": "400 MB"})
async def test_a_pandas_frame_that_does_not_fit_is_not_sent(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = pd.DataFrame({"a": np.zeros(25_000_000)})  # pages of zeros that are never touched
    with pytest.raises(PartitionError, match=r"rows of 200\d+ bytes need 800\d+ bytes"):
        await balancer.sort_values(pdf, "a")
    assert not s.tasks


@cluster()
async def test_a_partition_that_a_worker_has_no_memory_for_is_to_be_made_smaller(c, s, *workers):
    def too_large(piece):
        raise MemoryError("Unable to allocate 1. TiB")

    balancer = await fpmdask.Balancer(c)
    x = dd.from_map(too_large, [1, 2], meta=pd.DataFrame({"a": [1]}))
    with pytest.raises(PartitionError, match=r"1\. TiB\); make smaller ones \(repartition\)"):
        await balancer.sort_values(x, "a")
    del x
    await nothing_left(s)


@pytest.mark.slow
@cluster()
async def test_a_pandas_frame_sorts_as_it_is(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for by in (["object", "id"], "float"):
        found = await balancer.sort_values(FRAME, by)
        assert isinstance(found, dd.DataFrame)
        await check_sorted(c, found, FRAME, by)
    twice = NUMBERS.set_axis(["a", "a"], axis=1).assign(b=NUMBERS.b)
    with pytest.raises(PartitionError, match="'a' is the name of 2 columns"):
        await balancer.sort_values(twice, "a")
    for rows_of in (slice(0), slice(1), slice(2)):
        found = await balancer.sort_values(NUMBERS[rows_of], "a")
        await check_sorted(c, found, NUMBERS[rows_of], "a")
    del found
    await nothing_left(s)


@pytest.mark.slow
@cluster()
async def test_a_pandas_frame_is_sent_again_where_a_worker_with_rows_of_it_leaves(c, s, *workers):
    leaving = []

    def progress(event):
        if event["event"] == "step" and event["step"] == "count" and not leaving:
            leaving.append(asyncio.ensure_future(workers[1].close(timeout=1)))

    balancer = await fpmdask.Balancer(c, progress=progress)
    pdf = pd.DataFrame({"a": RANDOM.random(1_000_000), "b": np.arange(1_000_000)})
    with dask.config.set({"fpmdask.recovery": "1s"}):
        found = await balancer.sort_values(pdf, "a")
    await leaving[0]
    await check_sorted(c, found, pdf, "a")
    del found
    await nothing_left(s)


@cluster()
async def test_what_a_partition_raises_is_raised(c, s, *workers):
    def fails(piece):
        raise ZeroDivisionError("of this partition")

    balancer = await fpmdask.Balancer(c)
    x = dd.from_map(fails, [1, 2], meta=pd.DataFrame({"a": [1]}))
    with pytest.raises(ZeroDivisionError, match="of this partition"):
        await balancer.sort_values(x, "a")
    mixed = frame_of(pd.DataFrame({"a": pd.Series([1, "x"] * 9, dtype=object)}))
    with pytest.raises(PartitionError, match=r"'a' has dtype object and holds builtins.int"):
        await balancer.sort_values(mixed, "a")
    del x, mixed
    await nothing_left(s)


@cluster()
async def test_bad_requests_are_refused_at_once(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = pd.DataFrame({"a": [1, 2], "b": [1j, 2], "i": [3, 4]}, index=pd.Index([1, 2], name="i"))
    x = dd.from_pandas(pdf, npartitions=1)
    for given, says in [
        ((pdf, "no"), "'no', which is no column"),
        ((pdf, "b"), "'b' has dtype complex128"),
        ((pdf.set_index(["a", "i"]), "b"), "an index of 2 levels"),
        ((x.a, "a"), r"found a Series.*x\.to_frame"),
        (([1], "a"), "found a list"),
        ((x, "no"), "'no', which is no column; there are 'a', 'b', 'i'"),
        ((x, None), "None, which is no column"),
        ((x, []), "name at least one column"),
        ((x, ("a", "b")), "which is no column"),
        ((x, [["a"]]), "which is no column"),
        ((x, ["a", "a"]), "'a' twice"),
        ((x, "b"), "'b' has dtype complex128"),
        ((x, "i"), "'i' is the name of a column and the index"),
        ((x, "a", 1), "ascending = 1"),
        ((x, "a", [True, False]), "ascending has 2 entries for 1 keys"),
        ((x, "a", "yes"), "ascending = 'yes'"),
        ((x, "a", True, "middle"), "na_position = 'middle'"),
        ((x, "a", True, None), "na_position = None"),
    ]:
        with pytest.raises(PartitionError, match=says):
            balancer.sort_values(*given)
    assert not s.tasks
    assert not s.plugins["fpmdask"].runs


@cluster()
async def test_without_dask_dataframe_it_is_said_what_to_install(c, s, *workers, monkeypatch):
    balancer = await fpmdask.Balancer(c)
    for name in [
        name for name in sys.modules if name.startswith("fpmdask.apps.frames.client.sort_values")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("fpmdask.apps.frames.client.sort_values", raising=False)
    monkeypatch.setitem(sys.modules, "dask.dataframe", None)
    with pytest.raises(PartitionError, match=r"install fpmdask\[dataframe\]"):
        balancer.sort_values(None, "a")


@pytest.mark.parametrize(
    "pieces",
    [
        [FRAME[["few", "whole", "flag"]]] * 2,
        [DATED, DATED.iloc[:0]],
        [FRAME, FRAME.iloc[:100]],
        [FRAME[["few"]], FRAME[["few"]].astype(float)],
        [NUMBERS, NUMBERS[["b", "a"]]],
        [FRAME[[]], FRAME[[]]],
    ],
)
def test_pieces_are_cut_and_interleaved_as_pandas_takes_rows(pieces):
    """Columns of NumPy's dtypes go another way than others."""
    keys = rows.Keys(None, (), 1, 1, True, 1, {})
    wanted = [np.random.default_rng(1).permutation(len(piece))[:70] for piece in pieces]
    asked = np.concatenate(wanted), np.array([len(own) for own in wanted])
    expected = pd.concat([piece.take(own) for piece, own in zip(pieces, wanted, strict=True)])
    cut = rows.cut(keys, asked, *pieces)
    pd.testing.assert_frame_equal(cut, expected)
    place = np.random.default_rng(9).permutation(len(cut))
    pd.testing.assert_frame_equal(
        rows.interleaved([cut.iloc[:40], cut.iloc[40:]], place), cut.take(np.argsort(place))
    )


def test_the_balancer_is_there_without_pandas():
    code = "import sys, fpmdask; fpmdask.Balancer; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@cluster()
async def test_nulls_come_before_infinities_also_by_several_keys(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    values = [-np.inf, np.nan, 1.0, np.inf, np.nan, -np.inf]
    pdf = pd.DataFrame({"a": values, "b": [5, 4, 3, 2, 1, 0]})
    frame = dd.from_pandas(pdf, npartitions=3)
    for ascending, wanted in (
        (True, [4, 1, 5, 0, 2, 3]),  # NaN by b, -inf by b, 1, inf
        (False, [1, 4, 3, 2, 0, 5]),  # NaN by b downwards, inf, 1, -inf
    ):
        found = await balancer.sort_values(frame, ["a", "b"], ascending, "first")
        assert (await c.compute(found)).index.tolist() == wanted
    one = await c.compute(await balancer.sort_values(frame, "a", True, "first"))
    expected = pdf.sort_values("a", na_position="first", kind="stable")
    assert one.index.tolist() == expected.index.tolist()
