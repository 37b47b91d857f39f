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


LARGE, LEAST_ROWS, LEAST_WIDTH = 10240, 64, 512  # the paper's range


def dropping(memory, factor):
    """Return the speed of a worker that is `factor` times slower where `memory` is over 1."""
    return lambda r, w: 1e6 / (1 if memory(r, w) < 1 else factor)


def share_of_errors(model, speed, above, seed=0):
    rng = np.random.default_rng(seed)
    widths = rng.uniform(LEAST_WIDTH, LARGE, 5000)
    rows = rng.uniform(LEAST_ROWS, widths)
    expected = rows * widths / np.array([speed(*size) for size in zip(rows, widths, strict=True)])
    return np.mean(np.abs(model.time(rows, widths) / expected - 1) > above)


# speed, measurements, most share of the sizes that is off by more than 5 %
DROPS = {
    "flat": (lambda r, w: 1e6, 12, 0.0),
    "panels": (lambda r, w: 1e6 * (r / (r + 4)) * (w / (w + 20)), 11, 0.0),
    "overhead": (lambda r, w: 1e6 * (r / (r + 100)) * (w / (w + 200)), 64, 0.0),
    "slice, 3e6 x 8": (dropping(lambda r, w: r * w / 3e6, 8), 90, 0.02),
    "slice, 1e7 x 2": (dropping(lambda r, w: r * w / 1e7, 2), 100, 0.02),
    "slice, 1e7 x 1.3": (dropping(lambda r, w: r * w / 1e7, 1.3), 100, 0.02),
    "slice, 2e7 x 30": (dropping(lambda r, w: r * w / 2e7, 30), 90, 0.03),
    "slice, 3e7 x 8": (dropping(lambda r, w: r * w / 3e7, 8), 90, 0.03),
    "slice, 8e7 x 8": (dropping(lambda r, w: r * w / 8e7, 8), 90, 0.02),
    "matrices, 1.2e8 x 8": (dropping(lambda r, w: used(r, w) / 1.2e8, 8), 120, 0.02),
    "rows, 3000 x 8": (dropping(lambda r, w: r / 3000, 8), 100, 0.03),
    "width, 3000 x 8": (dropping(lambda r, w: w / 3000, 8), 70, 0.02),
    "paging": (lambda r, w: 1e6 / (1 + 7 / (1 + (3e7 / (r * w)) ** 4)), 110, 0.01),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DROPS)
def test_a_drop_is_followed_between_the_widths(name):
    """What is called accurate is so but next to the drop, within the measurements allowed.

    Seen: share of the sizes off by more than 5 %, and measurements. Before: with speeds taken at
    equal rows between two lines; where it took 120 measurements the limit had ended it.

    ===================  ======  ====  ==============
    speed                off     told  before
    ===================  ======  ====  ==============
    flat                  0        12  (0, 12)
    panels                0        11  (0, 11)
    overhead              0        64  (0, 64)
    slice, 3e6 x 8        0.012    85  (0.106, 47)
    slice, 1e7 x 2        0.016    94  (0.100, 88)
    slice, 1e7 x 1.3      0.011    94  (0.506, 18)
    slice, 2e7 x 30       0.022    72  (0.176, 40)
    slice, 3e7 x 8        0.019    86  (0.380, 18)
    slice, 8e7 x 8        0.008    66  (0.035, 19)
    matrices, 1.2e8 x 8   0.011   114  (0.077, 120)
    rows, 3000 x 8        0.019    98  (0.364, 18)
    width, 3000 x 8       0.008    57  (0.008, 61)
    paging                0.000   104  (0.118, 120)
    ===================  ======  ====  ==============
    """
    speed, most, off = DROPS[name]
    builder = SurfaceModelBuilder(LARGE, LARGE, min_rows=LEAST_ROWS, min_width=LEAST_WIDTH)
    build(builder, speed)
    assert builder.reason == "accurate"
    assert builder.measurements <= most
    assert share_of_errors(builder.model, speed, 0.05) <= off


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.floats(5.3, 7.9),
    st.sampled_from([1.15, 1.3, 2, 8, 30]),
    st.sampled_from(["slice", "matrices", "fixed rows", "fixed columns"]),
    st.sampled_from([0, 20, 200]),
    st.sampled_from([0, 50, 300]),
)
def test_accurate_is_said_only_where_it_is(log_size, factor, memory, per_row, per_column):
    """Where the reason is "accurate" at most 4 % of the sizes are off by twice the accuracy.

    Seen over 900 surfaces of this kind, of which 368 were done within 120 measurements: 3.3 % of
    the sizes at most, 0.6 % in the mean. Off by more than 5 % were 1.2 % in the mean, 2.1 % in 95
    of 100 cases; more (up to 19 %, once 43 %) only where a drop of 13 to 23 % is hidden by a speed
    that rises as much. Without columns along the drops: 9.5 % in the mean.
    """
    size = 10**log_size
    needed = {
        "slice": lambda r, w: r * w,
        "matrices": lambda r, w: used(r, w) / 3,
        "fixed rows": lambda r, w: (r + 1000) * w,
        "fixed columns": lambda r, w: r * (w + 500),
    }[memory]
    drop = dropping(lambda r, w: needed(r, w) / size, factor)

    def speed(r, w):
        return drop(r, w) / (1 + per_row / r) / (1 + per_column / w)

    builder = SurfaceModelBuilder(LARGE, LARGE, min_rows=LEAST_ROWS, min_width=LEAST_WIDTH)
    build(builder, speed)
    if builder.reason == "accurate":
        assert share_of_errors(builder.model, speed, 0.10) <= 0.04
    else:
        assert builder.reason == "points"
        assert builder.measurements == builder.max_points


def test_a_line_cut_short_is_not_called_accurate():
    builder = SurfaceModelBuilder(640, 640, min_rows=8, min_width=640, max_points=12)
    build(builder, SURFACES["memory cliff"][0])
    assert builder.measurements < builder.max_points
    assert builder.reason == "points"


def test_a_slice_between_two_lines_has_its_drop_where_it_is():
    speed = dropping(lambda r, w: r * w / 3e7, 8)
    builder = SurfaceModelBuilder(LARGE, LARGE, min_rows=LEAST_ROWS, min_width=LEAST_WIDTH)
    build(builder, speed)
    for width in (6500, 7000, 8000, 9000, 10000):
        model = builder.model.slice(width)
        for rows in (0.9 * 3e7 / width, 1.1 * 3e7 / width):
            assert model.time(rows) == pytest.approx(rows * width / speed(rows, width), rel=0.05)
