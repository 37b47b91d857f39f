"""What the coordinator keeps of its runs, metrics of real clusters, and a dashboard that is off."""

import dask.array as da
import numpy as np
import pytest

import fpmdask
from fpmdask.dashboard.snapshot import Snapshots
from fpmdask.runtime.coordinator.metrics import MetricsCollector
from fpmdask.runtime.dask_private import add_metrics, serves_dashboard
from tests.apps.sort.test_sort_shares import COUNT, teach
from tests.dashboard.served import cluster, get


async def multiply(client, balancer, n=300):
    a = client.persist(da.random.random((n, n), chunks=n // 3))
    return await balancer.matmul(a, a)


@cluster(scheduler_kwargs={"dashboard": False})
async def test_nothing_happens_where_the_dashboard_is_off(c, s, *workers):
    assert not serves_dashboard(s)
    await fpmdask.Balancer(c)
    assert (await get(s, "/fpmdask"))[0] == 404


@cluster(scheduler_kwargs={"dashboard": False})
async def test_metrics_tell_what_runs_did(c, s, *workers):
    pytest.importorskip("prometheus_client", reason="it makes Dask's /metrics")
    balancer = await fpmdask.Balancer(c)
    assert not add_metrics(s, MetricsCollector)
    await multiply(c, balancer)
    await multiply(c, balancer)
    values = {}
    for line in (await get(s, "/metrics"))[1].splitlines():
        if line.startswith("dask_fpmdask_") and "_created" not in line:
            name, _, value = line.rpartition(" ")
            values[name.removeprefix("dask_fpmdask_")] = float(value)
    assert values['runs_total{app="matmul",ending="finished"}'] == 2
    assert values['rounds_total{app="matmul"}'] == sum(
        len(record.report["rounds"]) for record in s.plugins["fpmdask"].history.ended
    )
    for activity in ("measure", "compute"):
        assert values[f'worker_seconds_total{{activity="{activity}",app="matmul"}}'] > 0
    assert values['received_bytes_total{app="matmul"}'] > 0
    assert values['imbalance{app="matmul"}'] >= 0
    assert values['workers_left_out_total{app="matmul"}'] == 0


@cluster(scheduler_kwargs={"dashboard": False})
async def test_history_keeps_the_last_ten_runs(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for _ in range(12):
        await balancer.sort(da.ones(10, chunks=5))
    history = s.plugins["fpmdask"].history
    assert (len(history.ended), history.totals.runs["sort", "finished"]) == (10, 12)
    assert not history.going
    assert all(record.context is None for record in history.ended)
    assert sum("log" in record.report for record in history.ended) <= 1


@cluster(scheduler_kwargs={"dashboard": False})
async def test_what_is_drawn_as_predicted_is_what_reports_have_as_planned(c, s, *workers):
    def predicted():
        return {piece.worker: piece.seconds for piece in Snapshots(s).latest().predicted}

    balancer = await fpmdask.Balancer(c)
    for reason in ("measured", "known"):  # rows that workers take as they come: nothing was planned
        await balancer.map_blocks(np.sort, np.ones(3000))
        assert (balancer.report.reason, predicted()) == (reason, {})
    teach(s, np.dtype(float), index=False)
    await balancer.sort(da.random.random(COUNT, chunks=COUNT // 3))
    shares = balancer.report.shares
    assert predicted() == {share["worker"]: share["planned_seconds"] for share in shares}
