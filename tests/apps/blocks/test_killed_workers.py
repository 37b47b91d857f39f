"""Workers that are killed in the middle of `map_blocks` and `map_partitions`."""

import os
import signal
import time

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import wait

import fpmdask
from tests.killing import SIGNALS, nothing_left, of_kind, pids, processes

pytestmark = SIGNALS
ROWS = 3000


@pytest.fixture(scope="module")
def client():
    # with a second thread for chunks that Dask makes again while calls wait
    with processes(threads=2) as client:
        yield client


def persisted(what):
    if what == "map_blocks":
        return da.arange(ROWS, chunks=250).persist()
    frame = pd.DataFrame({"x": np.arange(ROWS)})
    return dd.from_map(
        lambda n: frame[n : n + 250], [*range(0, ROWS, 250)], meta=frame[:0]
    ).persist()


@pytest.mark.parametrize(
    ("what", "comes"),
    [("map_blocks", "the same"), ("map_blocks", "another"), ("map_partitions", "the same")],
)
def test_who_comes_after_a_loss_takes_part(client, tmp_path, what, comes):
    """The others compute on when it has done so: it asks nothing of the one that is dead.

    Dask would try for half a minute to connect to that.
    """
    before = pids(client)
    victim, events, computed = sorted(before)[1], [], tmp_path / "computed"
    if comes == "another":  # the nanny starts none
        client.cluster.workers[int(victim)].close_gracefully()

    def heard(event):
        events.append(event)
        if event["event"] == "left out" and comes == "another":
            client.cluster.scale(len(client.cluster.workers) + 1)
        elif event["event"] == "computed":
            if came := of_kind(events, "joined"):
                if event["worker"] == came[0]["worker"]:
                    computed.touch()
            elif event["worker"] == victim:
                os.kill(before[victim], signal.SIGKILL)

    ids = {*before.values()}
    calls = []

    def twice(block):
        calls.append(block)
        if os.getpid() in ids and len(calls) > 1:
            late = time.monotonic() + 20
            while not computed.exists():
                assert time.monotonic() < late, "who has come computes nothing"
                time.sleep(0.01)
        return block * 2

    x = persisted(what)
    wait(x)
    balancer = fpmdask.Balancer(client, progress=heard)
    found = getattr(balancer, what)(twice, x, meta=np.empty(0, int) if what == "map_blocks" else x)
    values = found.compute()
    assert np.ravel(values).tolist() == [*range(0, 2 * ROWS, 2)]
    (came,) = of_kind(events, "joined")
    assert (came["worker"] == victim) == (comes == "the same")
    shares = {share["worker"]: share["units"] for share in balancer.report.shares}
    assert shares.keys() == before.keys() - {victim} | {came["worker"]}
    assert sum(shares.values()) == ROWS
    assert shares[came["worker"]] > 0
    why = "left the cluster" + ", and came back" * (comes == "the same")
    assert balancer.report.left_out == {victim: why}
    del found, x
    nothing_left(client)
