"""The Zarr array that C is written to: what it may be, and where it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fpmdask.apps.matmul.written import MARK
from fpmdask.errors import PartitionError

# Stores of Zarr that several processes cannot write to.
UNSHARED = frozenset({"MemoryStore", "ZipStore"})


def check_out(out: Any, sides: Sequence[int], index: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    """Return `out` as it is in its store, or refuse what C cannot be written to.

    Parameters
    ----------
    out
        What the caller gave.
    sides : sequence of int
        Rows and columns of C.
    index : sequence
        As `as_matrices` returns it: an axis with 0 is not in `out`.
    dtype : numpy.dtype
        Of C.

    Returns
    -------
    zarr.Array
        Opened anew: the caller's knows the attributes of when it was opened.

    Raises
    ------
    PartitionError
        For anything but a writable Zarr array of C's shape and dtype, in a store that several
        processes can write to.
    """
    arrays = () if (zarr := sys.modules.get("zarr")) is None else (zarr.Array,)
    if not isinstance(out, arrays):
        raise PartitionError(f"out is a {type(out).__name__}; give a zarr.Array, or None")
    shape = tuple(size for size, at in zip(sides, index, strict=True) if at != 0)
    _check_like(out, shape, dtype)
    store = type(out.store).__name__
    if any(kind.__name__ in UNSHARED for kind in type(out.store).__mro__):
        raise PartitionError(
            f"out is in a {store}, of which workers in other processes write copies; give an array "
            "in a store that all workers reach, such as a folder"
        )
    if out.read_only:
        raise PartitionError("out is read-only; open it with mode 'r+'")
    try:
        opened = _opened(out, out.store)
    except FileNotFoundError as error:
        raise PartitionError(f"out is not at {out.store_path} any more; make it again") from error
    _check_like(opened, shape, dtype)
    # with the next attribute, the caller's would write back what it remembers of an earlier call
    out.metadata.attributes.pop(MARK, None)
    return opened


def _check_like(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if tuple(out.shape) != shape:
        raise PartitionError(f"out has the shape {tuple(out.shape)}; C has {shape}")
    if out.dtype != dtype:
        raise PartitionError(f"out has dtype {out.dtype}; C has {dtype}")


def _opened(array: Any, store: Any) -> Any:
    """Return the same array, with what `store` says of it now."""
    import zarr

    return zarr.open_array(store, path=array.path, zarr_format=array.metadata.zarr_format)


def check_apart(out: Any, *inputs: Any) -> None:
    """Refuse to write C over an input that is read meanwhile.

    Raises
    ------
    PartitionError
        If the graph of an input holds the same Zarr array, by its place. O(tasks).
    """
    for x in inputs:
        for task in dict(getattr(x, "dask", {})).values():
            found = getattr(task, "value", task)
            if isinstance(found, type(out)) and place(found) == place(out):
                raise PartitionError(
                    f"out is {place(out)}, which an input is read from; give another array"
                )


def place(array: Any) -> str:
    """Return where a Zarr array is, alike for folders by whatever kind of store."""
    root = getattr(array.store, "root", None) or getattr(array.store, "path", array.store)
    return f"{root}/{array.path}".rstrip("/")


def step(out: Any) -> tuple[int, ...]:
    """Return, per axis, what is written as one: a shard, or a chunk."""
    return tuple(map(int, getattr(out, "shards", None) or out.chunks))


class Target:
    """`out` as tasks write to it.

    Parameters
    ----------
    out
        The array as `check_out` returned it.
    run
        What `Written` put into its attributes.
    index
        An axis of C with 0 is not in `out`.
    """

    def __init__(self, out: Any, run: str, index: Sequence[Any]) -> None:
        self.out, self.run, self.index = out, run, tuple(index)

    @property
    def unit(self) -> tuple[int, int]:
        """Rows and columns of C that are written as one."""
        sizes = iter(step(self.out))
        rows, columns = (1 if at == 0 else next(sizes) for at in self.index)
        return rows, columns

    def __setitem__(self, region: Any, block: np.ndarray) -> None:
        self.out[region] = block
