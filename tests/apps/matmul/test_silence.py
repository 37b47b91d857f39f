"""Products that are cancelled, and workers that are silent."""

import asyncio
import threading
import time

import pytest

import fpmdask
from fpmdask.apps.matmul import kernel, share
from tests.apps.matmul.test_helping import EVEN, cluster, inputs
from tests.apps.matmul.test_helping import many_panels as many_panels


@cluster()
async def test_a_cancelled_product_of_integers_stops_within_a_panel(c, s, *workers, monkeypatch):
    monkeypatch.setattr(kernel, "_NUMPY_OPERATIONS", 1)  # bands of a row
    begun, bands, original = threading.Event(), [], kernel.gemm_accumulate

    def slow(*args, **options):
        bands.append(1)
        begun.set()
        time.sleep(0.01)
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
