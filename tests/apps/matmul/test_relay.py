"""Chunks behind slow links leave their owner once, also when the relay or the owner dies."""

import asyncio
import threading
from contextlib import contextmanager

import dask.array as da
import numpy as np
import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul.coordinator import run
from fpmdask.apps.matmul.plan import MatmulSpec, Tile
from fpmdask.apps.matmul.relays import HIDDEN, RELAYED, in_order_of_arrival, relays, slice_of
from fpmdask.apps.matmul.worker import relay
from fpmdask.runtime.links import Link, slow_links
from fpmdask.runtime.regions import view
from fpmdask.runtime.worker.channel import Channels
from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import FetchFailed
from fpmdask.runtime.worker.offers import Offers
from tests.tuned import SHORT_ROUNDS, tuned

CONFIG = {
    "distributed.scheduler.active-memory-manager.start": False,
    **SHORT_ROUNDS,
    **tuned(matmul={"panel_depth": 40, "probed_nbytes": 0}),
}
FAST, SLOW = Link(1e-9, 1e-9), Link(1e-9, 1e-7)
EVEN = {"0": 100, "1": 100, "2": 100, "3": 100}


def square(n, side):
    axis = (side,) * (n // side)
    return MatmulSpec((n, n, n), np.dtype("f8"), (axis, axis), (axis, axis), "a", "b")


QUARTERS = {
    "s": [Tile(0, 0, 4, 4)],
    "x": [Tile(0, 4, 4, 8)],
    "y": [Tile(4, 0, 8, 4)],
    "z": [Tile(4, 4, 8, 8)],
}
LINKS = {"s": SLOW, "x": FAST, "y": FAST, "z": FAST}


def test_what_several_need_of_a_slow_owner_goes_to_one_relay():
    spec = square(8, 4)
    holders = {key: ["s"] if key[2] == 0 else ["x"] for key in spec.keys}
    room = dict.fromkeys(QUARTERS, 1e9) | {"x": 10.0}
    chosen = relays(spec, QUARTERS, holders, LINKS, room)
    # of the slow owner's chunks, row 1 of A and column 0 of B are needed by two others or more
    assert set(chosen) == {("a", 1, 0)}
    assert set(chosen.values()) == {"y"}
    assert relays(spec, QUARTERS, holders, dict.fromkeys(LINKS, FAST), room) == {}
    assert relays(spec, QUARTERS, holders, {}, room) == {}
    assert relays(spec, QUARTERS, holders, LINKS, dict.fromkeys(room, 10.0)) == {}
    twice = {key: [*owners, "z"] for key, owners in holders.items()}
    assert relays(spec, QUARTERS, twice, LINKS, room) == {}


def test_the_relay_is_the_one_that_is_fast_for_what_it_relays():
    spec = square(12, 4)
    holders = {key: ["s"] if key[0] == "a" else ["t"] for key in spec.keys}
    links = dict.fromkeys("stxyz", FAST) | {"s": SLOW, "t": SLOW}
    tiles = {
        "x": [Tile(0, 0, 8, 6)],
        "y": [Tile(8, 0, 12, 6)],
        "z": [Tile(0, 6, 12, 12)],
        "s": [],
        "t": [],
    }
    room = dict.fromkeys(tiles, 1e9)
    chosen = relays(spec, tiles, holders, links, room | {"y": 2e9})
    # z needs all of A, x and y the rest of it; x and y need two of three columns of B
    assert {name: chosen[key] for key in chosen for name in key[:1]} == {"a": "z", "b": "x"}
    chosen = relays(spec, tiles, holders, links, room | {"z": 10.0})
    assert set(chosen.values()) == {"x", "y"}


def test_what_is_sent_well_within_the_product_is_not_relayed():
    spec = square(8, 4)
    holders = {key: ["s"] if key[2] == 0 else ["x"] for key in spec.keys}
    room = dict.fromkeys(QUARTERS, 1e9)
    # x and z need a chunk of 128 bytes of the slow owner, y three
    seconds = 5 * 128 * 1e-7 / HIDDEN
    assert relays(spec, QUARTERS, holders, LINKS, room, 0.99 * seconds)
    assert not relays(spec, QUARTERS, holders, LINKS, room, 1.01 * seconds)
    fast_to_send = LINKS | {"s": Link(1e-7, 1e-9)}
    assert not relays(spec, QUARTERS, holders, fast_to_send, room, seconds)


def test_a_link_is_slow_beside_the_middle_one():
    assert slow_links(LINKS) == {"s"}
    assert slow_links({}) == set()
    assert slow_links(LINKS | {"y": Link(1e-7, 1e-9)}) == {"s", "y"}


def test_panels_that_need_little_of_slow_links_come_first():
    spec = square(8, 4)
    panels = [(0, 2), (2, 4), (4, 6), (6, 8)]
    relayed = {("a", 0, 0): "x", ("b", 0, 1): "x", ("b", 1, 1): "y"}
    holders = {key: ["s"] for key in relayed}
    order = in_order_of_arrival(spec, panels, relayed, holders)
    assert order == [(4, 6), (6, 8), (0, 2), (2, 4)]


def test_slices_of_all_panels_are_the_chunk():
    spec = square(12, 4)
    for key in spec.keys:
        seen = np.zeros((4, 4), dtype=int)
        for panel in [(0, 3), (3, 4), (4, 9), (9, 12)]:
            box = slice_of(spec, key, panel)
            if box is not None:
                view(seen, box)[...] += 1
        assert (seen == 1).all()


def cluster():
    return gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 4, config=CONFIG, timeout=60)


