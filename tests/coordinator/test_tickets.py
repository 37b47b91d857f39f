"""Tasks are handed to Dask in windows, and each is answered, whenever its worker leaves."""

import asyncio

from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.runtime.coordinator.tickets import WINDOW, Order
from fpmdask.runtime.wire import Step, StepAnswer, StepOrder

COUNT = 2 * WINDOW + 5


NOTHING = Step("tests.coordinator.test_tickets:nothing", StepOrder, StepAnswer)


def nothing(payload):
    """Do nothing: a task that ends without a message of its own."""


def windows(coordinator):
    """Return a list that fills with how many tasks are handed to Dask at once."""
    found, get = [], coordinator._client.get

    def counted(graph, keys, **options):
        found.append(len(keys))
        return get(graph, keys, **options)

    coordinator._client.get = counted
    return found


@gen_cluster(client=True)
async def test_tasks_are_submitted_in_windows_and_each_is_answered(c, s, a, b):
    await fpmdask.Balancer(c)
    coordinator = s.plugins["fpmdask"]
    found = windows(coordinator)
    workers = [a.address, b.address]
    orders = [Order(workers[n % 2], NOTHING, {}, 1) for n in range(COUNT)]
    answers = coordinator.tickets.submit("run", orders)
    assert found == [WINDOW]
    assert coordinator.tickets.occupied() == set(workers)
    told = await asyncio.wait_for(asyncio.gather(*answers), 30)
    assert found == [WINDOW, WINDOW, 5]
    assert {answer["error"]["type"] for answer in told} == {"RuntimeError"}
    assert not coordinator.tickets.occupied()


@gen_cluster(client=True)
async def test_what_was_not_submitted_yet_is_answered_for_a_worker_that_leaves(c, s, a, b):
    await fpmdask.Balancer(c)
    coordinator = s.plugins["fpmdask"]
    found = windows(coordinator)
    answers = coordinator.tickets.submit("run", [Order(a.address, NOTHING, {}, 1)] * COUNT)
    coordinator.tickets.left(a.address)
    told = await asyncio.wait_for(asyncio.gather(*answers), 30)
    assert told == [{"left": True}] * COUNT
    await asyncio.sleep(0)
    assert found == [WINDOW]


@gen_cluster(client=True)
async def test_no_tasks_are_no_message(c, s, a, b):
    await fpmdask.Balancer(c)
    coordinator = s.plugins["fpmdask"]
    found = windows(coordinator)
    assert coordinator.tickets.submit("run", []) == []
    assert found == []
