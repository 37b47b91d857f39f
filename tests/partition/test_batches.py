"""Batches with an unknown complexity, simulated: near the oracle's makespan after six of them."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.models import AnalyticModel
from fpmdask.partition import Batches, by_complexity, integral
from fpmdask.partition.batches import NEAR, CommonFunction, _apart


def cliff(at):
    return lambda x: np.where(x > at, 10.0 * x, x)


COMPLEXITIES = {
    "n": lambda x: 1.0 * x,
    "n log n": lambda x: x * np.log(np.maximum(x, 2.0)),
    "n²": lambda x: 1.0 * x**2,
    "cliff": cliff(70_000),
}


def simulated(complexity, speeds, units, batches, noise=0.0, seed=0):
    """Return the makespan of each batch over the oracle's."""
    random = np.random.default_rng(seed)
    models = [AnalyticModel(complexity, speed) for speed in speeds]
    oracle = integral(by_complexity(units, speeds, complexity), units, models)
    best = (complexity(oracle.astype(float)) / speeds).max()
    learning, ratios = Batches(len(speeds)), []
    for _ in range(batches):
        sizes = learning.ask(units)
        assert sizes.sum() == units
        seconds = complexity(sizes.astype(float)) / speeds
        ratios.append(seconds.max() / best)
        measured = seconds * np.exp(random.normal(0.0, noise, len(speeds)))
        learning.tell(np.where(sizes > 0, measured, np.nan))
    return ratios, learning


@pytest.mark.parametrize("name", COMPLEXITIES)
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_seventh_batch_is_near_the_oracle(name, workers):
    speeds = np.linspace(1.0, 4.0, workers)
    ratios, learning = simulated(COMPLEXITIES[name], speeds, 50_000 * workers, 7)
    assert ratios[0] > 1.3
    assert ratios[6] < 1.02
    if name != "cliff":
        np.testing.assert_allclose(learning.speeds, speeds / 4.0, rtol=0.01)


@pytest.mark.parametrize("name", COMPLEXITIES)
def test_noise_averages_out(name):
    """With 5 % noise per time the median of 15 seeds is within 5 % after six batches."""
    speeds = np.linspace(1.0, 4.0, 6)
    last = [
        simulated(COMPLEXITIES[name], speeds, 300_000, 7, noise=0.05, seed=seed)[0][6]
        for seed in range(15)
    ]
    assert np.median(last) < 1.05
    assert max(last) < 1.12


def test_a_size_that_comes_again_costs_the_geometric_mean():
    learning = Batches(2)
    for seconds in (10.0, 12.1):
        np.testing.assert_array_equal(learning.ask(1000), [500, 500])
        learning.tell([seconds, seconds])
    assert learning.complexity(500.0) == pytest.approx(11.0)


@pytest.mark.parametrize("at", [60_000, 75_000])
@pytest.mark.parametrize("workers", [2, 6])
def test_cliffs_in_the_way_are_halved_in(at, workers):
    """The oracle's share lies at the cliff: within 2 % of it after six batches, 5 % with noise."""
    speeds = np.linspace(1.0, 4.0, workers)

    def last(noise, seed):
        found, _ = simulated(cliff(at), speeds, 50_000 * workers, 7, noise=noise, seed=seed)
        return found[6]

    assert last(0.0, 0) < 1.02
    assert np.median([last(0.05, seed) for seed in range(7)]) < 1.05


@pytest.mark.parametrize("workers", [4, 6, 8])
def test_wherever_the_cliff_is_four_workers_find_it(workers):
    speeds = np.linspace(1.0, 4.0, workers)
    for at in range(45_000, 110_001, 2_500):
        found, _ = simulated(cliff(at), speeds, 50_000 * workers, 7)
        assert found[6] < 1.02, at


def test_whole_shares_on_the_brink_are_kept():
    """The oracle's shares are the largest ones before the cliff, all of them."""
    found, _ = simulated(cliff(50_000), np.array([1.0, 2.5, 4.0]), 150_000, 14)
    assert set(found[6:]) == {1.0}


def test_a_cliff_that_was_found_is_not_forgotten():
    """Sizes beside it that are taken for one are not taken for a worker that has become slower."""
    speeds = np.linspace(1.0, 4.0, 6)
    ratios, _ = simulated(cliff(77_000), speeds, 300_000, 7)
    assert ratios[6] < 1.02


def test_workers_at_one_cliff_try_several_places():
    speeds, learning = np.array([1.0, 1.0, 4.0, 4.0, 4.0]), Batches(5)
    for _ in range(3):
        sizes = learning.ask(100_000)
        learning.tell(cliff(24_000)(sizes.astype(float)) / speeds)
    sizes = learning.ask(100_000)
    assert len(set(sizes[2:])) == 3
    assert sizes.sum() == 100_000


