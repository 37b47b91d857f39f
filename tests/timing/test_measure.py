import json
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.errors import KernelError
from fpmdask.timing import (
    DeadlinePassed,
    Repetitions,
    Timing,
    TimingPolicy,
    measure,
    student_t,
)

STEADY = TimingPolicy(min_seconds=0.0, warmup=0, budget_seconds=1e6)


class FakeKernel:
    """Durations from an endless iterator pass on a fake clock; the life is recorded."""

    name = "fake"
    implementation = "fake"

    def __init__(self, durations, *, setup_seconds=0.0, says=False, step=None):
        self.durations = iter(durations)
        self.setup_seconds = setup_seconds
        self.says = says
        self.step = step
        self.now = 100.0
        self.life = []
        self.parameters = {}
        self.deadline = None
        self.deadlines = []

    def clock(self):
        return self.now

    def _pass(self, seconds):
        step = self.step or seconds
        while seconds > 1e-12:
            if self.step is not None and self.deadline is not None:
                self.deadline.check()
            self.now += min(step, seconds)
            seconds -= step

    def setup(self, units):
        self.life.append(("setup", units))
        self.deadlines.append(self.deadline)
        self._pass(self.setup_seconds)

    def run(self):
        self.life.append("run")
        seconds = next(self.durations)
        if isinstance(seconds, BaseException):
            raise seconds
        if self.says:
            return seconds
        self._pass(seconds)
        return None

    def teardown(self):
        self.life.append("teardown")

    def complexity(self, units):
        return float(units)

    @property
    def runs(self):
        return self.life.count("run")


def timed(kernel, policy=STEADY, **kwargs):
    return measure(kernel, 7, policy, clock=kernel.clock, **kwargs)


def forever(*durations):
    while True:
        yield from durations


def test_equal_durations_are_precise_at_once():
    kernel = FakeKernel(forever(3.0))
    assert timed(kernel) == Timing(3.0, 0.0, 2, 6.0, "precise")
    assert kernel.life == [("setup", 7), "run", "run", "teardown"]


def test_setup_is_not_timed():
    assert timed(FakeKernel(forever(3.0), setup_seconds=50.0)).seconds == 3.0


def test_scattered_durations_are_repeated_until_the_interval_is_met():
    rng = random.Random(1)
    timing = timed(FakeKernel(rng.gauss(1.0, 0.1) for _ in forever(0)))
    assert timing.reason == "precise"
    assert 5 <= timing.repetitions <= 60
    assert timing.relative_error <= 0.05


def test_short_runs_cover_the_minimum_duration():
    policy = TimingPolicy(min_seconds=0.5, warmup=0)
    timing = timed(FakeKernel(forever(0.001)), policy)
    assert timing.total_seconds == pytest.approx(0.5, abs=0.002)
    assert timing.seconds == pytest.approx(0.001)


def test_a_quota_is_counted_though_most_runs_are_free():
    """Each 10 ms period: 3 ms of work, in runs of 1 ms, then 7 ms of pause."""
    kernel = FakeKernel(forever(0.001, 0.001, 0.008))
    timing = timed(kernel, TimingPolicy())
    assert timing.seconds == pytest.approx(0.010 / 3, rel=0.05)
    assert timing.reason == "precise"
    # Batches smooth the pattern; the single durations would have needed hundreds
    assert timing.total_seconds < 0.2


def test_two_free_runs_in_a_row_are_not_believed():
    kernel = FakeKernel(forever(*[0.004] * 5, 0.034))
    assert timed(kernel, TimingPolicy(warmup=0)).seconds > 0.0075


def test_warm_up_runs_are_dropped_when_cheap():
    kernel = FakeKernel([0.05, *[0.02] * 100])
    assert timed(kernel, TimingPolicy(warmup=1)).seconds == pytest.approx(0.02)


def test_a_long_first_run_is_no_warm_up():
    kernel = FakeKernel([0.21, *[0.2] * 100])
    timing = timed(kernel, TimingPolicy(warmup=3))
    assert timing.total_seconds == pytest.approx(0.21 + 0.2 * (timing.repetitions - 1))


