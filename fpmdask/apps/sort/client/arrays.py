"""The client's side of a sort: what goes in as a persisted array, what comes out as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from distributed import Client

from fpmdask.apps.sort.kernel import KINDS
from fpmdask.apps.sort.tasks import chosen, recompute, recompute_positions, taken
from fpmdask.errors import ChunksLostError, PartitionError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.chunk_facts import rows_of
from fpmdask.runtime.client.conversions import advice
from fpmdask.runtime.client.inputs import SENDINGS
from fpmdask.runtime.client.rows import array_in_memory, is_there
from fpmdask.runtime.dask_private import Task, TaskRef, meta_of
from fpmdask.sorting.spec import INDEX, SortSpec
from fpmdask.tuning import SortTuning, Tuning


def check(x: Any) -> None:
    """Refuse what cannot be sorted.

    Raises
    ------
    PartitionError
        For anything but a one-dimensional dask or NumPy array, without a mask, of booleans,
        numbers, dates, strings or bytes.
    """
    if not isinstance(x, da.Array | np.ndarray):
        raise PartitionError(f"found a {type(x).__name__}, which is no array; {advice(x)}")
    inside = type(meta_of(x)) if isinstance(x, da.Array) else type(x)
    if issubclass(inside, np.ma.MaskedArray) or not issubclass(inside, np.ndarray):
        raise PartitionError(
            f"found an array of {inside.__module__}.{inside.__qualname__}; only NumPy arrays "
            "without a mask are sorted (filled or toarray makes such)"
        )
    if x.ndim != 1:
        raise PartitionError(
            f"found {x.ndim} dimensions, 1 is needed; ravel it, or sort along an axis that is one "
            "chunk with map_blocks"
        )
    if x.dtype.names is not None:
        raise PartitionError(
            f"found the structured dtype {x.dtype}; there is no key to sort by: sort one of its "
            "fields"
        )
    if x.dtype.kind not in KINDS:
        raise PartitionError(
            f"found dtype {x.dtype}; booleans, numbers, dates, strings of fixed length and bytes "
            "are sorted (astype makes such)"
        )


async def sort(
    client: Client,
    x: Any,
    request: dict[str, Any],
    follow: proxy.Follow,
    tuning: Tuning,
    *,
    descending: bool,
    index: bool,
    extra: int = 0,
) -> da.Array:
    """Return the sorted array, with `index` the positions of its keys in order.

    ``follow`` runs ``request`` as the app "sort", ``tuning`` is the client's; beside each key a
    worker needs ``extra`` bytes.
    What cannot be run is refused before the input is computed or sent, as far as its size is known.
    """

    def asking(name: str, sizes: Sequence[int], coming: int) -> dict[str, Any]:
        spec = SortSpec(x.dtype, tuple(map(int, sizes)), name, descending, index, extra)
        return {**request, "sort": spec.to_json(), "coming": coming}

    if not x.dtype.itemsize:  # a field: NumPy gives new arrays a byte or character at least
        x = x.astype(f"{x.dtype.kind}1")
    known = isinstance(x, np.ndarray) or not math.isnan(x.size)
    coming = 0 if is_there(x) or not known else int(x.nbytes)
    early = asking("", [x.size], coming) if known and x.size else request
    await proxy.check(client, "sort", early)
    # where workers are named, all of them must be there
    sendings = SENDINGS if isinstance(x, np.ndarray) and request["workers"] is None else 1
    while True:
        load = partial(array_in_memory, client, x, request["workers"])
        loaded = await proxy.leased_load(follow, request, [x], load)
        [there], _ = await rows_of(client, [loaded], [0], follow, request)
        if not there.size:
            dtype = INDEX if index else x.dtype
            empty: da.Array = client.persist(da.empty(0, dtype=dtype, chunks=-1))
            return empty
        asked = asking(there.name, there.chunks[0], 0)
        if not known:
            await proxy.check(client, "sort", asked)
        sendings -= 1
        try:
            value, _ = await follow("sort", asked)
        except ChunksLostError:
            if not sendings:
                raise
            del there, loaded  # what is left of it makes room
        else:
            spec = SortSpec.from_json(asked["sort"])
            return _collected(client, there, spec, value, tuning.sort)


def _collected(
    client: Client, x: da.Array, spec: SortSpec, value: Mapping[str, Any], tuning: SortTuning
) -> da.Array:
    """Return the result over the published keys, each with tasks that make it from all of x.

    None of these has much more than `group_nbytes` of x, a part of `most_groups`, or the chunks of
    one worker's runs.
    """
    name, sizes = value["name"], value["sizes"]
    groups = x.nbytes / tuning.group_nbytes
    if spec.index:
        graph = _positions_again(spec, name, value["plan"], groups <= 1)
    else:
        few = min(math.ceil(groups), tuning.most_groups)
        graph = _keys_again(spec, name, sizes, value["ends"], few)
    inputs: Any = [x]
    layers = HighLevelGraph.from_collections(name, graph, dependencies=inputs)
    dtype = INDEX if spec.index else spec.dtype
    made = da.Array(layers, name, chunks=(tuple(sizes),), dtype=dtype)
    persisted: da.Array = client.persist(made, optimize_graph=False)
    return persisted


def _at(spec: SortSpec, part: int, parts: int) -> int:
    """Return which chunk of the result a part is."""
    return parts - 1 - part if spec.descending else part


def _keys_again(
    spec: SortSpec,
    name: str,
    sizes: Sequence[int],
    ends: Sequence[Sequence[Any] | None],
    groups: int,
) -> dict[Any, Task]:
    """Return the tasks that make lost chunks of keys again; parts · groups of them."""
    run, dtype = uuid4().hex, spec.dtype.str
    groups = max(1, min(groups, len(spec.keys)))
    graph: dict[Any, Task] = {}
    for part, own in enumerate(ends):
        chunk = name, _at(spec, part, len(ends))
        size = sizes[chunk[1]]
        pieces = []
        some = own is not None and own[2] + own[3] < size  # keys between its ends
        for group in range(groups if some else 0):
            key = f"chosen-{run}", part, group
            chunks = [TaskRef(chunk) for chunk in spec.keys[group::groups]]
            graph[key] = Task(key, chosen, dtype, own, *chunks)
            pieces.append(TaskRef(key))
        graph[chunk] = Task(chunk, recompute, dtype, spec.descending, size, own, *pieces)
    return graph


def _positions_again(
    spec: SortSpec, name: str, plan: Mapping[str, Any], at_once: bool
) -> dict[Any, Task]:
    """Return the tasks that make lost chunks of positions again; O(parts · workers) of them.

    With `at_once` there are O(parts), each with all of the input. ``plan`` is what
    `fpmdask.apps.sort.plan.recipe` returned.
    """
    run, dtype = uuid4().hex, spec.dtype.str
    offsets = [0, *accumulate(spec.sizes)]
    workers = range(len(plan["runs"]))
    groups = [[*workers]] if at_once else [[worker] for worker in workers]
    pieces = [
        [(chunk, low, high, offsets[chunk] + low) for chunk, low, high in own]
        for own in plan["pieces"]
    ]
    graph: dict[Any, Task] = {}
    for part, wanted in enumerate(plan["parts"]):
        of: dict[int, list[tuple[int, int, int, int]]] = {}
        for at, (worker, number, low, high, _) in enumerate(wanted):
            of.setdefault(worker, []).append((at, number, low, high))
        made = []
        for n, group in enumerate(groups):
            orders = [(pieces[w], plan["runs"][w], of[w]) for w in group if w in of]
            if not orders:
                continue
            key = f"taken-{run}", part, n
            numbers = sorted({piece[0] for own, *_ in orders for piece in own})
            chunks = [TaskRef(spec.key(number)) for number in numbers]
            graph[key] = Task(key, taken, dtype, orders, numbers, *chunks)
            made.append(TaskRef(key))
        chunk = name, _at(spec, part, len(plan["parts"]))
        graph[chunk] = Task(chunk, recompute_positions, dtype, spec.descending, *made)
    return graph
