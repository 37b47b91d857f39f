"""What fraction an event stands for: it never falls, and is 1 at the end only."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmdask.apps import APPS
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.app import find
from fpmdask.runtime.client.displays import chosen
from fpmdask.runtime.client.progress import CallProgress
from fpmdask.runtime.progress import LOAD, LOAD_PART, Meter, as_html, as_text, words

NAMES = st.sampled_from(["load", "prepare", "measure", "sort", "other"])
AMOUNTS = st.floats(0, 1e12) | st.integers(0, 10)
EVENTS = st.one_of(
    st.fixed_dictionaries(
        {
            "event": st.just("start"),
            "phases": st.dictionaries(NAMES, st.floats(0, 10), max_size=4),
        }
    ),
    st.fixed_dictionaries(
        {"event": st.just("progress"), "phase": NAMES},
        optional={
            "done": AMOUNTS,
            "total": st.none() | AMOUNTS,
            "expected": st.none() | st.floats(allow_nan=True),
            "unit": st.just("rows"),
        },
    ),
    st.builds(
        lambda ends: {"event": "stage", "stage": "s", "low": min(ends), "high": max(ends)},
        st.tuples(st.floats(0, 1), st.floats(0, 1)),
    ),
    st.fixed_dictionaries({"event": st.sampled_from(["waiting", "left out", "joined"])}),
)


def meter(*events, at=0.0):
    made = Meter("method", 0.0)
    for event in events:
        made.heard(event, at)
    return made


@given(st.lists(st.tuples(EVENTS, st.floats(0, 100))))
def test_the_fraction_never_falls_and_is_1_at_the_end_only(told):
    made, now, before = Meter("method", 0.0), 0.0, 0.0
    for event, seconds in told:
        now += seconds
        for at in (now, now + 1):
            if at == now:
                made.heard(event, at)
            reading = made.reading(at)
            assert before <= reading.fraction < 1
            assert reading.left is None or (reading.left >= 0 and math.isfinite(reading.left))
            before = reading.fraction
            assert words(reading)
            assert f'data-fraction="{reading.fraction:.4f}"' in as_html(reading)
        now += 1
    made.heard({"event": "end"}, now)
    assert made.reading(now).fraction == made.reading(now + 9).fraction == 1
    assert words(made.reading(now)).startswith("finished after ")


def test_a_phase_has_its_part_of_the_run_and_what_is_skipped_counts_as_done():
    start = {"event": "start", "phases": {"prepare": 1, "measure": 3, "multiply": 4}}
    made = meter(start)
    assert made.reading(0.0).fraction == 0
    made.heard({"event": "round", "phase": "measure", "done": 1, "unit": "rounds"}, 1.0)
    assert made.reading(1.0).fraction == pytest.approx((1 + 3 / 2) / 8)
    made.heard({"event": "round", "phase": "measure", "done": 2, "unit": "rounds"}, 2.0)
    assert made.reading(2.0).fraction == pytest.approx((1 + 3 * 3 / 4) / 8)
    made.heard({"event": "progress", "phase": "multiply", "done": 1, "total": 4}, 3.0)
    assert made.reading(3.0).fraction == pytest.approx((4 + 1) / 8)
    # a run that starts over does not fall back
    made.heard({"event": "step", "phase": "prepare"}, 4.0)
    assert made.reading(4.0).fraction == pytest.approx(5 / 8)


def test_a_phase_that_nobody_has_planned_is_half_of_what_is_left():
    made = meter({"event": "start", "phases": {}})
    for n, phase in enumerate(("look", "do", "end"), 1):
        made.heard({"event": "progress", "phase": phase, "done": 3, "total": 3}, 1.0)
        assert made.reading(1.0).fraction == pytest.approx(1 - 0.5**n, rel=0.1)


def test_a_stage_bounds_the_runs_in_it():
    made = meter({"event": "stage", "stage": "tile", "low": 0.5, "high": 0.75})
    made.heard({"event": "start", "phases": {"measure": 1, "multiply": 1}}, 0.0)
    assert made.reading(0.0).fraction == 0.5
    made.heard({"event": "progress", "phase": "multiply", "done": 4, "total": 4}, 0.0)
    assert made.reading(0.0).fraction == pytest.approx(0.75)


def test_inputs_that_are_computed_first_have_their_part_of_the_call():
    load = {"event": "progress", "phase": LOAD, "total": 4, "unit": "chunks"}
    made = meter({**load, "done": 0}, {**load, "done": 2})
    assert made.reading(0.0).fraction == pytest.approx(LOAD_PART / 2)
    made.heard({**load, "done": 1}, 0.0)  # of a second input
    made.heard({"event": "stage", "stage": "look", "low": 0.0, "high": 0.5}, 0.0)
    assert made.reading(0.0).fraction == pytest.approx(LOAD_PART)
    made.heard({"event": "start", "phases": {"sort": 1}}, 0.0)
    made.heard({"event": "progress", "phase": "sort", "done": 1, "total": 2}, 0.0)
    assert made.reading(0.0).fraction == pytest.approx(LOAD_PART + (1 - LOAD_PART) / 4)
    # what is loaded amid runs is a phase like others
    made.heard({**load, "done": 4}, 0.0)
    assert made.reading(0.0).fraction < 1


def test_who_hears_nothing_hears_again_how_far_the_call_is():
    told = []

    async def check():
        async with CallProgress("sort", told.append, quiet_seconds=0.01) as call:
            while not told:
                await asyncio.sleep(0.001)
            assert told[0]["phase"] == "prepare"
            told.clear()
            call.tell({"event": "start", "phases": {"sort": 1}})
            progress = {"event": "progress", "phase": "sort", "unit": "keys"}
            call.tell({**progress, "done": 1, "total": 4})
            while len(told) < 3:
                await asyncio.sleep(0.001)

    asyncio.run(check())
    start, counted, repeated, *_, end = told
    assert start["event"] == "start"
    for event in (counted, repeated):
        assert (event["fraction"], event["phase"], event["unit"]) == (0.25, "sort", "keys")
        assert (event["done"], event["total"]) == (1, 4)
    assert end["event"] == "end"


def test_a_function_that_raises_between_two_events_is_not_called_there_again(caplog):
    calls = []

    def raises(event):
        calls.append(event)
        raise ZeroDivisionError

    async def check():
        async with CallProgress("sort", raises, quiet_seconds=0.001) as call:
            while not caplog.records:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            assert [event["phase"] for event in calls] == ["prepare"]
            call.tell({"event": "start", "phases": {}})

    with pytest.raises(ZeroDivisionError):
        asyncio.run(check())


def test_a_predicted_phase_moves_between_events_and_never_to_its_end():
    made = meter({"event": "start", "phases": {"multiply": 1}})
    made.heard({"event": "step", "phase": "multiply", "expected": 10.0}, 0.0)
    assert made.reading(5.0).fraction == pytest.approx(0.5)
    assert made.reading(1.0).fraction == pytest.approx(0.5)
    assert made.reading(4.0).left == pytest.approx(6.0)
    assert made.reading(50.0).fraction == pytest.approx(0.95)


def test_what_is_expected_counts_from_when_it_was_told():
    made = meter({"event": "start", "phases": {"iterate": 1}})
    made.heard({"event": "progress", "phase": "iterate", "done": 50, "total": 100}, 50.0)
    made.heard({"event": "step", "phase": "iterate", "expected": 20.0}, 50.0)
    assert made.reading(50.0).fraction == pytest.approx(0.5)
    assert made.reading(60.0).fraction == pytest.approx(0.75)


def test_a_phase_without_weight_is_shown_and_the_one_that_it_interrupts_goes_on():
    made = meter({"event": "start", "phases": {"iterate": 9, "checkpoint": 0, "write": 1}})
    made.heard({"event": "progress", "phase": "iterate", "done": 0, "total": 100}, 0.0)
    made.heard({"event": "iterated", "phase": "iterate", "done": 50, "total": 100}, 45.0)
    checkpoint = {"event": "progress", "phase": "checkpoint", "total": 3, "unit": "workers"}
    made.heard({**checkpoint, "done": 3}, 50.0)
    reading = made.reading(50.0)
    assert (reading.phase, reading.done, reading.total) == ("checkpoint", 3, 3)
    assert reading.fraction == pytest.approx(0.45)
    assert reading.left == pytest.approx(45 + 10 - 5)
    made.heard({"event": "iterated", "phase": "iterate", "done": 60, "total": 100}, 60.0)
    reading = made.reading(60.0)
    assert (reading.phase, reading.done) == ("iterate", 60)
    assert reading.left == pytest.approx(40 + 100 / 9)


def test_what_is_left_follows_from_the_pace_and_the_weights_of_later_phases():
    made = meter({"event": "start", "phases": {"sort": 1, "exchange": 2}})
    made.heard({"event": "progress", "phase": "sort", "done": 1, "total": 4}, 1.0)
    assert made.reading(1.0).left == pytest.approx(3 + 2 * 4)
    assert made.reading(3.0).left == pytest.approx(1 + 2 * 4)
    assert meter({"event": "start", "phases": {"sort": 1}}).reading(3.0).left is None


def test_a_call_that_fails_stays_where_it_was():
    made = meter({"event": "start", "phases": {"sort": 1}})
    made.heard({"event": "progress", "phase": "sort", "done": 1, "total": 4}, 1.0)
    made.heard({"event": "failed", "error": "ValueError: x"}, 61.0)
    reading = made.reading(61.0)
    assert (reading.fraction, reading.left) == (0.25, None)
    assert words(reading) == "failed after 1 min 1 s"
    assert as_text(reading) == "method ━━━━━━                   failed after 1 min 1 s"


def test_every_application_says_what_its_phases_take():
    for name in APPS:
        app = find(name, APPS)
        if app.run.startswith("fpmdask.runtime.coordinator.client_stages:"):
            assert not app.phases, f"{name} holds workers for stages that the client tells of"
            continue
        assert any(app.phases.values()), f"{name} has no phases"
        assert all(weight >= 0 for weight in app.phases.values())


def test_a_display_is_chosen_by_who_looks():
    cases = [(True, False, False), (True, False, True), (True, True, False), (False, True, True)]
    found = [chosen(wanted, notebook=n, terminal=t, rich=True) for wanted, n, t in cases]
    assert found == ["rich", "rich", "html", None]
    assert chosen(None, notebook=False, terminal=True, rich=False) is None
    with pytest.raises(CoordinatorError, match=r"pip install .fpmdask\[progress\]"):
        chosen(True, notebook=False, terminal=True, rich=False)
