"""The smallest application: measure a kernel, return the shares."""

from __future__ import annotations

import math
import time
from typing import Any

from fpmdask.coordinator.context import RunContext
from fpmdask.coordinator.rounds import measure
from fpmdask.errors import PartitionError


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If a limit is that of no connected worker.
    """
    context.candidates()
    names = {context.name(address) for address in context.scheduler.workers}
    if unknown := sorted((context.spec["limits"] or {}).keys() - names):
        raise PartitionError(
            f"limits name {', '.join(unknown)}; connected are {', '.join(sorted(names))}"
        )


async def run(context: RunContext) -> dict[str, Any]:
    """Measure the kernel of the spec with DFPA; the result is in the report."""
    spec = context.spec
    check(context)
    began = time.perf_counter()
    await context.acquire(spec["kernel"])
    prepared = time.perf_counter()
    limits = spec["limits"] or {}
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
