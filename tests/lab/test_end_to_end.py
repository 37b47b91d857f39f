"""The whole product on a heterogeneous cluster of processes: measure, multiply, lose a worker."""

import os
import shutil
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import psutil
import pytest
from distributed import Client, wait

import fpmdask
from fpmdask.apps.sort.coordinator.run import LEARNED
from fpmdask.lab import doctor
from fpmdask.lab.cluster import registered
from fpmdask.models import PiecewiseLinearModel
from fpmdask.records import write_records
from fpmdask.runtime.identity import KernelId, canonical

NEEDED = ("root", "tools", "network namespaces", "bridge and veth", "control groups: cpu")


def missing():
    found = {check.name: check for check in doctor()}
    return [
        f"{name}: {found[name].found}" for name in found if name in NEEDED and not found[name].ok
    ]


pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(240)]

DEFINITION = """
description = "three workers, the fastest three times the slowest"

[lab]
backend = "root"

[[workers]]
name = "fast"
cpu = 0.6

[[workers]]
name = "middle"
cpu = 0.4

[[workers]]
name = "slow"
cpu = 0.2
"""


@pytest.fixture
def lab(tmp_path):
    if reasons := missing():
        pytest.skip(f"this machine cannot make the lab: {'; '.join(reasons)}")
    path = tmp_path / "three.toml"
    path.write_text(DEFINITION)
    with fpmdask.Lab.from_toml(str(path)) as lab:
        yield lab


def test_shares_follow_the_quotas_and_a_killed_worker_loses_nothing(lab):
    killed = []

    def kill_at_first_share(event):
        if event["event"] == "share" and not killed:
            killed.append(event["worker"])
            victim = next(name for name in ("slow", "middle", "fast") if name != event["worker"])
            killed.append(victim)
            lab.kill_worker(victim)

    with Client(lab.scheduler_address) as client:
        balancer = fpmdask.Balancer(client)
        a = da.random.random((3000, 2400), chunks=(800, 1000)).persist()
        b = da.random.random((2400, 2800), chunks=(600, 1400)).persist()
        wait([a, b])
        expected = a.compute() @ b.compute()

        c = balancer.matmul(a, b)
        np.testing.assert_allclose(c.compute(), expected)
        shares = dict(zip(balancer.report.workers, balancer.report, strict=True))
        assert shares["fast"] > shares["middle"] > shares["slow"] > 0

        killer = fpmdask.Balancer(client, progress=kill_at_first_share)
        again = killer.matmul(a, b, distribution={"fast": 120, "middle": 1440, "slow": 1440})
        assert killed
        np.testing.assert_allclose(again.compute(), expected)
        # the first product, too, has lost a part; it is made again from the inputs
        np.testing.assert_allclose(c.compute(), expected)
        assert killer.report.left_out == {killed[1]: "left the cluster"}
        assert killed[1] not in {share["worker"] for share in killer.report.shares}
        units = sum(share["units"] for share in killer.report.shares)
        assert units == pytest.approx(3000, rel=1e-12)  # parts of lines where somebody helped


def test_a_worker_that_slows_down_in_the_run_gives_work_up(lab):
    with Client(lab.scheduler_address) as client, ThreadPoolExecutor(1) as others:
        balancer = fpmdask.Balancer(client)
        random = da.random.default_rng(0)
        a, b = (random.integers(-9, 9, (4096, 4096), chunks=1024).astype("f8") for _ in "ab")
        a, b = client.persist([a, b])
        wait([a, b])
        balancer.matmul(a, b)
        slowing = others.submit(slow_down, lab, "middle", 0.4, 0.1, seconds=1.0)
        c = balancer.matmul(a, b)
        slowing.result()
        assert {help["helps"] for help in balancer.report.helps} >= {"middle"}
        lab.set_quota("middle", 0.4)
        rows = np.arange(0, 4096, 63)
        np.testing.assert_array_equal(c[rows].compute(), (a[rows] @ b).compute())


def slow_down(lab, worker, cores, left, seconds):
    """Cut a quota once a run has multiplied for so many CPU-seconds."""
    process = psutil.Process(lab.worker_pid(worker))
    before, late = sum(process.cpu_times()[:2]), time.monotonic() + 60
    while sum(process.cpu_times()[:2]) < before + seconds * cores:
        assert time.monotonic() < late, "the run does not multiply"
        time.sleep(0.02)
    lab.set_quota(worker, left)


def test_a_stopped_worker_is_given_up_and_its_rows_move(lab):
    stopped = []

    def stop_at_first_share(event):
        if event["event"] == "share" and not stopped:
            stopped.append(lab.worker_pid("slow"))
            os.kill(stopped[0], signal.SIGSTOP)

    try:
        with Client(lab.scheduler_address) as client, dask.config.set({"fpmdask.hang": "2s"}):
            balancer = fpmdask.Balancer(client, progress=stop_at_first_share)
            a = np.random.default_rng(0).random((900, 600))
            b = np.random.default_rng(1).random((600, 800))
            # inputs on the others, so that only the share is stuck, not the data
            only = ["fast", "middle"]
            addresses = [
                address for address, worker in registered(client).items() if worker["name"] in only
            ]
            x = client.persist(da.from_array(a, chunks=300), workers=addresses)
            y = client.persist(da.from_array(b, chunks=300), workers=addresses)
            wait([x, y])
            c = balancer.matmul(x, y, distribution={"fast": 100, "middle": 100, "slow": 700})
            assert stopped
            reason = balancer.report.left_out["slow"]  # whichever of the two is noticed first
            assert "not finished" in reason or "no sign of life" in reason
            np.testing.assert_allclose(c.compute(), a @ b)
    finally:
        if stopped:
            os.kill(stopped[0], signal.SIGCONT)


