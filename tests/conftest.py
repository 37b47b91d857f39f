"""Shared by all tests."""

import gc
import os
from contextlib import ExitStack

import dask
import pytest

# distributed.utils_test keeps the configuration that it finds at its import and restores it
# around every test: ours must be there before.
from hypothesis import settings

import fpmdask.config  # noqa: F401  (see above)
from tests.tuned import tuned

# Who looks for more sets FPMDASK_EXAMPLES=1000, say.
# How long an example takes says nothing about the code on a machine that others use, too.
settings.register_profile(
    "fpmdask", deadline=None, max_examples=int(os.environ.get("FPMDASK_EXAMPLES", "40"))
)
settings.load_profile("fpmdask")


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Have garbage collectors skip what is alive before a module's tests.

    Many tests look for what is left behind, in a process that has a million objects of others.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def tuning():
    """Return a function that sets thresholds until the test ends: ``tuning(sort={"few_keys": 0})``.

    A scheduler takes them in with its first balancer, a client with each call.
    """
    with ExitStack() as stack:
        yield lambda **groups: stack.enter_context(dask.config.set(tuned(**groups)))
