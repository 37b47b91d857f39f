"""The bridge to Dask: the scheduler's side, the worker's side, the client's proxy."""
