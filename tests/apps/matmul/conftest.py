"""Shared by the tests of the multiplication."""

import dask
import pytest

from tests.tuned import SHORT_ROUNDS


@pytest.fixture
def short_rounds():
    """Measure briefly, on clusters that are no `gen_cluster`: that sets its own configuration."""
    with dask.config.set(SHORT_ROUNDS):
        yield
