"""What products teach about the workers: seconds of a share, by its size, for any later product."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.coordinator.context import RunContext
from fpmdask.coordinator.identity import KernelId, canonical
from fpmdask.models import PiecewiseLinearModel
from fpmdask.partition import geometric

NAME = "matmul.share"
# Shares that took less say more about noise than about their worker.
LEAST_SECONDS = 0.2
# Sizes this close together are measured as one: the noise of both would make a slope.
SAME = 1.25
# Shares from half of the smallest size known to twice the largest are covered: what moving takes
# is not in them yet, and memory has limits of its own.
BELOW, ABOVE = 0.5, 2.0
# Workers that get so much of the rows together need not be covered: what a slow one does itself
# differs from product to product as it is helped.
GUESSED = 0.1


def learn(
    context: RunContext,
    spec: MatmulSpec,
    shares: Iterable[Mapping[str, Any]],
    moving: Mapping[str, float],
) -> None:
    """Put what the shares of a finished product took into the workers' models.

    Parameters
    ----------
    context
        The run.
    spec
        The product.
    shares
        Facts of `fpmdask.apps.matmul.share`, one mapping per part.
    moving
        Worker address -> seconds of its moving, as for `computing_alone`.

    Notes
    -----
    A unit is an element of C, the seconds are those per column of A: a model serves products of
    any shape. It is that of the worker's own part: C, and what a column of A and a row of B cost.
    """
    inner = spec.shape[1]
    addresses = {context.name(address): address for address in context.workers}
    for share in shares:
        address = addresses.get(share["worker"])
        computing = share["compute_seconds"] - share["gave_way_seconds"]
        if address is None or computing < LEAST_SECONDS:
            continue
        units = share["work"] / inner
        seconds = computing_alone(share, moving.get(address, 0.0)) / inner
        kernel, identity = _kernel(context, spec, address), context.workers[address]
        library = context.coordinator.library
        known = library.find(kernel, identity)
        own = known[0] if known is not None and known[1] else None
        library.store(kernel, identity, _with(own, units, seconds))


def computing_alone(share: Mapping[str, Any], moving: float) -> float:
    """Return the seconds that the multiplications of a share would have taken by themselves.

    They shared the CPU with `moving` seconds of receiving and sending: what they gave way to it
    is known, the rest is subtracted down to half of what they took.

    Examples
    --------
    >>> computing_alone({"compute_seconds": 4.0, "gave_way_seconds": 0.5}, moving=2.0)
    2.0
    >>> computing_alone({"compute_seconds": 4.0, "gave_way_seconds": 0.5}, moving=0.25)
    3.5
    >>> computing_alone({"compute_seconds": 4.0, "gave_way_seconds": 0.0}, moving=3.0)
    2.0
    """
    gave_way = float(share["gave_way_seconds"])
    taken, beside = share["compute_seconds"] - gave_way, max(0.0, moving - gave_way)
    return float(max(taken / 2, taken - beside))


async def known_rows(context: RunContext, spec: MatmulSpec, bounds: Mapping[str, float]) -> Any:
    """Return (rows of full width, seconds of one column of A) per worker by what was learned.

    None where a worker is not known since its start, or more than a few rows would go to workers
    none of whose products has come near to such a share.
    """
    models = {}
    for address, identity in context.workers.items():
        found = context.coordinator.library.find(_kernel(context, spec, address), identity)
        if found is None or not found[1] or address not in bounds:
            return None
        models[address] = found[0]
    return await asyncio.to_thread(_known_rows, spec, bounds, models)


def _known_rows(
    spec: MatmulSpec, bounds: Mapping[str, float], models: Mapping[str, PiecewiseLinearModel]
) -> tuple[dict[str, int], dict[str, float]] | None:
    rows, _, width = spec.shape
    by_rows = [_scaled(model, width) for model in models.values()]
    shares = geometric(rows, by_rows, [bounds[address] for address in models])
    guessed = 0
    for share, model in zip(shares, models.values(), strict=True):
        units, _ = model.points
        if not BELOW * units[0] <= share * width <= ABOVE * units[-1]:
            guessed += int(share)
    if guessed > GUESSED * rows:
        return None
    distribution = {a: int(share) for a, share in zip(models, shares, strict=True)}
    seconds = {
        address: float(models[address].time(share * width)) if share else 0.0
        for address, share in distribution.items()
    }
    return distribution, seconds


def _kernel(context: RunContext, spec: MatmulSpec, address: str) -> KernelId:
    implementation = context.kernel_ids[address].implementation
    return KernelId(NAME, implementation, canonical({"dtype": spec.dtype.name}))


def _with(model: PiecewiseLinearModel | None, units: float, seconds: float) -> PiecewiseLinearModel:
    """Return a model that knows one more share; sizes nearly the same keep one point."""
    if model is None:
        return PiecewiseLinearModel.from_points([units], [seconds])
    near = min(model.points[0], key=lambda known: abs(known - units))
    if near / SAME <= units <= near * SAME:
        return model.with_point(float(near), seconds * float(near) / units)
    return model.with_point(units, seconds)


def _scaled(model: PiecewiseLinearModel, width: int) -> PiecewiseLinearModel:
    """Return a model of elements as one of rows of so many elements."""
    units, seconds = model.points
    return PiecewiseLinearModel.from_points(units / width, seconds)
