"""The client's side: what goes in and comes out of `rebalance`."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future

from fpmdask.apps.rebalance.spec import Cuts, RebalanceSpec
from fpmdask.apps.rebalance.tasks import RowsKernel, again
from fpmdask.errors import PartitionError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.arguments import by_worker, check_sum, rows_by_worker
from fpmdask.runtime.client.chunk_facts import divisions_of, rows_of, values_of
from fpmdask.runtime.client.conversions import as_array
from fpmdask.runtime.client.kernels import check_takes, packed
from fpmdask.runtime.client.rows import (
    array_in_memory,
    array_of_rows,
    frame_in_memory,
    frame_of,
    is_there,
    nbytes_of,
    one_chunk_beside,
    partitions_of,
    sent_again,
)
from fpmdask.runtime.dask_private import Task, TaskRef, meta_of
from fpmdask.runtime.report import TOO_SHORT
from fpmdask.timing import callable_name

# Places at which rows that have weights, or are in groups, may be cut: so many at most.
MOST_PLACES = 1 << 16


@dataclass(frozen=True)
class Asked:
    """A call of `rebalance`, its arguments checked."""

    collections: tuple[Any, ...]
    kernel: Callable[..., Any] | None
    distribution: Mapping[str, float] | None
    seconds: Mapping[str, float] | None
    weights: Any
    groups: Any
    name: str | None


def checked(
    collections: Sequence[Any],
    kernel: Any,
    distribution: Any,
    seconds: Any,
    weights: Any,
    groups: Any,
    name: str | None = None,
) -> Asked:
    """Return what is to be done.

    Raises
    ------
    PartitionError
        For what cannot be.
    """
    if not collections:
        raise PartitionError("found no collection; give at least one")
    every = tuple(map(_collection, collections))
    counts = [n for n in map(_count, every) if not math.isnan(n)]
    if len(set(counts)) > 1:
        raise PartitionError(
            f"found collections of {counts} rows; give collections of the same rows"
        )
    rows = counts[0] if counts else math.nan
    ways = {"kernel": kernel, "distribution": distribution, "seconds": seconds}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        raise PartitionError(
            f"found {' and '.join(given) or 'none of them'}; give one of kernel, distribution and "
            "seconds"
        )
    if kernel is not None:
        if not callable(kernel):
            raise PartitionError(
                f"kernel is a {type(kernel).__name__}; give a function of the collections' local "
                "rows"
            )
        check_takes(kernel, every, "rows of each collection")
    shares = rows_by_worker(distribution, rows) if weights is None else _weighted(distribution)
    # what is in this process is looked at before any work begins, of the rest what is known of it
    if is_dask_collection(weights):
        _check_lazy(weights, rows, "weights")
        _check_numbers(weights.dtype)
    elif weights is not None:
        _check_units(shares, _weights(weights, rows).sum())
    if is_dask_collection(groups):
        _check_lazy(groups, rows, "groups")
    elif groups is not None:
        _starts(groups, rows)
    return Asked(
        every,
        kernel,
        shares,
        _numbers(seconds, "seconds", least=math.nextafter(0.0, 1.0)),
        weights,
        groups,
        name,
    )


def _collection(x: Any) -> Any:
    x = as_array(x)
    return x if _is_frame(x) else one_chunk_beside(array_of_rows(x), 0)


def _is_frame(x: Any) -> bool:
    """Tell whether it is a DataFrame or Series of dask or pandas, without importing these."""
    kind = type(x)
    framed = hasattr(kind, "divisions" if is_dask_collection(x) else "iloc")
    return framed and not kind.__name__.endswith(("Index", "Scalar"))


def _count(x: Any) -> float:
    """Return the rows of a collection, NaN where they are not known."""
    return math.nan if _is_frame(x) and is_dask_collection(x) else x.shape[0]


def _weighted(given: Any) -> Mapping[str, float] | None:
    """Return a distribution of sums of weights."""
    parts = getattr(given, "shares", ())
    if parts and all("weight" in part for part in parts):  # the report of a rebalance
        given = {part["worker"]: part["weight"] for part in parts}
    return _numbers(by_worker(given), "distribution", least=0.0)


def _numbers(given: Any, what: str, least: float) -> dict[str, float] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise PartitionError(f"{what} = {given!r}; give a mapping of worker name → number")
    if not given:
        raise PartitionError(f"{what} names no worker; give a number for each that holds rows")
    for name, value in given.items():
        real = isinstance(value, int | float | np.integer | np.floating)
        if isinstance(value, bool) or not real or not least <= value < math.inf:
            allowed = "a finite number >= 0" if least == 0 else "a finite number > 0"
            raise PartitionError(f"{what} gives {name} {value!r}; give {allowed}")
    return {str(name): float(value) for name, value in given.items()}


async def rebalance(
    client: Client, asked: Asked, request: dict[str, Any], follow: proxy.Follow
) -> tuple[Any, ...]:
    """Place the rows anew; `follow` runs ``request`` as the app "rebalance"."""
    request = {
        **request,
        "coming": sum(nbytes_of(x) for x in asked.collections if not is_there(x)),
        "distribution": asked.distribution,
        "seconds": asked.seconds,
    }
    if asked.kernel is not None:
        _packed(asked, {})  # refused before all else
    await proxy.check(client, "rebalance", request)
    attempt = partial(_attempt, client, asked, request, follow)
    return await sent_again(asked.collections, request["workers"], attempt)


async def _attempt(
    client: Client, asked: Asked, request: dict[str, Any], follow: proxy.Follow
) -> tuple[Any, ...]:
    load = partial(_all_there, client, asked.collections, request["workers"])
    there = await proxy.leased_load(follow, request, asked.collections, load)
    there, inputs = await rows_of(client, there, [0] * len(there), follow, request)
    for n, one in enumerate(inputs):
        if one.count != inputs[0].count:
            raise PartitionError(
                f"collection {n} has {one.count} rows, the first one {inputs[0].count}; give "
                "collections of the same rows"
            )
    per_row = {"weights": asked.weights, "groups": asked.groups}
    lazy = [name for name, x in per_row.items() if is_dask_collection(x)]
    values = await values_of(client, [per_row[name] for name in lazy], follow, request)
    weights, groups = (per_row | dict(zip(lazy, values, strict=True))).values()
    cuts = cuts_of(weights, groups, inputs[0].edges)
    if weights is not None:
        _check_units(asked.distribution, cuts.total)
    elif asked.distribution is not None:
        check_sum(asked.distribution.values(), cuts.count)
    kernel = None
    if asked.kernel is not None:
        like = [[one.dtype, one.shape] for one in inputs]
        parameters = {"rows": like, "units": None if cuts.anywhere else cuts.total}
        kernel = _packed(asked, parameters)
    spec = RebalanceSpec(inputs, cuts)
    dims = [1 if _is_frame(x) else x.ndim for x in there]
    asking = {**request, "kernel": kernel, "rebalance": spec.to_json(), "dims": dims}
    value, report = await follow("rebalance", asking)
    if report.reason == TOO_SHORT:
        warnings.warn(
            "the kernel takes too little time to be measured: the rows stay where they are; give "
            "it more to do",
            stacklevel=2,
        )
    if not value["chunks"]:
        return tuple(there)
    made = [_made(client, x, n, spec, value) for n, x in enumerate(there)]
    known = [n for n, x in enumerate(there) if _is_frame(x) and x.known_divisions]
    told = await divisions_of(client, [made[n] for n in known], follow, request)
    divisions = dict(zip(known, told, strict=True))
    lengths = tuple(stop - start for start, stop in value["chunks"])
    return tuple(
        frame_of(parts, meta_of(x), "fpmdask-rebalance", divisions.get(n))
        if _is_frame(x)
        else _array(parts, x, lengths)
        for n, (x, parts) in enumerate(zip(there, made, strict=True))
    )


def _packed(asked: Asked, parameters: Mapping[str, Any]) -> dict[str, Any]:
    assert asked.kernel is not None
    made = RowsKernel(asked.kernel, parameters)
    return packed(callable_name(asked.kernel), made, "the kernel", known_as=asked.name)


async def _all_there(
    client: Client, collections: Sequence[Any], workers: Sequence[str] | None
) -> list[Any]:
    """Return collections that are in the workers' memory."""
    return await asyncio.gather(
        *(
            (frame_in_memory if _is_frame(x) else array_in_memory)(client, x, workers)
            for x in collections
        )
    )


