"""Chunks that a run needs: waited for while somebody can make them, named where nobody can."""

import asyncio

import dask.array as da
import numpy as np
import pytest
from distributed import Event, wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.coordinator import chunks
from fpmdask.coordinator.chunks import free_nbytes, holders, wait_for_chunks
from fpmdask.coordinator.context import CHECK, RunContext
from fpmdask.errors import ChunksLostError, CoordinatorError
from tests.eventually import until


async def context_of(c, s, recovery=60):
    await fpmdask.Balancer(c)
    return RunContext(s.plugins["fpmdask"], "run", c.id, {"recovery": recovery})


def keys_of(x):
    return [(x.name, *block) for block in np.ndindex(*x.numblocks)]


@gen_cluster(client=True)
async def test_a_graph_on_its_way_is_waited_for(c, s, a, b, monkeypatch):
    monkeypatch.setattr(chunks, "ON_THEIR_WAY", 30.0)
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
        return free_nbytes(RunContext(coordinator, run, c.id, {}), a.address)

    assert free(CHECK) == free("new")
    coordinator.runs["other"] = RunContext(coordinator, "other", c.id, {})
    assert free(CHECK) == free("new") + 10**8
    del coordinator.runs["other"]
