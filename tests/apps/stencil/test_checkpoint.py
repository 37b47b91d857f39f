"""`Balancer.stencil` goes on from a checkpoint: in the same call, and when it is made again."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from types import ModuleType

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client, Event, LocalCluster

import fpmdask
from fpmdask.apps.stencil import heat, jacobi
from fpmdask.errors import PartitionError, StorageError
from fpmdask.runtime.client.code_digest import code_digest
from fpmdask.runtime.worker.checkpoints import Checkpoints
from fpmdask.runtime.worker.fetch import FetchFailed
from tests.apps.stencil.test_stencil import local, of, worker_name
from tests.apps.stencil.test_storage import zarr_cluster
from tests.eventually import nothing_left, until
from tests.tuned import tuned

RANDOM = np.random.default_rng(0)
# Modules count with their names in what tells a function from another one.
STATE = ModuleType("state")
STATE.fails_at, STATE.seen = None, []


def counting(blocks):
    """Add one to the first field, and twice that to the second; fail at a value of the first."""
    one, two = blocks
    STATE.seen.append(float(one[0, 0]))
    if one[0, 0] == STATE.fails_at:
        raise KeyError("seven")
    return one + 1, two + 2


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def manifests(folder):
    return [name for name in names(folder) if name.endswith(".json")]


async def fails(balancer, folder, at, **more):
    """Make a call that fails after some iterations; return the fields at its start."""
    start = np.zeros((30, 5)), np.ones((30, 5), "f4")
    settings = {
        "checkpoint": str(folder),
        "checkpoint_every": 4,
        "distribution": {"0": 20, "1": 10},
    }
    STATE.fails_at = at
    STATE.seen.clear()
    with pytest.raises(KeyError, match="seven"):
        await balancer.stencil(counting, start, 20, **{**settings, **more})
    STATE.fails_at = None
    return start


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, 9000])
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0, "band_nbytes": 200}))
async def test_the_same_call_goes_on_with_any_shares(c, s, *workers, tmp_path, memory):
    balancer = await fpmdask.Balancer(c)
    folder = tmp_path / "kept"
    for shares in ({"0": 3, "1": 7, "2": 20}, {"2": 30}, None):
        start = await fails(balancer, folder, 14)
        (manifest,) = manifests(folder)
        assert json.loads((folder / manifest).read_text())["iteration"] == 12
        assert len(names(folder)) == 1 + 2 * 2  # no other files
        STATE.seen.clear()
        found = await balancer.stencil(
            counting,
            start,
            20,
            checkpoint=folder,
            checkpoint_every=4,
            distribution=shares,
            memory=memory,
        )
        for n, one in enumerate(found):
            np.testing.assert_array_equal(await c.compute(one), start[n] + 20 * (n + 1))
        assert 11 not in STATE.seen
        assert {share["iterations"] for share in balancer.report.shares} == {20}
        assert names(folder) == []
        del found, one
    await nothing_left(s)


@pytest.mark.slow
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_snapshots_go_on_where_they_were(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    folder, path = tmp_path / "kept", tmp_path / "out"
    more = {"out": str(path), "save_every": 3}
    before = tmp_path / "before"
    await fails(balancer, before, 14, checkpoint=None, checkpoint_every=None, **more)
    start = await fails(balancer, folder, 14, **more)
    group = zarr.open_group(str(path))
    assert group["field0"][:, 0, 0].tolist() == [3, 6, 9, 12] * 2
    await balancer.stencil(counting, start, 20, checkpoint=folder, checkpoint_every=4, **more)
    group = zarr.open_group(str(path))
    saved = [3, 6, 9, 12, 3, 6, 9, 12, 15, 18, 20]
    for n in range(2):
        wanted = start[n] + (n + 1) * np.array(saved)[:, None, None]
        np.testing.assert_array_equal(group[f"field{n}"][...], wanted)
        assert dict(group[f"field{n}"].attrs) == {"fpmdask.out": {"iterations": saved}}
    assert names(folder) == []


@pytest.mark.slow
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_a_failure_keeps_its_own_checkpoint_and_not_a_later_one(c, s, *workers, tmp_path):
    """The later one is of an earlier call, whose snapshots are gone: it is of no use any more."""
    balancer = await fpmdask.Balancer(c)
    folder, path = tmp_path / "kept", tmp_path / "out"
    more = {"out": str(path), "save_every": 3}
    await fails(balancer, folder, 14, **more)
    shutil.rmtree(path)
    start = await fails(balancer, folder, 10, **more)
    STATE.seen.clear()
    await balancer.stencil(counting, start, 20, checkpoint=folder, checkpoint_every=4, **more)
    assert not {*range(2, 8)} & {*STATE.seen}
    assert zarr.open_group(str(path))["field0"][:, 0, 0].tolist() == [3, 6, 9, 12, 15, 18, 20]
    assert names(folder) == []


@pytest.mark.slow
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_a_checkpoint_whose_snapshots_are_gone_is_not_used(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    folder, path = tmp_path / "kept", tmp_path / "out"
    more = {"out": str(path), "save_every": 3}
    start = await fails(balancer, folder, 14, **more)
    assert len(manifests(folder)) == 1
    for name in ("field0", "field1"):  # as if nobody had written down the last two
        array = zarr.open_group(str(path))[name]
        array.attrs["fpmdask.out"] = {**array.attrs["fpmdask.out"], "iterations": [3, 6]}
    STATE.seen.clear()
    await balancer.stencil(counting, start, 20, checkpoint=folder, checkpoint_every=4, **more)
    assert {*range(20)} <= {*STATE.seen}
    assert zarr.open_group(str(path))["field0"][:, 0, 0].tolist() == [3, 6, 9, 12, 15, 18, 20]
    start = await fails(balancer, folder, 14, **more)
    shutil.rmtree(path)
    found = await balancer.stencil(
        counting, start, 20, checkpoint=folder, checkpoint_every=4, **more
    )
    np.testing.assert_array_equal(await c.compute(found[0]), start[0] + 20)
    assert zarr.open_group(str(path))["field0"][:, 0, 0].tolist() == [3, 6, 9, 12, 15, 18, 20]
    assert names(folder) == []


@pytest.mark.slow
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_snapshots_of_zeros_are_not_taken_for_none(c, s, *workers, tmp_path):
    """Zarr stores no chunk of zeros."""
    balancer = await fpmdask.Balancer(c)
    path = tmp_path / "out"

    def update(blocks):
        one, two = counting(blocks)
        return one, two * 0

    start, saved = (np.zeros((30, 5)), np.zeros((30, 5))), [1, 2, 3, 4, 5, 6]
    STATE.fails_at = 6
    with pytest.raises(KeyError, match="seven"):
        await balancer.stencil(update, start, 9, out=path, save_every=1)
    group = zarr.open_group(str(path))
    for n in range(2):
        assert group[f"field{n}"][:, 3, 3].tolist() == [one * (1 - n) for one in saved]
        assert group[f"field{n}"].attrs["fpmdask.out"]["iterations"] == saved
    STATE.fails_at = None
    await balancer.stencil(update, start, 2, out=path, save_every=1)
    assert zarr.open_group(str(path))["field0"][:, 3, 3].tolist() == [*saved, 1, 2]


CLIENT = """
import sys, time
import numpy as np
import distributed
import fpmdask

