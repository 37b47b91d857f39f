"""Workers that are done steal of those that are last: right results whatever happens."""

import asyncio
import threading
import time
from contextlib import contextmanager

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import get_worker, wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul import kernel
from fpmdask.apps.matmul.coordinator import distribute
from fpmdask.apps.matmul.coordinator.stealing import WorkStealing
from fpmdask.apps.matmul.stealing import Steal, Stealing
from fpmdask.apps.matmul.tile import Tile
from fpmdask.apps.matmul.worker import fetch, share
from fpmdask.runtime.coordinator.rounds import REPEATS
from tests.eventually import side_of
from tests.tuned import SHORT_ROUNDS, tuned

CONFIG = {
    "distributed.scheduler.active-memory-manager.start": False,
    **SHORT_ROUNDS,
    # updates that sleep are a thousand times as slow as real ones: bytes cost next to nothing
    **tuned(matmul={"panel_depth": 20, "receiving_operations": 0.01, "sending_operations": 0.01}),
}
SLOW = "2"
EVEN = {"0": 100, "1": 100, SLOW: 100}


def cluster(**options):
    nthreads = [("127.0.0.1", 1)] * 3
    return gen_cluster(client=True, nthreads=nthreads, config=CONFIG, timeout=60, **options)


@contextmanager
def updates(seconds, hook=lambda name: None):
    """Let panel updates take so many seconds per worker name; `hook` is called before each."""
    original = share.panel_update

    def slow(*args, **options):
        name = str(get_worker().name)
        hook(name)
        time.sleep(seconds[name] * args[2].size / 30_000)
        original(*args, **options)

    share.panel_update = kernel.panel_update = slow
    try:
        yield
    finally:
        share.panel_update = kernel.panel_update = original


SECONDS = {"0": 0.02, "1": 0.02, SLOW: 0.12}


async def inputs(c, rows=300, dtype="f8"):
    values = np.random.default_rng(0).integers(-9, 9, (rows, 400)).astype(dtype)
    x = c.persist(da.from_array(values, chunks=(50, 40)))
    await wait(x)
    return x, values @ values.T


@pytest.mark.parametrize("dtype", ["f8", "c8", "f2", "i4", "bool"])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@cluster()
async def test_the_last_worker_is_stolen_of_and_c_lies_as_laid_out(c, s, *workers, layout, dtype):
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c, dtype=dtype)
    options = {"layout": layout, "distribution": EVEN}
    alone = await balancer.matmul(x, x.T, **options)
    assert balancer.report.helps == ()
    with updates(SECONDS):
        helped = await balancer.matmul(x, x.T, **options, rebalance=True)
    report = balancer.report
    assert {help["helps"] for help in report.helps} == {SLOW}
    assert {help["worker"] for help in report.helps} <= {"0", "1"}
    work = sum(part["work"] for part in (*report.shares, *report.helps))
    assert work == 300 * 300 * 400
    np.testing.assert_array_equal(await c.compute(helped), expected)
    assert helped.chunks == alone.chunks
    assert sum(part["units"] for part in report.shares) == pytest.approx(300)


