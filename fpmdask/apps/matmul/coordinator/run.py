"""The product's run on the scheduler: measure, share C out, follow the shares, publish C."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fpmdask.apps.matmul.communication_cost import homes
from fpmdask.apps.matmul.coordinator import split_k
from fpmdask.apps.matmul.coordinator.distribute import check as check
from fpmdask.apps.matmul.coordinator.distribute import (
    find_distribution,
    room_beside,
    row_bounds,
    shared_out,
    tiles_given,
    timed_depth,
)
from fpmdask.apps.matmul.coordinator.learned import known_moving, learn
from fpmdask.apps.matmul.coordinator.product import Product
from fpmdask.apps.matmul.place import Placement, operations, placed
from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.runtime.coordinator.chunks import until_loaded, wait_for_chunks
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.links import measured_links
from fpmdask.runtime.links import Link


async def run(context: RunContext) -> dict[str, Any]:
    """Multiply; the value names the result's keys and chunks, none where the client has it."""
    asked = MatmulSpec.from_json(context.spec["product"])
    if await split_k.wanted(context, asked):
        return await split_k.multiply(context, asked)
    spec = shared_out(context)
    began = time.perf_counter()
    depth = timed_depth(context, spec)
    parameters = {"width": spec.shape[2], "depth": depth, "dtype": spec.dtype.str}
    await context.acquire({"name": "matmul.panel", "parameters": parameters})
    probed = spec.nbytes >= context.tuning.matmul.probed_nbytes
    links = await measured_links(context) if probed else {}
    prepared = time.perf_counter()
    bounds = row_bounds(context, spec, list(context.workers), depth)
    distribution = await find_distribution(context, spec, bounds, depth)
    measured = time.perf_counter()
    rates = {
        worker: operations(spec, distribution[worker]) * depth / spec.shape[1] / seconds
        for worker, seconds in context.report["result"]["seconds"].items()
        if seconds and distribution[worker]
    }
    placement = await _placement(context, spec, distribution, bounds, rates, links)
    if rates:
        context.report["predicted_seconds"] = placement.seconds
    if links:
        context.report["links"] = {
            context.name(worker): [link.receiving, link.sending] for worker, link in links.items()
        }
    context.report["layout"] = {"name": placement.layout, "why": placement.why}
    if spec.transposed:
        context.report["layout"]["transposed"] = (
            "C has few rows: the units are its columns, the layout is that of its transpose"
        )
    lazy = context.spec["lazy"]
    if lazy or context.spec["zones"] is not None:
        room = room_beside(context, spec, placement.tiles)
    at = time.perf_counter()
    if lazy:
        reads = await asyncio.to_thread(_reads, spec, placement, lazy, room)
        context.ask_client("load", reads=reads)
        await until_loaded(
            context.scheduler, [key for key in spec.keys if key[0] in lazy], context.run
        )
    loaded = time.perf_counter()
    product = Product(context, spec, placement, bounds, links)
    value = await product.multiply()
    await learn(context, spec, product.shares.done.values(), placement.moving)
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": measured - prepared,
        "place": at - measured,
        "read": loaded - at,
        "multiply": time.perf_counter() - loaded,
    }
    return value


async def _placement(
    context: RunContext,
    spec: MatmulSpec,
    distribution: Mapping[str, int],
    bounds: Mapping[str, float],
    rates: Mapping[str, float],
    links: Mapping[str, Link],
) -> Placement:
    """Return the layout that the caller gave, or the one that is expected to end first."""
    if context.spec["zones"] is not None:
        return tiles_given(context, spec, distribution)
    lazy = context.spec["lazy"]
    present = [key for key in spec.keys if key[0] not in lazy]
    return await asyncio.to_thread(  # many workers or chunks would hold the event loop
        placed,
        spec,
        context.spec["layout"],
        distribution,
        bounds=bounds,
        rates=rates if len(rates) == sum(map(bool, distribution.values())) else None,
        holders=await wait_for_chunks(context, present),
        links={worker: (link.receiving, link.sending) for worker, link in links.items()},
        moving=known_moving(context, spec),
        lazy=lazy,
        in_order=context.spec["distribution"] is not None,
        tuning=context.tuning.matmul,
    )


def _reads(
    spec: MatmulSpec, placement: Placement, lazy: Sequence[str], room: Mapping[str, float]
) -> dict[str, list[int]]:
    """Return worker -> numbers of the chunks that it is to read, among the client's keys."""
    asked = spec.transpose() if spec.transposed else spec
    numbers = {key: n for n, key in enumerate(asked.keys)}
    reads: dict[str, list[int]] = {worker: [] for worker in placement.tiles}
    for key, home in homes(spec, placement.tiles, lazy, room).items():
        reads[home].append(numbers[key])
    return reads
