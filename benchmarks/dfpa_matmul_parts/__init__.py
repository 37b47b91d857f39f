"""The experiments of `benchmarks/dfpa_matmul.py`, one per module, and what they share."""