@cluster()
async def test_sums_travel_in_dask_messages_where_there_are_no_channels(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for worker in workers:
        side = await side_of(worker)
        await side.channels.close()
        side.channels = None
    x, expected = await inputs(c)
    with updates(SECONDS):
        result = await balancer.matmul(x, x.T, distribution=EVEN, rebalance=True)
    assert balancer.report.helps
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_a_part_without_a_corner_is_stolen_of_too(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)
    most = {"0": 10, "1": 10, SLOW: 280}
    with updates(SECONDS):
        result = await balancer.matmul(x, x.T, layout="nrrp", distribution=most, rebalance=True)
    report = balancer.report
    (large,) = (part for part in report.shares if part["worker"] == SLOW)
    assert len(large["tile"]) == 6
    assert {help["helps"] for help in report.helps} == {SLOW}
    assert sum(part["work"] for part in (*report.shares, *report.helps)) == 300 * 300 * 400
    np.testing.assert_array_equal(await c.compute(result), expected)


@pytest.mark.parametrize("who", ["thief", "victim"])
@cluster()
async def test_a_thief_or_victim_that_leaves_loses_nothing(c, s, *workers, who):
    named = {str(worker.name): worker for worker in workers}
    gone = asyncio.Event()
    victims = []

    def progress(event):
        if event["event"] == "help" and not victims:
            victims.append(event["worker"] if who == "thief" else event["helps"])
            gone.set()

    balancer = await fpmdask.Balancer(c, progress=progress)
    x, expected = await inputs(c)
    with updates({**SECONDS, SLOW: 0.3}):
        run = asyncio.ensure_future(
            balancer.matmul(x, x.T, distribution=EVEN, layout="rows", rebalance=True)
        )
        await asyncio.wait_for(gone.wait(), 20)
        await named[victims[0]].close(timeout=1)
        result = await asyncio.wait_for(run, 30)
    np.testing.assert_array_equal(await c.compute(result), expected)
    assert list(balancer.report.left_out) == victims


@cluster()
async def test_a_steal_that_fails_is_done_by_its_victim(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)
    stealing = threading.Event()

    def fails(name):
        if stealing.is_set() and name != SLOW:
            raise RuntimeError("no")

    def progress(event):
        if event["event"] == "help":
            stealing.set()

    balancer.progress = progress
    with updates(SECONDS, fails):
        result = await balancer.matmul(x, x.T, distribution=EVEN, rebalance=True)
    assert stealing.is_set()
    assert balancer.report.helps == ()
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_a_victim_that_is_told_too_late_keeps_its_lines(c, s, *workers, monkeypatch):
    original = share._Notes.give

    def give(self, index):
        self._listen()
        for given in self.progress.offered:
            given.first = -1
        original(self, index)

    monkeypatch.setattr(share._Notes, "give", give)
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)
    with updates(SECONDS):
        result = await balancer.matmul(x, x.T, distribution=EVEN, rebalance=True)
    assert balancer.report.helps == ()
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_the_second_product_needs_no_measurement(c, s, *workers):
    """Also of other sizes, unless their shares are much larger or smaller."""
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)
    with updates(SECONDS):
        # shares that are large enough to teach: on a machine that is busy measured ones may not be
        await balancer.matmul(x, x.T, distribution=EVEN, rebalance=False)
        assert balancer.report.reason != "known"
        result = await balancer.matmul(x, x.T)
        assert (balancer.report.reason, balancer.report.rounds) == ("known", ())
        shares = dict(zip(balancer.report.workers, balancer.report, strict=True))
        assert shares[SLOW] < shares["0"]
        np.testing.assert_array_equal(await c.compute(result), expected)
        other = await balancer.matmul(x[:280], x.T)
        assert balancer.report.reason == "known"
        np.testing.assert_array_equal(await c.compute(other), expected[:280])
        await balancer.matmul(x[:20], x[:20].T)
        assert balancer.report.reason != "known"
        await balancer.matmul(x, x.T, epsilon=0.2)
        assert balancer.report.reason != "known"


