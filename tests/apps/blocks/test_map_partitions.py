"""`Balancer.map_partitions` on a cluster: what `dask.dataframe.map_partitions` gives."""

import collections
import threading

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed.utils_test import gen_cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fpmdask
from fpmdask.errors import PartitionError
from tests.eventually import nothing_left

CONFIG = {"distributed.scheduler.active-memory-manager.start": False}
RANDOM = np.random.default_rng(0)
LOCK = threading.Lock()
SEEN = collections.Counter()


def cluster(workers=3):
    threads = [("127.0.0.1", 1)] * workers
    return gen_cluster(client=True, nthreads=threads, config=CONFIG, timeout=60)


def frame(rows=1000):
    return pd.DataFrame(
        {
            "x": RANDOM.random(rows),
            "kind": pd.Categorical(RANDOM.choice(["a", "b", "c"], rows)),
            "maybe": pd.array([None if n % 3 else n for n in range(rows)], "Int64"),
            "text": pd.array([f"t{n}" for n in range(rows)], "string"),
            "when": pd.date_range("2024-01-01", periods=rows, freq="min"),
            "list": [[n] for n in range(rows)],
        },
        index=pd.RangeIndex(rows, name="row"),
    )


def counted(part):
    with LOCK:
        SEEN.update(part["x"].tolist())
    return part.assign(y=part["x"] * 2)


