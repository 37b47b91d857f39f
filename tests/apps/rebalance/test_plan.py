"""Who gets which rows: all of them, in their shares, and no more move than must."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.apps.rebalance.client import MOST_PLACES, _starts, cuts_of
from fpmdask.apps.rebalance.plan import blocks_of, planned, units_of
from fpmdask.apps.rebalance.spec import Cuts, RebalanceSpec
from fpmdask.apps.rebalance.tasks import RowsKernel
from fpmdask.errors import KernelError, PartitionError
from fpmdask.runtime.rows import Rows, held
from fpmdask.runtime.worker.serialized_rows import packed, unpacked

WORKERS = "abcd"


@st.composite
def placements(draw):
    """Return lengths of chunks, the owner of each, and shares of all rows."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    owners = draw(
        st.lists(st.sampled_from([*WORKERS, None]), min_size=len(lengths), max_size=len(lengths))
    )
    rows = sum(lengths)
    cuts = sorted(draw(st.lists(st.integers(0, rows), min_size=3, max_size=3)))
    shares = dict(zip(WORKERS, np.diff([0, *cuts, rows]).tolist(), strict=True))
    return np.cumsum([0, *lengths]).tolist(), owners, shares


def rows_in(spans):
    return {row for start, stop in spans for row in range(start, stop)}


@given(placements())
def test_every_row_has_one_place_and_no_more_move_than_the_shares_demand(given):
    edges, owners, shares = given
    before = held(edges, owners)
    found = planned(Cuts(edges[-1]), before, shares)
    every = sorted(span for spans in found.values() for span in spans)
    assert all(one[1] == two[0] for one, two in pairwise(every))
    assert sum(stop - start for start, stop in every) == edges[-1]
    for worker, share in shares.items():
        own = rows_in(found[worker])
        assert len(own) == share
        had = rows_in(before.get(worker, ()))
        assert len(own & had) == min(share, len(had))
        assert all(one[1] < two[0] for one, two in pairwise(found[worker]))
    assert len(every) <= sum(map(len, before.values())) + 2 * len(WORKERS)


@given(placements(), st.data())
def test_groups_stay_whole_and_shares_are_met_within_a_group(given, data):
    edges, owners, shares = given
    rows = edges[-1]
    inner = data.draw(st.sets(st.integers(1, max(1, rows - 1)), max_size=6)) if rows > 1 else set()
    places = sorted({0, rows, *inner})
    weights = np.array(data.draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows)))
    units = np.concatenate([[0], np.cumsum(weights)])[places]
    cuts = Cuts(rows, places, units)
    scaled = {worker: share * cuts.total / max(1, rows) for worker, share in shares.items()}
    found = planned(cuts, held(edges, owners), scaled)
    every = sorted(span for spans in found.values() for span in spans)
    assert sum(stop - start for start, stop in every) == rows
    assert {row for span in every for row in span} <= set(places)
    largest = max(np.diff(units), default=0)
    for worker, share in scaled.items():
        assert abs(units_of(cuts, found[worker]) - share) <= len(WORKERS) * largest + 1e-6


@given(placements())
def test_chunks_that_stay_whole_are_alone(given):
    edges, owners, shares = given
    plan = planned(Cuts(edges[-1]), held(edges, owners), shares)
    for worker, spans in plan.items():
        here = {n for n, owner in enumerate(owners) if owner == worker}
        blocks = blocks_of(Cuts(edges[-1]), edges, spans, here)
        assert rows_in(blocks) == rows_in(spans)
        assert all(one[1] <= two[0] for one, two in pairwise(blocks))
        for n in here:
            whole = edges[n], edges[n + 1]
            if whole[0] < whole[1] and rows_in([whole]) <= rows_in(spans):
                assert whole in blocks


def test_a_spec_survives_its_message():
    rows = Rows((("x", 0), ("x", 1)), (2, 3), 0, "<f8", (0, 4))
    for cuts in (Cuts(5), Cuts(5, [0, 2, 5], [0.0, 1.5, 2.0])):
        found = RebalanceSpec.from_json(RebalanceSpec((rows,), cuts).to_json())
        assert found.inputs == (rows,)
        assert [found.cuts.units(n) for n in range(3)] == [cuts.units(n) for n in range(3)]
        assert (found.cuts.last, found.cuts.row(1)) == (cuts.last, cuts.row(1))


def test_many_places_become_few_with_all_edges_among_them():
    rows = 3 * MOST_PLACES
    edges = [0, 77_777, 100_001, rows]
    weights = np.random.default_rng(0).random(rows)
    cuts = cuts_of(weights, None, edges)
    assert cuts.last <= MOST_PLACES + len(edges)
    assert all(cuts.row(cuts.place(edge)) == edge for edge in edges)
    assert cuts.total == pytest.approx(weights.sum())
    third = cuts.row(cuts.nearest(cuts.total / 3))
    assert weights[:third].sum() == pytest.approx(cuts.total / 3, abs=4)


def test_groups_must_be_contiguous():
    assert _starts(np.array(["a", "a", "b"]), 3).tolist() == [0, 2, 3]
    assert _starts(np.array([], int), 0).tolist() == [0]
    with pytest.raises(PartitionError, match="group 1 begins again at row 2"):
        _starts([1, 2, 1], 3)


@pytest.mark.parametrize(
    "value",
    [np.arange(0), {"a": np.zeros((2, 0))}, [b"", "x", None], np.array([None, (1, 2)], object)],
    ids=str,
)
def test_serialized_rows_bring_back_what_was_packed(value):
    np.testing.assert_equal(unpacked(packed(value)), value)


class Seen:
    """A kernel that notes how many rows it is called with."""

    def __init__(self):
        self.rows = []

    def __call__(self, x, y):
        np.testing.assert_array_equal(x[:, 0], y)
        self.rows.append(len(x))


def kernel_of(most=1000.0):
    seen = Seen()
    kernel = RowsKernel(seen, {})
    x = np.stack([np.arange(8.0), np.arange(8.0)], axis=1)
    pieces = [[x[:3], x[3:]], [np.arange(8.0)]]
    kernel.know(pieces, [0, 4, 8], [0.0, 8.0, 10.0], most)
    return kernel, seen


def test_a_kernel_takes_the_rows_of_so_many_units():
    kernel, seen = kernel_of()
    for units, rows in ((2, 1), (8, 4), (10, 8), (20, 16), (38, 28)):
        kernel.setup(units)
        assert kernel.run() is None
        kernel.teardown()
        assert seen.rows[-1] == rows


def test_a_kernel_without_memory_for_so_many_rows_scales_its_seconds():
    kernel, seen = kernel_of(most=10)
    kernel.setup(1000)
    assert kernel.run() > 0
    assert seen.rows[-1] == 10


def test_a_kernel_that_knows_no_rows_says_so():
    with pytest.raises(KernelError, match="holds no rows"):
        RowsKernel(len, {}).setup(3)
