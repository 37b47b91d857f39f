"""Collections of other libraries: what is taken as an array, and what results are given back as.

Runs on the client. A library is looked at only if the program has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import dask.array as da
import numpy as np

from fpmdask.runtime.dask_private import DataNode
from fpmdask.runtime.zarr_storage import is_shared

Convert = Callable[[Any], Any]


def as_array(x: Any) -> Any:
    """Return a Zarr array as the dask array that reads it, the data of an xarray one; others as is.

    Examples
    --------
    >>> import zarr
    >>> as_array(zarr.array([3, 1, 2]))
    dask.array<from-zarr, shape=(3,), dtype=int64, chunksize=(3,), chunktype=numpy.ndarray>
    """
    if _is(x, "zarr", "Array"):
        return da.from_zarr(x)
    return x.data if _is(x, "xarray", "DataArray") else x


def as_stored(x: Any) -> Any:
    """Return the Zarr array that several processes can read: `x`, or what `from_zarr` made `x` of.

    Anything else as `as_array` does.
    """
    if _is(x, "zarr", "Array"):
        return x if is_shared(x) else as_array(x)
    x = as_array(x)
    if isinstance(x, da.Array) and x.name.startswith("from-zarr-"):
        layer = x.dask.layers.get(f"original-{x.name}", {})
        for found in layer.values():
            array = found.value if isinstance(found, DataNode) else found
            same = (getattr(array, "shape", None), getattr(array, "dtype", None))
            if _is(array, "zarr", "Array") and same == (x.shape, x.dtype) and is_shared(array):
                return array
    return x


def is_stored(x: Any) -> bool:
    """Tell whether `as_stored` has returned a Zarr array."""
    return _is(x, "zarr", "Array")


def as_keys(x: Any) -> Any:
    """Return what `as_array` does; of a pandas or dask series or index of a NumPy dtype its values.

    Examples
    --------
    >>> import pandas as pd
    >>> as_keys(pd.Series([3, 1, 2], index=[7, 8, 9]))
    array([3, 1, 2])
    """
    if any(_is(x, "pandas", name) for name in ("Series", "Index")) and _of_numpy(x):
        return x.to_numpy()
    if any(_is(x, "dask.dataframe", name) for name in ("Series", "Index")) and _of_numpy(x):
        return x.to_dask_array()
    return as_array(x)


def _of_numpy(x: Any) -> bool:
    """Tell whether a series has values that an array has as they are."""
    dtype = getattr(x, "dtype", None)  # an index of several levels may have none
    return isinstance(dtype, np.dtype) and not dtype.hasobject


def advice(x: Any) -> str:
    """Return how to make an array of something that is none.

    Examples
    --------
    >>> advice([3, 1, 2])
    'give a dask or NumPy array (numpy.asarray makes one)'
    """
    if any(_is(x, "dask.dataframe", name) for name in ("Series", "Index", "DataFrame")):
        return (
            "x.to_dask_array(lengths=True) makes an array of it, if its values are of one NumPy "
            "dtype; sort_values sorts rows by keys of any dtype"
        )
    if any(_is(x, "pandas", name) for name in ("Series", "Index", "DataFrame")):
        return (
            "x.to_numpy() makes an array of it, if its values are of one NumPy dtype; sort_values "
            "sorts rows by keys of any dtype"
        )
    if _is(x, "xarray", "Dataset"):
        return "give one of its variables"
    if _is(x, "dask.delayed", "Delayed"):
        return "dask.array.from_delayed(x, shape, dtype) makes an array of it"
    if _is(x, "dask.bag", "Bag"):
        return "x.to_dataframe() makes a frame of it, whose columns have to_dask_array"
    if _is(x, "distributed", "Future"):
        return "dask.array.from_delayed(x, shape, dtype) makes an array of it, or give its result"
    if hasattr(x, "dtype") and hasattr(x, "shape"):  # of SciPy, sparse, CuPy
        return "dask.array.from_array(x, asarray=False) makes a dask array of it"
    return "give a dask or NumPy array (numpy.asarray makes one)"


def frame_advice(x: Any) -> str:
    """Return how to make a frame of something that is none.

    Examples
    --------
    >>> frame_advice(np.arange(3))
    'sort and argsort take arrays; pandas.DataFrame(x) makes a frame'
    """
    for library in ("pandas", "dask.dataframe"):
        if any(_is(x, library, name) for name in ("Series", "Index")):
            return "x.to_frame() makes one; sort and argsort take what is of a NumPy dtype as it is"
    if _is(x, "dask.array", "Array"):
        return "sort and argsort take arrays; dask.dataframe.from_dask_array(x) makes a frame"
    if isinstance(x, np.ndarray) or _is(x, "zarr", "Array") or _is(x, "xarray", "DataArray"):
        return "sort and argsort take arrays; pandas.DataFrame(x) makes a frame"
    if _is(x, "xarray", "Dataset"):
        return "x.to_dask_dataframe() makes one"
    if _is(x, "dask.delayed", "Delayed") or _is(x, "distributed", "Future"):
        return "dask.dataframe.from_delayed([x], meta=...) makes one of parts that are pandas ones"
    if _is(x, "dask.bag", "Bag"):
        return "x.to_dataframe() makes one"
    if _is(x, "polars", "DataFrame") or _is(x, "pyarrow", "Table"):
        return "x.to_pandas() makes one"
    return "give a dask or pandas DataFrame (pandas.DataFrame makes one)"


def like(x: Any) -> Convert | None:
    """Return what makes a result of one axis like `x`, an xarray DataArray; None for others."""
    if not _is(x, "xarray", "DataArray"):
        return None
    xarray = sys.modules["xarray"]
    return lambda found: xarray.DataArray(found, dims=x.dims, name=x.name)


def like_product(a: Any, b: Any) -> Convert | None:
    """Return what makes a product an xarray DataArray, if a factor is one; None otherwise.

    The axes of C are the first of A and the last of B, with their names and coordinates.
    """
    if not any(_is(x, "xarray", "DataArray") for x in (a, b)):
        return None
    xarray = sys.modules["xarray"]
    dims: list[str] = []
    coords = {}
    for x, axis, name in ((a, 0, "rows"), (b, -1, "columns")):
        if np.ndim(x) < 2:
            continue
        labelled = _is(x, "xarray", "DataArray")
        dim = str(x.dims[axis]) if labelled else name
        dims.append(dim if dim not in dims else f"{dim}_columns")
        if labelled and x.dims[axis] in x.coords:
            coords[dims[-1]] = x.coords[x.dims[axis]].data
    return lambda found: xarray.DataArray(found, coords=coords, dims=dims)


def converted(
    convert: Convert | None, function: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function whose results are converted."""
    if convert is None:
        return function

    async def call(*args: Any) -> Any:
        return convert(await function(*args))

    return call


def _is(x: Any, module: str, name: str) -> bool:
    """Tell whether something is of a library's type, without importing the library."""
    found = sys.modules.get(module)
    kind = getattr(found, name, None) if found is not None else None
    return isinstance(kind, type) and isinstance(x, kind)