def after(learning, complexity, speeds, batches, noise=0.0, seed=0):
    """Return the makespan of one more batch over the oracle's, after so many."""
    random, speeds = np.random.default_rng(seed), np.array(speeds, float)
    for _ in range(batches + 1):
        sizes = learning.ask(100_000)
        seconds = complexity(sizes.astype(float)) / speeds
        learning.tell(np.maximum(seconds, 1e-9) * np.exp(random.normal(0.0, noise, len(speeds))))
    return seconds.max() / (complexity(by_complexity(100_000, speeds, complexity)) / speeds).max()


SMOOTH = ["n", "n log n", "n²"]


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("speeds", [[1, 2.5], [1, 4], [1, 3, 9]])
def test_speeds_that_were_given_wrong_are_corrected(name, speeds):
    learning = Batches(len(speeds), speeds=[1] * len(speeds))
    assert after(learning, COMPLEXITIES[name], speeds, 3) < 1.05
    np.testing.assert_allclose(learning.speeds, np.array(speeds) / max(speeds), rtol=0.05)


@pytest.mark.parametrize("name", SMOOTH)
def test_a_first_batch_of_too_few_units_is_made_up_for(name):
    learning = Batches(4)
    learning.ask(2)
    learning.tell(1 / np.array([1, 2, 5, 9]))
    assert after(learning, COMPLEXITIES[name], [1, 2, 5, 9], 3) < 1.06


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize(
    ("before", "then"),
    [([1, 1], [1, 3]), ([3, 3, 3, 3], [3, 3, 3, 1]), ([1, 2, 4], [1, 2, 12])],
)
def test_a_worker_whose_speed_changes_for_good_is_followed(name, noise, before, then):
    learning = Batches(len(before))
    assert after(learning, COMPLEXITIES[name], before, 5, noise) < 1.08
    assert after(learning, COMPLEXITIES[name], then, 4, noise, seed=1) < 1.08


@pytest.mark.parametrize("name", SMOOTH)
def test_one_time_that_is_far_off_changes_little(name):
    learning = Batches(3)
    after(learning, COMPLEXITIES[name], [1, 2, 4], 4)
    sizes = learning.ask(100_000)
    learning.tell(COMPLEXITIES[name](sizes.astype(float)) / np.array([1, 2, 4]) * [1, 8, 1])
    assert after(learning, COMPLEXITIES[name], [1, 2, 4], 0) < 1.06


def test_growing_batches_use_what_smaller_ones_taught():
    speeds, learning = np.array([1.0, 2.0, 5.0]), Batches(3)
    for units in (1_000, 2_000, 4_000, 8_000, 16_000):
        sizes = learning.ask(units)
        learning.tell(COMPLEXITIES["n²"](sizes.astype(float)) / speeds)
    best = by_complexity(16_000, speeds, ("power", 2.0))
    np.testing.assert_allclose(sizes, best, rtol=0.01)
    cost = learning.complexity
    assert float(cost(8_000)) == pytest.approx(4 * float(cost(4_000)), rel=0.02)
    assert float(cost.units_within(cost(5_000))) == pytest.approx(5_000, rel=1e-9)
    assert float(cost(0)) == 0.0


def test_given_speeds_shape_the_first_batch():
    assert Batches(2, speeds=[1, 3]).ask(400).tolist() == [100, 300]
    assert Batches(2).ask(401).tolist() == [201, 200]
    assert Batches(2).speeds is None


def test_speeds_and_times_may_be_apart_as_far_as_numbers_go():
    learning = Batches(2, speeds=[1e-300, 1e300])
    assert learning.ask(1000).tolist() == [0, 1000]
    learning = Batches(2)
    learning.ask(1000)
    learning.tell([1e-100, 1e100])
    assert learning.ask(1000).tolist() == [1000, 0]


def test_decreasing_costs_are_pooled():
    learning = Batches(2, speeds=[1, 3])
    learning.ask(400)
    learning.tell([10.0, 1.0])  # 100 units for 10, 300 for 3
    sizes, costs = learning.complexity.points
    assert (np.diff(costs) >= 0).all()
    assert sizes.tolist() == pytest.approx([100, 300])
    assert np.isfinite(learning.ask(400)).all()


def test_workers_without_units_are_not_heard():
    learning = Batches(3)
    assert learning.ask(2).tolist() == [1, 1, 0]
    learning.tell([1.0, 2.0, 0.0])
    assert learning.ask(300).sum() == 300


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Batches(0), "workers"),
        (lambda: Batches(2, speeds=[1]), "1 speeds found for 2 workers"),
        (lambda: Batches(2).ask(0), "units"),
        (lambda: Batches(2).tell([1, 1]), "call ask"),
        (lambda: _told([1.0, -1.0]), r"seconds\[1\] is -1.0"),
        (lambda: _told([1e-320, 1e300]), r"seconds\[0\] is 1e-320; a number from 1e-100 to 1e100"),
        (lambda: _told([float("nan"), 1.0]), r"seconds\[0\] is nan"),
        (lambda: _told([1.0]), "1 seconds found for 2 workers"),
    ],
)
def test_bad_input_is_refused(call, says):
    with pytest.raises(PartitionError, match=says):
        call()


