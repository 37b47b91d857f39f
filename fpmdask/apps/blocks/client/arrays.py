"""`map_blocks`: arrays go in, an array comes out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.utils import funcname, has_keyword
from distributed import Client

from fpmdask.apps.blocks.client.calls import (
    Done,
    Function,
    Given,
    check_arguments,
    check_chunks,
    check_function,
    check_sum,
    checked_distribution,
    computed,
    lineage,
    made_by_dask,
    placed,
)
from fpmdask.apps.blocks.tasks import Place
from fpmdask.errors import PartitionError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.conversions import advice
from fpmdask.runtime.client.rows import (
    array_in_memory,
    array_of_rows,
    one_chunk_beside,
)
from fpmdask.runtime.dask_private import meta_of

INFOS = ("block_info", "block_id")
OF_DASK = {"name", "token", "enforce_ndim"}


@dataclass(frozen=True)
class Mapped:
    """A call of `map_blocks`: what dask.array makes of it is never computed."""

    given: Given
    made: da.Array
    place: tuple[int, int]  # dimensions of the result, and which of them is cut


def checked(
    function: Function,
    x: Any,
    more: Sequence[Any],
    axis: int,
    others: Any,
    distribution: Any,
    options: Mapping[str, Any],
    keywords: Mapping[str, Any],
) -> Mapped:
    """Return what is to be computed.

    Raises
    ------
    PartitionError
        For what cannot be.
    """
    functions = check_function(function, keywords, others, OF_DASK)
    meta, chunks = options.get("meta"), options.get("chunks")
    if meta is not None and not _is_array(meta):
        raise PartitionError(f"meta is a {type(meta).__name__}; give an empty array like a block")
    sizes = None if chunks is None else _sizes(chunks)
    x = array_of_rows(x)
    axis = _axis(axis, x.ndim)
    check_arguments(more, da.Array, advice)
    arguments = placed((x, *more), lambda n, a: n == 0 or isinstance(a, da.Array))
    arrays: list[Any] = [x, *(a for a in more if isinstance(a, da.Array))]
    axes = [axis, *(_where(a, x, axis) for a in arrays[1:])]
    lazy = [*map(one_chunk_beside, arrays, axes)]
    drop = _axes(options.get("drop_axis"), "drop_axis", x.ndim)
    if axis in drop:
        raise PartitionError(
            f"drop_axis = {options['drop_axis']!r} has axis {axis}, along which blocks are shared "
            "out; give another axis, or reduce the result"
        )
    like = [da.from_array(a, chunks=-1) if isinstance(a, np.ndarray) else a for a in lazy]
    given_like = (like[a.number] if isinstance(a, Place) else a for a in arguments)
    made = made_by_dask(da.map_blocks, function, *given_like, **options, **keywords)
    kept = [n for n in range(x.ndim) if n not in drop]
    for new in _axes(options.get("new_axis"), "new_axis", None):
        kept.insert(new, -1)
    kept = [-1] * (made.ndim - len(kept)) + kept  # new axes that `chunks` implies
    shares = checked_distribution(distribution)
    check_sum(shares, x.shape[axis])
    told = any(has_keyword(function, name) for name in INFOS)
    if isinstance(x, da.Array) and not math.isnan(x.shape[axis]):
        check_chunks(shares, told, x.chunks[axis])
    given = Given(
        funcname(function),
        functions,
        tuple(lazy),
        tuple(axes),
        arguments,
        keywords,
        shares,
        told,
    )
    at = kept.index(axis)
    sizes = sizes or [None] * made.ndim
    sizes[at] = None
    return Mapped(replace(given, sizes=tuple(sizes)), made, (made.ndim, at))


def _is_array(meta: Any) -> bool:
    """Tell whether it is an array of some library, no class and no series of pandas."""
    array = hasattr(meta, "dtype") and hasattr(meta, "shape")
    return array and not isinstance(meta, type) and not hasattr(meta, "iloc")


def _axis(axis: Any, ndim: int) -> int:
    whole = isinstance(axis, int | np.integer) and not isinstance(axis, bool)
    if not whole or not -ndim <= axis < ndim:
        raise PartitionError(f"axis = {axis!r}; give an int from {-ndim} to {ndim - 1}")
    return int(axis) % ndim


def _where(array: Any, x: Any, axis: int) -> int | None:
    """Return where an array is cut as `x` is along its axis, None where all calls get all of it."""
    at: int = axis - (x.ndim - array.ndim)
    if array.ndim > x.ndim:
        raise PartitionError(
            f"found an array of {array.ndim} dimensions, the first has {x.ndim}; give the one with "
            "most first"
        )
    if at < 0 or (array.shape[at] == 1 and x.shape[axis] != 1):
        return None
    lengths = array.shape[at], x.shape[axis]
    if lengths[0] != lengths[1] and not np.isnan(lengths).any():
        raise PartitionError(
            f"found an array of length {lengths[0]} on axis {at}, the first has {lengths[1]}; give "
            "the same, or 1"
        )
    return at


def _axes(given: Any, what: str, ndim: int | None) -> list[int]:
    found = [] if given is None else [given]
    several = isinstance(given, Collection) and bool(getattr(given, "ndim", True))
    if several and not isinstance(given, str | bytes):
        found = [*given]
    for one in found:
        if isinstance(one, bool) or not isinstance(one, int | np.integer):
            raise PartitionError(f"{what} = {given!r}; give an int or a sequence of them")
        if ndim is not None and not -ndim <= one < ndim:
            raise PartitionError(f"{what} = {given!r}; give axes from {-ndim} to {ndim - 1}")
        if ndim is None and one < 0:
            raise PartitionError(f"{what} = {given!r}; give ints >= 0")
    axes = {int(one) % ndim if ndim is not None else int(one) for one in found}
    if len(axes) < len(found):
        raise PartitionError(f"{what} = {given!r} has an axis twice; give each once")
    return sorted(axes)


async def map_blocks(
    client: Client, mapped: Mapped, request: dict[str, Any], follow: proxy.Follow
) -> da.Array:
    """Compute; ``follow`` runs ``request`` as the app "blocks"."""
    infos = partial(_infos, mapped)
    done = await computed(client, mapped.given, request, follow, _load, infos, mapped.place)
    return _collected(client, mapped, done)


async def _load(
    client: Client, x: Any, axis: int | None, workers: Sequence[str] | None
) -> da.Array:
    return await array_in_memory(client, x, workers, axis or 0)


def _infos(mapped: Mapped, arrays: Sequence[da.Array]) -> list[dict[str, Any]]:
    """Return what each call is told of its place, as `dask.array.map_blocks` has it."""
    given, made, (ndim, at) = mapped.given, mapped.made, mapped.place
    wants = [name for name in INFOS if has_keyword(given.functions[""], name)]
    lengths = arrays[0].chunks[given.axes[0] or 0]
    starts = [0, *accumulate(lengths)]
    ends = [0, *accumulate(made.chunks[at])]
    found = []
    for n in range(len(lengths)):
        block_id = tuple(n if d == at else 0 for d in range(ndim))
        info: dict[Any, Any] = {}
        for number, argument in enumerate(given.arguments):
            if not isinstance(argument, Place):
                continue
            x, axis = arrays[argument.number], given.axes[argument.number]
            info[number] = {
                "shape": x.shape,
                "num-chunks": x.numblocks,
                "array-location": [
                    (starts[n], starts[n + 1]) if d == axis else (0, length)
                    for d, length in enumerate(x.shape)
                ],
                "chunk-location": tuple(n if d == axis else 0 for d in range(x.ndim)),
            }
        info[None] = {
            "shape": made.shape,
            "num-chunks": made.numblocks,
            "array-location": [
                (ends[n], ends[n + 1]) if d == at else (0, size)
                for d, size in enumerate(made.shape)
            ],
            "chunk-location": block_id,
            "chunk-shape": tuple(made.chunks[d][block_id[d]] for d in range(ndim)),
            "dtype": made.dtype,
        }
        both = {"block_info": info, "block_id": block_id}
        found.append({name: both[name] for name in wants})
    return found


def _collected(client: Client, mapped: Mapped, done: Done) -> da.Array:
    """Return the result over the published keys, each with the task that makes it again."""
    _, at = mapped.place
    shapes = [shape for _, _, shape, _ in done.blocks]
    chunks: list[tuple[int, ...]] = [(size,) for size in shapes[0]]
    chunks[at] = tuple(shape[at] for shape in shapes)
    inputs: Any = done.inputs
    graph = lineage(done, mapped.place)
    layers = HighLevelGraph.from_collections(done.name, graph, dependencies=inputs)
    made = da.Array(layers, done.name, chunks=tuple(chunks), meta=meta_of(mapped.made))
    persisted: da.Array = client.persist(made, optimize_graph=False)
    return persisted


def _sizes(chunks: Any) -> list[int | None]:
    """Return the length of a block on each axis as ``chunks`` says it, None where it is not known.

    Raises
    ------
    PartitionError
        If it says nothing of the kind.
    """
    found: list[int | None] = []
    for wanted in chunks if isinstance(chunks, tuple | list) else [None]:
        sizes = wanted if isinstance(wanted, tuple | list) else [wanted]
        if not all(isinstance(n, int | float | np.number) and not n < 0 for n in sizes):
            raise PartitionError(
                f"chunks = {chunks!r}; give a tuple: for each axis of the result an int >= 0, or "
                "a tuple of them"
            )
        total = float(sum(sizes))
        found.append(None if math.isnan(total) else int(total))  # NaN: not known
    return found