def cuts_of(weights: Any, groups: Any, edges: Sequence[int]) -> Cuts:
    """Return where rows may be cut, and the units before.

    Parameters
    ----------
    weights, groups
        One for each row, or None.
    edges
        Of the chunks, which stay places as far as they are some.

    Raises
    ------
    PartitionError
        For weights that are no numbers >= 0, and groups that are not contiguous.
    """
    rows = edges[-1]
    if weights is None and groups is None:
        return Cuts(rows)
    units = np.arange(rows + 1, dtype=np.float64)
    if weights is not None:
        np.cumsum(_weights(weights, rows), out=units[1:])
    places = np.arange(rows + 1) if groups is None else _starts(groups, rows)
    if len(places) > MOST_PLACES:
        wanted = np.linspace(0, units[-1], MOST_PLACES)
        near = places[np.searchsorted(units[places], wanted).clip(max=len(places) - 1)]
        places = np.unique(np.concatenate([near, np.intersect1d(edges, places), [0, rows]]))
    return Cuts(rows, places, units[places])


def _per_row(given: Any, rows: float, what: str) -> np.ndarray:
    """Return values as an array, one for each row; any number where that is not known (NaN)."""
    if np.ma.is_masked(given):
        raise PartitionError(f"{what} are masked in places; give one for each row")
    found = np.asarray(given)
    if found.ndim != 1 or (len(found) != rows and not math.isnan(rows)):
        raise PartitionError(
            f"{what} have the shape {found.shape}; give one for each of the {rows} rows"
        )
    return found


