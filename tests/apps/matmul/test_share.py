"""A worker's part of C, and the chunks that it becomes."""

import threading
import time
from itertools import count

import dask.array as da
import numpy as np
import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul.blas import copied
from fpmdask.apps.matmul.coordinator import learned as learn
from fpmdask.apps.matmul.plan import Tile
from fpmdask.apps.matmul.worker import share
from fpmdask.apps.matmul.worker.share import GIVE_WAY_SECONDS, Part, Progress
from fpmdask.runtime.worker.channel import Channels
from tests.tuned import tuned


@pytest.fixture
def part():
    left, right = np.arange(12.0).reshape(4, 3), np.arange(8.0).reshape(4, 2)
    return Part(((Tile(2, 0, 6, 3), left), (Tile(2, 3, 6, 5), right)))


def test_a_cell_that_is_a_chunk_is_not_copied(part):
    (_, left), (_, right) = part.cells
    assert part.chunk((2, 6, 0, 3)) is left
    assert part.chunk((2, 6, 3, 5)) is right
    assert part.nbytes == left.nbytes + right.nbytes


def test_a_chunk_within_a_cell_has_memory_of_its_own(part):
    chunk = part.chunk((3, 5, 1, 3))
    assert chunk.tolist() == [[4.0, 5.0], [7.0, 8.0]]
    assert chunk.base is None


def test_a_chunk_of_another_part_is_refused(part):
    with pytest.raises(KeyError, match="no cells hold"):
        part.chunk((0, 2, 0, 3))


@pytest.mark.parametrize(
    ("cpu", "gave_way", "lacks"),
    [
        (0.0, 0.0, True),
        (0.5, 0.0, True),
        (0.9, 0.0, False),
        (0.5, 0.4, False),  # of what it left to others it would have had its part
        (0.2, 0.4, True),
    ],
)
def test_who_gets_far_less_than_a_core_lacks_cpu(part, cpu, gave_way, lacks):
    progress = Progress(part, Tile(2, 0, 6, 5))
    assert not progress.lacks_cpu  # nothing is known yet
    progress.compute_seconds, progress.gave_way_seconds = 1.0, gave_way
    progress.cpu_seconds["multiply"] = cpu
    assert progress.lacks_cpu is lacks


BANDS = tuned(matmul={"blas_band_rows": 50})


@pytest.fixture
def asked(monkeypatch):
    """The seconds for which shares have given way, each time; a panel has four bands."""
    found = []

    def give_way(self, seconds):
        found.append(seconds)
        original(self, seconds)

    original = Channels.give_way
    monkeypatch.setattr(Channels, "give_way", give_way)
    return found


async def multiplied(c, dtype="f8"):
    """Return the report of a right product by two workers, of 200 rows each."""
    balancer = await fpmdask.Balancer(c)
    x = np.random.default_rng(0).integers(-9, 9, (400, 400)).astype(dtype)
    a = da.from_array(x, chunks=100)
    found = await balancer.matmul(a, a, layout="rows", distribution={"0": 200, "1": 200})
    np.testing.assert_array_equal(await c.compute(found), x @ x)
    return balancer.report


