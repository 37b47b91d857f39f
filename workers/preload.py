"""The hooks of `fpmdask.preload`, for `dask worker --preload ./preload.py`."""

from fpmdask.preload import *  # noqa: F403 - Dask looks for the hooks in this very file
