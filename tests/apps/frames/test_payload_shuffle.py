"""Rows that travel with their keys: frames of NumPy's dtypes, on workers that differ and leave."""

import asyncio
import time
from itertools import pairwise

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import futures_of, wait
from hypothesis import given
from hypothesis import strategies as st

import fpmdask
from fpmdask.apps.frames.client import payload_shuffle, rebalance_rows
from fpmdask.apps.frames.client import sort_values as frames
from fpmdask.apps.frames.client.rebalance_rows import cut_up
from fpmdask.apps.frames.tasks import rows
from fpmdask.apps.sort.coordinator import run
from fpmdask.runtime.coordinator import chunks
from fpmdask.runtime.coordinator.library import ModelLibrary
from fpmdask.runtime.placement import Piece
from fpmdask.sorting import payload
from fpmdask.sorting.payload import Part, Payload, gathered, run_edges, sections
from fpmdask.sorting.words import packed
from fpmdask.tuning import SortTuning
from tests.apps.frames.test_sort_values import (
    FRAME,
    ROWS,
    check_sorted,
    cluster,
    frame_of,
)
from tests.eventually import in_memory, nothing_left, until

PLAIN = FRAME[["float", "few", "whole", "flag", "date", "delta"]]
LABELS = PLAIN[["few", "flag", "float"]].set_axis([0, "a", None], axis=1).set_axis(PLAIN.date)
KEYS = [
    *((column, n % 2 == 0) for n, column in enumerate(PLAIN.columns)),
    (["few", "float"], [True, False]),
    (["flag", "few", "date"], [False, True, False]),
    (["few", "id"], False),
    ("id", False),
]


def of_all_widths():
    random = np.random.default_rng(4)
    columns = {}
    for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"):
        ends = np.iinfo(kind)
        columns[kind] = random.integers(ends.min, ends.max, ROWS, kind, endpoint=True)
    floats = random.choice([-0.0, 0.0, -np.inf, np.inf, np.nan, 1.5, -2.0], ROWS)
    for kind in ("f2", "f4", "f8", "c8"):
        columns[kind] = floats.astype(kind)
    for kind in ("M8[s]", "M8[ms]", "m8[s]"):
        columns[kind] = random.integers(-9, 9, ROWS).view(kind)
    return pd.DataFrame(columns, PLAIN.index)


@pytest.fixture
def no_other_way(monkeypatch):
    """Rows that do not travel with their keys fail."""

    async def fetched(*given):
        raise AssertionError("rows were fetched")

    monkeypatch.setattr(frames, "delivered", fetched)


@pytest.mark.slow
@cluster(nthreads=2)
async def test_plain_rows_sort_as_in_pandas(c, s, *workers, no_other_way, tuning):
    tuning(sort={"run_bits": 6, "row_block": 50})
    balancer = await fpmdask.Balancer(c)
    x = c.persist(frame_of(PLAIN, 11))
    for n, (by, ascending) in enumerate(KEYS):
        na_position = ("last", "first")[n % 2]
        found = await balancer.sort_values(x, by, ascending, na_position)
        await check_sorted(c, found, PLAIN, by, ascending, na_position)
        phases = {"sort", "exchange", "merge"}
        assert all(phases <= share["phases"].keys() for share in balancer.report.shares)
    del found, x
    await nothing_left(s)


@pytest.mark.slow
@cluster()
async def test_columns_of_all_widths_sort_as_in_pandas(c, s, *workers, no_other_way):
    balancer = await fpmdask.Balancer(c)
    pdf = of_all_widths()
    x = c.persist(frame_of(pdf))
    for n, by in enumerate(pdf.columns.drop("c8")):  # complex numbers travel, but have no order
        found = await balancer.sort_values(x, by, n % 2 == 0)
        await check_sorted(c, found, pdf, by, n % 2 == 0)


