"""Who gets how much: as given, by the caller's seconds, or by the caller's kernel."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from fpmdask.apps.rebalance.coordinator.chunk_locations import ChunkLocations
from fpmdask.apps.rebalance.plan import units_of
from fpmdask.apps.rebalance.spec import KNOW, RebalanceSpec
from fpmdask.errors import PartitionError
from fpmdask.models import ConstantModel, Model
from fpmdask.partition import geometric, imbalance
from fpmdask.runtime.coordinator.checks import check_names
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.rounds import measure
from fpmdask.runtime.coordinator.team import Attempt
from fpmdask.runtime.report import TOO_SHORT
from fpmdask.timing.measure import too_short

# Sums of weights become so many whole units.
UNITS = 1e9
# A worker is told the units of about so many of its ranges of rows.
UNITS_TOLD = 1000
# Another round must promise a gain of this part, from the fourth one on of twice, thrice … as much:
# it takes seconds where rows are joined to be timed, and of what use it is nobody knows.
LEAST_GAIN = 0.02


class Shares:
    """How much each worker gets in one attempt.

    Parameters
    ----------
    attempt
        The attempt.
    locations
        Who holds which chunk, and who has room.
    speeds
        Worker name → units per second, where the caller has given seconds: from the first attempt.

    Attributes
    ----------
    received
        Worker → bytes of the rows of others that its kernel needed.
    """

    def __init__(
        self,
        attempt: Attempt,
        spec: RebalanceSpec,
        locations: ChunkLocations,
        speeds: dict[str, float],
    ) -> None:
        self.attempt, self.spec, self.locations, self.speeds = attempt, spec, locations, speeds
        self.context: RunContext = attempt.context
        self.received: dict[str, int] = {}

    async def found(self) -> tuple[dict[str, float], dict[str, float | None], str]:
        """Return the units of each worker, the seconds that they should take, and why."""
        context, cuts, members = self.context, self.spec.cuts, self.locations.members
        if (given := context.spec["distribution"]) is not None:
            check_names(context, given, members, "the distribution")
            every = sum(given.values())
            part = {worker: given.get(context.name(worker), 0) / every for worker in members}
            return {w: cuts.total * p for w, p in part.items()}, dict.fromkeys(members), "given"
        # whole units from here on, as partitioners have them
        scale = 1.0 if cuts.anywhere else UNITS / cuts.total
        units = round(cuts.total * scale)
        here = {worker: units_of(cuts, self.locations.spans.get(worker, ())) for worker in members}
        limits = self._limits({worker: scale * n for worker, n in here.items()}, units)
        models: Mapping[str, Model]
        if context.spec["seconds"] is not None:
            models, reason = self._told(here, scale), "measured"
            bounds = [limits[worker] for worker in models]
            shares = await asyncio.to_thread(geometric, units, [*models.values()], bounds)
            whole = dict(zip(models, map(int, shares), strict=True))
        else:
            whole, models, reason = await self._measured(units, scale, limits)
        as_held = {worker: round(scale * here.get(worker, 0.0)) for worker in whole}
        if self._balanced(as_held, models) and reason != TOO_SHORT:
            reason = "as held"
        # rows that no worker of the run has must go somewhere
        stay = reason == "as held" or (reason == TOO_SHORT and None not in self.locations.spans)
        seconds: dict[str, float | None] = {
            worker: float(models[worker].time(n)) if n and worker in models else 0.0
            for worker, n in (as_held if stay else whole).items()
        }
        if stay:
            return {worker: here.get(worker, 0.0) for worker in whole}, seconds, reason
        return {worker: n / scale for worker, n in whole.items()}, seconds, reason

    def _balanced(self, units: Mapping[str, int], models: Mapping[str, Model]) -> bool:
        """Tell whether all workers finish together, within epsilon, with what they hold."""
        if None in self.locations.spans or units.keys() - models.keys():
            return False
        busy = [float(models[worker].time(n)) for worker, n in units.items() if n]
        # one without rows that could do some of it before the others are done
        idle = [float(models[worker].time(1)) for worker, n in units.items() if not n]
        epsilon = self.context.spec["measuring"]["epsilon"]
        return bool(imbalance(busy) <= epsilon and min(idle, default=math.inf) >= max(busy))

    def _limits(self, here: Mapping[str, float], units: int) -> dict[str, float]:
        """Return the most units of each worker: what it holds, and what else has room.

        Raises
        ------
        PartitionError
            If that is not all of them.
        """
        every = nbytes = sum(self.locations.nbytes.values())
        # what is no array of numbers is in memory twice when it comes
        if any(one.shape is None for one in self.spec.inputs):
            every *= 2
        limits = {
            worker: math.floor(n + self.locations.free[worker] / max(1, every) * units)
            if math.isfinite(self.locations.free[worker])
            else math.inf
            for worker, n in here.items()
        }
        if sum(limits.values()) < units:
            free = sum(self.locations.free.values())
            raise PartitionError(
                f"rows of {nbytes} bytes do not fit on the {len(here)} workers of this run, with "
                f"room for {free:.0f} bytes beside what they hold; add workers or memory, or let "
                "go of what they hold"
            )
        return limits

    def _told(self, here: Mapping[str, float], scale: float) -> dict[str, Model]:
        """Return the speeds that follow from the caller's seconds."""
        given, members = self.context.spec["seconds"], self.locations.members
        names = {worker: self.context.name(worker) for worker in members}
        if not self.speeds:
            check_names(self.context, given, members, "seconds")
            lacking = [name for worker, name in names.items() if here[worker] and name not in given]
            if lacking:
                raise PartitionError(
                    f"seconds lack {', '.join(lacking)}, which hold rows; give what each took"
                )
            self.speeds.update(
                (name, here[worker] * scale / given[name])
                for worker, name in names.items()
                if here[worker] and name in given
            )
        # of one that holds nothing nothing is known: it is taken for an average one
        mean = sum(self.speeds.values()) / len(self.speeds) if self.speeds else 1.0
        return {w: ConstantModel(self.speeds.get(name, mean)) for w, name in names.items()}

    async def _measured(
        self, units: int, scale: float, limits: Mapping[str, float]
    ) -> tuple[dict[str, int], Mapping[str, Model], str]:
        """Return the units of each worker by DFPA with the caller's kernel."""
        context, members = self.context, self.locations.members
        self._check_raised()
        orders = {worker: self._rows_to_time(worker, scale) for worker in members}
        self.attempt.dispatch(KNOW, orders)
        for worker, answer in (await self.attempt.everyone(None, "know")).items():
            self.received[worker] = answer["nbytes_received"]
        measuring = context.spec["measuring"]
        machine = await measure(
            context,
            units,
            limit_of=lambda worker: limits.get(worker, 0.0),
            least_gain=0.0 if measuring["thorough"] else LEAST_GAIN,
            scout=max(1, units // (context.tuning.rebalance.scout_divisor * len(members))),
            **measuring,
        )
        self._check_raised()
        result = machine.result
        assert result is not None  # else it has raised
        models = {w: model for w, model in machine.models.items() if w in result.proposal}
        # one that has joined meanwhile has no limit, and no units
        found = {worker: result.proposal[worker] for worker in limits if worker in result.proposal}
        if not too_short(result.seconds.values()):
            return found, models, result.reason
        bounds = [limits[worker] for worker in found]
        even = geometric(units, [ConstantModel(1.0)] * len(found), bounds)
        return dict(zip(found, map(int, even), strict=True)), models, TOO_SHORT

    def _check_raised(self) -> None:
        """Raise what the caller's kernel has raised on any worker."""
        if self.context.members.errors:
            raise self.context.members.kernel_failure("the kernel failed")

    def _rows_to_time(self, worker: str, scale: float) -> dict[str, Any]:
        """Return the order by which a worker's kernel knows its rows, or as many of others."""
        cuts, every = self.spec.cuts, sum(self.locations.nbytes.values())
        part = self.context.tuning.rebalance.timed_part
        most = part * self.locations.free[worker] * cuts.count / max(1, every)
        spans = self.locations.spans.get(worker)
        if not spans:
            few = max(1, min(cuts.count // len(self.locations.members), int(min(most, cuts.count))))
            spans = [(0, few)]
        rows, units = [0.0], [0.0]
        for start, stop in spans:
            at = np.linspace(start, stop, min(stop - start, UNITS_TOLD) + 1).astype(np.int64)
            rows += (rows[-1] + at[1:] - start).tolist()
            before = scale * cuts.before(at)
            units += (units[-1] + before[1:] - before[0]).tolist()
        if not units[-1]:  # rows of no weight tell nothing of those that have some
            rows, units = [0, cuts.count], [0.0, scale * cuts.total]
        inputs = []
        for one in self.spec.inputs:
            wanted = [one.wanted(span, self.locations.places) for span in spans]
            pieces = [*chain.from_iterable(some["pieces"] for some in wanted)]
            inputs.append({**wanted[0], "pieces": pieces})
        return {
            "inputs": inputs,
            "rows": rows,
            "units": units,
            "most": most,
            "bare": self.locations.bare,
        }
