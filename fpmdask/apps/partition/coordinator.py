"""The smallest application: measure a kernel, return the shares."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel
from fpmdask.partition import geometric
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.rounds import measure
from fpmdask.runtime.report import TOO_SHORT
from fpmdask.timing.measure import too_short


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If a limit is that of no connected worker.
    """
    context.members.candidates()
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

    def limit_of(address: str) -> float:
        return float(limits.get(context.name(address), math.inf))

    machine = await measure(context, spec["units"], limit_of=limit_of, **spec["measuring"])
    result = machine.result
    if result is not None and too_short(result.seconds.values()):
        _share_evenly(context, {a: limit_of(a) for a in result.distribution})
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": time.perf_counter() - prepared,
    }
    return {}


def _share_evenly(context: RunContext, limits: Mapping[str, float]) -> None:
    """Note even shares in place of what was measured, which was noise."""
    models = [ConstantModel(1.0)] * len(limits)
    found = geometric(context.spec["units"], models, [*limits.values()])
    shares = dict(zip(limits, map(int, found), strict=True))
    context.set_result(shares, dict.fromkeys(shares), None, TOO_SHORT, shares)