def with_slow_links(monkeypatch, names):
    async def measured(context):
        return {a: SLOW if context.name(a) in names else FAST for a in context.workers}

    monkeypatch.setattr(run, "measured_links", measured)


async def inputs(c, worker):
    """A on one worker, whose link is slow, B anywhere."""
    values = np.random.default_rng(0).integers(-9, 9, (400, 400)).astype("f8")
    only = {"workers": [worker.address], "allow_other_workers": True}
    a = c.persist(da.from_array(values, chunks=(100, 80)), **only)
    b = c.persist(da.from_array(values, chunks=(100, 80)))
    await wait([a, b])
    return a, b, values @ values


def asked_of(monkeypatch):
    """Count the requests for relayed chunks and for others, by peer."""
    asked = []
    original = Exchange.fetch

    def counted(self, wants, *given, **options):
        wants = list(wants)
        if not threading.current_thread().name.startswith("fpmdask-relay"):
            asked.extend((peer, one.key[0] == RELAYED) for one in wants for peer in one.holders)
        return original(self, wants, *given, **options)

    monkeypatch.setattr(Exchange, "fetch", counted)
    return asked


@pytest.mark.parametrize("layout", ["rows", "columns"])
@cluster()
async def test_relayed_chunks_make_the_same_product(c, s, *workers, monkeypatch, layout):
    with_slow_links(monkeypatch, {"0"})
    asked = asked_of(monkeypatch)
    balancer = await fpmdask.Balancer(c)
    a, b, expected = await inputs(c, workers[0])
    result = await balancer.matmul(a, b, layout=layout, distribution=EVEN)
    np.testing.assert_array_equal(await c.compute(result), expected)
    if layout == "columns":  # rows of A are needed by two columns of workers
        assert any(relayed for _, relayed in asked)
        assert not any(relayed for peer, relayed in asked if peer == workers[0].address)


