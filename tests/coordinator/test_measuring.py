"""The measurement's state machine: events in, instructions out, no network."""

import math
import random

import numpy as np
import pytest

from fpmdask.errors import MeasuringError
from fpmdask.models import PiecewiseLinearModel
from fpmdask.partition import geometric
from fpmdask.runtime.coordinator.instructions import Conclude, Measure, Member
from fpmdask.runtime.coordinator.measuring import Measuring


def machine(speeds, units=1000, priors=None, **options):
    priors = priors or {}
    members = {
        worker: Member(worker, model=priors.get(worker), prior=worker in priors)
        for worker in speeds
    }
    return Measuring(units, members, epsilon=0.1, max_rounds=10, **options)


def answer_all(measuring, instructions, speeds, on=None):
    """Answer every Measure at the given speeds; return what follows the last answer."""
    following = instructions
    for instruction in instructions:
        assert isinstance(instruction, Measure)
        seconds = instruction.units / speeds[instruction.worker]
        following = measuring.answered(instruction.worker, instruction.round, seconds)
    return following


def drive(measuring, speeds):
    instructions = measuring.start()
    while not any(isinstance(i, Conclude) for i in instructions):
        instructions = answer_all(measuring, instructions, speeds)
    return measuring.result


SPEEDS = {"a": 100.0, "b": 200.0, "c": 300.0, "d": 400.0}


def test_constant_speeds_balance_in_two_rounds():
    measuring = machine(SPEEDS)
    result = drive(measuring, SPEEDS)
    assert result.distribution == {"a": 100, "b": 200, "c": 300, "d": 400}
    assert result.reason == "balanced"
    assert len(measuring.rounds) == 2
    assert [r.imbalance for r in measuring.rounds] == [pytest.approx(3.0), pytest.approx(0.0)]


def test_a_worker_that_leaves_in_a_round_is_dropped_and_the_round_goes_on():
    measuring = machine(SPEEDS)
    first = measuring.start()
    assert measuring.left("d") == []
    second = answer_all(measuring, [i for i in first if i.worker != "d"], SPEEDS)
    assert {i.worker for i in second} == {"a", "b", "c"}
    assert sum(i.units for i in second) == 1000
    assert measuring.rounds[0].imbalance is None
    assert measuring.rounds[0].seconds["d"] is None
    assert answer_all(measuring, second, SPEEDS) == [Conclude()]
    assert measuring.left_out == {"d": "left the cluster"}
    assert measuring.result.distribution == {"a": 167, "b": 333, "c": 500}


def test_the_last_answer_missing_because_of_a_loss_ends_the_round():
    measuring = machine(SPEEDS)
    first = measuring.start()
    assert answer_all(measuring, first[:3], SPEEDS) == []
    assert {i.worker for i in measuring.left(first[3].worker)} == {i.worker for i in first[:3]}


def test_a_worker_that_joins_is_in_from_the_next_round():
    measuring = machine({"a": 100.0, "b": 100.0})
    speeds = {"a": 100.0, "b": 100.0, "c": 200.0}
    first = measuring.start()
    assert measuring.joined("c", Member("c")) == []
    second = answer_all(measuring, first, speeds)
    assert {i.worker for i in second} == {"a", "b", "c"}
    while not measuring.concluded:
        second = answer_all(measuring, second, speeds)
    assert measuring.result.distribution == {"a": 250, "b": 250, "c": 500}


def test_a_right_prior_needs_one_confirming_round_and_a_wrong_one_is_replaced():
    models = {w: PiecewiseLinearModel.from_points([100], [100 / s]) for w, s in SPEEDS.items()}
    measuring = machine(SPEEDS, priors=models)
    assert drive(measuring, SPEEDS).distribution == {"a": 100, "b": 200, "c": 300, "d": 400}
    assert len(measuring.rounds) == 1
    assert not any(member.prior for member in measuring.members.values())

    wrong = {**models, "a": PiecewiseLinearModel.from_points([100, 500], [0.1, 0.5])}
    measuring = machine(SPEEDS, priors=wrong)
    result = drive(measuring, SPEEDS)
    assert result.distribution == {"a": 100, "b": 200, "c": 300, "d": 400}
    units, _ = measuring.members["a"].model.points
    assert 500 not in units


def test_a_size_too_large_becomes_the_limit():
    speeds = {"a": 100.0, "b": 100.0}
    measuring = machine(speeds)
    instructions = measuring.start()
    while not measuring.concluded:
        for i in instructions:
            seconds = math.inf if i.worker == "b" and i.units > 200 else i.units / speeds[i.worker]
            instructions = measuring.answered(i.worker, i.round, seconds)
    assert measuring.result.distribution["b"] <= 200
    assert sum(measuring.result.distribution.values()) == 1000