def test_a_long_first_run_is_dropped_when_it_was_no_measure():
    kernel = FakeKernel([0.45, *[0.2] * 100])
    timing = timed(kernel, TimingPolicy(warmup=1))
    assert timing.seconds == pytest.approx(0.2)
    assert (timing.repetitions, timing.reason) == (2, "precise")
    kernel = FakeKernel([0.45, *[0.2] * 100], says=True)
    assert timed(kernel, TimingPolicy(warmup=1)).seconds == pytest.approx(0.2)
    kernel = FakeKernel([0.45, *[0.2] * 100])
    assert timed(kernel, TimingPolicy(warmup=0)).seconds > 0.22


def test_one_run_longer_than_the_budget_is_accepted():
    timing = timed(FakeKernel(forever(5.0)), TimingPolicy(budget_seconds=1.0))
    assert timing == Timing(5.0, math.inf, 1, 5.0, "budget")
    assert timing.relative_error == math.inf


def test_no_run_is_begun_that_would_exceed_the_budget():
    policy = TimingPolicy(budget_seconds=1.0, min_repetitions=10)
    assert timed(FakeKernel(forever(0.3)), policy).repetitions == 3


def test_repetitions_end_it():
    policy = TimingPolicy(max_repetitions=4, relative_error=1e-6, min_seconds=0, warmup=0)
    timing = timed(FakeKernel(forever(0.1, 0.2)), policy)
    assert timing.reason == "repetitions"
    assert timing.repetitions == 4
    assert timing.seconds == pytest.approx(0.15)


class TestDeadline:
    def test_it_interrupts_a_kernel_that_looks(self):
        kernel = FakeKernel(forever(1000.0), step=1.0)
        timing = timed(kernel, deadline_seconds=5.0)
        assert timing.seconds == math.inf
        assert timing.reason == "deadline"
        assert timing.repetitions == 0
        assert timing.total_seconds == pytest.approx(6.0)
        assert kernel.life[-1] == "teardown"

    def test_it_is_set_before_setup_and_cleared_after(self):
        kernel = FakeKernel(forever(0.5))
        timed(kernel, deadline_seconds=5.0)
        assert kernel.deadlines[0].seconds == 5.0
        assert kernel.deadline is None

    def test_it_is_none_without_one(self):
        kernel = FakeKernel(forever(0.5))
        timed(kernel)
        assert kernel.deadlines == [None]

    def test_it_counts_the_setup(self):
        timing = timed(FakeKernel(forever(3.0), setup_seconds=1000.0, step=1.0), deadline_seconds=5)
        assert timing.reason == "deadline"
        kernel = FakeKernel(forever(3.0), setup_seconds=6.0)
        assert timed(kernel, deadline_seconds=5.0).reason == "deadline"
        assert kernel.runs == 0

    def test_a_run_that_does_not_look_is_too_large_when_it_returns(self):
        kernel = FakeKernel(forever(8.0))
        assert timed(kernel, deadline_seconds=5.0).seconds == math.inf
        assert kernel.runs == 1

    def test_a_complete_run_proves_that_the_size_fits(self):
        kernel = FakeKernel([2.0, 1000.0], step=0.5)
        assert timed(kernel, deadline_seconds=5.0) == Timing(2.0, math.inf, 1, 2.0, "budget")

    def test_a_complete_warm_up_proves_it_too(self):
        kernel = FakeKernel([2.0, 1000.0], step=0.5)
        policy = TimingPolicy(min_seconds=10.0, budget_seconds=100)
        assert timed(kernel, policy, deadline_seconds=5.0) == Timing(
            2.0, math.inf, 1, 2.0, "budget"
        )

    def test_no_run_is_begun_that_would_pass_it(self):
        kernel = FakeKernel(forever(2.0))
        policy = TimingPolicy(min_repetitions=9, budget_seconds=100)
        assert timed(kernel, policy, deadline_seconds=5.0) == Timing(2.0, 0.0, 2, 4.0, "budget")

    @pytest.mark.parametrize("seconds", [0, -1.0, math.nan])
    def test_it_is_checked(self, seconds):
        kernel = FakeKernel(forever(1.0))
        with pytest.raises(KernelError, match="deadline"):
            timed(kernel, deadline_seconds=seconds)
        assert kernel.life == []


