"""All-reduces of a team, in an order that follows from the ranks alone."""

import asyncio

import numpy as np
import pytest
from distributed.utils_test import gen_cluster

from fpmdask.runtime.worker.fetch import FetchFailed
from fpmdask.runtime.worker.reduce import AllReduce
from tests.runtime.test_exchange import exchanges


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 5, timeout=120)
async def test_all_get_the_same_bits(c, s, *workers, size):
    values = np.random.default_rng(0).random((size, 20, 3))
    async with exchanges(c, *workers[:size]) as team:
        ranks = [exchange.address for exchange in team]

        def work(name, exchange, own):
            reduce = AllReduce(exchange, name, ranks)
            return [(reduce(value), reduce(value, np.add)) for value in own]

        async def together(name):
            return await asyncio.gather(
                *(asyncio.to_thread(work, name, *one) for one in zip(team, values, strict=True))
            )

        first, second = await together("first"), await together("second")
        np.testing.assert_array_equal(first, second)
        for found in first:
            np.testing.assert_array_equal(found, first[0])
            np.testing.assert_array_equal([one for one, _ in found], values.max(axis=0))
            np.testing.assert_allclose([one for _, one in found], values.sum(axis=0))


@pytest.mark.slow
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3, timeout=120)
async def test_who_waits_for_one_that_ends_is_refused(c, s, *workers):
    async with exchanges(c, *workers) as team:
        ranks = [exchange.address for exchange in team]
        reduces = [AllReduce(exchange, "it", ranks) for exchange in team]
        await asyncio.gather(*(asyncio.to_thread(reduce, [1.0]) for reduce in reduces))
        waiting = [asyncio.ensure_future(asyncio.to_thread(one, [1.0])) for one in reduces[:2]]

        async def refused(one):
            with pytest.raises(FetchFailed, match="retired"):
                await asyncio.wait_for(waiting[one], 20)
            reduces[one].end()

        reduces[2].end()
        await refused(0)
        await refused(1)
