"""`exact` against the dynamic program, brute force and its documented ties."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.partition.exact import exact
from fpmdask.partition.sumset import runs, sumset

ORACLES = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())


def dynamic_program(units, tables):
    """Optimal makespan by T(i, n) = min over x of max(T(i - 1, n - x), t_i(x)): O(p N**2)."""
    best = np.full(units + 1, np.inf)
    first = tables[0][: units + 1]
    best[: len(first)] = first
    for table in tables[1:]:
        new = np.full(units + 1, np.inf)
        for x, seconds in enumerate(table[: units + 1]):
            np.minimum(new[x:], np.maximum(best[: units + 1 - x], seconds), out=new[x:])
        best = new
    return float(best[units])


def makespan(tables, distribution):
    return max(float(t[x]) for t, x in zip(tables, distribution, strict=True))


def first_of_ties(units, tables):
    """The documented distribution by trying all of them."""
    choices = itertools.product(*(range(len(t)) for t in tables))
    return min(
        (d for d in choices if sum(d) == units),
        key=lambda d: (makespan(tables, d), sum(x > 0 for x in d), d[::-1]),
    )


# Few different values make plateaus and ties; inf is a size that is not possible.
seconds = st.one_of(
    st.integers(0, 6).map(float), st.floats(0, 100), st.just(float("inf")), st.floats(0, 1e-300)
)
table = st.lists(seconds, min_size=1, max_size=25)


@pytest.mark.slow
@given(st.lists(table, min_size=1, max_size=6), st.data())
@settings(max_examples=150, deadline=None)
def test_makespan_is_that_of_the_dynamic_program(tables, data):
    """500 instances that have a solution and a table whose times fall somewhere."""
    units = data.draw(st.integers(1, max(1, sum(len(t) - 1 for t in tables))))
    expected = dynamic_program(units, tables)
    assume(expected < float("inf"))
    assume(any(a > b for t in tables for a, b in itertools.pairwise(t[: units + 1])))
    distribution = exact(units, tables)
    assert distribution.dtype == np.int64
    assert distribution.sum() == units
    assert makespan(tables, distribution) == expected


@pytest.mark.slow
@given(st.lists(table, min_size=1, max_size=6), st.data())
@settings(max_examples=100, deadline=None)
def test_what_the_dynamic_program_finds_impossible_is_refused(tables, data):
    units = data.draw(st.integers(1, 1 + sum(len(t) - 1 for t in tables)))
    assume(dynamic_program(units, tables) == float("inf"))
    with pytest.raises(PartitionError):
        exact(units, tables)


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 3).map(float), min_size=1, max_size=6), min_size=1,
                max_size=4), st.data())  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_ties_go_to_fewest_workers_then_least_on_the_last(tables, data):
    room = sum(len(t) - 1 for t in tables)
    units = data.draw(st.integers(1, max(1, room)))
    if units <= room:
        assert tuple(exact(units, tables)) == first_of_ties(units, tables)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_fewest_workers_come_before_least_on_the_last(rooms, data):
    """A unit takes as long as any number of units: all distributions are ties."""
    tables = [[0.0] + [1.0] * room for room in sorted(rooms)]
    units = data.draw(st.integers(1, sum(rooms)))
    assert tuple(exact(units, tables)) == first_of_ties(units, tables)


@pytest.mark.parametrize("units", [4, 6, 8, 10, 12])
def test_oracle(units):
    oracle = ORACLES["non_monotone_exact"]
    distribution = exact(units, oracle["times"])
    assert makespan(oracle["times"], distribution) == oracle["makespan_by_units"][str(units)]


@pytest.mark.parametrize("kind", ["steep", "random", "gaps", "caches", "constant"])
def test_large_tables(kind):
    rng = np.random.default_rng(5)
    sizes = np.arange(301)
    speeds = rng.uniform(1, 4, 8)
    tables = {
        "steep": [sizes / s * rng.uniform(0.8, 1.2, sizes.size) for s in speeds],
        "random": [rng.uniform(0, 1, sizes.size) for s in speeds],
        "gaps": [np.where(sizes % 2 == 0, sizes / s, np.inf) for s in speeds],
        "caches": [sizes / s * (1 + (sizes % 64 > 32)) for s in speeds],
        "constant": [np.ones(sizes.size) for s in speeds],
    }[kind]
    for units in (2, 300, 1000, 2300):
        distribution = exact(units, tables)
        assert distribution.sum() == units
        assert makespan(tables, distribution) == dynamic_program(units, tables)


def test_idle_cost_counts():
    assert exact(2, [[5.0, 1.0, 3.0], [0.0, 1.0, 1.0]]).tolist() == [1, 1]
    # Worker 1 costs 9 s without units and 2 s with one: it is not left idle.
    assert exact(3, [[0, 1, 2, 3], [9, 2, 8]]).tolist() == [2, 1]


def test_limits_cut_the_tables():
    tables = [[0, 1, 1, 1], [0, 7, 8, 9]]
    assert exact(3.0, tables).tolist() == [3, 0]
    assert exact(3, tables, limits=[2, None]).tolist() == [2, 1]
    assert exact(3, np.array(tables, dtype=np.float64), limits=[np.inf, np.inf]).tolist() == [3, 0]


@pytest.mark.parametrize(
    ("units", "tables", "limits", "words"),
    [
        (0, [[0, 1]], None, "units"),
        (1.5, [[0, 1]], None, "units"),
        (1, [], None, "one table"),
        (1, 7, None, "tables is 7; pass one table"),
        (1, [[]], None, r"tables\[0\]"),
        (1, [[[0, 1]]], None, r"tables\[0\]"),
        (1, [["a", "b"]], None, r"tables\[0\]"),
        (1, [[0, 1], [0, -1]], None, r"tables\[1\]\[1\] is -1"),
        (1, [[0, float("nan")]], None, r"tables\[0\]\[1\] is nan"),
        (4, [[0, 1], [0, 1, 2]], None, "4 units do not fit"),
        (2, [[0, 1], [0, 1]], [1, 0], "2 units do not fit"),
        (2, [[0, 1], [0, 1]], [1], "limits"),
        (3, [[0, np.inf, 1], [0, np.inf, 1]], None, "no choice of sizes"),
        (3, [[np.inf, np.inf, 1], [np.inf, 9, 9, 9], [np.inf, 2]], None, "allow 4 to 6"),
        (1, [[np.inf, np.inf, 1], [0, 1]], None, "worker 0 has no finite time for 0 to 1"),
    ],
)
def test_bad_input(units, tables, limits, words):
    with pytest.raises(PartitionError, match=words):
        exact(units, tables, limits)


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(61, 130))
def test_sumset(left, right, size):
    def members(values):
        found = np.zeros(61, dtype=np.bool_)
        found[list(values)] = True
        return found

    expected = sorted({a + b for a in left for b in right if a + b < size})
    assert np.flatnonzero(sumset(members(left), members(right), size)).tolist() == expected


def test_sumset_of_very_many_runs():
    even_numbers = np.arange(5000) % 2 == 0
    assert runs(even_numbers)[0].size == 2500
    for size in (5000, 9999, 12000):
        found = sumset(even_numbers, even_numbers, size)
        assert np.array_equal(found, (np.arange(size) % 2 == 0) & (np.arange(size) < 9997))
