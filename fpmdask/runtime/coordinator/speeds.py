"""Who gets how much: by what earlier runs took, else by a timed kernel, else the same for all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel, Model, PiecewiseLinearModel
from fpmdask.partition import geometric
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.instructions import PRIOR_EPSILONS
from fpmdask.runtime.coordinator.rounds import REPEATS, measure
from fpmdask.runtime.coordinator.windows import windows
from fpmdask.runtime.identity import KernelId, WorkerIdentity, canonical
from fpmdask.timing import TimingPolicy

# CPU-quota periods are 10 ms and more: shorter timings say little.
TIMING = TimingPolicy(min_repetitions=1, min_seconds=0.12, budget_seconds=0.2, warmup=1)
# Rounds of DFPA: times per key hardly depend on the number, so that little is left to find.
ROUNDS = 1
# So many models are made in one step of the scheduler's event loop.
AT_ONCE = 16

# What is told of a worker: its address, and facts.
Told = TypeVar("Told", bound=tuple[Any, ...])


class Learned:
    """What runs have taught of workers under one name: models in the coordinator's library.

    Parameters
    ----------
    context : RunContext
    name : str
        Under which the library keeps them.
    parameters : dict
        What else tells one kind of work from another.
    """

    def __init__(self, context: RunContext, name: str, parameters: Mapping[str, Any]) -> None:
        self._context, self._library = context, context.coordinator.library
        self._name, self._parameters = name, canonical(parameters)

    def of(self, address: str) -> PiecewiseLinearModel | None:
        """Return what is known of a worker: since its start, or under its name from before.

        What is from before, on the same hardware, is a prior: a run plans by it, and what the run
        takes confirms or refutes it (`agreeing`).
        """
        known = self._library.find(*self._key(address), alike=False)
        return None if known is None else known[0]

    def agreeing(
        self, address: str, measured: PiecewiseLinearModel | None
    ) -> PiecewiseLinearModel | None:
        """Return what is known of a worker, unless it is a prior that a measurement refutes."""
        known = self._library.find(*self._key(address), alike=False)
        if known is None:
            return None
        model, own = known
        if own or measured is None:
            return model
        epsilon = self._context.spec["measuring"]["epsilon"]
        return None if refutes(measured, model, epsilon) else model

    def keep(self, address: str, model: PiecewiseLinearModel) -> None:
        """Have this be known of a worker."""
        self._library.store(*self._key(address), model)

    def _key(self, address: str) -> tuple[KernelId, WorkerIdentity]:
        implementation = self._context.members.kernel_ids[address].implementation
        kernel = KernelId(self._name, implementation, self._parameters)
        return kernel, self._context.workers[address]


async def still_there(context: RunContext, told: Sequence[Told]) -> AsyncIterator[Told]:
    """Yield what is told of workers, by address first, that have not left: `AT_ONCE` in a step."""
    async for window in windows(told, AT_ONCE):
        for one in window:
            if one[0] in context.workers:
                yield one


def taught(
    before: PiecewiseLinearModel | None, units: float, seconds: float
) -> PiecewiseLinearModel:
    """Return what is known of a worker after it did so many units: half of it is from before.

    Examples
    --------
    >>> taught(taught(None, 10, 1.0), 20, 4.0).time(20)
    3.0
    """
    if before is not None:
        seconds = (seconds + float(before.time(units))) / 2
    return PiecewiseLinearModel.from_points([units], [seconds])


def refutes(measured: PiecewiseLinearModel, prior: PiecewiseLinearModel, epsilon: float) -> bool:
    """Tell whether a measurement and a prior disagree by more than both may be off.

    Each is off by as much as the imbalance that counts as balanced, ``epsilon``.

    Examples
    --------
    >>> prior = PiecewiseLinearModel.from_points([100], [1.0])
    >>> slower = [PiecewiseLinearModel.from_points([50], [s]) for s in (0.59, 0.61)]
    >>> [refutes(measured, prior, epsilon=0.1) for measured in slower]
    [False, True]
    """
    units, seconds = measured.points
    expected = prior.time(units)
    return bool((np.abs(seconds - expected) > PRIOR_EPSILONS * epsilon * expected).any())


@dataclass
class Speeds:
    """What is known, over runs, of how fast workers do one kind of work.

    Parameters
    ----------
    context : RunContext
        Prepared with the kernel that is timed where nothing is known.
    name : str
        Under which the library keeps what runs have taught.
    parameters : dict
        What else tells one kind of work from another.
    few : int
        Fewer units than this per worker are not worth measuring anybody.
    noun, where : str
        What units are called in messages, and what bounds them.
    timing : TimingPolicy
        How the kernel is timed.

    Attributes
    ----------
    reason : str
        Where the last shares come from: "known", "measured", or that there are few units.
    told : bool
        Whether that is from anything that is known of the workers.
    learned : bool
        Whether it is from what earlier runs took.
    """

    context: RunContext
    name: str
    parameters: dict[str, Any]
    few: int
    noun: str
    timing: TimingPolicy = TIMING
    where: str = "memory"
    reason: str = field(default="", init=False)
    told: bool = field(default=False, init=False)
    learned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._memory = Learned(self.context, self.name, self.parameters)

    async def shares(self, units: int, room: Callable[[str], float]) -> dict[str, int]:
        """Return units per worker so that all finish together; noted as the run's distribution.

        Parameters
        ----------
        units
            To share out.
        room
            Address → the most units that a worker has memory for.

        Raises
        ------
        PartitionError
            If they do not fit into the workers' memory.
        """
        context = self.context
        workers = list(context.workers)
        bounds = {
            address: room(address) if address in context.scheduler.workers else 0.0
            for address in workers
        }
        if sum(bounds.values()) < units:
            raise PartitionError(
                f"{units} {self.noun} do not fit into the {self.where} of the {len(workers)} "
                f"workers that are left, which have room for {sum(bounds.values()):.0f}; add "
                f"workers or {self.where}"
            )
        models, reason = self._models(), "known"
        if models is None and units >= self.few * len(workers):
            await self._measure(units, bounds)
            workers = list(context.workers)
            models, reason = self._models(), "measured"
        self.told = models is not None
        self.learned = all(self._memory.of(address) is not None for address in workers)
        if models is None:
            models, reason = [ConstantModel(1.0)] * len(workers), f"few {self.noun}"
        self.reason = reason
        return await self._shared_out(units, dict(zip(workers, models, strict=True)), bounds)

    async def revised(
        self,
        shares: Mapping[str, int],
        taken: Mapping[str, tuple[int, float]],
        bounds: Mapping[str, float],
    ) -> dict[str, int]:
        """Return better shares after the first of a run's own steps, where a kernel was timed.

        Parameters
        ----------
        shares
            Address → units, by the kernel.
        taken
            Address → the units that a worker had in that step, and its seconds.
        bounds
            Address → the most units that a worker has memory for.

        Returns
        -------
        dict
            The same shares where they are by what earlier runs took, or the step was short for
            those with most of the units.
        """
        units = sum(shares.values())
        least_seconds = self.context.tuning.runtime.learned_least_seconds
        told = {
            address: done / seconds
            for address, (done, seconds) in taken.items()
            if done and seconds >= least_seconds
        }
        of_told = sum(shares[address] for address in told)
        if not self.told or self.learned or 2 * of_told < units or sum(bounds.values()) < units:
            return dict(shares)
        # of the others, which had little to do, only the kernel tells
        rate = sum(told.values()) / of_told
        models: dict[str, Model] = {
            address: ConstantModel(told.get(address, rate * shares[address])) for address in taken
        }
        return await self._shared_out(units, models, bounds)

    async def _shared_out(
        self, units: int, models: Mapping[str, Model], bounds: Mapping[str, float]
    ) -> dict[str, int]:
        """Return shares by models; they are noted as the run's distribution."""
        limits = [bounds.get(address, 0.0) for address in models]
        found, spent = await asyncio.to_thread(_level, units, [*models.values()], limits)
        shares = dict(zip(models, found, strict=True))
        seconds: dict[str, float | None] = dict(zip(models, spent, strict=True))
        self.context.steps.expected = 0.0  # few units
        if self.told:
            self.context.steps.expected = max(spent)
        else:
            seconds = dict.fromkeys(shares)
        self.context.set_result(shares, seconds, None, self.reason, shares)
        names = zip(map(self.context.name, models), limits, strict=True)
        self.context.report["limits"] = {name: most for name, most in names if math.isfinite(most)}
        return shares

    async def learn(self, taken: Iterable[tuple[str, float, float]]) -> None:
        """Keep what workers took: (address, units, seconds) of the run's own steps.

        Nothing if all were short: the times of those that were through soon say, too, that they
        can do more.
        """
        told = [one for one in taken if one[0] in self.context.workers and one[1] and one[2] > 0]
        least_seconds = self.context.tuning.runtime.learned_least_seconds
        if max((seconds for *_, seconds in told), default=0.0) < least_seconds:
            return
        async for address, units, seconds in still_there(self.context, told):
            before = self._memory.agreeing(address, taught(None, units, seconds))
            self._memory.keep(address, taught(before, units, seconds))

    def _models(self) -> list[Model] | None:
        """Return the workers' models, by earlier runs or else by their timed kernel, or None."""
        workers = self.context.workers
        learned = [self._memory.of(address) for address in workers]
        timed = [self.context.members.model_of(address) for address in workers]
        known = [model for model in (timed if None in learned else learned) if model is not None]
        return [*known] if len(known) == len(workers) else None

    async def _measure(self, units: int, bounds: dict[str, float]) -> None:
        """Time the kernel on all workers at once, each with an even share."""
        measuring = self.context.spec["measuring"]
        if measuring["policy"] is None:
            measuring = {**measuring, "policy": self.timing.to_json()}
        measuring = {**measuring, "max_rounds": min(ROUNDS, measuring["max_rounds"])}

        def limit_of(address: str) -> float:
            return bounds.get(address, 0.0)

        await measure(self.context, units, limit_of=limit_of, repeats=REPEATS, **measuring)


def _level(
    units: int, models: Sequence[Model], limits: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Return the units of each worker by `geometric`, and the seconds that they take."""
    shares = [int(share) for share in geometric(units, models, limits)]
    return shares, [
        float(model.time(share)) if share else 0.0
        for model, share in zip(models, shares, strict=True)
    ]
