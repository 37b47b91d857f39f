"""Who is told that a worker has stopped."""

import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.runtime.coordinator.liveness import Liveness

WORKERS = [("127.0.0.1", 1)] * 2
PRELOADED = {"resources": {"fpm": 1}}


@gen_cluster(client=True, nthreads=WORKERS, worker_kwargs=PRELOADED, timeout=60)
async def test_a_worker_whose_plugin_is_not_there_yet_is_not_told(c, s, a, b):
    """An unknown message would end it: a preload gives the resource before the plugin comes."""
    Liveness(s).found_stopped(a.address, 0.0)
    # of the same stream, and later
    assert await c.submit(sum, [1, 2], workers=[b.address]) == 3
    assert b.address in s.workers


@pytest.mark.filterwarnings("ignore:the kernel takes less:UserWarning")
@gen_cluster(client=True, nthreads=WORKERS, timeout=60)
async def test_a_worker_is_told_once_per_heartbeat_of_the_one_that_stopped(c, s, a, b):
    async with fpmdask.Balancer(c) as balancer:
        await balancer.partition(sum_of, 10, max_rounds=1)
        told = []
        b.stream_handlers["fpmdask-stopped"] = lambda **message: told.append(message)
        await b.heartbeat()
        liveness = Liveness(s)
        for last_seen in (1.0, 1.0, 2.0):
            liveness.found_stopped(a.address, last_seen)
        assert await c.submit(sum, [1, 2], workers=[b.address]) == 3
        liveness.found_stopped("tcp://127.0.0.1:1", 1.0)  # it has left meanwhile
        assert liveness.any_stopped
        liveness.left(a.address)
        assert not liveness.any_stopped
    assert told == [{"worker": a.address}] * 2


def sum_of(units):
    return sum(range(units))
