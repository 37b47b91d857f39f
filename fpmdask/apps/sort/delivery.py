"""The rows of a frame whose keys are sorted move to where their keys are, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import DataNode, GraphNode, Task, TaskRef
from distributed import Client, Future, futures_of

from fpmdask.apps.matmul.inputs import finished
from fpmdask.apps.sort import rows
from fpmdask.apps.sort.homes import made, places, token
from fpmdask.apps.sort.rows import Keys, Order


def _by_index(order: Order) -> bool:
    """Tell whether divisions may become known: those of a dask frame are of its index."""
    return order.level == order.ascending == (True,)


async def delivered(
    client: Client,
    persisted: dd.DataFrame,
    partitions: Sequence[Future[Any]],
    found: da.Array,
    keys: Keys,
) -> list[Future[Any]]:
    """Return the result's partitions, each on the worker that has its keys.

    Parameters
    ----------
    persisted, partitions
        The frame and the futures of its partitions, in order.
    found
        The sorted keys, one chunk for each part of the result.

    Raises
    ------
    HomeLeft
        If a worker leaves that has partitions or keys.

    Notes
    -----
    Of each part its worker finds out who holds the rows; each of these cuts them out of all that it
    holds; the part's worker puts the pieces in order. O(parts · workers) tasks.
    """
    await finished(client, persisted)
    await finished(client, found)
    futures = {future.key: future for future in futures_of(found)}
    parts = [futures[key] for key in found.__dask_keys__()]
    homes = await places(client, parts)
    holders = await places(client, partitions)
    common = token("rows-plan")
    plan: dict[Any, GraphNode] = {common: DataNode(common, keys)}
    ends = [(0, b"", b"")] * len(parts)
    if not keys.whole or _by_index(keys.order):
        name = token("ends")
        looks: dict[Any, GraphNode] = {
            (name, n): Task((name, n), rows.ends, TaskRef(part.key), TaskRef(common))
            for n, part in enumerate(parts)
        }
        at = dict(zip(looks, homes, strict=True))
        ends = await client.gather(await made(client, name, looks, at, parts, plan))
    gone, later = gathered(ends)

    workers = sorted(set(holders))
    number = {worker: n for n, worker in enumerate(workers)}
    own = {w: [n for n, holder in enumerate(holders) if holder == w] for w in workers}
    holder = np.array([number[worker] for worker in holders])
    name, run = token("sorted-rows"), uuid4().hex
    tasks: dict[Any, GraphNode] = {}
    pins: dict[Any, str] = {}

    def add(key: Any, worker: str, function: Callable[..., Any], *args: Any) -> TaskRef:
        tasks[key] = Task(key, function, *args)
        pins[key] = worker
        return TaskRef(key)

    shared = TaskRef(common)
    for n, (part, home) in enumerate(zip(parts, homes, strict=True)):
        more = [
            add((f"leading-{run}", m), homes[m], rows.leading, TaskRef(parts[m].key), shared, p)
            for m, p in later[n]
        ]
        arguments = TaskRef(part.key), shared, holder, len(workers), gone[n], *more
        all_rows = add((f"wanted-{run}", n), home, rows.wanted, *arguments)
        how = add((f"arrangement-{run}", n), home, rows.arrangement, all_rows)
        pieces = []
        for w, worker in enumerate(workers):
            some = add((f"rows-{run}", n, w), home, rows.rows_of, all_rows, w)
            frames = [TaskRef(partitions[p].key) for p in own[worker]]
            cut = some, shared, tuple(own[worker]), *frames
            pieces.append(add((f"cut-{run}", n, w), worker, rows.cut, *cut))
        add((name, n), home, rows.assemble, shared, how, *pieces)
    return await made(client, name, tasks, pins, [*partitions, *parts], plan)


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


async def divisions(client: Client, parts: list[Future[Any]], keys: Keys) -> tuple[Any, ...] | None:
    """Return the divisions where the index is in order; parts without rows are left out then."""
    categories = isinstance(keys.order.dtypes[0], pd.CategoricalDtype)
    if not _by_index(keys.order) or keys.how[0].nulls or categories:
        return None
    told = await client.gather(client.map(rows.bounds, parts, pure=False))
    parts[:] = [part for part, bounds in zip(parts, told, strict=True) if bounds is not None]
    some = [bounds for bounds in told if bounds is not None]
    return (*(first for first, _ in some), some[-1][1])