@pytest.mark.parametrize(("slow", "reason"), [(0.12, "known"), (0.075, "measured")])
@cluster()
async def test_shares_of_a_tenth_of_the_rows_need_not_be_known(c, s, *workers, slow, reason):
    """The slow worker is to get a quarter of what it has had; three times, it would be too much."""
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)
    with updates(SECONDS | {SLOW: slow}):
        # without help: how much of its rows it did itself would depend on the machine's load
        await balancer.matmul(x, x.T, distribution=EVEN, rebalance=False)
        result = await balancer.matmul(x, x.T)
    assert balancer.report.reason == reason
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_a_product_is_preceded_by_short_rounds(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x, _ = await inputs(c)
    with updates(SECONDS):
        await balancer.matmul(x, x.T)
        # a worker that is slower than others of equal hardware is measured again
        assert 1 < len(balancer.report.rounds) <= 1 + REPEATS
        for record in balancer.report.rounds:
            assert set(record.units.values()) == {distribute.scout_rows(300, 3, alone=True)}
        assert balancer.report.imbalance is None
        shares = dict(zip(balancer.report.workers, balancer.report, strict=True))
        assert shares[SLOW] < shares["0"] / 2
        await balancer.matmul(x, x.T, epsilon=0.2)
        assert len(balancer.report.rounds) > 1
        assert balancer.report.imbalance is not None


@cluster()
async def test_what_a_thief_hangs_with_is_done_by_its_victim(c, s, *workers, tuning):
    tuning(matmul={"overdue": 0.1})
    stealing, released = threading.Event(), threading.Event()

    def hangs(name):
        if stealing.is_set() and name != SLOW:
            released.wait(30)

    def progress(event):
        if event["event"] == "help":
            stealing.set()

    balancer = await fpmdask.Balancer(c, progress=progress)
    x, expected = await inputs(c)
    with dask.config.set({"fpmdask.hang": "1s"}), updates(SECONDS, hangs):
        try:
            result = await balancer.matmul(x, x.T, distribution=EVEN, rebalance=True)
        finally:
            released.set()
    assert stealing.is_set()
    assert balancer.report.helps == ()
    assert SLOW not in balancer.report.left_out
    np.testing.assert_array_equal(await c.compute(result), expected)


def scripted(made, losses, monkeypatch):
    """Have "0" steal of "1", and "2" of "0"; each loses a chunk once, as `losses` says."""

    def steals(self, now):
        parts = {state.worker: (part, state) for part, state in self._parts.items()}
        ready = len(parts) == 3 and all((state.index or 0) >= 3 for _, state in parts.values())
        if made or not ready:
            return []
        a, b, c = sorted(parts, key=lambda worker: parts[worker][0])
        for thief, victim in ((a, b), (c, a)):
            part, state = parts[victim]
            tile, first = state.tile.last(10), state.index + 9
            steal = Steal(len(made), thief, victim, part, tile, first, now)
            self.beside[thief] += tile.area
            state.released.append(steal)
            state.settle()
            self.open[steal.number] = steal
            made.append(steal)
        return list(made)

    original = fetch.Fetcher.start

    def start(self, index, tile):
        kind = "help" if "help" in self.order else "part"
        mine = made and get_worker().address == made[0].thief
        if mine and kind in losses and (kind == "help" or index >= made[1].first + 2):
            losses.remove(kind)

            def lost():
                raise fetch.ChunksMissing([(self.spec.a_name, 0, 0)])

            return self._thread.submit(lost)
        return original(self, index, tile)

    news = WorkStealing.news

    def heard(self, told):
        news(self, told)
        self._look()

    monkeypatch.setattr(Stealing, "steals", steals)
    monkeypatch.setattr(WorkStealing, "news", heard)
    monkeypatch.setattr(fetch.Fetcher, "start", start)


@pytest.mark.parametrize("losses", [{"help"}, {"part", "help"}])
@cluster()
async def test_a_thief_that_is_a_victim_hears_of_its_own_lines_whatever_it_lost(
    c, s, *workers, losses, monkeypatch
):
    made, losses = [], set(losses)
    scripted(made, losses, monkeypatch)
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)
    options = {"layout": "rows", "distribution": EVEN, "rebalance": True}
    with updates({"0": 0.05, "1": 0.05, "2": 0.05}):
        result = await asyncio.wait_for(balancer.matmul(x, x.T, **options), 25)
    assert not losses
    assert len(made) == 2
    assert not balancer.report.left_out
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_a_sum_that_breaks_off_is_not_added_twice(c, s, *workers, monkeypatch):
    """Also where the giver, multiplying the lines itself, starts again and hears of it again."""
    made, broken, lost = [], [], []
    scripted(made, set(), monkeypatch)
    take, start = fetch.Fetcher.take, fetch.Fetcher.start

    def taken(self, key, tile, peer, address, add):
        def half_added(at, band):
            if broken:
                return add(at, band)
            broken.append(Tile(at.row0, at.column0, at.row0 + 3, at.column1))
            add(broken[0], band[:3])
            raise fetch.ChunksMissing([(self.spec.a_name, 0, 0)])

        take(self, key, tile, peer, address, half_added)

    def started(self, index, tile):
        rest = broken and tile.row0 == broken[0].row1
        if rest and not lost and index == len(self.order["panels"]) - 1:  # others are multiplied
            lost.append(index)
            raise fetch.ChunksMissing([(self.spec.a_name, 0, 0)])
        return start(self, index, tile)

    monkeypatch.setattr(fetch.Fetcher, "take", taken)
    monkeypatch.setattr(fetch.Fetcher, "start", started)
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)
    options = {"layout": "rows", "distribution": EVEN, "rebalance": True}
    with updates({"0": 0.05, "1": 0.05, "2": 0.05}):
        result = await asyncio.wait_for(balancer.matmul(x, x.T, **options), 25)
    assert broken
    assert lost
    np.testing.assert_array_equal(await c.compute(result), expected)
