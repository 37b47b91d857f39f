"""Attempts of a team: another one begins with those that are left, up to a number of them."""

import asyncio
from itertools import count

import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.sort.app import APP
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.team import Attempt, LostWorker, attempted


async def acquired(c, s):
    """Return the context of a run that has all workers."""
    await fpmdask.Balancer(c)
    spec = {"measuring": {"hang": 1.0, "deadline": 1.0}}
    context = RunContext(s.plugins["fpmdask"], "run", c.id, spec, APP)
    await context.acquire(None)
    return context


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
@gen_cluster(client=True)
async def test_a_run_is_given_up_after_so_many_attempts(c, s, a, b, lost, tuning):
    tuning(runtime={"most_attempts": 3, "retry_seconds": 0})
    context = await acquired(c, s)
    made, mended = [], []

    async def attempt(number):
        made.append(number)
        if number < lost:
            raise LostWorker(f"{number} workers left")
        return "done"

    async def mend():
        mended.append(made[-1])

    try:
        if lost < 3:
            assert await attempted(context, count(), attempt, mend) == "done"
        else:
            with pytest.raises(CoordinatorError, match="given up after this: 2 workers left"):
                await attempted(context, count(), attempt, mend)
    finally:
        await context.close()
    assert made == [*range(min(lost + 1, 3))]
    assert mended == made[:-1]
    told = [
        event["reason"]
        for event in context.client_messages.events
        if event["event"] == "starting over"
    ]
    assert told == [f"{number} workers left" for number in range(lost)]


@pytest.mark.parametrize("fails", [0, 2, 99])
@gen_cluster(client=True)
async def test_who_is_left_waits_for_who_can_come_back(c, s, a, b, fails, tuning):
    """An attempt that comes upon a loss before it is told of it is as one that is told."""
    tuning(runtime={"rejoin_seconds": 0.0 if fails > 2 else 30.0, "retry_seconds": 0.01})
    context = await acquired(c, s)
    made, mended = [], []

    async def attempt(number):
        made.append(number)
        if number == 0:
            context.members.leave_out(a.address, "left the cluster")
            raise PartitionError("the result does not fit")
        return "done"

    async def mend():
        mended.append(made[-1])
        if len(mended) <= fails:
            raise PartitionError("too little memory")

    name = str(a.name)
    try:
        if fails <= 2:
            assert await attempted(context, count(), attempt, mend) == "done"
        else:
            says = f"too little memory; this came after: {name} left the cluster"
            with pytest.raises(PartitionError, match=says):
                await attempted(context, count(), attempt, mend)
    finally:
        await context.close()
    assert made == ([0, 1] if fails <= 2 else [0])
    assert mended == [0] * (1 if fails > 2 else fails + 1)
    events = context.client_messages.events
    told = [event["reason"] for event in events if event["event"] == "starting over"]
    assert told == [f"{name} left the cluster"]
    waits = [(e["workers"], e["reason"]) for e in events if e["event"] == "waiting"]
    assert waits == ([([name], "too little memory")] if fails == 2 else [])


@gen_cluster(client=True)
async def test_what_does_not_fit_without_a_loss_is_an_error_at_once(c, s, a, b):
    context = await acquired(c, s)
    made = []

    async def attempt(number):
        made.append(number)
        raise PartitionError("the result does not fit")

    try:
        with pytest.raises(PartitionError, match=r"^the result does not fit$"):
            await attempted(context, count(), attempt)
    finally:
        await context.close()
    assert made == [0]


@gen_cluster(client=True)
async def test_a_cancellation_that_comes_with_news_is_not_lost(c, s, a, b):
    """As `asyncio.wait_for` before Python 3.12 lost it: the run would have gone on."""
    await fpmdask.Balancer(c)
    spec = {"measuring": {"hang": 30.0, "deadline": 1.0}}
    context = RunContext(s.plugins["fpmdask"], "run", c.id, spec, APP)
    team = Attempt(context, 0)
    team.workers = [a.address]
    heard = []
    try:
        for turns in range(8):  # in whichever of its turns
            waiting = asyncio.create_task(
                team.everyone(None, "sort", lambda *news: heard.append(news))
            )
            await asyncio.sleep(0.01)
            context.steps.post(("news", a.address, {"attempt": 0}))
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            done, _ = await asyncio.wait([waiting], timeout=5)
            assert done
            assert waiting.cancelled()
    finally:
        await context.close()
    assert heard
