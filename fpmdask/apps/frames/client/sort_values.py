"""The client's side of a sort of a dask DataFrame: by keys, after which rows move once."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, Future, futures_of
from distributed.client import FutureCancelledError

from fpmdask.apps.frames.client.loading import COPIES, check_fits, loaded, sent
from fpmdask.apps.frames.client.payload_shuffle import carried, carrying, form_of
from fpmdask.apps.frames.client.rebalance_rows import handed_over
from fpmdask.apps.frames.client.shuffle import by_index, delivered, divisions
from fpmdask.apps.frames.tasks import rows
from fpmdask.apps.frames.tasks.encode import scheme
from fpmdask.apps.frames.tasks.rows import INDEX, Form, Keys, Look, Order
from fpmdask.errors import ChunksLostError, PartitionError
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.inputs import SENDINGS, finished, letting_go
from fpmdask.runtime.client.rows import partitions_of
from fpmdask.runtime.client.stages import Stages, token
from fpmdask.runtime.dask_private import DataNode, GraphNode, Task, TaskRef, meta_of
from fpmdask.runtime.report import Moved, Report
from fpmdask.sorting.spec import SortSpec
from fpmdask.sorting.words import prefixes, words_needed
from fpmdask.tuning import Tuning

# Rows by which it is found out how much of the keys is needed, of all partitions together and of
# one of many.
SAMPLE, LEAST_SAMPLE = 1 << 14, 16

# What most rows become.
KEY = np.dtype(np.uint64)

# Frames that are handed over, and what is left of partitions, which Dask counts twice.
HANDED = 2
# Bytes of a row beside its columns where these travel with the keys: keys of a run and of a part,
# where the row comes from, one column.
BESIDE_KEYS = 32


# As `fpmdask.apps.sort.client.arrays.sort`: one application does not import another.
SortKeys = Callable[..., Awaitable[da.Array]]


async def sort_values(
    client: Client,
    frame: dd.DataFrame | pd.DataFrame,
    order: Order,
    request: dict[str, Any],
    follow: proxy.Follow,
    sort_keys: SortKeys,
    tuning: Tuning,
) -> tuple[dd.DataFrame, Moved | None]:
    """Return the frame with its rows in order, and what that took; None where it has no rows.

    ``follow`` runs ``request`` as the app "sort", ``sort_keys`` sorts a dask array of keys so,
    ``tuning`` holds thresholds. A pandas frame is sent to the workers, and sent again where one
    leaves with a part of it.

    Raises
    ------
    ChunksLostError
        If partitions are lost, before or during the sort, and cannot be made again.
    PartitionError
        If the frame does not fit into the workers' memory.
    CoordinatorError
        If no worker, or not every named one, is connected, or one stays paused or silent.
    """
    await proxy.check(client, "sort", request)  # before the frame is computed
    if not isinstance(frame, pd.DataFrame):
        return await _sort_dask(client, frame, order, request, follow, sort_keys, tuning)
    # where workers are named, all of them must be there
    sendings = SENDINGS if request["workers"] is None else 1
    while True:
        sendings -= 1
        ddf = await sent(client, frame, request["workers"])
        try:
            return await _sort_dask(client, ddf, order, request, follow, sort_keys, tuning)
        except ChunksLostError:
            if not sendings:
                raise
        del ddf  # what is left of it makes room


async def _sort_dask(
    client: Client,
    ddf: dd.DataFrame,
    order: Order,
    request: dict[str, Any],
    follow: proxy.Follow,
    sort_keys: SortKeys,
    tuning: Tuning,
) -> tuple[dd.DataFrame, Moved | None]:
    """Do what `sort_values` does, for a dask frame."""
    # persisting what is in memory makes a task per partition, which waits for a stopped worker
    there = _is_in_memory(ddf)
    load = partial(loaded, client, ddf, request["workers"])
    persisted = ddf if there else await proxy.leased_load(follow, request, [ddf], load)
    try:
        sort = partial(_sort_persisted, client, ddf, persisted, order, follow, sort_keys, tuning)
        return await proxy.leased(follow, "frames", request, sort)
    except (ChunksLostError, FutureCancelledError):
        # what was made of lost partitions is lost with them, but the caller knows only these
        if any(future.cancelled() for future in futures_of(persisted)):
            await finished(client, persisted)
        raise


@letting_go
async def _sort_persisted(
    client: Client,
    ddf: dd.DataFrame,
    persisted: dd.DataFrame,
    order: Order,
    follow: proxy.Follow,
    sort_keys: SortKeys,
    tuning: Tuning,
    request: dict[str, Any],
) -> tuple[dd.DataFrame, Moved | None]:
    """Do the work of `sort_values`; apart, as another exception may replace its exception."""
    began = time.perf_counter()
    partitions = partitions_of(persisted)
    nbytes, spare = await check_fits(client, partitions, request["workers"])
    stages = Stages(client, request["within"], tuning.runtime)
    stages.enter("look", 0.0, 0.15)
    stage = partial(_each, stages, partitions)
    looks: list[Look] = [Look(0, (), {}, "")] * len(partitions)
    look = partial(rows.look, (tuning.sort.most_distinct, tuning.sort.most_distinct_nbytes))
    for numbers, told in await stages.again(partial(stage, "look", look, order, stages.asked)):
        for n, found in zip(numbers, told, strict=True):
            looks[n] = found
    sizes = [found.rows for found in looks]
    if not any(sizes):
        return _collection(ddf, partitions, None), None
    extra = -(-COPIES * nbytes // sum(sizes))
    union = await stages.again(partial(_union, stages, partitions, looks))
    like, pattern = None, form_of(looks)
    spare -= BESIDE_KEYS * sum(sizes)
    if spare >= nbytes and not by_index(order) and pattern is not None:
        like = await stages.again(partial(_without_rows, stages, partitions[pattern]))
    dealing: Report | None = None
    handed: list[tuple[str, Future[Any]]] = []
    if spare >= (1 + HANDED) * nbytes and sum(sizes) >= tuning.sort.few_rows:
        spec = SortSpec(KEY, (sum(sizes),), "", extra=extra).to_json()
        asked = {**request, "sort": spec, "payload": like is not None}
        stages.enter("share out", 0.15, 0.25)
        answer, dealing = await follow("sort.deal", asked)
        if answer["shares"] is not None:
            dealt = partial(handed_over, stages, partitions, sizes, answer["shares"])
            partitions, sizes, handed = await stages.again(dealt)
            stage = partial(_each, stages, partitions)
    stages.enter("keys", 0.25, 0.35)
    short = _keys(order, looks, sizes, union, tuning.sort.most_distinct)
    keys = await _with_words(stages, stage, short, sizes, null=like is not None)
    parts: list[Future[Any]] = []
    known: tuple[Any, ...] | None = None
    why = "there are columns of other dtypes than NumPy's, an index to sort by, or little memory"
    if like is not None and (keys.words == 1 or keys.whole):
        # the sort makes the keys itself, of what is where this says how
        form = Form(keys, like)
        here = await stages.again(partial(stage, "how", rows.how, form, stages.made))
        bundles = [numbers for numbers, _ in here]
        made = time.perf_counter()
        spec = carrying(_array(here, keys, sizes), bundles, partitions, sizes, form)
        stages.enter("sort", 0.35, 0.9)
        value, _ = await follow("sort", {**request, "sort": spec})
        sorted_at = time.perf_counter()
        why = value.get("left", "a worker left with what was published")
        if "left" not in value:
            stages.enter("rows", 0.9, 1.0)
            with suppress(ChunksLostError):  # what was published, perhaps
                parts = await carried(stages, value, bundles, partitions, form)
    elif like is not None:
        why = f"keys of {keys.words} words do not hold all that rows are sorted by"
    if not parts:
        # rows without a value are not told apart by keys with which they were to travel
        if like is not None and keys.null is not None and not keys.whole:
            keys = await _with_words(stages, stage, short, sizes, null=False)
        encoded = await stages.again(partial(stage, "keys", rows.encode, keys, stages.made))
        x = _array(encoded, keys, sizes)
        del encoded
        stages.enter("sort", 0.4, 0.7)
        made = time.perf_counter()
        found = await sort_keys(
            client, x, request, follow, tuning, descending=False, index=False, extra=extra
        )
        del x
        sorted_at = time.perf_counter()
        stages.enter("rows", 0.7, 1.0)
        moving = partial(delivered, stages, partitions, found, keys)
        parts, received = await stages.again(moving)
        handed += received
        known = await divisions(client, parts, keys, follow, request)
        why = f"fetched after the sort: {why}"
    else:
        why = "travelled with their keys"
    moved = await client.gather([number for _, number in handed])
    return _collection(ddf, parts, known), Moved(
        made - began,
        time.perf_counter() - sorted_at,
        [(worker, count) for (worker, _), count in zip(handed, moved, strict=True)],
        nbytes,
        dealing,
        why,
    )


async def _without_rows(stages: Stages, partition: Future[Any]) -> Any:
    """Return a partition's columns without its rows."""
    name = token("like")
    task = Task((name, 0), rows.between, 0, 0, TaskRef(partition.key))
    [place] = await stages.places([partition])
    [like] = await stages.asked(name, {(name, 0): task}, {(name, 0): place}, [partition], {})
    return like