def _told(seconds):
    learning = Batches(2)
    learning.ask(10)
    learning.tell(seconds)


def test_a_measurement_on_a_cliff_is_compared_with_the_nearer_end():
    """Costs from 0 to 10 between two sizes that are next to each other, all as logarithms."""
    units, costs = np.array([1.0, 1.001, 3.0]), np.array([-2.0, 8.0, 9.0])
    on_it = np.full(4, 1.0005)
    measured = np.array([-3.0, -1.0, 6.0, 9.0])
    assert _apart(on_it, measured, units, costs).tolist() == [1.0, -1.0, 2.0, -1.0]
    # the ends themselves and flat pieces are compared with what is there
    x, y = np.array([1.0, 1.001, 2.0005]), np.array([5.0, 5.0, 8.0])
    assert _apart(x, y, units, costs) == pytest.approx([-7.0, 3.0, 0.5])


class StraightFunction:
    """`CommonFunction` as its documentation says, one number at a time."""

    def __init__(self, points, near):
        self.points = points  # (log size, log cost)
        slopes = [(d - b) / (c - a) for (a, b), (c, d) in pairwise(points)]
        self.steep = [slope > 8 for slope in slopes]
        runs = [c - a for (a, _), (c, _) in pairwise(points)]
        self.brink = [s and run <= math.log(near) for s, run in zip(self.steep, runs, strict=True)]
        ends = [min(max(slope, 1.0), 2.0) for slope in slopes] or [1.0]
        self.first, self.last = ends[0], ends[-1]

    def cost(self, x):
        (x0, y0), (xn, yn) = self.points[0], self.points[-1]
        if x <= x0:
            return y0 + self.first * (x - x0)
        if x > xn:
            return yn + self.last * (x - xn)
        k = next(k for k, (_, (c, _)) in enumerate(pairwise(self.points)) if x <= c)
        (a, b), (c, d) = self.points[k : k + 2]
        return d if self.brink[k] else b + (d - b) * (x - a) / (c - a)

    def size(self, y):
        (x0, y0), (xn, yn) = self.points[0], self.points[-1]
        if y < y0:
            return x0 + (y - y0) / self.first
        if y >= yn:
            return xn + (y - yn) / self.last
        k = max(k for k, (_, b) in enumerate(self.points) if b <= y)
        (a, b), (c, d) = self.points[k : k + 2]
        if self.brink[k] or y == b:
            return a
        return (a + c) / 2 if self.steep[k] else a + (c - a) * (y - b) / (d - b)


steps = st.tuples(
    st.sampled_from([0.001, 0.004, 0.006, 0.1, 0.7]), st.sampled_from([0.0, 0.002, 0.05, 0.9, 3.0])
)


@given(
    st.lists(steps, max_size=6), st.lists(st.floats(-3, 12), min_size=1, max_size=9), st.booleans()
)
def test_the_common_function_is_what_the_straight_one_says(rises, places, exploring):
    """Powers, plateaus, steep pieces and brinks; also at the points and beyond the ends."""
    points = np.cumsum([(1.0, 2.0), *rises], axis=0)
    near = NEAR if exploring else math.inf
    function = CommonFunction(*points.T, near)
    straight = StraightFunction(points.tolist(), near)
    x, y = (np.concatenate([places, column]) for column in points.T)
    # a float beside a point may be on either side of it
    x, y = (np.concatenate([v[: len(places)], v[len(places) :] - 1e-9, [20.0]]) for v in (x, y))
    np.testing.assert_allclose(
        np.log(function(np.exp(x))), [straight.cost(v) for v in x], rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(
        np.log(function.units_within(np.exp(y))), [straight.size(v) for v in y], rtol=0, atol=1e-6
    )
    assert function(0.0) == function.units_within(0.0) == 0.0


def test_workers_at_one_cliff_are_spread_from_slow_to_fast_and_the_sum_stays():
    function = CommonFunction(np.log([10.0, 20.0, 40.0]), np.log([10.0, 8000.0, 16000.0]))
    middle = math.sqrt(200.0)
    units, speeds = np.array([middle, 5.0, middle, middle]), np.array([3.0, 1.0, 1.0, 2.0])
    spread = function.spread(units, speeds)
    step = (middle - 10.0) / 2
    np.testing.assert_allclose(spread, [middle + step, 5.0, middle - step, middle])
    assert spread.sum() == pytest.approx(units.sum())
