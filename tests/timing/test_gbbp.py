import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.errors import KernelError
from fpmdask.timing import FullModelBuilder

LOW, HIGH = 10, 10_000


def hump(x):
    """Rises while overheads are amortised, then pages: a tenth of the peak at the end."""
    return 1000 * x / (x + 50) if x < 3000 else 983.6 / (1 + ((x - 3000) / 1000) ** 1.5)


# speed, most points allowed at 5 %
CURVES = {
    "flat": (lambda x: 50.0, 5),
    "straight up": (lambda x: 100 + 0.5 * x, 8),
    "straight down": (lambda x: 1100 - 0.1 * x, 10),
    "falling": (lambda x: 1000 / (1 + x / 1000), 25),
    "hump": (hump, 50),
    "cliff": (lambda x: 1000.0 if x <= 6000 else 100.0, 16),
    "cliff near the left end": (lambda x: 1000.0 if x <= 30 else 100.0, 16),
    "two levels of cache": (lambda x: 1500.0 if x < 300 else 1000.0 if x <= 6000 else 90.0, 24),
    "rise and cliff": (lambda x: 1000 * x / (x + 50) if x <= 6000 else 100.0, 32),
}
# Sizes next to a jump, within the accuracy, belong to neither side
JUMPS = {
    "cliff": [6000],
    "cliff near the left end": [30],
    "two levels of cache": [300, 6000],
    "rise and cliff": [6000],
}


def build(builder, speed, noise=0.0, told=False, seed=0):
    rng = np.random.default_rng(seed)
    asked = []
    while (units := builder.ask()) is not None:
        assert builder.ask() == units
        asked.append(units)
        seconds = units / speed(units) * math.exp(noise * rng.standard_normal())
        builder.tell(seconds, 2 * noise * seconds if told else 0.0)
    return asked


def errors(model, speed, jumps=(), accuracy=0.05):
    sizes = np.unique(np.geomspace(LOW, HIGH, 500).astype(int))
    for jump in jumps:
        sizes = sizes[np.abs(np.log(sizes / jump)) > accuracy]
    true = np.array([speed(int(x)) for x in sizes])
    return np.abs(model.speed(sizes) / true - 1)


@pytest.mark.parametrize("accuracy", [0.05, 0.1])
@pytest.mark.parametrize("name", CURVES)
def test_curves_are_reconstructed_with_few_points(name, accuracy):
    speed, most = CURVES[name]
    builder = FullModelBuilder(LOW, HIGH, accuracy=accuracy)
    asked = build(builder, speed)
    assert builder.reason == "accurate"
    assert len(asked) <= most
    assert len(set(asked)) == len(asked) == len(builder.points) == builder.measurements
    off = errors(builder.model, speed, JUMPS.get(name, ()), accuracy)
    assert (off > accuracy).mean() <= 0.03
    assert off.max() <= 2 * accuracy


@pytest.mark.parametrize("name", CURVES)
def test_noise_does_not_bisect_for_ever(name):
    speed, most = CURVES[name]
    counts = []
    for seed in range(20):
        builder = FullModelBuilder(LOW, HIGH, max_points=60)
        counts.append(len(build(builder, speed, noise=0.05, told=True, seed=seed)))
        worst = np.quantile(errors(builder.model, speed, JUMPS.get(name, ())), 0.9)
        assert worst < 0.25
    assert np.mean(counts) <= most


def test_untold_noise_ends_at_the_points_allowed():
    for seed in range(10):
        builder = FullModelBuilder(LOW, HIGH, max_points=20)
        assert len(build(builder, hump, noise=0.2, seed=seed)) == 20
        assert builder.reason == "points"


@pytest.mark.parametrize("limit", [10, 11, 19, 20, 21, 700, 5000, 9999])
def test_sizes_that_are_too_large_shrink_the_range(limit):
    builder = FullModelBuilder(LOW, HIGH)
    asked = build(builder, lambda x: 50.0 if x <= limit else 1e-320)
    assert builder.reason == "accurate"
    assert builder.limit == builder.high
    assert limit <= builder.limit <= limit + max(1, 0.05 * limit)
    assert max(units for units, _ in builder.points) <= limit
    assert max(units for units, _ in builder.points) >= 0.9 * limit
    # the size found too large once is not passed again
    assert len(asked) <= 22


