"""A run on the scheduler: attempts until no worker is lost in one."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from fpmdask.apps.rebalance.coordinator.placement import Placement
from fpmdask.apps.rebalance.spec import RebalanceSpec
from fpmdask.runtime.coordinator.checks import check_names, check_room
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.team import attempted


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If the inputs that are not in memory yet do not fit into the workers' memory.
    """
    workers = context.members.candidates()
    for what in ("distribution", "seconds"):
        check_names(context, context.spec[what], workers, what)
    coming = float(context.spec["coming"])
    check_room(context, coming, "the collections that are not in memory yet")


async def run(context: RunContext) -> dict[str, Any]:
    """Place the rows anew; the value names the results' keys and the rows of each chunk."""
    began = time.perf_counter()
    spec = RebalanceSpec.from_json(context.spec["rebalance"])
    await context.acquire(context.spec["kernel"])
    phases = {"prepare": time.perf_counter() - began, "measure": 0.0, "move": 0.0}
    context.report["phases"] = phases
    speeds: dict[str, float] = {}

    async def attempt(number: int) -> dict[str, Any]:
        with Placement(context, spec, number, speeds) as placement:
            return await placement.run()

    return await attempted(context, count(), attempt)
