"""Collections whose rows applications cut: how they come into the workers' memory."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeVar
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.sizeof import sizeof
from distributed import Client, Future, futures_of

from fpmdask.errors import ChunksLostError, PartitionError
from fpmdask.runtime.client.conversions import advice
from fpmdask.runtime.client.inputs import SENDINGS, finished, rooms, scattered
from fpmdask.runtime.dask_private import Alias, meta_of
from fpmdask.runtime.progress import LOAD
from fpmdask.runtime.rows import SENT, Rows
from fpmdask.runtime.zarr_storage import packed

Result = TypeVar("Result")

# NumPy inputs are cut into blocks of about this size.
BLOCK_NBYTES = 64 << 20


def is_there(x: Any) -> bool:
    """Tell whether the chunks are, or are becoming, the workers' data already."""
    try:
        return hasattr(x, "__dask_keys__") and bool(partitions_of(x))
    except KeyError:
        return False


def nbytes_of(x: Any) -> float:
    """Return the bytes of a collection, 0 where they are not known before it is there."""
    if not isinstance(x, da.Array):
        return 0.0 if is_dask_collection(x) else float(sizeof(x))
    return 0.0 if math.isnan(x.nbytes) else float(x.nbytes)


async def sent_again(
    collections: Iterable[Any],
    workers: Sequence[str] | None,
    attempt: Callable[[], Awaitable[Result]],
) -> Result:
    """Return what an attempt returns that begins with sending collections to workers.

    Where chunks are lost it is made again: what is in this process can be sent again, to any worker
    but those with names.
    """
    here = not all(is_dask_collection(x) for x in collections)
    for _ in range(SENDINGS - 1 if here and workers is None else 0):
        with suppress(ChunksLostError):
            return await attempt()
    return await attempt()


def partitions_of(persisted: Any) -> list[Future[Any]]:
    """Return the futures of a collection's chunks or partitions, in order.

    Raises
    ------
    KeyError
        If one is no future.
    """
    futures = {future.key: future for future in futures_of(persisted)}
    graph, found = None, []
    for key in _flat(persisted.__dask_keys__()):
        while key not in futures:  # a frame's expressions have names of their own for them
            graph = graph or persisted.__dask_graph__()
            alias = graph[key]
            if not isinstance(alias, Alias):
                raise KeyError(key)
            key = alias.target
        found.append(futures[key])
    return found


def _flat(keys: Any) -> Any:
    for key in keys:
        yield from _flat(key) if isinstance(key, list) else [key]


def array_of_rows(x: Any) -> Any:
    """Return an array that can be cut, as a dask one where it is no plain NumPy array.

    Raises
    ------
    PartitionError
        For what is none, or has no rows.
    """
    if not isinstance(x, da.Array | np.ndarray):
        raise PartitionError(f"found a {type(x).__name__}, which is no array; {advice(x)}")
    if not x.ndim:
        raise PartitionError("found an array of no dimensions; there are no rows to share out")
    if isinstance(x, np.ndarray) and type(x) is not np.ndarray:  # masked ones, for one
        return da.from_array(x, asarray=False)
    return x


def one_chunk_beside(x: Any, axis: int | None) -> Any:
    """Return an array with one chunk along all axes but one.

    Raises
    ------
    PartitionError
        Where Dask cannot put chunks together.
    """
    if isinstance(x, np.ndarray) or not x.ndim:
        return x
    try:
        return x.rechunk({n: -1 for n in range(x.ndim) if n != axis})
    except ValueError as error:
        raise PartitionError(
            "blocks have all of an array on the other axes, whose chunks cannot be put together: "
            f"{error}; x.compute_chunk_sizes() finds unknown ones"
        ) from error


async def array_in_memory(
    client: Client,
    x: Any,
    workers: Sequence[str] | None,
    axis: int = 0,
    block_nbytes: int = BLOCK_NBYTES,
) -> da.Array:
    """Return an array whose chunks are in the workers' memory.

    Parameters
    ----------
    x
        A dask array, which is persisted, or a NumPy one, which is sent to the workers as they have
        room.
    workers
        Names of those that may get a NumPy one, None for all.
    axis, block_nbytes
        Where that is cut, and the bytes of a block of it, about.

    Raises
    ------
    ChunksLostError
        If a chunk is gone and cannot be made again.
    """
    if isinstance(x, np.ndarray):
        return await _sent(client, x, workers, axis, block_nbytes)
    persisted: da.Array = client.persist(x)
    await finished(client, persisted, LOAD)
    return persisted


