"""A run on the scheduler: it is checked, and attempted until no worker is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from fpmdask.apps.stencil.coordinator.iterations import Iterations
from fpmdask.apps.stencil.coordinator.room import room_of
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.runtime.coordinator.checks import check_names
from fpmdask.runtime.coordinator.chunks import free_nbytes, free_nbytes_of
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.team import attempted, wait_for_rejoin


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If the workers have no room for what must be in memory.
    """
    workers = context.members.candidates()
    if isinstance(context.spec["memory"], Mapping):
        check_names(context, context.spec["memory"], workers, "memory")
    free = {worker: free_nbytes(context, worker) for worker in workers}
    _check(context, StencilSpec.from_json(context.spec["stencil"]), free)


def _check(context: RunContext, spec: StencilSpec, free: Mapping[str, float]) -> None:
    check_names(context, context.spec["distribution"], free, "the distribution")
    room_of(context, spec, free)


async def run(context: RunContext) -> dict[str, Any]:
    """Iterate; the value names the result's keys, the rows of its chunks, and the iterations."""
    spec = StencilSpec.from_json(context.spec["stencil"])
    began = time.perf_counter()
    await context.acquire(context.spec["update"])
    context.report["phases"] = {"prepare": time.perf_counter() - began}

    async def attempt(number: int) -> dict[str, Any]:
        with Iterations(context, spec, number) as iterations:
            return await iterations.run()

    async def mend() -> None:
        """Raise where those that are there cannot go on without one that is lost."""
        _check(context, spec, await free_nbytes_of(context, [*context.workers]))

    if left_out := context.members.left_out:  # since the check
        await wait_for_rejoin(
            context, mend, "; ".join(f"{name}: {why}" for name, why in left_out.items())
        )
    return await attempted(context, count(), attempt, mend)
