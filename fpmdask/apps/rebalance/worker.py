"""A worker's rows: those to be timed with, those that peers need, and those that it gets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fpmdask.apps.rebalance.spec import KNOW, PLACE
from fpmdask.apps.rebalance.tasks import RowsKernel
from fpmdask.errors import KernelError
from fpmdask.runtime.worker import serialized_rows
from fpmdask.runtime.worker.rows import block, cut
from fpmdask.runtime.worker.side import RunSpace
from fpmdask.runtime.worker.space import Whole
from fpmdask.runtime.worker.steps import exchanging

SERIALIZED = "rows"


def know(order: Mapping[str, Any]) -> None:
    """Task: have the kernel know this worker's rows."""
    exchanging(KNOW, order, lambda side, space: _know(space, order))


def place(order: Mapping[str, Any]) -> None:
    """Task: offer what peers need, get what this worker has not, and make the chunks."""
    exchanging(PLACE, order, lambda side, space: _place(space, order))


def _know(space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    kernel = space.kernel
    if not isinstance(kernel, RowsKernel):
        raise KernelError("the kernel was not prepared on this worker")
    received, pieces = 0, []
    for given in order["inputs"]:
        # one by one: what is here is not copied
        some = [block(space, {**given, "pieces": [piece]}) for piece in given["pieces"]]
        received += sum(nbytes for _, nbytes in some)
        pieces.append([one for one, _ in some])
    kernel.know(pieces, order["rows"], order["units"], order["most"])
    return {"nbytes_received": received}


def _place(space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    began = time.perf_counter()
    exchange = space.exchange
    for key in list(exchange.offers):  # of an earlier attempt
        if key[0][0] == SERIALIZED:
            exchange.retire(key)
    space.parts.clear()
    for key, chunk, start, stop in order["serialized"]:
        whole = exchange.whole_chunk(chunk, [exchange.address])
        serialized_rows.offer(exchange, key, cut(whole, 0, start, stop))
    received = 0
    for number, given in order["chunks"]:
        value, nbytes = block(space, given)
        received += nbytes
        if len(given["pieces"]) == 1 and not nbytes:  # a view of a chunk that is here
            _, start, stop, rows, _ = given["pieces"][0]
            value = value if (start, stop) == (0, rows) or order["views"] else value.copy()
        space.parts[number] = Whole(value)
    return {"nbytes_received": received, "seconds": time.perf_counter() - began}
