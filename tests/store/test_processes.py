"""Stored models between clusters of processes of their own: restarted, at once, killed."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import fpmdask
from fpmdask.models import ConstantModel
from fpmdask.store import ModelStore

pytestmark = pytest.mark.slow

NAMES = ("alpha", "beta")
SECONDS = 60
# Small products are to teach, too.
LEARNING = {"DASK_FPMDASK__TUNING__MATMUL__LEARNED_LEAST_SECONDS": "0.0001"}


class Cluster:
    """A scheduler and two workers, each a process, that keep their models at a URL."""

    def __init__(self, folder, url, **environment):
        self._folder = folder
        self._environment = {**os.environ, **LEARNING, "DASK_FPMDASK__MODELS_URL": str(url)}
        self._environment |= environment
        self.processes = []

    def _start(self, module, *arguments):
        log = self._folder / f"{len(self.processes)}.log"
        command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments]
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._environment,
            )
        self.processes.append(process)
        return log

    def __enter__(self):
        self._opened = contextlib.ExitStack()
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self):
        self._folder.mkdir(exist_ok=True)
        log = self._start(
            "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show"
        )
        deadline = time.monotonic() + SECONDS
        while (found := re.search(r"Scheduler at: *(tcp://\S+)", log.read_text())) is None:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        for name in NAMES:
            alone = ("--no-nanny", "--no-dashboard", "--nthreads", "1")
            self._start("dask_worker", found[1], "--name", name, *alone)
        self.client = self._opened.enter_context(Client(found[1], set_as_default=False))
        self.client.wait_for_workers(len(NAMES), timeout=SECONDS)
        self.balancer = self._opened.enter_context(fpmdask.Balancer(self.client))

    def __exit__(self, *error):
        with contextlib.suppress(Exception):  # its scheduler may be dead
            self._opened.close()
        # the scheduler last: workers tell it that they close
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def multiplied(self):
        """Multiply; return the product's report, once it is checked."""
        a = da.ones((1024, 1024), chunks=512)
        c = self.balancer.matmul(a, a)
        assert (self.client.compute(c, sync=True) == 1024).all()
        return self.balancer.report

    def emulated(self, number, units=600):
        """Measure a kernel that takes the seconds of a model, one of those that have numbers."""
        models = {name: ConstantModel(100.0 * n).to_json() for n, name in enumerate(NAMES, 1)}
        return self.balancer.partition(("emulated", {"models": models, "seed": number}), units)


def dispatched():
    """Return the instruction sets that NumPy uses here where it is not told otherwise."""
    return np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])


def test_a_new_scheduler_and_new_workers_measure_nothing(tmp_path):
    store = tmp_path / "models"
    with Cluster(tmp_path / "first", store) as first:
        report = first.multiplied()
        assert report.reason == "measured"
        assert report.rounds
    with Cluster(tmp_path / "second", store) as second:
        report = second.multiplied()
        assert (report.reason, report.rounds) == ("known", ())
        assert {one.worker for one in second.balancer.models} == {*NAMES}


def test_with_other_features_of_the_processor_workers_are_measured_again(tmp_path):
    if not (found := dispatched()):
        pytest.skip("NumPy uses no feature of this processor that can be switched off")
    store = tmp_path / "models"
    with Cluster(tmp_path / "first", store) as first:
        first.multiplied()
    of_first = len(ModelStore(store).load())
    other = {"NPY_DISABLE_CPU_FEATURES": " ".join(found)}
    with Cluster(tmp_path / "second", store, **other) as second:
        assert second.multiplied().rounds  # one, or two where it is too short to time
    # what was known of the same workers with all features stays
    assert len(ModelStore(store).load()) == 2 * of_first
    features = {one.hardware.features for one in ModelStore(store).load()}
    assert len(features) == 2


def test_two_clusters_of_equal_workers_write_at_once(tmp_path):
    """The same kernel, hardware and names: one document; other kernels: each its own."""
    store = tmp_path / "models"
    with Cluster(tmp_path / "one", store) as one, Cluster(tmp_path / "other", store) as other:

        def measure(cluster, numbers):
            for n in numbers:
                cluster.emulated(0, 600 + n)
                cluster.emulated(n)

        both = [
            threading.Thread(target=measure, args=(one, range(1, 11))),
            threading.Thread(target=measure, args=(other, range(11, 21))),
        ]
        for thread in both:
            thread.start()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a half-written document would be told of
            while any(thread.is_alive() for thread in both):
                ModelStore(store).load()
        for thread in both:
            thread.join()
    models = ModelStore(store).load()
    kernels = {json.loads(model.parameters)["seed"] for model in models}
    assert kernels == {*range(21)}
    assert len(models) == len(kernels) * len(NAMES)


def test_a_scheduler_that_is_killed_while_it_saves_leaves_whole_documents(tmp_path):
    store = tmp_path / "models"
    with Cluster(tmp_path / "first", store) as first:
        scheduler = first.processes[0]

        def kill():
            while not list(store.rglob("*.json")):
                time.sleep(0.001)
            os.kill(scheduler.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with contextlib.suppress(Exception):  # whatever a client says of that
            for n in range(1, 1000):
                first.emulated(n)
        killer.join()
        assert scheduler.wait(SECONDS) == -signal.SIGKILL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = ModelStore(store).load()
    assert kept
    with Cluster(tmp_path / "second", store) as second:
        known = [one for one in second.balancer.models if not one.connected]
        assert {(one.worker, one.parameters) for one in known} == {
            (one.worker, one.parameters) for one in kept
        }
        second.emulated(1000)
    assert len(ModelStore(store).load()) == len(kept) + len(NAMES)
