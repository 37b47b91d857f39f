import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.errors import KernelError
from fpmdask.models import SurfaceModel
from fpmdask.timing import SurfaceModelBuilder

N, ROWS, WIDTH = 640, 8, 64


def used(rows, width):
    """Elements of the three matrices of an update of rows × width by a square matrix."""
    return 2 * rows * width + width * width


# speed, most measurements allowed at 5 %
SURFACES = {
    "flat": (lambda r, w: 1e6, 16),
    "overhead": (lambda r, w: 1e6 * r * w / (r * w + 500), 45),
    "panels": (lambda r, w: 1e6 * (r / (r + 4)) * (w / (w + 20)), 45),
    "falling": (lambda r, w: 1e6 / (1 + r * w / 4e5), 30),
    "memory cliff": (lambda r, w: 1e6 if used(r, w) < 600_000 else 1e5, 100),
    "paging": (lambda r, w: 1e6 / (1 + max(0.0, used(r, w) / 600_000 - 1) * 20), 120),
}


def build(builder, speed, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    asked = []
    while (size := builder.ask()) is not None:
        assert builder.ask() == size
        asked.append(size)
        rows, width = size
        seconds = rows * width / speed(rows, width) * math.exp(noise * rng.standard_normal())
        builder.tell(seconds, 2 * noise * seconds)
    return asked


def errors(model, speed):
    found = []
    for width in np.geomspace(WIDTH, N, 12).astype(int).tolist():
        for rows in np.geomspace(ROWS, width, 12).astype(int).tolist():
            expected = rows * width / speed(rows, width)
            found.append(abs(expected / float(model.time(rows, width)) - 1))
    return np.array(found)


@pytest.mark.parametrize("name", SURFACES)
def test_surfaces_are_reconstructed_with_few_points(name):
    speed, most = SURFACES[name]
    builder = SurfaceModelBuilder(N, N, min_rows=ROWS, min_width=WIDTH)
    asked = build(builder, speed)
    assert len(asked) <= most
    assert len(set(asked)) == len(asked) == len(builder.points) == builder.measurements
    assert all(ROWS <= rows <= width for rows, width in asked)
    assert isinstance(builder.model, SurfaceModel)
    assert np.quantile(errors(builder.model, speed), 0.95) <= 0.05


@pytest.mark.parametrize("name", SURFACES)
def test_noise_does_not_bisect_for_ever(name):
    speed, most = SURFACES[name]
    builder = SurfaceModelBuilder(N, N, min_rows=ROWS, min_width=WIDTH)
    assert len(build(builder, speed, noise=0.05)) <= most
    assert np.quantile(errors(builder.model, speed), 0.8) <= 0.2


def test_more_rows_than_columns_may_be_allowed():
    builder = SurfaceModelBuilder(100, 10, triangular=False)
    asked = build(builder, lambda r, w: 1e3)
    assert (100, 10) in asked
    assert (100, 1) in asked


def test_sizes_that_do_not_fit_are_found_and_not_passed():
    def fits(rows, width):
        return used(rows, width) < 600_000

    builder = SurfaceModelBuilder(N, N, min_rows=ROWS, min_width=WIDTH)
    asked = build(builder, lambda r, w: 1e6 if fits(r, w) else 1e-320)
    assert builder.reason == "accurate"
    assert len(asked) <= 30
    for width in (100, 400, N):
        largest = max(rows for rows in range(1, width + 1) if fits(rows, width))
        assert largest <= builder.limit(width) <= width
    largest = (600_000 - N * N) // (2 * N)
    assert builder.limit(N) <= 1.05 * largest + 1


def test_widths_at_which_nothing_fits():
    builder = SurfaceModelBuilder(N, N, min_rows=ROWS, min_width=WIDTH)
    build(builder, lambda r, w: 1e6 if w <= 300 else 1e-320)
    assert builder.reason == "accurate"
    assert builder.limit(300) == 300
    assert builder.limit(N) < ROWS
    assert 280 <= max(width for _, width, _ in builder.points) <= 300


def test_everything_too_large():
    builder = SurfaceModelBuilder(N, N, min_rows=ROWS, min_width=WIDTH)
    build(builder, lambda r, w: 1e-320)
    assert builder.reason == "too large"
    assert builder.points == ()
    with pytest.raises(KernelError, match="measured"):
        _ = builder.model


def test_one_size_is_one_point():
    builder = SurfaceModelBuilder(4, 4, min_rows=4, min_width=4)
    assert build(builder, lambda r, w: 1.0) == [(4, 4)]
    assert builder.reason == "accurate"


def test_telling_without_being_asked_raises_and_nothing_happens():
    builder = SurfaceModelBuilder(4, 4, min_rows=4, min_width=4)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(KernelError):
            builder.tell(wrong)
    assert builder.ask() == (4, 4)
    builder.tell(1.0)
    with pytest.raises(KernelError, match="nothing is asked"):
        builder.tell(1.0)
    assert builder.points == ((4, 4, 1.0),)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_rows": 0, "max_width": 5},
        {"max_rows": 5, "max_width": 5, "min_rows": 6},
        {"max_rows": 5, "max_width": 5, "min_width": 0},
        {"max_rows": 5, "max_width": 5, "accuracy": 0},
        {"max_rows": 5, "max_width": 5, "max_points": 0},
    ],
)
def test_arguments_are_checked(arguments):
    with pytest.raises(KernelError, match="allowed"):
        SurfaceModelBuilder(**arguments)


@settings(max_examples=50)
@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.booleans(),
    st.integers(1, 80),
    st.lists(st.one_of(st.floats(1e-3, 1e3), st.just(math.inf)), min_size=1, max_size=40),
)
def test_it_ends_whatever_is_told(max_rows, max_width, triangular, max_points, seconds):
    builder = SurfaceModelBuilder(max_rows, max_width, triangular=triangular, max_points=max_points)
    asked = []
    while (size := builder.ask()) is not None:
        assert size not in asked
        rows, width = size
        assert 1 <= rows <= builder.limit(width)
        assert 1 <= width <= max_width
        asked.append(size)
        builder.tell(seconds[len(asked) % len(seconds)])
    assert len(asked) <= max_points
    assert builder.reason in ("accurate", "points", "too large")
    assert (builder.reason == "too large") == (not builder.points)
