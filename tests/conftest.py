"""Shared by all tests."""

# distributed.utils_test keeps the configuration that it finds at its import and restores it
# around every test: ours must be there before.
import fpmdask.coordinator.config  # noqa: F401  (see above)
