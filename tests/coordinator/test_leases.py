"""Leases: all or nothing, first come first served, stuck workers are nobody's."""

from hypothesis import given
from hypothesis import strategies as st

from fpmdask.runtime.coordinator.leases import Leases


def test_a_run_gets_all_its_workers_or_waits():
    leases = Leases()
    assert leases.request("one", "ab") == ["one"]
    assert leases.request("two", "bc") == []
    assert leases.held_by("two") == set()
    assert leases.release("one") == ["two"]
    assert leases.held_by("two") == {"b", "c"}


def test_disjoint_runs_go_at_once_but_nobody_is_overtaken():
    leases = Leases()
    leases.request("one", "ab")
    assert leases.request("two", "bc") == []
    assert leases.request("three", "cd") == []  # two, which came before, waits for c
    assert leases.request("four", "ef") == ["four"]
    assert leases.release("one") == ["two"]
    assert leases.release("two") == ["three"]


def test_stuck_workers_are_left_out_until_the_call_returns():
    leases = Leases()
    leases.request("one", "ab")
    leases.block("one", "a")
    assert leases.stuck == {"a": "one"}
    leases.release("one")
    assert leases.request("two", "ab") == ["two"]
    assert leases.held_by("two") == {"b"}
    assert not leases.extend("two", "a")
    leases.recovered("a")
    assert leases.extend("two", "a")


def test_a_worker_that_leaves_is_dropped_from_requests():
    leases = Leases()
    leases.request("one", "ab")
    leases.request("two", "b")
    assert leases.left("b") == ["two"]
    assert leases.held_by("two") == set()


def test_the_next_run_waits_for_a_lingering_worker_until_it_recovers_or_is_stuck():
    leases = Leases()
    leases.request("one", "ab")
    leases.linger("one", "a")
    leases.release("one")
    assert leases.busy("ab") == {"a": "one"}
    assert leases.request("two", "ab") == []
    assert leases.recovered("a") == ["two"]
    assert leases.held_by("two") == {"a", "b"}
    leases.linger("two", "a")
    leases.release("two")
    assert leases.request("three", "ab") == []
    assert leases.block("two", "a") == ["three"]
    assert leases.held_by("three") == {"b"}


def test_a_run_gets_more_as_long_as_it_lasts_also_when_all_its_workers_have_left():
    leases = Leases()
    assert not leases.extend("one", "b")
    leases.request("one", "a")
    leases.left("a")
    assert leases.extend("one", "b")
    leases.release("one")
    assert not leases.extend("one", "b")


events = st.lists(
    st.tuples(
        st.sampled_from(["request", "release", "left", "block", "linger", "recovered", "extend"]),
        st.integers(0, 4),
        st.sets(st.sampled_from("abcd"), min_size=1),
    ),
    max_size=30,
)


@given(events)
def test_no_worker_is_ever_held_twice_or_while_stuck_and_no_run_starves(course):
    leases = Leases()
    waiting: set[str] = set()
    seen: set[str] = set()
    for number, (event, who, workers) in enumerate(course):
        run, worker = f"run{who}", min(workers)
        granted: list[str] = []
        match event:
            case "request":
                run = f"run{who}-{number}"
                seen.add(run)
                waiting.add(run)
                granted = leases.request(run, workers)
            case "release" if seen - waiting:
                granted = leases.release(min(seen - waiting))
            case "left":
                granted = leases.left(worker)
            case "block" if seen:
                granted = leases.block(min(seen), worker)
            case "linger" if seen:
                leases.linger(min(seen), worker)
            case "recovered":
                granted = leases.recovered(worker)
            case "extend" if seen - waiting:
                leases.extend(max(seen - waiting), worker)
        waiting -= set(granted)
        held = [worker for run in seen for worker in leases.held_by(run)]
        assert len(held) == len(set(held))
        assert not set(held) & leases.stuck.keys()
        assert set(held) <= leases.busy("abcd").keys()
    for worker in "abcd":
        waiting -= set(leases.recovered(worker))
    while waiting:  # every waiting run is granted once those before it have given back
        granted = [run for other in sorted(seen - waiting) for run in leases.release(other)]
        assert granted
        waiting -= set(granted)
