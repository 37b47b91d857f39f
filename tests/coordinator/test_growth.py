"""What is kept of runs, workers and clients has an end: bounds, and 200 runs on 200 new workers."""

import functools
import gc
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sized

import numpy as np
import pytest
from distributed import Client, Worker
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.partition.app import APP
from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.library import ModelLibrary
from fpmdask.runtime.coordinator.membership import Membership
from fpmdask.runtime.identity import Fingerprint, KernelId, WorkerIdentity
from fpmdask.runtime.recent import Recent
from tests.eventually import nothing_left, side_of, until

# kernels here do nothing
pytestmark = pytest.mark.filterwarnings("ignore:the kernel takes less:UserWarning")
CONFIG = {
    "distributed.scheduler.active-memory-manager.start": False,
    "fpmdask.timing.min-seconds": 0.0,
    "fpmdask.timing.min-repetitions": 1,
}
FINGERPRINT = Fingerprint("cpu", "blas", "core", 1, 1, None, 0)
MODEL = PiecewiseLinearModel.from_points([10], [1.0])


def cluster(**options):
    nthreads = [("127.0.0.1", 1)] * 2
    settings = {"client": True, "nthreads": nthreads, "config": CONFIG, "timeout": 60}
    return gen_cluster(**{**settings, **options})


def kernel(n):
    return KernelId("kernel", f"implementation {n}", "{}")


def identity(n):
    return WorkerIdentity(f"worker {n}", FINGERPRINT, f"start {n}")


# ---- the library


def test_the_model_that_was_not_used_for_longest_is_forgotten():
    library = ModelLibrary(most=3)
    for n in range(3):
        library.store(kernel(n), identity(0), MODEL)
    assert library.find(kernel(0), identity(0)) is not None
    library.store(kernel(3), identity(0), MODEL)
    known = [library.find(kernel(n), identity(0)) is not None for n in range(4)]
    assert known == [True, False, True, True]
    assert len(library) == 3


def test_workers_that_come_and_go_leave_a_bounded_number_of_models():
    library = ModelLibrary(most=5)
    for n in range(50):
        library.store(kernel(0), identity(n), MODEL)
        assert library.find(kernel(0), identity(n)) == (MODEL, True)
    assert len(library) == 5
    assert library.find(kernel(0), identity(0)) == (MODEL, False)  # of a later one that is alike
    again = WorkerIdentity("worker 49", FINGERPRINT, "another start")
    library.store(kernel(0), again, MODEL)
    assert len(library) == 5  # in the place of the one before
    for n in range(50):
        library.store(kernel(n), identity(0), MODEL)
    assert len(library) == len(library._used) == 5


def test_sizes_that_were_too_large_are_forgotten_too():
    library = ModelLibrary(most=4)
    for n in range(9):
        library.found_too_large(kernel(0), identity(n), units=7, deadline=1.0, now=0.0)
    limits = [library.limit(kernel(0), identity(n), deadline=1.0, now=0.0) for n in range(9)]
    assert limits == [np.inf] * 5 + [6] * 4


def test_a_model_keeps_points_over_its_whole_range():
    library, model = ModelLibrary(most_points=16), None
    sizes = np.random.default_rng(0).permutation(np.geomspace(10, 1e6, 300))
    for units in sizes:
        known = library.find(kernel(0), identity(0))
        model = known[0] if known else None
        point = float(units), float(units) / 100
        found = model.with_point(*point) if model else PiecewiseLinearModel.from_points(*zip(point))
        library.store(kernel(0), identity(0), found)
    kept, _ = library.find(kernel(0), identity(0))
    units, _ = kept.points
    assert len(units) == 16
    assert units[0] < 20
    assert units[-1] > 5e5
    assert max(units[1:] / units[:-1]) < 10
    np.testing.assert_allclose(kept.time(sizes), sizes / 100)


