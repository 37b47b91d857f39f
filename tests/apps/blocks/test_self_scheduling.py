"""Rows are handed out so that all workers finish together, whatever a call costs."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.apps.blocks.self_scheduling import Member, SelfScheduling, SpeedFunction
from fpmdask.runtime.rows import edges_of, held, pieces

SPEEDS = {"a": 0.4, "b": 0.3, "c": 0.25, "d": 0.2, "e": 0.15, "f": 0.1}


def simulate(plan, cost, ahead=2, leaves=None):
    """Run a plan on workers that take ``cost(worker, rows)``; return spans by worker, and the end.

    ``leaves``: (worker, seconds) of one that is gone then, with all that it has done.
    """
    now, heap, queues, done = 0.0, [], {}, {worker: [] for worker in plan.members}
    gone = set()

    def fill():
        for worker in sorted(plan.members):
            queue = queues.setdefault(worker, [])
            while len(queue) < ahead:
                if queue and not plan.members[worker].speed.sure:
                    break
                if not queue:
                    plan.busy_until(worker, now)
                if (span := plan.next(worker, now, idle=not queue)) is None:
                    break
                queue.append(span)
                if len(queue) == 1:
                    heapq.heappush(heap, (now + cost(worker, span[1] - span[0]), worker))

    fill()
    while heap:
        if leaves is not None and leaves[1] <= heap[0][0]:
            worker, now = leaves
            leaves = None
            gone.add(worker)
            for span in [*queues.pop(worker), *done.pop(worker)]:
                plan.returned(worker, span)
            plan.left(worker)
            fill()
            continue
        now, worker = heapq.heappop(heap)
        if worker in gone:
            continue
        span = queues[worker].pop(0)
        done[worker].append(span)
        rows = span[1] - span[0]
        plan.done(worker, span, cost(worker, rows), now)
        if queues[worker]:
            following = queues[worker][0]
            heapq.heappush(heap, (now + cost(worker, following[1] - following[0]), worker))
        fill()
    assert plan.rest == 0
    return done, now


def plan_of(rows, chunks=24, workers=SPEEDS, whole=False, members=None):
    lengths = [rows * (n + 1) // chunks - rows * n // chunks for n in range(chunks)]
    owners = [list(workers)[n * len(workers) // chunks] for n in range(chunks)]
    edges = edges_of(lengths)
    members = members or {worker: Member(SpeedFunction()) for worker in workers}
    return SelfScheduling(rows, held(edges, owners), members, edges, whole, 0.0)


def check_every_row_once(done, rows):
    spans = sorted(span for own in done.values() for span in own)
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == rows


COSTS = {
    "proportional": lambda worker, rows: rows * 1e-4 / SPEEDS[worker],
    "fixed": lambda worker, rows: (0.05 + rows * 1e-4) / SPEEDS[worker],
    "n log n": lambda worker, rows: rows * math.log2(rows + 1) * 1e-5 / SPEEDS[worker],
    # one worker whose memory holds less than 3,000 rows
    "cliff": lambda worker, rows: (
        rows * 1e-4 / SPEEDS[worker] * (10 if worker == "a" and rows > 3000 else 1)
    ),
}


@pytest.mark.parametrize(
    ("kind", "allowed"), [("proportional", 1.08), ("fixed", 1.2), ("n log n", 1.1), ("cliff", 1.35)]
)
def test_all_finish_together_though_nothing_was_known(kind, allowed):
    rows, cost = 96_000, COSTS[kind]
    plan = plan_of(rows)
    done, end = simulate(plan, cost)
    check_every_row_once(done, rows)
    # at best each worker has one call, or as many as its memory wants
    ideal = ideal_of(cost, rows, 3000 if kind == "cliff" else None)
    assert end <= allowed * ideal


def ideal_of(cost, rows, most=None):
    def units(worker, seconds):
        low, high = 0, rows
        while low < high:
            middle = (low + high + 1) // 2
            calls = math.ceil(middle / (most or middle))
            taken = cost(worker, middle / calls) * calls
            low, high = (middle, high) if taken <= seconds else (low, middle - 1)
        return low

    low, high = 0.0, 1e4
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (low, middle)
            if sum(units(worker, middle) for worker in SPEEDS) >= rows
            else (middle, high)
        )
    return high


def test_what_is_known_of_earlier_runs_makes_fewer_calls():
    rows, cost = 96_000, COSTS["fixed"]
    first = plan_of(rows, chunks=6)
    done, end = simulate(first, cost)
    members = {
        w: Member(SpeedFunction(m.speed.points), known=True) for w, m in first.members.items()
    }
    again, later = simulate(plan_of(rows, chunks=6, members=members), cost)
    check_every_row_once(again, rows)
    assert later <= end
    assert sum(map(len, again.values())) < sum(map(len, done.values()))


def test_rows_stay_where_they_are_as_far_as_speeds_allow():
    rows = 96_000
    plan = plan_of(rows)
    lengths = [rows // 24] * 24
    own = held(edges_of(lengths), [list(SPEEDS)[n // 4] for n in range(24)])
    done, _ = simulate(plan, COSTS["proportional"])
    for worker, spans in done.items():
        ((start, stop),) = own[worker]
        inside = sum(max(0, min(stop, b) - max(start, a)) for a, b in spans)
        given = sum(b - a for a, b in spans)
        # who is slow computes only rows of its own, who is fast all of its own
        assert inside >= 0.95 * min(given, stop - start), worker


def test_a_worker_that_leaves_costs_only_what_it_had_done():
    rows, cost = 96_000, COSTS["proportional"]
    done, _ = simulate(plan_of(rows), cost, leaves=("b", 3.0))
    assert "b" not in done
    check_every_row_once(done, rows)


def test_quotas_are_what_workers_get():
    rows = 9600
    members = {
        worker: Member(SpeedFunction(), quota=quota)
        for worker, quota in zip(SPEEDS, [6000, 0, 3000, 600, 0, 0], strict=True)
    }
    done, _ = simulate(plan_of(rows, members=members), COSTS["proportional"])
    check_every_row_once(done, rows)
    units = {worker: sum(b - a for a, b in own) for worker, own in done.items()}
    assert units == {"a": 6000, "b": 0, "c": 3000, "d": 600, "e": 0, "f": 0}


def test_a_worker_without_memory_for_more_results_gets_no_more():
    plan = plan_of(9600)
    plan.members["a"].limit = 100
    done, _ = simulate(plan, COSTS["proportional"])
    assert sum(b - a for a, b in done["a"]) <= 100
    check_every_row_once(done, 9600)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    owners=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=12, max_size=12),
    seconds=st.lists(st.floats(1e-5, 1e-1), min_size=3, max_size=3),
    fixed=st.floats(0, 1),
    whole=st.booleans(),
)
def test_every_row_is_handed_out_once(lengths, owners, seconds, fixed, whole):
    rows, edges = sum(lengths), edges_of(lengths)
    members = {worker: Member(SpeedFunction()) for worker in "abc"}
    plan = SelfScheduling(rows, held(edges, owners[: len(lengths)]), members, edges, whole, 0.0)
    each = dict(zip("abc", seconds, strict=True))
    done, _ = simulate(plan, lambda worker, n: fixed + n * each[worker])
    if rows:
        check_every_row_once(done, rows)
    if whole:
        assert {at for own in done.values() for span in own for at in span} <= set(edges)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_pieces_are_the_rows_of_a_span(lengths, data):
    edges = edges_of(lengths)
    start = data.draw(st.integers(0, edges[-1]))
    stop = data.draw(st.integers(start, edges[-1]))
    found = [edges[c] + row for c, a, b in pieces(edges, (start, stop)) for row in range(a, b)]
    assert found == list(range(start, stop))


@given(
    st.dictionaries(st.integers(1, 10**6), st.floats(1e-4, 1e3), min_size=1, max_size=8),
    st.floats(0.01, 1e4),
)
def test_rows_and_seconds_are_inverse(points, seconds):
    speed = SpeedFunction(points)
    rows = speed.rows(seconds)
    assert np.isfinite(rows)
    assert rows >= 0
    assert speed.rows(seconds * 1.1) >= rows
    if rows and speed.cliff is None:
        assert speed.seconds(rows) <= seconds * (1 + 1e-6)
