"""FPM-KL: balance by slices of surfaces, and the paper's case in which it swings for ever."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.layout import fpm_br, fpm_kl, kl
from fpmdask.layout.fpm_kl import _balanced
from fpmdask.models import ConstantModel, PiecewiseLinearModel, SurfaceModel
from fpmdask.models.bank import bank
from fpmdask.partition import geometric
from tests.conformance import check_layout

SIDE = 240
# Squares and strips up to the whole matrix, dense enough for a cliff.
GRID = np.linspace(4, SIDE, 60)


def surface(speed, memory=np.inf, paging=0.05):
    """`speed` blocks per second, from `memory` blocks on falling to `paging` of it."""
    heights, widths = (m.ravel() for m in np.meshgrid(GRID, GRID))
    area = heights * widths
    fall = np.interp(area / memory, [1.0, 1.1], [1.0, paging])
    return SurfaceModel.from_points(heights, widths, area / (speed * fall))


def seconds(layout, surfaces):
    return np.array(
        [s.time(r.height, r.width) for s, r in zip(surfaces, layout.rectangles, strict=True)]
    )


def test_constant_surfaces_give_kl_in_two_iterations():
    speeds = [4.0, 1.0, 2.0, 2.0, 3.0, 2.0]
    surfaces = [SurfaceModel.from_points([10], [10], [100 / s]) for s in speeds]
    layout = fpm_kl(surfaces, (SIDE, SIDE), grid=(2, 3))
    check_layout(layout, 6)
    for one, other in zip(
        layout.rectangles, kl(speeds, (SIDE, SIDE), (2, 3)).rectangles, strict=True
    ):
        assert abs(one.height - other.height) <= 1  # exact ties may be rounded either way
        assert abs(one.width - other.width) <= 1
    assert layout.converged
    assert layout.iterations == 2
    assert layout.speeds == pytest.approx(speeds)


def test_one_column_converges_at_once():
    surfaces = [surface(s) for s in (1.0, 2.0, 5.0)]
    layout = fpm_kl(surfaces, (SIDE, SIDE), grid=(3, 1))
    assert layout.converged
    assert layout.iterations == 1
    assert [r.height for r in layout.rectangles] == [30, 60, 150]


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5),
    st.integers(5, 120),
)
def test_the_heights_of_a_column_have_the_smallest_makespan(steps, rows):
    """Up to the rounding to whole blocks, also where times are the same for many heights."""
    heights = np.geomspace(4, 128, 6)
    surfaces = [
        SurfaceModel.from_points(heights, np.full(6, 10.0), 1.0 + np.cumsum(more)) for more in steps
    ]
    columns = [s.slice(10) for s in surfaces]
    optimum = geometric(rows, columns)
    makespan = max(m.time(int(x)) for m, x in zip(columns, optimum, strict=True))
    layout = fpm_kl(surfaces, (rows, 10), grid=(len(surfaces), 1))
    for model, zone in zip(columns, layout.rectangles, strict=True):
        assert model.time(max(zone.height - 1, 0)) <= makespan * (1 + 1e-9)


def test_surfaces_that_vary_mildly_are_balanced():
    rng = np.random.default_rng(8)
    heights, widths = (m.ravel() for m in np.meshgrid(GRID, GRID))
    surfaces = []
    for _ in range(6):
        speed = rng.uniform(1, 4) * (1 + 0.3 * widths / SIDE) / (1 + 0.4 * heights / SIDE)
        surfaces.append(SurfaceModel.from_points(heights, widths, heights * widths / speed))
    layout = fpm_kl(surfaces, (SIDE, SIDE), epsilon=0.01)
    check_layout(layout, 6)
    assert layout.converged
    assert 2 <= layout.iterations <= 20
    times = seconds(layout, surfaces)
    assert times.max() / times.min() < 1.01 + 0.06  # epsilon, and whole blocks of 240 in 2 x 3


def small_memories():
    """A column of two workers that page at half the width, beside one that never does."""
    return [surface(1.0), surface(1.0, memory=9000), surface(1.0), surface(1.0, memory=9000)]


@pytest.mark.parametrize("most", [1, 7, 50])
def test_a_column_with_little_memory_swings_for_ever(most):
    """Section 4: wide, so it pages and is slow, so narrow, so it is fast, so wide again."""
    surfaces = small_memories()
    layout = fpm_kl(surfaces, (SIDE, SIDE), grid=(2, 2), max_iterations=most)
    check_layout(layout, 4)
    assert not layout.converged
    assert layout.iterations == most
    assert "not converged" in layout._repr_html_()


def test_the_best_iteration_is_kept_and_fpm_br_balances_what_swings():
    surfaces = small_memories()
    found = [
        seconds(fpm_kl(surfaces, (SIDE, SIDE), (2, 2), max_iterations=n), surfaces).max()
        for n in (1, 2, 3, 50)
    ]
    assert found == sorted(found, reverse=True)
    squares = np.linspace(16, SIDE**2, 2000)
    falling = np.interp(squares / 9000, [1.0, 1.1], [1.0, 0.05])
    paging = PiecewiseLinearModel.from_points(squares, squares / falling)
    models = [ConstantModel(1.0), paging, ConstantModel(1.0), paging]
    layout = fpm_br(models, (SIDE, SIDE))
    times = np.array([m.time(a) for m, a in zip(models, layout.areas, strict=True)])
    assert times.max() < 0.75 * found[-1]


def test_it_converges_where_the_memory_suffices():
    surfaces = [surface(1.0), surface(1.0, memory=16000), surface(1.0), surface(1.0, memory=16000)]
    assert fpm_kl(surfaces, (SIDE, SIDE), grid=(2, 2)).converged


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (7, 11)])
@pytest.mark.parametrize("p", [1, 5, 12])
def test_every_shape_is_covered(shape, p):
    surfaces = [SurfaceModel.from_points([10], [10], [1.0 + i]) for i in range(p)]
    layout = fpm_kl(surfaces, shape)
    check_layout(layout, p)
    assert [s > 0 for s in layout.speeds] == [a > 0 for a in layout.areas]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"surfaces": []}, "surfaces is"),
        ({"surfaces": [ConstantModel(1.0)] * 2}, r"surfaces\[0\].*fpm_br"),
        ({"shape": (0, 4)}, "shape is"),
        ({"grid": (2, 2)}, "grid is"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": np.nan}, "epsilon"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"max_iterations": 2.5}, "max_iterations"),
    ],
)
def test_bad_input(change, words):
    one = SurfaceModel.from_points([10], [10], [1.0])
    with pytest.raises(PartitionError, match=words):
        fpm_kl(**({"surfaces": [one, one], "shape": (4, 4)} | change))


class CountingBank:
    """A bank that counts how often all workers are searched."""

    def __init__(self, inner):
        self.inner, self.calls = inner, 0

    def units_within(self, seconds):
        self.calls += 1
        return self.inner.units_within(seconds)

    def time(self, workers, units):
        return self.inner.time(workers, units)

    def narrowed(self, low, high):
        return CountingBank(self.inner.narrowed(low, high))


@pytest.mark.parametrize("ratio", [1.0, 1.5, 3.0, 1000.0])
def test_heights_are_bisected_to_ten_digits_and_no_further(ratio):
    """Each step halves the logarithm of the bounds, which are as far apart as the speeds."""
    counting = CountingBank(bank([ConstantModel(1.0), ConstantModel(ratio), ConstantModel(ratio)]))
    seconds, heights = _balanced(counting, 3, 60)
    assert seconds == pytest.approx(60 / (1 + 2 * ratio), rel=2e-10)
    np.testing.assert_allclose(heights * (1 + 2 * ratio), 60 * np.array([1, ratio, ratio]), 1e-9)
    steps = math.log2((math.log(ratio) + 2e-9) / 1e-10)
    assert abs(counting.calls - 1 - steps) < 2
