"""How far apart the workers finish, with idle and full workers."""

import math

import pytest

from fpmdask.errors import PartitionError
from fpmdask.partition import imbalance


@pytest.mark.parametrize(
    ("seconds", "units", "limits", "expected"),
    [
        ([2.0], None, None, 0.0),
        ([1.0, 1.0], None, None, 0.0),
        ([1.0, 1.5, 2.0], None, None, 1.0),
        ([2.0, 1.0], [5, 5], None, 1.0),
        ([2.0, math.nan, 1.0], [5, 0, 5], None, 1.0),
        ([2.0, 0.0, 1.0], [5, 0, 5], None, 1.0),
        ([2.0, -3.0, 1.0], [5, 0, 5], None, 1.0),
        # A full worker's early end does not count, its late end does.
        ([0.1, 1.0, 1.2], [4, 5, 5], [4, None, math.inf], 0.2),
        ([2.0, 1.0], [4, 5], [4, None], 1.0),
        ([0.1, 1.0], [4, 5], [4, 5], 0.0),
        ([0.1, 1.0], [4, 5], [4.9, 6], 0.0),
        ([1.0, math.inf], [4, 5], None, math.inf),
        ([math.inf, math.inf], None, None, math.inf),
    ],
)
def test_definition(seconds, units, limits, expected):
    result = imbalance(seconds, units, limits)
    assert isinstance(result, float)
    assert result == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seconds", "units", "limits", "match"),
    [
        ([], None, None, "seconds"),
        ([1.0, 0.0], None, None, r"seconds\[1\]"),
        ([1.0, math.nan], [1, 1], None, r"seconds\[1\]"),
        (["a"], None, None, "seconds"),
        ([1.0, 2.0], [1], None, "1 units found for 2"),
        ([1.0, 2.0], [0, 0], None, "no worker has units"),
        ([1.0, 2.0], [1, 1.5], None, "whole numbers"),
        ([1.0, 2.0], [1, -1], None, "whole numbers"),
        ([1.0, 2.0], [1, 2], [1], "limits"),
        ([1.0, 2.0], [1, 2], [1, 1], "worker 1 has 2 units"),
    ],
)
def test_bad_input(seconds, units, limits, match):
    with pytest.raises(PartitionError, match=match):
        imbalance(seconds, units, limits)
