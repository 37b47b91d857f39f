"""What is known of workers before a run's calls, and what these have told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fpmdask.apps.blocks.self_scheduling import Member, SpeedFunction, quotas
from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.coordinator.checks import check_names
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.instructions import PRIOR_EPSILONS
from fpmdask.runtime.identity import KernelId, canonical
from fpmdask.runtime.rows import Span

# A call that was made: its worker, its rows, and what the worker told of it.
Made = tuple[str, Span, Mapping[str, Any]]


def kernel(context: RunContext, worker: str, row_nbytes: int) -> KernelId:
    """Return under what the library keeps a worker's speed: the function, and rows of a size."""
    known = context.members.kernel_ids[worker]
    return replace(known, parameters=canonical({"row_nbytes": row_nbytes}))


def known_member(context: RunContext, worker: str, row_nbytes: int) -> Member:
    """Return a worker with what earlier runs have taught of it."""
    found = context.coordinator.library.find(
        kernel(context, worker, row_nbytes), context.workers[worker]
    )
    if found is None:
        return Member(SpeedFunction(tuning=context.tuning.blocks))
    model, own = found
    pairs = zip(model.units.tolist(), model.seconds.tolist(), strict=True)
    points = {int(rows): seconds for rows, seconds in pairs}
    doubted_by = None if own else PRIOR_EPSILONS * context.spec["measuring"]["epsilon"]
    return Member(SpeedFunction(points, context.tuning.blocks), own, doubted_by)


def given_rows(
    context: RunContext, spans: Mapping[str | None, Sequence[Span]]
) -> Mapping[str, int]:
    """Return the rows of each worker where the caller has given them, else nothing.

    Parameters
    ----------
    spans
        Worker → the rows that it holds.

    Raises
    ------
    CoordinatorError
        If workers are named that take no part.
    """
    given = context.spec["distribution"]
    if given is None:
        return {}
    if given == "as held":
        return quotas(spans, context.workers)
    check_names(context, given, context.workers, "the distribution")
    return {worker: int(given.get(context.name(worker), 0)) for worker in context.workers}


def learn(context: RunContext, members: Mapping[str, Member], row_nbytes: int) -> None:
    """Keep what the calls took."""
    for worker, identity in context.workers.items():
        if worker in members and (points := sorted(members[worker].speed.points.items())):
            units, seconds = zip(*points, strict=True)
            model = PiecewiseLinearModel.from_points(units, seconds)
            context.coordinator.library.store(kernel(context, worker, row_nbytes), identity, model)


def report(
    context: RunContext, calls: Iterable[Made], received: Mapping[str, int], known: bool
) -> None:
    """Note what each worker did; ``received`` are bytes, ``known`` says that speeds were."""
    shares: dict[str, dict[str, Any]] = {
        worker: {
            "worker": context.name(worker),
            "units": 0,
            "seconds": 0.0,
            "compute_seconds": 0.0,
            "wait_seconds": 0.0,
            "calls": 0,
            "nbytes_received": received.get(worker, 0),
        }
        for worker in context.workers
    }
    for worker, (start, stop), made in calls:
        own = shares[worker]
        own["units"] += stop - start
        own["compute_seconds"] += made["computing"]
        own["wait_seconds"] += made["waiting"]
        own["seconds"] = own["compute_seconds"] + own["wait_seconds"]
        own["calls"] += 1
    context.report["shares"] = [*shares.values()]
    given = context.spec["distribution"] is not None
    reason = "given" if given else "known" if known else "measured"
    units = {worker: own["units"] for worker, own in shares.items()}
    seconds = {worker: own["seconds"] or None for worker, own in shares.items()}
    context.set_result(units, seconds, None, reason, units)
