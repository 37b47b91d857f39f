"""Analytic shares: printed and oracle numbers, agreement of the methods, optimal rounding."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.models import AnalyticModel, ConstantModel
from fpmdask.partition import (
    by_complexity,
    geometric,
    integral,
    nlogn_correction,
    nlogn_lambert,
    polynomial,
    proportional,
)
from fpmdask.timing import EmulatedKernel, WorkerContext, measure

ORACLES = json.loads((Path(__file__).parents[1] / "oracles.json").read_text(encoding="utf-8"))
SPEEDS = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12)
FOUR = (
    lambda units, speeds: by_complexity(units, speeds, "nlogn"),
    nlogn_correction,
    nlogn_lambert,
    lambda units, speeds: polynomial(units, speeds, 2),
)


@pytest.mark.parametrize("case", ORACLES["nlogn"], ids=str)
def test_oracles_of_n_log_n(case):
    units, speeds = case["units"], case["speeds"]
    for shares in (by_complexity(units, speeds, "nlogn"), nlogn_lambert(units, speeds)):
        np.testing.assert_allclose(shares, case["exact"], atol=5e-4)
    found = nlogn_correction(units, speeds)
    np.testing.assert_allclose(found, case["correction_formula"], atol=5e-4)


def test_oracles_of_a_power():
    case = ORACLES["polynomial"]
    found = polynomial(case["units"], case["speeds"], 2)
    np.testing.assert_allclose(found, case["beta_2"], atol=5e-5)


@given(SPEEDS, st.integers(1, 10**9), st.floats(0.3, 4.0))
def test_powers_agree_with_the_closed_form(speeds, units, exponent):
    exact = by_complexity(units, speeds, ("power", exponent))
    np.testing.assert_allclose(exact, polynomial(units, speeds, exponent), rtol=1e-9)
    called = by_complexity(units, speeds, lambda x: x**exponent)
    np.testing.assert_allclose(called, exact, rtol=1e-6, atol=1e-12 * units)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8), st.integers(10**5, 10**12))
def test_n_log_n_by_lambert_is_that_by_inversion(speeds, units):
    exact = by_complexity(units, speeds, "nlogn")
    assert exact.min() > np.e
    np.testing.assert_allclose(nlogn_lambert(units, speeds), exact, rtol=1e-9)
    times = exact * np.log(exact) / np.array(speeds)
    np.testing.assert_allclose(times, times[0], rtol=1e-9)


# How far the makespans of the naive split and of the theorem's correction are above the exact one,
# in per cent, for N = 1e3, 1e4, ... 1e12: by bisection on T in another program.
ERRORS = {
    (1.0, 2.0): (
        [3.9174, 2.8244, 2.2067, 1.8102, 1.5342, 1.3311, 1.1754, 1.0523, 0.9525, 0.8700],
        [0.15443, 0.0829, 0.05159, 0.03517, 0.0255, 0.01933, 0.01516, 0.0122, 0.01003, 0.0084],
    ),
    (1.0,) * 48 + (1.5,) * 48: (
        [7.3240, 3.6186, 2.3962, 1.7898, 1.4279, 1.1876, 1.0164, 0.8884, 0.7889, 0.7095],
        [3.81825, 1.41937, 0.75282, 0.46887, 0.32075, 0.23348, 0.17766, 0.13976, 0.11285, 0.09304],
    ),
}


@pytest.mark.parametrize("speeds", ERRORS, ids=len)
def test_the_table_of_errors_of_the_paper(speeds):
    def makespan(shares):
        return float((shares * np.log(shares) / speeds).max())

    for n, (naive, corrected) in enumerate(zip(*ERRORS[speeds], strict=True), 3):
        units = 10**n
        least = makespan(by_complexity(units, speeds, "nlogn"))
        assert makespan(nlogn_lambert(units, speeds)) == pytest.approx(least, rel=1e-9)
        blind = np.array(speeds) / sum(speeds) * units
        assert 100 * (makespan(blind) / least - 1) == pytest.approx(naive, abs=6e-5)
        found = makespan(nlogn_correction(units, speeds))
        assert 100 * (found / least - 1) == pytest.approx(corrected, abs=6e-6)


def test_errors_fall_with_the_size_as_in_the_paper():
    """The naive split's excess falls as 1 / ln N, the correction's faster; the exact has none."""
    speeds = np.array([1.0] * 48 + [1.5] * 48)

    def makespan(shares):
        return float((shares * np.log(shares) / speeds).max())

    naive, corrected = [], []
    for exponent in range(4, 13):
        units = 10**exponent
        exact = makespan(by_complexity(units, speeds, "nlogn"))
        naive.append(makespan(speeds / speeds.sum() * units) / exact - 1)
        corrected.append(makespan(nlogn_correction(units, speeds)) / exact - 1)
    assert naive == sorted(naive, reverse=True)
    assert corrected == sorted(corrected, reverse=True)
    assert all(c < n for c, n in zip(corrected, naive, strict=True))
    paper = makespan(speeds / speeds.sum() * 5.4e8)
    exact = makespan(by_complexity(540_000_000, speeds, "nlogn"))
    assert paper / exact - 1 == pytest.approx(0.0106, abs=1e-4)


def test_the_naive_split_of_the_papers_cluster_takes_a_hundredth_longer_on_kernels():
    """In whole units, as kernels without noise take them; the corrected split is nearer."""
    units, speeds = 540_000_000, np.array([1.0] * 48 + [1.5] * 48)
    models = [AnalyticModel("nlogn", speed) for speed in speeds]
    known = {str(worker): model.to_json() for worker, model in enumerate(models)}
    kernels = [EmulatedKernel(WorkerContext(name), known) for name in known]

    def makespan(shares):
        whole = integral(shares, units, models)
        assert whole.sum() == units
        pairs = zip(kernels, whole.tolist(), strict=True)
        return max(measure(kernel, count).seconds for kernel, count in pairs)

    exact = makespan(by_complexity(units, speeds, "nlogn"))
    naive = makespan(speeds / speeds.sum() * units)
    assert 100 * (naive / exact - 1) == pytest.approx(1.06, abs=0.005)
    assert makespan(nlogn_lambert(units, speeds)) == pytest.approx(exact, rel=1e-6)
    corrected = makespan(nlogn_correction(units, speeds))
    assert 1 < corrected / exact < 1 + (naive / exact - 1) / 4


@pytest.mark.slow
@given(
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8),
    st.integers(10**5, 10**15),
    st.floats(0.5, 3.0),
)
def test_the_four_agree_where_theory_says_so(speeds, units, exponent):
    """Correction and exact split differ in the second order of 1 / ln N.

    With d the range of the logarithms of the speeds and s that of the smallest share's part of the
    units, the terms of the second order are d (s + d + 1) / ln² N at most, and those after it
    smaller by s / ln N.
    """
    exact = by_complexity(units, speeds, "nlogn")
    np.testing.assert_allclose(nlogn_lambert(units, speeds), exact, rtol=1e-9)
    spread = math.log(max(speeds) / min(speeds))
    smallest = math.log(units / exact.min())
    bound = spread * (smallest + spread + 1) / math.log(units) ** 2
    error = np.abs(nlogn_correction(units, speeds) / exact - 1).max()
    assert error <= bound + 1e-9
    power = by_complexity(units, speeds, ("power", exponent))
    np.testing.assert_allclose(polynomial(units, speeds, exponent), power, rtol=1e-9)
    linear = by_complexity(units, speeds, "linear")
    np.testing.assert_allclose(polynomial(units, speeds, 1), linear, rtol=1e-9)


@given(SPEEDS, st.integers(1, 10**7))
@settings(deadline=None)
def test_shares_sum_to_the_units_and_grow_with_the_speed(speeds, units):
    for shares in (
        by_complexity(units, speeds, "linear"),
        by_complexity(units, speeds, "nlogn"),
        polynomial(units, speeds, 1.5),
    ):
        assert shares.dtype == np.float64
        assert shares.sum() == pytest.approx(units, rel=1e-12)
        order = np.argsort(speeds, kind="stable")
        assert (np.diff(shares[order]) >= -1e-9 * units).all()


def test_a_jump_is_not_passed_where_others_have_room():
    """Beyond 1000 units everything takes ten times as long."""

    def f(x):
        return np.where(x > 1000, 10 * x, x)

    np.testing.assert_allclose(by_complexity(4000, [1, 2, 4, 1], f), 1000.0)
    assert by_complexity(4500, [1, 2, 4, 1], f)[2] == pytest.approx(1500.0)


@pytest.mark.parametrize("scale", [1e-290, 1e-200, 1e-84, 1.0, 1e84, 1e200])
def test_the_unit_of_time_does_not_matter(scale):
    def square(x):
        return scale * x**2

    def steps(x):
        return scale * (1.0 + np.floor(x / 100.0))

    np.testing.assert_allclose(by_complexity(700, [1, 4, 16], square), [100.0, 200.0, 400.0])
    for shares in by_complexity(1000, [1, 1], steps), by_complexity(997, [1, 3, 5, 2], steps):
        assert shares.sum() == pytest.approx(round(shares.sum()), rel=1e-12)
        assert (shares > 0).all()


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 14),
    st.sampled_from(["linear", "nlogn", ("power", 2.0)]),
)
@settings(deadline=None)
def test_rounding_is_the_min_max_optimum(speeds, units, complexity):
    models = [AnalyticModel(complexity, float(speed)) for speed in speeds]
    shares = by_complexity(units, speeds, complexity)
    whole = integral(shares, units, models)
    assert whole.sum() == units
    assert (whole >= np.floor(shares) - 1e-9).all()

    def makespan(distribution):
        pairs = zip(models, distribution, strict=True)
        return max(float(model.time(n)) for model, n in pairs if n)

    splits = (
        split
        for split in itertools.product(range(units + 1), repeat=len(speeds))
        if sum(split) == units
    )
    assert makespan(whole) == pytest.approx(min(map(makespan, splits)), rel=1e-12)
    assert makespan(whole) == pytest.approx(makespan(geometric(units, models)), rel=1e-12)


def test_rounding_beats_the_largest_remainder():
    speeds = [7696.0, 5196.0, 7852.0, 14418.0]
    models = [ConstantModel(speed) for speed in speeds]
    for units in range(1, 60):
        whole = integral(polynomial(units, speeds, 1), units, models)
        np.testing.assert_array_equal(whole, proportional(units, speeds))


@pytest.mark.parametrize("function", FOUR)
@pytest.mark.parametrize(
    ("units", "speeds", "says"),
    [
        (0, [1.0], "units must be a whole number"),
        (10.5, [1.0], "units must be a whole number"),
        (10**400, [1.0], "units must be a whole number"),
        (10, [], "one number per worker"),
        (10, [1.0, 0.0], r"speeds\[1\] is 0.0"),
        (10, [1.0, float("nan")], "finite number > 0"),
    ],
)
def test_bad_input_is_refused(function, units, speeds, says):
    with pytest.raises(PartitionError, match=says):
        function(units, speeds)


def test_units_that_take_no_time_are_given_out_at_once():
    assert by_complexity(3, [1.0], lambda x: 0 * x).tolist() == [3.0]
    shares = by_complexity(1500, [1.0, 3.0], lambda x: np.floor(x / 1000) * 1000)
    np.testing.assert_allclose(shares, 750.0, rtol=1e-3)


def test_formulas_say_where_they_end():
    with pytest.raises(PartitionError, match=r"numpy\.vectorize"):
        by_complexity(10, [1.0, 1.0], math.log)
    with pytest.raises(PartitionError, match="at least 2 units"):
        nlogn_correction(1, [1.0])
    with pytest.raises(PartitionError, match="use by_complexity"):
        nlogn_correction(5, [1.0] * 100 + [100.0])
    with pytest.raises(PartitionError, match="at least one each"):
        nlogn_lambert(2, [1.0, 1.0, 1.0])
    with pytest.raises(PartitionError, match="exponent"):
        polynomial(10, [1.0], 0)
    with pytest.raises(PartitionError, match="finite time"):
        by_complexity(10, [1.0, 1.0], lambda x: np.where(x > 4, np.inf, x))


@pytest.mark.parametrize(
    ("shares", "units", "says"),
    [
        ([1.0, 2.0], 4, "sum to 3; 4 units"),
        ([-1.0, 5.0], 4, r"shares\[0\] is -1.0"),
        ([4.0], 4, "2 models found for 1 shares"),
    ],
)
def test_bad_shares_are_refused(shares, units, says):
    with pytest.raises(PartitionError, match=says):
        integral(shares, units, [ConstantModel(1.0)] * 2)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([5e9 + 2, 5e9 + 1], [5 * 10**9 - 1, 5 * 10**9 + 1]),
        ([0.0, 1e10 + 3], [0, 10**10]),
        ([0.9, 1e10 - 3], [3, 10**10 - 3]),
    ],
)
def test_shares_that_sum_to_the_units_as_far_as_floats_go(shares, expected):
    found = integral(shares, 10**10, [ConstantModel(1.0)] * 2)
    assert found.tolist() == expected
