"""Products written to a Zarr array tile by tile: matrices larger than the cluster's memory."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import dask
import dask.array as da
from distributed import Client

from fpmdask.apps.matmul.arrays import Follow, check, product
from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.coordinator import config, proxy
from fpmdask.errors import PartitionError

MARK = "fpmdask.matmul"
VERSION = 1
# Of the workers' free memory, what the inputs and twice the tile of C may fill.
FILL = 0.5
# Stores of Zarr that several processes cannot write to.
UNSHARED = frozenset({"MemoryStore", "ZipStore"})


def check_out(out: Any, spec: MatmulSpec) -> None:
    """Refuse what C cannot be written to.

    Raises
    ------
    PartitionError
        For anything but a writable Zarr array of C's shape and dtype, in a store that several
        processes can write to.
    """
    arrays = () if (zarr := sys.modules.get("zarr")) is None else (zarr.Array,)
    if not isinstance(out, arrays):
        raise PartitionError(f"out is a {type(out).__name__}; give a zarr.Array, or None")
    shape = (spec.shape[0], spec.shape[2])
    if tuple(out.shape) != shape:
        raise PartitionError(f"out has the shape {tuple(out.shape)}; C has {shape}")
    if out.dtype != spec.dtype:
        raise PartitionError(f"out has dtype {out.dtype}; C has {spec.dtype}")
    store = type(out.store).__name__
    if any(kind.__name__ in UNSHARED for kind in type(out.store).__mro__):
        raise PartitionError(
            f"out is in a {store}, of which workers in other processes write copies; give an array "
            "in a store that all workers reach, such as a folder"
        )
    if out.read_only:
        raise PartitionError("out is read-only; open it with mode 'r+'")


def check_apart(out: Any, *inputs: Any) -> None:
    """Refuse to write C over an input that is read meanwhile.

    Raises
    ------
    PartitionError
        If the graph of an input holds the same Zarr array, by the place that it tells. O(tasks).
    """
    for x in inputs:
        for task in dict(getattr(x, "dask", {})).values():
            found = getattr(task, "value", task)
            if isinstance(found, type(out)) and _place(found) == _place(out):
                raise PartitionError(
                    f"out is {_place(out)}, which an input is read from; give another array"
                )


def _place(array: Any) -> str:
    """Return where a Zarr array is, alike for folders by whatever kind of store."""
    root = getattr(array.store, "root", None) or getattr(array.store, "path", array.store)
    return f"{root}/{array.path}".rstrip("/")


def step(out: Any) -> tuple[int, int]:
    """Return the rows and columns that are written as one: those of a shard, or of a chunk."""
    rows, columns = getattr(out, "shards", None) or out.chunks
    return int(rows), int(columns)


def tile_shape(spec: MatmulSpec, unit: tuple[int, int], nbytes: float) -> tuple[int, int]:
    """Return rows and columns of C that are computed at once.

    Parameters
    ----------
    spec : MatmulSpec
        The whole product.
    unit : tuple of int
        Rows and columns that are written as one; tiles consist of whole ones.
    nbytes : float
        Memory for the tile's rows of A, its columns of B and twice its elements of C.

    Returns
    -------
    tuple of int
        At most the shape of C. Columns are halved first: A is then read once, and B once per row
        of tiles.

    Raises
    ------
    PartitionError
        If one unit does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> axis = (8,)
    >>> spec = MatmulSpec((8, 8, 8), np.dtype("f8"), (axis, axis), (axis, axis), "a", "b")
    >>> tile_shape(spec, (2, 2), 1500), tile_shape(spec, (2, 2), 500)
    ((8, 4), (2, 2))
    """
    height, inner, width = spec.shape

    def needed(rows: int, columns: int) -> int:
        return (inner * (rows + columns) + 2 * rows * columns) * spec.dtype.itemsize

    def halved(length: int, least: int) -> int:
        units = -(-length // least)
        return min(length, least * -(-units // 2))

    rows, columns = height, width
    while needed(rows, columns) > nbytes:
        if columns > unit[1]:
            columns = halved(columns, unit[1])
        elif rows > unit[0]:
            rows = halved(rows, unit[0])
        else:
            raise PartitionError(
                f"{rows} × {columns} elements of C, which out writes as one, need "
                f"{needed(rows, columns)} bytes with their rows of A and columns of B; the workers "
                f"have {nbytes:.0f} for them: add workers or memory, or give out smaller chunks"
            )
    return rows, columns


async def free_nbytes(client: Client, names: Sequence[str] | None) -> float:
    """Return the bytes that the workers together may still take; inf where one has no limit."""
    scheduler: Any = client.scheduler
    target = float(config.setting("spill-target"))
    known = (await scheduler.identity(n_workers=-1))["workers"]
    free = 0.0
    for address, worker in known.items():
        if names is None or str(worker["name"]) in names or address in names:
            limit = worker["memory_limit"] or math.inf
            free += max(0.0, target * limit - worker["metrics"].get("memory", 0))
    return free


class Finished:
    """Which tiles are in `out`, kept in its attributes until all are.

    Parameters
    ----------
    out
        The Zarr array.
    identity
        Of the inputs: tiles of another product do not count.
    shape
        Of a tile; that of the run which began is kept.
    """

    def __init__(self, out: Any, identity: Sequence[Any], shape: tuple[int, int]) -> None:
        self._out = out
        found = out.attrs.get(MARK)
        same = (
            isinstance(found, Mapping)
            and found.get("version") == VERSION
            and list(found.get("product", ())) == list(identity)
        )
        begun: Mapping[str, Any] = found if same and isinstance(found, Mapping) else {}
        rows, columns = begun.get("tile", shape)
        self.shape = int(rows), int(columns)
        self._state: dict[str, Any] = {
            "version": VERSION,
            "product": list(identity),
            "tile": list(self.shape),
            "done": [list(tile) for tile in begun.get("done", ())],
        }
        if not same:
            self.all()  # what is written now is over tiles of the other product

    def __contains__(self, corner: tuple[int, int]) -> bool:
        return list(corner) in self._state["done"]

    def add(self, corner: tuple[int, int]) -> None:
        """Note that the tile at `corner` is written."""
        self._state["done"].append(list(corner))
        self._out.attrs[MARK] = self._state

    def all(self) -> None:
        """Note that no product is under way: any would be computed anew."""
        self._out.attrs.pop(MARK, None)


async def multiply_into(
    client: Client, a: Any, b: Any, out: Any, request: dict[str, Any], follow: Follow
) -> da.Array:
    """Write C = A·B into `out`, tile by tile; return it as a lazy dask array.

    A tile is a balanced product of its own. One that is written is not computed again when the
    same call is made after a failure.
    """
    spec = check(a, b)
    # of one element, for the workers: whether a tile fits is asked once its size is known
    await proxy.check(client, "matmul", {**request, "product": check(a[:1], b[:, :1]).to_json()})
    shape = tile_shape(spec, step(out), FILL * await free_nbytes(client, request["workers"]))
    identity = [_name(a), _name(b), list(spec.shape), spec.dtype.str]
    done = Finished(out, identity, shape)
    height, _, width = spec.shape
    top, rows, columns, c = -1, None, None, None
    try:
        for row in range(0, height, done.shape[0]):
            for column in range(0, width, done.shape[1]):
                if (row, column) in done:
                    continue
                if row != top:
                    rows = None  # makes room for the next
                    top, rows = row, a[row : row + done.shape[0]]
                columns = b[:, column : column + done.shape[1]]
                tile = {**request, "product": check(rows, columns).to_json()}
                rows, columns, c = await product(client, rows, columns, tile, follow)
                columns = None
                await _write(client, c, out, row, column)
                c = None
                done.add((row, column))
    except BaseException as error:
        # an exception's frames hold what they name, and the client holds that of a failed task
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        del rows, columns, c  # this frame is not cleared
    done.all()
    written: da.Array = da.from_zarr(out)
    return written


async def _write(client: Client, c: da.Array, out: Any, row: int, column: int) -> None:
    """Write a tile; each unit of `out` by one task, so that none needs a lock."""
    aligned = c.rechunk(step(out))
    region = (slice(row, row + c.shape[0]), slice(column, column + c.shape[1]))
    writing = da.store(aligned, out, regions=region, lock=False, compute=False)
    await client.compute(writing)


def _name(x: Any) -> str:
    return str(x.name) if isinstance(x, da.Array) else f"numpy-{dask.base.tokenize(x)}"
