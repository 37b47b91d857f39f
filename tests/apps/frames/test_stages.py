"""Rows are sorted where workers leave, do nothing, have little memory or are not there."""

import asyncio
import threading
from functools import partial

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Task
from distributed import futures_of, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.frames.client.rebalance_rows import handed_over
from fpmdask.apps.sort.coordinator import run
from fpmdask.errors import ChunksLostError, CoordinatorError, NoWorkersError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.progress import CallProgress
from fpmdask.runtime.client.stages import Stages
from fpmdask.runtime.coordinator import chunks
from fpmdask.runtime.coordinator.client_stages import ClientStages
from tests.apps.frames.test_sort_values import (
    CONFIG,
    FRAME,
    check_sorted,
    cluster,
    frame_of,
)
from tests.eventually import nothing_left, until
from tests.tuned import tuned

HELD = threading.Event()


def hold():
    HELD.wait(30)


def two_workers():
    config = CONFIG | {"distributed.worker.memory.pause": False, "fpmdask.hang": "1s"}
    config["fpmdask.busy-patience"] = "1h"
    config |= tuned(runtime={"stage_patience_seconds": 0.0})
    threads = [("127.0.0.1", 1)] * 2
    return gen_cluster(client=True, nthreads=threads, config=config, timeout=90)


@pytest.fixture(autouse=True)
def released():
    HELD.clear()
    yield
    HELD.set()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["paused", "silent"])
@two_workers()
async def test_a_worker_that_does_nothing_is_named(c, s, *workers, what, monkeypatch):
    ended = []

    async def asked(self, name, tasks, at, *more):
        """Stop a worker to which tasks are pinned already."""
        if workers[1].address in at.values() and not ended:
            if what == "paused":
                workers[1].status = Status.paused
            else:
                busy = c.submit(hold, workers=[workers[1].address])
                while not workers[1].state.executing:
                    await asyncio.sleep(0.01)
                workers[1].periodic_callbacks["heartbeat"].stop()
            ended.append(busy if what == "silent" else None)
        return await original(self, name, tasks, at, *more)

    original = Stages.asked
    monkeypatch.setattr(Stages, "asked", asked)
    balancer = await fpmdask.Balancer(c)
    x = c.persist(frame_of(FRAME))
    says = {"paused": "is paused, .* its memory is full", "silent": "nothing was heard of it"}
    with pytest.raises(CoordinatorError, match=f"worker {workers[1].name} keeps .* {says[what]}"):
        await asyncio.wait_for(balancer.sort_values(x, "id"), 20)
    HELD.set()
    if what == "paused":
        workers[1].status = Status.running
    else:
        workers[1].periodic_callbacks["heartbeat"].start()
    await check_sorted(c, await balancer.sort_values(x, "id"), FRAME, "id")
    del x
    ended.clear()
    await nothing_left(s)


@pytest.mark.slow
@two_workers()
async def test_a_paused_worker_that_is_done_stops_nobody(c, s, *workers, monkeypatch):
    seen = []

    async def look(self, homes, seconds):
        assert await original(self, homes, seconds) is None
        if self._paused and seconds > 2.0:
            seen.append(homes)
            HELD.set()  # the worker was not complained about

    original = ClientStages.look
    monkeypatch.setattr(ClientStages, "look", look)
    tasks = {
        ("fpmdask-some", 0): Task(("fpmdask-some", 0), int, 3),
        ("fpmdask-some", 1): Task(("fpmdask-some", 1), hold),
    }
    at = {key: worker.address for key, worker in zip(tasks, workers, strict=True)}

    async def stage(request):
        return await Stages(c, request["within"]).asked("fpmdask-some", tasks, at, [], {})

    asking = asyncio.ensure_future(held(await fpmdask.Balancer(c), stage))
    while not (workers[0].data and workers[1].state.executing):
        await asyncio.sleep(0.01)
    workers[0].status = Status.paused
    assert await asyncio.wait_for(asking, 20) == [3, None]
    assert workers[0].address in seen[0]


async def held(balancer, stage):
    """Run a stage while a run holds the workers for it."""
    async with CallProgress("sort_values", balancer.progress):
        return await proxy.leased(balancer._follow, "frames", balancer._request(), stage)