async def _sent(
    client: Client, x: np.ndarray, workers: Sequence[str] | None, axis: int, block_nbytes: int
) -> da.Array:
    rows = x.shape[axis]
    if not x.size:
        found: da.Array = client.persist(da.from_array(x, chunks=-1))
        await finished(client, found)
        return found
    count = len(await rooms(client, workers))
    most = max(1, min(block_nbytes * rows // x.nbytes, -(-rows // count)))
    name = f"{SENT}{uuid4().hex}"
    edges = [*range(0, rows, most), rows]
    before, after = (0,) * axis, (0,) * (x.ndim - axis - 1)
    blocks = {
        (name, *before, n, *after): np.ascontiguousarray(
            x[(slice(None),) * axis + (slice(low, high),)]
        )
        for n, (low, high) in enumerate(pairwise(edges))
    }
    futures = await scattered(client, blocks, workers)
    chunks = [(length,) for length in x.shape]
    chunks[axis] = tuple(high - low for low, high in pairwise(edges))
    return da.Array(futures, name, chunks=tuple(chunks), dtype=x.dtype)


def rows_of_array(x: da.Array, axis: int | None) -> Rows:
    """Return what a run is told of an array that is in memory."""
    meta = meta_of(x)
    plain = type(meta) is np.ndarray and not x.dtype.hasobject and x.dtype.names is None
    keys, lengths = (
        tuple(_flat(x.__dask_keys__())),
        tuple(map(int, x.chunks[axis or 0])) if x.ndim else (1,),
    )
    shape = tuple(0 if n == axis else int(length) for n, length in enumerate(x.shape))
    if axis is None or not plain:
        return Rows(keys, lengths, axis)
    return Rows(keys, lengths, axis, x.dtype.str, shape)


def rows_of_zarr(x: Any) -> Rows:
    """Return what a run is told of a Zarr array that workers read themselves."""
    shape = (0, *map(int, x.shape[1:]))
    return Rows((), (int(x.shape[0]),), 0, x.dtype.str, shape, packed(x))


async def frame_in_memory(client: Client, x: Any, workers: Sequence[str] | None) -> Any:
    """Return a frame or series whose partitions are in the workers' memory.

    A dask one is persisted, a pandas one is sent by `frame_sent`.

    Raises
    ------
    ChunksLostError
        If a partition is gone and cannot be made again.
    """
    if not hasattr(x, "__dask_keys__"):
        return await frame_sent(client, x, workers)
    # persisting what is there would list it under further keys: twice as many bytes
    persisted = x if is_there(x) else client.persist(x)
    await finished(client, persisted, LOAD)
    return persisted


async def frame_sent(client: Client, x: Any, workers: Sequence[str] | None) -> Any:
    """Send a pandas frame to workers, in blocks of rows; return it as a dask one, dtypes as is.

    Not by `dask.dataframe.from_pandas`: its rows go through the scheduler, as a part of the graph.
    """
    import dask.dataframe as dd

    nbytes, count = sizeof(x), len(await rooms(client, workers))
    most = max(1, min(-(-len(x) // count), BLOCK_NBYTES * len(x) // max(1, nbytes)))
    edges = [*range(0, len(x), most), len(x)]
    parts = [x.iloc[low:high] for low, high in pairwise(edges)] or [x]
    name = f"{SENT}{uuid4().hex}"
    blocks = {(name, n): part for n, part in enumerate(parts)}
    futures = await scattered(client, blocks, workers)
    unknown = (None,) * (len(blocks) + 1)
    return dd.from_graph(futures, x.iloc[:0], unknown, [*blocks], name)


def frame_of(
    parts: Sequence[Future[Any]], meta: Any, name: str, divisions: tuple[Any, ...] | None
) -> Any:
    """Return a frame of partitions in memory; its divisions may be unknown."""
    from dask.dataframe import from_graph

    keys = [part.key for part in parts]
    graph = dict(zip(keys, parts, strict=True))
    return from_graph(graph, meta, divisions or (None,) * (len(parts) + 1), keys, name)
