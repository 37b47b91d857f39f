"""What a short function says of chunks in memory, also where a worker has stopped that holds some.

In the client's process, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from distributed import Client, Future

from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.rows import partitions_of
from fpmdask.runtime.client.stages import Stages, token
from fpmdask.runtime.dask_private import Task, TaskRef
from fpmdask.runtime.patience import SILENT_SECONDS
from fpmdask.runtime.rows import Rows


async def rows_of_frame(
    client: Client, persisted: Any, follow: proxy.Follow, request: dict[str, Any]
) -> Rows:
    """Return what a run is told of a frame that is in memory; see `facts_of`."""
    parts = partitions_of(persisted)
    lengths = await facts_of(client, len, parts, follow, request)
    return Rows(tuple(part.key for part in parts), tuple(lengths))


async def facts_of(
    client: Client,
    function: Callable[[Any], Any],
    chunks: Sequence[Future[Any]],
    follow: proxy.Follow,
    request: dict[str, Any],
) -> list[Any]:
    """Return what a function that takes no time returns of each of some chunks in memory.

    Where that takes longer than a worker may be silent, a run looks after those that hold them:
    who has stopped is not waited for, and its chunks are made again.

    Parameters
    ----------
    follow, request
        Of the call, which holds no workers now.

    Raises
    ------
    CoordinatorError, ChunksLostError
        As `Stages` does.
    """
    asked = client.map(function, chunks, pure=False)
    answers = asyncio.ensure_future(client.gather(asked))
    try:
        if (await asyncio.wait([answers], timeout=SILENT_SECONDS))[0]:
            found: list[Any] = await answers
            return found
    finally:
        answers.cancel()
        for future in asked:  # what was cancelled still holds them
            future.release()
    return await proxy.leased(
        follow, "load", request, partial(_looked_after, client, function, chunks)
    )


async def _looked_after(
    client: Client,
    function: Callable[[Any], Any],
    chunks: Sequence[Future[Any]],
    request: Mapping[str, Any],
) -> list[Any]:
    stages = Stages(client, request["within"])
    return await stages.again(partial(_asked, stages, function, chunks))


async def _asked(
    stages: Stages, function: Callable[[Any], Any], chunks: Sequence[Future[Any]]
) -> list[Any]:
    name, places = token("facts"), await stages.places(chunks)
    keys = [(name, n) for n in range(len(chunks))]
    tasks = {
        key: Task(key, function, TaskRef(chunk.key))
        for key, chunk in zip(keys, chunks, strict=True)
    }
    return await stages.asked(name, tasks, dict(zip(keys, places, strict=True)), chunks, {})
