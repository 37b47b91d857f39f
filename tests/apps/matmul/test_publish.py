"""A run that is given up while its result becomes Dask data leaves nothing on the workers."""

import asyncio
import gc

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import fpmdask
from tests.apps.matmul.test_product import cluster, nothing_left

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


async def no_data(scheduler, workers):
    await nothing_left(scheduler)
    for _ in range(200):
        if not any(worker.data for worker in workers):
            return
        await asyncio.sleep(0.02)
    raise AssertionError([dict(worker.data) for worker in workers])


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
    assert workers[0].handlers["fpmdask_publish"](run="matmul-0", chunks=[("k", 0, ())]) is None
    assert not workers[0].data


@cluster()
async def test_a_client_that_goes_while_its_run_publishes(c, s, *workers):
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        balancer = await fpmdask.Balancer(other)
        x = input_of(other)
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
