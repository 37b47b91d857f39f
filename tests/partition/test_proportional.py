"""Constant speeds: the printed reference numbers, brute force, limits, bad input."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.partition import proportional
from tests.conformance import check_distribution, check_partitioner

ORACLES = json.loads((Path(__file__).parents[1] / "oracles.json").read_text("utf-8"))
HCL = ORACLES["hcl_speeds_mflops"]


@pytest.mark.parametrize("case", ORACLES["proportional"], ids=lambda case: str(case["units"]))
def test_oracles(case):
    shares = proportional(case["units"], HCL)
    assert shares.tolist() == case["distribution"]
    assert (shares / np.array(HCL)).max() == pytest.approx(case["makespan"], abs=5e-10)


def test_contract():
    check_partitioner(proportional, lambda count: np.linspace(1, 3, count))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=3),
    st.integers(1, 12),
    st.lists(st.integers(0, 12), min_size=3, max_size=3),
)
def test_brute_force(speeds, units, limits):
    most = limits[: len(speeds)]
    if sum(most) < units:
        most[0] = units
    shares = proportional(units, speeds, most)
    check_distribution(shares, units, len(speeds))
    best = min(
        max(x / s for x, s in zip(way, speeds, strict=True))
        for way in itertools.product(*(range(min(m, units) + 1) for m in most))
        if sum(way) == units
    )
    assert max(shares / np.array(speeds)) <= best * (1 + 1e-12)


def test_only_ratios_matter():
    speeds = np.array(HCL, dtype=float)
    for factor in (1e-300, 1e300, 2.0**-40):
        assert proportional(640, speeds * factor).tolist() == proportional(640, speeds).tolist()


def test_very_unequal_speeds():
    shares = proportional(2**52, [1e-9, 1.0, 1e9])
    check_distribution(shares, 2**52, 3)
    check_distribution(proportional(2**52, [1.0, 1.0, 1.0]), 2**52, 3)
    assert shares[0] == 0
    assert proportional(5, [1e-200, 1e200]).tolist() == [0, 5]


@pytest.mark.parametrize(
    "speeds", [[], [1, 0], [1, -1], [1, np.nan], [1, np.inf], ["a"], [True], [[1]], 3, None]
)
def test_bad_speeds(speeds):
    with pytest.raises(PartitionError, match="speeds"):
        proportional(10, speeds)
