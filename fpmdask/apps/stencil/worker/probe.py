"""What computing a row takes a worker that has none yet.

Runs in the thread of a step, before rows are shared out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fpmdask.apps.stencil.block import Array, Block, Bring, Part
from fpmdask.apps.stencil.call_costs import CallCosts
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.apps.stencil.worker.inputs import Inputs
from fpmdask.apps.stencil.worker.own_rows import Means
from fpmdask.runtime.rows import Span


def probed(
    spec: StencilSpec, means: Means, inputs: Inputs, span: Span, *, joins: bool
) -> Mapping[str, Any]:
    """Return the `Probed` of a few rows that this worker would have.

    One that joins tells what a call takes beside its rows, too: it has not made calls of two sizes.
    What a neighbour has is taken to be as the nearest row: for a time that is near enough.
    """
    if span[0] == span[1]:
        return {"probe": None, "rows": 0, "call_seconds": None}
    part = Part(spec, means.update, span, 1, means.tuning.band_nbytes)
    low, high = part.bands(*span)[0]
    nearest = replace(spec, boundary=("nearest", *spec.boundary[1:]))
    rows, few, call = high - low, spec.least, None
    block = _alone(nearest, means, (low, high), inputs.fields, inputs.args)
    compares = joins and few < rows
    # of rows that are here: reading some of a chunk of Zarr decodes all of it
    have = [
        [one.copy() for one in some] if compares else []
        for some in (block.sources(), block.cells(block.args, low, high))
    ]
    seconds = _seconds(block, means)
    if compares:
        costs = CallCosts()
        costs.add(1, rows, seconds)
        fields, args = (partial(copied, some, low) for some in have)
        costs.add(1, few, _seconds(_alone(nearest, means, (low, low + few), fields, args), means))
        call = costs.seconds and costs.seconds[0]
    return {"probe": seconds / rows, "rows": rows, "call_seconds": call}


def _alone(spec: StencilSpec, means: Means, rows: Span, fields: Bring, args: Bring) -> Block:
    """Return rows that have no neighbours."""
    block = Block(spec, means.update, rows)
    block.open = False, False
    block.bring(fields)
    block.bring_args(args)
    return block


def copied(arrays: Sequence[Array], first: int, targets: list[Array], low: int, high: int) -> None:
    """Fill rows from arrays that begin with the row `first`."""
    for target, array in zip(targets, arrays, strict=True):
        target[...] = array[low - first : high - first]


def _seconds(block: Block, means: Means) -> float:
    """Return what computing a block's rows takes, in the mean of some turns.

    After as many as there are iterations they begin anew: an update may know no further ones.
    """
    rows, start = (block.low, block.high), [one.copy() for one in block.sources()]
    turn, began, least = 0, time.perf_counter(), means.tuning.trial_seconds
    while True:
        block.fill(block.fields, *rows)
        block.sweep(*rows, means.threads.in_groups)
        turn += 1
        now = time.perf_counter()
        if turn == 1:  # not typical: memory is new
            began, first = now, now - began
            if first >= least:
                return first
        elif now - began >= least:
            return (now - began) / (turn - 1)
        if not turn % max(1, block.spec.iterations):
            for target, source in zip(block.sources(), start, strict=True):
                target[...] = source
            began += time.perf_counter() - now