@pytest.mark.parametrize("how", ["failed", "overdue"])
def test_a_worker_that_fails_or_hangs_is_left_out_with_the_reason(how):
    measuring = machine(SPEEDS)
    first = measuring.start()
    answer_all(measuring, first[1:], SPEEDS)
    second = getattr(measuring, how)("a", 1, "no reason at all")
    assert {i.worker for i in second} == {"b", "c", "d"}
    assert measuring.left_out["a"] == "no reason at all"


def test_all_workers_gone_is_a_failure_with_the_story():
    measuring = machine({"a": 1.0, "b": 1.0})
    measuring.start()
    measuring.left("a")
    assert measuring.failed("b", 1, "ValueError: x") == [Conclude()]
    assert measuring.result is None
    assert "a (left the cluster)" in measuring.failure
    assert "b (ValueError: x)" in measuring.failure


def test_stale_answers_are_refused_with_both_numbers_and_change_nothing():
    measuring = machine(SPEEDS)
    first = measuring.start()
    answer_all(measuring, first, SPEEDS)
    before = (measuring.pending, len(measuring.log), measuring.round)
    with pytest.raises(MeasuringError, match="answered round 1; the current one is 2"):
        measuring.answered("a", 1, 1.0)
    with pytest.raises(MeasuringError, match="does not wait for it"):
        measuring.answered("nobody", 2, 1.0)
    with pytest.raises(MeasuringError, match="more than 0"):
        measuring.answered("a", 2, float("nan"))
    assert (measuring.pending, len(measuring.log), measuring.round) == before


def test_max_rounds_ends_with_the_models_prediction_after_a_late_change():
    speeds = {"a": 100.0, "b": 300.0, "c": 500.0}
    measuring = Measuring(900, {w: Member(w) for w in speeds}, epsilon=0.01, max_rounds=1)
    first = measuring.start()
    measuring.left("c")
    assert answer_all(measuring, first[:2], speeds) == [Conclude()]
    assert measuring.result.reason == "max_rounds"
    expected = geometric(900, [measuring.members[w].model for w in "ab"])
    assert list(measuring.result.distribution.values()) == expected.tolist()


def test_limits_that_do_not_suffice_after_a_loss_are_a_failure_with_the_numbers():
    members = {w: Member(w, limit=600) for w in "ab"}
    measuring = Measuring(1000, members, epsilon=0.1, max_rounds=5)
    first = measuring.start()
    measuring.left("a")
    assert answer_all(measuring, [i for i in first if i.worker == "b"], {"b": 10.0}) == [Conclude()]
    assert "600" in measuring.failure
    assert "1000" in measuring.failure


@pytest.mark.parametrize("seed", range(40))
def test_any_course_of_events_ends_and_hands_out_every_unit(seed):
    """Random failures, losses, joins and speeds: every round sums to the units, all terminate."""
    rng = random.Random(seed)
    speeds = {f"w{i}": rng.uniform(10, 100) for i in range(rng.randint(1, 8))}
    measuring = machine(dict(speeds), units=rng.randint(1, 2000))
    instructions = measuring.start()
    for _ in range(2000):
        if measuring.concluded:
            break
        pending = [i for i in instructions if i.worker in measuring.pending]
        event = rng.random()
        if event < 0.05:
            name = f"x{len(speeds)}"
            speeds[name] = rng.uniform(10, 100)
            measuring.joined(name, Member(name))
            continue
        i = rng.choice(pending)
        if event < 0.08:
            new = measuring.left(i.worker)
        elif event < 0.10:
            new = measuring.failed(i.worker, i.round, "broken")
        else:
            new = measuring.answered(
                i.worker, i.round, i.units / speeds[i.worker] * rng.uniform(0.9, 1.1)
            )
        if new:
            instructions = new
            if not measuring.concluded:
                assert sum(i.units for i in new) == measuring.units
    assert measuring.concluded
    if measuring.result is not None:
        assert sum(measuring.result.distribution.values()) == measuring.units
        assert np.all(np.array(list(measuring.result.distribution.values())) >= 0)
        assert measuring.result.distribution.keys() <= measuring.members.keys()


def test_scouting_replaces_the_even_round_and_its_speeds_are_forgotten():
    measuring = machine(SPEEDS, scout=20)
    first = measuring.start()
    assert {i.worker: i.units for i in first} == dict.fromkeys(SPEEDS, 20)
    slower = {worker: speed / 2 for worker, speed in SPEEDS.items()}  # of few units
    second = answer_all(measuring, first, slower)
    assert {i.worker: i.units for i in second} == {"a": 100, "b": 200, "c": 300, "d": 400}
    assert answer_all(measuring, second, SPEEDS) == [Conclude()]
    assert [record.imbalance for record in measuring.rounds] == [None, pytest.approx(0.0)]
    for worker, member in measuring.members.items():
        units, seconds = member.model.points
        assert units.tolist() == [measuring.result.distribution[worker]]
        assert seconds.tolist() == [1.0]


