"""Runs that end while something of them goes on: leases, kernels and limits that outlive a run."""

import asyncio
import threading
from queue import Queue
from typing import ClassVar

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, Worker, get_worker
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.errors import CoordinatorError, KernelError, NoWorkersError, PartitionError
from fpmdask.runtime.app import code, find
from fpmdask.runtime.coordinator.tickets import Order
from fpmdask.runtime.wire import TIMED
from fpmdask.runtime.worker.side import WorkerSide
from fpmdask.timing import WorkerContext
from tests.coordinator.test_cluster import CONFIG, cluster, idle, named
from tests.eventually import side_of, until

# kernels here wait or do nothing
pytestmark = pytest.mark.filterwarnings("ignore:the kernel takes less:UserWarning")
GATE = threading.Event()
OPENING = threading.Event()
STARTED = threading.Event()
GOING = threading.Event()


def waiting(units):
    """A kernel that returns when the gate opens."""
    STARTED.set()
    GATE.wait(30)


def going(units):
    """A kernel that returns when the other gate opens."""
    GOING.wait(30)


def repeating(units):
    """A kernel that is repeated until the end of its budget."""
    STARTED.set()


def leaving(units):
    """A kernel that ends its program on worker 0."""
    if str(get_worker().name) == "0":
        raise SystemExit(3)


class OpensSlowly:
    """A kernel that opens on worker ``late`` when the gate opens."""

    name, implementation, parameters = "opens-slowly", "1", {}

    def __init__(self, context: WorkerContext) -> None:
        if context.name == "late":
            OPENING.set()
            GATE.wait(30)

    def setup(self, units):
        pass

    def run(self):
        if not OPENING.is_set():
            OPENING.wait(30)
        return 0.01

    def teardown(self):
        pass

    def complexity(self, units):
        return float(units)


class Deep(OpensSlowly):
    """A kernel whose speed depends on a parameter."""

    name, depth = "deep", 1

    def __init__(self, context: WorkerContext) -> None:
        self.fast = context.name == "0"
        self.units = 0

    @property
    def parameters(self):
        return {"depth": self.depth}

    def setup(self, units):
        self.units = units

    def run(self):
        return self.units * (1e-3 if self.fast else 4e-3)


class TooLarge(Deep):
    """A kernel that says how often it met a size that is too large."""

    name = "too-large"
    met: ClassVar[Queue[int]] = Queue()  # what a list holds makes it another kernel

    def run(self):
        if self.fast and self.units > 50:
            self.met.put(self.units)
            return float("inf")
        return self.units * 1e-3


@cluster()
async def test_a_worker_that_joins_as_the_run_ends_keeps_no_lease_and_no_kernel(c, s, *workers):
    GATE.clear()
    OPENING.clear()
    balancer = await fpmdask.Balancer(c)
    run = asyncio.ensure_future(balancer.partition(OpensSlowly, 30, max_rounds=1))
    await until(lambda: s.plugins["fpmdask"].runs)
    async with Worker(s.address, nthreads=1, name="late") as late:
        await asyncio.wait_for(run, 30)
        assert OPENING.is_set()  # the late worker is still opening the kernel
        GATE.set()
        side = await side_of(late)
        await until(
            lambda: not side.spaces and not s.plugins["fpmdask"].leasing.leases.busy([late.address])
        )
        report = (await balancer.partition(named([*workers, late], [100.0] * 4), 400)).report
        assert sorted(report.workers) == ["0", "1", "2", "late"]
    await idle(s)


@cluster()
async def test_a_worker_that_joins_while_a_run_waits_for_its_turn_takes_part(c, s, *workers):
    GATE.clear()
    GOING.clear()
    balancer = await fpmdask.Balancer(c)
    first = asyncio.ensure_future(balancer.partition(waiting, 30, max_rounds=1))
    events = []
    second = await fpmdask.Balancer(c, progress=events.append)
    run = asyncio.ensure_future(second.partition(going, 4000, epsilon=1e-9, max_rounds=8))
    await until(lambda: any(event["event"] == "waiting" for event in events))
    async with Worker(s.address, nthreads=1, name="late"):
        GATE.set()
        await first
        await until(lambda: any(event["event"] == "joined" for event in events))
        GOING.set()
        assert "late" in (await run).workers