class TestSelfTimed:
    def test_its_seconds_are_taken_at_their_word(self):
        kernel = FakeKernel(forever(3.0), says=True)
        assert timed(kernel) == Timing(3.0, 0.0, 2, 6.0, "precise")
        assert kernel.now == 100.0

    def test_no_minimum_duration_applies(self):
        kernel = FakeKernel(forever(1e-6), says=True)
        assert timed(kernel, TimingPolicy(warmup=0)).repetitions == 2

    def test_budget_and_deadline_hold_for_what_it_says(self):
        assert timed(FakeKernel(forever(0.4, 0.2), says=True), TimingPolicy()).repetitions == 3
        kernel = FakeKernel(forever(9.0), says=True)
        assert timed(kernel, deadline_seconds=5.0) == Timing(math.inf, math.inf, 0, 9.0, "deadline")

    def test_infinite_seconds_are_too_large(self):
        timing = timed(FakeKernel(forever(math.inf), says=True))
        assert (timing.seconds, timing.reason) == (math.inf, "deadline")

    @pytest.mark.parametrize("said", [0, -1.0, math.nan, "long", object()])
    def test_nonsense_is_refused(self, said):
        kernel = FakeKernel(forever(said), says=True)
        with pytest.raises(KernelError, match="'fake' returned"):
            timed(kernel)
        assert kernel.life[-1] == "teardown"


class TestErrors:
    def test_a_kernel_that_raises_is_torn_down(self):
        kernel = FakeKernel([1.0, ZeroDivisionError("x")])
        with pytest.raises(ZeroDivisionError):
            timed(kernel, deadline_seconds=99.0)
        assert kernel.life[-1] == "teardown"
        assert kernel.deadline is None

    def test_a_setup_that_raises_is_torn_down(self):
        kernel = FakeKernel(forever(1.0))
        kernel.setup = lambda units: 1 / 0
        with pytest.raises(ZeroDivisionError):
            timed(kernel)
        assert kernel.life == ["teardown"]

    def test_a_teardown_error_is_noted_and_does_not_mask(self):
        kernel = FakeKernel([ZeroDivisionError("x")])
        kernel.teardown = lambda: [][0]
        with pytest.raises(ZeroDivisionError) as caught:
            timed(kernel)
        assert "IndexError" in caught.value.__notes__[0]

    def test_a_teardown_error_alone_is_raised(self):
        kernel = FakeKernel(forever(1.0))
        kernel.teardown = lambda: [][0]
        with pytest.raises(IndexError):
            timed(kernel, deadline_seconds=50.0)
        assert kernel.deadline is None

    def test_a_deadline_raised_without_one_is_too_large(self):
        assert timed(FakeKernel([DeadlinePassed()])).reason == "deadline"

    @pytest.mark.parametrize("units", [0, -1, 2.0, None, "3"])
    def test_units_are_checked(self, units):
        with pytest.raises(KernelError, match="units"):
            measure(FakeKernel(forever(1.0)), units)

    def test_a_clock_that_stands_still_is_an_error(self):
        with pytest.raises(KernelError, match="make one run do more work"):
            timed(FakeKernel(forever(0.0)), TimingPolicy(max_repetitions=5))


@st.composite
def policies(draw):
    least = draw(st.integers(1, 5))
    return TimingPolicy(
        relative_error=draw(st.floats(0.001, 0.5)),
        confidence=draw(st.floats(0.5, 0.999)),
        min_repetitions=least,
        max_repetitions=draw(st.integers(least, 60)),
        min_seconds=draw(st.floats(0, 2)),
        budget_seconds=draw(st.floats(0.01, 20)),
        warmup=draw(st.integers(0, 2)),
    )


@given(
    policies(),
    st.lists(st.floats(1e-3, 10), min_size=1, max_size=20),
    st.booleans(),
    st.none() | st.floats(0.1, 20),
    st.floats(0, 1),
)
def test_what_holds_for_every_measurement(policy, durations, says, deadline, setup_seconds):
    kernel = FakeKernel(forever(*durations), says=says, setup_seconds=setup_seconds)
    timing = timed(kernel, policy, deadline_seconds=deadline)
    assert kernel.life[0] == ("setup", 7)
    assert kernel.life.count("teardown") == 1
    assert kernel.life[-1] == "teardown"
    assert timing.repetitions <= policy.max_repetitions
    assert kernel.runs <= timing.repetitions + policy.warmup + 1
    if timing.reason == "deadline":
        assert deadline is not None
        assert timing.seconds == math.inf
        assert timing.repetitions == 0
        return
    slack = 1e-9
    assert min(durations) - slack <= timing.seconds <= max(durations) + slack
    assert timing.seconds * timing.repetitions == pytest.approx(timing.total_seconds)
    assert timing.half_width >= 0
    # Never more than one repetition past the budget, and none with equal durations
    assert timing.total_seconds <= policy.budget_seconds + max(durations) + slack
    if len(set(durations)) == 1 and timing.repetitions > 1:
        assert timing.total_seconds <= policy.budget_seconds + slack
    if timing.reason == "precise":
        assert timing.repetitions >= policy.min_repetitions
        assert timing.half_width <= policy.relative_error * timing.seconds
        assert says or timing.total_seconds >= policy.min_seconds
    if timing.reason == "repetitions":
        assert timing.repetitions == policy.max_repetitions


