"""Replaying: the same decisions from the same events, and where they differ."""

import copy
import json
import math

import pytest

from fpmdask.errors import MeasuringError, PartitionError
from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.coordinator.instructions import Measure, Member
from fpmdask.runtime.coordinator.measuring import Measuring
from fpmdask.runtime.coordinator.replay import HEADER, replay

SPEEDS = {"a": 100.0, "b": 220.0, "c": 300.0, "d": 400.0, "e": 150.0}


def paging(worker, units):
    """Return seconds: worker d is ten times slower beyond 300 units, c cannot do more than 350."""
    if worker == "c" and units > 350:
        return math.inf
    slow = 10.0 if worker == "d" and units > 300 else 1.0
    return units * slow / SPEEDS[worker]


def eventful():
    """Return a concluded measurement in which a worker leaves, one fails, one hangs, one joins."""
    prior = PiecewiseLinearModel.from_points([100, 300], [1.0, 3.0])
    members = {w: Member(w) for w in "bcd"} | {"a": Member("a", 900.0, prior, prior=True)}
    run = Measuring(1000, members, epsilon=0.05, max_rounds=20)
    pending = run.start()
    run.joined("e", Member("e"))
    while not run.concluded:
        number = run.round
        following = []
        for task in pending:
            assert isinstance(task, Measure)
            if number == 2 and task.worker == "b":
                following = run.failed("b", number, "RuntimeError: no reason")
            elif number == 3 and task.worker == "e":
                following = run.overdue("e", number, "no answer within 9 s")
            else:
                following = run.answered(task.worker, number, paging(task.worker, task.units))
        pending = following
        if number == 3:
            run.left("a")
            run.joined("b", Member("b"))
            pending = [task for task in pending if task.worker != "a"]
    return run


@pytest.fixture(scope="module")
def log():
    run = eventful()
    assert {event["event"] for event in run.log} == {
        *("start", "answered", "failed", "overdue", "left", "joined")
    }
    assert any(event.get("seconds") == math.inf for event in run.log)
    return {"header": run.header, "events": run.log}


def through_a_file(log):
    def plain(value):
        return "inf" if value == math.inf else value

    events = [{k: plain(v) for k, v in event.items()} for event in log["events"]]
    return json.loads(json.dumps({**log, "events": events}, allow_nan=False))


def test_the_same_events_give_the_same_decisions(log):
    assert replay(log) == ()
    assert replay(through_a_file(log)) == ()


def test_a_tampered_answer_shows_at_the_decision_that_it_changes(log):
    changed = through_a_file(log)
    at = next(i for i, e in enumerate(changed["events"]) if e["event"] == "answered")
    changed["events"][at]["seconds"] *= 3
    first, *_ = replay(changed)
    decided = [i for i, e in enumerate(changed["events"]) if i >= at and e["decided"]]
    assert first.number == decided[0] + 1
    assert first.logged != first.now
    assert json.loads(json.dumps(first.to_json()))["number"] == first.number


def test_a_tampered_decision_is_the_only_difference(log):
    changed = copy.deepcopy(through_a_file(log))
    changed["events"][0]["decided"][0]["units"] += 1
    (difference,) = replay(changed)
    assert difference.number == 1
    assert difference.event == {"event": "start"}
    assert difference.logged[0]["units"] == difference.now[0]["units"] + 1


def test_events_that_do_not_fit_are_differences(log):
    changed = through_a_file(log)
    changed["events"].append({**changed["events"][1], "decided": []})
    changed["events"].append({"event": "left", "worker": "nobody", "decided": []})
    refused = replay(changed)
    assert [d.number for d in refused] == [len(log["events"]) + 1, len(log["events"]) + 2]
    assert all(set(d.now[0]) == {"refused"} for d in refused)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda log: log.clear(), "no header"),
        (lambda log: log.update(events=[]), "no events"),
        (lambda log: log["header"].pop("units"), "'units' is missing"),
        (lambda log: log["header"].update(members=[]), "header of the log"),
        (lambda log: log["header"]["members"].update(a=3), "header of the log"),
        *(
            (lambda log, key=key: log["header"].pop(key), f"header .*'{key}' is missing")
            for key in HEADER
        ),
        *(
            (lambda log, key=key, bad=bad: log["header"].update({key: bad}), f"header .*{key} is")
            for key in HEADER
            for bad in (None, "5", True, -1, math.nan)
        ),
        (lambda log: log["events"][2].update(seconds="long"), "event 3"),
        (lambda log: log["events"][3].pop("decided"), "event 4 .*'decided' is missing"),
        (lambda log: log["events"][0].update(event="dance"), "event 1 .* no event 'dance'"),
        (lambda log: log["events"].insert(1, "dance"), "event 2"),
    ],
)
def test_damaged_logs_are_refused_with_the_place(log, damage, message):
    damaged = through_a_file(log)
    damage(damaged)
    with pytest.raises(MeasuringError, match=message):
        replay(damaged)


def test_models_of_a_newer_version_are_refused(log):
    newer = through_a_file(log)
    newer["header"]["members"]["a"]["model"]["version"] = 99
    with pytest.raises(PartitionError, match="version 99"):
        replay(newer)
