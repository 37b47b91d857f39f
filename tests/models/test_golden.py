"""Golden values of models, and the models against straight formulas of their documentation.

`tests.golden` says how they are kept and written anew.
"""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.models import (
    AkimaModel,
    AnalyticModel,
    ConstantModel,
    PiecewiseLinearModel,
    SurfaceModel,
    TabulatedModel,
)
from fpmdask.models.bank import bank
from tests.golden import Golden, numbers, whole

GOLDEN = Golden(Path(__file__).parent)
SIZES = np.array([0.0, 0.3, 1.0, 2.5, 7.0, 12.0, 19.9, 33.3, 47.0, 80.0, 200.0])
SECONDS = np.array([0.0, 0.05, 0.4, 1.0, 2.2, 5.0, 9.0, 17.0, 40.0])


def points(case):
    """Return measured sizes and times, of which some come again and some decrease."""
    rng = numbers(case)
    sizes, times = [], []
    for _ in range(1 + case % 9):
        sizes.append(float(whole(rng, 1, 50)))
        times.append(sizes[-1] * rng.uniform(0.1, 0.4))
    for _ in range(case % 7):
        at = whole(rng, 0, len(sizes) - 1)
        sizes.append(sizes[at])
        times.append(times[at] * rng.uniform(0.8, 1.3))
    return sizes, times


def pooled(seconds, weights):
    """Return the closest times that do not decrease, by their definition as max of min of means."""

    def mean(a, b):
        return np.average(seconds[a : b + 1], weights=weights[a : b + 1])

    n = range(len(seconds))
    return [max(min(mean(a, b) for b in n if b >= i) for a in n if a <= i) for i in n]


def straight(sizes, times, units):
    """Return the seconds of `units` on a straight partial model: speeds linear between points."""
    means = {}
    for x, t in zip(sizes, times, strict=True):
        mean, count = means.get(x, (0.0, 0))
        count = min(count + 1, 4)
        means[x] = (mean + (t - mean) / count, count)
    x = sorted(means)
    t = pooled([means[k][0] for k in x], [means[k][1] for k in x])
    speeds = [a / b for a, b in zip(x, t, strict=True)]
    found = []
    for u in units:
        time = u / np.interp(u, x, speeds)
        # a time between two points is between theirs
        low = max((b for a, b in zip(x, t, strict=True) if a <= u), default=0.0)
        high = min((b for a, b in zip(x, t, strict=True) if a >= u), default=math.inf)
        found.append(min(max(time, low), high))
    return found


@pytest.mark.parametrize("case", range(30))
def test_piecewise_models_are_what_the_straight_formulas_say(case):
    sizes, times = points(case)
    model = PiecewiseLinearModel.from_points(sizes, times)
    expected = straight(sizes, times, SIZES.tolist())
    np.testing.assert_allclose(model.time(SIZES), expected, rtol=1e-9)
    one_by_one = PiecewiseLinearModel.from_points(sizes[:1], times[:1])
    for x, t in zip(sizes[1:], times[1:], strict=True):
        one_by_one = one_by_one.with_point(x, t)
    np.testing.assert_allclose(one_by_one.time(SIZES), expected, rtol=1e-9)
    for seconds in SECONDS:
        most = model.units_within(seconds)
        assert straight(sizes, times, [most * (1 - 1e-9)])[0] <= seconds * (1 + 1e-6) + 1e-12
        assert straight(sizes, times, [most * (1 + 1e-6) + 1e-9])[0] >= seconds * (1 - 1e-6)


def every_kind(case):
    rng = numbers(50 + case)
    sizes, times = points(case)
    table = np.cumsum([rng.random() for _ in range(30)]) / 2
    table[whole(rng, 3, 29) :] += 3.0
    wavy = table * np.array([rng.uniform(0.5, 1.0) for _ in range(30)])
    wavy[0] = 0.0
    return [
        PiecewiseLinearModel.from_points(sizes, times),
        AkimaModel.from_points(sizes, times),
        ConstantModel(rng.uniform(1.0, 20.0)),
        TabulatedModel(table),
        TabulatedModel(np.where(np.arange(30) > 20, np.inf, wavy)),
        *(AnalyticModel(c, rng.uniform(1.0, 20.0)) for c in ("linear", "nlogn", ("power", 1.4))),
        AnalyticModel(lambda x: x * (1.0 + (x > 20)), rng.uniform(2.0, 4.0)),
    ]


