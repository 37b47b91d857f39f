"""Free memory that a worker's malloc keeps is given back before plans are made."""

import os
import platform
import subprocess
import sys
import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import fpmdask
from fpmdask.runtime.worker import heap

LIMIT = 500_000_000
glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told to give memory back"
)


def riddle(dask_worker: Any) -> int:
    """Leave 225 MB free in malloc's heaps, between arrays that are kept; return the memory used."""
    first = np.ones(30 << 17)
    del first  # so that arrays of up to 30 MB come from the heap
    arrays = [np.ones(1 << 17) for _ in range(250)]
    dask_worker.kept = arrays[::10]
    del arrays
    return int(dask_worker.monitor.get_process_memory())


@glibc
def test_what_malloc_keeps_does_not_count_as_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # a nanny that an earlier test started in this process has left it in the environment
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    settings = {
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
        "distributed.worker.memory.recent-to-old-time": "200ms",
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit=LIMIT, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        x = da.random.default_rng(1).random((1200, 1200), chunks=600).persist()
        [used] = client.run(riddle).values()
        assert used > 0.6 * LIMIT
        [state] = cluster.scheduler.workers.values()
        give_up = time.monotonic() + 30
        while state.memory.optimistic < 0.6 * LIMIT:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        # all that a plan may use is taken, it seems; nothing is refused for that
        c = fpmdask.Balancer(client).matmul(x, x)
        a = x.compute()
        np.testing.assert_allclose(c.compute(), a @ a)
        assert state.memory.optimistic < 0.6 * LIMIT


@glibc
def test_the_heap_is_gone_through_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def found(pad: int) -> int:
        calls.append(pad)
        return 1

    monkeypatch.setattr(heap, "_last", [-heap.OFTEN])
    monkeypatch.setattr(heap, "_glibc", lambda *_: found)
    assert heap.trim()
    assert not heap.trim()
    heap._last[0] -= heap.OFTEN
    assert heap.trim()
    assert calls == [0, 0]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> Any:
        raise OSError

    monkeypatch.setattr("ctypes.CDLL", nothing)
    heap._glibc.cache_clear()
    try:
        assert not heap.trim()
        heap.keep()
        heap.release()
        with heap.given_back():
            pass
    finally:
        heap._glibc.cache_clear()


FAULTS = """
import resource, threading
import numpy as np
from fpmdask.runtime.worker import heap

def faults():
    for _ in range(3):  # what is kept has been touched
        np.ones(1 << 17) + 1.0
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(50):
        np.ones(1 << 17) + 1.0
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

def count():
    giving = heap.given_back()
    gives = giving.__enter__, lambda: giving.__exit__(None, None, None)
    keeps = heap.keep, heap.keep, *gives, heap.release, heap.release, heap.release
    for change in (None, *keeps):
        if change is not None:
            change()
        faults()

thread = threading.Thread(target=count)
thread.start()
thread.join()
"""


@glibc
def test_arrays_come_from_freed_memory_while_a_run_wants_it() -> None:
    """Two arrays of 256 pages each, 50 times; a step is no main thread."""
    environ = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=environ, capture_output=True)
    assert not done.returncode, done.stderr
    found = map(int, done.stdout.split())
    plain, once, twice, given_back, kept, still, restored, no_less = found
    assert min(plain, given_back, restored, no_less) > 50 * 256
    assert max(once, twice, kept, still) < 256


def kept(dask_worker: Any) -> bool:
    """Return whether a run has malloc keep memory."""
    return bool(heap._keeping)


@glibc
def test_workers_reuse_memory_while_they_call_functions_of_the_users() -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        balancer = fpmdask.Balancer(client)
        x = da.ones((100, 10), chunks=(50, 10)).persist()

        def keeping(block: Any) -> Any:
            return block + float(heap._keeping)

        found = balancer.map_blocks(keeping, x, dtype=float)
        assert (found == 2.0).all().compute()
        give_up = time.monotonic() + 30
        while any(client.run(kept).values()):  # its end is told with the next message
            assert time.monotonic() < give_up
            time.sleep(0.01)
