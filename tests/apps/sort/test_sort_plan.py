"""Who sorts what, and where sorted runs are cut: exact for any keys."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fpmdask.apps.sort.kernel import KINDS, SAMPLE, LocalSort, fill
from fpmdask.apps.sort.plan import exchange
from fpmdask.runtime.placement import SURPLUS, dealt, loads
from fpmdask.sorting.order import stable_order
from fpmdask.sorting.spec import SortSpec
from fpmdask.sorting.splitters import (
    ENOUGH,
    ROUNDS,
    Splitting,
    candidates,
    cuts,
    place_of,
    sample_count,
    sampled,
)
from fpmdask.timing import WorkerContext, check_kernel
from fpmdask.tuning import DEFAULT

DTYPES = ["?", "i1", "u8", "f2", "f8", "c8", "c16", "M8[s]", "m8[ns]", "S5", "U3"]


def test_the_kernel_keeps_its_contract():
    for dtype in DTYPES:
        check_kernel(LocalSort(WorkerContext(), dtype=dtype))
        assert np.dtype(dtype).kind in KINDS


def test_timed_keys_are_not_sorted():
    for dtype in DTYPES:
        keys = np.empty(500, dtype)
        fill(keys, np.random.default_rng(0))
        assert len(np.unique(keys)) > 1
        assert not np.array_equal(np.sort(keys), keys)
    kernel = LocalSort(WorkerContext(), dtype="i4")
    kernel.setup(16_000)
    kernel.run()
    sorted_keys = kernel._keys[1]
    assert (np.diff(sorted_keys.astype("i8")) >= 0).all()
    assert sorted_keys.size == 16_000 // SAMPLE


@st.composite
def clusters(draw):
    workers = [f"w{n}" for n in range(draw(st.integers(1, 6)))]
    everybody = [*workers, "outside"]
    sizes = draw(st.lists(st.integers(0, 50), min_size=1, max_size=12))
    places = [draw(st.lists(st.sampled_from(everybody), min_size=1, max_size=2)) for _ in sizes]
    weights = [draw(st.integers(1, 9)) for _ in workers]
    total = sum(sizes)
    shares = {w: total * n // sum(weights) for w, n in zip(workers, weights, strict=True)}
    shares[workers[0]] += total - sum(shares.values())
    return sizes, places, shares


@given(clusters())
def test_every_key_is_sorted_by_somebody_once(cluster):
    sizes, places, shares = cluster
    made = dealt(sizes, places, shares)
    met = [np.zeros(size, int) for size in sizes]
    for pieces in made.values():
        for piece in pieces:
            met[piece.chunk][piece.low : piece.high] += 1
            assert piece.owner in places[piece.chunk]
    assert all((chunk == 1).all() for chunk in met)
    for worker, share in shares.items():
        assert sum(piece.size for piece in made[worker]) <= SURPLUS * share + 1


def test_balanced_holders_hand_nothing_over():
    made = dealt((100, 104, 96), [["a"], ["b"], ["c"]], {"a": 100, "b": 100, "c": 100})
    assert {w: [p.chunk for p in pieces] for w, pieces in made.items()} == {
        "a": [0],
        "b": [1],
        "c": [2],
    }


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 9)), min_size=1, max_size=7),
    st.floats(0, 0.9),
    st.floats(0, 3),
)
def test_loads_finish_together(workers, moving, room):
    """But for those with nothing left to give, and those whose memory is full."""
    assume(any(weight for _, weight in workers))
    held = {str(n): have for n, (have, _) in enumerate(workers)}
    total, weights = sum(held.values()), sum(weight for _, weight in workers)
    shares = {str(n): total * weight // weights for n, (_, weight) in enumerate(workers) if weight}
    shares[min(shares)] += total - sum(shares.values())
    most = {worker: room * share for worker, share in shares.items()}
    found = loads(held, shares, moving, most)
    assert sum(found.values()) == total
    assert all(units >= 0 for units in found.values())
    finished = {}
    for worker, units in found.items():
        share, have = shares[worker], held[worker]
        assert units <= max(share, most[worker]) + len(workers)
        if len(workers) < units < max(share, most[worker]) - len(workers):
            finished[worker] = (units + moving * abs(units - have)) / max(1, share)
            tolerance = 3 * len(workers) / max(1, share)
            assert all(
                abs(finished[worker] - other) <= tolerance + 3 * len(workers) / max(1, shares[peer])
                for peer, other in finished.items()
            )


@given(clusters(), st.floats(0, 0.9), st.lists(st.floats(2.1, 4), min_size=6, max_size=6))
def test_who_has_room_for_twice_its_share_is_not_given_more_than_fits(cluster, moving, rooms):
    sizes, places, shares = cluster
    shares = {worker: share for worker, share in shares.items() if share}
    assume(shares)
    room = {worker: rooms[n] * share for n, (worker, share) in enumerate(shares.items())}
    held = dict.fromkeys(shares, 0)
    for size, holders in zip(sizes, places, strict=True):
        here = [worker for worker in holders if worker in shares]
        assume(here or not size)
        if here:
            held[here[0]] += size
    most = {worker: (room[worker] - share) / SURPLUS for worker, share in shares.items()}
    for worker, own in dealt(sizes, places, loads(held, shares, moving, most)).items():
        units = sum(piece.size for piece in own)
        assert units + shares[worker] <= room[worker] + len(shares)


def cut_by_plan(runs, ranks, samples):
    tried = candidates([sampled(run, samples) for run in runs], [run.size for run in runs], ranks)
    sides = [[np.searchsorted(run, tried, side) for run in runs] for side in ("left", "right")]
    return cuts(*sides, ranks)


def cut_in_rounds(runs, shares, samples, bucket=None):
    """Return what was found, and how often it was counted."""
    places = [place_of(n, len(runs), 0, 1) for n in range(len(runs))]
    some = [sampled(run, samples, place) for run, place in zip(runs, places, strict=True)]
    found = Splitting(some, [run.size for run in runs], places, shares, bucket=bucket)
    rounds = 0
    while found.tried is not None:
        rounds += 1
        between = found.counted(
            *([np.searchsorted(run, found.tried, side) for run in runs] for side in SIDES)
        )
        if between is not None:
            count, low, high = between
            ends = [[*zip(*pair, strict=True)] for pair in zip(low, high, strict=True)]
            found.refined(
                [
                    [sampled(run[a:b], count) for a, b in e]
                    for run, e in zip(runs, ends, strict=True)
                ]
            )
    return found, rounds


SIDES = ("left", "right")
KEYS = st.one_of(
    st.lists(st.integers(-3, 3), max_size=200),
    st.lists(st.floats(width=32), max_size=200),  # also NaN and infinities
    st.lists(st.integers(-(2**60), 2**60), max_size=200),
)


@given(st.lists(KEYS, min_size=1, max_size=5), st.lists(st.floats(0, 1), min_size=1, max_size=6))
@settings(deadline=None)
def test_cut_runs_are_in_order_and_whole(lists, parts):
    kind = "f8" if any(isinstance(key, float) for keys in lists for key in keys) else "i8"
    runs = [np.sort(np.array(keys, kind)) for keys in lists]
    total = sum(run.size for run in runs)
    if not total:
        return
    ranks = sorted(round(part * total) for part in parts)
    at = cut_by_plan(runs, ranks, 256)
    np.testing.assert_array_equal(at.sum(0), ranks)  # every key is a sample: exact
    edges = np.column_stack([np.zeros(len(runs), int), at, [run.size for run in runs]])
    pairs = [*zip(runs, edges, strict=True)]
    merged = [
        np.sort(np.concatenate([run[edge[n] : edge[n + 1]] for run, edge in pairs]))
        for n in range(len(ranks) + 1)
    ]
    np.testing.assert_array_equal(
        np.concatenate(merged), np.sort(np.concatenate(runs).astype(kind))
    )


@given(
    st.sampled_from(
        ["?", "i1", "u1", "i2", "u2", "i4", "u4", "f2", "f4", "f8", "i8", ">i4", ">f8", "g", "c8"]
    ),
    st.lists(st.one_of(st.integers(-3, 3), st.floats(width=16)), max_size=60),
)
@settings(deadline=None)
def test_orders_are_those_of_a_stable_argsort(dtype, values):
    kind = np.dtype(dtype).kind
    if kind != "f":
        values = [int(v) if np.isfinite(v) else 7 for v in values]
    if kind == "u":
        values = [abs(v) for v in values]
    keys = np.clip(values, -100, 100).astype(dtype) if kind in "iu" else np.array(values, dtype)
    order = stable_order(keys)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))


@given(
    st.sampled_from(["i8", "u8", ">i8", "M8[s]", "m8[ns]", ">M8[D]"]),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.sampled_from([0, 3, 2**20, 2**58, 2**62]),
    st.lists(st.integers(0, 2**64), max_size=60),
    st.booleans(),
)
@settings(deadline=None)
def test_orders_of_whole_numbers_and_dates_in_any_range_are_stable(
    dtype, low, span, values, with_nat
):
    kind = np.dtype(dtype)
    if kind.kind == "u":
        whole = np.array([(low + v % (span + 1)) % 2**64 for v in values], np.uint64)
    else:
        whole = np.array([min(low + v % (span + 1), 2**63 - 1) for v in values], np.int64)
    keys = whole.astype(kind) if kind.kind in "iu" else whole.view(kind.newbyteorder("=")).copy()
    if kind.kind in "mM" and with_nat and keys.size:
        keys[keys.size // 2] = "NaT"
    keys = keys.astype(kind)
    np.testing.assert_array_equal(stable_order(keys), np.argsort(keys, kind="stable"))


def test_everybody_takes_its_own_run_first():
    edges = [np.array([[0, 1, 2], [0, 3, 3], [0, 0, 0]]), np.array([[2, 5], [3, 4], [0, 9]])]
    runs = [("a", 0), ("b", 0), ("b", 1)]
    made = exchange(edges, runs, [5, 4, 9], [("a", 5), ("b", 13)])
    assert made == {
        "a": [(0, [[("a", 0, 0, 1, 5), ("b", 0, 0, 3, 4)], [("a", 0, 1, 2, 5)]])],
        "b": [(1, [[("b", 0, 3, 4, 4), ("b", 1, 0, 9, 9), ("a", 0, 2, 5, 5)]])],
    }


def test_shares_are_met_for_any_keys():
    """Within 1 % of each share with few samples: uniform, skewed, sorted, in few values."""
    random = np.random.default_rng(0)
    units, weights = 600_000, np.array([40, 30, 25, 20, 15, 5])
    shares = units * weights // weights.sum()
    shares[0] += units - shares.sum()
    for name, keys in {
        "uniform": random.random(units),
        "zipf": random.zipf(1.3, units),
        "ordered": np.arange(units),
        "few": random.integers(0, 3, units),
        "one": np.zeros(units),
        "complex NaN": np.where(random.random(units) < 0.5, 1.0, np.nan)
        + 1j * random.random(units),
        "95 %": np.where(random.random(units) < 0.95, 7.0, random.random(units)),
    }.items():
        runs = [np.sort(part) for part in np.array_split(keys, 7)]
        samples = sample_count(units, int(shares.min()), len(runs))
        found, rounds = cut_in_rounds(runs, shares.tolist(), samples)
        assert np.abs(np.diff(found.edges.sum(0)) / shares - 1).max() <= ENOUGH, name
        assert rounds <= 2


@given(st.integers(1, 9), st.integers(1, 12), st.sampled_from([1, 1000, 10**6]), st.data())
@settings(deadline=None, max_examples=30)
def test_shares_are_met_whatever_the_samples_miss(workers, parts, spread, data):
    """Runs of the same keys, of distant ones, and of both: few samples mislead, counts do not."""
    shifts = [data.draw(st.sampled_from([0, 1, spread])) for _ in range(workers)]
    runs = [np.arange(20_000) * 3 + shift for shift in shifts]
    total = sum(run.size for run in runs)
    shares = [total * (n + 1) // parts - total * n // parts for n in range(parts)]
    found, rounds = cut_in_rounds(runs, shares, 16)
    edges = found.edges
    assert np.abs(np.diff(edges.sum(0)) / shares - 1).max() <= ENOUGH
    assert rounds <= ROUNDS
    for n in range(1, parts):
        left = max(
            (run[at - 1] for run, at in zip(runs, edges[:, n], strict=True) if at), default=-1
        )
        right = [run[at] for run, at in zip(runs, edges[:, n], strict=True) if at < run.size]
        assert left <= min(right, default=left)


def test_equal_runs_do_not_mislead_the_samples():
    runs = [np.arange(1_000_000)] * 8
    samples = sample_count(8_000_000, 1_000_000, 8)
    found, rounds = cut_in_rounds(runs, [1_000_000] * 8, samples)
    assert np.abs(np.diff(found.edges.sum(0)) / 1e6 - 1).max() <= ENOUGH
    assert rounds == 1


@given(
    st.lists(KEYS, min_size=1, max_size=5),
    st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    st.integers(1, 300),
)
@settings(deadline=None)
def test_buckets_are_in_order_and_whole(lists, weights, bucket):
    """All keys of a bucket are below those of the next one; equal ones of a part are in one."""
    kind = "f8" if any(isinstance(key, float) for keys in lists for key in keys) else "i8"
    runs = [np.sort(np.array(keys, kind)) for keys in lists]
    total = sum(run.size for run in runs)
    assume(total)
    ends = [total * sum(weights[:n]) // sum(weights) for n in range(len(weights) + 1)]
    found, _ = cut_in_rounds(runs, [b - a for a, b in pairwise(ends)], 16, bucket)
    buckets = found.buckets()
    assert len(buckets) == len(weights)
    for part, cuts_of_part in enumerate(buckets):
        np.testing.assert_array_equal(cuts_of_part[:, 0], found.edges[:, part])
        np.testing.assert_array_equal(cuts_of_part[:, -1], found.edges[:, part + 1])
        assert (np.diff(cuts_of_part, axis=1) >= 0).all()
        below = None
        for low, high in pairwise(cuts_of_part.T.tolist()):
            of_runs = zip(runs, low, high, strict=True)
            keys = np.sort(np.concatenate([run[a:b] for run, a, b in of_runs]))
            if keys.size:
                assert below is None or np.sort([below, keys[0]])[0] == below
                assert below is None or keys[0] != below
                below = keys[-1]


@pytest.mark.parametrize("bucket", [20_000, 999_999, None])
def test_buckets_have_about_the_size_that_was_asked_for(bucket):
    random = np.random.default_rng(0)
    runs = [np.sort(random.random(300_000)) for _ in range(4)]
    shares = [700_000, 100_000, 400_000]
    found, rounds = cut_in_rounds(runs, shares, 2000, bucket)
    assert rounds == 1
    for share, cuts_of_part in zip(shares, found.buckets(), strict=True):
        sizes = np.diff(cuts_of_part.sum(0))
        wanted = 1 if bucket is None else max(1, -(-(share - bucket // 2) // bucket))
        assert sizes.size == wanted
        if wanted > 1:
            np.testing.assert_allclose(sizes[:-1], bucket, rtol=0.2)


def test_a_bucket_has_no_fewer_keys_than_it_pays_to_send():
    assert SortSpec(np.dtype("f8"), (96_000_000,), "x").bucket() == 1 << 20
    assert SortSpec(np.dtype("f4"), (96_000_000,), "x").bucket() == 1 << 21
    assert (
        SortSpec(np.dtype("f8"), (2**30, 2**30), "x").bucket() == 2**31 // DEFAULT.sort.most_buckets
    )
    assert SortSpec(np.dtype("f8"), (96_000_000,), "x", index=True).bucket() is None