def test_everything_too_large():
    builder = FullModelBuilder(LOW, HIGH)
    builder.tell(math.inf)
    assert builder.ask() is None
    assert builder.reason == "too large"
    assert builder.limit == LOW - 1
    assert builder.points == ()
    with pytest.raises(KernelError, match="measured"):
        _ = builder.model


def test_a_size_that_turns_out_too_large_late_drops_what_is_above():
    builder = FullModelBuilder(LOW, HIGH)
    for _ in range(3):
        builder.tell(builder.ask() / 50.0)
    above = builder.ask()
    assert above < HIGH
    builder.tell(math.inf)
    assert builder.high == above - 1
    build(builder, lambda x: 50.0)
    assert builder.reason == "accurate"
    assert all(units < above for units, _ in builder.points)


def test_one_size_is_one_point():
    builder = FullModelBuilder(5, 5)
    assert build(builder, lambda x: 1.0) == [5]
    assert builder.reason == "accurate"


def test_one_point_is_enough_for_a_model():
    builder = FullModelBuilder(LOW, HIGH, max_points=1)
    build(builder, lambda x: 50.0)
    assert builder.reason == "points"
    assert builder.model.speed(700) == 50.0


def test_telling_without_being_asked_raises_and_nothing_happens():
    builder = FullModelBuilder(5, 5)
    builder.tell(1.0)
    for seconds in (1.0, math.inf, math.nan):
        with pytest.raises(KernelError, match="nothing is asked"):
            builder.tell(seconds)
    assert builder.points == ((5, 1.0),)


@pytest.mark.parametrize(
    ("seconds", "half_width"),
    [(0, 0), (-1, 0), (math.nan, 0), (-math.inf, 0), (1.0, -1), (1.0, math.nan)],
)
def test_impossible_times_are_refused_and_nothing_happens(seconds, half_width):
    builder = FullModelBuilder(LOW, HIGH)
    with pytest.raises(KernelError):
        builder.tell(seconds, half_width)
    assert builder.ask() == LOW
    assert builder.measurements == 0
    builder.tell(1.0, math.inf)
    assert builder.points == ((LOW, 1.0),)


@pytest.mark.parametrize(
    "arguments",
    [
        {"low": 0, "high": 5},
        {"low": 6, "high": 5},
        {"low": 1, "high": 5, "accuracy": 0},
        {"low": 1, "high": 5, "accuracy": 1},
        {"low": 1, "high": 5, "accuracy": math.nan},
        {"low": 1, "high": 5, "max_points": 0},
    ],
)
def test_arguments_are_checked(arguments):
    with pytest.raises(KernelError, match="allowed"):
        FullModelBuilder(**arguments)


@given(
    st.integers(1, 50),
    st.integers(0, 3000),
    st.sampled_from([0.02, 0.05, 0.2]),
    st.integers(1, 40),
    st.lists(st.one_of(st.floats(1e-3, 1e3), st.just(math.inf)), min_size=1, max_size=60),
)
def test_it_ends_whatever_is_told(low, span, accuracy, max_points, seconds):
    builder = FullModelBuilder(low, low + span, accuracy=accuracy, max_points=max_points)
    asked = []
    while (units := builder.ask()) is not None:
        assert low <= units <= builder.high
        assert units not in asked
        asked.append(units)
        builder.tell(seconds[len(asked) % len(seconds)])
    assert len(asked) == builder.measurements <= max_points
    assert builder.reason in ("accurate", "points", "too large")
    assert (builder.reason == "too large") == (not builder.points)
    assert all(units <= builder.high for units, _ in builder.points)
    if builder.points:
        assert math.isfinite(builder.model.time(low + span))
