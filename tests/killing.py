"""Workers that are processes, to be killed: their nannies start others under the same names."""

import gc
import os
import sys
import time
from contextlib import contextmanager

import pytest
from distributed import Client, LocalCluster

from fpmdask.lab.cluster import registered
from tests.eventually import SECONDS

# The `pytestmark` of modules whose tests do so.
SIGNALS = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="ends or stops processes by signals"),
]


@contextmanager
def processes(workers=3, threads=1):
    """Yield a client of a cluster of processes, workers "0", "1" and so on."""
    options = {"n_workers": workers, "threads_per_worker": threads, "dashboard_address": ":0"}
    with LocalCluster(processes=True, **options) as local, Client(local) as client:
        yield client


def pids(client, workers=3):
    """Wait for all workers; return their names and the ids of their processes."""
    client.wait_for_workers(workers, timeout=SECONDS)
    known = registered(client)
    return {str(known[address]["name"]): pid for address, pid in client.run(os.getpid).items()}


def of_kind(events, kind):
    return [event for event in events if event["event"] == kind]


def nothing_left(client):
    """Wait until neither scheduler nor workers have anything of a run, of the workers that live."""
    late = time.monotonic() + SECONDS
    while found := _left(client):
        assert time.monotonic() < late, f"left behind: {found}"
        gc.collect()
        time.sleep(0.02)


def _left(client):
    def on_scheduler(dask_scheduler):
        plugin = dask_scheduler.plugins["fpmdask"]
        return [
            *map(str, dask_scheduler.tasks),
            *plugin.tickets.occupied(),
            *plugin.leasing.leases.busy(dask_scheduler.workers).values(),
        ]

    def on_worker(dask_worker):
        side = getattr(dask_worker.plugins.get("fpmdask"), "side", None)
        return [*map(str, dask_worker.data), *(side.spaces if side is not None else ())]

    found = {"scheduler": client.run_on_scheduler(on_scheduler), **client.run(on_worker)}
    return {where: what for where, what in found.items() if what}
