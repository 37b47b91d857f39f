"""Inputs on workers that cannot hand out pieces: without fpmdask, or broken."""

import asyncio

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Worker, wait

import fpmdask
from fpmdask.apps.matmul.coordinator import missing_chunks
from fpmdask.errors import CoordinatorError
from tests.apps.matmul.test_product import cluster
from tests.eventually import side_of


@pytest.mark.filterwarnings("ignore:worker bare takes no part")
@pytest.mark.parametrize("channels", [True, False])
@cluster()
async def test_inputs_on_a_worker_without_fpmdask_come_as_dask_sends_them(
    c, s, *workers, channels, monkeypatch
):
    with dask.config.set({"fpmdask.channels": channels}):
        balancer = await fpmdask.Balancer(c)
    for worker in workers:
        assert not await worker.plugins["fpmdask"].starting  # with the version that is there
    with monkeypatch.context() as patch:
        patch.setattr(fpmdask, "__version__", "0.0.1")  # as its plugin finds it
        bare = await Worker(s.address, name="bare", nthreads=1)
        assert "runs fpmdask 0.0.1" in await bare.plugins["fpmdask"].starting
    async with bare:
        assert "fpmdask_pieces" not in bare.handlers
        values = np.random.default_rng(0).integers(-9, 9, (90, 60)).astype("f4")
        x = da.from_array(values, chunks=(30, 20))
        x = c.persist(x, workers=[bare.address, workers[0].address])
        await wait(x)
        assert 0 < sum(key[0] == x.name for key in bare.data) < x.npartitions
        for options in ({}, {"layout": "columns"}):
            result = await balancer.matmul(x, x.T, max_rounds=1, **options)
            np.testing.assert_array_equal(await c.compute(result), values @ values.T)
            assert "runs fpmdask 0.0.1" in balancer.report.left_out["bare"]
        result = await balancer.matmul(values, values.T, max_rounds=1)  # scattered over all
        np.testing.assert_array_equal(await c.compute(result), values @ values.T)


@cluster(config={"fpmdask.channels": False})
async def test_a_holder_that_never_gives_its_chunks_is_named(c, s, *workers, tuning):
    tuning(matmul={"least_starts": 3, "restart_seconds": 0.02})
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.ones((90, 60), chunks=(90, 60)), workers=[workers[0].address])
    await wait(x)

    async def nothing(run, reader, wanted, wait):
        return {"missing": [(key, "has not got it") for key, *_ in wanted]}

    await side_of(workers[0])  # has its handlers then
    workers[0].handlers["fpmdask_pieces"] = nothing
    rows = {"0": 0, "1": 45, "2": 45}
    says = rf"has asked \d+ times for \d input chunks that 0 should have .*{x.name}.*; restart 0,"
    with dask.config.set({"fpmdask.recovery": "0.2s"}), pytest.raises(CoordinatorError, match=says):
        await asyncio.wait_for(balancer.matmul(x, x.T, distribution=rows), 30)


@cluster(config={"fpmdask.channels": False})
async def test_whatever_ends_a_background_task_ends_the_run(c, s, *workers, monkeypatch, tuning):
    tuning(matmul={"restart_seconds": 0.02})
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.ones((90, 60), chunks=(90, 60)), workers=[workers[0].address])
    await wait(x)
    await side_of(workers[0])  # has its handlers then
    pieces = workers[0].handlers["fpmdask_pieces"]

    asked = []

    async def nothing(run, reader, wanted, wait):
        asked.append(wanted)
        return {"missing": [(key, "has not got it") for key, *_ in wanted]}

    async def broken(*args):
        assert asked
        raise LookupError("no such state of the scheduler")

    rows = {"0": 0, "1": 45, "2": 45}
    workers[0].handlers["fpmdask_pieces"] = nothing
    with monkeypatch.context() as patch:
        patch.setattr(missing_chunks, "wait_for_chunks", broken)
        with pytest.raises(LookupError, match="no such state of the scheduler"):
            await asyncio.wait_for(balancer.matmul(x, x.T, distribution=rows), 30)
    workers[0].handlers["fpmdask_pieces"] = pieces
    result = await balancer.matmul(x, x.T, distribution=rows)
    assert (await c.compute(result) == 60).all()