def update(block):
    time.sleep(0.005)
    return block + 1

address, folder = sys.argv[1:]
with distributed.Client(address) as client:
    found = fpmdask.Balancer(client).stencil(
        update, np.zeros((30, 5)), 80, out=folder + "/out", save_every=1,
        checkpoint=folder + "/kept", checkpoint_every=1, distribution={"0": 15, "1": 15},
    )
    print(int(found.compute().max()), {int(n) for n in np.unique(found.compute())})
"""


@pytest.mark.slow
def test_a_killed_client_leaves_what_the_same_call_goes_on_from(tmp_path):
    """Workers make iterations, snapshots and checkpoints that the client does not hear of."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address=":0",
    ) as there:
        command = [sys.executable, "-c", CLIENT, there.scheduler_address, str(tmp_path)]
        with subprocess.Popen(command) as client:
            while len(manifests(tmp_path / "kept")) < 1:
                assert client.poll() is None
                time.sleep(0.02)
            os.kill(client.pid, signal.SIGSTOP)
            time.sleep(0.5)
            client.kill()
        again = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert again.stdout.split() == ["80", "{80}"], again.stderr
    array = zarr.open_array(str(tmp_path / "out"))
    assert array[:, 0, 0].tolist() == array.attrs["fpmdask.out"]["iterations"]
    assert array[:, 0, 0].tolist() == [*range(1, 81)]


