"""The product's run on the scheduler: measure, share C out, follow the shares, publish C."""

from __future__ import annotations

import time
from typing import Any

from distributed.utils import offload

from fpmdask.apps.matmul.distribute import check as check
from fpmdask.apps.matmul.distribute import check_memory, find_distribution, row_bounds, timed_depth
from fpmdask.apps.matmul.learned import learn
from fpmdask.apps.matmul.place import given, operations, placed
from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.apps.matmul.product import Product
from fpmdask.coordinator.chunks import until_loaded, wait_for_chunks
from fpmdask.coordinator.context import RunContext
from fpmdask.coordinator.links import measured_links

# Links are measured for inputs of at least so much.
PROBED_NBYTES = 16 << 20


async def run(context: RunContext) -> dict[str, Any]:
    """Multiply; the value names the result's keys and chunks."""
    spec = MatmulSpec.from_json(context.spec["product"])
    began = time.perf_counter()
    depth = timed_depth(context, spec)
    parameters = {"width": spec.shape[2], "depth": depth, "dtype": spec.dtype.str}
    await context.acquire({"name": "matmul.panel", "parameters": parameters})
    links = await measured_links(context) if spec.nbytes >= PROBED_NBYTES else {}
    prepared = time.perf_counter()
    bounds = row_bounds(context, spec, list(context.workers))
    distribution = await find_distribution(context, spec, bounds)
    measured = time.perf_counter()
    rates = {
        worker: operations(spec, distribution[worker]) * depth / spec.shape[1] / seconds
        for worker, seconds in context.report["result"]["seconds"].items()
        if seconds > 0 and distribution[worker]
    }
    lazy = context.spec["lazy"]
    present = [key for key in spec.keys if key[0] not in lazy]
    if context.spec["zones"] is not None:
        addresses = {context.name(address): address for address in distribution}
        zones = {addresses[name]: zone for name, zone in context.spec["zones"].items()}
        placement = given(spec, zones, distribution)
    else:
        placement = await offload(  # many workers or chunks would hold the event loop
            placed,
            spec,
            context.spec["layout"],
            distribution,
            bounds=bounds,
            rates=rates if len(rates) == sum(map(bool, distribution.values())) else None,
            holders=await wait_for_chunks(context.scheduler, present, context.spec["recovery"]),
            links={worker: (link.receiving, link.sending) for worker, link in links.items()},
            lazy=lazy,
            in_order=context.spec["distribution"] is not None,
        )
    if lazy or context.spec["zones"] is not None:
        check_memory(context, spec, placement.tiles)
    if rates:
        context.report["predicted_seconds"] = placement.seconds
    if links:
        context.report["links"] = {
            context.name(worker): [link.receiving, link.sending] for worker, link in links.items()
        }
    context.report["layout"] = {"name": placement.layout, "why": placement.why}
    if lazy:
        tiles = {worker: [tile.bounds for tile in own] for worker, own in placement.tiles.items()}
        context.emit("placed", tiles=tiles)
        await until_loaded(context.scheduler, spec.keys, context.run)
    loaded = time.perf_counter()
    product = Product(context, spec, placement, bounds, links)
    value = await product.multiply()
    learn(context, spec, product.shares.values(), placement.moving)
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": measured - prepared,
        "read": loaded - measured,
        "multiply": time.perf_counter() - loaded,
    }
    return value
