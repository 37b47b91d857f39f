"""Zarr arrays that several processes use: where they are, how they travel, reading their rows.

Used by clients, tasks and workers; Zarr is imported where a call needs it.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fpmdask.errors import PartitionError

# What is read at once, about, and a chunk at least: Zarr has it in memory several times meanwhile.
DECODED_NBYTES = 4 << 20
# Stores of Zarr that several processes cannot write to.
UNSHARED = frozenset({"MemoryStore", "ZipStore"})
# The attribute of arrays that iterations write to: which ones are there.
OUT_MARK = "fpmdask.out"


def is_shared(array: Any) -> bool:
    """Tell whether processes that get an array see what others write to it."""
    return not any(kind.__name__ in UNSHARED for kind in type(array.store).__mro__)


def reopened(array: Any) -> Any:
    """Return an array as its store describes it now; a folder has an absolute path.

    The path then means the same in processes that run elsewhere.

    Raises
    ------
    FileNotFoundError
        If it is not there any more.
    """
    import zarr

    store = array.store
    root = getattr(store, "root", None)
    if isinstance(root, Path) and not root.is_absolute():
        store = copy.copy(store)
        store.root = root.absolute()  # links stay: they may lead elsewhere on other machines
    return zarr.open_array(store, path=array.path, zarr_format=array.metadata.zarr_format)


def place(array: Any) -> tuple[str, str]:
    """Return in what kind of storage an array is, and where: alike for all paths to a folder."""
    from zarr.storage import WrapperStore

    store = array.store
    while isinstance(store, WrapperStore):
        store = store._store
    root = getattr(store, "root", None)
    if isinstance(root, Path):
        return "file", str((root / array.path).resolve())
    filesystem = getattr(store, "fs", None)
    if filesystem is None:
        return type(store).__name__, f"{store}/{array.path}".rstrip("/")
    protocol = filesystem.protocol
    protocols = (protocol,) if isinstance(protocol, str) else tuple(protocol)
    if "file" in protocols:
        return "file", str(Path(store.path, array.path).resolve())
    return str(protocols[0]), f"{store.path}/{array.path}".strip("/")


def write_unit(array: Any) -> tuple[int, ...]:
    """Return, per axis, what is written as one: a shard, or a chunk."""
    return tuple(map(int, getattr(array, "shards", None) or array.chunks))


def snapshot_index(begin: int, every: int | None, iteration: int) -> int | None:
    """Return where a snapshot goes; None where only the last iteration is written, as it is.

    Parameters
    ----------
    begin
        Where the first one of the call goes.
    every
        Iterations from one to the next; the last one may be fewer after the one before.

    Examples
    --------
    >>> [snapshot_index(3, 10, iteration) for iteration in (0, 10, 20, 25)]
    [3, 3, 4, 5]
    """
    return None if every is None else begin + max(0, -(-iteration // every) - 1)


class Marked:
    """A Zarr array with the mark of a call in its attributes: only who finds that writes to it.

    Parameters
    ----------
    out
        The array.
    mark
        Name of the attribute, a mapping.
    run
        What tells the call from others: "run" of that mapping.
    """

    def __init__(self, out: Any, mark: str, run: str) -> None:
        self.out, self.mark, self.run = out, mark, run

    def found(self) -> bool:
        """Tell whether the mark is where the array is for this process."""
        try:
            return bool(self.state().get("run") == self.run)
        except FileNotFoundError:
            return False

    def state(self) -> dict[str, Any]:
        """Return what the attribute has now, nothing where it is not there."""
        found = reopened(self.out).attrs.get(self.mark)
        return dict(found) if isinstance(found, Mapping) else {}

    def update(self, **state: Any) -> None:
        """Change some of the attribute's entries; those that get None are dropped."""
        after = {k: v for k, v in {**self.state(), **state}.items() if v is not None}
        attributes = reopened(self.out).attrs
        if after:
            attributes[self.mark] = after
        else:
            attributes.pop(self.mark, None)

    def elsewhere(self, names: Sequence[str]) -> str:
        """Return what to say of workers that do not find the mark."""
        return (
            f"worker {', '.join(names)} does not find what this client has written to out at "
            f"{self.out.store_path}; give an array on storage that the client and all workers "
            "reach by the same path"
        )


def packed(array: Any) -> bytes:
    """Return an array, without its data, as bytes that other processes unpack.

    Raises
    ------
    PartitionError
        If it is not there any more.
    """
    try:
        return pickle.dumps(reopened(array))
    except FileNotFoundError as error:
        raise PartitionError(f"there is no Zarr array at {array.store_path} any more") from error


class StoredRows:
    """Rows of a Zarr array, read by the process that needs them.

    Parameters
    ----------
    array
        As `packed` returned it.
    reader
        Who reads it, for messages.

    Raises
    ------
    PartitionError
        If this process cannot open it, or finds another one there.
    """

    def __init__(self, array: bytes, reader: str = "this process") -> None:
        self._read = f"{reader} cannot read a Zarr array"
        try:
            given = pickle.loads(array)
            self._read += f" at {given.store_path}"
            self._array = reopened(given)
        except Exception as error:  # whatever the store, or what it needs to be imported, raises
            raise self._error(error) from error
        if (self._array.shape, self._array.dtype) != (given.shape, given.dtype):
            found = f"{self._array.dtype} of the shape {self._array.shape}"
            raise self._error(f"it is {found} there")

    @property
    def unit(self) -> int:
        """Rows of a chunk."""
        return int(self._array.chunks[0])

    def read(self, low: int, out: np.ndarray[Any, Any]) -> None:
        """Fill an array, also a strided one, with rows from number ``low`` on.

        Raises
        ------
        PartitionError
            If they cannot be read.
        """
        from zarr.buffer import cpu

        if not out.size:
            return
        unit = self.unit
        at_once = unit * max(1, DECODED_NBYTES // max(1, unit * out[0].nbytes))
        start, end = low, low + len(out)
        while start < end:
            stop = min(end, (start // unit) * unit + at_once)
            rows = (slice(start, stop), *(slice(None),) * (out.ndim - 1))
            target = cpu.NDBuffer.from_numpy_array(out[start - low : stop - low])
            try:
                self._array.get_basic_selection(rows, out=target)
            except Exception as error:  # of the store, or of a codec
                raise self._error(error) from error
            start = stop

    def _error(self, why: Any) -> PartitionError:
        return PartitionError(
            f"{self._read} ({why}); give an array on storage that the client and all workers reach "
            "by the same path, or name the workers that do by workers="
        )
