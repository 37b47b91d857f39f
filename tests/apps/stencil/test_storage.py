"""`Balancer.stencil` from and to storage."""

import pickle
import threading
import time

import dask.array as da
import numpy as np
import pytest
import zarr
from dask.base import tokenize

import fpmdask
from fpmdask.apps.stencil import jacobi
from fpmdask.errors import FpmdaskError, PartitionError
from fpmdask.runtime.client.conversions import as_stored
from fpmdask.runtime.zarr_storage import StoredRows
from tests.apps.stencil.test_stencil import cluster, local
from tests.eventually import nothing_left
from tests.tuned import tuned

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


def snapshots(u0, iterations):
    """Return the fields after some iterations, one after the other."""
    found = []
    for n in range(1, max(iterations) + 1):
        u0 = local(jacobi, u0, 1)
        if n in iterations:
            found.append(u0)
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [(7, 20), (40, 6), (1, 20), (13, 3)])
@zarr_cluster(4, config=tuned(stencil={"trial_seconds": 0.0}))
async def test_workers_write_the_result(c, s, *workers, tmp_path, chunks):
    """Also where a chunk has rows of several workers."""
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((40, 20))
    out = zarr.create_array(str(tmp_path / "out"), shape=u0.shape, chunks=chunks, dtype="f8")
    for shares in (None, {"0": 3, "1": 1, "2": 35, "3": 1}, {"1": 40}):
        found = await balancer.stencil(jacobi, u0, 6, out=out, distribution=shares)
        wanted = local(jacobi, u0, 6)
        np.testing.assert_array_equal(out[...], wanted)
        np.testing.assert_array_equal(await c.compute(found), wanted)
        assert not zarr.open_array(str(tmp_path / "out")).attrs.asdict()
        u0 = wanted
    await nothing_left(s)