def test_what_is_recent_is_bounded_from_all_threads():
    names = Recent(10)

    def add(first):
        for n in range(first, first + 1000):
            names.add(str(n))
            names.discard(str(n - 5))

    threads = [threading.Thread(target=add, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < len(names) <= 10
    names.clear()
    assert len(names) == 0


# ---- the coordinator


@cluster()
async def test_nothing_is_kept_of_a_worker_that_leaves_while_it_answers(c, s, a, b):
    class Leaving(Membership):
        async def _prepare(self, address):
            answer = await super()._prepare(address)
            await a.close()
            return answer

    await fpmdask.Balancer(c)
    plugin = s.plugins["fpmdask"]
    context = RunContext(plugin, "a run", c.id, {}, APP)
    assert isinstance(await Leaving(context)._introduce(a.address), WorkerIdentity)
    assert plugin.known_workers.identities == {}


@cluster()
async def test_nothing_is_kept_of_a_client_that_leaves_with_its_result(c, s, *workers):
    await fpmdask.Balancer(c)
    plugin = s.plugins["fpmdask"]
    specs = []
    original = plugin.clients.start

    async def start_run(app, client, spec):
        specs.append(spec)
        return await original(app, client, spec)

    s.handlers["fpmdask_start"] = start_run
    await (await fpmdask.Balancer(c)).partition(len_of, 10)
    async with Client(s.address, asynchronous=True) as other:
        run = await original("partition", other.id, specs[0])
        await until(lambda: run in plugin.clients._results)
        s.remove_client(other.id)
        assert "result" in await plugin.clients.poll(run, 0, 0)
        assert other.id not in plugin.clients._answered
    assert set(plugin.clients._answered) == {c.id}


def len_of(units):
    """Return nothing; a kernel that takes no time."""


# ---- workers


@cluster()
async def test_nothing_is_kept_of_peers_that_are_not_asked_any_more(c, s, a, b):
    await fpmdask.Balancer(c)
    side, other = await side_of(a), await side_of(b)
    await side.prepare("a run")
    await other.prepare("a run")
    probe = await side.probe("a run", b.address, other.channels.address)
    assert probe.seconds_per_byte is not None
    assert side.peers._channels == {}
    assert "pieces" in await side.peers.ask(
        b.address, 5.0, run="a run", reader=a.address, wanted=[], wait=False
    )
    assert side.peers._asked == {}
    side.peers.unreachable.add(b.address)
    side.forget("a run")
    other.forget("a run")
    assert (len(side.peers.unreachable), len(side.peers._gone)) == (0, 0)


# ---- everything


KINDS = (dict, set, list, deque, weakref.WeakKeyDictionary, weakref.WeakSet, Recent)


def sizes(scheduler, workers):
    """Return the length of each container of our objects but the library, and of each cache."""
    plugin = scheduler.plugins["fpmdask"]
    sides = [worker.plugins["fpmdask"].side for worker in workers]
    known = plugin.known_workers
    owners = [
        plugin,
        known,
        known.liveness,
        known.busy,
        plugin.tickets,
        plugin.leasing,
        plugin.leasing.leases,
        plugin.clients,
    ]
    owners += [of for side in sides for of in (side, side.channels)]
    found = {}
    for n, owner in enumerate(owners):
        for name, value in getattr(owner, "__dict__", {}).items():
            if isinstance(value, KINDS) and isinstance(value, Sized):
                found[f"{n} {type(owner).__name__}.{name}"] = len(value)
    for module in [name for name in sys.modules if name.split(".")[0] == "fpmdask"]:
        for name, value in vars(sys.modules[module]).items():
            if isinstance(value, KINDS):
                found[f"{module}.{name}"] = len(value)
            elif isinstance(value, functools._lru_cache_wrapper):
                found[f"{module}.{name}"] = value.cache_info().currsize
    for name in ("tasks", "task_prefixes", "task_groups", "clients", "workers", "unrunnable"):
        found[f"Scheduler.{name}"] = len(getattr(scheduler, name))
    return found


async def settled(scheduler, workers):
    """Wait until nothing of the last run goes on, then return `sizes`, threads and open files."""
    plugin = scheduler.plugins["fpmdask"]
    await until(lambda: not (plugin.runs or plugin.tickets.occupied() or plugin._side_tasks))
    await nothing_left(scheduler)
    sides = [worker.plugins["fpmdask"].side for worker in workers]
    await until(lambda: not any(side.spaces or side.channels._connections for side in sides))
    gc.collect()
    found = sizes(scheduler, workers)
    return found, threading.active_count(), len(os.listdir("/proc/self/fd"))


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@cluster(timeout=1700, clean_kwargs={"threads": False})
async def test_nothing_grows_with_runs_and_workers(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    library = s.plugins["fpmdask"].library = ModelLibrary(most=12, most_points=8)
    random, seen = np.random.default_rng(0), []
    for n in range(200):
        async with Worker(s.address, nthreads=1, name=f"new-{n}"):
            if n % 3 == 0:
                units = int(random.integers(100, 10**6))
                assert sum(np.asarray(await balancer.partition(len_of, units))) == units
            elif n % 3 == 1:
                x = random.random((int(random.integers(60, 300)), 50))
                found = await c.compute(await balancer.matmul(x, x.T))
                np.testing.assert_allclose(found, x @ x.T)
            else:
                x = random.random(int(random.integers(1000, 50_000)))
                np.testing.assert_array_equal(await c.compute(await balancer.sort(x)), np.sort(x))
        if n % 100 == 99:
            seen.append(await settled(s, workers))
    (half, half_threads, half_files), (whole, threads, files) = seen
    grown = {name: (half[name], size) for name, size in whole.items() if size > half.get(name, 0)}
    assert grown == {}
    assert threads <= half_threads + 2
    assert files <= half_files + 4
    models = [model for group in library._models.values() for _, model in group.values()]
    assert len(models) == len(library) == 12
    assert max(len(model.points[0]) for model in models) <= 8
