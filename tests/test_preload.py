"""`fpmdask.preload` on a worker: its CPUs, its resource, and options that cannot be kept."""

import contextlib
import os
import subprocess
import sys
import threading

import click
import dask
import pytest
from distributed import Worker
from distributed.cli.dask_worker import main as dask_worker
from distributed.utils_test import gen_cluster

from fpmdask import preload
from fpmdask.preload import parse_cpus, pin

ALLOWED = sorted(os.sched_getaffinity(0))
FOREIGN = max(ALLOWED) + 1


@pytest.fixture
def idle_thread():
    """Return the id of a thread that waits until the test is over."""
    known, over = threading.Event(), threading.Event()
    ids = []

    def wait():
        ids.append(threading.get_native_id())
        known.set()
        over.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    known.wait()
    yield ids[0]
    over.set()
    thread.join()


@pytest.fixture
def keeping_affinity():
    """Give every thread its CPUs back."""
    yield
    pin(ALLOWED)


@pytest.mark.skipif(not preload.THREADS.is_dir(), reason="other threads are found in /proc")
@pytest.mark.skipif(len(ALLOWED) < 2, reason="with one CPU everything is pinned")
def test_all_threads_of_the_process_are_pinned(idle_thread, keeping_affinity):
    pin({ALLOWED[0]})
    for thread in preload.THREADS.iterdir():
        with contextlib.suppress(ProcessLookupError):
            assert os.sched_getaffinity(int(thread.name)) == {ALLOWED[0]}
    assert os.sched_getaffinity(idle_thread) == {ALLOWED[0]}


def test_without_proc_the_calling_thread_is_pinned(tmp_path, keeping_affinity):
    pin({ALLOWED[-1]}, tmp_path / "none")
    assert os.sched_getaffinity(0) == {ALLOWED[-1]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3-1", "ends before it begins; give 1-3, of 0, 1, 2, 3"),
        ("77", "may use the CPUs 0, 1, 2, 3"),
        ("2-900000000", "may use the CPUs 0, 1, 2, 3"),
        ("0-3,7", "may use the CPUs 0, 1, 2, 3"),
        ("", "give CPUs such as"),
        ("1-", "give CPUs such as"),
        ("-1", "give CPUs such as"),
        ("²", "give CPUs such as"),
        ("9" * 5000, "give CPUs such as"),
    ],
)
def test_cpus_that_cannot_be_are_refused_with_those_that_can(text, said):
    with pytest.raises(click.BadParameter) as refused:
        parse_cpus(text, allowed=range(4))
    assert said in refused.value.format_message()


@pytest.mark.parametrize("affinity", [str(FOREIGN), "1-0"])
def test_dask_worker_ends_at_bad_options(affinity):
    arguments = ["tcp://127.0.0.1:1", "--preload", "fpmdask.preload", "--affinity", affinity]
    with pytest.raises(click.BadParameter) as refused:
        dask_worker.make_context("worker", arguments)
    assert f"of {ALLOWED[0]}" in str(refused.value) or "may use the CPUs" in str(refused.value)


async def worker_with(scheduler, *options):
    with dask.config.set({"distributed.worker.preload-argv": list(options)}):
        return await Worker(scheduler.address, preload=["fpmdask.preload"], nthreads=1)


@gen_cluster(nthreads=[])
async def test_a_worker_offers_its_slots(scheduler):
    worker = await worker_with(scheduler, "--slots", "3")
    assert scheduler.workers[worker.address].resources == {"fpm": 3}
    await worker.close()


@pytest.mark.parametrize(
    "options",
    [("--affinity", str(FOREIGN)), ("--affinity", "1-0"), ("--slots", "0"), ("--slot", "few")],
    ids=" ".join,
)
def test_a_worker_whose_configured_options_are_wrong_does_not_join(options):
    @gen_cluster(nthreads=[])
    async def start(scheduler):
        with pytest.raises(RuntimeError) as failed:
            await worker_with(scheduler, *options)
        assert "the options of fpmdask.preload cannot be kept: " in str(failed.value.__cause__)
        assert not scheduler.workers

    start()


@gen_cluster(nthreads=[], config={"fpmdask.slots": "many"})
async def test_a_worker_with_wrong_configuration_does_not_join(scheduler):
    with pytest.raises(RuntimeError) as failed:
        await worker_with(scheduler)
    assert "many" in str(failed.value.__cause__)
    assert not scheduler.workers


@pytest.mark.slow
def test_a_nannys_worker_with_bad_options_ends_the_command():
    """Nothing listens at the address: the command ends for its options, before it connects."""
    options = ("--preload", "fpmdask.preload", "--affinity", str(FOREIGN))
    done = subprocess.run(
        [sys.executable, "-m", "dask", "worker", "tcp://127.0.0.1:1", *options],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "may use the CPUs" in done.stderr
    assert "Traceback" not in done.stderr
