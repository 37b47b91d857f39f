"""Golden traces of the partitioners: every size that was asked for and what was learned from it.

`tests.golden` says how they are kept and written anew.
"""

import itertools
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
    TabulatedModel,
)
from fpmdask.models.bank import bank
from fpmdask.partition import (
    Batches,
    Dfpa,
    by_complexity,
    exact,
    geometric,
    imbalance,
    integral,
    nlogn_correction,
    nlogn_lambert,
    polynomial,
    proportional,
)
from fpmdask.partition.balanced import balanced
from fpmdask.partition.evidence import Evidence
from fpmdask.partition.geometric import distributed
from fpmdask.partition.outcome import Round
from fpmdask.partition.outliers import Measured, outliers
from fpmdask.partition.refinement import probe, refined
from fpmdask.partition.stopping import smallest_step, worthwhile
from tests.golden import Golden, checksum, numbers, whole

GOLDEN = Golden(Path(__file__).parent)


def paging(units):
    """A cliff at 690 units, where the time grows eight-fold, and a smaller one at 200."""
    return units * (1.0 + 0.35 * (units > 200) + 7.0 * (units > 690))


COMPLEXITIES = {
    "linear": lambda x: 1.0 * x,
    "nlogn": lambda x: x * math.log(max(x, 2.0)),
    "power": lambda x: x**1.7,
    "falling": lambda x: x**0.6,
    "paging": paging,
    "plateau": lambda x: 100.0 + max(x - 400.0, 0.0),
}


def learned(learning):
    """Return what a `Batches` knows: speeds, points, costs, and the sizes of costs."""
    function = learning.complexity
    units, costs = function.points
    sizes = np.geomspace(max(units[0] / 3, 1.0), units[-1] * 3, 9)
    levels = np.geomspace(costs[0] / 3, costs[-1] * 3, 9)
    return [learning.speeds, units, costs, function(sizes), function.units_within(levels)]