def test_the_interval_holds_the_truth():
    """200 seeded measurements of 1 s with 10 % noise, wanted within 5 % at 95 %: at least 170 of
    the intervals hold it; stopping as soon as it looks precise costs some of the confidence."""
    hits = 0
    for seed in range(200):
        rng = random.Random(seed)
        timing = timed(FakeKernel(rng.gauss(1.0, 0.1) for _ in forever(0)))
        hits += abs(timing.seconds - 1.0) <= timing.half_width
    assert hits >= 170


class QuotaKernel(FakeKernel):
    """Needs `work` CPU seconds, give or take 2 %; may use `quota` of each period."""

    def __init__(self, work, period, quota, rng):
        super().__init__(())
        self.work, self.period, self.granted, self.rng = work, period, period * quota, rng
        self.now = rng.uniform(0, period)
        self.left, self.end = self.granted, period

    def run(self):
        work = self.work * self.rng.gauss(1, 0.02)
        while work > 1e-12:
            step = min(work, self.left, self.end - self.now)
            self.now, self.left, work = self.now + step, self.left - step, work - step
            if self.left <= 1e-12 or self.now >= self.end - 1e-12:
                self.now, self.left, self.end = self.end, self.granted, self.end + self.period


@pytest.mark.parametrize("period", [0.01, 0.1])
@pytest.mark.parametrize("work", [0.001, 0.003, 0.03])
def test_a_quota_is_measured_with_its_pauses(work, period):
    """50 measurements at a quota of 0.3: root mean square error under 5 %, and at least 80 % of
    the 95 % intervals hold the truth (sequential stopping and whole periods cost the rest)."""
    rng = random.Random(0)
    policy = TimingPolicy(budget_seconds=3.0)
    timings = [timed(QuotaKernel(work, period, 0.3, rng), policy) for _ in range(50)]
    errors = [timing.seconds / (work / 0.3) - 1 for timing in timings]
    assert math.sqrt(sum(error**2 for error in errors) / 50) < 0.05
    hits = sum(
        abs(error) <= timing.relative_error for error, timing in zip(errors, timings, strict=True)
    )
    assert hits >= 40


@given(st.lists(st.floats(1e-3, 10), min_size=2, max_size=200), st.floats(0, 3))
def test_batches_change_the_interval_never_the_mean(durations, batch_seconds):
    repetitions = Repetitions(0.95, batch_seconds)
    for seconds in durations:
        repetitions.add(seconds)
    assert repetitions.mean == pytest.approx(sum(durations) / len(durations))
    assert repetitions.half_width >= 0
    if batch_seconds == 0 and len(durations) < 16:
        deviation = statistics.stdev(durations) / math.sqrt(len(durations))
        expected = student_t(len(durations) - 1, 0.95) * deviation
        assert repetitions.half_width == pytest.approx(expected, abs=1e-12)


class TestPolicy:
    @given(policies())
    def test_json_round_trip(self, policy):
        assert TimingPolicy.from_json(json.loads(json.dumps(policy.to_json()))) == policy

    @pytest.mark.parametrize(
        "values",
        [
            {"relative_error": 0},
            {"relative_error": math.nan},
            {"confidence": 1},
            {"confidence": 0},
            {"min_repetitions": 0},
            {"min_repetitions": 2.5},
            {"min_repetitions": 5, "max_repetitions": 4},
            {"min_seconds": -1},
            {"min_seconds": math.inf},
            {"budget_seconds": 0},
            {"budget_seconds": math.nan},
            {"warmup": -1},
        ],
    )
    def test_values_out_of_range_are_refused(self, values):
        with pytest.raises(KernelError, match="it must be"):
            TimingPolicy(**values)

    def test_unknown_fields_are_refused(self):
        with pytest.raises(KernelError, match=r"\['repeat'\].*known are"):
            TimingPolicy.from_json({"repeat": 3})
