"""What DFPA takes from models that are not made of points: their shape, at the measured level."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.models import AnalyticModel, ConstantModel, PiecewiseLinearModel, TabulatedModel
from fpmdask.partition.evidence import Evidence

SIZES = np.arange(1.0, 41.0)
# A table may call small sizes free and large ones impossible.
tables = st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=20, max_size=20).map(np.cumsum)
shapes = st.one_of(
    st.none(),
    st.floats(1e-3, 1e3).map(ConstantModel),
    st.floats(1e-3, 1e3).map(lambda speed: AnalyticModel("nlogn", speed)),
    tables.map(TabulatedModel),
    tables.map(lambda table: TabulatedModel(np.where(table > 9, math.inf, table))),
)


@pytest.mark.slow
@given(shapes, st.integers(1, 40), st.floats(1e-3, 1e3))
def test_one_measurement_sets_the_level_of_the_shape(shape, units, seconds):
    """Where the shape says nothing of the measured size, only the measurement counts."""
    after = Evidence([shape], 40).with_round(np.array([units]), np.array([seconds]), 0.0)
    found = np.asarray(after.fit().models[0].time(SIZES))
    assert found[units - 1] == pytest.approx(seconds)
    assert np.isfinite(found).all()
    expected = SIZES * seconds / units
    if shape is not None and 0 < shape.speed(units) < math.inf:
        expected = np.asarray(shape.time(SIZES)) * (seconds / shape.time(units))
    known = np.isfinite(expected) & (expected > 0)
    np.testing.assert_allclose(found[known], expected[known], rtol=1e-9)


@pytest.mark.parametrize(
    ("larger", "seconds", "doubted"),
    [(105, 2.2, True), (105, 2.0, False), (110, 2.3, True), (111, 9.0, False), (99, 9.0, False)],
)
def test_half_the_speed_at_a_size_up_to_a_tenth_larger_is_doubted_once(larger, seconds, doubted):
    """100 units take 1 s."""
    evidence = Evidence([None], 200)
    for units, t in ((larger, seconds), (100, 1.0)):
        evidence = evidence.with_round(np.array([units]), np.array([t]), 1.0)
    share, limits = np.array([100]), np.array([math.inf])
    assert evidence.doubtful(share, limits) == ({0: larger} if doubted else {})
    assert evidence.doubtful(share, limits) == {}


@pytest.mark.parametrize(("limit", "doubted"), [(104, False), (105, True), (106, True)])
def test_sizes_above_the_limit_are_not_doubted(limit, doubted):
    """Nobody is to measure them again."""
    evidence = Evidence([None], 200)
    for units, t in ((105, 9.0), (100, 1.0)):
        evidence = evidence.with_round(np.array([units]), np.array([t]), 1.0)
    found = evidence.doubtful(np.array([100]), np.array([float(limit)]))
    assert found == ({0: 105} if doubted else {})


@pytest.mark.parametrize(
    ("noise", "factor"), [(0.0, 2.0), (0.01, 1.5), (0.1, math.exp(0.6)), (1.0, 3.0)]
)
def test_a_worker_that_contradicts_itself_by_a_factor_has_changed(noise, factor):
    """Twice unknown noise, six times the known one, from 1.5 to 3."""
    for more_units, fewer, ratio in ((100, 100, factor), (110, 100, factor), (100, 90, factor)):
        for beyond in (False, True):
            times = [1.0, ratio * (1.01 if beyond else 0.99)]
            for units, seconds in (
                ((more_units, fewer), times),
                ((fewer, more_units), times[::-1]),
            ):
                evidence = Evidence([None], 200)
                for x, t in zip(units, seconds, strict=True):
                    evidence = evidence.with_round(np.array([x]), np.array([t]), noise)
                assert evidence.changed_in == (2 if beyond else 0)


@pytest.mark.parametrize(("noise", "factor"), [(0.001, 1.25), (0.05, math.exp(0.3)), (0.2, 1.5)])
def test_what_was_known_before_is_doubted_sooner(noise, factor):
    known = PiecewiseLinearModel.from_points([100], [1.0])
    for ratio, sizes in ((0.99 * factor, [90, 100]), (1.01 * factor, [90])):
        evidence = Evidence([known], 200)
        after = evidence.with_round(np.array([90]), np.array([ratio]), noise)
        assert after.models[0].units.tolist() == sizes
        assert after.changed_in == 0  # not in this run


def test_who_can_do_nothing_says_nothing_of_an_unknown_worker():
    nothing = TabulatedModel([0.5, math.inf])
    assert Evidence([nothing, ConstantModel(2.0), None], 9).fit().models[2] == ConstantModel(2.0)