@pytest.mark.parametrize("name", COMPLEXITIES)
@pytest.mark.parametrize("case", range(4))
def test_golden_batches(name, case):
    """Known, wrong and unknown speeds; noise; workers that change and that get nothing."""
    rng, cost = numbers(case), COMPLEXITIES[name]
    workers = (2, 3, 5, 8)[case]
    speeds = [rng.uniform(1.0, 5.0) for _ in range(workers)]
    given = [s * rng.uniform(0.7, 1.4) for s in speeds] if case % 2 else None
    learning, trace = Batches(workers, speeds=given), []
    units = 430 * workers
    for batch in range(9):
        if batch == 5 and case >= 2:
            speeds[1] *= 0.3
        total = (
            (units, units, 3 * units // 4, workers - 1)[whole(rng, 0, 3)] if case == 3 else units
        )
        sizes = learning.ask(total)
        noise = (0.0, 0.02, 0.0, 0.08)[case]
        learning.tell(
            [cost(float(x)) / s * math.exp(rng.uniform(-noise, noise)) if x else math.nan
             for x, s in zip(sizes.tolist(), speeds, strict=True)]
        )  # fmt: skip
        trace.append([sizes, *(learned(learning) if batch in (0, 3, 8) else [learning.speeds])])
    GOLDEN.check(f"batches {name} {case}", trace)


def seconds_of(kind, rng):
    """Return a worker's seconds as a function of units."""
    speed = rng.uniform(1.0, 8.0)
    edge = rng.uniform(150.0, 500.0)
    return {
        "constant": lambda x: x / speed,
        "cache": lambda x: x / speed * (1.0 + min(x / edge, 1.5)),
        "cliff": lambda x: x / speed * (12.0 if x > edge else 1.0),
        "steps": lambda x: math.ceil(x / 37.0) / speed,
        "memory": lambda x: math.inf if x > edge else x / speed,
    }[kind]


SETTINGS = {
    "default": {},
    "epsilon": {"epsilon": 0.02},
    "gain": {"least_gain": 0.05, "epsilon": 0.05},
    "quick": {"epsilon": 0.05, "thorough": False, "max_rounds": 6},
    "models": {"epsilon": 0.05},
    "limits": {"epsilon": 0.03},
}


def known(rng, seconds, i):
    """Return what is known of worker i before the run."""
    if i % 5 == 0:
        return None
    if i % 5 == 1:
        return ConstantModel(rng.uniform(1.0, 8.0))
    if i % 5 == 2:
        return AnalyticModel("nlogn", rng.uniform(1.0, 8.0))
    sizes = [20.0, 90.0, 160.0]
    times = [min(seconds(x), 1e4) * rng.uniform(0.8, 1.3) for x in sizes]
    return (PiecewiseLinearModel, AkimaModel)[i % 5 - 3].from_points(sizes, times)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", range(8))
def test_golden_dfpa(setting, case):
    """Every distribution, what was inferred of noise and limits, and the models in the end."""
    rng = numbers(100 * case + len(setting))
    kinds = ("constant", "cache", "cliff", "steps", "cliff", "memory", "cliff", "cache")
    workers = (2, 3, 4, 6, 2, 4, 7, 5)[case]
    mixed = [kinds[case]] * workers if case < 3 else [kinds[(case + i) % 8] for i in range(workers)]
    true = [seconds_of(kind, rng) for kind in mixed]
    noise = (0.0, 0.0, 0.0, 0.05, 0.0, 0.02, 0.15, 0.0)[case]
    arguments = dict(SETTINGS[setting])
    if setting == "models":
        arguments["models"] = [known(rng, true[i], i + case) for i in range(workers)]
    if setting == "limits":
        arguments["limits"] = [None, *(rng.uniform(60, 400) for _ in range(workers - 1))]
    dfpa, trace = Dfpa(180 * workers, workers, **arguments), []
    while (asked := dfpa.ask()) is not None:
        slow = 0.4 if case == 7 and len(trace) >= 2 else 1.0  # worker 0 changes
        times = [
            t(x) * math.exp(rng.uniform(-noise, noise)) if x else 0.0
            for t, x in zip(true, asked.tolist(), strict=True)
        ]
        times[0] /= slow
        dfpa.tell(times)
        limits = [None if math.isinf(v) else v for v in dfpa.limits.tolist()]
        trace.append([asked, dfpa.noise, dfpa.resolution, dfpa.outcome.proposal, limits])
    found = dfpa.outcome
    models = [m.points if hasattr(m, "points") else repr(m) for m in found.models]
    fits = [m.speed(np.array([1.0, 33.0, 180.0, 402.0, 900.0])) for m in dfpa._fit.models]
    GOLDEN.check(
        f"dfpa {setting} {case}",
        [trace, found.reason, found.distribution, found.imbalance, models, fits],
    )


def measured_evidence(case):
    """Return evidence of some rounds, and the rounds; some sizes come again, some are too large."""
    rng = numbers(7000 + case)
    workers = 2 + case % 4
    prior = [known(rng, seconds_of("cache", rng), i + case) for i in range(workers)]
    evidence, rounds = Evidence(prior if case % 3 == 0 else [None] * workers, 400), []
    true = [seconds_of(("cliff", "cache", "constant")[(case + i) % 3], rng) for i in range(workers)]
    noise = 0.0 if case % 2 else 0.05
    sizes = np.array([whole(rng, 100, 600) for _ in range(workers)])
    for round_ in range(2 + case % 5):
        times = np.array([
            t(float(x)) * math.exp(rng.uniform(-noise, noise))
            for t, x in zip(true, sizes.tolist(), strict=True)
        ])  # fmt: skip
        if round_ == 1 and case % 4 == 3:
            times[0] = math.inf
        if round_ == 2 and case % 4 == 2:
            times[-1] *= 2.5
        evidence = evidence.with_round(sizes, times, noise)
        rounds.append(Round(sizes, times, float(times.max() / times.min() - 1)))
        keep = np.array([rng.random() < 0.3 for _ in range(workers)])
        drawn = np.array([x * rng.uniform(0.9, 1.06) for x in sizes.tolist()]).round()
        sizes = np.where(keep, sizes, drawn).astype(np.int64)
    return evidence, rounds, sizes, rng


# Where noisy times are interpolated, rounding decides whether a distribution is balanced.
EPSILONS = ((0.02, 0.3), ())
GRID = np.array([1.0, 7.0, 50.0, 120.0, 200.0, 333.0, 480.0, 700.0])


@pytest.mark.parametrize("case", range(24))
def test_golden_evidence(case):
    """Caps, doubts, fits with and without smoothing, and what follows from them."""
    evidence, rounds, proposal, _ = measured_evidence(case)
    workers = proposal.size
    largest = evidence.largest()
    limits = np.where(np.arange(workers) % 2, np.inf, np.ceil(largest) + 40.0)
    share = rounds[0].distribution
    fit, through = evidence.fit(), evidence.interpolated()
    speeds = [[m.speed(GRID) for m in f.models] if f else None for f in (fit, through)]
    best = min(rounds, key=lambda r: r.makespan)
    trace = [
        *(evidence.changed_in, evidence.caps(np.full(workers, 900.0)), evidence.caps(limits)),
        *(largest, evidence.above(share), evidence.above(proposal), fit.noise, speeds),
        *(evidence.doubtful(share, limits), evidence.doubtful(share, limits)),
        [worthwhile(proposal, rounds, limits, fit, gain) for gain in (0.0, 0.02, 0.1)],
        [worthwhile(r.distribution, rounds, limits, fit) for r in rounds],
        smallest_step(fit, share),
        [refined(best, rounds, evidence, limits, proposal, e) for e in EPSILONS[case % 2]],
        [probe(best, fit, evidence.above(best.distribution), limits, e) for e in (0.01, 0.2)],
    ]
    GOLDEN.check(f"evidence {case}", trace)


def models_of(rng, workers):
    """Return models of all kinds."""
    made = []
    for i in range(workers):
        kind = whole(rng, 0, 4)
        sizes = np.cumsum([rng.uniform(2.0, 40.0) for _ in range(4)])
        times = np.cumsum([rng.uniform(0.1, 20.0) for _ in range(4)])
        if kind == 0:
            made.append(ConstantModel(rng.uniform(0.5, 9.0)))
        elif kind == 1:
            made.append(PiecewiseLinearModel.from_points(sizes, times))
        elif kind == 2:
            made.append(AkimaModel.from_points(sizes, times))
        elif kind == 3:
            made.append(AnalyticModel(("nlogn", ("power", 1.5), "linear")[i % 3], 3.0))
        else:
            made.append(TabulatedModel(np.cumsum([rng.random() < 0.6 for _ in range(90)]) / 3.0))
    return made


@pytest.mark.parametrize("case", range(20))
def test_golden_partitioners(case):
    rng = numbers(9000 + case)
    workers, units = whole(rng, 1, 7), whole(rng, 1, 200)
    models = models_of(rng, workers)
    limits = [rng.uniform(2, 60) if rng.random() < 0.4 else None for _ in range(workers)]
    speeds = [rng.uniform(0.2, 9.0) for _ in range(workers)]
    bounds = np.array([math.inf if v is None else math.floor(v) for v in limits])
    tables = [np.cumsum([float(whole(rng, 0, 3)) for _ in range(40)]) for _ in range(workers)]
    shuffled = [table[::-1].copy() if k % 2 else table for k, table in enumerate(tables)]

    def tried(call, *arguments):
        try:
            return call(*arguments)
        except PartitionError as error:
            return str(error)

    trace = [
        tried(geometric, units, models, limits),
        tried(proportional, units, speeds, limits),
        [tried(exact, min(units, 30), t) for t in (tables, shuffled)],
        [tried(balanced, units, models, bounds, e) for e in (0.05, 0.3, 1.0)],
        [by_complexity(units, speeds, c) for c in ("nlogn", "linear", ("power", 1.3))],
        polynomial(units, speeds, 0.5 + case / 10),
        [tried(f, 50 * units, speeds) for f in (nlogn_correction, nlogn_lambert)],
        tried(integral, proportional(units, speeds) + 0.0, units, models),
    ]
    GOLDEN.check(f"partitioners {case}", trace)


class SearchedBank:
    """A bank that keeps every time at which all workers are searched, and every narrowing."""

    def __init__(self, inner, calls):
        self.inner, self.calls = inner, calls

    def units_within(self, seconds):
        self.calls.append(seconds)
        return self.inner.units_within(seconds)

    def time(self, workers, units):
        self.calls.append(len(workers))
        return self.inner.time(workers, units)

    def narrowed(self, low, high):
        self.calls.append([low, high])
        return SearchedBank(self.inner.narrowed(low, high), self.calls)


@pytest.mark.parametrize("kind", ["smooth", "steps", "plateaus", "tables", "constant"])
@pytest.mark.parametrize("workers", [3, 30])
def test_golden_searches_of_geometric(kind, workers):
    """The times that are searched: the start, the secants, the medians of plateaus."""
    rng, models = numbers(workers), []
    for _ in range(workers):
        speed = 10.0 ** rng.uniform(-1.5, 1.5)
        sizes = np.cumsum([rng.uniform(5.0, 900.0) for _ in range(12)])
        times = sizes / speed * (1.0 + 20.0 * (sizes > 2500.0))
        if kind == "steps":
            times = np.ceil(times / 10.0) * rng.uniform(0.5, 5.0)
        if kind == "plateaus":
            times = np.where(sizes < 1500.0, sizes / 60.0, np.maximum(30.0, sizes / 150.0))
        if kind == "tables":
            jumps = [10.0 ** whole(rng, 0, 2) * (rng.random() < 0.02) for _ in range(3000)]
            models.append(TabulatedModel(np.cumsum(jumps)))
        elif kind == "constant":
            models.append(ConstantModel(speed))
        else:
            models.append(PiecewiseLinearModel.from_points(sizes, times))
    trace = []
    for units in (7, 50 * workers, 1400 * workers, 2700 * workers):
        calls = []
        shares = distributed(units, SearchedBank(bank(models), calls), np.full(workers, np.inf))
        trace.append([calls, checksum(shares)])
    GOLDEN.check(f"searches {kind} {workers}", trace)


def test_golden_outliers():
    trace = []
    for case in range(12):
        rng = numbers(400 + case)
        workers = {}
        for name in "abcde"[: 2 + case % 4]:
            times = tuple(rng.uniform(1.0, 8.0) for _ in range(whole(rng, 1, 2)))
            widths = tuple(t * rng.uniform(0.0, 0.4) for t in times)
            alike = ("", "x", "x", "y")[whole(rng, 0, 3)]
            cores = float(whole(rng, 1, 4))
            workers[name] = Measured(whole(rng, 5, 9), times, widths, alike, cores)
        settled = [[m.agreeing, m.settled, m.speed] for m in workers.values()]
        trace.append([outliers(workers), settled])
    GOLDEN.check("outliers", trace)


def brute_force_balanced(units, times, epsilon):
    """Whether any distribution is balanced: within epsilon, no idle worker a help."""
    shares = itertools.product(range(units + 1), repeat=len(times))
    for share in (s for s in shares if sum(s) == units):
        busy = [times[i][x] for i, x in enumerate(share) if x]
        idle = [times[i][1] for i, x in enumerate(share) if not x]
        if max(busy) - min(busy) <= epsilon * min(busy) and min(idle, default=1e9) >= max(busy):
            return True
    return False


@pytest.mark.parametrize("epsilon", [0.06, 0.15, 0.25])
def test_balanced_finds_a_balanced_distribution_where_there_is_one(epsilon):
    """Against all distributions of 12 units over three workers, in whole seconds."""
    answers = set()
    for case in range(25):
        rng = numbers(case)
        slow = 30 if case % 3 == 0 else 1  # so that a worker may stay idle
        steps = [[float(k * whole(rng, 1, 9)) for _ in range(12)] for k in (1, 1, slow)]
        times = [[0.0, *np.cumsum(each)] for each in steps]
        models = [TabulatedModel(each) for each in times]
        found = balanced(12, models, np.full(3, np.inf), epsilon)
        assert (found is not None) == brute_force_balanced(12, times, epsilon)
        answers.add(found is None)
        if found is not None:
            busy = [times[i][x] for i, x in enumerate(found.tolist()) if x]
            assert sum(found) == 12
            assert max(busy) <= min(busy) * (1 + epsilon) * (1 + 1e-9)
    assert answers == {True, False}


def asked(kind, *arguments, **options):
    made = kind(*arguments, **options)
    made.ask() if kind is Dfpa else made.ask(100)
    return made


ONE = ConstantModel(1.0)
REFUSED = {
    "units": lambda: proportional(2**52 + 1, [1.0]),
    "half units": lambda: proportional(1.5, [1.0]),
    "speeds": lambda: proportional(9, [1.0, 2.0, 0.0, -1.0]),
    "no speeds": lambda: proportional(9, []),
    "limits": lambda: proportional(9, [1.0, 2.0, 3.0], [4.0, -1.0, math.nan]),
    "count of limits": lambda: proportional(9, [1.0, 2.0, 3.0], [4.0, 5.0]),
    "room": lambda: proportional(9, [1.0, 2.0, 3.0], [4.9, 1.0, 3.2]),
    "models": lambda: geometric(9, [ONE, 2.0, ONE]),
    "falling table": lambda: geometric(2, [ONE, TabulatedModel([0.0, 3.0, 1.0]), ONE]),
    "finite room": lambda: geometric(9, [TabulatedModel([0.0, 3.0, 4.0]), TabulatedModel([0, 1])]),
    "shares": lambda: integral([1.0, 2.0, -3.0], 4, [ONE] * 3),
    "table": lambda: exact(3, [[0.0, 1.0], [0.0, 2.0, -1.0]]),
    "no finite time": lambda: exact(2, [[0.0, 1.0], [math.inf] * 3]),
    "sizes": lambda: exact(3, [[0.0, math.inf, 1.0], [0.0, math.inf, 2.0]]),
    "long tables": lambda: exact(30, [[0.0, 1.0], [math.inf, 1.0, 2.0]]),
    "correction": lambda: nlogn_correction(2, [1.0] * 3 + [10.0] + [1.0] * 17),
    "imbalance": lambda: imbalance([1.0, 2.0, 3.0], [3, 5, 4], [3, 4, 3]),
    "no times": lambda: imbalance([1.0, 0.0, -1.0], [1, 1, 1]),
    "no units": lambda: imbalance([1.0, 2.0], [0, 0]),
    "batch": lambda: asked(Batches, 3).tell([1.0, 2.0, 0.0]),
    "round": lambda: asked(Dfpa, 100, 3).tell([1.0, 2.0, 0.0]),
    "unasked": lambda: Dfpa(100, 3).tell([1.0, 2.0, 3.0]),
    "room of a round": lambda: asked(Dfpa, 100, 2).tell([math.inf, math.inf]),
    "epsilon": lambda: Dfpa(100, 3, epsilon=0.0),
    "rounds": lambda: Dfpa(100, 3, max_rounds=0),
    "gain": lambda: Dfpa(100, 3, least_gain=-0.1),
    "known": lambda: Dfpa(100, 3, models=[ONE, 1.0, None]),
    "count of known": lambda: Dfpa(100, 3, models=[ONE, None]),
}


def test_golden_refusals():
    """What an error says of the value that is not allowed: which one, and where it is."""
    said = {}
    for name, call in REFUSED.items():
        with pytest.raises(PartitionError) as refused:
            call()
        said[name] = str(refused.value)
    GOLDEN.check("refusals", said)


def test_units_that_take_no_time_are_not_balanced():
    free = TabulatedModel([0.0, 0.0, 0.0, 1.0])
    assert balanced(3, [free, free], np.full(2, np.inf), 0.1) is None


@pytest.mark.parametrize("epsilon", [0.2, 0.5])
def test_a_time_that_is_exactly_that_of_whole_units_is_found_in_spite_of_rounding(epsilon):
    """Against all distributions of 12 units over three piecewise linear workers."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        models = []
        for _ in range(3):
            sizes = np.sort(rng.choice(np.arange(1, 15), 3, replace=False))
            seconds = np.cumsum(rng.uniform(0.1, 3, 3))
            models.append(PiecewiseLinearModel.from_points(sizes.tolist(), seconds.tolist()))
        times = [[0.0, *(float(model.time(x)) for x in range(1, 13))] for model in models]
        found = balanced(12, models, np.full(3, np.inf), epsilon)
        assert (found is not None) == brute_force_balanced(12, times, epsilon), seed
