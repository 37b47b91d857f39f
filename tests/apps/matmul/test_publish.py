"""A run that is given up while its result becomes Dask data leaves nothing on the workers."""

import asyncio
import gc
import threading

import dask.array as da
import numpy as np
import pytest
from distributed import Client, get_worker, wait

import fpmdask
from fpmdask.apps.matmul.worker import share
from tests.apps.matmul.test_product import cluster
from tests.eventually import no_data, side_of

ROWS = {"0": 40, "1": 30, "2": 20}


def held_back(handlers, name, is_meant=lambda answer: True):
    """Have a handler's answers wait; return when one does, and what lets them go."""
    original, answered, release = handlers[name], asyncio.Event(), asyncio.Event()

    async def held(**arguments):
        answer = original(**arguments)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if is_meant(answer):
            answered.set()
            await release.wait()
        return answer

    handlers[name] = held
    return answered, release


def input_of(client):
    return client.persist(da.ones((90, 60), chunks=(30, 20)))


async def given_up(running):
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@cluster()
async def test_a_run_that_is_cancelled_while_it_publishes(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = input_of(c)
    for worker in workers:
        await side_of(worker)  # has its handlers then
    held = [held_back(worker.handlers, "fpmdask_publish") for worker in workers]
    running = asyncio.ensure_future(balancer.matmul(x, x.T, distribution=ROWS))
    for answered, _ in held:
        await asyncio.wait_for(answered.wait(), 20)
    assert all(worker.data for worker in workers)
    await given_up(running)
    for _, release in held:
        release.set()
    del x, running
    await no_data(s, workers)


@cluster()
async def test_a_worker_publishes_nothing_for_a_run_that_is_over(c, s, *workers):
    await fpmdask.Balancer(c)
    await side_of(workers[0])
    publish = workers[0].handlers["fpmdask_publish"]
    assert await publish(run="matmul-0", chunks=[("k", 0, ())]) is None
    assert not workers[0].data


@cluster()
async def test_a_client_that_goes_while_its_run_publishes(c, s, *workers):
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        balancer = await fpmdask.Balancer(other)
        x = input_of(other)
        for worker in workers:
            await side_of(worker)  # has its handlers then
        held = [held_back(worker.handlers, "fpmdask_publish") for worker in workers]
        running = asyncio.ensure_future(balancer.matmul(x, x.T, distribution=ROWS))
        for answered, _ in held:
            await asyncio.wait_for(answered.wait(), 20)
    for _, release in held:
        release.set()
    await asyncio.gather(running, return_exceptions=True)
    del x, running
    await no_data(s, workers)


@cluster()
async def test_a_run_that_is_cancelled_while_its_answer_travels(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = input_of(c)
    answered, release = held_back(s.handlers, "fpmdask_poll", lambda answer: "result" in answer)
    running = asyncio.ensure_future(balancer.matmul(x, x.T, distribution=ROWS))
    await asyncio.wait_for(answered.wait(), 20)
    await given_up(running)
    release.set()
    del x, running
    await no_data(s, workers)


@cluster()
async def test_a_run_that_is_cancelled_when_its_answer_has_just_come(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = input_of(c)
    original, callers = balancer._follow, []

    async def follow(*arguments):
        found = await original(*arguments)
        asyncio.get_running_loop().call_soon(callers[0].cancel)  # before it hears of this
        return found

    balancer._follow = follow
    callers.append(asyncio.ensure_future(balancer.matmul(x, x.T, distribution=ROWS)))
    with pytest.raises(asyncio.CancelledError):
        await callers[0]
    callers.clear()
    del x
    gc.collect()
    await no_data(s, workers)


@cluster()
async def test_a_result_is_its_clients_whatever_that_cancels_later(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = input_of(c)
    result = await balancer.matmul(x, x.T, distribution=ROWS)
    for _ in range(3):
        running = asyncio.ensure_future(balancer.matmul(x, x.T, distribution=ROWS))
        await asyncio.sleep(0)
        await given_up(running)
    np.testing.assert_array_equal(await c.compute(result), np.full((90, 90), 60.0))


@cluster()
async def test_a_worker_that_failed_at_a_part_and_then_leaves_loses_nothing(c, s, *workers):
    """It has finished one before, which is left with it until it leaves."""
    named = {str(worker.name): worker for worker in workers}
    x = c.persist(da.ones((90, 60), chunks=(30, 20)), workers=[named["0"].address])
    await wait(x)
    finished, failed = asyncio.Event(), asyncio.Event()
    held = {name: threading.Event() for name in "01"}
    original = share.panel_update

    def progress(event):
        if event["event"] == "share" and event["worker"] == "2":
            finished.set()
        if event["event"] == "left out" and "MemoryError" in event["reason"]:
            failed.set()

    def update(*args, **options):
        name = str(get_worker().name)
        if name in held:
            held[name].wait(30)
        elif finished.is_set():
            raise MemoryError("no memory for a second part")
        original(*args, **options)

    balancer = await fpmdask.Balancer(c, progress=progress)
    share.panel_update = update
    options = {"layout": "rows", "distribution": dict.fromkeys("012", 30), "rebalance": False}
    try:
        running = asyncio.ensure_future(balancer.matmul(x, x.T, **options))
        await asyncio.wait_for(finished.wait(), 20)
        await named["1"].close(timeout=1, executor_wait=False)
        held["1"].set()
        await asyncio.wait_for(failed.wait(), 20)
        await named["2"].close(timeout=1)
        held["0"].set()
        result = await asyncio.wait_for(running, 20)
    finally:
        share.panel_update = original
        for event in held.values():
            event.set()
    np.testing.assert_array_equal(await c.compute(result), np.full((90, 90), 60.0))
    assert {part["worker"] for part in balancer.report.shares} == {"0"}


@cluster()
async def test_a_part_that_is_withdrawn_while_it_is_copied_is_not_kept(c, s, *workers, tuning):
    tuning(matmul={"publish_seconds": 0.05, "publish_tries": 1})
    balancer = await fpmdask.Balancer(c)
    x = input_of(c)
    side = await side_of(workers[2])
    withdrawn = threading.Event()
    original = workers[2].handlers["fpmdask_publish"]

    class Slow:
        """A part whose copying ends only after it was withdrawn."""

        def __init__(self, part):
            self.part = part

        def chunk(self, bounds):
            assert withdrawn.wait(10)
            return self.part.chunk(bounds)

    async def cut_off(comm, **arguments):
        space = side.spaces[arguments["run"]]
        space.parts.update({number: Slow(part) for number, part in space.parts.items()})
        comm.abort()
        return await original(**arguments)

    def free_keys(keys, stimulus_id):
        freed(keys=keys, stimulus_id=stimulus_id)
        if any("fpmdask-matmul" in str(key) for key in keys):
            withdrawn.set()

    freed = workers[2].stream_handlers["free-keys"]
    workers[2].stream_handlers["free-keys"] = free_keys
    workers[2].handlers["fpmdask_publish"] = cut_off
    result = await asyncio.wait_for(balancer.matmul(x, x.T, distribution=ROWS), 20)
    np.testing.assert_array_equal(await c.compute(result), np.full((90, 90), 60.0))
    assert "2" in balancer.report.left_out
    del x, result
    await no_data(s, workers)


@pytest.mark.parametrize("times", [1, 1000])
@cluster()
async def test_a_worker_that_cannot_publish_is_asked_again_then_given_up(
    c, s, *workers, times, tuning
):
    tries = 3
    tuning(matmul={"publish_seconds": 0.05, "publish_tries": tries})
    balancer = await fpmdask.Balancer(c)
    x = input_of(c)
    await side_of(workers[2])
    original, asked = workers[2].handlers["fpmdask_publish"], []

    def broken(comm, **arguments):
        asked.append(arguments)
        if len(asked) <= times:
            comm.abort()
        return original(**arguments)

    workers[2].handlers["fpmdask_publish"] = broken
    result = await asyncio.wait_for(balancer.matmul(x, x.T, distribution=ROWS), 20)
    np.testing.assert_array_equal(await c.compute(result), np.full((90, 90), 60.0))
    given_up = times > tries
    assert len(asked) == (tries if given_up else times + 1)
    assert ("CommClosedError" in balancer.report.left_out.get("2", "")) == given_up
    del x, result
    await no_data(s, workers)
