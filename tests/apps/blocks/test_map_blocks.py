"""`Balancer.map_blocks` on a cluster: what `dask.array.map_blocks` gives, each row once."""

import collections
import threading

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed.utils_test import gen_cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fpmdask
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.dask_private import meta_of
from tests.eventually import nothing_left

CONFIG = {"distributed.scheduler.active-memory-manager.start": False}
RANDOM = np.random.default_rng(0)
LOCK = threading.Lock()
SEEN = collections.Counter()
SERIES = pd.Series(dtype=float)


def cluster(workers=3, **options):
    threads = [("127.0.0.1", 1)] * workers
    config = {**CONFIG, **options.pop("config", {})}
    return gen_cluster(client=True, nthreads=threads, config=config, timeout=60, **options)


def twice(block):
    return block * 2


def counted(block):
    with LOCK:
        SEEN.update(block[:, 0].tolist())
    return block + 1


async def same(c, found, expected):
    """Check values, dtype and chunks."""
    value, wanted = await c.compute(found), await c.compute(expected)
    assert found.shape == np.shape(value) == np.shape(wanted)
    assert found.dtype == value.dtype == wanted.dtype
    np.testing.assert_array_equal(value, wanted)


@cluster()
async def test_every_row_is_computed_once(c, s, *workers):
    SEEN.clear()
    balancer = await fpmdask.Balancer(c)
    rows = 3000
    x = da.from_array(np.arange(rows * 2).reshape(rows, 2), chunks=(500, 2))
    for _ in range(2):  # by what the first call has taught, too
        found = await balancer.map_blocks(counted, x, dtype=x.dtype)
        np.testing.assert_array_equal(
            await c.compute(found), np.arange(rows * 2).reshape(rows, 2) + 1
        )
        assert set(SEEN.values()) == {1}
        assert len(SEEN) == rows
        SEEN.clear()
    report = balancer.report
    assert sum(report.distribution) == rows
    assert sum(found.chunks[0]) == rows
    assert {share["worker"] for share in report.shares} == {"0", "1", "2"}
    del found, x
    await nothing_left(s)


@pytest.mark.slow
@cluster()
async def test_what_dask_gives(c, s, *workers):
    """Dimensions, dtypes, axes that go and come, other arrays, keywords, lengths that change."""
    balancer = await fpmdask.Balancer(c)
    x = da.from_array(RANDOM.random((60, 5, 4)), chunks=(13, 2, 4))
    row, column = (
        da.from_array(RANDOM.random(4), chunks=2),
        da.from_array(RANDOM.random((60, 1, 1))),
    )
    with dask.config.set(scheduler="sync"):
        whole = x.rechunk({1: -1, 2: -1})
    cases = [
        (twice, (x,), {}),
        (twice, (x,), {"axis": 1}),
        (twice, (x,), {"axis": -1}),
        (lambda a, b: a + b, (x, x), {}),
        (lambda a, b: a * b, (x, row), {}),
        (lambda a, b: a * b, (x, column), {}),
        (lambda a, b: a * b, (x, column), {"axis": 2}),
        (lambda a, n, m=0: a + n - m, (x, 3), {"m": 2}),
        (lambda a, b: a + b, (x, np.ones(4)), {}),
        (lambda a: a.sum(1), (x,), {"drop_axis": 1}),
        (lambda a: a.sum((1, 2)), (x,), {"drop_axis": [1, -1]}),
        (lambda a: a.sum((1, 2)), (x,), {"drop_axis": {1, 2}}),
        (lambda a: a.sum(2), (x,), {"drop_axis": np.array([2])}),
        (lambda a: a[:, None], (x,), {"new_axis": 1}),
        (lambda a: a[None], (x,), {"new_axis": 0, "axis": 0}),
        (lambda a: a.sum(1)[..., None], (x,), {"drop_axis": 1, "new_axis": 2}),
        (lambda a: a.astype("f4"), (x,), {}),
        (lambda a: a > 0.5, (x,), {}),
        (lambda a: a.astype("M8[s]"), (x,), {"dtype": "M8[s]"}),
        (
            lambda a: np.array([str(v) for v in a[:, 0, 0]], "U20"),
            (x,),
            {"drop_axis": [1, 2], "dtype": "U20"},
        ),
    ]
    for n, (function, arrays, options) in enumerate(cases):
        found = await balancer.map_blocks(function, *arrays, **options)
        options.pop("axis", None)
        given = [a.rechunk(-1) if isinstance(a, da.Array) else a for a in arrays]
        wanted = await c.compute(da.map_blocks(function, *given, **options))
        value = await c.compute(found)
        np.testing.assert_array_equal(value, wanted, str(n))
        assert value.shape == found.shape, n
        if "dtype" not in options or n != len(cases) - 1:
            assert found.dtype == wanted.dtype, n
    assert whole.npartitions == 5


