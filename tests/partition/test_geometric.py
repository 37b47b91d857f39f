"""The min-max optimum for non-decreasing times: brute force, exchange, plateaus, limits."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from fpmdask.partition import geometric, proportional
from fpmdask.partition.geometric import distributed
from tests.conformance import check_distribution, check_partitioner

ORACLES = json.loads((Path(__file__).parents[1] / "oracles.json").read_text("utf-8"))

points = st.lists(st.tuples(st.integers(1, 30), st.floats(0.01, 100)), min_size=1, max_size=5).map(
    lambda pairs: tuple(zip(*pairs, strict=True))
)
steps = st.lists(st.integers(0, 3), min_size=13, max_size=13).map(np.cumsum)
models = st.one_of(
    points.map(lambda p: PiecewiseLinearModel.from_points(*p)),
    points.map(lambda p: AkimaModel.from_points(*p)),
    st.floats(0.01, 100).map(ConstantModel),
    steps.map(TabulatedModel),
    st.floats(0.01, 100).map(lambda s: AnalyticModel("nlogn", s)),
)


def makespan(shares, workers):
    return max(m.time(int(x)) for m, x in zip(workers, shares, strict=True) if x)


def check_exchange(shares, workers, limits=None):
    """Moving any one unit from a latest worker never lowers the makespan."""
    times = np.array([m.time(int(x)) if x else 0.0 for m, x in zip(workers, shares, strict=True)])
    more = np.array([m.time(int(x) + 1) for m, x in zip(workers, shares, strict=True)])
    if limits is not None:
        more[shares >= limits] = np.inf
    assert more.min() >= times.max() * (1 - 1e-12)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(models, min_size=1, max_size=3), st.integers(1, 12), st.data())
def test_brute_force(workers, units, data):
    limits = [data.draw(st.one_of(st.none(), st.integers(0, 12))) for _ in workers]
    most = [units if m is None else min(m, units) for m in limits]
    if sum(most) < units:
        limits[0], most[0] = None, units
    shares = geometric(units, workers, limits)
    check_distribution(shares, units, len(workers))
    assert (shares <= most).all()
    best = min(
        makespan(way, workers)
        for way in itertools.product(*(range(m + 1) for m in most))
        if sum(way) == units
    )
    assert makespan(shares, workers) <= best * (1 + 1e-9)


def random_models(seed, count, shape):
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        units = np.sort(rng.choice(10**6, 20, replace=False)) + 1.0
        seconds = units / 1e4
        if shape == "wide":
            seconds *= 10 ** rng.uniform(-3, 3) * np.where(units > 5e5, 30, 1)
        elif shape == "noisy":
            seconds *= np.exp(rng.normal(0, 0.5, 20))
        elif shape == "steps":
            seconds = np.ceil(seconds / 10) * rng.uniform(0.5, 5)
        elif shape == "common":
            seconds = np.where(units < 5e5, units / 6e4, np.where(units < 9e5, 10.0, units / 8e4))
        result.append(PiecewiseLinearModel.from_points(units, seconds))
    return result


@pytest.mark.parametrize("shape", ["wide", "noisy", "steps", "common"])
@pytest.mark.parametrize("units", [7, 300, 10**5, 3 * 10**7, 18 * 10**7, 10**9, 10**12])
def test_exchange(shape, units):
    workers = random_models(1, 300, shape)
    shares = geometric(units, workers)
    check_distribution(shares, units, 300)
    check_exchange(shares, workers)
    rng = np.random.default_rng(2)
    limits = rng.uniform(0, 3, 300) * units / 300 + 1
    limited = geometric(units, workers, limits)
    check_distribution(limited, units, 300)
    assert (limited <= limits).all()
    check_exchange(limited, workers, np.floor(limits))


class CountingBank:
    """A bank that counts how often all workers are searched."""

    def __init__(self, inner, calls):
        self.inner, self.calls = inner, calls

    def units_within(self, seconds):
        self.calls.append(seconds)
        return self.inner.units_within(seconds)

    def time(self, workers, units):
        return self.inner.time(workers, units)

    def narrowed(self, low, high):
        return CountingBank(self.inner.narrowed(low, high), self.calls)


@pytest.mark.slow
def test_few_searches_are_enough():
    """Seven on average, the first three of which only find out where to start."""
    searches = []
    for shape in ("wide", "noisy", "steps", "common"):
        for seed, units in itertools.product((4, 5), [10**5, 3 * 10**7, 10**9]):
            calls = []
            counting = CountingBank(bank(random_models(seed, 500, shape)), calls)
            shares = distributed(units, counting, np.full(500, np.inf))
            check_distribution(shares, units, 500)
            searches.append(len(calls))
    assert np.mean(searches) <= 7.6
    assert max(searches) <= 15


@pytest.mark.slow
def test_few_searches_are_enough_for_times_that_jump():
    """Few workers whose times are the same for many sizes, then up to a million times longer."""
    rng = np.random.default_rng(0)
    searches = []
    for _ in range(100):
        p, sizes = int(rng.integers(1, 8)), int(rng.integers(50, 2000))
        jumps = 10 ** rng.uniform(-3, 3, (p, sizes)) * (rng.random((p, sizes)) < 0.1)
        calls = []
        counting = CountingBank(bank([TabulatedModel(t) for t in jumps.cumsum(axis=1)]), calls)
        units = int(rng.integers(1, p * (sizes - 1) + 1))
        check_distribution(distributed(units, counting, np.full(p, np.inf)), units, p)
        searches.append(len(calls))
    assert np.mean(searches) <= 13
    assert max(searches) <= 25


@pytest.mark.slow
def test_exchange_with_many_workers():
    workers = random_models(3, 4000, "steps")
    shares = geometric(10**9, workers)
    check_distribution(shares, 10**9, 4000)
    check_exchange(shares, workers)


@pytest.mark.parametrize(
    "kind",
    [
        lambda i: ConstantModel(i + 1),
        lambda i: PiecewiseLinearModel.from_points([10, 100], [1 + i, 20 + i]),
        lambda i: AkimaModel.from_points([10, 100, 1000], [1 + i, 20 + i, 300]),
        lambda i: AnalyticModel("nlogn", i + 1.0),
        lambda i: AnalyticModel(("power", 2), i + 1.0),
        lambda i: AnalyticModel(lambda x: np.ceil(x / 10), i + 1.0),
        lambda i: SurfaceModel.from_points([10, 20], [4, 8], [1 + i, 20 + i]).slice(5),
        lambda i: [ConstantModel(2.0), AnalyticModel("linear", 3.0)][i % 2],
    ],
    ids=["constant", "piecewise", "akima", "nlogn", "power", "callable", "surface", "mixed"],
)
def test_contract(kind):
    check_partitioner(geometric, lambda count: [kind(i) for i in range(count)])


def test_constant_models_are_proportional():
    speeds = ORACLES["hcl_speeds_mflops"]
    for case in ORACLES["proportional"]:
        workers = [ConstantModel(s) for s in speeds]
        flat = [PiecewiseLinearModel.from_points([100], [100 / s]) for s in speeds]
        for models_ in (workers, flat, workers[:8] + flat[8:]):
            assert geometric(case["units"], models_).tolist() == case["distribution"]
        assert proportional(case["units"], speeds).tolist() == case["distribution"]


def test_paging_cliff():
    """The optimum of the two workers on which the constant model cycles for ever."""
    case = ORACLES["cpm_two_cycle"]
    units = np.array([60000, 66666.7])
    paging = PiecewiseLinearModel.from_points(units, units / [10000, 1000])
    shares = geometric(case["units"], [paging, ConstantModel(5000)])
    assert shares == pytest.approx(case["optimum"], abs=1)
    assert makespan(shares, [paging, ConstantModel(5000)]) == pytest.approx(
        case["makespan"], rel=3e-5
    )


def test_ties_go_to_the_lowest_worker():
    assert geometric(7, [ConstantModel(2.0)] * 4).tolist() == [2, 2, 2, 1]
    assert geometric(5, [TabulatedModel([0, 1, 1, 1])] * 3).tolist() == [3, 2, 0]


def test_units_that_take_no_time():
    assert geometric(5, [TabulatedModel([0] * 4), TabulatedModel([0] * 4)]).tolist() == [3, 2]
    workers = [TabulatedModel([0, 0, 0, 5]), TabulatedModel([0, 1, 2, 3])]
    assert geometric(4, workers).tolist() == [2, 2]
    # little time is not none: what takes 0.1 s comes before what takes 0.3 s
    fast = TabulatedModel([0, 0.1, 0.1, 0.1])
    assert geometric(3, [TabulatedModel(0.3 * np.arange(4)), fast, fast]).tolist() == [0, 3, 0]


@pytest.mark.slow
@given(
    st.lists(
        st.lists(st.sampled_from([0, 0, 1, 3]), min_size=12, max_size=12), min_size=1, max_size=4
    ),
    st.sampled_from([1e-6, 0.1, 1.0, 1e6]),
    st.one_of(st.integers(1, 6), st.integers(1, 48)),
)
def test_the_units_that_finish_earliest_are_taken(steps, second, units):
    """Exactly those, in tables where many units take the same time or none at all."""
    tables = [second * np.cumsum([0, *more]) for more in steps]
    units = min(units, 12 * len(tables))
    earliest = sorted((t, i, k) for i, table in enumerate(tables) for k, t in enumerate(table) if k)
    wanted = np.bincount([i for _, i, _ in earliest[:units]], minlength=len(tables))
    assert geometric(units, [TabulatedModel(t) for t in tables]).tolist() == wanted.tolist()


def test_tables_limit_their_workers():
    with pytest.raises(PartitionError, match=r"6 units.*for 5 units"):
        geometric(6, [TabulatedModel([0, 1, 2]), TabulatedModel([0, 1, 2, 3, np.inf])])

    with pytest.raises(PartitionError, match=r"6 units.*for 5 units"):
        geometric(6, [TabulatedModel([0, 1, 2]), TabulatedModel([0, 1, 2, 3])], [9, 9])


@pytest.mark.parametrize(
    "models",
    [
        [AnalyticModel(lambda x: np.where(x > 10, np.inf, x), 1.0)] * 2,
        [AnalyticModel(("power", 200), 1.0), AnalyticModel(("power", 300), 1.0)],
        [ConstantModel(1e-306)],
        [ConstantModel(1e-310), ConstantModel(2e-310)],
    ],
)
def test_units_that_no_finite_time_suffices_for(models):
    with pytest.raises(PartitionError, match=r"1000000 units do not fit.*finite times"):
        geometric(1_000_000, models)


def test_sizes_that_a_complexity_calls_impossible_are_not_given():
    limited = AnalyticModel(lambda x: np.where(x > 10, np.inf, x), 1.0)
    assert geometric(100, [limited, ConstantModel(0.1)]).tolist() == [10, 90]


def test_the_largest_number_of_units_is_met_exactly():
    for models in ([ConstantModel(1.0)] * 3, [ConstantModel(1.0), ConstantModel(2.0)]):
        assert geometric(2**52, models).sum() == 2**52


def test_decreasing_tables_are_refused():
    with pytest.raises(PartitionError, match=r"models\[1\] decrease.*exact"):
        geometric(2, [ConstantModel(1.0), TabulatedModel([0, 2, 1])])


@pytest.mark.parametrize("workers", [None, [], 3, ConstantModel(1.0)])
def test_no_models(workers):
    with pytest.raises(PartitionError, match="at least one"):
        geometric(2, workers)


@pytest.mark.parametrize("workers", [[3.0], ["a", ConstantModel(1.0)], [None]])
def test_bad_models(workers):
    with pytest.raises(PartitionError, match=r"models\[0\]"):
        geometric(2, workers)
