"""What a product adds to a worker's memory, on processes with Dask's memory manager on."""

import time
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait
from scipy.linalg.blas import dgemm

import fpmdask
from fpmdask.apps.matmul.client.arrays import check
from fpmdask.apps.matmul.kernel import PanelUpdate, panel_depth
from fpmdask.apps.matmul.plan import panels
from fpmdask.timing import WorkerContext
from tests.resident import peak, status

# Python's objects, messages, what malloc keeps: less than a panel, and nothing that grows.
SLACK = 2 << 20
N = 3900


def warm_up():
    """Let BLAS take the buffers that it keeps; what it packs grows with both sides of C."""
    high, wide = np.ones((N, 512)), np.ones((512, N))
    dgemm(1.0, high, wide)


def held(dask_worker):
    """Return how many results are in this worker's memory."""
    return len(dask_worker.data)


def reset():
    """Let the peak begin anew; return what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


@pytest.mark.lab  # whole processes are measured
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no peak to be read here")
@pytest.mark.parametrize(
    ("layout", "measured"),
    [
        ("rows", False),
        ("columns", True),
        pytest.param("rows", True, marks=pytest.mark.thorough),
        pytest.param("columns", False, marks=pytest.mark.thorough),
    ],
)
def test_a_worker_holds_its_inputs_its_part_of_c_and_two_panels(layout, measured):
    """Or, before that, its largest timed update, where DFPA has tried more rows than it got."""
    distribution = None if measured else dict.fromkeys(range(3), N // 3)
    options = {"n_workers": 3, "threads_per_worker": 1, "memory_limit": "2GiB"}
    with (
        LocalCluster(processes=True, dashboard_address=":0", **options) as local,
        Client(local) as client,
        fpmdask.Balancer(client) as balancer,
    ):
        a, b = (client.persist(da.random.random((N, N), chunks=500)) for _ in range(2))
        wait([a, b])
        chunks = sum(client.run(held).values())
        client.run(warm_up)
        small = np.ones((600, 600))
        balancer.matmul(small, small)
        while sum(client.run(held).values()) > chunks:  # what is freed later would count as less
            time.sleep(0.02)
        before = client.run(reset)
        options = {"layout": layout, "distribution": distribution, "rebalance": False}
        c = balancer.matmul(a, b, **options)
        after = client.run(peak)
        report = balancer.report
        depth = max(k1 - k0 for k0, k1 in panels(check(a, b), 3))
        update = PanelUpdate(WorkerContext(), width=N, depth=panel_depth(N))
        addresses = dict(zip(report.workers, report.addresses, strict=True))
        for share in report.shares:
            row0, row1, column0, column1 = share["tile"]
            two_panels = 2 * depth * (row1 - row0 + column1 - column0) * 8
            grown = after[addresses[share["worker"]]] - before[addresses[share["worker"]]]
            bound = share["nbytes"] + two_panels
            if measured:
                rows = max(made.units.get(share["worker"], 0) for made in report.rounds)
                timed = rows * N * 8
                if share["nbytes"] < timed <= 1.25 * share["nbytes"]:  # C takes over its memory
                    bound += timed - share["nbytes"]
                bound = max(bound, update.nbytes(rows))
            assert two_panels / 2 > SLACK
            assert grown <= bound + SLACK
        assert c.nbytes == N * N * 8
