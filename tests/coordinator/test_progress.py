"""The progress of every method: fractions that rise to 1, totals, a final event; displays."""

import asyncio
import concurrent.futures
import os
import pty
import re
import subprocess
import sys
import textwrap
import threading
import time

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.stencil import jacobi
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.records import write_records
from tests.tuned import SHORT_ROUNDS, tuned

CONFIG = {**SHORT_ROUNDS, **tuned(sort={"few_keys": 0, "few_rows": 0})}
RANDOM = np.random.default_rng(0)


def cluster(workers=3, **options):
    threads = [("127.0.0.1", 1)] * workers
    settings = {"client": True, "nthreads": threads, "config": CONFIG, "timeout": 60}
    return gen_cluster(**settings, **options)


def work(units):
    np.sort(np.random.default_rng(0).random(100 * units))


def slowly(block):
    time.sleep(1e-4 * len(block))


GATE = threading.Event()


def hanging(units):
    GATE.wait(20)


def frame():
    return pd.DataFrame({"a": RANDOM.random(3000), "b": RANDOM.integers(0, 9, 3000)})


def call(method, balancer, folder):
    """Return the awaitable of a call of a method."""
    a = RANDOM.random((90, 80))
    match method:
        case "partition":
            return balancer.partition(work, 60, max_rounds=3)
        case "matmul":
            return balancer.matmul(a, a.T)
        case "matmul, inner":
            return balancer.matmul(da.from_array(a.T, 20), da.from_array(a, 20), layout="inner")
        case "matmul, out":
            out = zarr.create_array(
                store=str(folder / "c.zarr"), shape=(90, 90), chunks=(30, 90), dtype=a.dtype
            )
            return balancer.matmul(da.from_array(a, 30), da.from_array(a.T, 30), out=out)
        case "sort":
            return balancer.sort(RANDOM.random(30_000))
        case "argsort":
            return balancer.argsort(RANDOM.random(3000))
        case "sort_values":
            return balancer.sort_values(dd.from_pandas(frame(), npartitions=4), "a")
        case "sort_records":
            made = write_records(folder / "given", [2000, 1000])
            return balancer.sort_records(made.paths, folder / "sorted")
        case "map_blocks":
            return balancer.map_blocks(np.square, da.from_array(a, chunks=(10, 80)))
        case "map_partitions":
            return balancer.map_partitions(lambda part: part * 2, frame())
        case "rebalance":
            return balancer.rebalance(da.from_array(a, chunks=(10, 80)), kernel=slowly)
        case "stencil":
            return balancer.stencil(jacobi, a, 20)
    raise AssertionError(method)


METHODS = (
    "partition",
    "matmul",
    "matmul, inner",
    "matmul, out",
    "sort",
    "argsort",
    "sort_values",
    "sort_records",
    "map_blocks",
    "map_partitions",
    "rebalance",
    "stencil",
)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_tells_how_far_it_is(method, tmp_path):
    # Zarr keeps threads of its own
    @cluster(clean_kwargs={"threads": method != "matmul, out"})
    async def check(c, s, *workers):
        events = []
        balancer = await fpmdask.Balancer(c, progress=events.append)
        await call(method, balancer, tmp_path)
        fractions = [event["fraction"] for event in events]
        assert fractions == sorted(fractions)
        assert any(0 < fraction < 1 for fraction in fractions)
        assert (events[-1]["event"], fractions[-1]) == ("end", 1.0)
        assert fractions[-2] < 1
        assert any(event["event"] == "start" and event["phases"] for event in events)
        counted = [event for event in events if "done" in event]
        assert all(event["phase"] and event["unit"] for event in counted)
        totals = [event for event in counted if event.get("total")]
        if method != "partition":  # nobody knows how many rounds there will be
            assert totals
            assert all(event["done"] <= event["total"] for event in totals)
        assert all(event["event"] != "failed" for event in events)

    check()


READ = threading.Event()


def late(x):
    READ.wait(20)
    return x