@cluster()
async def test_after_a_cancelled_run_the_next_one_waits_for_its_calls(c, s, *workers):
    GATE.clear()
    STARTED.clear()
    balancer = await fpmdask.Balancer(c)
    run = asyncio.ensure_future(balancer.partition(waiting, 30))
    await until(STARTED.is_set)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    events = []
    second = await fpmdask.Balancer(c, progress=events.append)
    run = asyncio.ensure_future(second.partition(named(workers, [1.0, 1.0, 1.0]), 30))
    await until(lambda: any(event["event"] == "waiting" for event in events))
    GATE.set()
    report = (await run).report
    assert sorted(report.workers) == ["0", "1", "2"]
    assert not report.left_out
    await idle(s)


@cluster()
async def test_a_worker_that_closes_in_a_round_is_dropped_from_it(c, s, *workers):
    STARTED.clear()
    balancer = await fpmdask.Balancer(c)
    timing = fpmdask.timing.TimingPolicy(min_seconds=2.0, budget_seconds=2.0)
    run = asyncio.ensure_future(balancer.partition(repeating, 30, timing=timing, max_rounds=1))
    await until(STARTED.is_set)
    closing = asyncio.ensure_future(workers[0].close())
    report = (await run).report
    await closing
    assert sorted(report.workers) == ["1", "2"]
    assert report.left_out["0"] in ("is closing", "left the cluster")
    await idle(s)


@cluster(nthreads=[("127.0.0.1", 1)])
async def test_a_run_cancelled_while_it_starts_leaves_nothing(c, s, a):
    GATE.set()
    balancer = await fpmdask.Balancer(c)
    for turns in range(12):
        run = asyncio.ensure_future(balancer.partition(waiting, 10, max_rounds=1))
        for _ in range(turns):
            await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    await until(lambda: not s.plugins["fpmdask"].runs)
    await idle(s)
    assert not s.plugins["fpmdask"].leasing.leases.busy([a.address])


@cluster(nthreads=[("127.0.0.1", 1)])
async def test_a_step_for_a_worker_that_has_just_left_leaves_no_task(c, s, a):
    await fpmdask.Balancer(c)
    tickets = s.plugins["fpmdask"].tickets
    (answer,) = tickets.submit("run", [Order("tcp://127.0.0.1:1", TIMED, {}, 1)])
    assert await asyncio.wait_for(answer, 10) == {"left": True}
    await idle(s)


@cluster()
async def test_a_cancelled_run_stops_between_repetitions(c, s, *workers):
    STARTED.clear()
    balancer = await fpmdask.Balancer(c)
    timing = fpmdask.timing.TimingPolicy(min_seconds=3600.0, budget_seconds=3600.0)
    run = asyncio.ensure_future(balancer.partition(repeating, 30, timing=timing))
    await until(STARTED.is_set)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await idle(s)


