"""Stages that a client drives and runs of other clients wait for each other."""

import asyncio
import threading

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, Worker, wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.frames.client import sort_values
from fpmdask.apps.matmul.client import arrays, stored
from fpmdask.apps.stencil import jacobi
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.coordinator.membership import TAKEN
from tests.eventually import nothing_left, until
from tests.tuned import SHORT_ROUNDS

STAGES = {
    "frame": (sort_values, "_union", "frames"),
    "split-K": (arrays, "multiply_ranges", "matmul"),
    "tiles": (stored, "_write", "matmul.tiles"),
}
EARLY: list[bool] = []
OPEN, COMPUTING = threading.Event(), threading.Event()
RAISING, HOLDING = threading.Event(), threading.Event()
MATRIX = np.random.default_rng(0).integers(-9, 9, (20, 60)) * 1.0
FRAME = pd.DataFrame({"key": np.random.default_rng(1).permutation(900), "row": np.arange(900)})


def cluster():
    # a worker with two threads has one left for tasks beside a kernel
    return gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 2)] * 2,
        config=SHORT_ROUNDS,
        timeout=90,
        clean_kwargs={"threads": False},  # Zarr keeps threads of its own
    )


@pytest.fixture(autouse=True)
def closed():
    for event in (OPEN, COMPUTING, RAISING, HOLDING):
        event.clear()
    EARLY.clear()
    yield
    OPEN.set()


class Held:
    """A kernel that says what it takes, once it may go on."""

    name, implementation, parameters = "held", "1", {}

    def __init__(self, context):
        self.units = 0

    def setup(self, units):
        self.units = units

    def run(self):
        COMPUTING.set()
        OPEN.wait(30)
        return 1e-3 * self.units

    def teardown(self):
        pass

    def complexity(self, units):
        return float(units)


async def call(balancer, what, folder):
    """Have a client do what has stages of its own; return whether the result is right."""
    c = balancer.client
    if what == "frame":
        x = c.persist(dd.from_pandas(FRAME, npartitions=4))
        await wait(x)
        found = await c.compute(await balancer.sort_values(x, "key"))
        return found.equals(FRAME.sort_values("key"))
    x = c.persist(da.from_array(MATRIX, chunks=(20, 15)))
    await wait(x)
    if what == "split-K":
        found = await balancer.matmul(x, x.T, layout="inner")
    else:
        out = zarr.create_array(str(folder / "c"), shape=(20, 20), chunks=(10, 10), dtype="f8")
        found = await balancer.matmul(x, x.T, out=out)
    return np.array_equal(await c.compute(found), MATRIX @ MATRIX.T)


def waiting(events, runs):
    """Tell whether events say that a run waits for others, of which the first has this name."""
    told = [event["runs"] for event in events if event["event"] == "waiting" and "runs" in event]
    return bool(told) and told[0][0].rpartition("-")[0] == runs


@pytest.mark.slow
@pytest.mark.parametrize("what", STAGES)
@cluster()
async def test_stages_wait_for_a_run_that_measures(c, s, *workers, what, tmp_path):
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        measuring = await fpmdask.Balancer(other)
        events = []
        balancer = await fpmdask.Balancer(c, progress=events.append)
        running = asyncio.ensure_future(measuring.partition(Held, 100))
        await until(COMPUTING.is_set)
        steps = {key for key in s.tasks if "fpmdask-" in str(key)}
        calling = asyncio.ensure_future(call(balancer, what, tmp_path))
        await until(lambda: waiting(events, "partition") or calling.done())
        assert {key for key in s.tasks if "fpmdask-" in str(key)} == steps
        OPEN.set()
        await running
        assert await asyncio.wait_for(calling, 30)
    await nothing_left(s)


def marked(block):
    """Note whether a lazy input is computed while a kernel is measured."""
    EARLY.append(not OPEN.is_set())
    if RAISING.is_set():
        raise ValueError("no such file")
    if HOLDING.is_set():
        OPEN.wait(30)
    return block


def lazy(values, chunks):
    like = {"dtype": values.dtype, "meta": np.empty((0,) * values.ndim)}
    return da.from_array(values, chunks=chunks).map_blocks(marked, **like)