@pytest.mark.slow
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_who_has_no_memory_for_a_chunk_writes_none(c, s, *workers, tmp_path):
    """One that has it takes some of the others', though it has no rows."""
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((60, 50))
    out = zarr.create_array(str(tmp_path / "out"), shape=u0.shape, chunks=(10, 50), dtype="f8")

    def update(block):
        time.sleep(2e-4 * len(block))
        return jacobi(block)

    needed = u0[:10].nbytes * 5 // 4
    for spare in (-1, 1):  # for rows nothing in both cases
        await balancer.stencil(update, u0, 4, out=out, memory={"2": needed + spare})
        np.testing.assert_array_equal(out[...], local(jacobi, u0, 4))
        (idle,) = (share for share in balancer.report.shares if share["worker"] == "2")
        assert idle["units"] == 0
        assert (idle["nbytes_received"] > 0) == (spare > 0)
    await nothing_left(s)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", [None, {"0": 30, "1": 2, "2": 8}])
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_snapshots_are_appended(c, s, *workers, tmp_path, distribution):
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((40, 7))
    path = str(tmp_path / "out")
    out = zarr.create_array(path, shape=(0, 40, 7), chunks=(2, 11, 4), dtype="f8")
    shares = {"distribution": distribution}
    found = await balancer.stencil(jacobi, u0, 25, out=out, save_every=10, **shares)
    np.testing.assert_array_equal(out[...], snapshots(u0, [10, 20, 25]))
    np.testing.assert_array_equal(await c.compute(found), out[-1])
    assert dict(out.attrs) == {"fpmdask.out": {"iterations": [10, 20, 25]}}
    await balancer.stencil(jacobi, found, 20, out=path, save_every=10, **shares)
    again = zarr.open_array(path)
    np.testing.assert_array_equal(again[3:], snapshots(u0, [35, 45]))
    np.testing.assert_array_equal(again[:3], snapshots(u0, [10, 20, 25]))
    assert dict(again.attrs) == {"fpmdask.out": {"iterations": [10, 20, 25, 10, 20]}}
    # fewer than there could be
    await balancer.stencil(
        jacobi, u0, 100, out=path, save_every=3, tolerance=1e9, check_every=4, **shares
    )
    again = zarr.open_array(path)
    np.testing.assert_array_equal(again[5:], snapshots(u0, [3, 4]))
    assert again.attrs["fpmdask.out"]["iterations"][5:] == [3, 4]
    await balancer.stencil(jacobi, u0, 0, out=path, save_every=3)
    np.testing.assert_array_equal(zarr.open_array(path)[7:], u0[None])
    await nothing_left(s)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [(7, 64), (100, 9)])
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0, "band_nbytes": 5000}))
async def test_rows_that_do_not_fit_come_from_storage_and_go_there(
    c, s, *workers, tmp_path, chunks
):
    """The result would not fit into the workers' memory."""
    balancer = await fpmdask.Balancer(c)
    u0, arg = RANDOM.random((2, 400, 64))
    arrays = [stored(tmp_path / name, x, chunks) for name, x in (("u", u0), ("a", arg))]
    out = zarr.create_array(
        str(tmp_path / "out"), shape=(0, 400, 64), chunks=(1, *chunks), dtype="f8"
    )

    def update(block, arg):
        return 0.5 * (jacobi(block) + arg[1:-1, 1:-1])

    memory = {"0": 180_000, "1": 140_000, "2": 10**7}
    with pytest.raises(PartitionError, match="give out="):
        await balancer.stencil(update, arrays[0], 5, args=arrays[1:], memory=30_000)
    for distribution in ({"0": 190, "1": 200, "2": 10}, None):
        out.resize((0, 400, 64))
        out.attrs.clear()
        found = await balancer.stencil(
            update,
            arrays[0],
            5,
            args=arrays[1:],
            out=out,
            save_every=2,
            memory=memory,
            distribution=distribution,
        )
        wanted = [u0]
        for _ in range(5):
            wanted.append(update(np.pad(wanted[-1], 1, mode="symmetric"), np.pad(arg, 1)))
        np.testing.assert_array_equal(out[...], np.array(wanted)[[2, 4, 5]])
        np.testing.assert_array_equal(await c.compute(found), wanted[-1])
        if distribution:
            blocks = {share["worker"]: share["blocks"] for share in balancer.report.shares}
            assert blocks["0"] > 1
            assert blocks["1"] > 1
            assert blocks["2"] == 0
    with pytest.raises(PartitionError, match="for the rows that out writes as one"):
        await balancer.stencil(update, u0, 1, args=(arg,), out=tmp_path / "new", memory=100_000)
    await nothing_left(s)


