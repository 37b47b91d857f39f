"""Collections whose chunks are on given workers, and where the chunks of one are."""

import asyncio
from itertools import pairwise
from uuid import uuid4

import dask.array as da
import dask.dataframe as dd
import numpy as np

from fpmdask.runtime.client.rows import partitions_of


def _itself(block):
    return block


async def _chunks(c, workers, blocks, homes, ndim):
    name = f"given-{uuid4().hex}"
    found = {}
    for n, (block, home) in enumerate(zip(blocks, homes, strict=True)):
        key = (name, n, *[0] * (ndim - 1))
        where = [workers[home].address]
        found[key] = c.submit(_itself, block, key=key, workers=where, allow_other_workers=True)
    await asyncio.gather(*found.values())
    return name, found


def _blocks(values, lengths):
    rows = getattr(values, "iloc", values)
    return [rows[a:b] for a, b in pairwise(np.cumsum([0, *lengths]).tolist())]


async def array_on(c, workers, values, lengths, homes, meta=None):
    """Return a dask array whose chunks are on these workers."""
    blocks = _blocks(values, lengths)
    name, chunks = await _chunks(c, workers, blocks, homes, values.ndim)
    sizes = (tuple(lengths), *((n,) for n in values.shape[1:]))
    return da.Array(chunks, name, sizes, meta=values[:0] if meta is None else meta)


async def frame_on(c, workers, frame, lengths, homes, known=True):
    """Return a dask dataframe or series whose partitions are on these workers."""
    blocks = _blocks(frame, lengths)
    _, chunks = await _chunks(c, workers, blocks, homes, 1)
    divisions = (*(block.index[0] for block in blocks), frame.index[-1])
    divisions = divisions if known else (None,) * len(divisions)
    return dd.from_graph(chunks, frame.iloc[:0], divisions, [*chunks], "given")


def keys_in_order(x):
    """Return the keys of a collection's chunks."""
    return [future.key for future in partitions_of(x)]


async def rows_on(c, x):
    """Return worker name → (rows, chunks) of a collection, and the lengths of its chunks."""
    futures = partitions_of(x)
    if hasattr(x, "chunks"):
        lengths = list(x.chunks[0])
    else:
        lengths = await c.gather([c.submit(len, future, pure=False) for future in futures])
    places = await c.who_has(futures)
    known = (await c.scheduler.identity(n_workers=-1))["workers"]
    found = {str(worker["name"]): (0, 0) for worker in known.values()}
    for future, length in zip(futures, lengths, strict=True):
        (holder,) = places[future.key]
        rows, chunks = found[str(known[holder]["name"])]
        found[str(known[holder]["name"])] = rows + length, chunks + 1
    return found, lengths