@pytest.mark.slow
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_a_damaged_or_foreign_checkpoint_is_named_and_left(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    folder = tmp_path / "kept"

    async def goes_on(start, says):
        STATE.seen.clear()
        with pytest.warns(UserWarning, match=says):
            found = await balancer.stencil(
                counting, start, 20, checkpoint=folder, checkpoint_every=50
            )
        np.testing.assert_array_equal(await c.compute(found[0]), start[0] + 20)
        return min(STATE.seen)

    def damage(name, change):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    for change, says in [
        (lambda old: old[:-1] + b"!", "is not what was written"),
        (lambda old: old[:-1], "is not as long as it was"),
    ]:
        start = await fails(balancer, folder, 14)
        damage(next(name for name in names(folder) if name.endswith("-1.rows")), change)
        assert await goes_on(start, says) == 0
    for change, says in [
        (lambda old: old[:-9], "is damaged"),
        (lambda old: old.replace(b'"version": 1', b'"version": 2'), "is of version 2, not 1"),
        (lambda old: old.replace(b'"iteration": 12', b'"iteration": "x"'), "is damaged"),
        (lambda old: old.replace(b'"edges"', b'"hedges"'), "is damaged"),
    ]:
        start = await fails(balancer, folder, 14)
        damage(manifests(folder)[0], change)
        assert await goes_on(start, says) == 0
        assert names(folder) == []  # of this call
    # of another one
    start = await fails(balancer, folder, 14)
    there = names(folder)
    assert await goes_on((start[0] + 1, start[1]), "is of another call") == 1
    assert names(folder) == there


def waiting(block):
    """Add one; worker 1 waits at 9."""
    STATE.seen.append(float(block[0, 0]))
    if worker_name() == "1" and block[0, 0] == 9:
        Event("go on").wait(30)
    return block + 1


@pytest.mark.slow
@zarr_cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_the_run_goes_on_where_a_worker_is_lost(c, s, *workers, tmp_path):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    folder = tmp_path / "kept"
    u0 = np.zeros((30, 4))

    STATE.seen.clear()
    calling = balancer.stencil(
        waiting,
        da.from_array(u0, chunks=10),
        20,
        distribution="even",
        checkpoint=folder,
        checkpoint_every=4,
    )
    running = asyncio.ensure_future(of(calling))
    await until(lambda: 9 in STATE.seen)
    (leaving,) = [worker for worker in workers if str(worker.name) == "1"]
    closing = asyncio.ensure_future(leaving.close(timeout=1))
    await until(lambda: len(s.workers) == 2)
    del STATE.seen[:]
    await Event("go on", client=c).set()
    np.testing.assert_array_equal(await c.compute(await running), u0 + 20)
    assert [event for event in events if event["event"] == "starting over"]
    assert 7 not in STATE.seen
    assert names(folder) == []
    await closing


@pytest.mark.slow
@zarr_cluster()
async def test_a_checkpoint_that_cannot_be_written_is_an_error(
    c, s, *workers, tmp_path, monkeypatch
):
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((30, 4))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot be made: .*file is a file"):
        await balancer.stencil(jacobi, u0, 9, checkpoint=tmp_path / "file", checkpoint_every=2)
    folder, write_at = tmp_path / "kept", fpmdask.storage.write_at

    def full(descriptor, at, data):
        if data.nbytes > 100 and at == 0 and len(manifests(folder)):
            write_at(descriptor, at, data[:100])
            raise OSError(28, "No space left on device")
        write_at(descriptor, at, data)

    with monkeypatch.context() as patch:
        patch.setattr("fpmdask.storage.write_at", full)
        with pytest.raises(
            StorageError, match=r"kept cannot be used: no space is left on its disk"
        ):
            await balancer.stencil(jacobi, u0, 9, checkpoint=folder, checkpoint_every=2)
    (manifest,) = manifests(folder)
    assert json.loads((folder / manifest).read_text())["iteration"] == 2
    assert {name.split("-0")[0] for name in names(folder)} == {manifest.split("-0")[0]}
    found = await balancer.stencil(jacobi, u0, 9, checkpoint=folder, checkpoint_every=2)
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 9))
    assert names(folder) == []
    del found
    await nothing_left(s)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"checkpoint": 3, "checkpoint_every": 1}, "checkpoint = 3; give a path"),
        ({"checkpoint": "x"}, "checkpoint is given without checkpoint_every"),
        ({"checkpoint_every": 3}, "checkpoint_every is given without checkpoint"),
        ({"checkpoint": "x", "checkpoint_every": 0}, "checkpoint_every = 0; give an int >= 1"),
    ],
)
@zarr_cluster(1)
async def test_bad_checkpoints_are_refused_at_once(c, s, *workers, given, says):
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(PartitionError, match=says):
        balancer.stencil(jacobi, np.ones((4, 4)), 1, **given)