@pytest.mark.parametrize(("dtype", "bands"), [("f8", 4), ("i8", 1)])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, config=BANDS)
async def test_who_lacks_cpu_gives_way(c, s, *workers, asked, monkeypatch, dtype, bands):
    """Before each band; whether it does is decided once per panel."""
    panels, update = [], share.panel_update

    def counted(*args, **options):
        panels.append(1)
        update(*args, **options)

    turns = count()
    monkeypatch.setattr(Progress, "lacks_cpu", property(lambda self: next(turns) % 2 == 0))
    monkeypatch.setattr(share, "panel_update", counted)
    report = await multiplied(c, dtype)
    assert next(turns) == len(panels)
    assert asked == [GIVE_WAY_SECONDS] * (bands * ((len(panels) + 1) // 2))
    assert sum(share["gave_way_seconds"] for share in report.shares) > 0


@pytest.mark.parametrize(("lacks", "threads"), [(False, 1), (True, 2)])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, config=BANDS)
async def test_nobody_else_gives_way(c, s, *workers, asked, monkeypatch, lacks, threads):
    for worker in workers:
        worker.state.nthreads = threads
    monkeypatch.setattr(Progress, "lacks_cpu", lacks)
    report = await multiplied(c)
    assert asked == []
    assert [share["gave_way_seconds"] for share in report.shares] == [0.0, 0.0]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_what_had_the_cpu_while_panels_were_multiplied_is_a_part_of_all(c, s, *workers):
    report = await multiplied(c)
    for cpu in [told["cpu_seconds"] for told in report.shares]:
        assert 0 < cpu["computing"] < cpu["process"]


@pytest.mark.parametrize(("waits", "learned"), [(0.0, True), (0.1, False)])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_share_that_hardly_multiplied_teaches_nothing(
    c, s, *workers, monkeypatch, tuning, waits, learned
):
    """However long it gave way: the seconds of the rest are mostly noise."""
    least = 0.0 if learned else 0.2
    tuning(matmul={"learned_least_seconds": least, "blas_band_rows": 20})
    monkeypatch.setattr(Channels, "give_way", lambda self, seconds: time.sleep(waits))
    monkeypatch.setattr(Progress, "lacks_cpu", True)
    report = await multiplied(c)
    assert all(share["compute_seconds"] > least for share in report.shares)
    kernels = {kernel.name for kernel, _ in s.plugins["fpmdask"].library._models}
    assert (learn.NAME in kernels) is learned


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, timeout=60)
async def test_a_panel_arrives_while_the_one_before_is_multiplied(c, s, *workers, monkeypatch):
    """Every update waits for the next panel: it would wait in vain if that came only after it."""
    arrived, waited = {}, []
    fetch, add = share.Fetcher._fetch, share._Update.add

    def has_come(one, index):
        return arrived.setdefault((one.order["part"], index), threading.Event())

    def fetched(self, index, *args):
        panel = fetch(self, index, *args)
        has_come(self, index).set()
        return panel

    def added(self, progress, *args, **options):
        following = progress.panels_done + 1
        if following < len(self.order["panels"]):
            waited.append(has_come(self, following).wait(20))
        add(self, progress, *args, **options)

    monkeypatch.setattr(share.Fetcher, "_fetch", fetched)
    monkeypatch.setattr(share._Update, "add", added)
    report = await multiplied(c)
    assert len(waited) >= 2 * len(report.shares)
    assert all(waited)


@pytest.mark.parametrize("order", ["C", "F"])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_chunk_that_is_a_panel_goes_to_blas_as_it_lies(c, s, worker, order, monkeypatch):
    """C- and F-ordered and transposed chunks, one by another: no element is copied."""
    taken = []

    def updated(a, b, cell, **options):
        taken.append((a, b))
        update(a, b, cell, **options)

    update = share.panel_update
    monkeypatch.setattr(share, "panel_update", updated)
    x, y = (np.asarray(np.random.default_rng(n).random((60, 60)), order=order) for n in (0, 1))
    futures = await c.scatter([x, y])
    a, b = (
        da.Array({(name, 0, 0): future}, name, chunks=((60,), (60,)), dtype="f8")
        for name, future in zip("ab", futures, strict=True)
    )
    balancer = await fpmdask.Balancer(c)
    await balancer.matmul(a, b, layout="rows", distribution={str(worker.name): 60})
    held = [worker.data[future.key] for future in futures]
    assert taken
    assert all(chunk.flags[f"{order}_CONTIGUOUS"] for chunk in held)
    for panels in taken:
        for panel, chunk in zip(panels, held, strict=True):
            assert np.shares_memory(panel, chunk)
            assert not copied(panel, "f8")
