"""Workers that join while a stencil iterates are taken in where that pays."""

import asyncio
import re
import time
from contextlib import AsyncExitStack

import numpy as np
import pytest
import zarr
from distributed import Worker

import fpmdask
from fpmdask.apps.stencil import jacobi
from tests.apps.stencil.test_mheta import KEPT, SLOW, U0, check_report, shares_of
from tests.apps.stencil.test_out_of_core import no_files, open_block_files
from tests.apps.stencil.test_stencil import cluster, local, of, worker_name
from tests.apps.stencil.test_storage import snapshots, stored, zarr_cluster
from tests.eventually import nothing_left, until
from tests.tuned import tuned

pytestmark = pytest.mark.slow
RANDOM = np.random.default_rng(0)
QUICK = {"stencil": {"trial_seconds": 0.0, "load_check_seconds": 0.02}}


def slowly(block, *_):
    """Compute for a time that does not depend on who does it."""
    time.sleep(0.002 * (len(block) - 2))
    return jacobi(block)


def of_kind(events, kind):
    return [event for event in events if event["event"] == kind]


async def after(events, kind, count=1):
    await until(lambda: len(of_kind(events, kind)) >= count)


async def iterated(c, s, events, call, *names, when="iterated"):
    """Return what a call makes where workers join in the middle of it."""
    running = asyncio.ensure_future(of(call))
    await after(events, when)
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(Worker(s.address, nthreads=1, name=name))
        found = await running
        fields = found if isinstance(found, tuple) else (found,)
        return [await c.compute(one) for one in fields]


@pytest.mark.parametrize(
    ("count", "boundary"),
    [
        (1, "reflect"),
        (2, "periodic"),
        pytest.param(1, "periodic", marks=pytest.mark.thorough),
        pytest.param(2, "reflect", marks=pytest.mark.thorough),
    ],
)
@cluster(2, config=tuned(stencil={**QUICK["stencil"], "news_seconds": 0.0}))
async def test_who_joins_gets_rows(c, s, *workers, count, boundary):
    """A team of one had no neighbour before."""
    events = []
    names = [str(n) for n in range(count)]
    for worker in workers[count:]:
        await worker.close()
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0, more = RANDOM.random((2, 60, 8))

    def update(blocks, constant):
        return slowly(blocks[0]), jacobi(blocks[1]) + constant[1:-1, 1:-1]

    call = balancer.stencil(update, (u0, more), 80, boundary=boundary, args=[u0])
    found = await iterated(c, s, events, call, "late", "later")
    taken = {event["worker"]: event for event in of_kind(events, "taken in")}
    assert taken.keys() == {"late", "later"}, of_kind(events, "not taken in")
    assert all(event["rows"] > 0 and event["after"] > 0 for event in taken.values())
    assert "s less in" in taken["late"]["why"]
    shares = shares_of(balancer.report)
    assert shares.keys() == {*names, "late", "later"}
    assert sum(shares.values()) == 60
    assert shares["late"] > 5
    assert of_kind(events, "shared out")[-1]["rows"] == shares
    assert not of_kind(events, "starting over")
    wanted = u0, more
    how = "wrap" if boundary == "periodic" else "symmetric"
    for _ in range(80):
        padded = [np.pad(x, 1, mode=how) for x in wanted]
        wanted = jacobi(padded[0]), jacobi(padded[1]) + u0
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    del call
    await nothing_left(s)


@zarr_cluster(2, config=tuned(**QUICK))
async def test_what_is_written_is_complete_whoever_joins(c, s, *workers, tmp_path):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((60, 8))
    out = zarr.create_array(str(tmp_path / "out"), shape=(0, 60, 8), chunks=(1, 25, 8), dtype="f8")
    call = balancer.stencil(
        slowly,
        stored(tmp_path / "u0", u0, (25, 8)),
        100,
        out=out,
        save_every=5,
        checkpoint=tmp_path / "kept",
        checkpoint_every=7,
        tolerance=0.0,
        check_every=9,
    )
    (found,) = await iterated(c, s, events, call, "late", when="saved")
    assert [event["worker"] for event in of_kind(events, "taken in")] == ["late"]
    saved = [event["iteration"] for event in of_kind(events, "saved")]
    assert saved == list(range(5, 101, 5))
    np.testing.assert_array_equal(out[...], snapshots(u0, saved))
    np.testing.assert_array_equal(found, local(jacobi, u0, 100))
    assert [*(tmp_path / "kept").iterdir()] == []


