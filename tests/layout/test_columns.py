"""The optimal columns: brute force over all arrangements, the oracles, the paper's 14 workers."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.layout import columns

ORACLES = json.loads((Path(__file__).parents[1] / "oracles.json").read_text("utf-8"))
HCL = ORACLES["hcl_speeds_mflops"]


def groupings(members):
    """Every set partition."""
    if not members:
        yield []
        return
    first, *rest = members
    for groups in groupings(rest):
        yield [[first], *groups]
        for i in range(len(groups)):
            yield [*groups[:i], [first, *groups[i]], *groups[i + 1 :]]


def scaled_cost(groups, areas, aspect):
    total = sum(areas)
    return sum(1 + aspect * len(g) * sum(areas[i] for i in g) / total for g in groups)


def check_unit(layout, areas):
    """The columns tile the unit square with these areas."""
    shares = np.asarray(areas) / np.sum(areas)
    placed = sorted(itertools.chain(*layout.columns))
    assert placed == np.flatnonzero(shares).tolist()
    assert sum(layout.widths) == pytest.approx(1)
    for column, width in zip(layout.columns, layout.widths, strict=True):
        assert sum(layout.heights[i] for i in column) == pytest.approx(1)
        assert [layout.heights[i] * width for i in column] == pytest.approx(shares[list(column)])
    assert len(layout.heights) == len(areas)
    assert all(layout.heights[i] == 0 for i in np.flatnonzero(shares == 0))
    assert layout.lower_bound == pytest.approx(2 * np.sqrt(shares).sum())
    assert layout.half_perimeter == pytest.approx(scaled_cost(layout.columns, areas, 1.0))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=6), st.floats(0.05, 20))
def test_brute_force(areas, aspect):
    areas[0] += not any(areas)
    layout = columns(areas, aspect)
    check_unit(layout, areas)
    working = [i for i, a in enumerate(areas) if a]
    best = min(scaled_cost(groups, areas, aspect) for groups in groupings(working))
    assert scaled_cost(layout.columns, areas, aspect) == pytest.approx(best)


@pytest.mark.slow
@pytest.mark.parametrize("aspect", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("p", [7, 8])
def test_brute_force_with_more_workers(p, aspect):
    rng = np.random.default_rng(p)
    arrangements = list(groupings(list(range(p))))
    for _ in range(5):
        areas = 10 ** rng.uniform(0, 2, p)
        best = min(scaled_cost(groups, areas, aspect) for groups in arrangements)
        assert scaled_cost(columns(areas, aspect).columns, areas, aspect) == pytest.approx(best)


@pytest.mark.parametrize("case", ORACLES["columns"]["cases"], ids=lambda c: str(c["areas"])[:12])
def test_oracles(case):
    areas = HCL if case["areas"] == "hcl" else case["areas"]
    layout = columns(areas)
    check_unit(layout, areas)
    assert layout.half_perimeter == pytest.approx(case["half_perimeter"], rel=1e-6)
    assert layout.lower_bound == pytest.approx(case["lower_bound"], rel=1e-6)
    if "columns" in case:
        assert [len(c) for c in layout.columns] == case["columns"]


def test_every_choice_of_14_of_the_papers_16_workers():
    # Clarke, Lastovetsky, Rychkov (2011), figure 7, print 7.457 for areas that they do not print.
    found = [columns(chosen).half_perimeter for chosen in itertools.combinations(HCL, 14)]
    assert len(found) == 120
    assert min(found) == pytest.approx(7.419, abs=1e-3)
    assert max(found) == pytest.approx(7.449, abs=1e-3)


def test_only_ratios_matter_and_extremes_do_not_overflow():
    rng = np.random.default_rng(4)
    areas = rng.uniform(1, 100, 50)
    expected = columns(areas)
    assert columns(areas * 2.0**900).columns == expected.columns
    assert columns(areas * 2.0**-900).half_perimeter == pytest.approx(expected.half_perimeter)
    assert columns([1.7e308, 1.7e308]).half_perimeter == 3.0
    assert columns([1e-300, 1e300]).half_perimeter < 3.0 + 1e-12


def test_a_flat_matrix_has_many_columns_and_a_tall_one_has_one():
    assert len(columns([1] * 6, aspect=100).columns) == 6
    assert len(columns([1] * 6, aspect=0.01).columns) == 1


def test_many_workers():
    areas = np.random.default_rng(0).uniform(1, 100, 1000)
    layout = columns(areas)
    check_unit(layout, areas)
    assert layout.half_perimeter < 1.01 * layout.lower_bound


@pytest.mark.parametrize(
    ("areas", "words"),
    [
        ([], "at least one"),
        ([1, -1], r"areas\[1\] is -1"),
        ([1, np.nan], "finite"),
        ([np.inf, 1], "finite"),
        ([0, 0], "all 2 areas are 0"),
        ([[1, 2]], "shape"),
        (["a"], "numbers"),
        (None, "numbers"),
    ],
)
def test_bad_areas(areas, words):
    with pytest.raises(PartitionError, match=words):
        columns(areas)


@pytest.mark.parametrize("aspect", [0, -1, np.nan, np.inf, "1", None])
def test_bad_aspect(aspect):
    with pytest.raises(PartitionError, match="aspect"):
        columns([1, 2], aspect)