@cluster()
async def test_who_waits_for_a_relayed_chunk_does_not_count_as_serving(c, s, *workers, monkeypatch):
    with_slow_links(monkeypatch, {"0"})
    thread, waits, waited_for = threading.local(), [], threading.Event()

    @contextmanager
    def waiting(self):
        thread.waits = True
        with original(self):
            yield
        thread.waits = False

    def wait_for(self, key, box, version, seconds):
        if threading.current_thread().name == "fpmdask-channel" and seconds:
            waits.append(getattr(thread, "waits", False))
            waited_for.set()
        return wait_originally(self, key, box, version, seconds)

    def late(self, *args):
        waited_for.wait(10)  # nothing comes before somebody waits for it
        return slice_originally(self, *args)

    original, wait_originally = Channels.waiting, Offers.wait_for
    slice_originally = relay.Relaying._slice
    monkeypatch.setattr(relay.Relaying, "_slice", late)
    monkeypatch.setattr(Channels, "waiting", waiting)
    monkeypatch.setattr(Offers, "wait_for", wait_for)
    balancer = await fpmdask.Balancer(c)
    a, b, expected = await inputs(c, workers[0])
    result = await balancer.matmul(a, b, layout="columns", distribution=EVEN)
    np.testing.assert_array_equal(await c.compute(result), expected)
    assert waits
    assert all(waits)


@cluster()
async def test_relayed_chunks_make_the_same_product_of_few_rows(c, s, *workers, monkeypatch):
    """All of A, on the worker with the slow link, is needed for every part of the columns of C."""
    with_slow_links(monkeypatch, {"0"})
    asked = asked_of(monkeypatch)
    balancer = await fpmdask.Balancer(c)
    a, b, expected = await inputs(c, workers[0])
    few = c.persist(a[:20], workers=[workers[0].address], allow_other_workers=True)
    await wait(few)
    result = await balancer.matmul(few, b, distribution=EVEN)
    assert "transposed" in balancer.report.layout
    np.testing.assert_array_equal(await c.compute(result), expected[:20])
    assert any(relayed for _, relayed in asked)


@pytest.mark.parametrize("who", ["relay", "owner", "nobody"])
@cluster()
async def test_what_a_relay_cannot_give_comes_from_the_owner(c, s, *workers, monkeypatch, who):
    """Or is made again: the inputs have tasks."""
    with_slow_links(monkeypatch, {"0"})
    balancer = await fpmdask.Balancer(c)
    a, b, expected = await inputs(c, workers[0])
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    relaying = []

    class Fails(relay.Relaying):
        def _slice(self, owner, key, box, chunk):
            relaying.append(self._space.exchange._worker)
            loop.call_soon_threadsafe(begun.set)
            if who == "nobody" or self._space.cancelled.wait(0.3):
                raise FetchFailed({key: (owner, "does not give it")})
            return super()._slice(owner, key, box, chunk)

    monkeypatch.setattr("fpmdask.apps.matmul.worker.share.Relaying", Fails)
    product = asyncio.ensure_future(balancer.matmul(a, b, layout="columns", distribution=EVEN))
    await asyncio.wait_for(begun.wait(), 20)
    if who != "nobody":
        await (relaying[0] if who == "relay" else workers[0]).close(timeout=1)
    result = await asyncio.wait_for(product, 40)
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_slices_of_a_chunk_may_come_in_any_order(c, s, *workers, monkeypatch, tuning):
    tuning(matmul={"panel_depth": 30})  # 27, 27 and 26 of a chunk: the last comes first
    with_slow_links(monkeypatch, {"0"})
    balancer = await fpmdask.Balancer(c)
    a, b, expected = await inputs(c, workers[0])

    seen = set()

    class Slow(relay.Relaying):
        def _slice(self, owner, key, box, chunk):
            if key not in seen:
                seen.add(key)
                chunk[...] = np.nan
            elif box[1][0] == 0:
                self._space.cancelled.wait(0.1)
            return super()._slice(owner, key, box, chunk)

    monkeypatch.setattr("fpmdask.apps.matmul.worker.share.Relaying", Slow)
    asked = asked_of(monkeypatch)
    result = await balancer.matmul(a, b, layout="columns", distribution=EVEN)
    np.testing.assert_array_equal(await c.compute(result), expected)
    assert any(relayed for _, relayed in asked)