@pytest.mark.parametrize("prefetch", [pytest.param(False, marks=pytest.mark.thorough), True])
@cluster(config={**SLOW, **tuned(stencil={"load_check_seconds": 0.05, "trial_seconds": 0.01})})
async def test_who_joins_takes_rows_off_the_disk(c, s, *workers, prefetch):
    """Without worker "2" rows are on disk; what its disk is like is taken from the others."""
    events = []
    await workers[2].close()
    balancer = await fpmdask.Balancer(c, progress=events.append)
    memory = {"0": 53_300, "1": 19_200}
    call = balancer.stencil(slowly, U0, 120, memory=memory, args=(KEPT,), prefetch=prefetch)
    (found,) = await iterated(c, s, events, call, "late", when="shared out")
    np.testing.assert_allclose(found, local(jacobi, U0, 120))
    assert [event["worker"] for event in of_kind(events, "taken in")] == ["late"]
    report = balancer.report
    said = check_report(report, 120)
    assert len(said["phases"]) > 1
    at = said["workers"].index("late")
    assert said["phases"][0]["rows"][at] == 0
    assert said["phases"][0]["measured"]["compute"][at] == 0
    assert said["phases"][-1]["rows"][at] == shares_of(report)["late"] > 10
    assert len(said["iterations"]["late"]) < len(said["iterations"]["0"])
    del call
    await nothing_left(s)


@cluster(1, config=tuned(stencil={**QUICK["stencil"], "exchange_seconds": 60.0}))
async def test_who_joins_where_that_does_not_pay_gets_nothing(c, s, *workers):
    """Messages, which a team of one has none of, would take longer than what is saved."""
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((60, 8))
    call = balancer.stencil(slowly, u0, 40)
    (found,) = await iterated(c, s, events, call, "late", when="step")
    np.testing.assert_array_equal(found, local(jacobi, u0, 40))
    (refused,) = of_kind(events, "not taken in")
    assert refused["worker"] == "late"
    assert "s less in" in refused["why"]
    assert "late" not in shares_of(balancer.report)
    del call
    await nothing_left(s)


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.thorough), 2])
@cluster(2, config=tuned(**QUICK))
async def test_who_joins_where_calls_take_as_long_whatever_their_rows(c, s, *workers, count):
    """More workers make more calls, and none of them a shorter one.

    A call takes so long that what other processes of the machine add to one is less than a tenth.
    """
    events = []
    for worker in workers[count:]:
        await worker.close()
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((60, 8))

    def fixed(block):
        time.sleep(0.2)
        return jacobi(block)

    (found,) = await iterated(c, s, events, balancer.stencil(fixed, u0, 50), "late", when="step")
    np.testing.assert_array_equal(found, local(jacobi, u0, 50))
    (refused,) = of_kind(events, "not taken in")
    assert refused["worker"] == "late"
    assert "late" not in shares_of(balancer.report)


@cluster(2, config=tuned(stencil={**QUICK["stencil"], "move_seconds": 1.2}))
async def test_who_joins_too_late_to_pay_gets_nothing(c, s, *workers):
    """An iteration takes 60 ms, 20 ms less with a third worker: not for 36 of them."""
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((60, 8))
    call = balancer.stencil(slowly, u0, 36)
    (found,) = await iterated(c, s, events, call, "late", when="step")
    np.testing.assert_array_equal(found, local(jacobi, u0, 36))
    (refused,) = of_kind(events, "not taken in")
    assert re.search(r"1\.2\d* s to move rows", refused["why"])
    assert "late" not in shares_of(balancer.report)


