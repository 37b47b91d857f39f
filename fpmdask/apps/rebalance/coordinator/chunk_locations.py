"""Chunk locations when an attempt begins: who holds which chunk, and who has room."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fpmdask.apps.rebalance.spec import RebalanceSpec
from fpmdask.runtime.coordinator.chunks import (
    check_reachable,
    free_nbytes_of,
    wait_for_chunks,
    without_fpmdask,
)
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.team import LostWorker
from fpmdask.runtime.rows import Span, held


@dataclass(frozen=True)
class ChunkLocations:
    """Chunk locations: who holds which chunk, and who has room.

    Parameters
    ----------
    members
        Workers that take part.
    places, nbytes
        Key → its holders, and its bytes.
    bare
        Holders without fpmdask.
    free
        Worker → the bytes that a plan may put there.
    edges, owners
        Of the chunks of the collection that has most bytes, and who has each.
    spans
        Worker → its rows of that; None: those of workers that take no part.
    """

    members: tuple[str, ...]
    places: Mapping[Any, Sequence[str]]
    nbytes: Mapping[Any, int]
    bare: Sequence[str]
    free: Mapping[str, float]
    edges: Sequence[int]
    owners: Sequence[str | None]
    spans: Mapping[str | None, list[Span]]


async def look_up(context: RunContext, spec: RebalanceSpec) -> ChunkLocations:
    """Wait for all chunks and find out where they are.

    Raises
    ------
    LostWorker
        If no worker is left.
    """
    keys = [key for one in spec.inputs for key in one.keys]
    places = await wait_for_chunks(context, keys)
    await check_reachable(context, places)
    bare = without_fpmdask(context.scheduler, places)
    members = tuple(context.workers)
    if not members:
        raise LostWorker("no worker is left")
    tasks = context.scheduler.tasks
    nbytes = {
        # Dask counts what a chunk takes now: one number for a chunk that repeats it, as of da.ones
        key: max(rows * one.row_nbytes, tasks[key].nbytes if key in tasks else 0)
        for one in spec.inputs
        for key, rows in zip(one.keys, one.lengths, strict=True)
    }
    free = await free_nbytes_of(context, members)
    lead = max(spec.inputs, key=lambda one: sum(nbytes[key] for key in one.keys))
    owners = await asyncio.to_thread(lead.owners, lead.edges, places, members)
    return ChunkLocations(
        members, places, nbytes, bare, free, lead.edges, owners, held(lead.edges, owners)
    )
