"""How a frame comes into the workers' memory, and what does not fit there.

Runs on the client. What is held of a frame that is refused is released with the exception's frames,
see `fpmdask.runtime.client.inputs.letting_go`.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Sequence
from typing import Any

import dask.dataframe as dd
import pandas as pd
from dask.sizeof import sizeof
from distributed import Client, Future, futures_of

from fpmdask.errors import PartitionError
from fpmdask.runtime.client.inputs import finished, rooms, tell_done
from fpmdask.runtime.client.rows import frame_sent
from fpmdask.runtime.progress import LOAD, Pace

# Beside a frame, rows on the way to their place: cut out, received, and where they belong.
COPIES = 3
# How often it is looked how much of a frame is there.
LOOK_SECONDS = 0.2


async def sent(client: Client, frame: pd.DataFrame, workers: Sequence[str] | None) -> dd.DataFrame:
    """Send a pandas frame to workers, as `frame_sent` does.

    Raises
    ------
    PartitionError
        If it does not fit into their memory; nothing is sent then.
    """
    refuse_more(sizeof(frame), sum((await rooms(client, workers)).values()))
    made: dd.DataFrame = await frame_sent(client, frame, workers)
    return made


async def loaded(client: Client, ddf: dd.DataFrame, workers: Sequence[str] | None) -> dd.DataFrame:
    """Persist a frame and wait for it, no longer than it may fit.

    Raises
    ------
    PartitionError
        As soon as the partitions that are there, and `COPIES` of them, need more memory than the
        workers have; they hold little then, and neither spill nor pause. Also where a worker has no
        memory for a single partition.
    ChunksLostError
        If a partition is gone and cannot be made again.

    Notes
    -----
    The size of a lazy frame is known only when it is there. It is not extrapolated from the first
    partitions: those of a filtered frame may be the only ones that have rows.
    """
    room = sum((await rooms(client, workers)).values())
    held = {future.key: future for future in futures_of(ddf)}
    persisted: dd.DataFrame = client.persist(ddf)
    futures = futures_of(persisted)
    # what is there already is a part of what the workers have no room for
    room += sum((await _sizes(client, [f for f in futures if f.key in held])).values())
    there: dict[Any, int] = {}
    pace, began = Pace(), time.monotonic()
    loading = asyncio.ensure_future(finished(client, persisted))
    try:
        while not (await asyncio.wait([loading], timeout=LOOK_SECONDS))[0]:
            new = [f for f in futures if f.key not in there and f.status == "finished"]
            there |= await _sizes(client, new)
            nbytes = sum(there.values())
            # others may have let go of data since, and what partitions are made of will be free
            now = nbytes + sum((await rooms(client, workers)).values())
            refuse_more(nbytes, max(room, now), loaded=(len(there), len(futures)))
            if pace.due(LOAD, at := time.monotonic()):
                tell_done(futures, LOAD, at - began)
        await loading
    except MemoryError as error:
        traceback.clear_frames(error.__traceback__)  # they hold all the futures
        raise PartitionError(
            f"a worker has no memory for a partition ({error}); make smaller ones (repartition), "
            "or add memory"
        ) from None
    finally:
        loading.cancel()
    return persisted


def refuse_more(nbytes: int, room: float, loaded: tuple[int, int] | None = None) -> None:
    """Refuse a frame that cannot be put in order in ``room`` bytes, itself included.

    ``loaded``: how many of how many partitions these ``nbytes`` are; None: they are all.

    Raises
    ------
    PartitionError
        With the numbers.

    Examples
    --------
    >>> refuse_more(100, 400.0)
    >>> refuse_more(101, 400.0, loaded=(2, 9))
    Traceback (most recent call last):
        ...
    fpmdask.errors.PartitionError: 2 of 9 partitions have 101 bytes already and need 404 bytes to
    be put in order; the workers have room for 400; add workers or memory, or sort fewer columns
    """
    needed = (1 + COPIES) * nbytes
    if needed <= room:
        return
    found = f"rows of {nbytes} bytes need"
    if loaded is not None:
        found = f"{loaded[0]} of {loaded[1]} partitions have {nbytes} bytes already and need"
    raise PartitionError(
        f"{found} {needed} bytes to be put in order; the workers have room for {room:.0f}; add "
        "workers or memory, or sort fewer columns"
    )


async def check_fits(
    client: Client, partitions: Sequence[Future[Any]], workers: Sequence[str] | None
) -> tuple[int, float]:
    """Return the bytes of a frame, and those that are left beside so many copies of it.

    Raises
    ------
    PartitionError
        With the numbers. Pinned tasks would wait for ever on workers that pause, and Dask refuses
        tasks that take more than a worker's memory.
    """
    nbytes = sum((await _sizes(client, partitions)).values())
    needed = COPIES * nbytes
    room = sum((await rooms(client, workers)).values())
    if needed > room:
        raise PartitionError(
            f"partitions of {nbytes} bytes need {needed} bytes beside themselves to be put in "
            f"order; the workers have room for {room:.0f}; add workers or memory"
        )
    return nbytes, room - needed


async def _sizes(client: Client, futures: Sequence[Future[Any]]) -> dict[Any, int]:
    """Return key → bytes of results that are in memory."""
    if not futures:
        return {}
    scheduler: Any = client.scheduler
    keys = [future.key for future in futures]
    return {**await scheduler.nbytes(keys=keys, summary=False)}
