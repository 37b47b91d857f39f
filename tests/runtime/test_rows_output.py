"""Rows of a team, written to Zarr arrays: who writes which chunks, and what is in them."""

import asyncio
import pickle
import tracemalloc
from itertools import pairwise
from statistics import median

import numpy as np
import pytest
import zarr
from distributed.utils_test import gen_cluster
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.runtime.chunk_writers import MOST, MOST_RATIO, TRANSFER, writers
from fpmdask.runtime.client.output import Output
from fpmdask.runtime.worker.reduce import AllReduce
from fpmdask.runtime.worker.rows_output import RowsOutput
from fpmdask.runtime.zarr_storage import OUT_MARK
from tests.runtime.test_exchange import exchanges


@st.composite
def teams(draw):
    lengths = draw(st.lists(st.integers(0, 400), min_size=1, max_size=8))
    edges = np.cumsum([0, *lengths]).tolist()
    spans = {f"w{n}": span for n, span in enumerate(pairwise(edges))}
    speed = st.one_of(st.just(0.0), st.floats(0.01, 100))
    return spans, draw(st.integers(1, 60)), {worker: draw(speed) for worker in spans}


def having(spans, speeds):
    return {w for w, (low, high) in spans.items() if low < high or speeds[w]}


def seconds(found, spans, unit, speeds):
    """Return when each worker has encoded, sent and received its chunks."""
    total = dict.fromkeys(spans, 0.0)
    for (low, high), worker in found:
        for first in range(low, high, unit):
            owner = next(w for w, (a, b) in spans.items() if a <= first < b)
            total[worker] += 1.0 / speeds[worker]
            if owner != worker:
                total[worker] += TRANSFER / speeds[worker]
                total[owner] += TRANSFER / speeds[owner]
    return max(total.values())


@given(teams())
def test_each_chunk_has_one_writer(team):
    spans, unit, speeds = team
    found = writers(spans, unit, speeds)
    total = max(high for _, high in spans.values())
    edges = [0, *(high for (_, high), _ in found)]
    assert [low for (low, _), _ in found] == edges[:-1]
    assert edges[-1] == total
    assert all(edge % unit == 0 for edge in edges[:-1])
    assert all(one != other for (_, one), (_, other) in pairwise(found))
    assert {worker for _, worker in found} <= having(spans, speeds)


@given(teams())
def test_nobody_is_done_later_than_with_chunks_at_home(team):
    spans, unit, speeds = team
    speeds = {worker: speed or 1.0 for worker, speed in speeds.items()}
    most = MOST_RATIO * median(speeds.values())
    speeds = {worker: min(most, speed) for worker, speed in speeds.items()}
    total = max(high for _, high in spans.values())
    if total > unit * MOST * len(spans):
        return  # chunks are counted in groups
    ours = seconds(writers(spans, unit, speeds), spans, unit, speeds)
    home = seconds(writers(spans, unit, {}), spans, unit, speeds)
    assert ours <= home * (1 + 1e-9)


def test_the_fast_one_takes_over_from_one_with_much_memory():
    spans = {"small": (0, 300), "large": (300, 1300), "fast": (1300, 1300)}
    speeds = {"small": 1.0, "large": 1.0, "fast": 2.0}
    found = writers(spans, 10, speeds)
    rows = {w: sum(high - low for (low, high), who in found if who == w) for w in spans}
    assert rows["fast"] > 500
    assert seconds(found, spans, 10, speeds) < 0.5 * seconds(
        writers(spans, 10, {}), spans, 10, speeds
    )
    assert writers(spans, 10, dict.fromkeys(spans, 0.0)) == writers(spans, 10, {})


def test_chunks_are_not_looked_at_one_by_one():
    many = 10**12
    spans = {"b": (many, 3 * many), "none": (many, many), "a": (0, many)}
    assert writers(spans, 1, {}) == [((0, many), "a"), ((many, 3 * many), "b")]
    found = writers(spans, 1, {"a": 1.0, "b": 1.0})
    assert sum(high - low for (low, high), who in found if who == "a") > 1.4 * many


class OnDisk:
    """Rows that are read when they are sent."""

    def __init__(self, rows):
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype

    def read(self, box):
        return self.rows[tuple(slice(*span) for span in box)].copy()


