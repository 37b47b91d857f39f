"""Products as sums over ranges of K whose workers or chunks are lost."""

import asyncio

import dask.array as da
import numpy as np
import pytest
from distributed import wait

import fpmdask
from fpmdask.errors import ChunksLostError, CoordinatorError
from fpmdask.runtime.client.stages import Stages
from tests.apps.matmul.test_split_k import CONFIG, RANDOM, cluster
from tests.eventually import nothing_left


@pytest.mark.parametrize("when", ["before", "within", "after"])
@cluster()
async def test_a_worker_that_leaves_costs_nothing_but_time(c, s, *workers, when, monkeypatch):
    left = []

    async def made(self, name, *more):
        if when == "within" and not left:
            left.append(asyncio.ensure_future(workers[1].close(timeout=1)))
            await asyncio.sleep(0)
        return await original(self, name, *more)

    original = Stages.made
    monkeypatch.setattr(Stages, "made", made)
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.random.default_rng(1).random((6, 9000), chunks=(6, 500)))
    await wait(x)
    if when == "before":
        monkeypatch.setattr(Stages, "places", leaving(workers[1], left))
    found = await asyncio.wait_for(balancer.matmul(x, x.T, layout="inner"), 30)
    if when == "after":
        left.append(await workers[0].close(timeout=1))
    assert left
    full = await c.compute(x)
    np.testing.assert_allclose(await c.compute(found), full @ full.T)
    del found, x
    await nothing_left(s)


def leaving(worker, left):
    original = Stages.places

    async def places(self, futures):
        if not left:
            left.append(await worker.close(timeout=1))
        return await original(self, futures)

    return places


@pytest.mark.parametrize("when", ["before", "within"])
@cluster()
async def test_lost_chunks_are_named(c, s, *workers, when, monkeypatch):
    async def made(self, *given):
        if not left:
            left.append(await workers[1].close(timeout=1))
        return await original(self, *given)

    original = Stages.made
    pieces = {("given", 0, n): RANDOM.random((4, 50)) for n in range(6)}
    futures = await c.scatter(pieces, direct=True, hash=False)
    x = da.Array(futures, "given", chunks=((4,), (50,) * 6), dtype=float)
    left = []
    if when == "before":
        monkeypatch.setattr(Stages, "places", leaving(workers[1], left))
    else:
        monkeypatch.setattr(Stages, "made", made)
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(ChunksLostError, match=r"\('given', 0, "):
        await asyncio.wait_for(balancer.matmul(x, x.T, layout="inner"), 30)
    assert left


def closed_before_sums(worker, monkeypatch):
    """Close a worker as soon as sums are asked for; return a list with an entry per closing."""

    async def made(self, *given):
        left.append(await worker.close(timeout=1))
        return await original(self, *given)

    left = []
    original = Stages.made
    monkeypatch.setattr(Stages, "made", made)
    return left


@cluster(config={**CONFIG, "fpmdask.recovery": "0.2s"})
async def test_chunks_that_nobody_may_make_again_are_not_waited_for(c, s, *workers, monkeypatch):
    left = closed_before_sums(workers[1], monkeypatch)
    balancer = await fpmdask.Balancer(c)
    x = da.random.default_rng(1).random((4, 900), chunks=(4, 100))
    x = c.persist(x, workers=[workers[1].address])
    await wait(x)
    with pytest.raises(ChunksLostError, match=r"not made again within 0.2 s: "):
        await asyncio.wait_for(balancer.matmul(x, x.T, layout="inner"), 30)
    assert len(left) == 1


@cluster()
async def test_an_error_holds_none_of_the_chunks_that_are_left(c, s, *workers, monkeypatch):
    left = closed_before_sums(workers[1], monkeypatch)
    balancer = await fpmdask.Balancer(c)
    x = RANDOM.random((900, 4))
    with pytest.raises(ChunksLostError) as lost:
        await asyncio.wait_for(balancer.matmul(x.T, x, layout="inner"), 30)
    await nothing_left(s)
    assert len(left) == 1
    assert lost.value.__traceback__


@cluster()
async def test_what_is_lost_once_all_is_added_up_is_named(c, s, *workers, monkeypatch):
    async def made(stages, *given):
        found = await original(stages, *given)
        await workers[1].close()
        return found

    original = Stages.made
    monkeypatch.setattr(Stages, "made", made)
    balancer = await fpmdask.Balancer(c)
    x = RANDOM.random((900, 4))
    with pytest.raises(ChunksLostError, match="input chunks are gone"):
        await asyncio.wait_for(balancer.matmul(x.T, x, layout="inner"), 30)
    await nothing_left(s)


@cluster(config={**CONFIG, "fpmdask.recovery": "0s"})
async def test_chunks_that_are_there_need_no_time_to_be_made_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = RANDOM.random((4, 900))
    found = await balancer.matmul(x, x.T, layout="inner")
    np.testing.assert_allclose(await c.compute(found), x @ x.T)


@cluster()
async def test_named_workers_that_are_gone_are_named(c, s, *workers, monkeypatch, tuning):
    tuning(runtime={"retry_seconds": 0})
    balancer = await fpmdask.Balancer(c, workers=["1"])
    x = c.persist(da.random.default_rng(1).random((4, 900), chunks=(4, 100)))
    await wait(x)
    monkeypatch.setattr(Stages, "places", leaving(workers[1], []))
    with pytest.raises(CoordinatorError, match=r"no worker of \['1'\] .*is connected"):
        await asyncio.wait_for(balancer.matmul(x, x.T, layout="inner"), 30)
