"""Thresholds that differ from the defaults, as the configuration of a test's cluster or client."""


def tuned(**groups):
    """Return the configuration for ``{"sort": {"few_keys": 0}}``, to be merged with other one."""
    return {
        f"fpmdask.tuning.{group}.{name.replace('_', '-')}": value
        for group, values in groups.items()
        for name, value in values.items()
    }


# In-process workers share one interpreter: their speeds mean nothing, so measure briefly.
SHORT_ROUNDS = tuned(matmul={"timing_min_seconds": 0.002, "timing_budget_seconds": 0.004})
