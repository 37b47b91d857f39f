"""What messages to neighbours take, for MHETA's machine."""

import asyncio

import pytest
from distributed.utils_test import gen_cluster

from fpmdask.mheta.instrument.benchmarks import node_benchmarks
from fpmdask.mheta.instrument.network import fit_network
from fpmdask.runtime.worker.message_benchmark import benchmark_messages
from tests.runtime.test_exchange import exchanges


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 4, timeout=120)
async def test_neighbours_measure_each_other(c, s, *workers, size, monkeypatch):
    monkeypatch.setattr("fpmdask.runtime.worker.message_benchmark.cpu_quota", lambda: 0.1)
    sizes = [1, 1 << 20]
    async with exchanges(c, *workers[:size]) as team:
        ranks = [exchange.address for exchange in team]
        for name in ("first", "second"):
            found = await asyncio.gather(
                *(
                    asyncio.to_thread(benchmark_messages, exchange, name, ranks, sizes, 2)
                    for exchange in team
                )
            )
        delays = [delay for _, delay in found]
        found = [messages for messages, _ in found]
        assert all(delay > 0 for delay in delays) == (size > 1)
        for rank, messages in enumerate(found):
            peers = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < size]
            measured = [(peer, nbytes) for peer, nbytes, *_ in messages]
            assert sorted(measured) == sorted(
                (peer, nbytes) for peer in peers for nbytes in sizes for _ in range(2)
            )
            for _, _, send, receive, there_and_back in messages:
                assert send > 0
                assert receive > 0
                assert there_and_back > 0
        # which is what a machine is made of
        if size > 1:
            network = fit_network(
                node_benchmarks({n: {"messages": one} for n, one in enumerate(found)}, size)
            )
            assert len(network.send_overhead_s) == size