def _check_lazy(given: Any, rows: float, what: str) -> None:
    """Refuse a collection that is not one value for each row, as far as that is known."""
    if not (isinstance(given, da.Array) or _is_frame(given)) or given.ndim != 1:
        raise PartitionError(
            f"{what} are a {type(given).__name__}; give an array of one axis, or a series"
        )
    if not math.isnan(count := _count(given)) and not math.isnan(rows) and count != rows:
        raise PartitionError(
            f"{what} have the shape {given.shape}; give one for each of the {rows} rows"
        )


def _check_numbers(dtype: Any) -> None:
    """Refuse weights of a type that is not of real numbers; objects are tried one by one."""
    if getattr(dtype, "kind", "O") not in "biufO":
        raise PartitionError(f"weights are no numbers, but of dtype {dtype}; give one per row")


def _weights(given: Any, rows: float) -> np.ndarray:
    """Return the weight of each row."""
    found = _per_row(given, rows, "weights")
    _check_numbers(found.dtype)
    try:
        found = found.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise PartitionError(f"weights are no numbers ({error}); give one per row") from error
    good = np.isfinite(found) & (found >= 0)
    if not good.all():
        at = int(np.argmin(good))
        raise PartitionError(f"weights[{at}] is {found[at]}; give finite numbers >= 0")
    with np.errstate(over="ignore"):
        every = found.sum()
    if len(found) and not 0 < every < math.inf:
        raise PartitionError(f"the weights are {every:g} in all; give a finite sum > 0")
    return found


def _starts(given: Any, rows: float) -> np.ndarray:
    """Return where groups begin, and how many rows there are.

    Examples
    --------
    >>> _starts(np.array([7, 7, 3, 3, 3]), 5)
    array([0, 2, 5])
    """
    ids = _per_row(given, rows, "groups")
    try:
        starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))[: len(ids)]
        first = ids[starts]
        missing = bool(np.any(first != first)) or None in (names := first.tolist())
    except TypeError:  # pandas.NA is neither equal to anything nor not
        missing = True
    if missing:
        raise PartitionError("a group id is missing (NaN or None); give one for each row")
    seen: set[Any] = set()
    for at, one in zip(starts, names, strict=True):
        if not isinstance(one, Hashable):
            raise PartitionError(f"group id {one!r} is a {type(one).__name__}; give hashable ones")
        if one in seen:
            raise PartitionError(
                f"group {one!r} begins again at row {at}; sort the rows by group, so that those of "
                "one follow each other"
            )
        seen.add(one)
    return np.append(starts, len(ids))


def _check_units(distribution: Mapping[str, float] | None, every: float) -> None:
    if distribution is None:
        return
    # whole numbers of units may be off by one for each worker
    if abs((found := sum(distribution.values())) - every) > min(len(distribution), every / 2):
        raise PartitionError(
            f"distribution has {found:g} units (sums of weights) in all, the collections "
            f"{every:g}; give as many"
        )


def _made(
    client: Client, x: Any, n: int, spec: RebalanceSpec, value: Mapping[str, Any]
) -> list[Future[Any]]:
    """Return the published chunks of a result, each with the task that makes it again."""
    name, one = f"{value['name']}-{n}", spec.inputs[n]
    ndim = 1 if _is_frame(x) else x.ndim
    graph: dict[Any, Any] = {}
    for at, span in enumerate(value["chunks"]):
        pieces = one.pieces(tuple(span))
        refs = [TaskRef(one.keys[chunk]) for chunk, _, _ in pieces]
        key = (name, at, *[0] * (ndim - 1))
        graph[key] = Task(key, again, [(low, high) for _, low, high in pieces], *refs)
    held = {part.key: part for part in partitions_of(x)}
    layers: dict[str, Any] = {
        name: MaterializedLayer(graph),
        f"{name}-given": MaterializedLayer(held),
    }
    layered = HighLevelGraph(layers, {name: {f"{name}-given"}, f"{name}-given": set()})
    found: list[Future[Any]] = client.get(layered, [*graph], sync=False)
    return found


def _array(parts: Sequence[Future[Any]], x: da.Array, lengths: tuple[int, ...]) -> da.Array:
    keys: list[Any] = [part.key for part in parts]
    graph = dict(zip(keys, parts, strict=True))
    return da.Array(graph, keys[0][0], chunks=(lengths, *x.chunks[1:]), meta=meta_of(x))
