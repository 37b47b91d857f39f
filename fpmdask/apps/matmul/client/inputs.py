"""What a product is made from, brought into the workers' memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, futures_of

from fpmdask.runtime.client.inputs import finished
from fpmdask.runtime.dask_private import convert_legacy_graph, meta_of

# The phase of a run in which its client reads inputs, as the app has it.
READ = "read"


def is_lazy(x: Any) -> bool:
    """Tell whether an array consists of tasks only, which may run on any worker.

    Nothing of it is on a worker yet, and no annotation says where or how its tasks are to run.
    """
    if not isinstance(x, da.Array) or futures_of(x) or dask.get_annotations():
        return False
    return not any(layer.annotations for layer in x.dask.layers.values())


async def to_be_read(client: Client, x: Any) -> bool:
    """Tell whether an array is lazy and its chunks are in no worker's memory."""
    if not is_lazy(x):
        return False
    scheduler: Any = client.scheduler
    return not any((await scheduler.who_has(keys=[*flatten(x.__dask_keys__())])).values())


async def to_be_loaded(client: Client, x: Any) -> int:
    """Return the bytes that an array adds to the workers' memory before a run measures that.

    What is made from chunks in their memory may consist of views of these, and counts nothing.
    """
    if isinstance(x, np.ndarray):
        return x.nbytes
    if futures_of(x):
        return 0
    scheduler: Any = client.scheduler
    held = await scheduler.who_has(keys=[*flatten(x.__dask_keys__())])
    elements = map(math.prod, itertools.product(*x.chunks))
    missing = [n for n, holders in zip(elements, held.values(), strict=True) if not holders]
    return int(sum(missing) * x.dtype.itemsize)


async def read(
    client: Client, arrays: Sequence[da.Array], homes: Mapping[Any, str]
) -> list[da.Array]:
    """Return arrays in the workers' memory; chunks that have a home are read there.

    Where the home is gone, the coordinator lets another worker read them. Tasks that several homes
    need run anywhere.
    """
    names = {name for name, *_ in homes}
    lazy = [x for x in arrays if x.name in names]
    pinned = [_pinned(x, homes) for x in dask.optimize(*lazy)]
    persisted = iter(client.persist(pinned, optimize_graph=False))
    found = [next(persisted) if x.name in names else x for x in arrays]
    await finished(client, found, READ)
    return found


def _pinned(x: da.Array, homes: Mapping[Any, str]) -> da.Array:
    """Return an array whose tasks run at the homes of the chunks that they are for. O(tasks)."""
    graph = convert_legacy_graph(dict(x.__dask_graph__()))
    wanted: dict[Any, set[str]] = {key: set() for key in graph}
    for key in flatten(x.__dask_keys__()):
        wanted[key] = {homes[key]}
    order = TopologicalSorter({key: task.dependencies for key, task in graph.items()})
    for key in reversed([*order.static_order()]):  # from what is wanted to what it is made from
        for needed in graph[key].dependencies if key in graph else ():
            wanted.setdefault(needed, set()).update(wanted[key])
    # what was optimized together may have tasks of the other array
    own = {key: task for key, task in graph.items() if wanted[key]}
    at = {key: tuple(wanted[key]) for key in own if len(wanted[key]) == 1}
    pinned = {key: own[key] for key in at}
    shared = {key: task for key, task in own.items() if key not in at}
    # hard: where others are allowed, Dask's stealing moves them to whoever has nothing to do
    annotations = {"workers": at.__getitem__, "allow_other_workers": False}
    anywhere = f"{x.name}-shared"
    layers = {
        x.name: MaterializedLayer(pinned, annotations=annotations),
        anywhere: MaterializedLayer(shared),
    }
    layered = HighLevelGraph(layers, {x.name: {anywhere}, anywhere: set()})
    return da.Array(layered, x.name, chunks=x.chunks, dtype=x.dtype, meta=meta_of(x))