@cluster()
async def test_a_kernel_that_exits_leaves_its_worker_out_and_alive(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    report = (await balancer.partition(leaving, 30, epsilon=1e9)).report
    assert report.left_out == {"0": "SystemExit: 3"}
    assert len(s.workers) == 3


@cluster()
async def test_models_of_a_class_belong_to_its_parameters(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    assert len((await balancer.partition(Deep, 900)).report.rounds) == 2
    assert len((await balancer.partition(Deep, 900)).report.rounds) == 1
    Deep.depth = 50
    try:
        report = (await balancer.partition(Deep, 900)).report
    finally:
        Deep.depth = 1
    assert len(set(report.rounds[0].units.values())) == 1  # even: nothing is known of this depth
    kernels = {kernel for kernel, _ in s.plugins["fpmdask"].library._models}
    assert {kernel.parameters for kernel in kernels} == {'{"depth":1}', '{"depth":50}'}
    assert {kernel.name for kernel in kernels} == {"deep"}


@cluster()
async def test_a_size_found_too_large_is_not_tried_by_the_next_run(c, s, *workers):
    met = TooLarge.met.queue
    met.clear()
    balancer = await fpmdask.Balancer(c)
    first = (await balancer.partition(TooLarge, 600)).report
    before, least = len(met), min(met)
    second = (await balancer.partition(TooLarge, 600)).report
    assert all(units < least for units in [*met][before:])
    assert dict(zip(second.workers, second, strict=True))["0"] <= 50
    assert sum(first) == sum(second) == 600
    before = len(met)
    await balancer.partition(TooLarge, 60_000, deadline="10m", max_rounds=2)  # they may fit then
    assert max([*met][before:]) >= least


@cluster()
async def test_limits_may_name_a_worker_that_is_left_out(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    report = (await balancer.partition(leaving, 30, epsilon=1e9, limits={"0": np.int64(5)})).report
    assert sorted(report.workers) == ["1", "2"]
    with pytest.raises(PartitionError, match="limits name nobody"):
        await balancer.partition(leaving, 30, limits={"nobody": 5})


@cluster(nthreads=[("127.0.0.1", 1)])
async def test_parameters_that_are_not_json_are_refused_at_the_client(c, s, a):
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(KernelError, match="not JSON values"):
        await balancer.partition(("emulated", {"models": {}, "seed": np.int64(1)}), 30)


@cluster(nthreads=[("127.0.0.1", 1)])
async def test_a_balancer_that_was_not_awaited_installs_itself(c, s, a):
    report = (await fpmdask.Balancer(c).partition(named([a], [1.0]), 30)).report
    assert list(report) == [30]


@cluster(nthreads=[("127.0.0.1", 1)])
async def test_arguments_of_another_type_are_refused(c, s, a):
    balancer = await fpmdask.Balancer(c)
    kernel = named([a], [1.0])
    for bad in (
        {"timing": 5},
        {"deadline": "x"},
        {"deadline": float("nan")},
        {"limits": {"0": "5"}},
    ):
        with pytest.raises(PartitionError, match=next(iter(bad)).rstrip("s")):
            await balancer.partition(kernel, 30, **bad)
    with pytest.raises(fpmdask.errors.CoordinatorError, match="workers = 7"):
        fpmdask.Balancer(c, workers=7)
    assert not s.tasks


@cluster(nthreads=[])
async def test_a_first_worker_is_waited_for(c, s):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    running = asyncio.ensure_future(balancer.sort(np.arange(9)[::-1]))
    await until(lambda: "waiting for workers" in [event["event"] for event in events])
    async with Worker(s.address, nthreads=1):
        assert (await c.compute(await running)).tolist() == list(range(9))
    with dask.config.set({"fpmdask.wait-for-workers": "0.1s"}):
        for call in (
            balancer.sort(np.arange(9)),
            balancer.matmul(np.ones((4, 4)), np.ones((4, 4))),
        ):
            with pytest.raises(NoWorkersError, match="no worker"):
                await call
    await until(lambda: not s.tasks)


@pytest.mark.slow
def test_an_adaptive_cluster_at_zero_starts_workers():
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0") as local,
        Client(local, set_as_default=False) as client,
    ):
        local.adapt(minimum=0, maximum=2, interval="100ms")
        values = np.random.default_rng(0).random(10_000)
        found = client.compute(fpmdask.Balancer(client).sort(values), sync=True)
        np.testing.assert_array_equal(found, np.sort(values))


def occupying(gate):
    """A task of somebody else, which holds its worker's only thread until the gate opens."""
    assert GATES[gate].wait(60)


GATES = {name: threading.Event() for name in ("product", "joins", "all")}


@cluster(nthreads=[("127.0.0.1", 1)] * 3)
async def test_a_worker_that_is_busy_with_others_is_told_of_and_left_out(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    a, b = workers[0], workers[1]
    task = c.submit(occupying, "product", workers=[a.address], key="others-1")
    await until(lambda: len(s.workers[a.address].processing) == 1)
    x = np.random.default_rng(0).random((60, 60))
    found = await balancer.matmul(x, x)
    assert not GATES["product"].is_set()
    np.testing.assert_allclose(await c.compute(found, workers=[b.address]), x @ x)
    (told,) = [event for event in events if event["event"] == "waiting"]
    assert list(told["workers"]) == [str(a.name)]
    assert told["tasks"] == {str(a.name): "others"}
    assert told["seconds"] < 1.5
    assert balancer.report.left_out[str(a.name)].startswith("busy with others, for ")
    assert str(b.name) in balancer.report.workers
    keys = await c.compute(await balancer.sort(x.ravel()), workers=[b.address])
    np.testing.assert_array_equal(keys, np.sort(x.ravel()))
    GATES["product"].set()
    await task
    await balancer.matmul(x, x, layout="rows")
    assert sorted(balancer.report.workers) == ["0", "1", "2"]


@cluster(nthreads=[("127.0.0.1", 1)] * 3, config={**CONFIG, "fpmdask.busy-patience": 0.1})
async def test_a_worker_that_was_busy_joins_in_the_middle(c, s, *workers):
    GOING.clear()
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    task = c.submit(occupying, "joins", workers=[workers[0].address])
    await until(lambda: len(s.workers[workers[0].address].processing) == 1)
    run = asyncio.ensure_future(balancer.partition(going, 4000, epsilon=1e-9, max_rounds=8))
    await until(lambda: any(event["event"] == "left out" for event in events))
    GATES["joins"].set()
    await task
    await until(lambda: any(event["event"] == "joined" for event in events))
    GOING.set()
    assert "0" in await run
    assert not balancer.report.left_out


@cluster(nthreads=[("127.0.0.1", 1)] * 2, config={**CONFIG, "fpmdask.busy-patience": 0.1})
async def test_a_run_waits_where_all_workers_are_busy(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    tasks = [c.submit(occupying, "all", workers=[w.address], pure=False) for w in workers]
    await until(lambda: all(state.processing for state in s.workers.values()))
    run = asyncio.ensure_future(balancer.sort(np.arange(1000)[::-1]))
    await until(lambda: any(event["event"] == "waiting" for event in events))
    assert not run.done()
    GATES["all"].set()
    assert (await c.compute(await run)).tolist() == list(range(1000))
    assert not balancer.report.left_out
    await c.gather(tasks)


@cluster()
async def test_unknown_applications_and_ones_without_a_check_are_clear_errors(c, s, *workers):
    await fpmdask.Balancer(c)
    answer = await c.scheduler.fpmdask_check(app="nothing", client=c.id, spec={})
    assert (
        "found no application 'nothing'; known are blocks, frames, load, matmul"
        in answer["message"]
    )
    with pytest.raises(CoordinatorError, match="found no application 'nothing'"):
        await c.scheduler.fpmdask_start(app="nothing", client=c.id, spec={})
    apps = s.plugins["fpmdask"].apps
    for app in apps:
        assert callable(code(find(app, apps).check, app)), app


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_worker_that_closes_while_its_side_starts_leaves_no_socket(
    c, s, worker, monkeypatch
):
    listening, starts = [], asyncio.Event()
    listen = WorkerSide._listen

    def listens(self, worker):
        listening.append(listen(self, worker))
        return listening[-1]

    async def set_resources(**resources):
        starts.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(WorkerSide, "_listen", listens)
    monkeypatch.setattr(worker, "set_resources", set_resources)
    await fpmdask.Balancer(c)
    await asyncio.wait_for(starts.wait(), 20)
    await worker.close()
    assert all(channels._listening.fileno() == -1 for channels in listening)
