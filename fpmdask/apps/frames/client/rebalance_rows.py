"""Rows of a frame that slow workers hand over to fast ones, untouched, before they are sorted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distributed import Future

from fpmdask.apps.frames.tasks import rows
from fpmdask.runtime.client.stages import Stages, token
from fpmdask.runtime.dask_private import GraphNode, Task, TaskRef
from fpmdask.runtime.placement import Piece, dealt


async def handed_over(
    stages: Stages,
    partitions: Sequence[Future[Any]],
    sizes: Sequence[int],
    shares: Mapping[str, int],
) -> tuple[list[Future[Any]], list[int], list[tuple[str, Future[Any]]]]:
    """Return partitions, in order, of which each worker holds rows as it has a share of them.

    Parameters
    ----------
    partitions, sizes
        The futures of the frame's partitions and how many rows they have.
    shares
        Address → rows.

    Returns
    -------
    partitions : list of Future
        Those that stay where they are, and new ones: what is left of one, and what was handed over.
    sizes : list of int
        Their rows.
    received : list of (str, Future)
        Workers to which rows were handed, and how many bytes.

    Raises
    ------
    WorkerLeft
        If a worker leaves that has rows or is to have some.

    Notes
    -----
    Who holds no more than `fpmdask.runtime.placement.SURPLUS` times its share keeps all of it. Only
    rows that are wanted elsewhere are sent. O(partitions + workers) tasks.
    """
    places = await stages.places(partitions)
    busy = {worker: share for worker, share in shares.items() if worker in stages.threads}
    held = [[place] for place in places]
    cuts = cut_up(dealt(sizes, held, busy)) if any(busy.values()) else {}

    name = token("handed")
    tasks: dict[Any, GraphNode] = {}
    pins: dict[Any, str] = {}
    made: list[Future[Any] | int] = []
    made_sizes: list[int] = []
    came: dict[str, list[TaskRef]] = {}

    def add(key: Any, worker: str, function: Callable[..., Any], *args: Any) -> TaskRef:
        tasks[key] = Task(key, function, *args)
        pins[key] = worker
        return TaskRef(key)

    number = 0
    for n, (future, place, size) in enumerate(zip(partitions, places, sizes, strict=True)):
        own = cuts.get(n, [])
        if not size or all(taker == place for _, _, taker in own):
            made.append(future)
            made_sizes.append(size)
            continue
        for low, high, taker in own:
            key = (name, number) if taker == place else (f"{name}-cut", number)
            piece = add(key, place, rows.between, low, high, TaskRef(future.key))
            if taker != place:
                came.setdefault(taker, []).append(add((name, number), taker, rows.as_it_is, piece))
            made.append(number)
            made_sizes.append(high - low)
            number += 1
    for n, (taker, pieces) in enumerate(came.items(), number):
        add((name, n), taker, rows.nbytes, *pieces)
    new = await stages.made(name, tasks, pins, partitions, {}) if tasks else []
    found = [new[one] if isinstance(one, int) else one for one in made]
    return found, made_sizes, list(zip(came, new[number:], strict=True))


def cut_up(pieces: Mapping[str, Sequence[Piece]]) -> dict[int, list[tuple[int, int, str]]]:
    """Return chunk -> (low, high, taker) of its pieces, in order; those without rows are left out.

    Examples
    --------
    >>> cut_up({"a": [Piece(0, 0, 60, "a"), Piece(1, 30, 60, "b")], "b": [Piece(1, 0, 30, "b")]})
    {0: [(0, 60, 'a')], 1: [(0, 30, 'b'), (30, 60, 'a')]}
    """
    found: dict[int, list[tuple[int, int, str]]] = {}
    for taker, own in pieces.items():
        for piece in own:
            if piece.size:
                found.setdefault(piece.chunk, []).append((piece.low, piece.high, taker))
    for chunk in found.values():
        chunk.sort()
    return found