@pytest.mark.parametrize("rule", ["even", "given"])
@cluster(2, config=tuned(**QUICK))
async def test_what_the_caller_says_holds(c, s, *workers, rule):
    """By "even" all get as many rows, who joins too; who is given rows keeps them."""
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((60, 8))

    def uneven(block):
        time.sleep(0.001 * (len(block) - 2) * (1 + 2 * (worker_name() == "1")))
        return jacobi(block)

    distribution = "even" if rule == "even" else {"0": 40, "1": 20}
    call = balancer.stencil(uneven, u0, 100, distribution=distribution)
    (found,) = await iterated(c, s, events, call, "late", when="shared out")
    np.testing.assert_array_equal(found, local(jacobi, u0, 100))
    wanted = {"0": 20, "1": 20, "late": 20} if rule == "even" else {"0": 40, "1": 20}
    assert shares_of(balancer.report) == wanted
    assert len(of_kind(events, "shared out")) == (2 if rule == "even" else 1)


@pytest.mark.parametrize("when", ["joined", "taken in"])
@cluster(2, config=tuned(**QUICK))
async def test_who_joins_and_leaves_at_once(c, s, *workers, when):
    """While it is not of the team nobody misses it; afterwards the others start again."""
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((60, 8))
    running = asyncio.ensure_future(of(balancer.stencil(slowly, u0, 60)))
    await after(events, "shared out")
    late = await Worker(s.address, nthreads=1, name="late")
    await after(events, when)
    await late.close(timeout=1)
    found = await running
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 60))
    assert bool(of_kind(events, "starting over")) == (when == "taken in")
    shares = shares_of(balancer.report)
    assert shares.keys() == {"0", "1"}
    assert abs(shares["0"] - shares["1"]) < 20, "shared out anew"
    del found, running
    await nothing_left(s)


@pytest.mark.parametrize("streamed", [False, True])
@zarr_cluster(2, config=tuned(**QUICK))
async def test_a_loss_of_who_has_joined_costs_only_what_was_made_since(
    c, s, *workers, tmp_path, streamed
):
    """The others keep the rows that they had when it was taken in, on disk where memory is short.

    Two of three are enough: what was written until then is not written again.
    """
    events, files = [], open_block_files()
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((60, 8))
    out = zarr.create_array(str(tmp_path / "out"), shape=(0, 60, 8), chunks=(1, 25, 8), dtype="f8")
    memory = {"0": 5300, "1": 5300} if streamed else None
    given = {"out": out, "save_every": 2, "memory": memory, "distribution": "balanced"}
    source = stored(tmp_path / "u0", u0, (25, 8))
    running = asyncio.ensure_future(of(balancer.stencil(slowly, source, 60, **given)))
    await after(events, "saved", 2)
    late = await Worker(s.address, nthreads=1, name="late")
    await after(events, "taken in")
    await late.close(timeout=1)
    await running
    (taken,) = of_kind(events, "taken in")
    assert of_kind(events, "starting over")
    saved = [event["iteration"] for event in of_kind(events, "saved")]
    assert sorted({*saved}) == list(range(2, 61, 2))
    assert not [n for n in saved if n <= taken["after"] and saved.count(n) > 1]
    np.testing.assert_array_equal(out[...], snapshots(u0, sorted({*saved})))
    assert any(share["blocks"] for share in balancer.report.shares) == streamed
    del running
    await no_files(files)


@cluster(2, config=tuned(**QUICK))
async def test_who_cannot_compute_is_not_taken_in(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((60, 8))

    def update(block):
        if worker_name() == "late":
            raise KeyError("seven")
        return slowly(block)

    call = balancer.stencil(update, u0, 40)
    (found,) = await iterated(c, s, events, call, "late", when="shared out")
    np.testing.assert_array_equal(found, local(jacobi, u0, 40))
    (refused,) = of_kind(events, "not taken in")
    assert "seven" in refused["why"]


@cluster(config=SLOW)
async def test_who_are_left_are_measured_anew(c, s, *workers):
    """The distribution that MHETA has chosen was one of three workers."""
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    running = asyncio.ensure_future(
        of(balancer.stencil(slowly, U0, 60, memory={"1": 19_200}, args=(KEPT,)))
    )
    await until(lambda: len(of_kind(events, "shared out")) > 0)
    await workers[2].close(timeout=1)
    found = await running
    np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 60))
    assert of_kind(events, "starting over")
    report = balancer.report
    said = check_report(report, 60)
    assert report.reason == "measured"
    assert sorted(said["workers"]) == ["0", "1"]
    assert said["phases"][0]["first"] == 1
    assert said["choices"][0]["after"] == 0, "a sample was instrumented again"
    assert shares_of(report)["0"] > 40
