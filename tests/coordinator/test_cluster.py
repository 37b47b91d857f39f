"""The coordinator on in-process clusters: nothing leaks, losses are survived, clients share."""

import asyncio
import json
import threading
import time
import warnings

import dask
import numpy as np
import pytest
from distributed import Client, Worker, get_worker
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.errors import (
    CoordinatorError,
    KernelError,
    PartitionError,
    RecordsError,
    VersionMismatchError,
)
from fpmdask.runtime.coordinator.replay import verify
from fpmdask.runtime.report import Report
from fpmdask.timing import TimingPolicy
from fpmdask.tuning import DEFAULT, RuntimeTuning, Tuning
from tests.eventually import side_of, until

# kernels here wait or do nothing
pytestmark = pytest.mark.filterwarnings("ignore:the kernel takes less:UserWarning")
WORKERS = [("127.0.0.1", 1), ("127.0.0.1", 1), ("127.0.0.1", 2)]
CONFIG = {"fpmdask.timing.min-seconds": 0.0, "fpmdask.timing.min-repetitions": 1}


def cluster(**options):
    settings = {"client": True, "nthreads": WORKERS, "config": CONFIG, "timeout": 60}
    return gen_cluster(**{**settings, **options})


def emulated(speeds):
    """Return the kernel that runs at ``speeds`` (worker → units per second)."""
    return (
        "emulated",
        {
            "models": {
                worker.name if isinstance(worker, Worker) else worker: {
                    "format": "fpmdask.model",
                    "version": 1,
                    "kind": "constant",
                    "units_per_second": speed,
                }
                for worker, speed in speeds.items()
            }
        },
    )


def named(workers, speeds):
    return emulated({str(w.name): s for w, s in zip(workers, speeds, strict=True)})


async def idle(scheduler):
    """Wait until no task and no run is left on the scheduler."""
    plugin = scheduler.plugins["fpmdask"]
    await until(lambda: not scheduler.tasks and not plugin.runs and not plugin.tickets.occupied())


