"""The client's side of a sort: what goes in as a persisted array, what comes out as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, futures_of

from fpmdask.apps.sort.kernel import KINDS
from fpmdask.errors import ChunksLostError, PartitionError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.conversions import advice
from fpmdask.runtime.client.inputs import SENDINGS, finished, rooms, scattered
from fpmdask.runtime.dask_private import Task, TaskRef, meta_of
from fpmdask.sorting.order import merged_positions, sort_with_positions
from fpmdask.sorting.spec import INDEX, SortSpec
from fpmdask.tuning import SortTuning, Tuning

# NumPy inputs are cut into blocks of about this size.
BLOCK_NBYTES = 64 << 20


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
    coming = 0 if _is_there(x) or not known else int(x.nbytes)
    early = asking("", [x.size], coming) if known and x.size else request
    await proxy.check(client, "sort", early)
    # where workers are named, all of them must be there
    sendings = SENDINGS if isinstance(x, np.ndarray) and request["workers"] is None else 1
    while True:
        there = await _in_memory(client, x, request["workers"])
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
            del there  # what is left of it makes room
        else:
            spec = SortSpec.from_json(asked["sort"])
            return _collected(client, there, spec, value, tuning.sort)


def _is_there(x: Any) -> bool:
    """Tell whether the chunks are, or are becoming, the workers' data already."""
    if isinstance(x, np.ndarray):
        return False
    return {future.key for future in futures_of(x)}.issuperset(x.__dask_keys__())


async def _in_memory(client: Client, x: Any, workers: Sequence[str] | None) -> da.Array:
    """Return ``x`` as a dask array whose chunks, of known sizes, are in the workers' memory."""
    if isinstance(x, np.ndarray):
        count = len(await rooms(client, workers))
        most = min(BLOCK_NBYTES // x.itemsize, -(-x.size // count))
        name = f"fpmdask-scattered-{uuid4().hex}"
        edges = [*range(0, x.size, max(1, most)), x.size]
        blocks = {
            (name, n): np.ascontiguousarray(x[low:high])
            for n, (low, high) in enumerate(pairwise(edges))
        }
        if not blocks:
            empty: da.Array = da.from_array(x)
            return empty
        futures = await scattered(client, blocks, workers)
        sizes = (tuple(block.size for block in blocks.values()),)
        return da.Array(futures, name, chunks=sizes, dtype=x.dtype)
    persisted: da.Array = client.persist(x)
    await finished(client, persisted)
    if any(math.isnan(size) for size in persisted.chunks[0]):
        futures = {future.key: future for future in futures_of(persisted)}
        ordered = [futures[key] for key in persisted.__dask_keys__()]
        sizes = (tuple(await client.gather(client.map(len, ordered, pure=False))),)
        meta = meta_of(persisted)
        persisted = da.Array(persisted.dask, persisted.name, chunks=sizes, meta=meta)
    return persisted


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


def chosen(dtype: str, ends: Sequence[Any], *chunks: np.ndarray) -> np.ndarray:
    """Task: those keys of some chunks of the input that are between the ends of a part.

    Parameters
    ----------
    ends
        What `fpmdask.apps.sort.worker.ends_of` returned of it.
    """
    first, last = (np.frombuffer(end, dtype) for end in ends[:2])
    found = []
    for chunk in chunks:
        keys = np.sort(chunk.astype(dtype, copy=False))  # as it compares, so they are found
        low = int(np.searchsorted(keys, first, "right")[0])
        high = int(np.searchsorted(keys, last, "left")[0])
        found.append(keys[low:high].copy())
    return np.concatenate(found)


def recompute(
    dtype: str, descending: bool, size: int, ends: Sequence[Any] | None, *pieces: np.ndarray
) -> np.ndarray:
    """Task: a chunk of the result, from what is `chosen` between its ends, and from these.

    Keys that equal an end become copies of it: which zeros have a sign may change.
    """
    keys = np.empty(size, dtype)
    if ends is not None:
        first, last, of_first, of_last = ends
        keys[size - of_last :] = np.frombuffer(last, dtype)
        keys[:of_first] = np.frombuffer(first, dtype)
        inner = keys[of_first : size - of_last]
        if inner.size:
            np.concatenate(pieces, out=inner)
            inner.sort()
    return np.ascontiguousarray(keys[::-1]) if descending else keys


def taken(
    dtype: str,
    orders: Sequence[tuple[Sequence[Any], Sequence[int], Sequence[Any]]],
    numbers: Sequence[int],
    *chunks: np.ndarray,
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Task: what a part of positions took of some workers' runs, which are made again.

    Parameters
    ----------
    orders
        For each of the workers: the pieces of chunks that it sorted, as (chunk, low, high, position
        of the first key), the lengths of its runs, and what is wanted of these, as (place among
        the pieces of the part, number of the run, low, high).
    numbers, chunks
        Of the input.

    Returns
    -------
    list of (place, keys, positions)
    """
    of = dict(zip(numbers, chunks, strict=True))
    found = []
    for pieces, lengths, wanted in orders:
        keys = np.concatenate([of[c][low:high].astype(dtype) for c, low, high, _ in pieces])
        positions = np.concatenate([np.arange(at, at + high - low) for _, low, high, at in pieces])
        edges = [0, *accumulate(lengths)]
        for run in {number for _, number, *_ in wanted}:
            here = slice(edges[run], edges[run + 1])
            sort_with_positions(keys[here], positions[here])
        for place, run, low, high in wanted:
            here = slice(edges[run] + low, edges[run] + high)
            found.append((place, keys[here].copy(), positions[here].copy()))
    return found


def recompute_positions(
    dtype: str, descending: bool, *made: Sequence[tuple[int, np.ndarray, np.ndarray]]
) -> np.ndarray:
    """Task: a chunk of positions as the workers found them, from what was `taken` of their runs.

    Equal keys are in the order of the workers' runs.
    """
    pieces = sorted((piece for own in made for piece in own), key=itemgetter(0))
    keys = np.concatenate([np.empty(0, dtype), *(keys for _, keys, _ in pieces)])
    positions = np.concatenate([np.empty(0, INDEX), *(at for *_, at in pieces)])
    found = merged_positions(keys, positions)
    return np.ascontiguousarray(found[::-1]) if descending else found