CODE = """
import dataclasses, typing
import numpy as np
from fpmdask.runtime.client.code_digest import code_digest
from fpmdask.runtime.worker.checkpoints import Checkpoints
from fpmdask.runtime.worker.fetch import FetchFailed
weight = {weight}
class Scaled:
    def __init__(self, by):
        self.by = by
    def __call__(self, block):
        return {body}
T = typing.TypeVar("T")
@dataclasses.dataclass(slots=True)
class Slots(typing.Generic[T]):
    by: float
    def __call__(self, block):
        return {body}
def helped(block):
    def inner(x):
        return x in {{"a", "b", "c", "d"}}
    return inner(3) + np.roll(block, 1) * weight
print(code_digest(helped), code_digest(Scaled(2)), code_digest(Slots(2)))
"""


def digests(**changed):
    code = CODE.format(**{"weight": "np.arange(3)", "body": "block * self.by", **changed})
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    return answer.stdout.split()


@pytest.mark.slow
def test_code_is_known_again_in_other_processes():
    first = digests()
    assert digests(weight="np.arange(3)  # a comment\n") == first
    assert digests(weight="np.arange(4)")[0] != first[0]
    assert digests(weight="np.arange(4)")[1:] == first[1:]
    changed = digests(body="block + self.by")
    assert changed[1] != first[1]
    assert changed[2] != first[2]


def test_code_of_the_same_name_is_told_apart():
    assert code_digest(heat(0.1)) == code_digest(heat(0.1))
    assert len({code_digest(one) for one in (heat(0.1), heat(0.2), jacobi, np.negative)}) == 4


@pytest.mark.parametrize("over", [True, False])
def test_rows_of_a_run_that_is_over_are_not_left(tmp_path, over):
    """A worker that had stopped writes its rows when it goes on: nobody waits for them."""
    order = {"url": str(tmp_path), "every": 1, "run": "one", "name": "call", "shape": (4, 2)}
    cancelled = threading.Event()

    def reduce(values, op=np.maximum):
        assert len(names(tmp_path)) == 1
        if over:
            cancelled.set()
        raise FetchFailed({"reduce": ("b", "has left")})

    found = Checkpoints(
        {**order, "dtypes": ["<f8"]}, 0, "a", ["a", "b"], reduce, cancelled, warnings.warn
    )
    rows = [(0, [np.ones((2, 2))])]
    with pytest.raises(FetchFailed):
        found.save({"a": (0, 2), "b": (2, 4)}, 1, 1, rows)
    assert len(names(tmp_path)) == (0 if over else 1)


@pytest.mark.slow
def test_the_same_call_right_after_ctrl_c_meets_nothing_of_the_first_one(tmp_path):
    """As in a notebook; the first one is over, and has tidied up, when the interrupt is raised."""

    def slowly(block):
        time.sleep(0.003)
        return block + 1

    def interrupt(event):
        if event["event"] == "saved" and event["iteration"] == last:
            signal.pthread_kill(main.ident, signal.SIGALRM)

    main, last = threading.main_thread(), 0
    there = Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with there as client:
            balancer = fpmdask.Balancer(client, progress=interrupt)
            for turn in range(1, 3):
                out = str(tmp_path / f"out{turn}")
                make = partial(
                    balancer.stencil, slowly, np.zeros((40, 10)), 100, out=out, save_every=1
                )
                last = 3 * turn
                with pytest.raises(KeyboardInterrupt):
                    make(distribution="even")
                done = zarr.open_array(out).shape[0]
                assert last <= done < 100
                last = 0
                make(distribution="even")
                found = zarr.open_array(out)[:, 0, 0].tolist()
                assert found == [*range(1, done + 1), *range(1, 101)]
    finally:
        signal.signal(signal.SIGALRM, before)
