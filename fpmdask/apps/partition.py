"""The smallest application: measure a kernel, return the shares."""

from __future__ import annotations

import time
from typing import Any

from fpmdask.coordinator.context import RunContext


async def run(context: RunContext) -> dict[str, Any]:
    """Measure the kernel of the spec with DFPA; the result is in the report."""
    spec = context.spec
    began = time.perf_counter()
    await context.acquire(spec["kernel"])
    prepared = time.perf_counter()
    limits = spec["limits"]
    await context.measure(
        spec["units"],
        limit_of=None if limits is None else lambda address: limits[context.name(address)],
        **spec["measuring"],
    )
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": time.perf_counter() - prepared,
    }
    return {}
