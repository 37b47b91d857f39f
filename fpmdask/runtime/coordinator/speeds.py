"""Who gets how much: by what earlier runs took, else by a timed kernel, else the same for all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel, Model, PiecewiseLinearModel
from fpmdask.partition import geometric
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.rounds import REPEATS, measure
from fpmdask.runtime.coordinator.windows import windows
from fpmdask.runtime.identity import KernelId, canonical
from fpmdask.timing import TimingPolicy

# CPU-quota periods are 10 ms and more: shorter timings say little.
TIMING = TimingPolicy(min_repetitions=1, min_seconds=0.12, budget_seconds=0.2, warmup=1)
# Rounds of DFPA: times per key hardly depend on the number, so that little is left to find.
ROUNDS = 1
# So many models are made in one step of the scheduler's event loop.
AT_ONCE = 16


def busy_seconds(share: Mapping[str, Any], quota: float | None = None) -> float:
    """Return the seconds in which a worker was busy after its own sort, of those that it took.

    Parameters
    ----------
    share
        Facts of `fpmdask.apps.sort.worker`.
    quota
        Cores that the worker may use, None: as many as there are.

    Notes
    -----
    While its threads sort, the process gets CPU at some rate, a quota at most: work of less than a
    quota's period may be done at the rate of a whole core. At that rate its CPU-seconds take the
    time in which it was busy. In the rest it waited for others, in an exchange for about as long as
    for the slowest of all: if that counted, whoever has too little would take as long for it as all
    others for theirs, and never get more.

    Examples
    --------
    A tenth of a core, that waited for most of a second:

    >>> cpu = {"exchange": 0.02, "working": 0.01}
    >>> phases = {"exchange": 0.9, "merge": 0.1}
    >>> share = {"cpu_seconds": cpu, "working_seconds": 0.1, "phases": phases}
    >>> round(busy_seconds(share), 6), round(busy_seconds(share, quota=0.05), 6)
    (0.2, 0.4)
    """
    phases, cpu = share["phases"], share["cpu_seconds"]
    taken = sum(phases.get(phase, 0.0) for phase in ("count", "exchange", "merge"))
    if not (share["working_seconds"] > 0 and cpu["working"] > 0):
        return float(taken)
    rate = cpu["working"] / share["working_seconds"]
    return float(max(min(taken, cpu["exchange"] / rate), cpu["exchange"] / (quota or math.inf)))


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
        self._canonical = canonical(self.parameters)

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
        self.learned = all(self._learned(address) is not None for address in workers)
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
        least_seconds = self.context.tuning.sort.learned_least_seconds
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
        self.context.expected = 0.0  # few units
        if self.told:
            self.context.expected = max(spent)
        else:
            seconds = dict.fromkeys(shares)
        self.context.set_result(shares, seconds, None, self.reason, shares)
        return shares

    async def learn(self, taken: Iterable[tuple[str, float, float]]) -> None:
        """Keep what workers took: (address, units, seconds) of the run's own steps.

        Nothing if all were short: the times of those that were through soon say, too, that they
        can do more.
        """
        library = self.context.coordinator.library
        told = [one for one in taken if one[0] in self.context.workers and one[1] and one[2] > 0]
        least_seconds = self.context.tuning.sort.learned_least_seconds
        if max((seconds for *_, seconds in told), default=0.0) < least_seconds:
            return
        async for window in windows(told, AT_ONCE):
            for address, units, seconds in window:
                if (identity := self.context.workers.get(address)) is not None:
                    model = taught(self._learned(address), units, seconds)
                    library.store(self._kernel(address), identity, model)

    def _models(self) -> list[Model] | None:
        """Return the workers' models, by earlier runs or else by their timed kernel, or None."""
        workers = self.context.workers
        learned = [self._learned(address) for address in workers]
        timed = [self.context.model_of(address) for address in workers]
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

    def _learned(self, address: str) -> PiecewiseLinearModel | None:
        """Return what earlier runs say of a worker since its start."""
        found = self.context.coordinator.library.find(
            self._kernel(address), self.context.workers[address]
        )
        return found[0] if found is not None and found[1] else None

    def _kernel(self, address: str) -> KernelId:
        implementation = self.context.kernel_ids[address].implementation
        return KernelId(self.name, implementation, self._canonical)


def _level(
    units: int, models: Sequence[Model], limits: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Return the units of each worker by `geometric`, and the seconds that they take."""
    shares = [int(share) for share in geometric(units, models, limits)]
    return shares, [
        float(model.time(share)) if share else 0.0
        for model, share in zip(models, shares, strict=True)
    ]
