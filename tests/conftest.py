"""Shared by all tests."""

# distributed.utils_test keeps the configuration that it finds at its import and restores it
# around every test: ours must be there before.
from hypothesis import settings

import fpmdask.coordinator.config  # noqa: F401  (see above)

# How long an example takes says nothing about the code on a machine that others use, too.
settings.register_profile("fpmdask", deadline=None)
settings.load_profile("fpmdask")
