"""Rows of collections on a worker: what a run needs of them is fetched, cut and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dask.array.core import concatenate_lookup
from dask.sizeof import sizeof

from fpmdask.runtime.worker import serialized_rows
from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import Want
from fpmdask.runtime.worker.space import RunSpace


def cut(chunk: Any, axis: int | None, start: int, stop: int) -> Any:
    """Return rows of a chunk, a view where its type has views."""
    if axis is None or (start == 0 and stop == length(chunk, axis)):
        return chunk
    if hasattr(chunk, "iloc"):
        return chunk.iloc[start:stop]
    return chunk[(slice(None),) * axis + (slice(start, stop),)]


def length(chunk: Any, axis: int) -> int:
    """Return the rows of a chunk."""
    return len(chunk) if hasattr(chunk, "iloc") else int(chunk.shape[axis])


def joined(parts: Sequence[Any], axis: int | None) -> Any:
    """Return pieces as one block."""
    if len(parts) == 1:
        return parts[0]
    if hasattr(parts[0], "iloc") or type(parts[0]).__module__.startswith("pandas."):
        from dask.dataframe.dispatch import concat

        return concat(list(parts))
    return concatenate_lookup.dispatch(type(parts[0]))(list(parts), axis=axis or 0)


def shape_of(block: Any) -> tuple[int, ...]:
    """Return what the client needs to know of a block: a frame has rows only."""
    if hasattr(block, "iloc"):
        return (len(block),)
    return tuple(map(int, np.shape(block)))


def block(space: RunSpace, given: Mapping[str, Any]) -> tuple[Any, int]:
    """Return rows of one collection, and the bytes that came for them from other workers."""
    if given["axis"] is None:  # the same for all calls
        key = "whole", given["pieces"][0][0]
        if key not in space.kept:
            space.kept[key] = space.exchange.whole_chunk(key[1], given["pieces"][0][4])
            return space.kept[key], sizeof(space.kept[key])
        return space.kept[key], 0
    if given["shape"] is None:
        return _objects(space.exchange, given)
    return _array(space.exchange, given)


def _objects(exchange: Exchange, given: Mapping[str, Any]) -> tuple[Any, int]:
    """Return a block of what Dask moves as whole chunks, of which rows are cut.

    Under "serialized", pieces by their number that a holder has cut already: (key, address).
    """
    serialized = given.get("serialized", {})
    came = dict(
        zip(serialized, serialized_rows.fetched(exchange, serialized.values()), strict=True)
    )
    parts, received = [], 0
    for n, (key, start, stop, _, holders) in enumerate(given["pieces"]):
        if n in came:
            parts.append(came[n][0])
            received += came[n][1]
            continue
        chunk = exchange.whole_chunk(key, holders)
        received += 0 if exchange.address in holders else sizeof(chunk)
        parts.append(cut(chunk, given["axis"], start, stop))
    return joined(parts, given["axis"]), received


def _array(exchange: Exchange, given: Mapping[str, Any]) -> tuple[np.ndarray, int]:
    """Return a block of an array of numbers: a view, or pieces straight into their place."""
    axis, shape = given["axis"], given["shape"]

    def sized(rows: int) -> tuple[int, ...]:
        return (*shape[:axis], rows, *shape[axis + 1 :])

    def box(start: int, stop: int) -> tuple[tuple[int, int], ...]:
        bounds = [(0, n) for n in shape]
        bounds[axis] = start, stop
        return tuple(bounds)

    pieces = given["pieces"]
    if len(pieces) == 1:
        key, start, stop, rows, _ = pieces[0]
        here = exchange.here([(key, box(start, stop), sized(rows))])
        if 0 in here and here[0].dtype == given["dtype"]:
            return here[0], 0
    out = np.empty(sized(sum(stop - start for _, start, stop, _, _ in pieces)), given["dtype"])
    wants, at = [], 0
    for key, start, stop, rows, holders in pieces:
        place = (slice(None),) * axis + (slice(at, at + stop - start),)
        wants.append(Want(key, box(start, stop), out[place], holders, shape=sized(rows)))
        at += stop - start
    fetch = exchange.fetch(wants)
    fetch.wait()
    return out, fetch.nbytes