@pytest.mark.parametrize("case", range(10))
def test_golden_models(case):
    """Times, speeds and units of all kinds, alone and as a bank."""
    models = every_kind(case)
    alone = [[m.time(SIZES), m.speed(SIZES[1:]), m.units_within(SECONDS)] for m in models]
    GOLDEN.check(f"models {case}", alone[:2] if case else alone)
    together = bank(models)
    narrow = together.narrowed(0.4, 9.0)
    for k, seconds in enumerate(SECONDS[1:].tolist(), 1):
        expected = [units[k] for _, _, units in alone]
        np.testing.assert_allclose(together.units_within(seconds), expected, rtol=1e-12)
        if 0.4 <= seconds <= 9.0:
            np.testing.assert_allclose(narrow.units_within(seconds), expected, rtol=1e-12)
    workers = np.array([3, 0, 8, 1, 0, 2, 5, 4, 6, 7, 3])
    expected = [models[w].time(x) for w, x in zip(workers, SIZES, strict=True)]
    np.testing.assert_allclose(together.time(workers, SIZES), expected, rtol=1e-12)


@pytest.mark.parametrize("case", range(8))
def test_golden_surfaces(case):
    rng = numbers(90 + case)
    sides = [(float(whole(rng, 1, 9)), float(whole(rng, 1, 4 + case))) for _ in range(2 + 2 * case)]
    seconds = [h * w * rng.uniform(0.5, 2.0) for h, w in sides]
    surface = SurfaceModel.from_points(*zip(*sides, strict=True), seconds)
    heights = np.array([0.0, 0.5, 2.0, 4.5, 9.0, 30.0])
    widths = np.array([0.0, 0.7, 2.0, 3.3, 6.0, 11.0])
    at = surface.time(heights[:, np.newaxis], widths)
    for k, width in enumerate(widths[1:].tolist(), 1):
        np.testing.assert_allclose(surface.slice(width).time(heights), at[:, k], rtol=1e-9)
    more = surface.with_point(5.0, 2.0, 3.0)
    GOLDEN.check(f"surface {case}", [at, more.time(heights, 2.2), more.points])


REFUSED = {
    "negative size": lambda: ConstantModel(2.0).time([0.0, 3.0, -4.0, 5.0, -6.0]),
    "nan": lambda: ConstantModel(2.0).units_within([1.0, math.nan, -1.0]),
    "speed of a negative size": lambda: TabulatedModel([0.0, 1.0]).speed(-2.0),
    "words": lambda: ConstantModel(2.0).time(["1"]),
    "second point": lambda: PiecewiseLinearModel.from_points([1.0, 2.0, 3.0], [1.0, -7.0, 2.0]),
    "infinite size": lambda: AkimaModel.from_points([1.0, 2.0, math.inf], [1.0, 2.0, 3.0]),
    "no speed": lambda: PiecewiseLinearModel.from_points([1.0, 1e300], [1.0, 1e-300]),
    "count": lambda: PiecewiseLinearModel([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 5.0, 6.0]),
    "table": lambda: TabulatedModel([0.0, 1.0, 2.0, -3.0, math.nan]),
    "complexity": lambda: AnalyticModel(lambda x: 2.0 - x, 1.0).time([0.5, 1.0, 3.0, 4.0]),
    "two dimensions": lambda: PiecewiseLinearModel.from_points([[1.0]], [1.0]),
    "surface": lambda: SurfaceModel.from_points([1.0, 2.0], [1.0, 0.0], [1.0, 2.0]),
    "lengths": lambda: SurfaceModel.from_points([1.0, 2.0], [1.0, 2.0], [1.0]),
}


def test_golden_refusals():
    """What an error says of the value that is not allowed: which one, and where it is."""
    said = {}
    for name, call in REFUSED.items():
        with pytest.raises(PartitionError) as refused:
            call()
        said[name] = str(refused.value)
    GOLDEN.check("refusals", said)


def test_no_array_of_a_model_can_be_written():
    """Neither what it was made from nor what it has derived from that."""
    surface = SurfaceModel.from_points([1.0, 2.0, 2.0], [1.0, 1.0, 3.0], [1.0, 2.0, 3.0])
    models, found = [*every_kind(0), surface, *surface.columns], 0
    for model in models:
        for field in dataclasses.fields(model):
            value = getattr(model, field.name)
            if isinstance(value, np.ndarray):
                found += 1
                assert not value.flags.writeable, (model, field.name)
    assert found > 15
