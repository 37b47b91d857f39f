"""Whole blocks: exact covers for every p and shape, limits, one block from the exact sides."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.layout import br, columns, fpm_br, kl, nrrp, rows
from fpmdask.layout.arrange import optimal
from fpmdask.models import ConstantModel, PiecewiseLinearModel
from fpmdask.models.bank import bank
from fpmdask.partition import geometric
from tests.conformance import check_layout

speeds = st.lists(st.floats(0.01, 100), min_size=1, max_size=24)
sides = st.integers(1, 60)


def constant_fpm_br(speeds, shape, limits=None):
    return fpm_br([ConstantModel(s) for s in speeds], shape, limits)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(speeds, sides, sides, st.sampled_from([br, rows, kl, constant_fpm_br]))
def test_every_shape_is_covered(speeds, down, across, layout):
    check_layout(layout(speeds, (down, across)), len(speeds))


@pytest.mark.parametrize("p", [1, 2, 3, 5, 7, 11, 13, 17, 31, 61, 127])
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (64, 1), (5, 7), (97, 89)])
def test_primes_and_more_workers_than_blocks(p, shape):
    rng = np.random.default_rng(p)
    for made in (br, rows, kl, constant_fpm_br):
        layout = made(10 ** rng.uniform(0, 2, p), shape)
        check_layout(layout, p)
        if made is constant_fpm_br:
            assert [s > 0 for s in layout.speeds] == [a > 0 for a in layout.areas]


def deviation(layout, unit, turned):
    """The largest difference of a side from the exact one, in blocks."""
    down, across = layout.shape[::-1] if turned else layout.shape
    found = [r.transposed if turned else r for r in layout.rectangles]
    return max(
        max(abs(found[i].height - unit.heights[i] * down), abs(found[i].width - width * across))
        for column, width in zip(unit.columns, unit.widths, strict=True)
        for i in column
        if found[i].area or min(unit.heights[i] * down, width * across) >= 1
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(speeds, st.integers(0, 40), st.integers(0, 40), st.sampled_from([br, constant_fpm_br]))
def test_every_side_is_within_one_block_of_the_exact_one(speeds, more, wider, made):
    shape = (len(speeds) + more, len(speeds) + wider)
    layout, areas = made(speeds, shape), np.array(speeds)
    if made is constant_fpm_br:  # areas are numbers of blocks there, before they get sides
        areas = geometric(shape[0] * shape[1], [ConstantModel(s) for s in speeds]).astype(float)
        if areas.min() == 0:
            return
    straight = deviation(layout, columns(areas, shape[1] / shape[0]), False)
    turned = deviation(layout, columns(areas, shape[0] / shape[1]), True)
    assert min(straight, turned) <= 1 + 1e-9
    strips = np.array([r.height for r in rows(speeds, shape).rectangles])
    assert np.abs(strips - np.array(speeds) / sum(speeds) * shape[0]).max() <= 1 + 1e-9


def check_slack(models, areas, shape, layout):
    """Check that the makespan is within the first slack that leaves room for columns or rows."""
    gathered, workers = bank(models), np.arange(areas.size)
    best = gathered.time(workers, areas).max()
    for slack in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        within = np.floor(gathered.units_within(best * (1 + slack)))
        if optimal(areas, shape, within, exact=True) is not None:
            assert gathered.time(workers, np.array(layout.areas)).max() <= best * (1 + slack)
            return


@pytest.mark.slow
def test_sides_near_the_exact_ones_come_before_times_near_the_optimum():
    """Workers that page a little above their share get whole blocks within one of the exact."""
    rng = np.random.default_rng(0)
    for _ in range(120):
        p = int(rng.integers(4, 12))
        shape = tuple((p + rng.integers(0, 30, 2)).tolist())
        shares = rng.uniform(0.3, 2.5, p) * shape[0] * shape[1] / p
        models = [
            PiecewiseLinearModel.from_points([x, 1.1 * x], [x / s, 11 * x / s])
            for x, s in zip(shares, 10 ** rng.uniform(-1, 1, p), strict=True)
        ]
        areas = geometric(shape[0] * shape[1], models).astype(float)
        if areas.min() > 0:
            layout = fpm_br(models, shape)
            check_slack(models, areas, shape, layout)
            straight = deviation(layout, columns(areas, shape[1] / shape[0]), False)
            turned = deviation(layout, columns(areas, shape[0] / shape[1]), True)
            assert min(straight, turned) <= 1 + 1e-9


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.data(), speeds, sides, sides, st.sampled_from([br, constant_fpm_br, nrrp, rows]))
def test_limits_hold_and_those_with_room_are_met(data, speeds, down, across, layout):
    blocks = down * across
    limit = st.one_of(st.none(), st.integers(0, blocks))
    limits = data.draw(st.lists(limit, min_size=len(speeds), max_size=len(speeds)))
    room = sum(blocks if m is None else m for m in limits)
    if None in limits or room >= blocks + len(speeds) * across:
        check_layout(layout(speeds, (down, across), limits), len(speeds), limits)
        return
    try:
        check_layout(layout(speeds, (down, across), limits), len(speeds), limits)
    except PartitionError as error:
        assert "limits" in str(error)  # noqa: PT017 - tight limits may, not must, be refused


def column_layout_exists(limits, down, across):
    """Whether columns of whole blocks keep the limits, by trying every arrangement and widths."""

    def widest(group):
        fits = [w for w in range(1, across + 1) if sum(limits[i] // w for i in group) >= down]
        return max(fits, default=0)

    p = len(limits)
    return any(
        sum(widest([i for i in range(p) if at[i] == c]) for c in range(p)) >= across
        for at in itertools.product(range(p), repeat=p)
    )


@pytest.mark.slow
def test_up_to_six_workers_find_a_layout_whenever_columns_or_rows_of_blocks_have_one():
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(120):
        p = int(rng.integers(2, 5))
        down, across = rng.integers(1, 9, 2).tolist()
        limits = rng.multinomial(down * across + rng.integers(0, 12), np.ones(p) / p).tolist()
        exists = column_layout_exists(limits, down, across) or column_layout_exists(
            limits, across, down
        )
        limits += [0] * int(rng.integers(0, 5))  # workers that can do nothing do not count
        p = len(limits)
        try:
            speeds = 10 ** rng.uniform(-4, 1, p)  # some are too slow for a block of their own
            check_layout(br(speeds, (down, across), limits), p, limits)
            assert exists
        except PartitionError:
            refused += 1
            assert not exists
    assert 0 < refused < 120


def groups_fit(limits, down, across):
    """Whether columns of workers in the order of their limits, as many in each, keep them."""
    order = sorted(m for m in limits if m)
    return any(
        sum(
            max((w for w in range(1, across + 1) if sum(m // w for m in group) >= down), default=0)
            for group in np.array_split(order, count)
        )
        >= across
        for count in range(1, len(order) + 1)
    )


@pytest.mark.slow
def test_more_workers_find_a_layout_whenever_groups_in_the_order_of_limits_have_one():
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(150):
        p = int(rng.integers(7, 12))
        down, across = rng.integers(3, 14, 2).tolist()
        limits = rng.multinomial(down * across + rng.integers(p, 4 * p), rng.dirichlet(np.ones(p)))
        if groups_fit(limits, down, across) or groups_fit(limits, across, down):
            check_layout(br(rng.uniform(1, 9, p), (down, across), limits), p, limits)
            found += 1
    assert found > 50


def test_limits_that_do_not_bind_change_nothing():
    speeds, shape = [5.0, 3.0, 2.0, 1.0, 1.0], (60, 48)
    free = br(speeds, shape)
    assert br(speeds, shape, [2 * a for a in free.areas]) == free
    rng = np.random.default_rng(1)
    for _ in range(30):  # also where no share is a whole number of blocks
        speeds, shape = rng.uniform(1, 9, 5), tuple(rng.integers(5, 30, 2).tolist())
        free = br(speeds, shape)
        assert br(speeds, shape, [2 * a + 9 for a in free.areas]) == free


def test_what_a_full_worker_cannot_take_goes_to_the_others():
    layout = br([10.0, 1.0, 1.0], (30, 30), limits=[300, None, None])
    assert 280 <= layout.areas[0] <= 300
    assert abs(layout.areas[1] - layout.areas[2]) <= 30


def test_flat_and_tall_matrices_are_cut_across_their_long_side():
    flat, tall = br([1.0] * 4, (8, 800)), br([1.0] * 4, (800, 8))
    assert {(r.height, r.width) for r in flat.rectangles} == {(8, 200)}
    assert {(r.height, r.width) for r in tall.rectangles} == {(200, 8)}


def test_the_transposed_arrangement_is_taken_where_it_moves_less():
    rng = np.random.default_rng(6)
    for _ in range(40):
        p = int(rng.integers(2, 20))
        shape = tuple(rng.integers(20, 200, 2).tolist())
        speeds = 10 ** rng.uniform(0, 2, p)
        assert br(speeds, shape).volume == br(speeds, shape[::-1]).volume


@pytest.mark.parametrize(
    ("speeds", "words"),
    [([], "at least one"), ([1, 0], r"speeds\[1\] is 0"), ([np.nan], "finite"), (["1"], "numbers")],
)
@pytest.mark.parametrize("layout", [br, rows, kl])
def test_bad_speeds(layout, speeds, words):
    with pytest.raises(PartitionError, match=words):
        layout(speeds, (4, 4))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([1, 2], "16 units do not fit.*sum to 3"),
        ([1], "1 limits found for 2 workers"),
        ([-1, 20], "at least 0"),
        ([np.nan, 20], "nan"),
        (7, "one number or None per worker"),
    ],
)
@pytest.mark.parametrize("layout", [br, rows, constant_fpm_br])
def test_bad_limits(layout, limits, words):
    with pytest.raises(PartitionError, match=words):
        layout([1, 2], (4, 4), limits)


def test_rows_say_that_whole_rows_do_not_fit():
    with pytest.raises(PartitionError, match=r"leave 3 whole rows of 4 blocks.*br"):
        rows([1, 1], (4, 4), limits=[11, 7])