def lazy_call(method, balancer):
    """Return the awaitable of a call of a method with inputs that are computed once `READ`."""
    READ.set()  # Dask calls `late` to see what it makes
    x = da.from_array(RANDOM.random((90, 30)), chunks=(30, 30)).map_blocks(late, dtype=float)
    lazy = dd.from_pandas(frame(), npartitions=4).map_partitions(late)
    READ.clear()
    match method:
        case "matmul":
            return balancer.matmul(x, x.T)
        case "sort":
            return balancer.sort(x[:, 0])
        case "map_blocks":
            return balancer.map_blocks(np.square, x)
        case "rebalance":
            return balancer.rebalance(x, kernel=slowly)
        case "stencil":
            return balancer.stencil(jacobi, x, 5)
        case "sort_values":
            return balancer.sort_values(lazy, "a")
    return balancer.map_partitions(lambda part: part * 2, lazy)


LAZY = ("matmul", "sort", "sort_values", "map_blocks", "map_partitions", "rebalance", "stencil")


@pytest.mark.slow
@pytest.mark.parametrize("method", LAZY)
def test_every_method_tells_of_inputs_that_it_waits_for(method):
    told = []

    def hear(event):
        told.append(event)
        if event.get("phase") in ("load", "read") and "done" in event:
            READ.set()

    @cluster()
    async def check(c, s, *workers):
        balancer = await fpmdask.Balancer(c, progress=hear)
        await lazy_call(method, balancer)
        loading = [event for event in told if event.get("phase") in ("load", "read")]
        loading = [event for event in loading if "done" in event]
        assert loading[0]["total"] in (3, 4, 6)
        assert loading[0]["unit"] == "chunks"
        fractions = [event["fraction"] for event in told]
        assert fractions == sorted(fractions)
        assert fractions[-2] < fractions[-1] == 1

    check()


def phases_told(events):
    """Check fractions and totals of a call; return the phases that are told of, in order."""
    fractions = [event["fraction"] for event in events]
    assert fractions == sorted(fractions)
    assert (events[-1]["event"], fractions[-1]) == ("end", 1.0)
    assert fractions[-2] < 1
    counted = [event for event in events if "done" in event]
    assert all(event["done"] <= event["total"] and event["unit"] for event in counted)
    return list(dict.fromkeys(event["phase"] for event in counted))


@pytest.mark.slow
@cluster(clean_kwargs={"threads": False})  # Zarr keeps some
async def test_a_stencil_tells_of_snapshots_checkpoints_and_what_it_writes_last(
    c, s, *workers, tmp_path
):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((90, 20))
    given = {"checkpoint": tmp_path / "kept", "checkpoint_every": 7, "distribution": "even"}
    kept = zarr.create_group(tmp_path / "out.zarr")
    out = kept.create_array("u", shape=(4, 90, 20), chunks=(1, 30, 20), dtype=u0.dtype)
    await balancer.stencil(jacobi, u0, 20, out=out, save_every=5, **given)
    found = phases_told(events)
    assert {"iterate", "write"} <= set(found) <= {"iterate", "snapshot", "checkpoint", "write"}
    assert "snapshot" in found or "checkpoint" in found
    written = [event["done"] for event in events if event.get("phase") == "write"]
    assert written == sorted(written)
    assert written[-1] == 3


@pytest.mark.slow
@cluster()
async def test_a_stencil_out_of_core_tells_of_its_instrumented_iteration(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)

    def update(block):
        time.sleep(0.001 * len(block))
        return jacobi(block)

    await balancer.stencil(update, RANDOM.random((60, 50)), 40, memory={"1": 9600})
    assert balancer.report.mheta["phases"]
    found = phases_told(events)
    assert found.index("measure") < found.index("instrument") < found.index("iterate")
    assert {"measure", "instrument", "iterate"} <= set(found)
    whole = [e for e in events if e.get("phase") == "instrument" and e.get("done") == 3]
    assert [event["total"] for event in whole] == [3]
    iterated = [event["done"] for event in events if event["event"] == "iterated"]
    assert iterated == sorted(iterated)
    assert all(event["total"] == 40 for event in events if event["event"] == "iterated")


