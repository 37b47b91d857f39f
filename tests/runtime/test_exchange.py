"""The exchange on every transport, and when workers and runs end."""

import asyncio
import threading
from contextlib import asynccontextmanager

import dask.array as da
import numpy as np
import pytest
from distributed import wait
from distributed.security import Security
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.errors import RunCancelledError
from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import FetchFailed, Want
from tests.eventually import side_of, until
from tests.runtime.exchange_checks import check_exchange

ARRAYS = (
    np.arange(30.0),
    np.arange(30, dtype="i4").reshape(5, 6),
    np.arange(60, dtype="c16").reshape(3, 4, 5),
)


def cluster(**options):
    config = options.pop("config", {})
    nthreads = [("127.0.0.1", 1)] * 2
    return gen_cluster(client=True, nthreads=nthreads, config=config, timeout=120, **options)


@asynccontextmanager
async def exchanges(c, *workers, known=True):
    """Prepare a run on the workers; yield their exchanges, which know each other."""
    await fpmdask.Balancer(c)
    sides = [await side_of(worker) for worker in workers]
    for side in sides:
        await side.prepare("run")
    found = [side.spaces["run"].exchange for side in sides]
    channels = {
        side.worker.address: side.channels.address for side in sides if side.channels is not None
    }
    for exchange in found:
        exchange.know(channels if known is True else known)
    try:
        yield found
    finally:
        for side in sides:
            side.forget("run")
        await until(
            lambda: not [t for t in threading.enumerate() if t.name.startswith("fpmdask-fetch")]
        )


async def check(c, one, other, known=True):
    chunks = []
    for array in ARRAYS:
        x = c.persist(da.from_array(array, chunks=array.shape), workers=[other.address])
        await wait(x)
        chunks.append((x.__dask_keys__(), x, array))
    keys = [(x.name, *[0] * array.ndim) for _, x, array in chunks]
    async with exchanges(c, one, other, known=known) as (first, second):
        pairs = [(key, array) for key, (_, _, array) in zip(keys, chunks, strict=True)]
        await check_exchange(first, second, pairs)
        return first


@pytest.mark.slow
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3, timeout=60)
async def test_a_run_that_ends_while_holders_are_asked_leaves_no_channel(c, s, *workers):
    """The channel that was being opened is closed, too, and nobody waits for an answer."""
    async with exchanges(c, *workers) as (first, second, third):
        side, loop = await side_of(workers[0]), asyncio.get_running_loop()
        peers, opened = side.peers, []
        really = peers.open

        async def end():
            side.forget("run")

        def open_(peer, address):
            opened.append(really(peer, address))
            if len(opened) == 2:
                asyncio.run_coroutine_threadsafe(end(), loop).result()
            return opened[-1]

        peers.open = open_
        for exchange in (second, third):
            exchange.offer("x", np.ones(3))

        def fetch():
            wants = [
                Want("x", ((0, 3),), np.empty(3), [exchange.address])
                for exchange in (second, third)
            ]
            first.fetch(wants, at_once=0).wait()

        with pytest.raises(RunCancelledError):
            await asyncio.wait_for(asyncio.to_thread(fetch), 20)
        assert len(opened) == 2
        assert not peers._channels
        assert all(channel._socket.fileno() == -1 for channel in opened)


@cluster()
async def test_whole_chunks_of_a_worker_that_has_left_are_not_waited_for(c, s, one, other):
    """Dask tries for half a minute to connect to one that is gone."""
    async with exchanges(c, one, other) as (exchange, _):
        await other.close(timeout=1)
        (await side_of(one)).gone(other.address)  # as the coordinator tells the workers of a run
        fetching = asyncio.to_thread(exchange.whole_chunk, "x", [other.address])
        with pytest.raises(FetchFailed, match="does not give it"):
            await asyncio.wait_for(fetching, 5)


@pytest.mark.slow
@cluster()
async def test_channels(c, s, one, other):
    exchange = await check(c, one, other)
    assert not exchange._peers.unreachable


@pytest.mark.slow
@cluster(config={"fpmdask.channels": False})
async def test_messages(c, s, one, other):
    await check(c, one, other)


@pytest.mark.slow
@cluster()
async def test_channels_that_nobody_reaches(c, s, one, other):
    """Their addresses are known, and refuse: Dask's messages carry all."""
    await check(c, one, other, known={other.address: ("127.0.0.1", 1)})


@pytest.mark.slow
@cluster(
    security=Security.temporary(),
    scheduler_kwargs={"protocol": "tls://"},
    worker_kwargs={"protocol": "tls://"},
)
async def test_encrypted_channels(c, s, one, other):
    exchange = await check(c, one, other)
    assert not exchange._peers.unreachable


