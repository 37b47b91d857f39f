"""The smallest application: measure a kernel, return the shares."""

from __future__ import annotations

import math
import time
from typing import Any

from fpmdask.coordinator.context import RunContext
from fpmdask.coordinator.rounds import measure
from fpmdask.errors import PartitionError


async def run(context: RunContext) -> dict[str, Any]:
    """Measure the kernel of the spec with DFPA; the result is in the report."""
    spec = context.spec
    began = time.perf_counter()
    await context.acquire(spec["kernel"])
    prepared = time.perf_counter()
    limits = spec["limits"] or {}
    names = {context.name(address) for address in context.workers}
    if unknown := sorted(limits.keys() - names):
        raise PartitionError(
            f"limits name {', '.join(unknown)}; taking part are {', '.join(sorted(names))}"
        )
    await measure(
        context,
        spec["units"],
        limit_of=lambda address: limits.get(context.name(address), math.inf),
        **spec["measuring"],
    )
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": time.perf_counter() - prepared,
    }
    return {}
