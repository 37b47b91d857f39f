"""What DFPA takes from models that are not made of points: their shape, at the measured level."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.models import AnalyticModel, ConstantModel, TabulatedModel
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
