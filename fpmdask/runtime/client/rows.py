"""Collections whose rows applications cut: brought into the workers' memory, their lengths known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from distributed import Client, futures_of

from fpmdask.errors import PartitionError
from fpmdask.runtime.client.inputs import finished, rooms, scattered
from fpmdask.runtime.dask_private import meta_of
from fpmdask.runtime.rows import Rows

# NumPy inputs are cut into blocks of about this size.
BLOCK_NBYTES = 64 << 20


def is_there(x: Any) -> bool:
    """Tell whether the chunks are, or are becoming, the workers' data already."""
    if not hasattr(x, "__dask_keys__"):
        return False
    keys = [*_flat(x.__dask_keys__())]
    return {future.key for future in futures_of(x)}.issuperset(keys)


def _flat(keys: Any) -> Any:
    for key in keys:
        yield from _flat(key) if isinstance(key, list) else [key]


def keys_of(x: Any) -> list[Any]:
    """Return the keys of a collection's chunks, in order."""
    return [*_flat(x.__dask_keys__())]


async def array_in_memory(
    client: Client, x: Any, workers: Sequence[str] | None, axis: int = 0
) -> da.Array:
    """Return an array whose chunks, of known lengths along an axis, are in the workers' memory.

    Parameters
    ----------
    x
        A dask array, which is persisted, or a NumPy one, which is sent to the workers as they have
        room.
    workers
        Names of those that may get a NumPy one, None for all.

    Raises
    ------
    ChunksLostError
        If a chunk is gone and cannot be made again.
    """
    if isinstance(x, np.ndarray):
        return await _sent(client, x, workers, axis)
    persisted: da.Array = client.persist(x)
    await finished(client, persisted)
    if any(math.isnan(size) for size in persisted.chunks[axis]):
        futures = {future.key: future for future in futures_of(persisted)}
        ordered = [futures[key] for key in keys_of(persisted)]
        lengths = client.map(_length, ordered, axis=axis, pure=False)
        chunks = list(persisted.chunks)
        chunks[axis] = tuple(await client.gather(lengths))
        meta = meta_of(persisted)
        persisted = da.Array(persisted.dask, persisted.name, chunks=tuple(chunks), meta=meta)
    return persisted


def _length(chunk: Any, axis: int) -> int:
    return int(chunk.shape[axis])


async def _sent(
    client: Client, x: np.ndarray, workers: Sequence[str] | None, axis: int
) -> da.Array:
    rows = x.shape[axis]
    if not x.size:
        found: da.Array = client.persist(da.from_array(x, chunks=-1))
        await finished(client, found)
        return found
    count = len(await rooms(client, workers))
    most = max(1, min(BLOCK_NBYTES * rows // max(1, x.nbytes), -(-rows // count)))
    name = f"fpmdask-scattered-{uuid4().hex}"
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
    keys, lengths = tuple(keys_of(x)), tuple(map(int, x.chunks[axis or 0])) if x.ndim else (1,)
    shape = tuple(0 if n == axis else int(length) for n, length in enumerate(x.shape))
    if axis is None or not plain:
        return Rows(keys, lengths, axis)
    return Rows(keys, lengths, axis, x.dtype.str, shape)


async def frame_lengths(client: Client, persisted: Any) -> list[int]:
    """Return the rows of each partition of a frame that is in memory."""
    futures = {future.key: future for future in futures_of(persisted)}
    ordered = [futures[key] for key in keys_of(persisted)]
    found: list[int] = await client.gather(client.map(len, ordered, pure=False))
    return found


def check_rows(lengths: Sequence[int], found: int, what: str) -> None:
    """Refuse a collection that has another number of rows.

    Raises
    ------
    PartitionError
        With both numbers.
    """
    if sum(lengths) != found:
        raise PartitionError(
            f"{what} has {sum(lengths)} rows, the first collection {found}; give collections with "
            "the same rows"
        )
