"""`Balancer.matmul` on bad input and in bad moments: the right error at once, or a cure."""

import asyncio
import gc
import math
import threading
import time
from contextlib import contextmanager

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, Worker, wait
from distributed.core import Status

import fpmdask
from fpmdask.apps.matmul import kernel
from fpmdask.apps.matmul.client.arrays import check
from fpmdask.apps.matmul.coordinator import distribute, product, run
from fpmdask.apps.matmul.plan import deepest_panel, rows_within
from fpmdask.apps.matmul.spec import MatmulSpec
from fpmdask.apps.matmul.tasks import recompute
from fpmdask.apps.matmul.worker import share
from fpmdask.errors import CoordinatorError, PartitionError
from tests.apps.matmul.test_product import cluster
from tests.eventually import nothing_left, side_of, until

COMPUTED: list[int] = []


def counted(block):
    """A chunk that says that it was computed."""
    COMPUTED.append(block.shape[0])
    return block


@contextmanager
def paused_updates():
    """Make every panel update say that it has been made, and wait until it may end."""
    original, started, go_on = share.panel_update, threading.Event(), threading.Event()

    def paused(*args, **options):
        original(*args, **options)
        started.set()
        go_on.wait(20)

    share.panel_update = paused
    try:
        yield started, go_on
    finally:
        go_on.set()
        share.panel_update = original


def lazy():
    COMPUTED.clear()
    return da.ones((60, 60), chunks=30).map_blocks(counted, dtype="f8", meta=np.empty((0, 0)))


