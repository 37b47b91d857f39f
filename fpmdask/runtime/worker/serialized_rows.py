"""Rows of any type as bytes on their way: frames, objects, sparse blocks.

Runs on workers, in the threads of steps. A holder cuts what a peer wants of a chunk and offers it
as bytes; Dask itself sends whole chunks only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from distributed.protocol import pickle

from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import Want

# Buffers begin at multiples of this: what is unpacked are views of them.
ALIGNED = 64


def packed(value: Any) -> np.ndarray:
    """Return any object as bytes.

    Examples
    --------
    >>> unpacked(packed(["a", np.arange(3)]))
    ['a', array([0, 1, 2])]
    """
    buffers: list[Any] = []
    head = pickle.dumps(value, buffer_callback=lambda one: buffers.append(one.raw()))
    parts = [memoryview(head), *buffers]
    table = np.array([len(parts), *(part.nbytes for part in parts)], np.int64)
    starts = _starts(table)
    found = np.empty(starts[-1], np.uint8)
    found[: table.nbytes] = table.view(np.uint8)
    for start, part in zip(starts, parts, strict=False):
        found.data[start : start + part.nbytes] = part
    return found


def unpacked(data: np.ndarray) -> Any:
    """Return what was packed; its arrays are views of ``data``."""
    count = int(data[:8].view(np.int64)[0])
    table = data[: 8 * (count + 1)].view(np.int64)
    starts = _starts(table)
    parts = [data[at : at + n] for at, n in zip(starts, table[1:].tolist(), strict=False)]
    return pickle.loads(parts[0].tobytes(), buffers=parts[1:])


def _starts(table: np.ndarray) -> list[int]:
    """Return where the parts of these lengths begin, and where the last one ends."""
    found = [table.nbytes]
    for nbytes in table[1:].tolist():
        found[-1] = -(-found[-1] // ALIGNED) * ALIGNED
        found.append(found[-1] + nbytes)
    return found


def offer(exchange: Exchange, key: Any, value: Any) -> None:
    """Offer an object to peers under a key of this run."""
    data = packed(value)
    exchange.offer((key, "size"), np.array([data.nbytes]))
    exchange.offer((key, "data"), data)


def fetched(exchange: Exchange, wanted: Iterable[tuple[Any, str]]) -> list[tuple[Any, int]]:
    """Return what peers offer under (key, address): each object, and its bytes."""
    every = list(wanted)
    sizes = [np.empty(1, np.int64) for _ in every]
    box = ((0, 1),)
    exchange.fetch(
        Want((key, "size"), box, size, [peer])
        for (key, peer), size in zip(every, sizes, strict=True)
    ).wait()
    data = [np.empty(int(size[0]), np.uint8) for size in sizes]
    exchange.fetch(
        Want((key, "data"), ((0, one.size),), one, [peer])
        for (key, peer), one in zip(every, data, strict=True)
    ).wait()
    return [(unpacked(one), one.nbytes) for one in data]
