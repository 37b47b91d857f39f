"""`Balancer.stencil` from and to storage."""

import pickle

import dask.array as da
import numpy as np
import pytest
import zarr
from dask.base import tokenize

import fpmdask
from fpmdask.apps.stencil import jacobi
from fpmdask.errors import PartitionError
from fpmdask.runtime.client.conversions import as_stored
from fpmdask.runtime.zarr_storage import StoredRows
from tests.apps.stencil.test_stencil import cluster, local
from tests.eventually import nothing_left

RANDOM = np.random.default_rng(0)


def stored(path, values, chunks):
    made = zarr.create_array(str(path), shape=values.shape, chunks=chunks, dtype=values.dtype)
    made[...] = values
    return made


def zarr_cluster(workers=3, **options):
    """Zarr keeps threads of its own."""
    return cluster(workers, clean_kwargs={"threads": False}, **options)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [(7, 20), (40, 6), (1, 1)])
@zarr_cluster()
async def test_workers_read_their_rows_of_zarr_arrays_themselves(c, s, *workers, tmp_path, chunks):
    balancer = await fpmdask.Balancer(c)
    u0, constant = RANDOM.random((2, 40, 20))
    source, arg = stored(tmp_path / "u", u0, chunks), stored(tmp_path / "a", constant, chunks)
    tasks = set()

    def update(block, arg):
        return jacobi(block) + arg[1:-1, 1:-1]

    balancer.progress = lambda event: tasks.update(s.tasks)
    found = await balancer.stencil(update, source, 5, args=[da.from_zarr(arg)], boundary="periodic")
    assert not [key for key in tasks if "zarr" in str(key)]
    wanted = u0
    for _ in range(5):
        wanted = jacobi(np.pad(wanted, 1, mode="wrap")) + constant
    np.testing.assert_array_equal(await c.compute(found), wanted)
    # what is lost later is read again
    await workers[0].close()
    np.testing.assert_array_equal(await c.compute(found), wanted)
    del found
    await nothing_left(s)


@pytest.mark.slow
@zarr_cluster()
async def test_what_several_processes_cannot_read_is_read_by_dask(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random((12, 5))
    found = await balancer.stencil(jacobi, zarr.array(values, chunks=(5, 5)), 2)
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, values, 2))
    lazy = da.from_zarr(stored(tmp_path / "u", values, (5, 5)))
    found = await balancer.stencil(jacobi, lazy + 1, 2)
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, values + 1, 2))


def test_which_arrays_are_read_by_workers(tmp_path):
    values = RANDOM.random((12, 5))
    array = stored(tmp_path / "u", values, (5, 5))
    assert as_stored(array) is array
    for lazy in (da.from_zarr(array), da.from_zarr(array, chunks=(2, 5))):
        assert tokenize(as_stored(lazy)) == tokenize(array)
    for other in (da.from_zarr(array)[1:], da.from_zarr(array) + 1, da.from_array(array)):
        assert as_stored(other) is other


@pytest.mark.slow
@zarr_cluster()
async def test_a_zarr_array_that_workers_do_not_reach_is_named(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    array = stored(tmp_path / "u", RANDOM.random((12, 5)), (5, 5))
    before = zarr.open_array(str(tmp_path / "u"))
    array.resize((11, 5))

    (tmp_path / "u" / "c" / "1" / "0").write_bytes(b"no chunk")
    with pytest.raises(
        PartitionError, match=r"worker \d cannot read a Zarr array at file://.*/u \("
    ):
        await balancer.stencil(jacobi, array, 2)
    with pytest.raises(PartitionError, match=r"is float64 of the shape \(11, 5\) there"):
        StoredRows(pickle.dumps(before))
    (tmp_path / "u" / "zarr.json").unlink()
    with pytest.raises(PartitionError, match="there is no Zarr array"):
        await balancer.stencil(jacobi, array, 2)
    await nothing_left(s)
