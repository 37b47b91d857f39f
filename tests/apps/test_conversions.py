"""Collections of other libraries: taken, given back as such, or refused with advice."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client

import fpmdask
from fpmdask.errors import CoordinatorError, PartitionError
from tests.apps.matmul.test_product import cluster

RANDOM = np.random.default_rng(3)


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


@cluster()
async def test_what_is_no_array_is_refused_with_what_makes_one(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    pdf = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    frame = dd.from_pandas(pdf, npartitions=1)
    cases = [
        (frame, r"to_dask_array\(lengths=True\)"),
        (frame.a, r"to_dask_array\(lengths=True\)"),
        (pdf, r"to_numpy\(\)"),
        (pdf.a, r"to_numpy\(\)"),
        (pdf.index, r"to_numpy\(\)"),
        (dask.delayed(np.ones)(3), "from_delayed"),
        ([[1.0, 2.0]], "numpy.asarray"),
        (3.5, "numpy.asarray"),
        (None, "numpy.asarray"),
        ("abc", "numpy.asarray"),
    ]
    for x, message in cases:
        for call in (balancer.sort, balancer.argsort):
            with pytest.raises(PartitionError, match=message):
                await call(x)
        for operands in ((x, np.ones((2, 2))), (np.ones((2, 2)), x)):
            with pytest.raises(PartitionError, match=message):
                await balancer.matmul(*operands)


@pytest.mark.slow
def test_the_default_client_is_taken_and_its_lack_is_said():
    with pytest.raises(CoordinatorError, match="no client was given, and there is no default one"):
        fpmdask.Balancer()
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with Client(**options, dashboard_address=":0") as client:
        assert fpmdask.Balancer().client is client
