"""A worker's calls: rows are fetched, the function is called, its result is kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from fpmdask.apps.blocks.tasks import Call, cut, joined, shape_of
from fpmdask.errors import KernelError, PartitionError
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import FetchFailed, Want
from fpmdask.runtime.worker.side import RunSpace, WorkerSide
from fpmdask.runtime.worker.steps import step
from fpmdask.timing import FunctionKernel


@dataclass(frozen=True)
class Block:
    """A block of the result."""

    value: Any

    def chunk(self, bounds: Sequence[int]) -> Any:
        """Return it; it is one chunk."""
        return self.value


def compute(order: Mapping[str, Any]) -> None:
    """Task: make the calls of an order."""
    step(order, lambda side, space: _compute(side, space, order))


def _compute(side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    call = getattr(space.kernel, "function", None)
    if not isinstance(space.kernel, FunctionKernel) or not isinstance(call, Call):
        raise KernelError("the function was not prepared on this worker")
    space.exchange.know(order["channels"], order["bare"])
    made, received = [], 0
    try:
        for number, chunk, inputs in order["calls"]:
            began = time.perf_counter()
            blocks = [_block(space, one) for one in inputs]
            received += sum(nbytes for _, nbytes in blocks)
            ready = time.perf_counter()
            try:
                with side.blas_threads():
                    value = call([block for block, _ in blocks], order["resource"], chunk)
                shape, nbytes = shape_of(value), sizeof(value)
            except Exception as error:  # the user's
                return {"raised": describe_error(error), "number": number}
            space.parts[number] = Block(value)
            spent = {"waiting": ready - began, "computing": time.perf_counter() - ready}
            made.append({"number": number, "shape": shape, "nbytes": nbytes, **spent})
    except FetchFailed as failed:
        return {"missing": failed.peers[0]}
    except PartitionError as unusable:
        return {"unusable": str(unusable)}
    return {"made": made, "nbytes_received": received}


def _block(space: RunSpace, given: Mapping[str, Any]) -> tuple[Any, int]:
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
    """Return a block of what Dask moves: whole chunks, of which rows are cut."""
    parts, received = [], 0
    for key, start, stop, _, holders in given["pieces"]:
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