@pytest.mark.slow
@pytest.mark.parametrize("compressors", ["auto", None])
@pytest.mark.parametrize("kind", [np.asarray, OnDisk])
@gen_cluster(
    client=True, nthreads=[("127.0.0.1", 1)] * 3, timeout=120, clean_kwargs={"threads": False}
)
async def test_rows_are_written_by_who_is_fast(c, s, *workers, tmp_path, compressors, kind):
    """Two snapshots, with rows in memory and on disk, of chunks that are nobody's alone."""
    values = np.random.default_rng(0).random((2, 200, 6))
    out = zarr.create_array(
        tmp_path / "out", shape=values.shape, chunks=(1, 7, 4), dtype="f8", compressors=compressors
    )
    out.attrs[OUT_MARK] = {"run": "it"}
    order = {"run": "it", "arrays": [pickle.dumps(out)], "every": 2, "begin": 0}
    async with exchanges(c, *workers) as team:
        ranks = [exchange.address for exchange in team]
        spans = dict(zip(ranks, [(0, 20), (20, 180), (180, 200)], strict=True))

        def work(exchange, speed):
            output = RowsOutput(
                exchange, AllReduce(exchange, "all", ranks), "a", order, exchange.address
            )
            rows, found = spans[exchange.address], []
            for turn in range(2):
                assert output.due(2 * turn + 2)
                source = kind(values[turn, slice(*rows)])
                found.append(output.save(spans, 2 * turn + 2, [source], speed))
            assert not [key for key in exchange.offers if "rows to write" in key]
            return found

        received = await asyncio.gather(*map(asyncio.to_thread, [work] * 3, team, [5.0, 1.0, 0.0]))
    np.testing.assert_array_equal(out[...], values)
    first, second, _ = received
    row = values[0, 0].nbytes
    if compressors is None:  # rows beside its own, to the end of a chunk
        assert first == [row, row]
    else:
        assert first[0] > 80 * row
        assert first[0] > second[0]


@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize("kind", [np.asarray, OnDisk])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], clean_kwargs={"threads": False})
async def test_large_chunks_are_encoded_one_at_a_time(c, s, worker, tmp_path, every, kind):
    """A worker with little memory has none for a copy of all its rows."""
    rows, chunk = 24, (8, 1 << 19)  # 32 MiB
    values = np.random.default_rng(0).random((rows, chunk[1]))
    shape, chunks = values.shape, chunk
    if every is not None:
        shape, chunks = (1, *shape), (1, *chunks)
    out = zarr.create_array(tmp_path / "out", shape=shape, chunks=chunks, dtype="f8")
    out.attrs[OUT_MARK] = {"run": "it"}
    order = {"run": "it", "arrays": [pickle.dumps(out)], "every": every, "begin": 0}
    async with exchanges(c, worker) as (exchange,):
        ranks, spans = [exchange.address], {exchange.address: (0, rows)}
        output = RowsOutput(exchange, AllReduce(exchange, "all", ranks), "a", order, "alice")

        def save():
            tracemalloc.start()
            output.save(spans, 1, [kind(values)], 1.0)
            return tracemalloc.get_traced_memory()[1]

        try:
            peak = await asyncio.to_thread(save)
        finally:
            tracemalloc.stop()
    copies = 1 if kind is np.asarray else 2  # what it is encoded to, and what was read
    assert peak < (copies + 0.5) * values[: chunk[0]].nbytes
    np.testing.assert_array_equal(out[...].reshape(values.shape), values)


@pytest.mark.parametrize(
    ("chunks", "rows"),
    [
        ((8, 1 << 17), 24),
        ((8, 1 << 16), 24),
        ((8, 3 << 16), 24),
        ((32, 1 << 17), 24),
        ((8, 1 << 17), 20),
        ((3, 8, 1 << 17), 24),
    ],
)
def test_what_a_worker_keeps_free_for_writing_is_what_zarr_takes(tmp_path, chunks, rows):
    """For any of its chunks, and for each snapshot that is in one.

    What part of a chunk is encoded to has room for a whole one, of which the rest is not touched.
    """
    values = np.random.default_rng(0).random((rows, 1 << 17))
    snapshots = len(chunks) > 2
    shape = (2, *values.shape) if snapshots else values.shape
    out = zarr.create_array(tmp_path / "out", shape=shape, chunks=chunks, dtype="f8")
    output = Output(out, values.shape, [values.dtype], False, 1 if snapshots else None, 1)
    kept, most, peaks = output.order()["nbytes"], chunks[-2], []
    for snapshot in [(0,), (1,)] if snapshots else [()]:
        for low in range(0, rows, most):
            span = slice(low, min(low + most, rows))
            tracemalloc.start()
            try:
                out[(*snapshot, span)] = values[span]
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
    assert 0.7 * kept < max(peaks) < (1.2 if rows % most else 1.05) * kept
