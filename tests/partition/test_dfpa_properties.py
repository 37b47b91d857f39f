"""What holds for `Dfpa` whatever is measured."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel, PiecewiseLinearModel
from fpmdask.partition import Dfpa, geometric, imbalance

time = st.floats(1e-6, 1e6)
answer = st.one_of(time, time, time, time, time, st.just(math.inf))
model = st.one_of(
    st.none(),
    st.builds(ConstantModel, st.floats(1e-3, 1e3)),
    st.builds(lambda x, t: PiecewiseLinearModel.from_points([x, 2 * x], [t, 3 * t]), time, time),
)


@st.composite
def problems(draw):
    workers = draw(st.integers(1, 6))
    units = draw(st.integers(1, 300))
    limits = None
    if draw(st.booleans()):
        limits = [draw(st.one_of(st.none(), st.integers(0, 200))) for _ in range(workers)]
        limits[draw(st.integers(0, workers - 1))] = None
    models = None
    if draw(st.booleans()):
        models = [draw(model) for _ in range(workers)]
    rounds = draw(st.integers(1, 8))
    arguments = {"limits": limits, "models": models, "max_rounds": rounds}
    arguments["epsilon"] = draw(st.sampled_from([0.01, 0.1, 1.0]))
    answers = [[draw(answer) for _ in range(workers)] for _ in range(rounds)]
    return (units, workers), arguments, answers


@pytest.mark.slow
@given(problems())
@settings(max_examples=80, deadline=None)
def test_any_answers(problem):
    """Distributions sum to the units within the limits; asks are idempotent and replayable."""
    (units, workers), arguments, answers = problem
    dfpa, replay = Dfpa(units, workers, **arguments), Dfpa(units, workers, **arguments)
    told = 0
    for seconds in answers:
        distribution = dfpa.ask()
        again = replay.ask()
        if distribution is None:
            assert again is None
            break
        assert distribution.tolist() == again.tolist() == dfpa.ask().tolist()
        assert distribution.sum() == units
        assert (distribution >= 0).all()
        assert (distribution <= dfpa.limits).all()
        balance = imbalance(np.where(distribution > 0, seconds, 0), distribution, dfpa.limits)
        try:
            dfpa.tell(seconds)
        except PartitionError:  # limits from inf leave no room
            assert dfpa.ask().tolist() == distribution.tolist()
            break
        replay.tell(seconds)
        told += 1
        outcome = dfpa.outcome
        assert len(outcome.rounds) == told
        assert outcome.rounds[-1].imbalance == balance
        if outcome.reason == "balanced":
            assert outcome.imbalance <= arguments["epsilon"]
        assert outcome.seconds.max() in [r.makespan for r in outcome.rounds]
    if told == len(answers) and dfpa.outcome.rounds:
        assert dfpa.ask() is None
        assert dfpa.outcome.reason is not None


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(8, 2000))
@settings(max_examples=60, deadline=None)
def test_constant_speeds_end_at_the_optimum(speeds, units):
    """Also where whole units leave no balance; three rounds, one more to try idle workers."""
    speeds = np.array(speeds)
    dfpa = Dfpa(units, speeds.size, epsilon=1e-6)
    while (distribution := dfpa.ask()) is not None:
        dfpa.tell(distribution / speeds)
    best = geometric(units, [ConstantModel(s) for s in speeds])
    assert dfpa.outcome.seconds.max() <= 1.001 * (best / speeds).max()
    assert len(dfpa.outcome.rounds) <= 3 + bool((best == 0).any())


FAR_OUT = [5e-324, 1e-308, 1e-300, 1e-20, 1.0, 2.0, 1e20, 1e200, 1e300, 1.7e308, np.inf]


@pytest.mark.slow
@given(
    st.sampled_from([1, 3, 1000, 10**9, 10**15]),
    st.lists(st.lists(st.sampled_from(FAR_OUT), min_size=3, max_size=3), min_size=1, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_a_refused_tell_changes_nothing_whatever_was_told(units, answers):
    """Also where the refusal comes from a model or a partitioner; no warning leaks."""
    dfpa = Dfpa(units, 3, epsilon=0.01)
    for seconds in answers:
        if (distribution := dfpa.ask()) is None:
            return
        before = dict(vars(dfpa))
        copies = dfpa._rounds.copy(), list(dfpa._story), dfpa.models, dfpa.limits.tolist()
        try:
            dfpa.tell(seconds)
        except PartitionError:
            assert all(vars(dfpa)[name] is value for name, value in before.items())
            assert copies == (dfpa._rounds, list(dfpa._story), dfpa.models, dfpa.limits.tolist())
            assert dfpa.ask() is distribution


def test_a_time_that_makes_no_speed_is_refused_and_may_be_told_better():
    dfpa = Dfpa(1000, 2)
    asked = dfpa.ask()
    with pytest.raises(PartitionError, match="no speed"):
        dfpa.tell([5e-324, 1.0])
    assert dfpa.outcome is None
    assert dfpa.models == (None, None)
    assert dfpa.ask() is asked
    dfpa.tell([1.0, 1.0])
    assert [r.seconds.tolist() for r in dfpa.outcome.rounds] == [[1.0, 1.0]]