@cluster()
async def test_a_call_that_fails_ends_with_its_error(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)

    def fails(block):
        raise ZeroDivisionError("of this test")

    with pytest.raises(ZeroDivisionError):
        await balancer.map_blocks(fails, da.ones(30, chunks=10), dtype=float)
    assert events[-1]["event"] == "failed"
    assert events[-1]["error"].startswith("ZeroDivisionError: of this test")
    assert events[-1]["fraction"] < 1
    events.clear()
    with pytest.raises(PartitionError):
        await balancer.partition(work, 3, limits={"nobody": 3})
    assert [event["event"] for event in events][-1] == "failed"


@cluster()
async def test_a_cancelled_call_ends_with_that(c, s, *workers):
    events, begun = [], asyncio.Event()

    def hear(event):
        events.append(event)
        if event["event"] == "start":
            begun.set()

    GATE.clear()
    balancer = await fpmdask.Balancer(c, progress=hear)
    running = asyncio.ensure_future(balancer.partition(hanging, 30))
    await begun.wait()
    running.cancel()
    GATE.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (events[-1]["event"], events[-1]["error"]) == ("failed", "CancelledError")


@pytest.mark.slow
@cluster()
async def test_calls_that_go_on_at_once_have_fractions_of_their_own(c, s, *workers):
    """Of one client, in tasks of their own; they share no meter."""
    told = {"sort": [], "map": []}
    balancers = {name: await fpmdask.Balancer(c, progress=told[name].append) for name in told}
    shared = []
    both = await fpmdask.Balancer(c, progress=shared.append)
    x = RANDOM.random(3000)
    await asyncio.gather(
        balancers["sort"].sort(x),
        balancers["map"].map_blocks(np.square, x),
        both.sort(x),
        both.map_blocks(np.square, x),
    )
    for events in told.values():
        fractions = [event["fraction"] for event in events]
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1
    assert [event["event"] for event in shared].count("end") == 2


def test_a_progress_that_is_nothing_of_that_kind_is_refused():
    with (
        Client(n_workers=1, processes=False, dashboard_address=":0") as client,
        pytest.raises(CoordinatorError, match="give True, False, None or a function"),
    ):
        fpmdask.Balancer(client, progress=3)


SCRIPT = """
import threading, time
import numpy as np
from distributed import Client
import fpmdask

def slow(block):
    time.sleep(0.1)
    return block

if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as c:
        balancer = fpmdask.Balancer(c, progress=PROGRESS)
        x = np.arange(120.0)
        lengths = [5] * 24
        calls = [
            threading.Thread(target=balancer.map_blocks, args=(slow, x), kwargs={"distribution": d})
            for d in (lengths, lengths[:])
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
    print("done")
"""


def run_script(progress, tmp_path, *, terminal):
    """Return what a script writes to standard error, a terminal or none."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT).replace("PROGRESS", progress))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(path)]
    if not terminal:
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.stdout == "done\n", done.stderr
        return done.stderr
    reads, writes = pty.openpty()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        reading = pool.submit(_all_of, reads)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writes, env=environment)
        os.close(writes)
        said = reading.result()
    os.close(reads)
    assert done.stdout.decode() == "done\n", said
    return said


def _all_of(reads):
    """Return what is written to a terminal until its other end is closed."""
    parts = []
    while True:
        try:
            part = os.read(reads, 1 << 16)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


@pytest.mark.slow
def test_a_terminal_shows_the_calls_of_two_threads_one_below_the_other(tmp_path):
    said = run_script("True", tmp_path, terminal=True)
    assert [int(n) for n in re.findall(r"compute, \d+ of 120 rows, (\d+) %", said)]
    assert any(0 < int(n) < 100 for n in re.findall(r"(\d+) %", said))
    assert len(re.findall(r"map_blocks ━{24} finished after", said)) == 2


@pytest.mark.slow
def test_scripts_without_a_terminal_are_quiet_unless_progress_is_wanted(tmp_path):
    assert "map_blocks" not in run_script("None", tmp_path, terminal=False)
    said = run_script("True", tmp_path, terminal=False)
    assert said.count("finished after") == 2
