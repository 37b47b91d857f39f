"""A run on the scheduler: it is checked, and its calls are made."""

from __future__ import annotations

import time
from typing import Any

from fpmdask.apps.blocks.coordinator.calls import Calls
from fpmdask.apps.blocks.spec import BlocksSpec
from fpmdask.runtime.coordinator.checks import check_names, check_room
from fpmdask.runtime.coordinator.context import RunContext


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If the inputs that are not in memory yet do not fit into the workers' memory.
    """
    check_names(
        context, context.spec["distribution"], context.members.candidates(), "the distribution"
    )
    coming = float(context.spec["coming"])
    check_room(context, coming, "the inputs that are not in memory yet")


async def run(context: RunContext) -> dict[str, Any]:
    """Compute; the value names the result's keys and what each block has."""
    began = time.perf_counter()
    spec = BlocksSpec.from_json(context.spec["blocks"])
    await context.acquire(context.spec["call"])
    prepared = time.perf_counter()
    calls = Calls(context, spec)
    value = await calls.run()
    context.report["phases"] = {
        "prepare": prepared - began,
        "compute": time.perf_counter() - prepared,
    }
    return value
