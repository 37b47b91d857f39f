"""What products teach about the workers, for any later product.

Of each worker two models are kept: the seconds of its multiplications by themselves, by the size
of its share, and the seconds of moving, by the bytes that it received and sent. They are what a
plan adds up. `spent` takes them apart by what was measured on the worker, `Known` is the pure part,
the rest finds and stores models on the scheduler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.models import PiecewiseLinearModel
from fpmdask.partition import geometric
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.speeds import Learned, still_there
from fpmdask.tuning import DEFAULT

NAME, MOVING = "matmul.share", "matmul.moving"
# Sizes this close together are measured as one: the noise of both would make a slope.
SAME = 1.25
# Shares from half of the smallest size known to twice the largest are covered: what moving takes
# is not in them yet, and memory has limits of its own.
BELOW, ABOVE = 0.5, 2.0
# Workers that get so much of the rows together need not be covered: what a slow one does itself
# differs from product to product as it is helped.
GUESSED = 0.1
# Of the seconds of multiplying: moving that takes less is hidden behind it.
HIDDEN = 1e-3
# Cores that multiplying uses at least where the CPU is what it takes: less than a third of the
# smallest share of a core that workers are seen with.
LEAST_RATE = 0.03


@dataclass(frozen=True)
class Spent:
    """Where the seconds went in which a worker was busy: two parts that add up.

    Parameters
    ----------
    multiplying
        Seconds that its multiplications would have taken by themselves.
    moving
        Seconds that receiving, sending and everything else of its process took beside them.
    """

    multiplying: float
    moving: float


def spent(share: Mapping[str, Any], threads: int) -> Spent:
    """Return where a worker's seconds went, by the CPU-seconds that it measured.

    Parameters
    ----------
    share
        Facts of `fpmdask.apps.matmul.worker.share`.
    threads
        Of the worker.

    Notes
    -----
    While panels are multiplied, the process gets CPU at the rate ``r``: all CPU-seconds of that
    time by its seconds. Under a quota the next panel is received, and others are sent to, out of
    the same ``r``. At the rate r, or at one core where r is more, the CPU-seconds of multiplying
    take the time that they would by themselves; all CPU-seconds of the share take, at the rate r,
    the time in which it was busy. What is beyond that is waiting for others, and says nothing of
    this worker.

    Where multiplying takes next to no CPU, it waits for something else (an accelerator, for one):
    all its seconds count as multiplication.

    With several threads it is not known which of them multiply: all counts as multiplication while
    panels are multiplied.

    Examples
    --------
    An eighth of a core multiplies for 0.125 of 0.375 CPU-seconds; it was busy for 3 seconds:

    >>> cpu = {"multiply": 0.125, "computing": 0.25, "process": 0.375}
    >>> spent({"compute_seconds": 2.5, "gave_way_seconds": 0.5, "cpu_seconds": cpu}, threads=1)
    Spent(multiplying=1.0, moving=2.0)
    """
    cpu = share["cpu_seconds"]
    seconds = share["compute_seconds"] - share["gave_way_seconds"]
    computing = cpu["computing"]
    own = min(cpu["multiply"], computing) if threads == 1 else computing
    if own <= LEAST_RATE * seconds:
        return Spent(float(seconds), 0.0)
    multiplying = seconds * own / computing
    if threads == 1:
        multiplying = max(multiplying, own)
    busy = seconds * cpu["process"] / computing
    return Spent(float(multiplying), float(max(0.0, busy - multiplying)))


@dataclass(frozen=True)
class Known:
    """What products have taught of one worker.

    Parameters
    ----------
    multiplying
        Seconds per column of A, by elements of C. It serves products of any shape.
    moving
        Seconds by what is moved, in operations as of `Placement.moving`.
    """

    multiplying: PiecewiseLinearModel | None = None
    moving: PiecewiseLinearModel | None = None

    def after(
        self,
        share: Mapping[str, Any],
        inner: int,
        moved: float,
        threads: int = 1,
        *,
        least_seconds: float = DEFAULT.matmul.learned_least_seconds,
    ) -> Known:
        """Return what is known after one more share.

        Parameters
        ----------
        share
            Facts of `fpmdask.apps.matmul.worker.share`, of all parts of the worker together.
        inner
            Columns of A.
        moved
            What the plan had the worker receive and send, as in `Placement.moving`.
        threads
            Of the worker.
        least_seconds
            A share that was multiplied for less time teaches nothing.
        """
        if share["compute_seconds"] - share["gave_way_seconds"] < least_seconds:
            return self
        found = spent(share, threads)
        multiplying = _with(self.multiplying, share["work"] / inner, found.multiplying / inner)
        if not moved:
            return Known(multiplying, self.moving)
        seconds = max(found.moving, HIDDEN * found.multiplying)
        return Known(multiplying, _with(self.moving, moved, seconds))


async def learn(
    context: RunContext,
    spec: MatmulSpec,
    shares: Iterable[Mapping[str, Any]],
    moved: Mapping[str, float],
) -> None:
    """Put what the shares of a finished product took into the workers' models.

    Parameters
    ----------
    context
        The run.
    spec
        The product.
    shares
        Facts of `fpmdask.apps.matmul.worker.share`, one mapping per part. Lines that others
        multiplied are not in them.
    moved
        `Placement.moving`.
    """
    memories = _memories(context, spec)
    addresses = {context.name(address): address for address in context.workers}
    told = [(addresses.get(name, ""), share) for name, share in _by_worker(shares).items()]
    async for address, share in still_there(context, told):
        after = partial(
            Known.after,
            share=share,
            inner=spec.shape[1],
            moved=moved.get(address, 0.0),
            threads=context.workers[address].fingerprint.nthreads,
            least_seconds=context.tuning.matmul.learned_least_seconds,
        )
        taught = after(_agreeing(memories, address, after(Known())))
        for memory, model in zip(memories, (taught.multiplying, taught.moving), strict=True):
            if model is not None:
                memory.keep(address, model)


async def known_rows(context: RunContext, spec: MatmulSpec, bounds: Mapping[str, float]) -> Any:
    """Return (rows of full width, seconds of one column of A) per worker by what was learned.

    None where a worker is not known, or more than a few rows would go to workers none of whose
    products has come near to such a share.
    """
    models, (multiplying, _) = {}, _memories(context, spec)
    for address in context.workers:
        model = multiplying.of(address)
        if model is None or address not in bounds:
            return None
        models[address] = model
    return await asyncio.to_thread(rows_by, models, spec.shape[0], spec.shape[2], bounds)


def rows_by(
    models: Mapping[str, PiecewiseLinearModel],
    rows: int,
    width: int,
    bounds: Mapping[str, float],
) -> tuple[dict[str, int], dict[str, float]] | None:
    """Return rows and seconds per worker by `Known.multiplying` of each, as `known_rows` does."""
    by_rows = [_scaled(model, width) for model in models.values()]
    shares = geometric(rows, by_rows, [bounds[worker] for worker in models])
    guessed = 0
    for share, model in zip(shares, models.values(), strict=True):
        units, _ = model.points
        if not BELOW * units[0] <= share * width <= ABOVE * units[-1]:
            guessed += int(share)
    if guessed > GUESSED * rows:
        return None
    distribution = {worker: int(share) for worker, share in zip(models, shares, strict=True)}
    seconds = {
        worker: float(models[worker].time(share * width)) if share else 0.0
        for worker, share in distribution.items()
    }
    return distribution, seconds


def known_moving(context: RunContext, spec: MatmulSpec) -> dict[str, PiecewiseLinearModel]:
    """Return `Known.moving` of the workers that have one."""
    _, moving = _memories(context, spec)
    found = {address: moving.of(address) for address in context.workers}
    return {address: model for address, model in found.items() if model is not None}


def _by_worker(shares: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the facts of each worker's parts together."""
    found: dict[str, dict[str, Any]] = {}
    for share in shares:
        facts = {key: share[key] for key in ("work", "compute_seconds", "gave_way_seconds")}
        facts["cpu_seconds"] = dict(share["cpu_seconds"])
        before = found.setdefault(share["worker"], facts)
        if before is not facts:
            for key, cpu in facts.pop("cpu_seconds").items():
                before["cpu_seconds"][key] += cpu
            for key, value in facts.items():
                before[key] += value
    return found


def _memories(context: RunContext, spec: MatmulSpec) -> tuple[Learned, Learned]:
    """Return where the models of `Known` are."""
    what = {"dtype": spec.dtype.name}
    return Learned(context, NAME, what), Learned(context, MOVING, what)


def _agreeing(memories: tuple[Learned, Learned], address: str, share: Known) -> Known:
    """Return what earlier products have taught of a worker, but priors that a share refutes."""
    measured = share.multiplying, share.moving
    pairs = zip(memories, measured, strict=True)
    return Known(*(memory.agreeing(address, model) for memory, model in pairs))


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
