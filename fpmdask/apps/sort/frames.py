"""The client's side of a sort of a dask DataFrame: by keys, after which rows move once."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef
from distributed import Client, Future, futures_of

from fpmdask.apps.matmul.inputs import finished
from fpmdask.apps.sort import arrays, rows
from fpmdask.apps.sort.delivery import delivered, divisions
from fpmdask.apps.sort.encode import scheme, words_needed
from fpmdask.apps.sort.homes import again, made, places, token
from fpmdask.apps.sort.rows import INDEX, Keys, Look, Order
from fpmdask.coordinator import config
from fpmdask.errors import PartitionError

# Rows by which it is found out how much of the keys is needed, of all partitions together and of
# one of many.
SAMPLE, LEAST_SAMPLE = 1 << 14, 16


async def sort_values(
    client: Client,
    ddf: dd.DataFrame,
    order: Order,
    request: dict[str, Any],
    follow: arrays.Follow,
) -> dd.DataFrame:
    """Return the frame with its rows in order; ``follow`` runs ``request`` as the app "sort"."""
    try:
        return await _sorted(client, ddf, order, request, follow)
    except BaseException as error:
        # the frames of an exception would hold partitions on the workers for as long as it lives
        traceback.clear_frames(error.__traceback__)
        del ddf
        raise


async def _sorted(
    client: Client,
    ddf: dd.DataFrame,
    order: Order,
    request: dict[str, Any],
    follow: arrays.Follow,
) -> dd.DataFrame:
    persisted = client.persist(ddf)
    partitions = _partitions(persisted)
    stage = partial(_each, client, persisted, partitions)
    looks: list[Look] = await client.gather(
        await again(partial(stage, "look", rows.look, DataNode(None, order)))
    )
    starts = np.cumsum([0, *(look.rows for look in looks)])
    total = int(starts[-1])
    if not total:
        return _collection(ddf, partitions, None)
    await _check_fits(client, partitions, request["workers"])
    union = await _union(client, partitions, looks)
    keys = _keys(order, looks, starts, union)
    bits = sum(how.bits for how in keys.how)
    if bits + keys.row_bits > 64:
        some = max(LEAST_SAMPLE, SAMPLE // len(partitions))
        futures = await again(
            partial(stage, "sample", rows.sample, DataNode(None, keys), lambda n: (some,))
        )
        sample = np.concatenate(await client.gather(futures))
        del futures
        words = words_needed(sample, bits, keys.row_bits, total)
        keys = replace(keys, words=words, whole=64 * words >= bits + keys.row_bits)
    encoded = await again(partial(stage, "keys", rows.encode, DataNode(None, keys), lambda n: (n,)))
    x = _array(encoded, keys, looks)
    del encoded
    found = await arrays.sort(client, x, request, follow, descending=False, index=False)
    del x
    moving = partial(delivered, client, persisted, partitions, found, keys)
    parts = await again(moving)
    return _collection(ddf, parts, await divisions(client, parts, keys))


def _partitions(persisted: dd.DataFrame) -> list[Future[Any]]:
    """Return the futures of the partitions, in order."""
    graph = persisted.__dask_graph__()
    futures = {future.key: future for future in futures_of(persisted)}
    found = []
    for key in persisted.__dask_keys__():
        while key not in futures:
            alias = graph[key]
            assert isinstance(alias, Alias)
            key = alias.target
        found.append(futures[key])
    return found


async def _each(
    client: Client,
    persisted: dd.DataFrame,
    partitions: Sequence[Future[Any]],
    what: str,
    function: Callable[..., Any],
    shared: DataNode,
    more: Callable[[int], tuple[Any, ...]] = lambda n: (),
) -> list[Future[Any]]:
    """Run a task per partition where that is."""
    await finished(client, persisted)
    name, common = token(what), token(f"{what}-plan")
    tasks: dict[Any, GraphNode] = {
        (name, n): Task((name, n), function, TaskRef(future.key), TaskRef(common), *more(n))
        for n, future in enumerate(partitions)
    }
    homes = dict(zip(tasks, await places(client, partitions), strict=True))
    plan = {common: DataNode(common, shared.value)}
    return await made(client, name, tasks, homes, partitions, plan)


async def _check_fits(
    client: Client, partitions: Sequence[Future[Any]], workers: Sequence[str] | None
) -> None:
    """Refuse a frame of which the workers have no room for a second copy and its pieces.

    Raises
    ------
    PartitionError
        With the numbers. Pinned tasks would wait for ever on workers that pause.
    """
    scheduler: Any = client.scheduler
    held = await scheduler.nbytes(keys=[future.key for future in partitions], summary=False)
    needed = 2 * sum(held.values())
    target = float(config.setting("spill-target"))
    room = 0.0
    for address, worker in (await scheduler.identity(n_workers=-1))["workers"].items():
        if workers is not None and not {address, str(worker["name"])} & set(workers):
            continue
        limit = worker["memory_limit"]
        # not the process's: what the last run has let go is free again
        used = worker["metrics"]["managed_bytes"]
        room += max(0.0, target * limit - used) if limit else np.inf
    if needed > room:
        raise PartitionError(
            f"partitions of {needed // 2} bytes need {needed} bytes beside themselves to be put in "
            f"order; the workers have room for {room:.0f}; add workers or memory"
        )


async def _union(
    client: Client, partitions: Sequence[Future[Any]], looks: Sequence[Look]
) -> dict[Any, pd.CategoricalDtype]:
    """Return the categories of all partitions for columns that have different ones.

    Raises
    ------
    PartitionError
        If they have none in common: ordered ones, or of different dtypes.
    """
    # column -> what its categories are -> the first partition that has these
    first: dict[Any, dict[str, int]] = {}
    for n, look in enumerate(looks):
        for name, kind in look.categories.items() if look.rows else ():
            first.setdefault(name, {}).setdefault(kind, n)
    different = {name: at for name, at in first.items() if len(at) > 1}
    asked = sorted({n for at in different.values() for n in at.values()})
    futures = client.map(rows.categories, [partitions[n] for n in asked], pure=False)
    answers = dict(zip(asked, await client.gather(futures), strict=True))
    union = {}
    for name, at in different.items():
        own = [pd.Categorical([], dtype=answers[n][name]) for n in at.values()]
        try:
            union[name] = pd.api.types.union_categoricals(own).dtype
        except TypeError as error:
            label = "the index" if name == INDEX else repr(name)
            raise PartitionError(
                f"the categories of {label} differ in the partitions and have no union ({error}); "
                "give all of them the same with cat.set_categories"
            ) from None
    return union


def _keys(
    order: Order,
    looks: Sequence[Look],
    starts: np.ndarray,
    union: Mapping[Any, pd.CategoricalDtype],
) -> Keys:
    """Return the scheme of keys that have one word."""
    how = []
    for n, (name, level) in enumerate(zip(order.by, order.level, strict=True)):
        made = scheme(
            [look.seen[n] for look in looks],
            name,
            descending=not order.ascending[n],
            nulls_first=order.na_position == "first",
        )
        if (column := INDEX if level else name) in union:
            made = replace(made, high=max(0, len(union[column].categories) - 1))
        how.append(made)
    row_bits = max(1, (int(starts[-1]) - 1).bit_length())
    return Keys(order, tuple(how), 1, row_bits, True, starts[:-1], dict(union))


def _array(encoded: Sequence[Future[Any]], keys: Keys, looks: Sequence[Look]) -> da.Array:
    graph: dict[Any, Any] = {future.key: future for future in encoded}
    name = next(iter(graph))[0]
    dtype = np.dtype(np.uint64 if keys.words == 1 else f"S{8 * keys.words}")
    return da.Array(graph, name, chunks=(tuple(look.rows for look in looks),), dtype=dtype)


def _collection(
    ddf: dd.DataFrame, parts: Sequence[Future[Any]], divisions: tuple[Any, ...] | None
) -> dd.DataFrame:
    graph = {part.key: part for part in parts}
    known = divisions or (None,) * (len(parts) + 1)
    made: dd.DataFrame = dd.from_graph(graph, ddf._meta, known, [*graph], "fpmdask-sort-values")
    return made