@cluster()
async def test_every_row_is_computed_once_and_types_stay(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = frame()
    ddf = dd.from_pandas(pdf, npartitions=7)
    wanted = (await c.compute(ddf)).assign(y=pdf["x"] * 2)
    meta = wanted.iloc[:0]
    for given_, expected in ((ddf, wanted), (ddf, wanted), (pdf, pdf.assign(y=pdf["x"] * 2))):
        SEEN.clear()
        found = await balancer.map_partitions(counted, given_, meta=meta if given_ is ddf else None)
        pd.testing.assert_frame_equal(await c.compute(found), expected)
        assert set(SEEN.values()) == ({1} if given_ is ddf else SEEN and set(SEEN.values()))
        assert len(set(SEEN) & set(pdf["x"])) == len(pdf)
        assert found.known_divisions
        rows = await c.compute(found.loc[500:510])
        assert rows.index.tolist() == list(range(500, 511))
    assert sum(balancer.report.distribution) == len(pdf)
    del found, ddf, given_
    await nothing_left(s)


@pytest.mark.slow
@cluster()
async def test_what_dask_gives(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = frame(300)
    ddf = dd.from_pandas(pdf, npartitions=5)
    one = dd.from_pandas(pdf.iloc[3:4], npartitions=1)

    def told(part, partition_info=None):
        return part[["x"]].assign(n=-1 if partition_info is None else partition_info["number"])

    cases = [
        (lambda p: p[["x"]] + 1, (ddf,), {}),
        (lambda p: p["x"], (ddf,), {}),
        (lambda p: p[p["x"] > 0.5], (ddf,), {}),
        (lambda p: p[p["x"] > 2], (ddf,), {}),
        (lambda p, q: p["x"] + q["x"], (ddf, ddf[["x"]]), {}),
        (lambda p, q: p["x"] + q["x"].iloc[0], (ddf, one), {}),
        (lambda p, n, m=1: p["x"] * n + m, (ddf, 3), {"m": 4}),
        (lambda p: p.index, (ddf,), {}),
        (lambda p: p * 2, (ddf["x"],), {}),
        (len, (ddf,), {}),
        (len, (ddf[ddf["x"] > 0.99],), {}),
        (len, (ddf,), {"meta": ("rows", "i8")}),
        (lambda p: p["x"].max(), (ddf,), {"meta": (None, "f8")}),
        (lambda p: p[["x"]], (ddf,), {"meta": {"x": "f8"}}),
        (lambda p: p["x"], (ddf,), {"meta": ("x", "f8")}),
        (told, (ddf,), {}),
        (lambda p: p.assign(kind=p["kind"].cat.add_categories("z")), (ddf,), {}),
    ]
    for n, (function, arguments, options) in enumerate(cases):
        wanted = await c.compute(dd.map_partitions(function, *arguments, **options))
        found = await balancer.map_partitions(function, *arguments, **options)
        value = await c.compute(found)
        assert type(value) is type(wanted), n
        if isinstance(wanted, pd.DataFrame):
            pd.testing.assert_frame_equal(value, wanted)
        elif isinstance(wanted, pd.Series):
            pd.testing.assert_series_equal(value, wanted)
        else:
            assert list(value) == list(wanted), n


@cluster()
async def test_partitions_without_rows_and_frames_without_any(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = pd.DataFrame({"x": np.arange(30.0)})
    ddf = dd.from_pandas(pdf, npartitions=6)
    some = ddf[ddf["x"] > 20]  # partitions without rows
    found = await c.compute(await balancer.map_partitions(lambda p: p + 1, some))
    pd.testing.assert_frame_equal(found, pdf[pdf["x"] > 20] + 1)
    for empty in (ddf[ddf["x"] > 99], pdf.iloc[:0]):
        found = await c.compute(await balancer.map_partitions(lambda p: p + 1, empty))
        assert list(found.columns) == ["x"]
        assert len(found) == 0


@cluster(workers=1)
async def test_partitions_without_rows_between_others_are_reduced_once(c, s, a):
    """The worker is given the rows of several partitions at once."""
    balancer = await fpmdask.Balancer(c)
    ddf = dd.from_pandas(pd.DataFrame({"x": np.arange(40.0)}), npartitions=8)
    some = ddf[(ddf["x"] % 10) >= 5]  # every second one has no rows
    wanted = await c.compute(dd.map_partitions(len, some))
    found = await balancer.map_partitions(len, some, distribution={"0": 20})
    assert (await c.compute(found)).tolist() == wanted.tolist() == [0, 5] * 4


@cluster()
async def test_equal_labels_on_both_sides_of_a_cut_leave_divisions_unknown(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = pd.DataFrame({"x": np.arange(400.0)}, index=[7] * 400)
    ddf = dd.from_pandas(pdf, npartitions=1)
    found = await balancer.map_partitions(lambda p: p + 1, ddf)
    assert found.npartitions > 1
    assert not found.known_divisions
    pd.testing.assert_frame_equal(await c.compute(found), pdf + 1)


@cluster()
async def test_what_is_lost_later_is_made_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = frame(600)
    ddf = dd.from_pandas(pdf, npartitions=6)
    wanted = (await c.compute(ddf))[["x", "kind", "text"]]
    found = await balancer.map_partitions(lambda p: p[["x", "kind", "text"]], ddf)
    await workers[0].close()
    pd.testing.assert_frame_equal(await c.compute(found), wanted)


@pytest.mark.slow
@cluster()
async def test_any_frames_give_what_dask_gives(c, s, *workers):
    cases = []

    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(
        rows=st.integers(0, 60),
        partitions=st.integers(1, 9),
        column=st.sampled_from(["x", "kind", "maybe", "text", "when", "list"]),
        both=st.booleans(),
    )
    def draw(rows, partitions, column, both):
        cases.append((rows, partitions, column, both))

    draw()
    balancer = await fpmdask.Balancer(c)
    for rows, partitions, column, both in cases:
        ddf = dd.from_pandas(frame(rows)[[column]], npartitions=partitions)

        def function(part, other=None):
            return part if other is None else pd.concat([part, other.add_suffix("_")], axis=1)

        more = (ddf,) if both else ()
        wanted = await c.compute(dd.map_partitions(function, ddf, *more))
        found = await c.compute(await balancer.map_partitions(function, ddf, *more))
        pd.testing.assert_frame_equal(found, wanted)


BAD = {
    "func": ("give a function", ("no function", frame(3)), {}),
    "array": ("no frame", (len, np.ones(3)), {}),
    "lengths": (
        "has 4 rows, the first one 3",
        (
            lambda p, q: p,
            dd.from_pandas(frame(3), npartitions=2),
            dd.from_pandas(frame(4), npartitions=2).clear_divisions(),
        ),
        {},
    ),
    "divisions": (
        "have the divisions|has the divisions",
        (
            lambda p, q: p,
            dd.from_pandas(frame(10), npartitions=2),
            dd.from_pandas(frame(20).iloc[10:], npartitions=2),
        ),
        {},
    ),
    "enforce": (
        "the keyword enforce_metadata",
        (lambda p: p, frame(3)),
        {"enforce_metadata": False},
    ),
    "distribution": ("9 rows in all", (lambda p: p, frame(3)), {"distribution": {"0": 9}}),
    "keyword": (
        "the keyword k",
        (lambda p, k: p, frame(3)),
        {"k": dd.from_pandas(frame(3), npartitions=1)},
    ),
    "nested": (
        "argument 1 has in it",
        (lambda p, q: p, frame(3), [dd.from_pandas(frame(3), npartitions=1)]),
        {},
    ),
    "more": (
        "found a Index, no frame",
        (lambda p, q: p, frame(3), dd.from_pandas(frame(3), npartitions=1).index),
        {},
    ),
    "index": ("found a Index, no frame", (len, dd.from_pandas(frame(3), npartitions=1).index), {}),
    "meta": ("meta is a str", (lambda p: p, frame(3)), {"meta": "x"}),
    "meta number": ("meta is a int", (lambda p: p, frame(3)), {"meta": 7}),
    "meta type": ("meta is a type", (lambda p: p, frame(3)), {"meta": pd.DataFrame}),
    "meta {}": ("meta has no columns; give", (lambda p: p, frame(3)), {"meta": {}}),
    "meta ()": ("meta has no columns; give", (lambda p: p, frame(3)), {"meta": ()}),
    "meta frame": ("meta has no columns", (lambda p: p, frame(3)), {"meta": pd.DataFrame()}),
    "meta series": (
        "meta is a Series, the function returns a DataFrame; give column → dtype",
        (lambda p: p, frame(3)),
        {"meta": ("x", "f8")},
    ),
    "meta names": ("Expected iterable of tuples", (lambda p: p, frame(3)), {"meta": ["x"]}),
    "meta dtype": ("'no type' not underst", (lambda p: p, frame(3)), {"meta": {"x": "no type"}}),
    "token": ("the keyword token", (lambda p, **k: p, frame(3)), {"token": "a"}),
    "columns": (
        "the keyword required_columns",
        (lambda p, **k: p, frame(3)),
        {"required_columns": ["x"]},
    ),
    "unpicklable": ("as map_partitions of Dask says", (lambda p: (LOCK, p)[1], frame(3)), {}),
}


@pytest.mark.parametrize("case", BAD)
@cluster(2)
async def test_bad_input_is_refused_with_what_to_do(c, s, *workers, case):
    message, arguments, options = BAD[case]
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(PartitionError, match=message):
        await balancer.map_partitions(*arguments, **options)
    await nothing_left(s)


@cluster(2)
async def test_lazy_inputs_are_not_computed_for_what_is_refused(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    ddf = dd.from_pandas(frame(30), npartitions=3)
    before = s.transition_counter
    for arguments, options in (
        ((len, ddf), {"meta": 7}),
        ((lambda p: p, ddf), {"meta": {}}),
        ((lambda p: p, ddf), {"meta": {"x": "no type"}}),
        ((lambda p: (LOCK, p)[1], ddf), {"meta": ddf}),
        ((lambda p, q: p, ddf, [ddf]), {}),
        ((lambda p: p, ddf), {"distribution": {"0": -1}}),
        ((lambda p: p, frame(3)), {"distribution": [1, 1]}),
        ((lambda p: p, frame(3)), {"distribution": {"0": 9}}),
        ((lambda p, **k: p, ddf), {"parent_meta": None}),
    ):
        with pytest.raises(PartitionError):
            await balancer.map_partitions(*arguments, **options)
    assert not s.tasks
    assert s.transition_counter == before


UNLIKE = {
    "columns": (
        r"returned for rows (\d+) to \d+, on worker [01], the columns 'x', 'z', where meta has "
        r"'x', 'y' \(not in meta: 'z'; missing: 'y'\); give a meta like what it returns, or",
        lambda part: part[["x"]].assign(z=1),
        {"x": "f8", "y": "i8"},
    ),
    "order": (
        "the columns 'kind', 'x', where meta has 'x', 'kind' .the order differs.; give",
        lambda part: part[["kind", "x"]],
        {"x": "f8", "kind": "category"},
    ),
    "a series": (
        "on worker [01], a Series, where meta is a DataFrame; give",
        lambda part: part["x"],
        {"x": "f8"},
    ),
    "a number": (
        "on worker [01], a int, where meta is a DataFrame; give",
        lambda part: len(part),
        frame(2)[["x"]],
    ),
    "of other implementations": (
        "on worker [01], the columns 'y', where meta has 'x'",
        lambda part: part[["x"]].rename(columns={"x": "y"}),
        {"x": "f8"},
    ),
}


@pytest.mark.parametrize("case", UNLIKE)
@cluster(2)
async def test_what_is_not_like_its_meta_is_refused_with_where_it_was_found(c, s, *workers, case):
    message, function, meta = UNLIKE[case]
    balancer = await fpmdask.Balancer(c)
    ddf = dd.from_pandas(frame(30), npartitions=3)
    more = {}
    if case == "of other implementations":
        function, more = (lambda part: part[["x"]]), {"implementations": {"fpm": function}}
    with pytest.raises(PartitionError, match=message) as refused:
        await balancer.map_partitions(function, ddf, meta=meta, **more)
    assert refused.value.__cause__ is None
    del refused
    await nothing_left(s)


@cluster(2)
async def test_what_has_no_rows_becomes_meta_whatever_its_columns(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = frame(30)
    for function in (lambda part: pd.DataFrame(), lambda part: part["x"][:0]):
        found = await balancer.map_partitions(function, pdf, meta=pdf[["x"]][:0])
        pd.testing.assert_frame_equal(await c.compute(found), pdf[["x"]][:0])