@pytest.mark.slow
@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 3,
    config=CONFIG | {"fpmdask.busy-patience": "1500ms"},
    timeout=90,
)
async def test_a_worker_that_is_busy_with_others_is_told_of_and_its_partitions_move(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    x = c.persist(frame_of(FRAME))
    await c.gather(futures_of(x))
    holder = max(workers, key=lambda worker: len(worker.data))
    held = set(holder.data)
    task = c.submit(hold, workers=[holder.address], key="others-1")
    await until(lambda: bool(holder.state.executing))
    found = await balancer.sort_values(x, "id")
    assert not task.done()
    assert not any(holder.address == at for key, at in where(s, found))
    told = next(event for event in events if event["event"] == "waiting")
    assert told["tasks"] == {str(holder.name): "others"}
    assert (
        "busy"
        in {e["worker"]: e["reason"] for e in events if e["event"] == "left out"}[str(holder.name)]
    )
    assert held <= set(holder.data)
    HELD.set()
    await task
    await check_sorted(c, found, FRAME, "id")
    del x, found, task
    await nothing_left(s)


@pytest.mark.slow
@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 3,
    config=CONFIG | {"fpmdask.busy-patience": "500ms"},
    timeout=90,
)
async def test_rows_are_not_handed_over_to_a_worker_that_has_become_busy(c, s, *workers):
    """The shares were found before: whoever was to take rows is busy once these are moved."""
    balancer = await fpmdask.Balancer(c)
    taker, holder = workers[0], workers[1]
    x = c.persist(frame_of(FRAME), workers=[holder.address])
    await wait(x)
    partitions = futures_of(x)
    sizes = [len(part) for part in await c.gather(partitions)]
    told = []
    balancer.progress = told.append
    task = c.submit(hold, workers=[taker.address], key="others-2")
    await until(lambda: bool(taker.state.executing))
    shares = {taker.address: sum(sizes), holder.address: 1, workers[2].address: 1}

    async def stage(request):
        homes = Stages(c, request["within"])
        return await homes.again(partial(handed_over, homes, partitions, sizes, shares))

    made, found, _ = await asyncio.wait_for(held(balancer, stage), 20)
    assert not task.done()
    assert sum(found) == sum(sizes)
    assert not any(taker.address in {w.address for w in s.tasks[f.key].who_has} for f in made)
    left = [event["worker"] for event in told if event["event"] == "left out"]
    assert left == [str(taker.name)]
    HELD.set()
    await task
    del balancer


def where(scheduler, collection):
    return [
        (future.key, holder.address)
        for future in futures_of(collection)
        for holder in scheduler.tasks[future.key].who_has
    ]


@pytest.mark.parametrize("step", ["look", "sort", "sorted-rows"])
@cluster()
async def test_partitions_lost_on_the_way_are_named(c, s, *workers, step, monkeypatch):
    """What is made of them is lost with them, but only this process knows of that."""
    left = []

    def leaving(original):
        async def run(self, name, *more):
            if name.startswith(f"fpmdask-{step}-"):
                left.append(await workers[1].close(timeout=1))
            return await original(self, name, *more)

        return run

    def progress(event):
        if event["event"] == "step" and event["step"] == step and not left:
            left.append(asyncio.ensure_future(workers[1].close(timeout=1)))

    for asking in (Stages.made, Stages.asked):
        monkeypatch.setattr(Stages, asking.__name__, leaving(asking))
    balancer = await fpmdask.Balancer(c, progress=progress)
    pieces = {("only", n): FRAME.iloc[n::3] for n in range(3)}
    futures = await c.scatter(pieces, direct=True, hash=False)
    x = dd.from_graph(futures, FRAME.iloc[:0], (None,) * 4, [*pieces], "given")
    with pytest.raises(ChunksLostError, match=r"input chunks are gone .*'only', ") as caught:
        await asyncio.wait_for(balancer.sort_values(x, "id"), 60)
    assert left
    assert "fpmdask" not in str(caught.value)
    del futures, x, caught
    await nothing_left(s)


@cluster(workers=2)
async def test_no_worker_gets_more_rows_than_it_has_memory_for(c, s, *workers, monkeypatch):
    """Also where it holds a little more than that already."""
    small, large = (worker.address for worker in workers)
    free = {small: 1e6, large: 1e9}
    for module in (run, chunks):
        monkeypatch.setattr(module, "free_nbytes", lambda context, address: free[address])
    row = 400
    pdf = pd.DataFrame(np.random.default_rng(1).random((10_000, row // 8))).add_prefix("c")
    here = await c.scatter({("rows", 0): pdf.iloc[:860]}, workers=[small], hash=False)
    there = await c.scatter({("rows", 1): pdf.iloc[860:]}, workers=[large], hash=False)
    x = dd.from_graph({**here, **there}, pdf.iloc[:0], (None,) * 3, [*here, *there], "given")
    balancer = await fpmdask.Balancer(c)
    found = await balancer.sort_values(x, "c0")
    units = {share["worker"]: share["units"] for share in balancer.report.shares}
    # what it holds becomes a run of keys and columns; a row of a part needs a key, its columns and
    # index, one of these once more, and its place
    run_nbytes, in_part = 860 * (8 + 8 + row), 8 + (8 + row) + 8 + 8
    assert 700 < units[str(workers[0].name)] < (1e6 - run_nbytes) / in_part
    await check_sorted(c, found, pdf, "c0")


@gen_cluster(client=True, nthreads=[], config=CONFIG)
async def test_without_workers_it_is_said_at_once(c, s):
    balancer = await fpmdask.Balancer(c)
    with (
        dask.config.set({"fpmdask.wait-for-workers": "0.1s"}),
        pytest.raises(NoWorkersError, match="no worker is connected"),
    ):
        await asyncio.wait_for(balancer.sort_values(frame_of(FRAME), "id"), 20)
    await until(lambda: not s.tasks)


@cluster()
async def test_a_named_worker_that_is_not_there_is_named(c, s, *workers):
    balancer = await fpmdask.Balancer(c, workers=["nope"])
    with pytest.raises(CoordinatorError, match="no worker nope in the cluster"):
        await balancer.sort_values(frame_of(FRAME), "id")
    assert not s.tasks
