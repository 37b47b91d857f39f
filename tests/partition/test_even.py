"""Even distributions."""

import pytest

from fpmdask.errors import PartitionError
from fpmdask.partition import even
from tests.conformance import BAD_UNITS, check_distribution


@pytest.mark.parametrize(("units", "workers"), [(1, 1), (2, 5), (7, 3), (1e9, 7), (100, 100)])
def test_shares_differ_by_one_at_most(units, workers):
    shares = even(units, workers)
    check_distribution(shares, units, workers)
    assert shares.max() - shares.min() <= 1
    assert sorted(shares.tolist(), reverse=True) == shares.tolist()


@pytest.mark.parametrize("units", BAD_UNITS)
def test_bad_units(units):
    with pytest.raises(PartitionError, match="units must be a whole number"):
        even(units, 3)


@pytest.mark.parametrize("workers", [0, -1, 1.5, 2.0, "3", True, None])
def test_bad_workers(workers):
    with pytest.raises(PartitionError, match="workers must be"):
        even(10, workers)
