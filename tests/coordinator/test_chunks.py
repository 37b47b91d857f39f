"""Chunks that a run needs: waited for while somebody can make them, named where nobody can."""

import asyncio

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul.app import APP
from fpmdask.errors import ChunksLostError, CoordinatorError, RunCancelledError
from fpmdask.runtime.coordinator import chunks
from fpmdask.runtime.coordinator.chunks import free_nbytes, holders, wait_for_chunks
from fpmdask.runtime.coordinator.context import CHECK, RunContext
from fpmdask.runtime.protocol import Published
from tests.eventually import until


async def context_of(c, s, recovery=60):
    await fpmdask.Balancer(c)
    return RunContext(s.plugins["fpmdask"], "run", c.id, {"recovery": recovery}, APP)


def keys_of(x):
    return [(x.name, *block) for block in np.ndindex(*x.numblocks)]


@gen_cluster(client=True)
async def test_a_graph_on_its_way_is_waited_for(c, s, a, b, tuning):
    tuning(runtime={"graph_travel_seconds": 30.0})
    context = await context_of(c, s)
    x = da.ones((4, 4), chunks=2, name="x")
    keys = keys_of(x)
    waiting = asyncio.ensure_future(wait_for_chunks(context, keys))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    x = c.persist(x)
    places = await waiting
    assert places == holders(context, keys)
    assert all(places[key] for key in keys)


@gen_cluster(client=True)
async def test_chunks_that_nobody_can_make_are_named(c, s, a, b):
    context = await context_of(c, s)
    (future,) = await c.scatter([np.ones((2, 2))], workers=[a.address])
    await a.close()
    with pytest.raises(ChunksLostError, match=f"1 input chunks were only on .* {future.key}. Bui"):
        await wait_for_chunks(context, [future.key])


@gen_cluster(client=True)
async def test_chunks_that_take_too_long_are_named(c, s, a, b):
    context = await context_of(c, s, recovery=0.2)
    late = Event("late")
    future = c.submit(lambda: Event("late").wait(), key="k")
    await until(lambda: "k" in s.tasks)
    with pytest.raises(ChunksLostError, match=r"1 input chunks were not made again .* 0\.2 s: k"):
        await wait_for_chunks(context, ["k"])
    await late.set()
    await future


@gen_cluster(client=True)
async def test_a_chunk_whose_task_fails_says_why(c, s, a, b):
    context = await context_of(c, s)
    future = c.submit(lambda: 1 / 0, key="k")
    await wait(future)
    with pytest.raises(CoordinatorError, match=r"chunk k cannot be computed: .*division by zero"):
        await wait_for_chunks(context, ["k"])


@gen_cluster(client=True, worker_kwargs={"memory_limit": 10**9, "heartbeat_interval": "1h"})
async def test_what_runs_have_beside_data_counts_for_who_waits_as_free(c, s, a, b):
    await fpmdask.Balancer(c)
    coordinator = s.plugins["fpmdask"]
    s.workers[a.address]._memory_unmanaged_old = 10**8

    def free(run):
        return free_nbytes(RunContext(coordinator, run, c.id, {}, APP), a.address)

    assert free(CHECK) == free("new")
    coordinator.runs["other"] = RunContext(coordinator, "other", c.id, {}, APP)
    assert free(CHECK) == free("new") + 10**8
    del coordinator.runs["other"]


class Counted(dict):
    """Tasks of a scheduler that count how often one is looked up."""

    looked_up = 0

    def get(self, key, default=None):
        self.looked_up += 1
        return super().get(key, default)


@pytest.mark.parametrize("waits", ["for chunks", "for loading"])
@gen_cluster(client=True)
async def test_only_chunks_that_are_missing_are_looked_up_again(c, s, a, b, waits):
    context = await context_of(c, s)
    x = c.persist(da.ones(400, chunks=1))
    await wait(x)
    late = Event("late")
    future = c.submit(lambda: Event("late").wait(), key="k")
    await until(lambda: "k" in s.tasks)
    s.tasks = Counted(s.tasks)
    keys = [*keys_of(x), "k"]
    if waits == "for chunks":
        waiting = asyncio.ensure_future(wait_for_chunks(context, keys))
    else:
        waiting = asyncio.ensure_future(chunks.until_loaded(s, keys, "run"))
    await asyncio.sleep(8 * chunks.LOOK_SECONDS)
    assert not waiting.done()
    # once all, then one per look (twice where it is asked whether it can be made, too)
    assert len(keys) < s.tasks.looked_up < 1.5 * len(keys)
    await late.set()
    await asyncio.wait_for(waiting, 20)
    assert (await future) is True


async def published(s, client, meanwhile=lambda: None):
    """Publish 600 keys at once; return the task, how many were seen published, and the keys."""
    context = RunContext(s.plugins["fpmdask"], "run", client, {}, APP)
    answers = {
        worker: Published(nbytes={f"{worker}-{n}": 8 for n in range(300)}, types={})
        for worker in s.workers
    }
    seen = set()
    publishing = asyncio.ensure_future(chunks._made_known(context, answers))
    asyncio.get_running_loop().call_soon(meanwhile)
    while not publishing.done():
        seen.add(len(context.published))
        await asyncio.sleep(0)
    return publishing, seen, [key for answer in answers.values() for key in answer.nbytes]


@gen_cluster(client=True)
async def test_a_result_is_published_in_steps(c, s, a, b):
    await fpmdask.Balancer(c)
    publishing, seen, keys = await published(s, c.id)
    assert publishing.result() == {}
    assert {s.tasks[key].state for key in keys} == {"memory"}
    assert seen == {0, 300}  # the event loop was free in between
    s.client_releases_keys(keys, c.id, "test")


@gen_cluster(client=True)
async def test_a_client_that_leaves_while_a_result_is_published_gets_none(c, s, a, b):
    await fpmdask.Balancer(c)
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        publishing, _, keys = await published(s, other.id, lambda: s.remove_client(other.id))
    with pytest.raises(RunCancelledError, match="has disconnected"):
        publishing.result()
    assert other.id not in s.clients
    assert not s.tasks.keys() & set(keys)


@gen_cluster(client=True)
async def test_a_worker_that_leaves_while_a_result_is_published_is_named(c, s, a, b):
    await fpmdask.Balancer(c)
    _, second = s.workers

    def leaves():
        gone.append(s.workers.pop(second))

    gone = []
    publishing, _, keys = await published(s, c.id, leaves)
    s.workers[second] = gone[0]
    assert publishing.result() == {second: "left the cluster"}
    s.client_releases_keys([key for key in keys if key in s.tasks], c.id, "test")
