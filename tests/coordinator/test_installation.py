"""Schedulers and workers on which fpmdask is missing or another version, as real processes."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import Client, get_client, secede

import fpmdask
from fpmdask.errors import CoordinatorError, PartitionError, VersionMismatchError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "fpmdask":
            raise ModuleNotFoundError("No module named 'fpmdask'", name="fpmdask")

sys.meta_path.insert(0, Missing())
"""

OTHER = """
import fpmdask
fpmdask.__version__ = "0.0.1"
"""


@pytest.fixture
def processes(tmp_path):
    """Start dask processes in environments where a sitecustomize has run; end them by pid."""
    started = []

    def start(command, site="", **environment):
        folder = tmp_path / f"site{len(started)}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(site)
        here = str(Path(fpmdask.__file__).parents[1])  # they import what this process has
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), here]), **environment}
        log = open(folder / "log", "w")  # noqa: SIM115  # closed by the fixture
        module, *arguments = command
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
            env=env,
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
        started.append((process, log))
        return folder / "log"

    yield start
    for process, log in started:
        process.terminate()
        process.wait(20)
        log.close()


def scheduler(start, tmp_path, site=""):
    contact = tmp_path / "scheduler.json"
    start(
        ["dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(contact)], site
    )
    for _ in range(600):
        if contact.exists() and contact.read_text().strip():
            return json.loads(contact.read_text())["address"]
        time.sleep(0.05)
    raise AssertionError("the scheduler did not start")


def worker(start, address, name, site=""):
    options = ["--no-nanny", "--no-dashboard", "--name", name, "--memory-limit", "0"]
    return start(["dask_worker", address, *options], site)


def sleeping(units):
    time.sleep(1e-4 * units)


def test_a_scheduler_without_fpmdask_is_named_with_the_cure(processes, tmp_path):
    with (
        Client(scheduler(processes, tmp_path, WITHOUT)) as client,
        pytest.raises(CoordinatorError, match=r"cannot load fpmdask .*from the wheel or checkout"),
    ):
        fpmdask.Balancer(client)


def test_a_scheduler_of_another_version_is_named_with_both(processes, tmp_path):
    with (
        Client(scheduler(processes, tmp_path, OTHER)) as client,
        pytest.raises(VersionMismatchError, match=rf"0\.0\.1|{fpmdask.__version__}"),
    ):
        fpmdask.Balancer(client)


def test_workers_without_fpmdask_join_but_get_no_work_of_ours(processes, tmp_path):
    address = scheduler(processes, tmp_path)
    log = worker(processes, address, "bare", WITHOUT)
    worker(processes, address, "equipped")
    with Client(address) as client:
        client.wait_for_workers(2, timeout=60)
        balancer = fpmdask.Balancer(client)
        with pytest.warns(UserWarning, match="worker bare takes no part: it has no fpmdask"):
            report = balancer.partition(sleeping, 100, epsilon=1.0).report
        assert report.workers == ("equipped",)
        assert "has no fpmdask" in report.left_out["bare"]
        assert repr(report).endswith("; left out: bare>")
        fpmdask.Balancer(client).partition(sleeping, 100, epsilon=1.0)  # said once per client
        # the worker without fpmdask goes on with everybody else's work
        assert client.submit(lambda: 7, workers=["bare"]).result(timeout=20) == 7
        # and one that comes later joins
        worker(processes, address, "later", WITHOUT)
        client.wait_for_workers(3, timeout=60)
        assert client.submit(lambda: 8, workers=["later"]).result(timeout=20) == 8
    assert "Traceback" not in log.read_text()


def test_a_worker_without_fpmdask_that_would_write_is_refused_with_the_cure(processes, tmp_path):
    address = scheduler(processes, tmp_path)
    worker(processes, address, "bare", WITHOUT)
    worker(processes, address, "equipped")
    out = zarr.create_array(str(tmp_path / "c"), shape=(40, 40), chunks=(20, 20), dtype="f8")
    a = np.arange(1600.0).reshape(40, 40)
    with Client(address) as client:
        client.wait_for_workers(2, timeout=60)
        cure = "worker bare cannot open out at .*No module named .*fpmdask.* by workers="
        with pytest.raises(PartitionError, match=cure):
            fpmdask.Balancer(client).matmul(a, a, out=out)
        fpmdask.Balancer(client, workers=["equipped"]).matmul(a, a, out=out)
    np.testing.assert_array_equal(out[:], a @ a)


def test_a_worker_of_another_version_is_left_out_with_both_versions(processes, tmp_path):
    address = scheduler(processes, tmp_path)
    worker(processes, address, "old", OTHER)
    with Client(address) as client:
        client.wait_for_workers(1, timeout=60)
        with pytest.raises(CoordinatorError, match=r"old: runs fpmdask 0\.0\.1; install fpmdask"):
            fpmdask.Balancer(client).partition(sleeping, 100)


def multiply_and_sort(size):
    """Use a balancer inside of a task, twice; return whether the results are right."""
    balancer = fpmdask.Balancer(get_client())
    x = np.random.default_rng(size).random((size, size))
    product = balancer.matmul(x, x).compute()
    keys = balancer.sort(x.ravel()).compute()
    return bool(np.allclose(product, x @ x) and (keys == np.sort(x.ravel())).all())


def multiply_after_seceding(size):
    """The same where the task has given its thread back by itself."""
    secede()
    return multiply_and_sort(size)


def test_a_client_that_another_thread_connects_is_waited_for():
    """Tasks on one worker share a client, which `get_client` returns as soon as it is made."""
    options = {"n_workers": 1, "processes": False, "dashboard_address": ":0"}
    with Client(**options, set_as_default=False) as client:
        for status in ("newly-created", "connecting"):
            client.status = status
            timer = threading.Timer(0.2, setattr, (client, "status", "running"))
            timer.start()
            fpmdask.Balancer(client).close()
            timer.join()


@pytest.mark.slow
def test_a_balancer_inside_of_a_task_gives_its_thread_back():
    """It waits for work on the very thread that the task holds: on one thread a deadlock."""
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    with Client(**options, dashboard_address=":0", set_as_default=False) as client:
        tasks = client.map(multiply_and_sort, [40, 41, 42])
        assert client.gather(tasks) == [True, True, True]
        assert client.submit(multiply_after_seceding, 43).result() is True