def lazy_frame():
    return dd.from_pandas(FRAME, npartitions=4).map_partitions(marked, meta=FRAME.iloc[:0])


def as_it_is(part):
    return part


# method → its call with inputs that have to be computed
LAZY = {
    "matmul": lambda b: b.matmul(lazy(MATRIX, (20, 15)), MATRIX.T),
    "sort": lambda b: b.sort(lazy(MATRIX[0], 15)),
    "sort_values": lambda b: b.sort_values(lazy_frame(), "key"),
    "map_blocks": lambda b: b.map_blocks(np.sort, lazy(MATRIX[0], 15)),
    "map_partitions": lambda b: b.map_partitions(as_it_is, lazy_frame()),
    "rebalance": lambda b: b.rebalance(lazy(MATRIX[0], 15), distribution={"0": 40, "1": 20}),
    "stencil": lambda b: b.stencil(jacobi, lazy(MATRIX, (20, 15)), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LAZY)
@cluster()
async def test_lazy_inputs_wait_for_a_run_that_measures(c, s, *workers, what):
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        measuring = await fpmdask.Balancer(other)
        events = []
        balancer = await fpmdask.Balancer(c, progress=events.append)
        running = asyncio.ensure_future(measuring.partition(Held, 100))
        await until(COMPUTING.is_set)
        calling = asyncio.ensure_future(LAZY[what](balancer))
        await until(lambda: waiting(events, "partition") or EARLY or calling.done())
        assert not EARLY
        OPEN.set()
        await running
        await asyncio.wait_for(calling, 30)
        assert len(EARLY) >= 4
        assert not any(EARLY)
        assert balancer.report.app != "load"
        calling = None  # lets go of the result
    await nothing_left(s)


async def nothing_of_a_run(s):
    """Wait until nobody has data, a run, a lease, or is busy; forget what was computed."""
    plugin = s.plugins["fpmdask"]
    await nothing_left(s)
    await until(lambda: not plugin.runs and not plugin.leasing.leases.busy(s.workers))
    await until(lambda: not plugin.tickets.occupied())
    EARLY.clear()


@pytest.mark.slow
@cluster()
async def test_lazy_inputs_that_raise_leave_nothing(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    RAISING.set()
    for call in LAZY.values():
        with pytest.raises(ValueError, match="no such file"):
            await call(balancer)
        await nothing_of_a_run(s)
    RAISING.clear()
    await LAZY["map_blocks"](balancer)


@pytest.mark.slow
@cluster()
async def test_a_call_that_is_cancelled_while_its_inputs_are_computed_leaves_nothing(
    c, s, *workers
):
    balancer = await fpmdask.Balancer(c)
    HOLDING.set()
    for call in LAZY.values():
        OPEN.clear()
        calling = asyncio.ensure_future(call(balancer))
        await until(lambda: EARLY)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        OPEN.set()
        await nothing_of_a_run(s)
    await LAZY["map_blocks"](balancer)


@pytest.mark.slow
@cluster()
async def test_inputs_are_not_computed_where_a_named_worker_leaves_before(c, s, *workers):
    """The run that holds workers for it is refused, after the check of the call has passed."""
    await workers[1].close()
    balancer = await fpmdask.Balancer(c, workers=["0", "1"])
    check = s.handlers["fpmdask_check"]
    for what, call in LAZY.items():
        named = await Worker(s.address, name="1", nthreads=2)

        async def passed(named=named, **asking):
            answer = await check(**asking)
            await named.close()
            return answer

        s.handlers["fpmdask_check"] = passed
        with pytest.raises(CoordinatorError, match="no worker 1 in the cluster"):
            await call(balancer)
        s.handlers["fpmdask_check"] = check
        assert not EARLY, what
        await nothing_of_a_run(s)
    await LAZY["sort"](await fpmdask.Balancer(c))


@pytest.mark.slow
@pytest.mark.parametrize("what", STAGES)
@cluster()
async def test_a_run_that_measures_waits_for_stages(c, s, *workers, what, tmp_path, monkeypatch):
    module, function, app = STAGES[what]
    original, begun, go_on = getattr(module, function), asyncio.Event(), asyncio.Event()

    async def held(*given):
        begun.set()
        await go_on.wait()
        return await original(*given)

    monkeypatch.setattr(module, function, held)
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        events = []
        measuring = await fpmdask.Balancer(other, progress=events.append)
        balancer = await fpmdask.Balancer(c)
        calling = asyncio.ensure_future(call(balancer, what, tmp_path))
        await asyncio.wait_for(begun.wait(), 30)
        OPEN.set()
        running = asyncio.ensure_future(measuring.partition(Held, 100))
        await until(lambda: waiting(events, app) or COMPUTING.is_set())
        assert not COMPUTING.is_set()
        go_on.set()
        assert await asyncio.wait_for(calling, 30)
        await asyncio.wait_for(running, 30)
    await nothing_left(s)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["raises", "is cancelled", "leaves"])
@cluster()
async def test_a_client_whose_stage_ends_early_holds_no_worker(c, s, *workers, end):
    begun = asyncio.Event()

    async def stage(request):
        begun.set()
        if end == "raises":
            raise ValueError("a stage")
        await asyncio.Event().wait()

    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        balancer = await fpmdask.Balancer(other)
        work = proxy.leased(balancer._follow, "frames", balancer._request(), stage)
        working = asyncio.ensure_future(work)
        await asyncio.wait_for(begun.wait(), 20)
        if end == "is cancelled":
            working.cancel()
        if end == "raises":
            with pytest.raises(ValueError, match="a stage"):
                await working
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    OPEN.set()
    found = await asyncio.wait_for((await fpmdask.Balancer(c)).partition(Held, 100), 20)
    assert sum(found.values()) == 100
    assert not s.plugins["fpmdask"].runs


@cluster()
async def test_a_run_within_another_one_uses_its_workers_only(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    follow, request = balancer._follow, balancer._request()
    leases = s.plugins["fpmdask"].leasing.leases
    both = {worker.address for worker in workers}

    async def inner(request):
        assert leases.held_by(request["within"]) == both
        return await proxy.leased(follow, "matmul.tiles", request, innermost)

    async def innermost(request):
        run, (outer,) = request["within"], {*leases.busy(both).values()}
        assert run != outer
        assert not leases.held_by(run)
        with pytest.raises(CoordinatorError, match="waits for no answer to a request 7"):
            await c.scheduler.fpmdask_answer(run=run, number=7, answer={})
        async with Client(s.address, asynchronous=True, set_as_default=False) as other:
            others = (await fpmdask.Balancer(other))._follow
            with pytest.raises(CoordinatorError, match=f"run {run} has ended"):
                await proxy.leased(others, "frames", request, innermost)
        return outer

    outer = await proxy.leased(follow, "frames", request, inner)
    assert outer.startswith("frames-")
    with pytest.raises(CoordinatorError, match=f"run {outer} has ended"):
        await proxy.leased(follow, "frames", {**request, "within": outer}, inner)
    assert not leases.busy(both)
    assert balancer.report is None


@pytest.mark.slow
@cluster()
async def test_a_run_within_another_one_waits_for_nobody_elses_worker(c, s, *workers):
    """It begins with those that are held, and takes in the other one once that is free."""
    events, released, taken = [], asyncio.Event(), asyncio.Event()
    balancer = await fpmdask.Balancer(c, workers=["0"])

    async def keep(_):
        taken.set()
        await released.wait()

    async def inner(request):
        every = await fpmdask.Balancer(c, progress=events.append)
        follow = every._follow
        every._follow = lambda app, spec: follow(app, {**spec, "within": request["within"]})
        running = asyncio.ensure_future(every.partition(Held, 100))
        await until(COMPUTING.is_set)
        [left_out] = [event for event in events if event["event"] == "left out"]
        assert (left_out["worker"], left_out["reason"]) == ("1", TAKEN)
        released.set()
        await until(lambda: any(event["event"] == "joined" for event in events))
        OPEN.set()
        return await running

    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        others = await fpmdask.Balancer(other, workers=["1"])
        request = others._request()
        keeping = asyncio.ensure_future(proxy.leased(others._follow, "frames", request, keep))
        await asyncio.wait_for(taken.wait(), 20)
        found = await proxy.leased(balancer._follow, "frames", balancer._request(), inner)
        await keeping
    assert not found.report.left_out
    assert sum(found.values()) == 100
