"""The client's side: what goes in and comes out of `map_blocks` and `map_partitions`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.highlevelgraph import HighLevelGraph
from dask.utils import funcname, has_keyword
from distributed import Client

from fpmdask.apps.blocks.spec import BlocksSpec
from fpmdask.apps.blocks.tasks import Call, Place, again
from fpmdask.errors import ChunksLostError, PartitionError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.conversions import advice
from fpmdask.runtime.client.inputs import SENDINGS
from fpmdask.runtime.client.rows import array_in_memory, is_there, rows_of_array
from fpmdask.runtime.dask_private import DataNode, Task, TaskRef, meta_of

Function = Callable[..., Any]


@dataclass(frozen=True)
class Mapped:
    """A call of `map_blocks`, its arguments checked."""

    function: Function
    arrays: tuple[Any, ...]
    axes: tuple[int | None, ...]  # where each is cut
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    made: da.Array  # what dask.array makes of it, never computed
    out_axis: int
    chunks: Any
    others: Mapping[str, Function]
    distribution: Any
    infos: bool

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Those arrays that are arguments."""
        return self.arrays


def checked(
    function: Function,
    x: Any,
    more: Sequence[Any],
    axis: int,
    others: Mapping[str, Function] | None,
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
    if not callable(function):
        raise PartitionError(f"func is a {type(function).__name__}; give a function of blocks")
    if not isinstance(x, da.Array | np.ndarray):
        raise PartitionError(f"found a {type(x).__name__}, which is no array; {advice(x)}")
    if not x.ndim:
        raise PartitionError("found an array of no dimensions; there are no rows to share out")
    if isinstance(axis, bool) or not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
        raise PartitionError(f"axis = {axis!r}; give one from {-x.ndim} to {x.ndim - 1}")
    axis %= x.ndim
    for name, value in keywords.items():
        if is_dask_collection(value):
            raise PartitionError(
                f"the keyword {name} is a dask collection; give it as an argument, or compute it"
            )
    lazy, axes, arguments = [], [], []
    for n, argument in enumerate((x, *more)):
        if not isinstance(argument, da.Array) and n:
            if is_dask_collection(argument):
                raise PartitionError(
                    f"argument {n} is a {type(argument).__name__}; {advice(argument)}"
                )
            arguments.append(argument)
            continue
        cut_at = axis - (x.ndim - argument.ndim)
        if argument.ndim > x.ndim:
            raise PartitionError(
                f"argument {n} has {argument.ndim} dimensions, the first array {x.ndim}; give the "
                "one with most first"
            )
        where: int | None = cut_at
        if n and (cut_at < 0 or (argument.shape[cut_at] == 1 and x.shape[axis] != 1)):
            where = None
        elif n and not _same(argument.shape[cut_at], x.shape[axis]):
            raise PartitionError(
                f"argument {n} has length {argument.shape[cut_at]} on axis {cut_at}, the first "
                f"array {x.shape[axis]}; give the same, or 1"
            )
        arguments.append(Place(len(lazy)))
        axes.append(where)
        lazy.append(_rechunked(argument, where))
    drop = _axes(options.get("drop_axis"), "drop_axis", x.ndim)
    if axis in drop:
        raise PartitionError(
            f"drop_axis = {options['drop_axis']!r} has the axis {axis}, along which blocks are "
            "shared out; give another axis, or reduce the result"
        )
    infos = has_keyword(function, "block_info") or has_keyword(function, "block_id")
    given = iter(lazy)
    like = [next(given) if isinstance(a, Place) else a for a in arguments]
    like = [
        da.from_array(a, chunks=-1) if isinstance(a, np.ndarray) and n == 0 else a
        for n, a in enumerate(like)
    ]
    try:
        made = da.map_blocks(function, *like, **options, **keywords)
    except ValueError as error:
        raise PartitionError(f"da.map_blocks refuses this: {error}") from error
    kept = [n for n in range(x.ndim) if n not in drop]
    for new in sorted(_axes(options.get("new_axis"), "new_axis", None)):
        kept.insert(new, -1)
    if len(kept) < made.ndim:  # new axes that `chunks` imply
        kept = [-1] * (made.ndim - len(kept)) + kept
    for name, other in (others or {}).items():
        if not isinstance(name, str) or not callable(other):
            raise PartitionError(
                f"implementations has {name!r}: {other!r}; give name of a resource → function"
            )
    return Mapped(
        function,
        tuple(lazy),
        tuple(axes),
        tuple(arguments),
        keywords,
        made,
        kept.index(axis),
        options.get("chunks"),
        dict(others or {}),
        _distribution(distribution),
        infos,
    )


def _same(one: float, other: float) -> bool:
    return one == other or math.isnan(one) or math.isnan(other)


def _axes(given: Any, what: str, ndim: int | None) -> list[int]:
    if given is None:
        return []
    found = [given] if isinstance(given, int | np.integer) else list(given)
    for one in found:
        if isinstance(one, bool) or not isinstance(one, int | np.integer):
            raise PartitionError(f"{what} = {given!r}; give an int or a sequence of them")
        if ndim is not None and not -ndim <= one < ndim:
            raise PartitionError(f"{what} = {given!r}; give axes from {-ndim} to {ndim - 1}")
    return [int(one) % ndim if ndim is not None else int(one) for one in found]


def _rechunked(x: Any, axis: int | None) -> Any:
    """Return an array with one chunk along all axes but one."""
    if isinstance(x, np.ndarray):
        return x
    return x.rechunk({n: -1 for n in range(x.ndim) if n != axis}) if x.ndim else x


def _distribution(given: Any) -> Any:
    """Return rows per worker name, where blocks begin, or None."""
    if given is None:
        return None
    if hasattr(given, "workers") and hasattr(given, "distribution"):  # a report
        given = dict(zip(given.workers, np.asarray(given.distribution).tolist(), strict=True))
    if isinstance(given, Mapping):
        for name, rows in given.items():
            if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 0:
                raise PartitionError(
                    f"distribution gives {name} {rows!r} rows; give an int >= 0 for each worker"
                )
        return {str(name): int(rows) for name, rows in given.items()}
    try:
        lengths = [int(one) for one in given]
    except (TypeError, ValueError):
        raise PartitionError(
            f"distribution = {given!r}; give worker name → rows, a report, or the lengths of the "
            "blocks (y.chunks[axis])"
        ) from None
    return lengths


async def map_blocks(
    client: Client, mapped: Mapped, request: dict[str, Any], follow: proxy.Follow
) -> da.Array:
    """Compute; `follow` runs ``request`` as the app "blocks"."""
    coming = sum(
        float(x.nbytes) for x in mapped.inputs if not is_there(x) and not math.isnan(x.size)
    )
    await proxy.check(client, "blocks", {**request, "coming": coming})
    sendings = SENDINGS if any(isinstance(x, np.ndarray) for x in mapped.inputs) else 1
    while True:
        arrays = [
            await array_in_memory(client, x, request["workers"], axis or 0)
            for x, axis in zip(mapped.inputs, mapped.axes, strict=True)
        ]
        sendings -= 1
        try:
            return await _computed(client, mapped, arrays, request, follow)
        except ChunksLostError:
            if not sendings:
                raise


async def _computed(
    client: Client,
    mapped: Mapped,
    arrays: Sequence[da.Array],
    request: dict[str, Any],
    follow: proxy.Follow,
) -> da.Array:
    inputs = tuple(map(rows_of_array, arrays, mapped.axes))
    rows = sum(inputs[0].lengths)
    for n, one in enumerate(inputs):
        if one.axis is not None and sum(one.lengths) != rows:
            raise PartitionError(
                f"array {n} has {sum(one.lengths)} rows, the first one {rows}; give the same"
            )
    distribution, whole, cuts = mapped.distribution, mapped.infos, None
    if isinstance(distribution, list):
        if sum(distribution) != rows:
            raise PartitionError(
                f"distribution has {sum(distribution)} rows in all, the array {rows}; give as many"
            )
        whole, cuts = True, tuple(distribution)
    elif isinstance(distribution, dict) and sum(distribution.values()) != rows:
        raise PartitionError(
            f"distribution has {sum(distribution.values())} rows in all, the array {rows}; give as "
            "many"
        )
    nbytes = sum(x.nbytes for x, axis in zip(arrays, mapped.axes, strict=True) if axis is not None)
    spec = BlocksSpec(inputs, whole, nbytes // max(1, rows), tuple(mapped.others), cuts)
    infos = _infos(mapped, arrays) if mapped.infos else ()
    call = Call({"": mapped.function, **mapped.others}, mapped.arguments, mapped.keywords, infos)
    code = dumped(call)
    asked = {
        **request,
        "blocks": spec.to_json(),
        "call": {
            "name": funcname(mapped.function),
            "parameters": {},
            "code": code,
            "digest": hashlib.sha256(code).hexdigest()[:16],
        },
        "distribution": "as held" if isinstance(distribution, list) else distribution,
        "dims": mapped.made.ndim,
        "out_axis": mapped.out_axis,
    }
    value, _ = await follow("blocks", asked)
    return _collected(client, mapped, arrays, spec, value, code)


def dumped(call: Call) -> bytes:
    """Return a call as the bytes that only workers open.

    Raises
    ------
    PartitionError
        If it cannot be sent.
    """
    try:
        return bytes(cloudpickle.dumps(call))
    except Exception as error:
        raise PartitionError(
            f"the function and its arguments cannot be sent to the workers ({error}); make inside "
            "the function what it needs"
        ) from error


def _infos(mapped: Mapped, arrays: Sequence[da.Array]) -> list[dict[str, Any]]:
    """Return what each call is told of its place, as `dask.array.map_blocks` has it."""
    made, at = mapped.made, mapped.out_axis
    wants = [name for name in ("block_info", "block_id") if has_keyword(mapped.function, name)]
    starts = [
        [0, *accumulate(x.chunks[axis])] if axis is not None else None
        for x, axis in zip(arrays, mapped.axes, strict=True)
    ]
    ends = [0, *accumulate(made.chunks[at])]
    found = []
    for n in range(len(arrays[0].chunks[mapped.axes[0] or 0])):
        block_id = tuple(n if d == at else 0 for d in range(made.ndim))
        info: dict[Any, Any] = {}
        for number, argument in enumerate(mapped.arguments):
            if not isinstance(argument, Place):
                continue
            x, axis, edges = (of[argument.number] for of in (arrays, mapped.axes, starts))
            location = [(0, length) for length in x.shape]
            if axis is not None and edges is not None:
                location[axis] = edges[n], edges[n + 1]
            info[number] = {
                "shape": x.shape,
                "num-chunks": x.numblocks,
                "array-location": location,
                "chunk-location": tuple(n if d == axis else 0 for d in range(x.ndim)),
            }
        place = [(0, size) for size in made.shape]
        place[at] = ends[n], ends[n + 1]
        info[None] = {
            "shape": made.shape,
            "num-chunks": made.numblocks,
            "array-location": place,
            "chunk-location": block_id,
            "chunk-shape": tuple(made.chunks[d][block_id[d]] for d in range(made.ndim)),
            "dtype": made.dtype,
        }
        both = {"block_info": info, "block_id": block_id}
        found.append({name: both[name] for name in wants})
    return found


def _collected(
    client: Client,
    mapped: Mapped,
    arrays: Sequence[da.Array],
    spec: BlocksSpec,
    value: Mapping[str, Any],
    code: bytes,
) -> da.Array:
    """Return the result over the published keys, each with the task that makes it again."""
    name, at = value["name"], mapped.out_axis
    shapes = [tuple(shape) for *_, shape in value["blocks"]]
    ndim = mapped.made.ndim
    if any(len(shape) != ndim for shape in shapes):
        raise PartitionError(
            f"the function returned blocks of {sorted({len(s) for s in shapes})} dimensions, {ndim} "
            "were expected; give drop_axis and new_axis"
        )
    chunks = [(size,) for size in shapes[0]]
    for axis in range(ndim):
        if axis != at and len({shape[axis] for shape in shapes}) > 1:
            raise PartitionError(
                f"the function returned blocks of lengths {sorted({s[axis] for s in shapes})} on "
                f"axis {axis}; only axis {at} may have several"
            )
    chunks[at] = tuple(shape[at] for shape in shapes)
    graph = lineage(name, spec, value["blocks"], code, ndim, at)
    inputs: Any = [*arrays]
    layers = HighLevelGraph.from_collections(name, graph, dependencies=inputs)
    made = da.Array(layers, name, chunks=tuple(chunks), meta=meta_of(mapped.made))
    persisted: da.Array = client.persist(made, optimize_graph=False)
    return persisted


def lineage(
    name: str,
    spec: BlocksSpec,
    blocks: Sequence[Sequence[Any]],
    code: bytes,
    ndim: int,
    at: int,
) -> dict[Any, Any]:
    """Return the tasks that make blocks again, one for each."""
    call = f"{name}-call"
    graph: dict[Any, Any] = {call: DataNode(call, code)}
    for n, (start, stop, _) in enumerate(blocks):
        layout, chunks = [], []
        for one in spec.inputs:
            own = one.pieces((start, stop))
            layout.append((one.axis, [(low, high) for _, low, high in own]))
            chunks += [TaskRef(one.keys[c]) for c, _, _ in own]
        key = (name, *(n if axis == at else 0 for axis in range(ndim)))
        chunk = spec.inputs[0].pieces((start, stop))[0][0]
        graph[key] = Task(key, again, TaskRef(call), chunk, layout, *chunks)
    return graph
