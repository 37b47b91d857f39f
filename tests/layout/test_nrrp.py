"""NRRP: exact tilings, L-shaped zones where they pay, near the lower bound."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.layout import br, nrrp
from fpmdask.layout.nrrp import _best, _Rect
from fpmdask.partition import proportional


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=20),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_zones_cover_every_block_once(speeds, shape):
    layout = nrrp(speeds, shape)  # Layout refuses gaps and overlaps
    assert sum(layout.areas) == shape[0] * shape[1]
    assert max(map(len, layout.zones)) <= 2


@given(st.lists(st.floats(1, 100), min_size=2, max_size=12))
def test_areas_are_near_the_speeds(speeds):
    layout = nrrp(speeds, (600, 600))
    wanted = np.array(speeds) / sum(speeds) * 360_000
    for zone, area in zip(layout.zones, wanted, strict=True):
        sides = sum(r.height + r.width for r in zone)
        assert abs(sum(r.area for r in zone) - area) <= sides + 2


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.integers(0, 40))
def test_every_side_is_within_one_block_of_the_exact_one(speeds, more):
    shape = (len(speeds) + more, len(speeds) + 2 * more)
    areas = proportional(shape[0] * shape[1], speeds).astype(float)
    order = [int(i) for i in np.argsort(-areas, kind="stable") if areas[i] > 0]
    exact = _best(_Rect(0.0, 0.0, *map(float, shape)), order, areas).zones
    for worker, zone in enumerate(nrrp(speeds, shape).zones):
        meant = exact.get(worker, ())
        for whole in zone:
            assert any(near(whole, r) for r in meant), f"{whole} comes from none of {meant}"
        for r in meant:  # what is thinner than a block may be no block at all
            assert min(r.height, r.width) < 1 or any(near(whole, r) for whole in zone), (
                f"{r} has become {zone}"
            )


@pytest.mark.parametrize("rows", [3, 5, 31])
def test_half_a_block_goes_to_the_first_of_two_equal_workers(rows):
    """Whatever the rounding errors of the edge between them."""
    assert [z[0].height for z in nrrp([1.0, 1.0], (rows, 2)).zones] == [rows // 2 + 1, rows // 2]


def near(rectangle, other):
    within = 1 + 1e-6
    return (
        abs(rectangle.height - other.height) <= within
        and abs(rectangle.width - other.width) <= within
    )


@pytest.mark.parametrize("ratio", [1.0, 2.0, 2.9, 3.1, 4.0, 10.0, 100.0])
def test_two_workers_move_less_from_three_to_one_on(ratio):
    ours, columns = (layout([ratio, 1.0], (1200, 1200)) for layout in (nrrp, br))
    assert (max(map(len, ours.zones)) == 2) == (ratio > 3)
    if ratio > 3:
        side = math.sqrt(1 / (1 + ratio))  # of the square in the corner; n + n + 2 sides
        assert ours.volume == pytest.approx(2400 * (1 + side), abs=4)
        assert ours.volume < columns.volume
    else:
        assert ours.volume == columns.volume


def test_a_dominant_worker_takes_an_l():
    layout = nrrp([24.0, 1.0], (100, 100))
    assert [len(zone) for zone in layout.zones] == [2, 1]
    assert layout.volume == 240
    assert br([24.0, 1.0], (100, 100)).volume == 300
    with pytest.raises(PartitionError, match="zones"):
        _ = layout.rectangles


def test_alike_workers_get_rectangles():
    assert max(map(len, nrrp([1.0, 1.0, 1.0, 1.0], (64, 64)).zones)) == 1


@pytest.mark.slow
def test_it_is_near_the_lower_bound_and_beats_rectangles_where_speeds_differ():
    """1,000 speed sets of 2 to 16 workers, ratios up to 100, 2000 × 2000 blocks."""
    random = np.random.default_rng(5)
    ratios, against = [], []
    for _ in range(1000):
        speeds = 10 ** random.uniform(0, 2, random.integers(2, 17))
        layout = nrrp(speeds, (2000, 2000))
        ratios.append(layout.half_perimeter / layout.lower_bound)
        against.append(layout.volume / br(speeds, (2000, 2000)).volume)
    assert np.mean(ratios) < 1.06
    assert max(ratios) < 1.2
    assert min(against) < 0.8


def test_limits_hold():
    layout = nrrp([5.0, 1.0, 1.0], (40, 40), limits=[600, None, None])
    assert layout.areas[0] <= 600
    with pytest.raises(PartitionError, match="do not fit"):
        nrrp([5.0, 1.0], (10, 10), limits=[50, 40])


@pytest.mark.parametrize("speeds", [[], [0.0, 1.0], [-1.0], [float("nan")], "ab", None])
def test_bad_speeds(speeds):
    with pytest.raises(PartitionError):
        nrrp(speeds, (4, 4))


@pytest.mark.parametrize("shape", [(6000, 1), (1, 6000), (6000, 2)])
def test_many_equal_workers_share_a_thin_matrix(shape):
    layout = nrrp(np.ones(400), shape)
    assert sum(layout.areas) == shape[0] * shape[1]
    assert max(layout.areas) - min(layout.areas) <= 2
