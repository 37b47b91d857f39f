"""What is short to tell of chunks in memory, also where a worker has stopped that holds some.

In the client's process, on its event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, cycle, islice, pairwise
from typing import Any

import dask
import dask.array as da
from dask.core import flatten
from distributed import Client, Future, futures_of

from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.inputs import finished
from fpmdask.runtime.client.rows import is_there, partitions_of, rows_of_array
from fpmdask.runtime.client.stages import Stages, token
from fpmdask.runtime.dask_private import GraphNode, Task, TaskRef, meta_of
from fpmdask.runtime.patience import SILENT_SECONDS
from fpmdask.runtime.progress import LOAD
from fpmdask.runtime.rows import Rows


async def rows_of(
    client: Client,
    collections: Sequence[Any],
    axes: Sequence[int | None],
    follow: proxy.Follow,
    request: dict[str, Any],
) -> tuple[list[Any], tuple[Rows, ...]]:
    """Return arrays and frames in memory, with known lengths, and what a run is told of each.

    All lengths that are not known are asked for at once; see `facts_of`.

    Parameters
    ----------
    axes
        Where each is cut, None for an array that is given as a whole.
    """
    there, rows = list(collections), dict[int, Rows]()
    unknown = {n: partitions_of(x) for n, x in enumerate(there) if not _is_known(x, axes[n] or 0)}
    shapes = await facts_of(client, _shape, [*unknown.values()], follow, request)
    for (n, chunks), found in zip(unknown.items(), shapes, strict=True):
        lengths = tuple(shape[axes[n] or 0] for shape in found)
        if isinstance(x := there[n], da.Array):
            sizes = [lengths if d == (axes[n] or 0) else own for d, own in enumerate(x.chunks)]
            there[n] = da.Array(x.dask, x.name, chunks=tuple(sizes), meta=meta_of(x))
        else:
            rows[n] = Rows(tuple(chunk.key for chunk in chunks), lengths, axes[n])
    every = [rows.get(n) or rows_of_array(x, axes[n]) for n, x in enumerate(there)]
    return there, tuple(every)


def _is_known(x: Any, axis: int) -> bool:
    """Tell whether the lengths of an array's chunks along an axis are known; a frame's are not."""
    return isinstance(x, da.Array) and not (x.ndim and any(map(math.isnan, x.chunks[axis])))


def _shape(chunk: Any) -> tuple[int, ...]:
    return tuple(map(int, chunk.shape))


async def divisions_of(
    client: Client,
    frames: Sequence[Sequence[Future[Any]]],
    follow: proxy.Follow,
    request: dict[str, Any],
) -> list[tuple[Any, ...] | None]:
    """Return the divisions of frames in memory, None where the indices of partitions overlap.

    All at once; see `facts_of`.

    Parameters
    ----------
    frames
        The partitions of each.
    """
    return [*map(_divisions, await facts_of(client, _ends, frames, follow, request))]


def _divisions(ends: Sequence[tuple[Any, Any] | None]) -> tuple[Any, ...] | None:
    some = [one for one in ends if one is not None]
    if len(some) < len(ends):
        return None
    try:
        apart = all(left[1] < right[0] for left, right in pairwise(some))
        apart = apart and all(first <= last for first, last in some)
    except TypeError:
        return None
    return (*(first for first, _ in some), some[-1][1]) if apart else None


def _ends(part: Any) -> tuple[Any, Any] | None:
    """Return the first and the last label of an index in order, None for others."""
    index = getattr(part, "index", None)
    if index is None or not len(index) or not index.is_monotonic_increasing:
        return None
    return index[0], index[-1]


async def facts_of(
    client: Client,
    function: Callable[[Any], Any],
    collections: Sequence[Sequence[Future[Any]]],
    follow: proxy.Follow,
    request: dict[str, Any],
) -> list[list[Any]]:
    """Return what a function that takes no time returns of each chunk of collections in memory.

    Where that takes longer than a worker may be silent, a run looks after those that hold them:
    who has stopped is not waited for, and its chunks are made again.

    Parameters
    ----------
    collections
        The chunks of each.
    follow, request
        Of the call; the run is within the one that the request names.

    Raises
    ------
    CoordinatorError, ChunksLostError
        As `Stages` does.
    """
    chunks = [*chain.from_iterable(collections)]
    asked = client.map(function, chunks, pure=False) if chunks else []
    try:
        found = await _soon(client, asked)
    finally:
        for future in asked:  # what was cancelled still holds them
            future.release()
    if found is None:
        stage = partial(_asked, function, chunks)
        found = await proxy.leased(follow, "load", request, partial(_looked_after, client, stage))
    return _parted(found, [*map(len, collections)])


async def values_of(
    client: Client, collections: Sequence[Any], follow: proxy.Follow, request: dict[str, Any]
) -> list[Any]:
    """Return arrays and series of few bytes, of one axis, as `dask.compute` does.

    Where that takes longer than a worker may be silent, a run looks after all workers: once one of
    them has stopped, the others begin again.

    Raises
    ------
    CoordinatorError, ChunksLostError
        As `Stages` does.
    """
    begun = [x if is_there(x) else client.persist(x) for x in collections]
    counts = [len(partitions_of(x)) for x in begun]
    futures = [*chain.from_iterable(map(partitions_of, begun))]
    del begun  # what is begun again must be forgotten before
    found = await _soon(client, futures)
    if found is None:
        stage = partial(_computed, collections, futures)
        found = await proxy.leased(follow, "load", request, partial(_looked_after, client, stage))
    made = zip(collections, _parted(found, counts), strict=True)
    ends = [(x.__dask_postcompute__(), chunks) for x, chunks in made]
    return [join(chunks, *more) for (join, more), chunks in ends]


def _parted(found: Iterable[Any], counts: Sequence[int]) -> list[list[Any]]:
    rest = iter(found)
    return [[*islice(rest, count)] for count in counts]


async def _soon(client: Client, futures: Sequence[Future[Any]]) -> list[Any] | None:
    """Return results, None where that takes longer than a worker may be silent."""
    if not futures:
        return []
    answers = asyncio.ensure_future(_gathered(client, futures))
    try:
        done, _ = await asyncio.wait([answers], timeout=SILENT_SECONDS)
        return await answers if done else None
    finally:
        answers.cancel()


async def _gathered(client: Client, futures: Sequence[Future[Any]]) -> list[Any]:
    await finished(client, futures)
    found: list[Any] = await client.gather([*futures])
    return found


async def _looked_after(
    client: Client,
    stage: Callable[[Stages], Awaitable[list[Any]]],
    request: Mapping[str, Any],
) -> list[Any]:
    stages = Stages(client, request["within"])
    stages.stage = LOAD
    return await stages.again(partial(stage, stages))


async def _asked(
    function: Callable[[Any], Any], chunks: Sequence[Future[Any]], stages: Stages
) -> list[Any]:
    name, places = token("facts"), await stages.places(chunks)
    keys = [(name, n) for n in range(len(chunks))]
    tasks = {
        key: Task(key, function, TaskRef(chunk.key))
        for key, chunk in zip(keys, chunks, strict=True)
    }
    return await stages.asked(name, tasks, dict(zip(keys, places, strict=True)), chunks, {})


async def _computed(
    collections: Sequence[Any], begun: list[Future[Any]], stages: Stages
) -> list[Any]:
    """Return the chunks of collections: those that were begun, and are forgotten where that fails.

    The next time they are computed by workers that go on.
    """
    given = futures_of(collections)
    await stages.places([] if begun else given)  # what only a stopped one holds is made again
    homes: dict[Any, str] = {worker: worker for worker in stages.threads}
    if begun:
        going = [*begun]
        begun.clear()
        try:
            return await stages.watched(_gathered(stages.client, going), homes, going)
        finally:
            for future in {*going}.difference(given):
                future.release()
    graph: dict[Any, GraphNode] = {}
    # each alone: of an array and a frame Dask makes one graph, in which both are the array
    lazy = [x for collection in collections for x in dask.optimize(collection)]
    for x in lazy:
        graph |= {k: v for k, v in x.__dask_graph__().items() if not isinstance(v, Future)}
    keys = chain.from_iterable(flatten(x.__dask_keys__()) for x in lazy)
    name = token("values")
    tasks = {(name, n): Task((name, n), _itself, TaskRef(key)) for n, key in enumerate(keys)}
    # any of the workers may make what these tasks need
    homes |= dict(zip(tasks, cycle(sorted(stages.threads)), strict=False))
    return await stages.asked(name, tasks, homes, given, graph)


def _itself(chunk: Any) -> Any:
    return chunk
