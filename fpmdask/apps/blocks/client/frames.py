"""`map_partitions`: frames go in, a frame comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import pandas as pd
from dask.dataframe.utils import (
    is_dataframe_like,
    is_index_like,
    is_series_like,
    meta_nonempty,
)
from dask.highlevelgraph import HighLevelGraph
from dask.utils import funcname, has_keyword
from distributed import Client

from fpmdask.apps.blocks.client.calls import (
    Function,
    Given,
    check_arguments,
    check_function,
    check_sum,
    checked_distribution,
    computed,
    lineage,
    made_by_dask,
    placed,
)
from fpmdask.apps.blocks.tasks import LikeMeta, Place
from fpmdask.errors import PartitionError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.chunk_facts import divisions_of
from fpmdask.runtime.client.conversions import frame_advice
from fpmdask.runtime.client.rows import (
    frame_in_memory,
    frame_of,
    partitions_of,
)
from fpmdask.runtime.dask_private import meta_of

FRAMES = dd.DataFrame | dd.Series
INFO = "partition_info"
OF_DASK = {"align_dataframes", "enforce_metadata", "transform_divisions", "clear_divisions"}
OF_DASK |= {"parent_meta", "required_columns", "token"}
METAS = "give a frame or series without rows, column → dtype, or (name, dtype) of a series"


@dataclass(frozen=True)
class Mapped:
    """A call of `map_partitions`, and what its partitions are like."""

    given: Given
    meta: Any
    known: bool  # whether the divisions of the frame are
    told: bool  # whether the function takes `INFO`


def checked(
    function: Function,
    ddf: Any,
    more: Sequence[Any],
    meta: Any,
    others: Any,
    distribution: Any,
    keywords: Mapping[str, Any],
) -> Mapped:
    """Return what is to be computed.

    Raises
    ------
    PartitionError
        For what cannot be.
    """
    functions = check_function(function, keywords, others, OF_DASK)
    indices = [x for x in more if isinstance(x, dd.Index)]  # which are series, too
    if (
        indices
        or isinstance(ddf, dd.Index)
        or not isinstance(ddf, FRAMES | pd.DataFrame | pd.Series)
    ):
        found = indices[0] if indices else ddf
        raise PartitionError(f"found a {type(found).__name__}, no frame; {frame_advice(found)}")
    check_arguments(more, FRAMES, frame_advice)
    _check_meta(meta)
    shares = checked_distribution(distribution)
    if not isinstance(ddf, FRAMES):
        check_sum(shares, len(ddf))
    arguments = placed((ddf, *more), lambda n, a: n == 0 or isinstance(a, FRAMES))
    frames = [ddf, *(a for a in more if isinstance(a, FRAMES))]
    several = not isinstance(ddf, FRAMES) or ddf.npartitions > 1
    axes = [0, *(None if several and f.npartitions == 1 else 0 for f in frames[1:])]
    _check_divisions(frames, axes)
    metas = [meta_of(f) if isinstance(f, FRAMES) else f.iloc[:0] for f in frames]
    with dask.config.set({"dataframe.convert-string": False}):  # they are as the data is
        like = [dd.from_pandas(m, npartitions=1) for m in metas]
    told = {INFO: None} if has_keyword(function, INFO) else {}
    options = {**({} if meta is None else {"meta": meta}), **keywords, **told}
    given_like = (like[a.number] if isinstance(a, Place) else a for a in arguments)
    made = made_by_dask(dd.map_partitions, function, *given_like, **options)
    found = meta_of(made)
    is_frame = meta is not None and is_dataframe_like(found)
    if is_frame and not len(found.columns):
        raise PartitionError(
            f"meta has no columns; {METAS}, or leave it out where the function returns none"
        )
    if not is_frame:  # a number per partition would be another one if partitions were cut
        returned = _of_made_up_rows(function, metas, arguments, keywords)
        if meta is not None and is_dataframe_like(returned):
            raise PartitionError(
                f"meta is a {type(found).__name__}, the function returns a "
                f"{type(returned).__name__}; give column → dtype, or a frame without rows"
            )
        is_frame = returned is None or _is_pandas(returned)
    given = Given(
        funcname(function),
        {name: LikeMeta(f, found) for name, f in functions.items()},
        tuple(frames),
        tuple(axes),
        arguments,
        keywords,
        shares,
        bool(told) or not is_frame,
    )
    known = ddf.known_divisions if isinstance(ddf, FRAMES) else ddf.index.is_monotonic_increasing
    return Mapped(given, found, bool(known), bool(told))


def _check_meta(meta: Any) -> None:
    """Refuse what Dask would take for the meta of a scalar."""
    given = _is_pandas(meta) or isinstance(meta, dict | tuple | list)
    if meta is not None and not given:
        raise PartitionError(f"meta is a {type(meta).__name__}; {METAS}")


def _is_pandas(x: Any) -> bool:
    return is_dataframe_like(x) or is_series_like(x) or is_index_like(x)


def _check_divisions(frames: Sequence[Any], axes: Sequence[int | None]) -> None:
    """Refuse frames that Dask would align by their index: here rows go together by their place."""
    first = frames[0]
    for n, (frame, axis) in enumerate(zip(frames, axes, strict=True)):
        known = axis == 0 and _known(first) and _known(frame)
        if known and frame.divisions != first.divisions:
            raise PartitionError(
                f"frame {n} has the divisions {frame.divisions}, the first {first.divisions}; rows "
                "go together by their place: repartition one of them to the other's divisions"
            )


def _known(frame: Any) -> bool:
    return isinstance(frame, FRAMES) and bool(frame.known_divisions)


def _of_made_up_rows(
    function: Function,
    metas: Sequence[Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Any:
    """Return what a function returns for rows that are made up, None where it raises."""
    try:
        made_up = [*map(meta_nonempty, metas)]
        given = [made_up[a.number] if isinstance(a, Place) else a for a in arguments]
        return function(*given, **keywords)
    except Exception:  # dask.dataframe found its meta in another way
        return None


async def map_partitions(
    client: Client, mapped: Mapped, request: dict[str, Any], follow: proxy.Follow
) -> Any:
    """Compute; ``follow`` runs ``request`` as the app "blocks"."""
    infos = partial(_infos, mapped)
    done = await computed(client, mapped.given, request, follow, _load, infos, (1, 0))
    name = f"{done.name}-inputs"
    inputs = {part.key: part for frame in done.inputs for part in partitions_of(frame)}
    layers = {done.name: lineage(done, (1, 0)), name: inputs}
    graph = HighLevelGraph(layers, {done.name: {name}, name: set()})
    count = len(done.blocks)
    # an array of any objects: `persist` would give a frame's partitions other keys
    parts: Any = da.Array(graph, done.name, chunks=((1,) * count,), dtype=object)
    futures = partitions_of(client.persist(parts, optimize_graph=False))
    known = await divisions_of(client, [futures], follow, request) if mapped.known else [None]
    return frame_of(futures, mapped.meta, done.name, known[0])


async def _load(client: Client, x: Any, axis: int | None, workers: Sequence[str] | None) -> Any:
    return await frame_in_memory(client, x, workers)


def _infos(mapped: Mapped, frames: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what each call is told of its partition, as `dask.dataframe` has it."""
    first = frames[0]
    if not mapped.told:
        return []
    return [
        {INFO: {"number": n, "division": division}}
        for n, division in enumerate(first.divisions[:-1])
    ]