def test_only_the_unknown_are_scouted_and_within_their_limits():
    known = PiecewiseLinearModel.from_points([400], [1.0])
    measuring = machine(SPEEDS, priors={"d": known}, scout=20)
    measuring.members["a"] = Member("a", limit=5)
    measuring.members["b"] = Member("b", limit=0)
    assert {i.worker: i.units for i in measuring.start()} == {"a": 5, "c": 20}


def test_all_known_means_no_scouting():
    known = {w: PiecewiseLinearModel.from_points([s], [1.0]) for w, s in SPEEDS.items()}
    measuring = machine(SPEEDS, priors=known, scout=20)
    assert sum(i.units for i in measuring.start()) == 1000


def test_scouts_that_fail_leave_or_find_it_too_large():
    measuring = machine(SPEEDS, scout=20)
    first = measuring.start()
    assert measuring.failed("a", 1, "RuntimeError: no") == []
    assert measuring.left("b") == []
    assert measuring.answered("c", 1, math.inf) == []
    second = measuring.answered("d", 1, 0.05)
    assert {i.worker for i in first} == set(SPEEDS)
    assert {i.worker: i.units for i in second} == {"c": 19, "d": 981}
    assert set(measuring.left_out) == {"a", "b"}


def test_shares_follow_the_scouted_speeds_where_scouting_is_the_only_round():
    members = {worker: Member(worker) for worker in SPEEDS}
    measuring = Measuring(1000, members, epsilon=0.1, max_rounds=1, scout=20)
    assert answer_all(measuring, measuring.start(), SPEEDS) == [Conclude()]
    assert measuring.result.reason == "max_rounds"
    total = sum(SPEEDS.values())
    assert measuring.result.distribution == {
        worker: round(1000 * speed / total) for worker, speed in SPEEDS.items()
    }


def test_a_worker_that_was_never_measured_is_an_average_one_where_it_is_needed():
    members = {worker: Member(worker, limit=600) for worker in "ab"}
    measuring = Measuring(1000, members, epsilon=0.1, max_rounds=1, scout=20)
    measuring.start()
    measuring.joined("c", Member("c", limit=600))
    measuring.left("b")
    assert measuring.answered("a", 1, 0.1) == [Conclude()]
    assert measuring.failure is None
    assert measuring.result.distribution == {"a": 500, "c": 500}
    assert all(seconds > 0 for seconds in measuring.result.seconds.values())


def test_scouts_get_an_even_share_at_most():
    measuring = machine({"a": 1.0, "b": 2.0}, units=10, scout=1000)
    assert {i.worker: i.units for i in measuring.start()} == {"a": 5, "b": 5}


def test_a_worker_that_leaves_and_comes_back_in_one_round_is_measured_in_the_next():
    measuring = machine({"a": 1.0, "b": 2.0}, units=30)
    first = measuring.start()
    assert measuring.left("b") == []
    assert measuring.joined("b", Member("b")) == []
    second = answer_all(measuring, first[:1], SPEEDS)
    assert {i.worker for i in second} == {"a", "b"}
    assert measuring.rounds[0].imbalance is None


def test_half_widths_are_told_of_the_points_that_were_measured():
    measuring = machine(SPEEDS)
    following = measuring.start()
    while not any(isinstance(i, Conclude) for i in following):
        for one in following:
            seconds = one.units / SPEEDS[one.worker]
            told = None if one.worker == "d" else seconds / 8
            following = measuring.answered(one.worker, one.round, seconds, told)
    model = measuring.models["a"]
    assert len(measuring.rounds) == 2
    assert measuring.half_widths("a") == {
        units: seconds / 8 for units, seconds in zip(*model.points, strict=True)
    }
    assert measuring.half_widths("d") == {}  # its timer could not tell


def test_half_widths_of_what_was_looked_at_again_are_those_of_the_mean():
    members = {worker: Member(worker, alike="x") for worker in "ab"}
    measuring = Measuring(20, members, epsilon=0.1, max_rounds=1, repeats=2)
    measuring.start()
    for seconds in (8.0, 2.0, 2.1):
        number = measuring.round
        measuring.answered("a", number, 1.0, 0.1)
        measuring.answered("b", number, seconds, 0.1)
    assert measuring.concluded
    assert measuring.models["b"].points[1].tolist() == [2.05]
    assert measuring.half_widths("b") == {10.0: pytest.approx(0.1 / 2**0.5)}
    assert measuring.half_widths("a") == {10.0: pytest.approx(0.1 / 3**0.5)}


def test_half_widths_of_a_refuted_prior_are_those_of_what_refuted_it():
    prior = PiecewiseLinearModel.from_points([500], [1.0])
    measuring = machine({"a": 10.0, "b": 10.0}, priors={"a": prior, "b": prior})
    for one in measuring.start():
        measuring.answered(one.worker, one.round, one.units / 10, 0.5)
    assert measuring.models["a"].points[1].tolist() == [50.0]
    assert measuring.half_widths("a") == {500.0: 0.5}