@cluster()
async def test_shares_follow_the_speeds_and_nothing_is_left(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    report = (await balancer.partition(named(workers, [100.0, 200.0, 300.0]), 600)).report
    assert dict(zip(report.workers, report, strict=True)) == {
        str(w.name): n for w, n in zip(workers, (100, 200, 300), strict=True)
    }
    assert report.reason == "balanced"
    assert len(report.rounds) == 2
    await idle(s)
    assert all(worker.state.total_resources["fpm"] == 1 for worker in workers)
    await until(lambda: not any(worker.data for worker in workers))


@cluster()
async def test_shares_are_a_mapping_of_names_to_units(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    shares = await balancer.partition(named(workers, [100.0, 200.0, 300.0]), 600)
    wanted = {str(w.name): n for w, n in zip(workers, (100, 200, 300), strict=True)}
    assert dict(shares) == wanted == shares
    assert list(shares) == list(shares.workers)
    assert len(shares) == 3
    assert shares[str(workers[0].name)] == 100
    assert np.asarray(shares).tolist() == list(shares.values()) == shares.units.tolist()
    assert np.asarray(shares).dtype == shares.units.dtype == np.int64
    assert shares.report is balancer.report
    assert "<td>300 (50.0%)</td>" in shares._repr_html_()
    assert "300 (50.0%)" in shares.explain()
    with pytest.raises(KeyError, match="nobody"):
        shares["nobody"]
    with pytest.raises(ValueError, match="read-only"):
        shares.units[0] = 5
    # as the distribution of a product: rows per worker
    x = np.ones((600, 4))
    result = await balancer.matmul(x, x.T, distribution=shares)
    assert result.shape == (600, 600)
    assert balancer.report.reason == "given"


@cluster()
async def test_what_was_not_measured_is_none_and_a_failed_call_leaves_no_report(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    await balancer.sort(np.random.default_rng(0).random(1000))
    report = balancer.report
    assert report.seconds == (None,) * len(report.workers)
    assert {row[2] for row in report.table()} == {None}
    assert repr(report).endswith("; few keys>")
    assert "None" not in report._repr_html_()
    assert Report.from_json(json.loads(json.dumps(report.to_json()))).seconds == report.seconds
    with pytest.raises(PartitionError, match="do not fit"):
        await balancer.partition(named(workers, [1.0] * 3), 30, limits={"0": 1, "1": 1, "2": 1})
    assert balancer.report is None


@cluster()
async def test_the_end_of_a_look_before_a_product_does_not_read_like_a_failure(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = np.ones((90, 90))
    await balancer.matmul(x, x, layout="rows")
    assert balancer.report.reason == "measured"
    rounds = len(balancer.report.rounds)  # several where the machine is busy with others
    assert f"; measured in {rounds} round" in repr(balancer.report)
    assert not verify(balancer.report).contradictions


async def shared_evenly(balancer, **options):
    """Partition by a kernel that does nothing, once more where a busy machine held it up."""
    for _ in range(5):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            shares = await balancer.partition(lambda units: None, 1000, **options)
        if said:
            assert "too little to time: the units are shared out evenly" in str(said[0].message)
            return shares
    raise AssertionError("no warning that the kernel is too short to time")


@cluster()
async def test_a_kernel_that_is_too_short_to_time_gets_even_shares_and_a_warning(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    shares = await shared_evenly(balancer)
    assert sorted(shares.values()) == [333, 333, 334]
    assert shares.report.reason == "too short to time"
    assert shares.report.seconds == (None, None, None)
    shares = await shared_evenly(balancer, limits={"1": 10})
    assert sorted(shares.values()) == [10, 495, 495]


@cluster()
async def test_installing_twice_finds_the_same_coordinator_and_its_models(c, s, *workers):
    first = await fpmdask.Balancer(c)
    plugin = s.plugins["fpmdask"]
    kernel = named(workers, [100.0, 200.0, 300.0])
    await first.partition(kernel, 600)
    async with Client(s.address, asynchronous=True) as other:
        second = await fpmdask.Balancer(other)
        assert s.plugins["fpmdask"] is plugin
        report = (await second.partition(kernel, 1200)).report
        assert len(report.rounds) == 1  # one confirming round with the first client's models
        second.close()
    assert (await first.partition(kernel, 600)).report.reason == "balanced"


# In-process workers unpickle functions of this module by reference, so they share these.
RUNNING: dict[str, int] = {}
CLASHES: list[str] = []
GATE = threading.Event()


def exclusive(units):
    """A kernel that notes when another one runs on the same worker."""
    name = str(get_worker().name)
    RUNNING[name] = RUNNING.get(name, 0) + 1
    if RUNNING[name] > 1:
        CLASHES.append(name)
    time.sleep(0.005)
    RUNNING[name] -= 1


def hanging(units):
    """A kernel that does not return on worker 0 before the gate opens."""
    if str(get_worker().name) == "0":
        GATE.wait(30)


def failing_on_first(units):
    """A kernel that raises on worker 0."""
    if str(get_worker().name) == "0":
        raise ZeroDivisionError("no good")
    time.sleep(1e-4 * units)


def failing(units):
    """A kernel that raises everywhere."""
    raise ZeroDivisionError("no good")


def slow(units):
    """A kernel long enough to interrupt a round."""
    time.sleep(0.05)


@cluster()
async def test_two_clients_never_time_kernels_on_one_worker_at_once(c, s, *workers):
    CLASHES.clear()
    async with Client(s.address, asynchronous=True) as other:
        one, two = await fpmdask.Balancer(c), await fpmdask.Balancer(other)
        options = {"max_rounds": 3, "epsilon": 1e-9}
        await asyncio.gather(*(b.partition(exclusive, 30, **options) for b in (one, two, one)))
    assert not CLASHES


@cluster()
async def test_a_worker_that_leaves_in_a_round_is_dropped_and_the_round_goes_on(c, s, *workers):
    GATE.clear()
    balancer = await fpmdask.Balancer(c)
    run = asyncio.ensure_future(balancer.partition(hanging, 30, epsilon=0.5))
    await until(lambda: workers[0].state.executing_count)
    await workers[0].close(executor_wait=False)
    GATE.set()
    report = (await run).report
    assert sorted(report.workers) == ["1", "2"]
    # a worker that closes may answer so before the scheduler has noticed that it is gone
    assert list(report.left_out) == ["0"]
    assert report.left_out["0"] in ("is closing", "left the cluster")
    assert sum(report) == 30
    await idle(s)


@cluster()
async def test_a_worker_that_joins_gets_a_share_from_the_next_round(c, s, *workers):
    GATE.clear()
    events = []

    def hear(event):
        events.append(event)
        if event["event"] == "joined":
            GATE.set()

    balancer = await fpmdask.Balancer(c, progress=hear)
    run = asyncio.ensure_future(balancer.partition(hanging, 4000, epsilon=1e-9, max_rounds=12))
    await until(lambda: workers[0].state.executing_count)
    async with Worker(s.address, nthreads=1, name="late"):
        report = (await run).report
        assert "late" in report.workers
        assert {e["event"] for e in events} >= {"joined", "round"}
        assert "late" not in report.rounds[0].units
    assert sum(report) == 4000


@cluster()
async def test_a_call_that_hangs_loses_its_worker_until_it_returns(c, s, *workers):
    GATE.clear()
    balancer = await fpmdask.Balancer(c)
    with dask.config.set({"fpmdask.hang": "1s"}):
        report = (await balancer.partition(hanging, 30, deadline=0.1, epsilon=1.0)).report
        assert "no answer within" in report.left_out["0"]
        assert sorted(report.workers) == ["1", "2"]
        # the worker gets no work of ours while the call goes on
        report = (await balancer.partition(named(workers, [1.0, 1.0, 1.0]), 30)).report
        assert "still occupied by a call" in report.left_out["0"]
        GATE.set()
        await idle(s)
        report = (await balancer.partition(named(workers, [1.0, 1.0, 1.0]), 30)).report
    assert sorted(report.workers) == ["0", "1", "2"]


@cluster()
async def test_a_kernel_that_raises_on_one_worker_leaves_that_worker_out(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    report = (await balancer.partition(failing_on_first, 300, epsilon=1.0)).report
    assert report.left_out == {"0": "ZeroDivisionError: no good"}
    assert sorted(report.workers) == ["1", "2"]
    await idle(s)


@cluster()
async def test_a_kernel_that_raises_everywhere_raises_here_with_its_traceback(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    with pytest.raises(ZeroDivisionError, match="no good") as caught:
        await balancer.partition(failing, 300)
    assert "in failing" in str(caught.value.__cause__)
    assert "failed on every worker" in "".join(caught.value.__notes__)
    await idle(s)


@cluster()
async def test_a_client_that_disconnects_leaves_nothing_behind(c, s, *workers):
    async with Client(s.address, asynchronous=True) as other:
        balancer = await fpmdask.Balancer(other)
        run = asyncio.ensure_future(balancer.partition(slow, 4000, epsilon=1e-9, max_rounds=1000))
        while not s.plugins["fpmdask"].runs:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await idle(s)
    await until(lambda: not any(w.plugins["fpmdask"].side.spaces for w in workers))
    report = (
        await (await fpmdask.Balancer(c)).partition(named(workers, [1.0, 1.0, 2.0]), 40)
    ).report
    assert sorted(report) == [10, 10, 20]


@cluster()
async def test_cancelling_the_wait_cancels_the_run(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    long = TimingPolicy(min_seconds=1.0, budget_seconds=2.0)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(balancer.partition(slow, 4000, timing=long), 0.3)
    await idle(s)


@cluster()
async def test_only_the_named_workers_take_part(c, s, *workers):
    balancer = await fpmdask.Balancer(c, workers=["0", workers[2].address])
    report = (await balancer.partition(named(workers, [1.0, 1.0, 1.0]), 30)).report
    assert sorted(report.workers) == ["0", "2"]
    with pytest.raises(CoordinatorError, match="no worker nobody in the cluster"):
        await (await fpmdask.Balancer(c, workers=["nobody"])).partition(slow, 3)


@cluster()
async def test_limits_hold_and_limits_too_small_are_refused_with_the_numbers(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    kernel = named(workers, [1.0, 1.0, 1.0])
    report = (await balancer.partition(kernel, 30, limits={"0": 2})).report
    assert dict(zip(report.workers, report, strict=True))["0"] == 2
    with pytest.raises(PartitionError, match="30"):
        await balancer.partition(kernel, 30, limits={"0": 2, "1": 2, "2": 2})
    await idle(s)


@cluster()
async def test_sizes_past_the_deadline_become_limits(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    kernel = named(workers, [1.0, 100.0, 100.0])
    report = (await balancer.partition(kernel, 300, deadline=50.0)).report
    assert report.rounds[0].seconds["0"] == float("inf")
    assert sum(report) == 300


@cluster()
async def test_scouting_is_a_short_first_round(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    report = (await balancer.partition(named(workers, [100.0, 200.0, 300.0]), 600, scout=10)).report
    assert [sum(record.units.values()) for record in report.rounds] == [30, 600]
    assert sorted(report) == sorted(report.proposal) == [100, 200, 300]
    assert report.reason == "balanced"
    await idle(s)


@cluster()
async def test_bad_input_is_refused_before_anything_starts(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for units in (0, -1, 1.5, float("nan"), "3", True):
        with pytest.raises(PartitionError, match="units"):
            balancer.partition(slow, units)
    for epsilon in (0, -0.1, float("nan"), "x"):
        with pytest.raises(PartitionError, match="epsilon"):
            balancer.partition(slow, 10, epsilon=epsilon)
    for rounds in (0, 1.5, True):
        with pytest.raises(PartitionError, match="max_rounds"):
            balancer.partition(slow, 10, max_rounds=rounds)
    for scout in (-1, 1.5, True):
        with pytest.raises(PartitionError, match="scout"):
            balancer.partition(slow, 10, scout=scout)
    for gain in (-0.1, float("nan"), "x"):
        with pytest.raises(PartitionError, match="least_gain"):
            balancer.partition(slow, 10, least_gain=gain)
    with pytest.raises(PartitionError, match="limit of 0"):
        balancer.partition(slow, 10, limits={"0": float("nan")})
    with pytest.raises(KernelError, match="one argument"):
        balancer.partition(lambda: None, 10)
    with pytest.raises(KernelError, match="is not a kernel"):
        balancer.partition(3, 10)
    with pytest.raises(KernelError, match="known"):
        await balancer.partition("no.such.kernel", 10)
    assert not s.plugins["fpmdask"].runs
    balancer.close()
    with pytest.raises(CoordinatorError, match="closed"):
        balancer.partition(slow, 10)
    with pytest.raises(CoordinatorError, match=r"connected distributed\.Client"):
        fpmdask.Balancer("tcp://127.0.0.1:8786")


@cluster()
async def test_another_version_is_refused_with_both_versions(c, s, *workers):
    await fpmdask.Balancer(c)
    with pytest.raises(VersionMismatchError, match=r"0\.0\.1.*install one version"):
        await c.scheduler.fpmdask_hello(version="0.0.1")


@cluster(nthreads=[])
async def test_a_cluster_without_workers_says_so(c, s):
    balancer = await fpmdask.Balancer(c)
    short = dask.config.set({"fpmdask.wait-for-workers": "0.2s"})
    with short, pytest.raises(CoordinatorError, match="no worker is connected"):
        await balancer.partition(slow, 10)


@cluster()
async def test_scratch_memory_outlives_runs_that_follow_each_other(c, s, a, b, d):
    await fpmdask.Balancer(c)
    side = await side_of(a)
    scratch, kept = side.scratch, DEFAULT.runtime.scratch_seconds
    for _ in range(4):
        await side.prepare("run")
        side.forget("run")
        dropping = side._forgetting
        left = dropping.when() - asyncio.get_running_loop().time()
        assert 0.9 * kept < left <= kept
        await side.prepare("next")
        assert dropping.cancelled()
        side.forget("next")
        assert side.scratch is scratch
    await side.prepare("run")
    side.tuning = Tuning(RuntimeTuning(scratch_seconds=0.0))
    side.forget("run")
    await until(lambda: side.scratch is not scratch)


@pytest.mark.slow
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_call_that_is_refused_leaves_no_report_of_the_one_before(c, s, worker):
    balancer = await fpmdask.Balancer(c)
    x = np.ones((4, 4))
    refused = {
        "sort": (x,),
        "argsort": (x,),
        "matmul": (None, x),
        "partition": (3, 10),
        "sort_values": (3, "a"),
        "sort_records": ([], "nowhere"),
        "run": ("no:such", {"a": {1}}),
    }
    for method, arguments in refused.items():
        await balancer.matmul(x, x, max_rounds=1)
        assert balancer.report is not None
        with pytest.raises((PartitionError, KernelError, RecordsError, CoordinatorError)):
            await getattr(balancer, method)(*arguments)
        assert balancer.report is None, method
