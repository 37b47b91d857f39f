"""Collections of other libraries: taken, given back as such, or refused with advice."""

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client

import fpmdask
from fpmdask.errors import CoordinatorError, PartitionError
from tests.apps.matmul.test_product import cluster
from tests.eventually import nothing_left

RANDOM = np.random.default_rng(3)
KEYS = np.array([n * 7 % 20 / 4 for n in range(20)])
WORDS = np.array([f"word {n % 3}" for n in range(20)])


@cluster(clean_kwargs={"threads": False})  # Zarr keeps threads of its own
async def test_zarr_arrays_are_read_by_the_workers(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random((30, 20))
    stored = zarr.array(values, chunks=(10, 20))
    found = await balancer.matmul(stored, stored[:].T)
    np.testing.assert_allclose(await c.compute(found), values @ values.T)
    flat = zarr.array(values.ravel(), chunks=100)
    np.testing.assert_array_equal(await c.compute(await balancer.sort(flat)), np.sort(flat[:]))
    positions = await c.compute(await balancer.argsort(flat))
    np.testing.assert_array_equal(values.ravel()[positions], np.sort(flat[:]))


@cluster()
async def test_data_arrays_are_given_back_as_such(c, s, *workers):
    xr = pytest.importorskip("xarray")  # not with all tests: dask.array imports it in every worker
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random((6, 4))
    a = xr.DataArray(values, dims=("time", "band"), coords={"time": np.arange(6) * 10})
    b = xr.DataArray(da.from_array(values.T, chunks=2), dims=("band", "place"))
    found = await balancer.matmul(a, b)
    assert found.dims == ("time", "place")
    assert found.time.data.tolist() == [0, 10, 20, 30, 40, 50]
    assert isinstance(found.data, da.Array)
    np.testing.assert_allclose(await c.compute(found.data), values @ values.T)
    assert (await balancer.matmul(a, a.T)).dims == ("time", "time_columns")
    assert (await balancer.matmul(values.T, a)).dims == ("rows", "band")
    assert (await balancer.matmul(a, np.ones(4))).dims == ("time",)
    assert (await balancer.matmul(a[:0], b)).shape == (0, 6)
    line = a[:, 0].rename("level")
    ordered = await balancer.sort(line)
    assert (ordered.dims, ordered.name) == (("time",), "level")
    np.testing.assert_array_equal(await c.compute(ordered.data), np.sort(values[:, 0]))
    positions = await balancer.argsort(line, descending=True)
    assert positions.dtype == np.int64
    with pytest.raises(PartitionError, match="found 2 dimensions"):
        await balancer.sort(a)
    with pytest.raises(PartitionError, match="one of its variables"):
        await balancer.sort(xr.Dataset({"a": ("x", [1.0])}))


def frame(**options):
    return pd.DataFrame({"key": KEYS, "word": WORDS}, **options)


def lazy(made):
    return dd.from_pandas(made, npartitions=2, sort=False)


RIGHT = ""  # the right result, not an error
ARRAY = (RIGHT, RIGHT, r"pandas\.DataFrame\(x\)", RIGHT)
SERIES = (RIGHT, RIGHT, r"x\.to_frame\(\)", r"x\.to_numpy\(\)")
OTHER_SERIES = ("keys of any dtype", "keys of any dtype", r"x\.to_frame\(\)", r"x\.to_numpy\(\)")
LAZY_SERIES = (RIGHT, RIGHT, r"x\.to_frame\(\)", r"to_dask_array\(lengths=True\)")
DELAYED = (
    *["dask.array.from_delayed"] * 2,
    "dask.dataframe.from_delayed",
    "dask.array.from_delayed",
)
NOTHING = (*["numpy.asarray"] * 2, "pandas.DataFrame makes one", "numpy.asarray")
# type → what makes one of KEYS, and what sort, argsort, sort_values and matmul make of it: the
# right result, or an error that says how to make of it what they take
TYPES = {
    "ndarray": (lambda: KEYS, ARRAY),
    "dask array": (
        lambda: da.from_array(KEYS, chunks=7),
        (RIGHT, RIGHT, r"from_dask_array\(x\)", RIGHT),
    ),
    "Zarr array": (lambda: zarr.array(KEYS, chunks=7), ARRAY),
    "masked array": (
        lambda: np.ma.masked_less(KEYS, 0.5),
        (*["filled or toarray"] * 2, r"pandas\.DataFrame\(x\)", "filled or toarray"),
    ),
    "array of objects": (
        lambda: WORDS.astype(object),
        (*["astype makes such"] * 2, r"pandas\.DataFrame\(x\)", "object"),
    ),
    "pandas series": (lambda: pd.Series(KEYS, index=range(100, 120)), SERIES),
    "pandas index": (lambda: pd.Index(KEYS), SERIES),
    "nullable series": (lambda: pd.Series(KEYS, dtype="Float64"), OTHER_SERIES),
    "series of categories": (lambda: pd.Series(KEYS, dtype="category"), OTHER_SERIES),
    "series of words": (lambda: pd.Series(WORDS), OTHER_SERIES),
    "index of levels": (lambda: pd.MultiIndex.from_arrays([KEYS, WORDS]), OTHER_SERIES),
    "pandas frame": (frame, (*[r"x\.to_numpy\(\)"] * 2, RIGHT, r"x\.to_numpy\(\)")),
    "pandas frame with levels": (
        lambda: frame(index=[WORDS, WORDS]),
        (*[r"x\.to_numpy\(\)"] * 2, "reset_index", r"x\.to_numpy\(\)"),
    ),
    "dask series": (lambda: lazy(frame()).key, LAZY_SERIES),
    "dask index": (lambda: lazy(frame(index=KEYS.copy())).index, LAZY_SERIES),
    "dask series of words": (
        lambda: lazy(frame()).word,
        ("keys of any dtype", "keys of any dtype", r"x\.to_frame\(\)", "to_dask_array"),
    ),
    "dask frame": (
        lambda: lazy(frame()),
        (*[r"to_dask_array\(lengths=True\)"] * 2, RIGHT, r"to_dask_array\(lengths=True\)"),
    ),
    "delayed": (lambda: dask.delayed(np.sort)(KEYS), DELAYED),
    "bag": (
        lambda: dask.bag.from_sequence(KEYS.tolist(), npartitions=2),
        (r"to_dataframe\(\)",) * 4,
    ),
    "list": (lambda: KEYS.tolist(), NOTHING),
    "number": (lambda: 3.5, NOTHING),
    "nothing": (lambda: None, NOTHING),
    "text": (lambda: "abc", NOTHING),
}


async def sorted_keys(c, balancer, x):
    found = await c.compute(await balancer.sort(x))
    np.testing.assert_array_equal(found, np.sort(KEYS))


async def ordering_positions(c, balancer, x):
    found = await c.compute(await balancer.argsort(x))
    np.testing.assert_array_equal(KEYS[found], np.sort(KEYS))


async def sorted_rows(c, balancer, x):
    found = await balancer.sort_values(x, "key", ascending=False)
    assert isinstance(found, dd.DataFrame)
    given = x if isinstance(x, pd.DataFrame) else await c.compute(x)
    expected = given.sort_values("key", ascending=False, kind="stable")
    pd.testing.assert_frame_equal(await c.compute(found), expected)


async def product(c, balancer, x):
    found = await c.compute(await balancer.matmul(x, KEYS))
    np.testing.assert_allclose(found, KEYS @ KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
@cluster(clean_kwargs={"threads": False})  # Zarr keeps threads of its own
async def test_each_method_takes_a_type_or_says_what_to_make_of_it(c, s, *workers, kind):
    balancer = await fpmdask.Balancer(c)
    make, answers = TYPES[kind]
    calls = (sorted_keys, ordering_positions, sorted_rows, product)
    for call, says in zip(calls, answers, strict=True):
        if says == RIGHT:
            await call(c, balancer, make())
        else:
            with pytest.raises(PartitionError, match=says):
                await call(c, balancer, make())
    await nothing_left(s)


@cluster()
async def test_a_future_is_refused_with_what_makes_a_collection_of_it(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    future = c.submit(np.sort, KEYS)
    for call in (balancer.sort, balancer.argsort):
        with pytest.raises(PartitionError, match=r"dask\.array\.from_delayed"):
            await call(future)
    with pytest.raises(PartitionError, match=r"dask\.dataframe\.from_delayed"):
        await balancer.sort_values(future, "key")


@pytest.mark.slow
def test_the_default_client_is_taken_and_its_lack_is_said():
    with pytest.raises(CoordinatorError, match="no client was given, and there is no default one"):
        fpmdask.Balancer()
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with Client(**options, dashboard_address=":0") as client:
        assert fpmdask.Balancer().client is client