async def _with_words(
    stages: Stages,
    stage: Callable[..., Awaitable[Any]],
    keys: Keys,
    sizes: Sequence[int],
    *,
    null: bool,
) -> Keys:
    """Return keys of as many words as tell rows apart; with `null` but for those without values."""
    bits = sum(how.bits for how in keys.how)
    if bits + keys.row_bits <= 64:
        return keys
    function = partial(rows.sample, max(LEAST_SAMPLE, SAMPLE // len(sizes)))
    samples = await stages.again(partial(stage, "sample", function, keys, stages.asked))
    sample = np.concatenate([some for _, some in samples])
    if null and keys.null is not None:  # ties that need no other word
        bit, value = keys.null
        sample = sample[prefixes(sample, 0)[:, 0] >> np.uint64(bit) & np.uint64(1) != value]
    words = words_needed(sample, bits, keys.row_bits, sum(sizes))
    return replace(keys, words=words, whole=64 * words >= bits + keys.row_bits)


def _is_in_memory(ddf: dd.DataFrame) -> bool:
    """Tell whether the partitions of a frame are finished futures already."""
    try:
        return all(future.status == "finished" for future in partitions_of(ddf))
    except (KeyError, AssertionError):
        return False


async def _each(
    stages: Stages,
    partitions: Sequence[Future[Any]],
    what: str,
    function: Callable[..., Any],
    shared: Any,
    run: Callable[..., Awaitable[list[Any]]],
) -> list[tuple[list[int], Any]]:
    """Run a task for the partitions of each worker's thread; return (their numbers, what it made).

    ``run`` is `Stages.asked` or `Stages.made`.
    """
    bundles = await stages.bundles(partitions)
    name, common = token(what), token(f"{what}-plan")
    tasks: dict[Any, GraphNode] = {}
    for n, (_, numbers) in enumerate(bundles):
        frames = [TaskRef(partitions[number].key) for number in numbers]
        tasks[name, n] = Task((name, n), function, TaskRef(common), tuple(numbers), *frames)
    at = {(name, n): worker for n, (worker, _) in enumerate(bundles)}
    made = await run(name, tasks, at, partitions, {common: DataNode(common, shared)})
    return [(numbers, one) for (_, numbers), one in zip(bundles, made, strict=True)]


async def _union(
    stages: Stages,
    partitions: Sequence[Future[Any]],
    looks: Sequence[Look],
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
    if not asked:
        return {}
    given = [partitions[n] for n in asked]
    name = token("categories")
    tasks: dict[Any, GraphNode] = {
        (name, n): Task((name, n), rows.categories, TaskRef(one.key)) for n, one in enumerate(given)
    }
    pins = dict(zip(tasks, await stages.places(given), strict=True))
    answers = dict(zip(asked, await stages.asked(name, tasks, pins, given, {}), strict=True))
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
    sizes: Sequence[int],
    union: Mapping[Any, pd.CategoricalDtype],
    most_distinct: int,
) -> Keys:
    """Return the scheme of keys that have one word."""
    how = []
    for n, (name, level) in enumerate(zip(order.by, order.level, strict=True)):
        made = scheme(
            [look.seen[n] for look in looks],
            name,
            descending=not order.ascending[n],
            nulls_first=order.na_position == "first",
            most_distinct=most_distinct,
        )
        if (column := INDEX if level else name) in union:
            made = replace(made, high=max(0, len(union[column].categories) - 1))
        how.append(made)
    local_bits = max(1, (max(sizes) - 1).bit_length())
    row_bits = local_bits + (len(sizes) - 1).bit_length()
    return Keys(order, tuple(how), 1, row_bits, True, local_bits, dict(union))


def _array(
    encoded: Sequence[tuple[list[int], Future[Any]]], keys: Keys, sizes: Sequence[int]
) -> da.Array:
    graph: dict[Any, Any] = {future.key: future for _, future in encoded}
    name = next(iter(graph))[0]
    chunks = tuple(sum(sizes[n] for n in numbers) for numbers, _ in encoded)
    return da.Array(graph, name, chunks=(chunks,), dtype=keys.dtype)


def _collection(
    ddf: dd.DataFrame, parts: Sequence[Future[Any]], divisions: tuple[Any, ...] | None
) -> dd.DataFrame:
    graph = {part.key: part for part in parts}
    known = divisions or (None,) * (len(parts) + 1)
    made: dd.DataFrame = dd.from_graph(graph, meta_of(ddf), known, [*graph], "fpmdask-sort-values")
    return made
