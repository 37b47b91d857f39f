"""Workers that are slow, wait or hang: who is given up, and who is not."""

import asyncio
import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import get_worker, wait

import fpmdask
from fpmdask.apps.matmul import kernel
from fpmdask.apps.matmul.coordinator import missing_chunks
from fpmdask.apps.matmul.worker import share
from tests.apps.matmul.test_work_stealing import EVEN, cluster, inputs, updates

SLOW = "2"


@pytest.mark.parametrize(("panels", "depth"), [(20, 20), (2, 400)])  # the first one is cut in two
@cluster()
async def test_a_small_share_that_is_done_soon_says_nothing_of_large_ones(
    c, s, *workers, panels, depth, tuning
):
    tuning(matmul={"panel_depth": depth})
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)

    def long(name):
        if name != "0":
            time.sleep(1.5 / panels)

    options = {"layout": "rows", "distribution": {"0": 2, "1": 149, "2": 149}, "rebalance": False}
    with (
        dask.config.set({"fpmdask.hang": "0.6s"}),
        updates(dict.fromkeys("012", 0.0), long),
    ):
        result = await balancer.matmul(x, x.T, **options)
    assert not balancer.report.left_out
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_a_slow_worker_that_tells_how_far_it_is_goes_on(c, s, *workers, tuning):
    tuning(matmul={"overdue": 0.1})
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)
    options = {"layout": "rows", "distribution": EVEN, "rebalance": False}
    with (
        dask.config.set({"fpmdask.hang": "2s"}),
        updates({"0": 0.0, "1": 0.0, SLOW: 0.25}),
    ):
        result = await balancer.matmul(x, x.T, **options)
    assert not balancer.report.left_out
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_a_worker_whose_call_does_not_return_is_given_up(c, s, *workers, tuning):
    tuning(matmul={"overdue": 0.1})
    balancer = await fpmdask.Balancer(c)
    x, expected = await inputs(c)
    released = threading.Event()

    def hangs(name):
        if name == SLOW:
            released.wait(30)

    options = {"layout": "rows", "distribution": EVEN, "rebalance": False}
    with (
        dask.config.set({"fpmdask.hang": "1s"}),
        updates(dict.fromkeys("012", 0.0), hangs),
    ):
        try:
            result = await balancer.matmul(x, x.T, **options)
        finally:
            released.set()
    assert "not finished" in balancer.report.left_out[SLOW]
    np.testing.assert_array_equal(await c.compute(result), expected)


@cluster()
async def test_waiting_for_a_lost_chunk_is_no_silence(c, s, *workers, monkeypatch, tuning):
    """Only the lost chunk is waited for, too."""
    named = {str(worker.name): worker for worker in workers}
    tuning(matmul={"overdue": 0.1})
    asked, original = [], missing_chunks.wait_for_chunks

    async def waiting(context, keys):
        asked.append(len(keys))
        return await original(context, keys)

    monkeypatch.setattr(missing_chunks, "wait_for_chunks", waiting)

    def make(shape):
        worker = get_worker()
        time.sleep(worker.makes_in)
        worker.made += 1
        return np.ones(shape)

    for worker in workers:
        worker.makes_in, worker.made = 0.0, 0
    begun = asyncio.Event()
    balancer = await fpmdask.Balancer(
        c, progress=lambda event: begun.set() if event["event"] == "share" else None
    )
    a = c.persist(da.ones((300, 400), chunks=(60, 40)), workers=[named["0"].address])
    b = da.map_blocks(make, (400, 60), chunks=((400,), (60,)), meta=np.empty((0, 0)))
    b = c.persist(b, workers=[named[SLOW].address], allow_other_workers=True)
    await wait([a, b])
    for worker in workers:
        worker.makes_in = 2.5
    held = threading.Event()

    def hold(name):
        if name != "0":
            held.wait(30)

    options = {"layout": "rows", "distribution": {"0": 10, "1": 145, "2": 145}}
    with (
        dask.config.set({"fpmdask.hang": "2s", "fpmdask.recovery": "20s"}),
        updates(dict.fromkeys("012", 0.0), hold),
    ):
        run = asyncio.ensure_future(balancer.matmul(a, b, **options, rebalance=False))
        try:
            await asyncio.wait_for(begun.wait(), 20)
            await named[SLOW].close(timeout=1, executor_wait=False)
        finally:
            held.set()
        result = await run
    assert sum(worker.made for worker in workers) == 2
    assert list(balancer.report.left_out) == [SLOW]
    assert max(asked) == 1
    np.testing.assert_array_equal(await c.compute(result), np.full((300, 60), 400.0))


@cluster()
async def test_a_cancelled_product_of_integers_stops_within_a_panel(
    c, s, *workers, monkeypatch, tuning
):
    tuning(matmul={"numpy_band_operations": 1})  # bands of a row
    begun, bands, original = threading.Event(), [], kernel.gemm_accumulate

    def slow(*args, **options):
        bands.append(1)
        begun.set()
        time.sleep(0.05)
        original(*args, **options)

    balancer = await fpmdask.Balancer(c)
    x, _ = await inputs(c, dtype="i8")
    monkeypatch.setattr(kernel, "gemm_accumulate", slow)
    run = asyncio.ensure_future(balancer.matmul(x, x.T, layout="rows", distribution=EVEN))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    for worker in workers:
        while worker.state.executing_count:
            await asyncio.sleep(0.01)
    assert len(bands) < 100  # of the 300 of one panel
    assert share.panel_update is kernel.panel_update