@cluster()
async def test_labels_of_any_kind_and_no_columns(c, s, *workers, no_other_way):
    balancer = await fpmdask.Balancer(c)
    found = await balancer.sort_values(frame_of(LABELS), 0, ascending=False)
    await check_sorted(c, found, LABELS, 0, ascending=False)
    bare = pd.DataFrame(index=pd.Index(np.arange(ROWS)[::-1], name="n"))
    found = await balancer.sort_values(frame_of(bare), "n", ascending=False)
    await check_sorted(c, found, bare, "n", ascending=False)


@cluster()
async def test_rows_of_one_prefix_are_put_in_order_in_one_part(
    c, s, *workers, no_other_way, monkeypatch
):
    monkeypatch.setattr(frames, "words_needed", lambda *given: 1)
    balancer = await fpmdask.Balancer(c)
    few = PLAIN.assign(whole=PLAIN.whole % 3 + 2.0**62, float=PLAIN.float.fillna(0))
    found = await balancer.sort_values(frame_of(few), ["whole", "float"], [True, False])
    await check_sorted(c, found, few, ["whole", "float"], [True, False])
    apart = np.repeat(np.random.default_rng(3).permutation(ROWS // 3), 3) * 2.0**40
    triples = PLAIN.assign(whole=apart + PLAIN.few, far=-(2.0**62))
    # even shares: what the first sort took says little, but would count where it was slow
    s.plugins["fpmdask"].library = ModelLibrary()
    found = await balancer.sort_values(frame_of(triples), ["far", "whole", "float"])
    await check_sorted(c, found, triples, ["far", "whole", "float"])
    assert min(await c.gather(c.map(len, futures_of(found), pure=False))) > ROWS / 4


@pytest.mark.parametrize(("lost", "words"), [("raw", 1), ("frames", 1), ("frames", 2)])
@cluster()
async def test_what_is_lost_is_made_again(c, s, *workers, lost, words, no_other_way, monkeypatch):
    """Before frames are made of what the run has published, and after that."""
    monkeypatch.setattr(frames, "words_needed", lambda *given: words)
    left = []

    async def framed(homes, made, *given):
        if not left and lost == "raw":
            while not all(s.tasks[key].run_spec for key in made.__dask_keys__()):
                await asyncio.sleep(0.01)
            left.append(await workers[1].close(timeout=1))
        return await original(homes, made, *given)

    original = payload_shuffle._framed
    monkeypatch.setattr(payload_shuffle, "_framed", framed)
    balancer = await fpmdask.Balancer(c)
    x = c.persist(frame_of(PLAIN, 12))
    found = await balancer.sort_values(x, ["flag", "whole"], [True, False])
    await workers[0].close(timeout=1)
    await check_sorted(c, found, PLAIN, ["flag", "whole"], [True, False])
    del found, x
    await nothing_left(s)


@cluster()
async def test_partitions_of_several_dtypes(c, s, *workers):
    """One that cannot travel keeps the others; one without rows does not, nor in what is remade."""
    k = np.random.default_rng(3).permutation(60)
    pieces = [pd.DataFrame({"k": k[n : n + 20], "v": k[n : n + 20]}) for n in (0, 20, 40)]
    balancer = await fpmdask.Balancer(c)
    for dtype, rows_of in (("Float64", 20), ("float64", 0), ("object", 0)):
        given = [pieces[0], pieces[1].iloc[:rows_of].astype({"v": dtype}), pieces[2]]
        x = c.persist(dd.from_map(lambda piece: piece, given, meta=pieces[0].iloc[:0]))
        await wait(x)
        found = await balancer.sort_values(x, "k")
        kept = pd.concat([piece for piece in given if len(piece)]).sort_values("k")
        np.testing.assert_array_equal((await c.compute(found)).v, kept.k)
        assert ("fetched" in balancer.report.layout["rows"]) == (rows_of > 0)
        if rows_of == 0 and dtype == "float64":
            await workers[0].close(timeout=1)
            np.testing.assert_array_equal((await c.compute(found)).v, kept.k)


@cluster()
async def test_the_report_says_that_keys_do_not_hold_all(c, s, *workers, monkeypatch):
    monkeypatch.setattr(frames, "words_needed", lambda *given: 2)
    balancer = await fpmdask.Balancer(c)
    by = ["float", "whole", "date"]
    found = await balancer.sort_values(frame_of(PLAIN), by)
    await check_sorted(c, found, PLAIN, by)
    assert "keys of 2 words do not hold all" in balancer.report.layout["rows"]


@cluster(workers=2)
async def test_where_memory_is_short_rows_are_fetched(c, s, *workers, monkeypatch):
    # enough for keys, twice; not for rows beside them
    monkeypatch.setattr(chunks, "free_nbytes", lambda context, address: 20 * ROWS / 2)
    balancer = await fpmdask.Balancer(c)
    pdf = PLAIN[["whole"]]
    found = await balancer.sort_values(frame_of(pdf), "whole")
    assert "do not fit" in balancer.report.layout["rows"]
    await check_sorted(c, found, pdf, "whole")


@cluster(workers=2)
async def test_runs_and_parts_of_rows_have_to_fit_together(c, s, *workers, monkeypatch):
    """Where one worker holds all rows: neither what these need nor its share is too much alone."""
    for module in (run, chunks):
        monkeypatch.setattr(module, "free_nbytes", lambda context, address: 40 * ROWS)
    balancer = await fpmdask.Balancer(c)
    pdf = PLAIN[["whole"]]
    x = c.persist(frame_of(pdf, 2), workers=[workers[0].address])
    await wait(x)
    found = await balancer.sort_values(x, "whole")
    assert "do not fit" in balancer.report.layout["rows"]
    await check_sorted(c, found, pdf, "whole")


@cluster(workers=2)
async def test_shares_are_revised_within_the_room_for_runs_and_parts(
    c, s, *workers, no_other_way, monkeypatch
):
    """Of narrow frames without an index of their own: the numbers of rows travel, too."""

    async def revised(self, shares, taken, bounds):
        seen.append((taken, bounds))
        return dict(shares)

    seen = []
    monkeypatch.setattr(run.Speeds, "revised", revised)
    for module in (run, chunks):
        monkeypatch.setattr(module, "free_nbytes", lambda context, address: 100 * ROWS)
    balancer = await fpmdask.Balancer(c)
    pdf = pd.DataFrame({"flag": PLAIN.flag.to_numpy()})
    found = await balancer.sort_values(frame_of(pdf), "flag")
    await check_sorted(c, found, pdf, "flag")
    [(taken, bounds)] = seen
    for worker, (rows_held, _) in taken.items():
        in_runs, in_parts = rows_held * (8 + 9), bounds[worker] * (8 + 9 + 8 + 8)
        assert 0 < in_runs + in_parts <= 100.01 * ROWS


@cluster()
async def test_rows_without_a_value_are_on_all_workers(c, s, *workers):
    """Whichever way they go: they have one prefix."""
    values = np.random.default_rng(1).random(ROWS)
    pdf = pd.DataFrame({"v": np.where(values < 0.7, np.nan, values), "n": range(ROWS)})
    balancer = await fpmdask.Balancer(c)
    for frame in (pdf, pdf.astype({"n": "Int64"})):
        found = await balancer.sort_values(frame_of(frame), "v")
        await check_sorted(c, found, frame, "v")
        sizes = await c.gather(c.map(len, futures_of(found), pure=False))
        assert max(sizes) < 0.5 * ROWS


@cluster()
async def test_what_was_handed_over_and_lost_is_waited_for(c, s, *workers, monkeypatch, tuning):
    tuning(sort={"few_rows": 0}, runtime={"most_attempts": 3})
    addresses = [worker.address for worker in workers]
    monkeypatch.setattr(
        fpmdask.Balancer, "_follow", dealing(fpmdask.Balancer._follow, addresses, [ROWS, 0, 0])
    )
    left = []

    async def over(*given):
        found = await rebalance_rows.handed_over(*given)
        if not left:
            left.append(await workers[0].close(timeout=1))
        return found

    monkeypatch.setattr(frames, "handed_over", over)
    balancer = await fpmdask.Balancer(c)
    x = c.persist(frame_of(PLAIN, 7))
    await wait(x)
    found = await asyncio.wait_for(balancer.sort_values(x, "whole"), 60)
    await check_sorted(c, found, PLAIN, "whole")


def dealing(original, addresses, shares):
    """Have rows dealt out in these shares."""

    async def follow(balancer, app, spec, heard=None):
        value, report = await original(balancer, app, spec, heard)
        if app == "sort.deal":
            value["shares"] = dict(zip(addresses, shares, strict=True))
        return value, report

    return follow


@pytest.mark.parametrize("step", ["sort", "exchange", "publish"])
@cluster()
async def test_a_worker_that_leaves_costs_nothing_but_time(c, s, *workers, step):
    left = []

    def progress(event):
        if event["event"] == "step" and event["step"] == step and not left:
            left.append(asyncio.ensure_future(workers[1].close(timeout=1)))

    balancer = await fpmdask.Balancer(c, progress=progress)
    x = c.persist(frame_of(PLAIN, 12))
    await wait(x)
    found = await asyncio.wait_for(balancer.sort_values(x, "float"), 60)
    assert left
    await left[0]
    await check_sorted(c, found, PLAIN, "float")
    del found, x
    await nothing_left(s)


@pytest.mark.slow
@cluster()
async def test_who_holds_all_rows_is_not_taken_for_hanging(
    c, s, *workers, no_other_way, monkeypatch
):
    def slowly(*given, **options):
        time.sleep(2.5)
        return gathered(*given, **options)

    monkeypatch.setattr(payload, "gathered", slowly)
    balancer = await fpmdask.Balancer(c)
    x = c.persist(frame_of(PLAIN), workers=[workers[0].address])
    await wait(x)
    with dask.config.set({"fpmdask.hang": "1s"}):
        found = await balancer.sort_values(x, "float")
    assert not balancer.report.left_out
    await check_sorted(c, found, PLAIN, "float")


@cluster()
async def test_slow_workers_hand_rows_over(c, s, *workers, no_other_way, monkeypatch, tuning):
    tuning(sort={"few_rows": 0})
    addresses = [worker.address for worker in workers]

    shares = [ROWS // 2, ROWS // 2 - 10, 10]
    follow = dealing(fpmdask.Balancer._follow, addresses, shares)
    monkeypatch.setattr(fpmdask.Balancer, "_follow", follow)
    handed = []

    async def over(*given):
        partitions, sizes, received = await rebalance_rows.handed_over(*given)
        places = await c.who_has(partitions)
        held = dict.fromkeys(addresses, 0)
        for future, size in zip(partitions, sizes, strict=True):
            (place,) = places[future.key]
            held[place] += size
        assert len(received) == 2
        handed.append(held)
        return partitions, sizes, received

    monkeypatch.setattr(frames, "handed_over", over)
    balancer = await fpmdask.Balancer(c)
    x = c.persist(frame_of(PLAIN, 7), workers=addresses[2])  # the others receive
    await wait(x)
    before = in_memory(s)
    found = await balancer.sort_values(x, "whole")
    held = [handed[0][address] for address in addresses]
    assert held == pytest.approx([ROWS // 2, ROWS // 2 - 10, 10], rel=0.11)
    await check_sorted(c, found, PLAIN, "whole")
    own = {future.key for future in futures_of(found)}
    await until(lambda: in_memory(s) - before == own)
    del found, x
    await nothing_left(s)


@cluster()
async def test_workers_are_measured_before_rows_are_handed_over(c, s, *workers, tuning):
    tuning(sort={"few_rows": 0, "few_keys": 0})
    balancer = await fpmdask.Balancer(c)
    x = c.persist(frame_of(PLAIN))
    await balancer.sort_values(x, "float")
    report = balancer.report
    assert (report.app, report.reason) == ("sort", "measured")
    assert report.rounds
    assert [*report.phases] == ["keys", "prepare", "measure", "sort", "rows"]
    assert all(seconds > 0 for seconds in report.phases.values())
    await balancer.sort_values(x, "float")
    assert (balancer.report.reason, balancer.report.rounds) == ("known", ())


def memory(label, size, dtype):
    return np.empty(size, dtype)


@pytest.mark.parametrize("run_bits", [19, 4])
@given(st.data())
def test_rows_are_put_in_the_order_of_their_keys(run_bits, data):
    """What workers do: a run's rows are put in order, sent in slices, and put in order again."""
    seed = data.draw(st.integers(0, 999))
    random = np.random.default_rng(seed)
    sizes = tuple(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=5)))
    numbers = random.permutation(len(sizes))
    cut = data.draw(st.integers(0, len(sizes)))
    bundles = tuple(tuple(map(int, bundle)) for bundle in (numbers[:cut], numbers[cut:]))
    bundles = tuple(bundle for bundle in bundles if bundle)
    row_bits = 6 + len(sizes).bit_length()
    whole = data.draw(st.booleans())
    frame = [pd.DataFrame({"v": random.integers(0, 5, size).astype("u1")}) for size in sizes]
    what = Payload(tuple(sizes), sizes, bundles, ("<i8", "|u1"), row_bits, 6, whole, None)
    keys, columns, pieces = [], ([], []), []
    for chunk, bundle in enumerate(bundles):
        own = []
        for n in bundle:
            bits = frame[n].v.to_numpy().astype("u8"), 3
            own.append(packed([bits], np.arange(sizes[n]) + (n << 6), 1, row_bits))
        made = np.concatenate(own)
        full = [frame[n] for n in bundle if sizes[n]]
        if not full:
            continue
        for number, (low, high) in enumerate(pairwise(run_edges(made.size, run_bits))):
            run_keys = np.sort(made[low:high])
            rows_of = [np.empty(run_keys.size, word) for word in what.words]
            gathered(what, payload.columns_of(full), low, run_keys, rows_of, memory)
            keys.append(run_keys)
            pieces.append((chunk, number, run_keys.size))
            for column, one in zip(columns, rows_of, strict=True):
                column.append(one)
    if not keys:
        return
    every = np.sort(np.concatenate(keys))
    memory_of_part = Part(what, every.dtype, every.size, SortTuning(run_bits=run_bits))
    memory_of_part.keys[:] = every
    for column, rows_of in zip(memory_of_part.columns, columns, strict=True):
        column[:] = np.concatenate(rows_of)
    part = memory_of_part.in_order(pieces)
    expected = pd.concat(frame).sort_values("v", kind="stable")
    (index, values), end = sections(what.dtypes, every.size)
    np.testing.assert_array_equal(part[index : index + 8 * every.size].view("i8"), expected.index)
    np.testing.assert_array_equal(part[values : values + every.size], expected.v)
    same = np.unpackbits(part[end:], count=0 if whole else every.size)
    if not whole:
        np.testing.assert_array_equal(same[1:], np.diff(expected.v) == 0)


def test_pieces_of_a_chunk_are_in_order():
    pieces = {"a": [Piece(0, 5, 9, "b"), Piece(1, 0, 0, "a")], "b": [Piece(0, 0, 5, "b")]}
    assert cut_up(pieces) == {0: [(0, 5, "b"), (5, 9, "a")]}


def test_partitions_with_other_columns_do_not_travel():
    looks = [rows.look_at(frame, frames_order()) for frame in (PLAIN, PLAIN[["float", "few"]])]
    assert payload_shuffle.form_of(looks[:1]) == 0
    assert payload_shuffle.form_of(looks) is None
    other = rows.look_at(FRAME, frames_order())
    assert payload_shuffle.form_of([other]) is None
    assert payload_shuffle.form_of([looks[0], other]) is None
    empty = rows.look_at(FRAME.iloc[:0], frames_order())
    assert payload_shuffle.form_of([empty, looks[0]]) == 1
    assert payload_shuffle.form_of([empty]) is None


def frames_order():
    return rows.Order(("float",), (False,), (True,), "last", (np.dtype("f8"),))
