"""With many workers the planning of all applications runs beside the scheduler's event loop."""

import threading
from contextlib import contextmanager

import dask.array as da
import numpy as np
import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.sort.coordinator import sorting
from fpmdask.runtime.coordinator import speeds as shares
from fpmdask.runtime.coordinator.measuring import Measuring
from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin

MANY = 36
CONFIG = {
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.worker.profile.enabled": False,
}
pytestmark = pytest.mark.slow
many = gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * MANY, config=CONFIG, timeout=100)


@contextmanager
def threads_of(monkeypatch, *functions):
    """Yield function name -> the threads in which it is called."""
    found = {}
    with monkeypatch.context() as patch:
        for owner, name in functions:
            original, seen = getattr(owner, name), found.setdefault(name, set())

            def spied(*args, original=original, seen=seen, **options):
                seen.add(threading.get_ident())
                return original(*args, **options)

            patch.setattr(owner, name, spied)
        yield found


def beside_the_event_loop(found):
    """Tell whether every function was called, and never in this thread."""
    return all(seen and threading.get_ident() not in seen for seen in found.values())


@gen_cluster(client=True)
async def test_what_applications_import_is_imported_in_a_thread(c, s, a, b, monkeypatch):
    with threads_of(monkeypatch, (CoordinatorPlugin, "_import")) as found:
        await fpmdask.Balancer(c)
    assert beside_the_event_loop(found)


@many
async def test_a_measurement_is_planned_in_a_thread(c, s, *workers, monkeypatch):
    balancer = await fpmdask.Balancer(c)
    model = {"format": "fpmdask.model", "version": 1, "kind": "constant", "units_per_second": 1e6}
    models = {str(worker.name): model for worker in workers}
    planning = (Measuring, "start"), (Measuring, "_begin_round")
    with threads_of(monkeypatch, *planning) as found:
        shares = await balancer.partition(("emulated", {"models": models}), 100_000)
    assert sum(shares.units) == 100_000
    assert beside_the_event_loop(found)


@many
async def test_a_sort_is_planned_in_a_thread(c, s, *workers, monkeypatch):
    balancer = await fpmdask.Balancer(c)
    values = np.random.default_rng(0).random(36_000)
    x = c.persist(da.from_array(values, chunks=1000))
    await wait(x)
    planning = (sorting, "loads"), (sorting, "dealt"), (shares, "geometric")
    with threads_of(monkeypatch, *planning) as found:
        result = await balancer.sort(x)
    np.testing.assert_array_equal(await c.compute(result), np.sort(values))
    assert beside_the_event_loop(found)
