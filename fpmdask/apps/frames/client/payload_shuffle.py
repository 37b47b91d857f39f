"""The client's side of rows that travel with their keys: one run, then frames of what it made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future, futures_of

from fpmdask.apps.frames.tasks import rows
from fpmdask.apps.frames.tasks.rows import Form, Look
from fpmdask.runtime.client.stages import Stages, token
from fpmdask.runtime.dask_private import DataNode, GraphNode, Task, TaskRef
from fpmdask.sorting.payload import Payload
from fpmdask.sorting.spec import SortSpec

# A lost part is looked for in so many groups of partitions, so that none of the tasks has all.
MOST_GROUPS = 16


def form_of(looks: Sequence[Look]) -> int | None:
    """Return a partition that has the columns of all, None where rows cannot travel with keys."""
    full = [n for n, look in enumerate(looks) if look.rows]
    forms = {looks[n].form for n in full}
    return full[0] if len(forms) == 1 and "" not in forms else None


def carrying(
    x: da.Array,
    bundles: Sequence[Sequence[int]],
    partitions: Sequence[Future[Any]],
    sizes: Sequence[int],
    form: Form,
) -> dict[str, Any]:
    """Return the spec of a sort of keys with which rows travel.

    Parameters
    ----------
    x, bundles
        The keys, and for each of their chunks the numbers of the partitions whose rows it has.
    partitions, sizes
        The futures of the frame's partitions, in order, and their rows.
    """
    keys = form.keys
    payload = Payload(
        tuple(future.key for future in partitions),
        tuple(sizes),
        tuple(map(tuple, bundles)),
        tuple(dtype.str for dtype in form.dtypes),
        keys.row_bits,
        keys.local_bits,
        keys.whole,
        keys.null,
    )
    extra = payload.nbytes_per_row + payload.nbytes_in_part
    spec = SortSpec(x.dtype, x.chunks[0], x.name, extra=extra, payload=payload)
    return spec.to_json()


async def carried(
    stages: Stages,
    value: Mapping[str, Any],
    bundles: Sequence[Sequence[int]],
    partitions: Sequence[Future[Any]],
    form: Form,
) -> list[Future[Any]]:
    """Return the partitions of the result that such a sort has published.

    Notes
    -----
    A task per part makes a frame of that memory, without a copy. What is lost later is made again
    by O(parts) tasks, which run only then.
    """
    made = _remade(stages.client, value, bundles, partitions, form)
    return await stages.again(partial(_framed, stages, made, value["sizes"], form))


def _remade(
    client: Client,
    value: Mapping[str, Any],
    bundles: Sequence[Sequence[int]],
    partitions: Sequence[Future[Any]],
    form: Form,
) -> da.Array:
    """Return what a run has published, each part with tasks that make it from all partitions."""
    name, common, run = value["name"], token("form"), uuid4().hex
    shared = TaskRef(common)
    groups = [[*chain(*bundles[n::MOST_GROUPS])] for n in range(min(MOST_GROUPS, len(bundles)))]
    tasks: dict[Any, GraphNode] = {}
    for n, ends in enumerate(value["ends"]):
        pieces = []
        for g, group in enumerate(groups):
            key = f"chosen-{run}", n, g
            frames = [TaskRef(partitions[number].key) for number in group]
            tasks[key] = Task(key, rows.chosen, shared, ends, tuple(group), *frames)
            pieces.append(TaskRef(key))
        tasks[name, n] = Task((name, n), rows.again, shared, *pieces)
    layers: dict[str, Any] = {
        name: MaterializedLayer(tasks),
        common: MaterializedLayer({common: DataNode(common, form)}),
        f"{name}-given": MaterializedLayer({future.key: future for future in partitions}),
    }
    needs = {layer: set(layers) - {name} if layer == name else set[str]() for layer in layers}
    chunks = ((np.nan,) * len(value["sizes"]),)
    lazy = da.Array(HighLevelGraph(layers, needs), name, chunks=chunks, dtype=np.uint8)
    made: da.Array = client.persist(lazy, optimize_graph=False)
    return made


async def _framed(
    stages: Stages, made: da.Array, sizes: Sequence[int], form: Form
) -> list[Future[Any]]:
    futures = {future.key: future for future in futures_of(made)}
    parts = [futures[key] for key in made.__dask_keys__()]
    at = await stages.places(parts)
    name, common = token("sorted-rows"), token("form")
    tasks: dict[Any, GraphNode] = {
        (name, n): Task((name, n), rows.framed, TaskRef(common), size, TaskRef(part.key))
        for n, (size, part) in enumerate(zip(sizes, parts, strict=True))
    }
    pins = dict(zip(tasks, at, strict=True))
    return await stages.made(name, tasks, pins, parts, {common: DataNode(common, form)})