@pytest.mark.slow
@cluster()
async def test_any_type_of_block(c, s, *workers):
    """Structured, object, text, masked, sparse."""
    import scipy.sparse

    balancer = await fpmdask.Balancer(c)
    fields = np.zeros(50, [("a", "i4"), ("b", "f8")])
    fields["a"] = np.arange(50)
    for values in (
        fields,
        np.array([f"k{n}" for n in range(50)], object),
        np.array([f"k{n}" for n in range(50)]),
        RANDOM.random(50) + 1j,
        RANDOM.random(50) < 0.5,
    ):
        x = da.from_array(values, chunks=7)
        found = await balancer.map_blocks(lambda b: b[::1].copy(), x, dtype=values.dtype)
        np.testing.assert_array_equal(await c.compute(found), values)
        found = await balancer.map_blocks(lambda b: b.copy(), values, dtype=values.dtype)
        np.testing.assert_array_equal(await c.compute(found), values)
    masked = np.ma.masked_less(RANDOM.random((40, 3)), 0.4)
    found = await c.compute(await balancer.map_blocks(twice, da.from_array(masked, chunks=(9, 3))))
    np.testing.assert_array_equal(found.mask, masked.mask)
    np.testing.assert_array_equal(found.filled(0), (masked * 2).filled(0))
    matrix = scipy.sparse.random(60, 8, 0.2, "csr", rng=0)
    x = da.from_array(matrix.toarray(), chunks=(11, 8)).map_blocks(scipy.sparse.csr_matrix)
    found = await c.compute(await balancer.map_blocks(twice, x, dtype=float))
    np.testing.assert_array_equal(found.toarray(), matrix.toarray() * 2)


@pytest.mark.slow
@cluster()
async def test_blocks_of_the_package_sparse(c, s, *workers):
    sparse = pytest.importorskip("sparse")
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random((600, 8))
    values[values < 0.8] = 0
    dense = da.from_array(values, chunks=(110, 3))
    x = dense.map_blocks(sparse.COO.from_numpy)
    shares = {"0": 100, "1": 200, "2": 300}
    for function, arrays, options in (
        (twice, (x,), {"axis": 1}),
        (twice, (x,), {"distribution": shares}),
        (lambda a, b: a * b, (x, dense), {}),
        (lambda a: a.sum(axis=1), (x,), {"drop_axis": 1}),
        (lambda a: a.todense(), (x,), {}),
        (sparse.COO.from_numpy, (values,), {}),
    ):
        found = await balancer.map_blocks(function, *arrays, **options)
        value = await c.compute(found)
        drop = {name: axis for name, axis in options.items() if name == "drop_axis"}
        whole = [da.asarray(a, asarray=False).rechunk(-1) for a in arrays]
        wanted = await c.compute(da.map_blocks(function, *whole, **drop))
        assert type(value) is type(wanted)
        assert value.shape == found.shape
        assert type(value) is not sparse.COO or isinstance(meta_of(found), sparse.COO)
        plain = (a.todense() if hasattr(a, "todense") else a for a in (value, wanted))
        np.testing.assert_array_equal(*plain)
    found = await balancer.rebalance(x, distribution=shares)
    assert (await c.compute(found) != sparse.COO(values)).nnz == 0
    with pytest.raises(PartitionError, match=r"found a COO, .*; dask.array.from_array\(x, asarray"):
        await balancer.map_blocks(twice, sparse.COO(values))


