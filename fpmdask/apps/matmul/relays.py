"""Which chunks of workers behind slow links are relayed, by whom, and in which order. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fpmdask.apps.matmul.plan import MatmulSpec, Tile, needed
from fpmdask.runtime.links import Link, slow_links
from fpmdask.runtime.regions import Box, size

# What a worker offers a chunk as that it relays.
RELAYED = "fpmdask-relayed"
# Sending that takes less of the product's time is hidden behind the multiplication.
HIDDEN = 0.5


def relays(
    spec: MatmulSpec,
    tiles: Mapping[str, Sequence[Tile]],
    holders: Mapping[Any, Sequence[str]],
    links: Mapping[str, Link],
    room: Mapping[str, float],
    seconds: float = math.nan,
) -> dict[Any, str]:
    """Return which worker relays which chunk: key -> address.

    Parameters
    ----------
    spec
        The product.
    tiles
        Worker -> its tiles of C: the larger, the faster it is.
    holders
        Key -> workers that hold the chunk.
    links
        Worker -> its link.
    room
        Worker -> bytes that it may take.
    seconds
        What the product is expected to take; NaN where that is not known.

    Returns
    -------
    dict
        Chunks that only workers behind slow links hold and that more than one other worker needs,
        where their owner would send them for more than half of the product: what takes less is
        hidden behind the multiplication, as on a worker whose link looks slow because it has
        little CPU. All chunks of an owner go to one relay, so that they leave in the order of
        panels: of those with room for them that which relays fewest bytes for its speed.
    """
    slow = slow_links(links)
    if not slow:
        return {}
    needing: dict[Any, list[int]] = {}
    for worker, own in tiles.items():
        wanted: Counter[Any] = Counter()
        for tile in own:
            wanted.update(needed(spec, tile))
        for key, nbytes in wanted.items():
            if holders[key] and slow.issuperset(holders[key]) and worker not in holders[key]:
                needing.setdefault(key, []).append(nbytes)
    by_owner: dict[str, list[Any]] = {}
    leaving: Counter[str] = Counter()
    for key in sorted(needing, key=str):
        owner = holders[key][0]
        leaving[owner] += sum(needing[key])
        if len(needing[key]) > 1:
            by_owner.setdefault(owner, []).append(key)
    areas = {w: sum(tile.area for tile in own) for w, own in tiles.items()}
    left = {w: room[w] for w in tiles if w in links and w not in slow and areas[w]}
    relayed: Counter[str] = Counter()
    chosen: dict[Any, str] = {}
    for owner, keys in by_owner.items():
        if leaving[owner] * links[owner].sending < HIDDEN * seconds:
            continue
        nbytes = sum(chunk_nbytes(spec, key) for key in keys)
        able = [worker for worker, free in left.items() if free >= nbytes]
        if able:
            relay = min(able, key=lambda worker: (relayed[worker] + nbytes) / areas[worker])
            relayed[relay] += nbytes
            left[relay] -= nbytes
            chosen |= dict.fromkeys(keys, relay)
    return chosen


def in_order_of_arrival(
    spec: MatmulSpec,
    panels: Sequence[tuple[int, int]],
    relayed: Mapping[Any, str],
    holders: Mapping[Any, Sequence[str]],
) -> list[tuple[int, int]]:
    """Return panels, those first for which slow links have little to send.

    While these are multiplied the rest arrives.
    """

    def waiting(panel: tuple[int, int]) -> int:
        nbytes: dict[str, int] = {}
        for key in relayed:
            box = slice_of(spec, key, panel)
            if box is not None:
                owner = holders[key][0]
                nbytes[owner] = nbytes.get(owner, 0) + size(box)
        return max(nbytes.values(), default=0)

    return sorted(panels, key=waiting)


def chunk_nbytes(spec: MatmulSpec, key: Any) -> int:
    """Return the bytes of a chunk."""
    rows, columns = spec.chunk_shape(key)
    return rows * columns * spec.dtype.itemsize


def relayed_key(key: Any) -> tuple[str, Any]:
    """Return the name under which a worker offers a chunk that it relays."""
    return RELAYED, tuple(key)


def slice_of(spec: MatmulSpec, key: Any, panel: tuple[int, int]) -> Box | None:
    """Return what of a chunk a panel needs, None for nothing.

    Examples
    --------
    >>> import numpy as np
    >>> halves = ((4, 4), (4, 4))
    >>> spec = MatmulSpec((8, 8, 8), np.dtype("f8"), halves, halves, "a", "b")
    >>> slice_of(spec, ("a", 0, 1), (3, 6)), slice_of(spec, ("b", 1, 0), (3, 6))
    (((0, 4), (0, 2)), ((0, 2), (0, 4)))
    >>> slice_of(spec, ("a", 0, 0), (4, 8)) is None
    True
    """
    name, row, column = key
    rows, columns = spec.chunk_shape(key)
    of_a = name == spec.a_name
    across = of_a != spec.transposed  # K runs along the rows of the chunk as it lies
    depths, at = spec.a_chunks[1] if of_a else spec.b_chunks[0], column if across else row
    begin, length = sum(depths[:at]), depths[at]
    low, high = max(0, panel[0] - begin), min(length, panel[1] - begin)
    if low >= high:
        return None
    return ((0, rows), (low, high)) if across else ((low, high), (0, columns))
