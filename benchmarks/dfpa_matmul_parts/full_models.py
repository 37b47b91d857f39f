"""Full models, built by GBBP on all workers at once, and what they cost."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dfpa_matmul_parts.bench import Bench, panel
from fpmdask.timing import FullModelBuilder, SurfaceModelBuilder, TimingPolicy

Builder = FullModelBuilder | SurfaceModelBuilder


def build(
    made: Bench,
    builders: dict[str, Any],
    depth: int,
    policy: TimingPolicy,
    width: int | None = None,
    deadline: float | None = None,
) -> dict[str, Any]:
    """Let every worker's builder ask and measure until it is done.

    Parameters
    ----------
    made
        The lab.
    builders
        Worker name → builder; it asks for rows where `width` is given, otherwise for (rows, width).
    depth, policy, deadline
        Of each measurement.
    width
        The one width of builders in one parameter.

    Returns
    -------
    dict
        Wall seconds of all at once, and per worker: points, wall seconds, why it ended.
    """

    def follow(name: str) -> dict[str, Any]:
        builder, began = builders[name], time.perf_counter()
        while (size := builder.ask()) is not None:
            rows, wide = size if width is None else (size, width)
            builder.tell(made.measure_one(name, rows, panel(wide, depth), policy, deadline))
        return {
            "points": builder.measurements,
            "seconds": time.perf_counter() - began,
            "reason": builder.reason,
            "measured": builder.points,
        }

    began = time.perf_counter()
    with ThreadPoolExecutor(len(builders)) as pool:
        found = dict(zip(builders, pool.map(follow, builders), strict=True))
    return {"seconds": time.perf_counter() - began, "workers": found}
