"""The rows of a frame whose keys are sorted move to where their keys are, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
import pandas as pd
from distributed import Client, Future, futures_of

from fpmdask.apps.frames.tasks import rows
from fpmdask.apps.frames.tasks.rows import Holders, Keys, Order
from fpmdask.runtime.client import proxy
from fpmdask.runtime.client.chunk_facts import facts_of
from fpmdask.runtime.client.stages import Stages, token
from fpmdask.runtime.dask_private import DataNode, GraphNode, Task, TaskRef


def by_index(order: Order) -> bool:
    """Tell whether divisions may become known: those of a dask frame are of its index."""
    return order.level == order.ascending == (True,)


async def delivered(
    stages: Stages,
    partitions: Sequence[Future[Any]],
    found: da.Array,
    keys: Keys,
) -> tuple[list[Future[Any]], list[tuple[str, Future[Any]]]]:
    """Return the result's partitions, each on the worker that has its keys, and what was received.

    Parameters
    ----------
    partitions
        The futures of the frame's partitions, in order.
    found
        The sorted keys, one chunk for each part of the result.

    Returns
    -------
    parts : list of Future
    received : list of (str, Future)
        The worker of each part, and the bytes of rows and row numbers that crossed for it.

    Raises
    ------
    WorkerLeft
        If a worker leaves that has partitions or keys.

    Notes
    -----
    Of each part its worker finds out who holds the rows; each of these cuts them out of what it
    holds, those of a partition in the order of the part; the part's worker writes each row of the
    pieces to its place. O(parts · workers) tasks.
    """
    futures = {future.key: future for future in futures_of(found)}
    parts = [futures[key] for key in found.__dask_keys__()]
    places = await stages.places([*parts, *partitions])
    at, held_at = places[: len(parts)], places[len(parts) :]
    common = token("rows-plan")
    plan: dict[Any, GraphNode] = {common: DataNode(common, keys)}
    shared = TaskRef(common)
    ends = [(0, b"", b"")] * len(parts)
    if not keys.whole or by_index(keys.order):
        name = token("ends")
        looks: dict[Any, GraphNode] = {
            (name, n): Task((name, n), rows.ends, TaskRef(part.key), shared)
            for n, part in enumerate(parts)
        }
        ends = await stages.asked(name, looks, dict(zip(looks, at, strict=True)), parts, plan)
    gone, later = gathered(ends)

    name, run = token("sorted-rows"), uuid4().hex
    tasks: dict[Any, GraphNode] = {}
    pins: dict[Any, str] = {}

    def add(key: Any, worker: str, function: Callable[..., Any], *args: Any) -> TaskRef:
        tasks[key] = Task(key, function, *args)
        pins[key] = worker
        return TaskRef(key)

    workers = sorted(set(held_at))
    held = list(zip(partitions, held_at, strict=True))
    holders = holders_of(held_at)
    own = {
        worker: [TaskRef(future.key) for future, place in held if place == worker]
        for worker in workers
    }
    where = f"holders-{run}"
    plan[where] = DataNode(where, holders)
    for n, (part, home) in enumerate(zip(parts, at, strict=True)):
        more = [
            add((f"leading-{run}", m), at[m], rows.leading, TaskRef(parts[m].key), shared, p)
            for m, p in later[n]
        ]
        arguments = TaskRef(part.key), shared, TaskRef(where), gone[n], *more
        all_rows = add((f"wanted-{run}", n), home, rows.wanted, *arguments)
        pieces, crossing = [], []
        for w, worker in enumerate(workers):
            some = add((f"rows-{run}", n, w), home, rows.rows_of, all_rows, w)
            pieces.append(add((f"cut-{run}", n, w), worker, rows.cut, shared, some, *own[worker]))
            if worker != home:
                crossing += [some, pieces[-1]]
        add((name, n), home, rows.assemble, shared, all_rows, *pieces)
        add((name, len(parts) + n), home, rows.nbytes, *crossing)
    made = await stages.made(name, tasks, pins, [*partitions, *parts], plan)
    return made[: len(parts)], list(zip(at, made[len(parts) :], strict=True))


def holders_of(places: Sequence[str]) -> Holders:
    """Return the holders of partitions, in the order of their addresses.

    Examples
    --------
    >>> found = holders_of(["b", "a", "b"])
    >>> found.rank.tolist(), found.ends.tolist()
    ([1, 0, 2], [1])
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    rank = np.empty(len(places), np.min_scalar_type(len(places)))
    rank[order] = np.arange(len(places))
    _, counts = np.unique(places, return_counts=True)
    return Holders(rank, np.cumsum(counts)[:-1])


def gathered(
    ends: Sequence[tuple[int, bytes, bytes]],
) -> tuple[list[bytes | None], list[list[tuple[int, bytes]]]]:
    """Return how parts are changed so that keys of one prefix are in one part, the first of them.

    Parameters
    ----------
    ends : sequence of (int, bytes, bytes)
        Number of keys of each part, prefixes of its first and its last one.

    Returns
    -------
    gone : list of bytes or None
        The prefix whose keys leave each part.
    later : list of list of (int, bytes)
        The parts from which each takes keys of its last prefix, and that.

    Examples
    --------
    >>> gathered([(2, b"a", b"b"), (2, b"b", b"b"), (0, b"", b""), (3, b"b", b"d")])
    ([None, b'b', None, b'b'], [[(1, b'b'), (3, b'b')], [], [], []])
    """
    gone: list[bytes | None] = [None] * len(ends)
    later: list[list[tuple[int, bytes]]] = [[] for _ in ends]
    owner, open_prefix = 0, None
    for n, (count, first, last) in enumerate(ends):
        if not count:
            continue
        if first == open_prefix:
            gone[n] = first
            later[owner].append((n, first))
        if last != open_prefix:
            owner, open_prefix = n, last
    return gone, later


async def divisions(
    client: Client,
    parts: list[Future[Any]],
    keys: Keys,
    follow: proxy.Follow,
    request: dict[str, Any],
) -> tuple[Any, ...] | None:
    """Return the divisions where the index is in order; parts without rows are left out then."""
    categories = isinstance(keys.order.dtypes[0], pd.CategoricalDtype)
    if not by_index(keys.order) or keys.how[0].nulls or categories:
        return None
    [told] = await facts_of(client, rows.bounds, [parts], follow, request)
    parts[:] = [part for part, bounds in zip(parts, told, strict=True) if bounds is not None]
    some = [bounds for bounds in told if bounds is not None]
    return (*(first for first, _ in some), some[-1][1])
