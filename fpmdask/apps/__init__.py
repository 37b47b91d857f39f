"""Applications: each has a kernel (NumPy), a plan (pure) and a run (Dask)."""
