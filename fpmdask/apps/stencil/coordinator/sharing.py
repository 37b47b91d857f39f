"""Who begins with which rows: by what the caller says, by what is known, by what is measured."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fpmdask.apps.stencil.coordinator.known_machine import KnownMachines
from fpmdask.apps.stencil.coordinator.room import Room
from fpmdask.apps.stencil.history import LEAST_INSTRUMENTED
from fpmdask.apps.stencil.plan import shared
from fpmdask.apps.stencil.sizes import fits_with_room
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel, Model
from fpmdask.partition import even
from fpmdask.runtime.coordinator.checks import check_names
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.speeds import Learned

if TYPE_CHECKING:
    from fpmdask.apps.stencil.planner import Planner

# Fewer iterations are over before other shares could pay.
LEAST_TRIED = 3


@dataclass
class Split:
    """Who has which rows, and why.

    Attributes
    ----------
    shares
        Worker → rows, in the order of the rows.
    reason
        As in a report; "unknown" as long as they are to be measured.
    in_core
        Whether all rows are to be in core.
    planner
        Of runs whose iterations MHETA predicts.
    instruments
        Whether an iteration of a sample of rows is instrumented first; then all have as many.
    row_seconds
        Worker → seconds of a row where it computes for long, as far as that is known.
    planned
        Worker → seconds that it should compute in an iteration, by what these shares are based on;
        empty where that is nothing. It counts where MHETA does not predict.
    """

    shares: dict[str, int] = field(default_factory=dict)
    reason: str = "even"
    in_core: bool = False
    planner: Planner | None = None
    instruments: bool = False
    row_seconds: dict[str, float] = field(default_factory=dict)
    planned: dict[str, float] = field(default_factory=dict)

    @property
    def having(self) -> dict[str, int]:
        """Workers that have rows."""
        return {worker: rows for worker, rows in self.shares.items() if rows}


class Sharing:
    """Decides the first split of an attempt.

    Parameters
    ----------
    context, spec
        The run.
    workers
        In the order of their rows.
    room
        What they have for these.

    Attributes
    ----------
    made : int
        Iterations of earlier attempts, or calls, from which workers have told that they go on.
    """

    def __init__(
        self, context: RunContext, spec: StencilSpec, workers: Sequence[str], room: Room
    ) -> None:
        self._context, self._spec, self._workers, self._room = context, spec, workers, room
        self._rule, self._saved = context.spec["rule"], context.spec["machine"]
        self.learned = Learned(context, "stencil", {"row_nbytes": spec.row_nbytes})
        self.machines, self.made = KnownMachines(context), 0

    @property
    def tries(self) -> bool:
        """Whether measuring can pay."""
        return len(self._workers) > 1 and self._spec.iterations - self.made >= LEAST_TRIED

    async def first(self) -> Split:
        """Return who begins with which rows, before anything is measured."""
        context, workers, split = self._context, self._workers, Split()
        models = self._known()
        if (given := context.spec["distribution"]) is not None:
            split.shares, split.reason = self._given(given), "given"
        elif self._rule == "even":
            await self.share(split, [ConstantModel(1.0)] * len(workers))
        elif models is not None:
            split.reason = "known"
            await (self._by_speeds if self._saved is None else self.share)(split, models)
            split.planned = _seconds(split.shares, models)
            split.row_seconds = self._row_seconds(models)
        else:
            await self.share(split, [ConstantModel(1.0)] * len(workers))
            complete = self._saved is not None and self._saved["program"] is not None
            split.reason = "unknown" if self.tries and not complete else "even"
        if self._saved is not None and len(workers) > 1 and split.reason != "unknown":
            per_row = None if models is None else [*self._row_seconds(models).values()]
            await self._by_machine(split, self._saved, per_row)
        return split

    async def by_probes(self, split: Split, seconds: Mapping[str, float | None]) -> None:
        """Share out by what a row has taken each worker, None where it has computed none."""
        known = sorted(one for one in seconds.values() if one)
        each = [one or known[len(known) // 2] for one in seconds.values()]
        models: list[Model] = [ConstantModel(1 / one) for one in each]
        split.reason, split.row_seconds = "measured", self._row_seconds(models)
        if self._saved is not None:
            await self.share(split, models)
            await self._by_machine(split, self._saved, each)
        else:
            await self._by_speeds(split, models)
        split.planned = _seconds(split.shares, models)

    async def share(self, split: Split, models: Sequence[Model]) -> None:
        """Have all workers compute equally long, in core if the rule says so and all rows fit."""
        room, units, least = self._room, self._spec.shape[0], self._spec.least
        within = self._rule in ("in-core", "mheta")
        for most in [room.in_core, room.most] if within else [room.most]:
            limits, split.in_core = [most[worker] for worker in self._workers], most is room.in_core
            try:
                found = await asyncio.to_thread(shared, units, models, limits, least)
            except PartitionError:  # they need more; or none may have less than a halo
                if most is room.most:
                    raise
            else:
                break
        split.shares = dict(zip(self._workers, found, strict=True))

    def _known(self) -> list[Model] | None:
        """Return what earlier runs have taught of workers, None unless of all of them."""
        here = self._context.workers  # some may have left at this moment
        known = [self.learned.of(worker) if worker in here else None for worker in self._workers]
        models: list[Model] = [model for model in known if model is not None]
        return models if len(models) == len(self._workers) else None

    async def _by_speeds(self, split: Split, models: Sequence[Model]) -> None:
        """Share out by known speeds; if that is not in core for certain, MHETA is to say how."""
        await self.share(split, models)
        if self._rule != "mheta" or not self.tries:
            return
        room, spec, workers = self._room, self._spec, self._workers
        most = [room.most[worker] for worker in workers]
        balanced = await asyncio.to_thread(shared, spec.shape[0], models, most, spec.least)
        memory = [room.memory[worker] for worker in workers]
        if fits_with_room(spec, memory, balanced, prefetch=self._context.spec["prefetch"]):
            return
        planner = await asyncio.to_thread(self._new_planner)
        found = self.machines.of(planner, workers)
        if found is not None:
            await self._by_machine(split, found, learns=True)
        self.machines.used = found is not None and split.planner is not None
        if self.machines.used:
            return
        equal = dict(zip(workers, even(spec.shape[0], len(workers)).tolist(), strict=True))
        least = max(spec.least, LEAST_INSTRUMENTED)
        if all(least <= rows <= room.most[worker] for worker, rows in equal.items()):
            split.planner = await asyncio.to_thread(self._new_planner)
            split.instruments, split.shares = True, equal

    async def _by_machine(
        self,
        split: Split,
        saved: Mapping[str, Any],
        seconds_per_row: Sequence[float] | None = None,
        *,
        learns: bool = False,
    ) -> None:
        """Share out as a saved machine says, if it knows how fast workers compute."""
        planner = await asyncio.to_thread(self._new_planner)
        if not planner.know(saved, seconds_per_row, learns=learns):
            return
        split.planner, split.instruments = planner, False
        if self._rule == "mheta" and split.reason != "given":
            rows = [*split.shares.values()]
            found = await asyncio.to_thread(planner.choose, rows, self.made, placed=False)
            split.shares = dict(zip(self._workers, found.rows, strict=True))
            split.reason = "predicted"
        planner.begin([*split.shares.values()])

    def _row_seconds(self, models: Sequence[Model]) -> dict[str, float]:
        """Return what a row takes each worker, of as many as all have alike."""
        each = max(1, self._spec.shape[0] // len(self._workers))
        pairs = zip(self._workers, models, strict=True)
        return {worker: float(model.time(each)) / each for worker, model in pairs}

    def _new_planner(self) -> Planner:
        """Return a planner; in a thread, since it loads MHETA."""
        from fpmdask.apps.stencil.planner import Planner

        memory = [self._room.memory[worker] for worker in self._workers]
        return Planner(
            self._spec,
            [self._context.name(worker) for worker in self._workers],
            [None if math.isinf(nbytes) else math.floor(nbytes) for nbytes in memory],
            [self._room.most[worker] for worker in self._workers],
            prefetch=self._context.spec["prefetch"],
        )

    def _given(self, given: Mapping[str, int]) -> dict[str, int]:
        context, least = self._context, self._spec.least
        check_names(context, given, self._workers, "the distribution")
        for name, rows in given.items():
            if 0 < rows < least:
                raise PartitionError(
                    f"distribution gives {name} {rows} rows, and a halo has {least}; give 0 or "
                    "that many"
                )
        return {worker: int(given.get(context.name(worker), 0)) for worker in self._workers}


def _seconds(shares: Mapping[str, int], models: Sequence[Model]) -> dict[str, float]:
    """Return worker → seconds of its rows, by the models of the workers in order."""
    return {
        worker: float(model.time(rows)) if rows else 0.0
        for (worker, rows), model in zip(shares.items(), models, strict=True)
    }


def ordered(
    context: RunContext, spec: StencilSpec, places: Mapping[Any, Sequence[str]]
) -> list[str]:
    """Return the workers in the order of the rows that they hold now, so that few move."""
    held: dict[str, list[int]] = {}
    first, row = spec.fields[0], 0
    for key, rows in zip(first.keys, first.lengths, strict=first.stored is None):
        for worker in places[key]:
            held.setdefault(worker, []).append(row)
        row += rows
    workers = list(context.workers)
    middle = {w: sum(own) / len(own) for w, own in held.items()}
    at = {w: middle.get(w, row * (n + 0.5) / len(workers)) for n, w in enumerate(workers)}
    return sorted(workers, key=at.__getitem__)
