"""The client's side of a sort: what goes in as a persisted array, what comes out as one."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, futures_of

from fpmdask.apps.inputs import finished, rooms, scattered
from fpmdask.apps.sort.kernel import KINDS
from fpmdask.apps.sort.order import merged_positions, sort_with_positions
from fpmdask.apps.sort.plan import INDEX, SortSpec
from fpmdask.coordinator import proxy
from fpmdask.errors import PartitionError

# NumPy inputs are cut into blocks of about this size.
BLOCK_NBYTES = 64 << 20

Follow = Callable[[str, dict[str, Any]], Awaitable[tuple[Any, Any]]]


def check(x: Any) -> None:
    """Refuse what cannot be sorted.

    Raises
    ------
    PartitionError
        For anything but a one-dimensional dask or NumPy array, without a mask, of booleans,
        numbers, dates, strings or bytes.
    """
    if not isinstance(x, da.Array | np.ndarray):
        raise PartitionError(
            f"found a {type(x).__name__}; give a dask or NumPy array (dask.array.from_array makes "
            "one)"
        )
    inside = type(x._meta) if isinstance(x, da.Array) else type(x)
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
    follow: Follow,
    *,
    descending: bool,
    index: bool,
    extra: int = 0,
) -> da.Array:
    """Return the sorted array, with `index` the positions of its keys in order.

    ``follow`` runs ``request`` as the app "sort"; beside each key a worker needs ``extra`` bytes.
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
    x = await _in_memory(client, x, request["workers"])
    if not x.size:
        dtype = INDEX if index else x.dtype
        empty: da.Array = client.persist(da.empty(0, dtype=dtype, chunks=-1))
        return empty
    request = asking(x.name, x.chunks[0], 0)
    if not known:
        await proxy.check(client, "sort", request)
    value, _ = await follow("sort", request)
    return _collected(client, x, SortSpec.from_json(request["sort"]), value)


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
        persisted = da.Array(persisted.dask, persisted.name, chunks=sizes, meta=persisted._meta)
    return persisted


def _collected(client: Client, x: da.Array, spec: SortSpec, value: Mapping[str, Any]) -> da.Array:
    """Return the result over the published keys, each with a task that makes it from all of x."""
    name, sizes = value["name"], value["sizes"]
    edges = [0, *accumulate(sizes)]
    chunks = List(*(TaskRef(key) for key in spec.keys))
    last = len(sizes) - 1
    graph: dict[Any, Task] = {}
    for n, (low, high) in enumerate(pairwise(edges)):
        if spec.index:
            plan = value["plan"]
            part = last - n if spec.descending else n
            own = plan["parts"][part], plan["pieces"], plan["runs"]
            task = Task((name, n), recompute_positions, spec.to_json(), *own, chunks)
        else:
            task = Task((name, n), recompute, spec.to_json(), low, high, chunks)
        graph[name, n] = task
    inputs: Any = [x]
    layers = HighLevelGraph.from_collections(name, graph, dependencies=inputs)
    dtype = INDEX if spec.index else spec.dtype
    made = da.Array(layers, name, chunks=(tuple(sizes),), dtype=dtype)
    persisted: da.Array = client.persist(made, optimize_graph=False)
    return persisted


def recompute(
    sort: Mapping[str, Any], low: int, high: int, chunks: Sequence[np.ndarray]
) -> np.ndarray:
    """Task: keys ``low … high`` of the sorted array from all chunks of the input."""
    spec = SortSpec.from_json(sort)
    keys = np.concatenate(chunks).astype(spec.dtype, copy=False)
    keys.sort()
    return (keys[::-1] if spec.descending else keys)[low:high].copy()


def recompute_positions(
    sort: Mapping[str, Any],
    part: Sequence[Sequence[int]],
    pieces: Sequence[Sequence[Sequence[int]]],
    runs: Sequence[Sequence[int]],
    chunks: Sequence[np.ndarray],
) -> np.ndarray:
    """Task: the positions in one part of the result, as the workers found them.

    Equal keys are in the order of the workers' runs: these are made again.

    Parameters
    ----------
    sort
        The `SortSpec`.
    part
        (worker, number of its run, low, high, length) of each piece of the part.
    pieces
        For each worker (chunk, low, high) of what it sorted.
    runs
        For each worker the lengths of its runs.
    chunks
        All of the input.
    """
    spec = SortSpec.from_json(sort)
    offsets = [0, *accumulate(spec.sizes)]
    made: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for worker in {piece[0] for piece in part if piece[2] < piece[3]}:
        keys = np.concatenate([chunks[c][low:high] for c, low, high in pieces[worker]])
        positions = np.concatenate(
            [np.arange(offsets[c] + low, offsets[c] + high) for c, low, high in pieces[worker]]
        )
        keys = keys.astype(spec.dtype, copy=False)
        made[worker] = []
        for low, high in pairwise([0, *accumulate(runs[worker])]):
            run = keys[low:high].copy(), positions[low:high].copy()
            sort_with_positions(*run)
            made[worker].append(run)
    there = [piece for piece in part if piece[2] < piece[3]]
    taken = [[a[low:high] for a in made[worker][n]] for worker, n, low, high, _ in there]
    if not taken:
        return np.empty(0, INDEX)
    keys, positions = (np.concatenate(arrays) for arrays in zip(*taken, strict=True))
    found = merged_positions(keys, positions)
    return np.ascontiguousarray(found[::-1]) if spec.descending else found
