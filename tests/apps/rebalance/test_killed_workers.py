"""A worker that is killed while `rebalance` times it, or moves its rows."""

import os
import signal
import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import wait

import fpmdask
from tests.killing import SIGNALS, nothing_left, pids, processes

pytestmark = SIGNALS
ROWS = 900


@pytest.fixture(scope="module")
def client():
    with processes() as client:
        yield client


@pytest.mark.parametrize("when", ["timed", "moving"])
def test_rows_are_made_again_and_placed(client, when):
    before = pids(client)
    victim = before["2"]

    def dies():
        if os.getpid() == victim:
            os.kill(victim, signal.SIGKILL)
        return True

    class Fragile:
        """An object that ends the worker which sends it to another one."""

        def __reduce__(self):
            return bool, (dies(),)

    def part(n):
        rows = range(n, n + 100)
        return pd.DataFrame({"row": rows, "object": [Fragile() for _ in rows]}, index=rows)

    def kernel(x, frame):
        dies()
        time.sleep(1e-4 * len(x))

    x = da.arange(ROWS, chunks=100).persist()
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dd.from_map(part, [*range(0, ROWS, 100)], meta=part(0)[:0]).persist()
    wait([x, frame])
    balancer = fpmdask.Balancer(client)
    # the last worker gives most of its rows to the others
    way = {"kernel": kernel} if when == "timed" else {"seconds": {"0": 1.0, "1": 1.0, "2": 50.0}}
    x2, frame2 = balancer.rebalance(x, frame, **way)
    np.testing.assert_array_equal(x2.compute(), np.arange(ROWS))
    assert frame2["row"].compute().tolist() == [*range(ROWS)]
    assert balancer.report.left_out["2"].startswith("left the cluster")
    assert sum(balancer.report.distribution) == ROWS
    assert victim not in pids(client).values()
    del x, frame, x2, frame2
    nothing_left(client)
