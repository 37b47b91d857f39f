"""What raises, leaves, joins, hangs or ends its process in the middle of `map_blocks`."""

import os
import re
import threading

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, LocalCluster, Worker, get_client, get_worker

import fpmdask
from fpmdask.errors import CoordinatorError
from tests.apps.blocks.test_map_blocks import cluster, twice
from tests.eventually import nothing_left, until

RANDOM = np.random.default_rng(0)


def raises_on(block):
    if (block == 777).any():
        raise KeyError("seven")
    return block


@cluster()
async def test_what_the_function_raises_names_worker_and_rows(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = da.arange(3000, chunks=500)
    with pytest.raises(KeyError, match="seven") as caught:
        await balancer.map_blocks(raises_on, x)
    (note,) = caught.value.__notes__
    assert note.startswith("the function raised on rows ")
    assert "on worker " in note
    assert balancer.report is None
    del x, caught
    await nothing_left(s)
    found = await balancer.map_blocks(twice, np.arange(10))
    assert (await c.compute(found)).tolist() == list(range(0, 20, 2))


def held_up(block):
    if str(get_worker().name) == "1":
        Event("go on").wait(30)
    return block + 1


@cluster()
async def test_a_worker_that_leaves_in_the_middle_costs_nothing(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    values = RANDOM.random(3000)
    x = da.from_array(values, chunks=500)
    running = c.loop.asyncio_loop.create_task(_of(balancer.map_blocks(held_up, x, dtype=float)))
    await until(lambda: any(w.state.executing_count for w in workers if str(w.name) == "1"))
    await until(lambda: any(t.prefix.name == "fpmdask-compute" for t in s.tasks.values()))
    (leaving,) = [w for w in workers if str(w.name) == "1"]
    closing = c.loop.asyncio_loop.create_task(_of(leaving.close(timeout=1)))
    await Event("go on", client=c).set()
    found = await running
    await closing
    np.testing.assert_array_equal(await c.compute(found), values + 1)
    assert sum(balancer.report.distribution) == 3000


async def _of(awaitable):
    return await awaitable


@cluster()
async def test_a_worker_that_joins_takes_part(c, s, *workers):
    balancer = await fpmdask.Balancer(c)

    def slow(block):
        Event("joined").wait(20)
        return block + 1

    x = da.arange(3000, chunks=500)
    running = c.loop.asyncio_loop.create_task(_of(balancer.map_blocks(slow, x, dtype=int)))
    await until(lambda: any(t.prefix.name == "fpmdask-compute" for t in s.tasks.values()))
    async with Worker(s.address, nthreads=1, name="new") as new:
        await until(
            lambda: "fpmdask-compute" in {t.prefix.name for t in s.workers[new.address].processing}
        )
        await Event("joined", client=c).set()
        found = await running
        assert (await c.compute(found)).tolist() == list(range(1, 3001))
        assert (
            dict(zip(balancer.report.workers, balancer.report.distribution, strict=True))["new"] > 0
        )


def until_joined(block):
    Event("joined").wait(30)
    return block + 1


@cluster()
async def test_a_worker_that_is_started_again_under_its_name_is_still_told_of(c, s, *workers):
    """As a nanny does with one that was killed."""
    balancer = await fpmdask.Balancer(c)
    events = []
    balancer.progress = events.append
    x = da.arange(3000, chunks=500)
    running = c.loop.asyncio_loop.create_task(_of(balancer.map_blocks(until_joined, x, dtype=int)))
    lost = workers[1]
    await until(lambda: any("fpmdask-compute" in str(key) for key in lost.state.tasks))
    await until(lambda: lost.state.executing_count)
    closing = c.loop.asyncio_loop.create_task(_of(lost.close(timeout=1)))
    await until(lambda: lost.address not in s.workers)
    async with Worker(s.address, nthreads=1, name=lost.name) as again:
        await until(lambda: any(event["event"] == "joined" for event in events))
        await Event("joined", client=c).set()
        found = await running
        await closing
        assert (await c.compute(found)).tolist() == list(range(1, 3001))
        assert again.address in balancer.report.addresses
        assert [*balancer.report.left_out] == ["1"]
        assert balancer.report.left_out["1"].endswith(", and came back")


HANGING = threading.Event()


def hangs(block):
    if str(get_worker().name) == "2" and len(block) > 40:
        HANGING.wait(30)
    return block + 1


@cluster(config={"fpmdask.hang": "1s"})
async def test_a_call_that_hangs_is_made_elsewhere(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    HANGING.clear()
    x = da.arange(3000, chunks=500)
    try:
        found = await balancer.map_blocks(hangs, x, dtype=int)
        assert (await c.compute(found)).tolist() == list(range(1, 3001))
        assert "2" in balancer.report.left_out
    finally:
        HANGING.set()
    await until(lambda: not s.plugins["fpmdask"].tickets.occupied())


@cluster(config={"fpmdask.hang": "1s"})
async def test_a_call_that_hangs_is_made_elsewhere_though_shares_are_given(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    HANGING.clear()
    x = da.arange(3000, chunks=1000)
    try:
        shares = {"0": 500, "1": 500, "2": 2000}
        found = await balancer.map_blocks(hangs, x, dtype=int, distribution=shares)
        assert (await c.compute(found)).tolist() == list(range(1, 3001))
        assert "2" in balancer.report.left_out
    finally:
        HANGING.set()
    await until(lambda: not s.plugins["fpmdask"].tickets.occupied())


def exits(block):
    raise SystemExit(3)


def stops(block):
    raise StopIteration


class Silent(Exception):
    def __str__(self):
        raise ValueError("no text")


def silent(block):
    raise Silent


@pytest.mark.parametrize("function", [exits, stops, silent])
@cluster(2)
async def test_whatever_is_raised_is_an_error_and_no_more(c, s, *workers, function):
    balancer = await fpmdask.Balancer(c)
    raised = None
    try:
        await balancer.map_blocks(function, da.ones(100, chunks=10), meta=np.empty(0))
    except Exception as error:
        raised = error
    told = " ".join(raised.__notes__)
    assert "the function raised on rows" in told
    assert "on worker" in told
    assert (await c.compute(await balancer.map_blocks(twice, np.arange(3)))).tolist() == [0, 2, 4]


def nests(block):
    return fpmdask.Balancer(get_client()).map_blocks(twice, block).compute()


@pytest.mark.slow
def test_rows_that_cost_several_workers_are_given_up_with_their_numbers():

    def ends_its_process(block, block_info=None):  # workers cannot import this module
        if (block == 1234).any() or not block.size:
            os._exit(1)
        return block

    local = LocalCluster(n_workers=5, threads_per_worker=1, processes=True, dashboard_address=":0")
    with local, Client(local) as client:
        balancer = fpmdask.Balancer(client)

        def blamed(x):
            client.wait_for_workers(4)
            with pytest.raises(CoordinatorError, match=r"3 workers were lost.*computed ") as raised:
                balancer.map_blocks(ends_its_process, x.persist(), meta=np.empty(0, int))
            return str(raised.value)

        def rows_of(message):
            spans = re.findall(r"rows (\d+) to (\d+)", message)
            return {row for a, b in spans for row in range(int(a), int(b))}

        assert "a chunk without rows;" in blamed(da.arange(90, chunks=((30, 0, 60),)))
        # where speeds are known, an order has many calls, and another one waits behind it
        client.wait_for_workers(4)
        harmless = balancer.map_blocks(ends_its_process, da.ones(3000, chunks=20), meta=np.empty(0))
        assert harmless.sum().compute() == 3000
        assert 1234 in rows_of(blamed(da.arange(3000, chunks=20)))
        assert 1234 in rows_of(blamed(da.arange(3000, chunks=500)))


@cluster(2)
async def test_a_balancer_within_a_call_is_refused(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(CoordinatorError, match="cannot use a balancer"):
        await balancer.map_blocks(nests, da.ones(100, chunks=10), dtype=float)
    await until(lambda: not s.plugins["fpmdask"].tickets.occupied())


@cluster()
async def test_a_lost_worker_where_there_are_no_rows(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    running = c.loop.asyncio_loop.create_task(
        _of(balancer.map_blocks(held_up, da.ones((0, 4)), dtype=float))
    )
    await until(lambda: any(w.state.executing_count for w in workers) or running.done())
    found = await running
    assert found.shape == (0, 4)