SLOW_LINK = DEFINITION.replace('name = "middle"', 'name = "middle"\nrate = "100 Mbit"')


def test_a_worker_behind_a_slow_link_gets_less(lab, tmp_path):
    """Its share is what arrives in time: far less than its speed alone would give it."""
    path = tmp_path / "slow-link.toml"
    path.write_text(SLOW_LINK)
    shares = {}
    with fpmdask.Lab.from_toml(str(path)) as slow:
        for which in (lab, slow):
            with Client(which.scheduler_address) as client:
                balancer = fpmdask.Balancer(client)
                # the inputs on the others: it has nothing to send, only to receive
                others = [
                    address
                    for address, worker in registered(client).items()
                    if worker["name"] != "middle"
                ]
                a, b = (
                    client.persist(da.ones((2400, 2400), chunks=600, dtype="f8"), workers=others)
                    for _ in range(2)
                )
                wait([a, b])
                c = balancer.matmul(a, b)
                assert (c[::100, ::100].compute() == 2400).all()
                report = balancer.report
                units = {share["worker"]: share["units"] for share in report.shares}
                shares[which] = units.get("middle", 0)
        link = report.links["middle"]
        # what 100 Mbit/s allow, less the bucket of the emulated link; neither way can be faster
        assert min(link) > 6e-8
    assert shares[slow] < 0.7 * shares[lab]


def teach(speeds, dask_scheduler):
    """Task on the scheduler: have sorts of float64 know speeds, in place of this hour's noise."""
    coordinator = dask_scheduler.plugins["fpmdask"]
    parameters = canonical({"dtype": "<f8", "index": False, "payload": False})
    kernel = KernelId(LEARNED, f"numpy {np.__version__}", parameters)
    for worker in coordinator.known_workers.identities.values():
        model = PiecewiseLinearModel.from_points([1000], [1000 / speeds[worker.name]])
        coordinator.library.store(kernel, worker, model)


def test_a_sort_gives_slow_workers_less(lab):
    with Client(lab.scheduler_address) as client:
        balancer = fpmdask.Balancer(client)
        x = da.random.default_rng(0).random(3_000_000, chunks=250_000).persist()
        wait(x)
        balancer.sort(x)
        client.run_on_scheduler(teach, {"fast": 6e7, "middle": 3e7, "slow": 1e7})
        found = balancer.sort(x)
        np.testing.assert_array_equal(found.compute(), np.sort(x.compute()))
        units = {share["worker"]: share["units"] for share in balancer.report.shares}
        assert sum(units.values()) == x.size
        for name, share in (("fast", 0.6), ("middle", 0.3), ("slow", 0.1)):
            assert units[name] == pytest.approx(share * x.size, rel=0.01)
        positions = balancer.argsort(x, descending=True).compute()
        np.testing.assert_array_equal(x.compute()[positions], np.sort(x.compute())[::-1])


def test_sorts_find_out_that_slow_workers_get_less(lab, tmp_path):
    """Nobody tells them: each measures, or has learned from the one before."""
    with Client(lab.scheduler_address) as client:
        balancer = fpmdask.Balancer(client)
        x = da.random.default_rng(0).random(6_000_000, chunks=500_000).persist()
        frame = dd.from_dask_array(x, columns="k").to_frame("k").persist()
        wait([x, frame])
        written = write_records(tmp_path / "in", [1_000_000] * 3)
        sorts = {
            "sort": lambda: balancer.sort(x),
            "argsort": lambda: balancer.argsort(x),
            "sort_values": lambda: balancer.sort_values(frame, "k"),
            "sort_records": lambda: balancer.sort_records(written.paths, tmp_path / "out"),
        }
        for what, sort in sorts.items():
            units = Counter()  # of all but the first: what disturbs one of them decides nothing
            for turn in range(4):
                found = sort()
                del found
                shutil.rmtree(tmp_path / "out", ignore_errors=True)
                if turn:
                    units.update({s["worker"]: s["units"] for s in balancer.report.shares})
            assert units["fast"] > units["slow"] > 0, what
            assert units["middle"] > units["slow"], what


@pytest.mark.parametrize("step", ["sort", "exchange"])
def test_a_sort_goes_on_without_a_worker_that_is_stopped(lab, step):
    stopped = []

    def stop(event):
        if event["event"] == "step" and event["step"] == step and not stopped:
            stopped.append(lab.worker_pid("slow"))
            os.kill(stopped[0], signal.SIGSTOP)

    try:
        with Client(lab.scheduler_address) as client, dask.config.set({"fpmdask.hang": "2s"}):
            balancer = fpmdask.Balancer(client, progress=stop)
            info = registered(client)
            others = [address for address, w in info.items() if w["name"] != "slow"]
            x = da.random.default_rng(0).random(3_000_000, chunks=250_000)
            x = client.persist(x, workers=others)
            wait(x)
            found = balancer.sort(x)
            assert "slow" in balancer.report.left_out
            np.testing.assert_array_equal(found.compute(), np.sort(x.compute()))
    finally:
        if stopped:
            os.kill(stopped[0], signal.SIGCONT)
