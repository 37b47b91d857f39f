"""What an attempt leaves: chunks of the result, speeds for later runs, the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from fpmdask.apps.stencil.coordinator.sharing import Split
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.runtime.coordinator.chunks import publish
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.speeds import Learned, taught
from fpmdask.runtime.coordinator.team import LostWorker


async def published(
    context: RunContext, spec: StencilSpec, split: Split, answers: Mapping[str, Any]
) -> dict[str, Any]:
    """Make each worker's rows a chunk of the result, unless they are in an output.

    Raises
    ------
    LostWorker
        If a worker has left meanwhile.
    """
    iterations = max(answer["iterations"] for answer in answers.values())
    if context.spec["output"] is not None:
        return {"iterations": iterations}
    names = [f"fpmdask-stencil-{uuid4().hex}" for _ in spec.fields]
    after = (0,) * (len(spec.shape) - 1)
    keys = {
        worker: [((name, n, *after), field, ()) for field, name in enumerate(names)]
        for n, worker in enumerate(split.having)
    }
    if not await publish(context, keys):
        raise LostWorker("a worker left while the result was published")
    return {"names": names, "sizes": [*split.having.values()], "iterations": iterations}


def report(
    context: RunContext,
    split: Split,
    learned: Learned,
    answers: Mapping[str, Any],
    seconds: float,
    measuring: float,
) -> None:
    """Keep how fast workers have computed, and fill the report of a run.

    It took so long after its `measuring`, before rows were loaded.
    """
    longest = max(answer["computing"] for answer in answers.values())
    tells = longest >= context.tuning.runtime.learned_least_seconds
    for worker, answer in answers.items():
        computed, rows = answer["rows_computed"], split.shares[worker]
        known = worker in context.workers and computed and rows and answer["computing"] > 0
        if tells and known:
            spent = answer["computing"] / computed * rows
            before = learned.agreeing(worker, taught(None, rows, spent))
            learned.keep(worker, taught(before, rows, spent))
    planned = {
        worker: {"planned_seconds": answers[worker]["iterations"] * spent}
        for worker, spent in split.planned.items()
        if split.planner is None and spent and worker in answers
    }
    context.report["shares"] = [
        {
            "worker": context.name(worker),
            "units": split.shares[worker],
            "seconds": answer["total"],
            "compute_seconds": answer["computing"],
            "wait_seconds": max(
                0.0,
                answer["total"]
                - sum(answer[k] for k in ("computing", "io", "loading", "moving", "saving")),
            ),
            "io_seconds": answer["io"],
            "blocks": answer["blocks"],
            "nbytes_received": answer["nbytes_received"],
            "iterations": answer["iterations"],
            **planned.get(worker, {}),
        }
        for worker, answer in answers.items()
    ]
    parts = ("loading", "moving", "saving")
    loading, moving, saving = (max(a[part] for a in answers.values()) for part in parts)
    phases = context.report["phases"]
    phases["prepare"] += loading
    phases["measure"] = measuring
    phases["move"] = moving
    phases["iterate"] = max(0.0, seconds - loading - moving - saving)
    if context.spec["output"] is not None or context.spec["checkpoint"] is not None:
        phases["write"] = saving
    computing = {worker: answer["computing"] or None for worker, answer in answers.items()}
    context.set_result(split.shares, computing, None, split.reason, split.shares)