@cluster()
async def test_requests_are_refused_before_inputs_are_computed(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = lazy()
    bad = [
        ({"depth": -1}, "depth = -1"),
        ({"depth": 0}, "depth = 0"),
        ({"depth": 61}, "from 1 to 60"),
        ({"depth": True}, "depth = True"),
        ({"depth": "x"}, "depth = 'x'"),
        ({"depth": float("nan")}, "depth = nan"),
        ({"distribution": {"nobody": 60}}, "names nobody"),
        ({"distribution": {"0": 60.5}}, "gives 60.5 rows to 0"),
        ({"distribution": {"0": 61, "1": -1}}, "gives -1 rows to 1"),
        ({"distribution": {"0": float("nan"), "1": 60}}, "gives nan rows to 0"),
        ({"distribution": {"0": True, "1": 59}}, "gives True rows to 0"),
        ({"distribution": {"0": "x"}}, "gives 'x' rows to 0"),
        ({"distribution": {"0": 30, 0: 30}}, "names 0 twice"),
        ({"timing": 3}, "timing = 3"),
    ]
    for arguments, message in bad:
        with pytest.raises(PartitionError, match=message):
            await balancer.matmul(x, x, **arguments)
    with pytest.raises(CoordinatorError, match="no worker nobody"):
        await (await fpmdask.Balancer(c, workers=["nobody"])).matmul(x, x)
    assert COMPUTED == []
    assert not s.plugins["fpmdask"].runs


@cluster(worker_kwargs={"memory_limit": "400 MB"})
async def test_a_product_that_is_too_large_is_refused_before_its_inputs_are_computed(c, s, *ws):
    balancer = await fpmdask.Balancer(c)
    x = da.ones((40_000, 40_000), chunks=(40_000, 40_000))
    x = x.map_blocks(counted, dtype="f8", meta=np.empty((0, 0)))
    COMPUTED.clear()
    with pytest.raises(PartitionError, match="40000 rows of C do not fit"):
        await balancer.matmul(x, x)
    y = da.ones((60, 3_000_000), chunks=(60, 10_000))
    with pytest.raises(PartitionError, match="do not fit"):  # a panel that the run would not need
        await balancer.matmul(y, da.ones((3_000_000, 60), chunks=(10_000, 60)), depth=3_000_000)
    assert COMPUTED == []


@cluster(nthreads=[])
async def test_a_product_without_workers_is_refused_at_once(c, s):
    balancer = await fpmdask.Balancer(c)
    for x in (lazy(), np.ones((60, 60))):
        with (
            dask.config.set({"fpmdask.wait-for-workers": "0.1s"}),
            pytest.raises(CoordinatorError, match="no worker is connected"),
        ):
            await balancer.matmul(x, x)
    await until(lambda: not s.tasks)


@cluster()
async def test_chunks_that_are_not_what_their_array_says(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = np.arange(3600.0).reshape(60, 60)
    masked = np.ma.masked_array(x, x > 1000)
    with pytest.raises(PartitionError, match=r"consists of numpy\.ma"):
        await balancer.matmul(masked, x)
    with pytest.raises(PartitionError, match=r"consists of numpy\.ma"):
        await balancer.matmul(x, da.from_array(masked, chunks=20, asarray=False))
    plain = da.from_array(x, chunks=20)
    meta = np.empty((0, 0))
    hidden = plain.map_blocks(lambda b: np.ma.masked_array(b, b > 1000), dtype="f8", meta=meta)
    with pytest.raises(PartitionError, match=r"chunk .* is a numpy\.ma"):
        await balancer.matmul(hidden, plain, max_rounds=1)
    short = plain.map_blocks(lambda b: b[:1], dtype="f8", meta=meta)
    with pytest.raises(PartitionError, match=r"shape \(1, 20\), its dask array says \(20, 20\)"):
        await balancer.matmul(short, plain, max_rounds=1)
    objects = plain.map_blocks(lambda b: b.astype(object), dtype="f8", meta=meta)
    with pytest.raises(PartitionError, match="has dtype object"):
        await balancer.matmul(objects, plain, max_rounds=1)
    complex_ = plain.map_blocks(lambda b: b * 1j, dtype="f8", meta=meta)
    with pytest.raises(PartitionError, match=r"has dtype complex128, and .* of float64"):
        await balancer.matmul(complex_, plain, max_rounds=1)
    del plain, hidden, short, objects, complex_
    await nothing_left(s)


@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize(("says", "is_"), [("i4", "f8"), ("?", "i8"), ("u1", "i8"), ("f8", "U1")])
@cluster()
async def test_chunks_of_another_kind_are_refused_by_name(c, s, *workers, says, is_, channels):
    with dask.config.set({"fpmdask.channels": channels}):
        balancer = await fpmdask.Balancer(c)
    plain = da.ones((60, 60), chunks=20, dtype=says)
    meta = np.empty((0, 0), says)
    wrong = plain.map_blocks(lambda b: b.astype(is_), dtype=says, meta=meta, name="wrong")
    for place in (at(workers[0]), {}):  # in the one place, or in any: some have to travel
        x = c.persist(wrong, **place)
        for a, b in ((x, plain), (plain, x)):
            with pytest.raises(PartitionError, match=r"chunk \(.wrong., \d, \d\) has dtype"):
                await balancer.matmul(a, b, distribution={"0": 20, "1": 20, "2": 20})


def test_a_chunk_of_another_kind_makes_no_chunk_again():
    axis = (2,)
    spec = MatmulSpec((2, 2, 2), np.dtype("i4"), (axis, axis), (axis, axis), "a", "b")
    ones, half = np.ones((2, 2), "i4"), np.full((2, 2), 0.5)
    for a, b, name in ((half, ones, "a"), (ones, half, "b")):
        with pytest.raises(PartitionError, match=f"chunk .'{name}', 0, 0. has dtype float64"):
            recompute(spec.to_json(), (0, 2, 0, 2), [(0, 0)], [a], [(0, 0)], [b])


@cluster()
async def test_an_error_holds_no_input_on_the_cluster(c, s, *workers):
    balancer = await fpmdask.Balancer(c)

    def bad(block):
        return block[:1]

    x = da.ones((60, 60), chunks=20).map_blocks(bad, dtype="f8", meta=np.empty((0, 0)))
    gc.disable()
    try:
        with pytest.raises(PartitionError) as caught:
            await balancer.matmul(np.ones((60, 60)), x, max_rounds=1)
        await until(lambda: not s.tasks)
        assert "says" in str(caught.value)
    finally:
        gc.enable()


@cluster(nthreads=[("127.0.0.1", 1)])
async def test_a_worker_that_joins_takes_over_when_the_last_one_leaves(c, s, a):
    joined = asyncio.Event()
    balancer = await fpmdask.Balancer(
        c, progress=lambda event: joined.set() if event["event"] == "joined" else None
    )
    x = c.persist(da.ones((400, 200), chunks=(100, 100)))
    await wait(x)
    with paused_updates() as (started, go_on):
        distribution = {str(a.name): 400}
        run = asyncio.ensure_future(balancer.matmul(x, x.T, distribution=distribution))
        await asyncio.to_thread(started.wait, 20)
        async with Worker(s.address, nthreads=1, name="late"):
            await asyncio.wait_for(joined.wait(), 20)
            closing = asyncio.ensure_future(a.close(timeout=1))
            go_on.set()
            await closing
            result = await run
            np.testing.assert_array_equal(await c.compute(result), np.full((400, 400), 200.0))
            assert {part["worker"] for part in balancer.report.shares} == {"late"}


@cluster(nthreads=[("127.0.0.1", 1)])
async def test_a_worker_that_joins_after_the_last_one_left_takes_over(c, s, a):
    waiting = asyncio.Event()
    balancer = await fpmdask.Balancer(
        c,
        progress=lambda event: waiting.set() if event["event"] == "waiting for workers" else None,
    )
    x = c.persist(da.ones((400, 200), chunks=(100, 100)))
    await wait(x)
    with paused_updates() as (started, go_on):
        run = asyncio.ensure_future(balancer.matmul(x, x.T, distribution={str(a.name): 400}))
        assert await asyncio.to_thread(started.wait, 20)
        closing = asyncio.ensure_future(a.close(timeout=1))
        await asyncio.wait_for(waiting.wait(), 20)  # its share is not done
        go_on.set()
        await closing
        async with Worker(s.address, nthreads=1, name="late"):
            result = await asyncio.wait_for(run, 30)
            np.testing.assert_array_equal(await c.compute(result), np.full((400, 400), 200.0))


@pytest.mark.parametrize("channels", [True, False])
@cluster()
async def test_a_holder_of_inputs_that_closes_costs_no_worker_its_share(c, s, *workers, channels):
    """Its peers ask it for pieces and hear nothing, by a channel or by Dask's messages."""
    balancer = await fpmdask.Balancer(c)
    side = await side_of(workers[2])
    asked = threading.Event()

    def silent_channel(request, alive):
        asked.set()
        while workers[2].status == Status.running:
            time.sleep(0.01)
        raise ConnectionError("closing")

    async def silent(**request):
        asked.set()
        await asyncio.Event().wait()

    if channels:
        side.channels._serve_request = silent_channel
    else:
        await side.channels.close()
        side.channels = None
        workers[2].handlers["fpmdask_pieces"] = silent
    place = {"workers": [workers[2].address], "allow_other_workers": True}
    x = c.persist(da.ones((600, 600), chunks=(100, 100)), **place)
    await wait(x)
    distribution = {str(w.name): 200 for w in workers}
    run = asyncio.ensure_future(balancer.matmul(x, x, distribution=distribution))
    await asyncio.to_thread(asked.wait, 20)
    assert asked.is_set()
    await workers[2].close(timeout=1)
    result = await asyncio.wait_for(run, 30)
    np.testing.assert_array_equal(await c.compute(result), np.full((600, 600), 600.0))
    assert sorted(balancer.report.left_out) == [str(workers[2].name)]


@cluster()
async def test_a_holder_that_comes_back_at_its_address_is_asked_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    place = {"workers": [workers[2].address], "allow_other_workers": True}
    x = c.persist(da.ones((600, 1200), chunks=(100, 100)), **place)
    await wait(x)
    with paused_updates() as (started, go_on):
        distribution = {str(workers[0].name): 300, str(workers[1].name): 300}
        run = asyncio.ensure_future(balancer.matmul(x, x.T, distribution=distribution))
        await asyncio.to_thread(started.wait, 20)
        port = workers[2].port
        await workers[2].close(timeout=1)
        async with Worker(s.address, nthreads=1, name="back", port=port) as back:
            assert back.address == workers[2].address
            go_on.set()
            result = await asyncio.wait_for(run, 30)
            np.testing.assert_array_equal(await c.compute(result), np.full((600, 600), 1200.0))


def test_any_synchronous_client_of_a_cluster_multiplies():
    x = da.ones((50, 50), chunks=25)
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(dashboard_address=":0", **options) as local,
        Client(local) as first,
        Client(local),  # the default client now
        Client(local, set_as_default=False) as third,
    ):
        for client in (first, third):
            result = fpmdask.Balancer(client).matmul(x, x, max_rounds=1)
            assert (client.compute(result).result() == 50).all()


def at(worker):
    return {"workers": [worker.address], "allow_other_workers": True}


@contextmanager
def lost_without_room(monkeypatch, rows):
    """Give workers, by name, memory for so many rows; yield what tells that a product waits."""
    waiting = asyncio.Event()

    def progress(event):
        if event["event"] == "waiting for workers":
            waiting.set()

    limits = "_limit_of", lambda self, worker: rows[self.context.name(worker)] * self.width
    monkeypatch.setattr(product.Product, *limits)
    bounds = "row_bounds", lambda context, *_: {w: rows[context.name(w)] for w in context.workers}
    monkeypatch.setattr(run, *bounds)
    with paused_updates() as updates:
        yield waiting, progress, *updates


@cluster(nthreads=[("127.0.0.1", 1)] * 2)
async def test_what_the_others_have_no_room_for_waits_for_a_worker(c, s, a, b, monkeypatch):
    x, y = c.persist([da.ones(shape, chunks=100) for shape in ((400, 200), (200, 400))], **at(b))
    await wait([x, y])
    rows = {str(a.name): 250, str(b.name): 200, "late": 250}
    with lost_without_room(monkeypatch, rows) as (waiting, progress, started, go_on):
        balancer = await fpmdask.Balancer(c, progress=progress)
        shares = {str(a.name): 200, str(b.name): 200}
        running = asyncio.ensure_future(balancer.matmul(x, y, layout="rows", distribution=shares))
        await asyncio.to_thread(started.wait, 20)
        closing = asyncio.ensure_future(a.close(timeout=1))
        go_on.set()
        await closing
        told = asyncio.ensure_future(waiting.wait())
        await asyncio.wait([running, told], timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert told.done()
        async with Worker(s.address, nthreads=1, name="late"):
            result = await asyncio.wait_for(running, 30)
            np.testing.assert_array_equal(await c.compute(result), np.full((400, 400), 200.0))
            taken = {part["worker"]: part["units"] for part in balancer.report.shares}
            assert taken == {str(b.name): 200, "late": 200}


@cluster(nthreads=[("127.0.0.1", 1)] * 2)
async def test_what_nobody_has_room_for_in_time_is_refused(c, s, a, b, monkeypatch):
    x, y = c.persist([da.ones(shape, chunks=100) for shape in ((400, 200), (200, 400))], **at(b))
    await wait([x, y])
    rows = {str(a.name): 250, str(b.name): 250}
    with lost_without_room(monkeypatch, rows) as (waiting, progress, started, go_on):
        balancer = await fpmdask.Balancer(c, progress=progress)
        shares = {str(a.name): 200, str(b.name): 200}
        with dask.config.set({"fpmdask.recovery": "0.2s"}):
            running = asyncio.ensure_future(
                balancer.matmul(x, y, layout="rows", distribution=shares)
            )
        await asyncio.to_thread(started.wait, 20)
        closing = asyncio.ensure_future(a.close(timeout=1))
        go_on.set()
        await closing
        with pytest.raises(PartitionError, match="do not fit"):
            await asyncio.wait_for(running, 30)
        assert waiting.is_set()


@contextmanager
def paused_timing():
    """Make the first timed update wait until it may end."""
    original, started, go_on = kernel.panel_update, threading.Event(), threading.Event()

    def paused(*args, **options):
        original(*args, **options)
        started.set()
        go_on.wait(20)

    kernel.panel_update = paused
    try:
        yield started, go_on
    finally:
        go_on.set()
        kernel.panel_update = original


@cluster(nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_worker_that_joins_while_others_are_timed_has_its_limit(c, s, a, b, monkeypatch):
    """It has room for two panels and a few rows; afterwards what was timed is in its memory."""
    free = {"late": [1.2e6, 0.0]}

    def free_nbytes(context, address):
        left = free.get(context.name(address), [math.inf])
        return left.pop(0) if len(left) > 1 else left[0]

    bounds, original = {}, run.placed

    def placed(*args, **options):
        bounds.update(options["bounds"])
        return original(*args, **options)

    monkeypatch.setattr(distribute, "free_nbytes", free_nbytes)
    monkeypatch.setattr(run, "placed", placed)
    joined = asyncio.Event()
    balancer = await fpmdask.Balancer(
        c, progress=lambda event: joined.set() if event["event"] == "joined" else None
    )
    x = c.persist(da.ones((400, 200), chunks=(100, 100)))
    with paused_timing() as (started, go_on):
        running = asyncio.ensure_future(balancer.matmul(x, x.T, epsilon=0.01, max_rounds=4))
        await asyncio.to_thread(started.wait, 20)
        async with Worker(s.address, nthreads=1, name="late") as late:
            await asyncio.wait_for(joined.wait(), 20)
            go_on.set()
            result = await asyncio.wait_for(running, 30)
            spec = check(x, x.T)
            assert bounds[late.address] == rows_within(spec, 1.2e6, deepest_panel(spec, 3))
            assert 0 < bounds[late.address] < 400
            np.testing.assert_array_equal(await c.compute(result), np.full((400, 400), 200.0))


@cluster()
async def test_what_is_refused_is_refused_when_empty_too(c, s, *workers):
    import scipy.sparse

    balancer = await fpmdask.Balancer(c)
    full = np.ones((4, 4))
    masked = np.ma.masked_array(full, np.eye(4, dtype=bool))
    sparse = da.from_array(full, chunks=2).map_blocks(scipy.sparse.csr_array, dtype="f8")
    refused = [
        (masked, "MaskedArray"),
        (da.from_array(masked, chunks=2), "MaskedArray"),
        (sparse, "scipy.sparse"),
        (full.astype(object), "object"),
        (full.astype("M8[s]"), "datetime64"),
        (full.astype("S3"), "S3"),
        (full[np.newaxis], "dimensions"),
    ]
    for x, message in refused:
        for operands in ((x, full), (full, x), (x[:0], full), (full, x[..., :0])):
            with pytest.raises(PartitionError, match=message):
                await balancer.matmul(*operands)
    for arguments, message in [
        ({"depth": 0}, "depth = 0"),
        ({"depth": 5}, "from 1 to 4"),
        ({"epsilon": -1}, "epsilon"),
        ({"timing": 3}, "timing = 3"),
        ({"distribution": {"0": 1}}, "sum to 1; they must sum to 0"),
        ({"distribution": 3}, "distribution is a int"),
        ({"layout": "ring"}, "ring"),
    ]:
        with pytest.raises(PartitionError, match=message):
            await balancer.matmul(full[:0], full, **arguments)
    result = await c.compute(await balancer.matmul(full[:0], full, distribution={"0": 0}, depth=4))
    assert result.shape == (0, 4)
    one = da.from_array(np.ma.masked_array([1.0, 2.0], [True, False]))
    for some in (one, one[:0], np.ma.masked_array([1.0]), np.ma.masked_array([])):
        for sort in (balancer.sort, balancer.argsort):
            with pytest.raises(PartitionError, match="MaskedArray"):
                await sort(some)
