"""Dask tasks of sorts of DataFrames."""