@cluster()
async def test_lengths_that_change_and_those_that_are_unknown(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = da.from_array(RANDOM.random(1000), chunks=130)
    kept = x[x > 0.3]  # unknown chunks
    found = await balancer.map_blocks(lambda b: b[b > 0.5], kept)
    values = await c.compute(found)
    every = await c.compute(x)
    np.testing.assert_array_equal(values, every[every > 0.5])
    assert found.shape == values.shape
    nothing = await balancer.map_blocks(lambda b: b[:0], x)
    assert nothing.shape == (0,)
    for empty in (
        da.zeros((0, 3)),
        np.zeros((0, 3)),
        da.from_array(np.zeros((0, 3)), chunks=(1, 3)),
    ):
        found = await balancer.map_blocks(twice, empty)
        assert found.shape == (0, 3)
        assert (await c.compute(found)).shape == (0, 3)
    chunks = da.concatenate([da.zeros((0, 3)), da.ones((5, 3)), da.zeros((0, 3))])
    found = await balancer.map_blocks(twice, chunks)
    np.testing.assert_array_equal(await c.compute(found), np.full((5, 3), 2.0))


@cluster()
async def test_who_is_told_its_block_gets_the_chunks_of_the_input(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = da.from_array(RANDOM.random((50, 6)), chunks=(9, 6))
    y = da.from_array(RANDOM.random(6))

    def function(a, b, block_id=None, block_info=None):
        info = block_info or {0: {"array-location": [(0, 0)]}, None: {"chunk-location": (0,)}}
        return a + b + info[0]["array-location"][0][0] + (block_id or (0,))[0]

    def told(a, b, block_info=None, block_id=None):
        return np.array([[repr((block_info, block_id))]], object)

    options = {"dtype": float}
    wanted = await c.compute(da.map_blocks(function, x, y, **options))
    found = await balancer.map_blocks(function, x, y, **options)
    np.testing.assert_array_equal(await c.compute(found), wanted)
    assert found.chunks == x.chunks
    options = {"dtype": np.dtype(object), "chunks": (1, 1)}
    wanted = await c.compute(da.map_blocks(told, x, y, **options))
    found = await c.compute(await balancer.map_blocks(told, x, y, **options))
    assert found.tolist() == wanted.tolist()


@cluster()
async def test_a_given_distribution_moves_nothing_where_it_is_that_of_the_input(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = da.from_array(RANDOM.random((900, 3)), chunks=(100, 3))
    y = await balancer.map_blocks(twice, x, distribution={"0": 500, "1": 300, "2": 100})
    assert dict(zip(balancer.report.workers, balancer.report.distribution, strict=True)) == {
        "0": 500,
        "1": 300,
        "2": 100,
    }
    first = balancer.report
    for distribution in (first, y.chunks[0], {"0": 500, "1": 300, "2": 100}):
        z = await balancer.map_blocks(twice, y, distribution=distribution)
        assert balancer.report.bytes_moved == 0
        assert list(balancer.report.distribution) == [500, 300, 100]
        assert balancer.report.reason == "given"
        if distribution is y.chunks[0]:
            assert z.chunks == y.chunks
        np.testing.assert_array_equal(await c.compute(z), (await c.compute(x)) * 4)


@cluster()
async def test_what_is_lost_later_is_made_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random((900, 3))
    x = da.from_array(values, chunks=(100, 3))
    y = await balancer.map_blocks(lambda a, b: a + b, x, x[:, :1])
    held = await c.has_what()
    assert sum(1 for keys in held.values() for key in keys if key[0] == y.name) == y.npartitions
    await workers[0].close()
    np.testing.assert_array_equal(await c.compute(y), values + values[:, :1])


@cluster()
async def test_results_stay_where_they_were_computed_and_no_key_is_pinned(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    y = await balancer.map_blocks(twice, da.ones(3000, chunks=500))
    report = balancer.report
    units = dict.fromkeys(report.addresses, 0)
    for n, rows in enumerate(y.chunks[0]):
        (holder,) = s.tasks[y.name, n].who_has
        units[holder.address] += rows
        assert not s.tasks[y.name, n].worker_restrictions
    assert list(units.values()) == list(report.distribution)


@cluster()
async def test_masked_arrays_and_numbers_without_dimensions(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    masked = np.ma.masked_less(np.arange(100.0), 50)
    found = await c.compute(await balancer.map_blocks(lambda a: a + 1, masked))
    assert found.sum() == (masked + 1).sum()
    x = da.ones((30, 2), chunks=(7, 2))
    found = await balancer.map_blocks(lambda a, b: a * b, x, da.asarray(3.0))
    np.testing.assert_array_equal(await c.compute(found), np.full((30, 2), 3.0))
    # what its meta does not tell is refused: rows of NumPy arrays are put together without masks
    hidden = da.arange(30, chunks=10).map_blocks(np.ma.masked_less, 15, meta=np.empty(0, int))
    with pytest.raises(PartitionError, match=r"is a numpy\.ma\.MaskedArray; make it"):
        await balancer.map_blocks(twice, hidden)


@cluster()
async def test_chunks_without_rows_are_called_where_the_function_is_told_its_chunk(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    z = da.arange(12, chunks=4)
    some = z[z > 3]  # the first chunk has no rows

    def told(block, block_id=None):
        return np.array([block_id[0] * 100 + len(block)])

    found = await c.compute(await balancer.map_blocks(told, some, dtype=int))
    assert found.tolist() == [0, 104, 204]


@cluster()
async def test_implementations_are_picked_by_a_workers_resources(c, s, *workers):
    await workers[1].set_resources(gpu=1)
    balancer = await fpmdask.Balancer(c)
    y = await balancer.map_blocks(
        lambda b: b * 0, da.ones(3000, chunks=500), implementations={"gpu": lambda b: b * 0 + 7}
    )
    values = await c.compute(y)
    units = dict(zip(balancer.report.workers, balancer.report.distribution, strict=True))
    assert int((values == 7).sum()) == units["1"] > 0


BAD = {
    "func": (PartitionError, "give a function", ("no function", np.ones(3)), {}),
    "list": (PartitionError, "no array", (twice, [1, 2]), {}),
    "scalar": (PartitionError, "no dimensions", (twice, np.array(3.0)), {}),
    "axis": (PartitionError, "axis = 2", (twice, np.ones((3, 3))), {"axis": 2}),
    "axis True": (PartitionError, "axis = True", (twice, np.ones((3, 3))), {"axis": True}),
    "drop": (PartitionError, "drop_axis = 0", (twice, np.ones((3, 3))), {"drop_axis": 0}),
    "drop axis 5": (PartitionError, "drop_axis", (twice, np.ones((3, 3))), {"drop_axis": 5}),
    "lengths": (
        PartitionError,
        "length 4",
        (np.add, np.ones(3), da.ones(4)),
        {},
    ),
    "dimensions": (PartitionError, "dimensions", (np.add, np.ones(3), da.ones((2, 3))), {}),
    "negative": (
        PartitionError,
        "int >= 0",
        (twice, np.ones(3)),
        {"distribution": {"0": -1, "1": 4}},
    ),
    "sum": (PartitionError, "4 rows in all", (twice, np.ones(3)), {"distribution": {"0": 4}}),
    "blocks": (PartitionError, "2 rows in all", (twice, np.ones(3)), {"distribution": [1, 1]}),
    "word": (PartitionError, "distribution = 'a'", (twice, np.ones(3)), {"distribution": "a"}),
    "names": (CoordinatorError, "names 9", (twice, np.ones(3)), {"distribution": {"9": 3}}),
    "implementations": (
        PartitionError,
        "resource",
        (twice, np.ones(3)),
        {"implementations": {"g": 1}},
    ),
    "future": (PartitionError, "is a future", "future", {}),
    "token": (PartitionError, "the keyword token", (twice, np.ones(3)), {"token": "a"}),
    "dtype": (
        PartitionError,
        "as map_blocks of Dask says",
        (twice, np.ones(3)),
        {"dtype": "nonsense"},
    ),
    "infos": (
        PartitionError,
        "for each chunk",
        (lambda b, block_id=None: b, da.ones(12, chunks=4)),
        {"distribution": [2, 10], "dtype": float},
    ),
    "unknown": (
        PartitionError,
        "compute_chunk_sizes",
        (twice, da.ones((9, 3), chunks=3)[da.ones(9, chunks=3) > 0]),
        {"axis": 1},
    ),
    "keyword": (PartitionError, "the keyword k", (lambda b, k: b, np.ones(3)), {"k": da.ones(3)}),
    "delayed keyword": (
        PartitionError,
        "the keyword k is a Delayed.* of dask; compute it",
        (lambda b, k: b, np.ones(3)),
        {"k": dask.delayed(3)},
    ),
    "delayed": (
        PartitionError,
        "argument 1 is a Delayed.*, or compute it",
        (lambda b, k: b, np.ones(3), dask.delayed(3)),
        {},
    ),
    "unpicklable": (
        PartitionError,
        "cannot be sent",
        (lambda b, k: b, np.ones(3)),
        {"k": LOCK, "dtype": float},
    ),
    "nested": (PartitionError, "argument 1 has in it", (twice, np.ones(3), [da.ones(3)]), {}),
    "deep": (PartitionError, "k has in it", (twice, np.ones(3)), {"k": {"a": (da.ones(3),)}}),
    "meta": (PartitionError, "meta is a int", (twice, np.ones(3)), {"meta": 5}),
    "meta {}": (PartitionError, "meta is a dict", (twice, np.ones(3)), {"meta": {}}),
    "meta type": (PartitionError, "meta is a type", (twice, np.ones(3)), {"meta": np.ndarray}),
    "meta series": (PartitionError, "meta is a Series", (twice, np.ones(3)), {"meta": SERIES}),
    "meta str": (PartitionError, "meta is a str", (twice, np.ones(3)), {"meta": "f8"}),
    "drop float": (PartitionError, "drop_axis = 0.5", (twice, np.ones(3)), {"drop_axis": 0.5}),
    "drop twice": (PartitionError, "twice", (twice, np.ones((3, 3))), {"drop_axis": [1, -1]}),
    "new twice": (PartitionError, "twice", (twice, np.ones(3)), {"new_axis": [1, 1]}),
    "new": (PartitionError, "give ints >= 0", (twice, np.ones(3)), {"new_axis": -1}),
    "chunks": (PartitionError, "chunks = 3; give a tuple", (twice, np.ones(3)), {"chunks": 3}),
    "chunks < 0": (PartitionError, "an int >= 0", (twice, np.ones(3)), {"chunks": (-3,)}),
    "chunks word": (PartitionError, "an int >= 0", (twice, np.ones(3)), {"chunks": "auto"}),
    "bools": (PartitionError, "distribution = ", (twice, np.ones(3)), {"distribution": [True, 2]}),
    "dimensions out": (
        PartitionError,
        "blocks of 1 dimensions",
        (lambda b: b[:, 0], np.ones((3, 3))),
        {"dtype": float},
    ),
    "chunks out": (
        PartitionError,
        "chunks says 5",
        (lambda b: b, np.ones((3, 3))),
        {"chunks": (3, 5)},
    ),
}


@pytest.mark.parametrize("case", BAD)
@cluster(2)
async def test_bad_input_is_refused_with_what_to_do(c, s, *workers, case):
    error, message, arguments, options = BAD[case]
    balancer = await fpmdask.Balancer(c)
    if arguments == "future":
        arguments = twice, np.ones(3), await c.scatter(5.0)
    with pytest.raises(error, match=message):
        await balancer.map_blocks(*arguments, **options)
    del arguments
    await nothing_left(s)


@cluster(2)
async def test_lazy_inputs_are_not_computed_for_what_is_refused(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = da.ones((12, 3), chunks=(4, 3))
    before = s.transition_counter
    for function, options in (
        (lambda b, k: b, {"k": LOCK}),
        (lambda b: b, {"implementations": {"gpu": lambda b: LOCK}}),
        (lambda b, block_id=None: b, {"distribution": [2, 10]}),
        (lambda b: b, {"distribution": {"0": 11}}),
        (lambda b: b, {"chunks": (-4, 3)}),
        (lambda b: b, {"meta": {}}),
        (lambda b, k: b, {"k": [x]}),
    ):
        with pytest.raises(PartitionError):
            await balancer.map_blocks(function, x, dtype=float, **options)
    with pytest.raises(CoordinatorError, match="names 9"):
        await balancer.map_blocks(twice, x, distribution={"9": 12})
    assert not s.tasks
    assert s.transition_counter == before


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    config=CONFIG,
    timeout=60,
    worker_kwargs={"memory_limit": "4 GB"},
)
async def test_results_that_do_not_fit_are_refused(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = da.zeros(4000, chunks=1000)
    with pytest.raises(PartitionError, match="no worker has memory for more results"):
        await balancer.map_blocks(lambda b: np.zeros((len(b), 500_000)), x, new_axis=1, dtype=float)
    del x
    await nothing_left(s)


@pytest.mark.slow
@cluster()
async def test_any_arrays_give_what_dask_gives(c, s, *workers):
    """Hypothesis draws arrays and functions; all are run on one cluster."""
    cases = []

    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(
        shape=st.lists(st.integers(1, 40), min_size=1, max_size=3),
        parts=st.integers(1, 4),
        axis=st.integers(-3, 2),
        kind=st.sampled_from(["f8", "i2", "U3", "c16", "M8[D]"]),
        other=st.sampled_from(["none", "same", "row", "number"]),
    )
    def draw(shape, parts, axis, kind, other):
        if not -len(shape) <= axis < len(shape):
            axis %= len(shape)
        cases.append((tuple(shape), parts, axis, kind, other))

    draw()
    balancer = await fpmdask.Balancer(c)

    def function(a, b=None):
        return np.stack([a, a], axis=-1)[..., 0] if b is None or a.dtype.kind in "UM" else a + b

    for shape, parts, axis, kind, other in cases:
        values = RANDOM.integers(0, 100, shape).astype(kind)
        x = da.from_array(values, chunks=tuple(max(1, n // parts) for n in shape))
        more = {"none": (), "same": (x,), "row": (x[..., :1],), "number": (3,)}[other]
        if other == "row" and x.ndim == 1 and shape[0] > 1:
            more = (x[:1],)
        found = await balancer.map_blocks(function, x, *more, axis=axis)
        known = [m if other == "number" else await c.compute(m) for m in more]
        wanted = function(values, *known)
        await same(c, found, da.from_array(wanted))
    assert len(cases) > 10
    del x, found, more
    await nothing_left(s)