@pytest.mark.slow
@zarr_cluster()
async def test_several_fields_go_to_a_group_or_to_arrays_of_their_own(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    u, v = RANDOM.random((12, 9)), RANDOM.random((12, 9)).astype("f4")

    def update(blocks):
        return jacobi(blocks[0]), jacobi(blocks[1]).astype("f4")

    wanted = [await c.compute(one) for one in await balancer.stencil(update, (u, v), 4)]
    found = await balancer.stencil(update, (u, v), 4, out=f"file://{tmp_path}/new")
    group = zarr.open_group(str(tmp_path / "new"), mode="r+")
    for n in range(2):
        np.testing.assert_array_equal(await c.compute(found[n]), wanted[n])
        np.testing.assert_array_equal(group[f"field{n}"][...], wanted[n])
    await balancer.stencil(update, (u + 1, v), 4, out=group)
    assert not np.array_equal(group["field0"][...], wanted[0])
    await balancer.stencil(update, (u, v), 4, out=(group["field0"], group["field1"]))
    np.testing.assert_array_equal(group["field0"][...], wanted[0])
    sequence = zarr.create_group(str(tmp_path / "sequence"))
    found = await balancer.stencil(update, (u, v), 4, out=sequence, save_every=2)
    assert sequence["field1"].shape == (2, 12, 9)
    np.testing.assert_array_equal(await c.compute(found[1]), wanted[1])
    one = await balancer.stencil(jacobi, u, 1, out=tmp_path / "one")
    np.testing.assert_array_equal(await c.compute(one), local(jacobi, u, 1))


@pytest.mark.slow
@zarr_cluster()
async def test_bytes_in_another_order_are_swapped(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((12, 5)).astype(">f8")
    expected = local(jacobi, u0, 2)
    for out in (tmp_path / "made", stored(tmp_path / "there", u0.astype("<f8") * 0, (5, 5))):
        found = await balancer.stencil(jacobi, u0, 2, out=out)
        np.testing.assert_array_equal(await c.compute(found), expected)


@pytest.mark.slow
@zarr_cluster()
async def test_an_out_that_cannot_be_is_refused(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((12, 5))
    out = stored(tmp_path / "out", u0, (5, 5))
    for given, says in [
        ({"out": u0}, "out is a ndarray; give a zarr.Array"),
        ({"out": zarr.zeros((12, 5))}, "out is in a MemoryStore"),
        ({"out": zarr.open_array(out.store, mode="r")}, "out is read-only"),
        ({"out": stored(tmp_path / "f4", u0.astype("f4"), (5, 5))}, "out has dtype float32"),
        ({"out": stored(tmp_path / "x", u0[:5], (5, 5))}, r"\(5, 5\); the result has \(12, 5\)"),
        ({"out": out, "save_every": 2}, r"\(12, 5\); the result has \('snapshots', 12, 5\)"),
        ({"out": (out, out)}, "out is a tuple; give a zarr.Array"),
        ({"out": zarr.create_group(str(tmp_path / "group")).store.root}, "cannot be opened"),
        ({"u0": da.from_zarr(out) + 1, "out": out}, "which an input is read from"),
        ({"u0": out, "out": str(tmp_path / "out")}, "which an input is read from"),
        ({"u0": (u0, u0), "out": (out,)}, "out has 1 arrays for 2 fields"),
        ({"u0": (u0, u0), "out": (out, out)}, "out has the same array for two fields"),
    ]:
        with pytest.raises(PartitionError, match=says):
            await balancer.stencil(jacobi, **{"u0": u0, "iterations": 2, **given})
    for given, says in [
        ({"save_every": 2}, "save_every is given without out"),
        ({"save_every": 0, "out": out}, "save_every = 0; give an int >= 1"),
    ]:
        with pytest.raises(PartitionError, match=says):
            balancer.stencil(jacobi, u0, 2, **given)
    await nothing_left(s)


@pytest.mark.slow
@zarr_cluster()
async def test_what_is_refused_leaves_no_array_behind(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    u0, lock = RANDOM.random((12, 5)), threading.Lock()

    def unsent(block):
        return lock and block

    for given, says in [
        ({"memory": 100}, "the result has 12 rows"),
        ({"distribution": {"0": 6, "nobody": 6}}, "the distribution names nobody"),
        ({"update": unsent}, "update cannot be sent"),
    ]:
        for more in ({}, {"save_every": 1}):
            with pytest.raises(FpmdaskError, match=says):
                await balancer.stencil(
                    **{"update": jacobi, "u0": u0, "iterations": 2, "out": tmp_path / "out"}
                    | given
                    | more
                )
    assert [*tmp_path.iterdir()] == []

    def wrong(block):
        raise KeyError("seven")

    for update, u0s in ((wrong, u0), (lambda blocks: wrong(blocks[0]), (u0, u0))):
        with pytest.raises(KeyError, match="seven"):
            await balancer.stencil(update, u0s, 2, out=tmp_path / "out")
        assert [*tmp_path.iterdir()] == []
    group = zarr.create_group(str(tmp_path / "out"))
    stored(tmp_path / "out" / "field0", u0, (6, 5))
    with pytest.raises(PartitionError, match="which an input is read from"):
        await balancer.stencil(jacobi, (group["field0"], u0), 2, out=group)
    assert [*group] == ["field0"]
    await nothing_left(s)


@pytest.mark.slow
@zarr_cluster()
async def test_folders_that_were_there_stay(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    zarr.create_group(str(tmp_path / "old"), zarr_format=2, attributes={"by": "me"})
    u0 = RANDOM.random((12, 5))

    def wrong(block):
        raise KeyError("seven")

    for name in ("empty", "link", "old"):
        with pytest.raises(KeyError, match="seven"):
            await balancer.stencil(wrong, u0, 2, out=tmp_path / name)
    assert (tmp_path / "link").resolve() == tmp_path / "empty"
    assert (tmp_path / "empty").is_dir()
    assert dict(zarr.open_group(str(tmp_path / "old"), zarr_format=2).attrs) == {"by": "me"}
    await balancer.stencil(jacobi, u0, 2, out=tmp_path / "link")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "empty")[...], local(jacobi, u0, 2))


@pytest.mark.slow
@zarr_cluster()
async def test_snapshots_of_others_are_not_overwritten(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    u0, path = RANDOM.random((12, 5)), str(tmp_path / "out")
    zarr.create_array(path, shape=(9, 12, 5), chunks=(1, 6, 5), dtype="f8")
    await balancer.stencil(jacobi, u0, 2, out=path, save_every=1)  # of which there is none yet
    out = zarr.open_array(path)
    np.testing.assert_array_equal(out[...], snapshots(u0, [1, 2]))
    del out.attrs["fpmdask.out"]
    with pytest.raises(PartitionError, match="has 2 snapshots of no call"):
        await balancer.stencil(jacobi, u0, 5, out=path, save_every=1)
    np.testing.assert_array_equal(zarr.open_array(path)[...], snapshots(u0, [1, 2]))


@pytest.mark.slow
@zarr_cluster()
async def test_snapshots_that_only_one_field_has_are_not_overwritten(c, s, *workers, tmp_path):
    """The group has those of one field, of an earlier call; the array for the other is made."""
    balancer = await fpmdask.Balancer(c)
    u0, group = RANDOM.random((12, 5)), zarr.create_group(str(tmp_path / "out"))
    field = group.create_array("field0", shape=(0, 12, 5), chunks=(1, 6, 5), dtype="f8")
    await balancer.stencil(jacobi, u0, 2, out=field, save_every=1)

    def update(blocks):
        return jacobi(blocks[0]), jacobi(blocks[1])

    with pytest.raises(PartitionError, match="out has 2, 0 snapshots of the fields"):
        await balancer.stencil(update, (u0, u0), 3, out=tmp_path / "out", save_every=1)
    np.testing.assert_array_equal(group["field0"][...], snapshots(u0, [1, 2]))
    assert [*group] == ["field0"]


@pytest.mark.slow
@zarr_cluster()
async def test_a_failure_keeps_the_snapshots_that_are_complete(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    out = zarr.create_array(str(tmp_path / "out"), shape=(0, 40, 7), chunks=(1, 9, 7), dtype="f8")

    def wrong(block):
        if block[0, 0] == 7:
            raise KeyError("seven")
        return block + 1

    with pytest.raises(KeyError, match="seven"):
        await balancer.stencil(
            wrong, np.zeros((40, 7)), 100, out=out, save_every=3, distribution={"0": 20, "1": 20}
        )
    assert dict(out.attrs) == {"fpmdask.out": {"iterations": [3, 6]}}
    np.testing.assert_array_equal(out[...], np.full((2, 40, 7), [[[3.0]], [[6.0]]]))
    await nothing_left(s)


@pytest.mark.slow
@zarr_cluster()
async def test_a_full_disk_is_an_error_that_names_it(c, s, *workers, tmp_path):
    """As a user without rights would find it, too: files where folders are to be made."""
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((40, 7))
    out = zarr.create_array(str(tmp_path / "out"), shape=(40, 7), chunks=(9, 7), dtype="f8")
    (tmp_path / "out" / "c").write_text("in the way")
    with pytest.raises(OSError, match=r"worker \d cannot write to out at file://.*out"):
        await balancer.stencil(jacobi, u0, 3, out=out)
    assert not zarr.open_array(str(tmp_path / "out")).attrs.asdict()
    (tmp_path / "out" / "c").unlink()
    await balancer.stencil(jacobi, u0, 3, out=out)
    np.testing.assert_array_equal(out[...], local(jacobi, u0, 3))
    await nothing_left(s)