def heat(exchange, peers, u, steps):
    """Diffuse heat along axis 0 in this worker's rows: a halo exchange with two neighbours.

    `peers` has the neighbour above and the one below, None at an end. Two buffers take turns, and
    so do what is offered of them.
    """
    here = np.empty((2, u.shape[0] + 2, u.shape[1]))
    here[0, 1:-1] = u
    offers = []
    for step in range(steps):
        old, new = here[step % 2], here[1 - step % 2]
        # a row goes up as "up", and comes from below as "up"
        edges = {"up": (old[1:2], peers[0]), "down": (old[-2:-1], peers[1])}
        halos = {"down": (old[:1], peers[0]), "up": (old[-1:], peers[1])}
        for edge in edges.values():
            if edge[1] is None:
                (old[:1] if edge is edges["up"] else old[-1:])[...] = edge[0]
        made = [
            exchange.offer((way, step % 2), row, step, readers=[peer])
            for way, (row, peer) in edges.items()
            if peer is not None
        ]
        whole = ((0, 1), (0, u.shape[1]))
        exchange.fetch(
            Want((way, step % 2), whole, row, [peer], step)
            for way, (row, peer) in halos.items()
            if peer is not None
        ).wait()
        for offer in offers:  # of the step before: its buffer is the new one
            offer.wait_read()
        new[1:-1] = old[1:-1] + 0.1 * (old[:-2] - 2 * old[1:-1] + old[2:])
        offers = made
    return here[steps % 2, 1:-1].copy()


@pytest.mark.slow
@pytest.mark.parametrize("channels", [True, False])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3, timeout=120)
async def test_a_halo_exchange_between_neighbours(c, s, *workers, channels):
    rows, steps = np.cumsum([0, 5, 1, 10]), 40
    u = np.random.default_rng(0).random((rows[-1], 30))
    async with exchanges(c, *workers, known=True if channels else {}) as team:
        ranks = [exchange.address for exchange in team]
        above, below = [None, *ranks[:-1]], [*ranks[1:], None]
        work = zip(team, zip(above, below, strict=True), rows[:-1], rows[1:], strict=True)
        steppers = (
            asyncio.to_thread(heat, exchange, peers, u[low:high], steps)
            for exchange, peers, low, high in work
        )
        found = await asyncio.gather(*steppers)
    for _ in range(steps):
        padded = np.concatenate([u[:1], u, u[-1:]])
        u = padded[1:-1] + 0.1 * (padded[:-2] - 2 * padded[1:-1] + padded[2:])
    np.testing.assert_array_equal(np.concatenate(found), u)


def never(other):
    return Want("never", ((0, 1),), np.zeros(1), [other.address])


@pytest.mark.slow
@pytest.mark.parametrize("channels", [True, False])
@cluster()
async def test_who_waits_for_a_worker_that_leaves_is_told(c, s, one, other, channels):
    async with exchanges(c, one, known=True if channels else {}) as (exchange,):
        side = await side_of(other)
        await side.prepare("run")
        if channels:
            exchange.know({other.address: side.channels.address})
        offer = exchange.offer("mine", np.zeros(3), readers=[other.address])
        read = asyncio.ensure_future(asyncio.to_thread(offer.wait_read))
        fetch = exchange.fetch([never(other)])
        await asyncio.sleep(0.3)
        assert not read.done()
        await other.close(timeout=1)
        with pytest.raises(FetchFailed, match=r"has left the cluster|closed|does not answer|ended"):
            await asyncio.wait_for(asyncio.to_thread(fetch.wait), 20)
        (await side_of(one)).gone(other.address)  # as the coordinator tells the workers of a run
        await asyncio.wait_for(read, 20)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [True, False])
@cluster()
async def test_the_end_of_a_run_ends_all_that_waits(c, s, one, other, channels):
    async with exchanges(c, one, other, known=True if channels else {}) as (first, second):
        offer = first.offer("mine", np.zeros(3), readers=[other.address])
        waits = [
            offer.wait_read,
            first.fetch([never(other)]).wait,
            second.fetch([never(other)]).wait,
        ]
        waiting = [asyncio.ensure_future(asyncio.to_thread(wait)) for wait in waits]
        await asyncio.sleep(0.3)
        assert not any(one.done() for one in waiting)
    ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
    assert isinstance(ended[0], RunCancelledError)
    # whichever hears of it first: the run is over here, or at the holder
    assert all(isinstance(error, RunCancelledError | FetchFailed) for error in ended[1:])
    with pytest.raises(RunCancelledError):
        first.offer("mine", np.zeros(3))
    with pytest.raises(RunCancelledError):
        first.fetch([never(other)])


@pytest.mark.slow
@cluster()
async def test_channels_of_a_fetch_that_nobody_waits_for_are_closed_with_the_run(c, s, one, other):
    async with exchanges(c, one, other) as (first, _):
        peers = (await side_of(one)).peers
        fetch = first.fetch([never(other)], at_once=0)
        assert list(peers._channels) == [other.address]
        assert not fetch.done
    assert not peers._channels
    with pytest.raises(RunCancelledError):
        fetch.wait()


@pytest.mark.slow
@cluster()
async def test_channels_are_closed_where_the_run_ends_while_holders_are_asked(
    c, s, one, other, monkeypatch
):
    async with exchanges(c, one, other) as (first, second):
        peers = (await side_of(one)).peers
        asked = []

        def ask(self, fetch, peer, open_, **options):
            if asked:
                raise RunCancelledError("the run is over")
            asked.append(peer)
            return original(self, fetch, peer, open_, **options)

        original = Exchange._ask
        monkeypatch.setattr(Exchange, "_ask", ask)
        second.offer("there", np.zeros(1))
        wants = [never(other), Want("x", ((0, 1),), np.zeros(1), ["tcp://127.0.0.1:1"])]
        with pytest.raises(RunCancelledError):
            await asyncio.to_thread(first.fetch, wants, at_once=0)
        assert asked == [other.address]
        assert not peers._channels
