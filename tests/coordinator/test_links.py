"""Links are measured once per start of a worker, by pairs of real workers."""

import asyncio

import numpy as np
import pytest
from distributed import Worker
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul.coordinator import run
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.coordinator import links
from fpmdask.runtime.coordinator.links import CONFIRMATIONS, TURNS, measured_links, slow_links
from fpmdask.runtime.worker import peers
from fpmdask.runtime.worker.channel import Channel
from tests.eventually import side_of, until
from tests.tuned import tuned

CONFIG = {
    "distributed.scheduler.active-memory-manager.start": False,
    **tuned(matmul={"probed_nbytes": 0}),
}


def cluster(workers, **options):
    return gen_cluster(
        client=True, nthreads=[("127.0.0.1", 1)] * workers, config=CONFIG, timeout=60, **options
    )


async def product(c):
    balancer = await fpmdask.Balancer(c)
    x = np.ones((40, 40))
    result = await balancer.matmul(x, x, max_rounds=1)
    np.testing.assert_array_equal(await c.compute(result), x @ x)
    return balancer.report.links


@cluster(4)
async def test_every_link_is_measured_and_kept(c, s, *workers):
    first = await product(c)
    assert sorted(first) == [str(worker.name) for worker in workers]
    assert all(0 < seconds < 1e-3 for link in first.values() for seconds in link)
    assert await product(c) == first
    async with Worker(s.address, nthreads=1, name="late"):
        again = await product(c)
        assert len(s.plugins["fpmdask"].known_workers.links) == len(again)
    assert set(again) == {*first, "late"}
    await until(
        lambda: len(s.plugins["fpmdask"].known_workers.links) == len(first)
    )  # who left is forgotten


@cluster(1)
async def test_a_worker_alone_has_no_link(c, s, worker):
    assert await product(c) == {}


@cluster(3)
async def test_a_worker_that_serves_nobody_is_left_out(c, s, *workers, monkeypatch):
    await fpmdask.Balancer(c)
    silent = await side_of(workers[1])

    def refuses(request, alive):
        raise ConnectionError("no")

    silent.channels._serve_request = refuses
    x = str(workers[1].name)
    assert x not in await probe(c, s, monkeypatch)


@cluster(3)
async def test_a_probe_that_hangs_holds_no_run(c, s, *workers, monkeypatch, tuning):
    tuning(runtime={"link_probe_seconds": 2.0})
    await fpmdask.Balancer(c)
    over = asyncio.Event()

    async def hangs(**options):
        await over.wait()

    await side_of(workers[1])
    workers[1].handlers["fpmdask_probe"] = hangs
    found = await asyncio.wait_for(probe(c, s, monkeypatch), 20)
    over.set()
    assert str(workers[1].name) not in found
    assert len(found) == 2


@cluster(5)
async def test_a_worker_that_was_busy_while_it_was_probed_has_no_slow_link(
    c, s, *workers, monkeypatch
):
    busy, slow = workers[1], workers[3]
    asked = []

    async def probe_of(context, to, peer):
        asked.append((to, peer))
        if slow.address in (to, peer):
            return 1e-7
        return 1e-8 if busy.address in (to, peer) and len(asked) <= TURNS * len(workers) else 1e-9

    monkeypatch.setattr(links, "_probe", probe_of)
    await fpmdask.Balancer(c)
    found = await probe(c, s, monkeypatch)
    assert slow_links(found) == {str(slow.name)}
    once = TURNS * len(workers)
    again = asked[once:]
    assert any(busy.address in pair for pair in again)
    assert all({busy.address, slow.address}.intersection(pair) for pair in again)
    assert len(again) <= CONFIRMATIONS * 4
    assert all(slow.address in pair for pair in again[4:])  # the busy one was cleared at once


@cluster(2)
async def test_a_peer_that_leaves_while_a_channel_opens_is_not_asked(c, s, *workers, monkeypatch):
    await fpmdask.Balancer(c)
    side = await side_of(workers[0])
    peer, address = workers[1].address, (await side_of(workers[1])).channels.address
    opened = []

    class Slow(Channel):
        def __init__(self, *given):
            super().__init__(*given)
            opened.append(self)
            side.gone(peer)

    monkeypatch.setattr(peers, "Channel", Slow)

    def use():
        with side.peers.channel(peer, address):
            pass

    with pytest.raises(ConnectionError, match="has left"):
        await asyncio.to_thread(use)
    assert opened[0]._socket.fileno() == -1
    assert peer not in side.peers._channels


async def probe(c, s, monkeypatch):
    """Measure only: the product would wait for the pieces of the silent one."""
    found = {}

    async def measured(context):
        measured = await measured_links(context)
        found.update({context.name(address): link for address, link in measured.items()})
        raise CoordinatorError("measured")

    monkeypatch.setattr(run, "measured_links", measured)
    balancer = await fpmdask.Balancer(c)
    x = np.ones((4, 4))
    with pytest.raises(CoordinatorError, match="measured"):
        await balancer.matmul(x, x)
    return found


@cluster(2)
async def test_where_there_are_no_channels_nothing_is_measured(c, s, *workers):
    await fpmdask.Balancer(c)
    for worker in workers:
        side = await side_of(worker)
        await side.channels.close()
        side.channels = None
    assert await product(c) == {}
