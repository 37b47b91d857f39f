"""With which rows a team goes on without MHETA, by what its iterations have taken.

This is its dynamic load balancing, which moves rows only where that pays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fpmdask.apps.stencil.coordinator.room import Room
from fpmdask.apps.stencil.coordinator.sharing import Split
from fpmdask.apps.stencil.plan import (
    Revision,
    Speed,
    exchange_every,
    moving_seconds,
    revised,
)
from fpmdask.apps.stencil.sizes import Sizes, in_core_nbytes
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.runtime.coordinator.context import RunContext


@dataclass(frozen=True)
class Revising:
    """What workers of a team have told after some iterations.

    Parameters
    ----------
    context, spec, split, room
        The run, who has which rows, and what for.
    told
        Worker → its `Tried`.
    left
        Iterations to come.
    every_now
        Iterations between two exchanges of halos so far.
    exchange_known
        Seconds of an exchange, as far as that is known; counts where one worker has all rows now.
    """

    context: RunContext
    spec: StencilSpec
    split: Split
    room: Room
    told: Mapping[str, Mapping[str, Any]]
    left: int
    every_now: int = 1
    exchange_known: float | None = None

    @property
    def exchange(self) -> float | None:
        """What an exchange of halos takes, None where nobody knows."""
        workers = self.split.having
        if len(workers) < 2:
            return self.exchange_known
        each: list[float] = [self.told[worker]["exchange_seconds"] for worker in workers]
        return self.every_now * min(each)

    @property
    def _wraps(self) -> bool:
        return self.spec.boundary[0] == "periodic"

    def speeds(self, ready: Mapping[str, Speed]) -> dict[str, Speed]:
        """Return what the team has told, and what is taken for workers that are to join."""
        streams = self.context.spec["rule"] == "mheta"
        found = {}
        for worker in self.split.having:
            one = self.told[worker]
            seconds = one["row_seconds"]
            if seconds is not None and streams:
                seconds += one["io_seconds"]
            found[worker] = Speed(
                seconds,
                self.every_now * one["exchange_seconds"],
                one["byte_seconds"],
                one["call_seconds"],
                one["rows"],
                one["calls"],
            )
        known = self.split.row_seconds
        idle = {w: Speed(known.get(w), 0.0, 0.0) for w in self.split.shares if w not in found}
        others = {**idle, **ready}
        exchange = max(one.exchange_seconds for one in found.values())
        if len(found) < 2:
            default = self.context.tuning.stencil.exchange_seconds
            exchange = default if self.exchange_known is None else self.exchange_known
            others |= found
        byte = max(one.byte_seconds for one in found.values())
        return found | {
            worker: replace(one, exchange_seconds=exchange, byte_seconds=byte)
            for worker, one in others.items()
        }

    async def revised(self, before: Mapping[str, int], speeds: Mapping[str, Speed]) -> Revision:
        """Return with which shares to go on, in core if the rule says so and all rows fit.

        They are the same ones where there are no better ones for which there is memory.
        """
        rule, tuning = self.context.spec["rule"], self.context.tuning.stencil
        same = before.keys() == self.split.shares.keys()
        if self.context.spec["distribution"] is not None or (same and rule == "even"):
            return Revision(dict(before))
        rooms = [self.room.most]
        if self.split.in_core or (not same and rule in ("in-core", "mheta")):
            rooms.insert(0, self.room.in_core)
        alone = self.room.in_core if rule == "mheta" else None

        def found(room: Mapping[str, float]) -> Revision:
            return revised(
                before,
                speeds,
                self.left,
                self.spec.row_nbytes,
                room,
                self.spec.least,
                equal=rule == "even",
                alone=alone,
                stop=tuning.move_seconds,
                depth=self.spec.depth[0],
                wraps=self._wraps,
                most_every=tuning.most_every,
            )

        for room in rooms:
            try:
                return await asyncio.to_thread(found, room)
            except PartitionError:  # they need more, or some would get fewer rows than they must
                continue
        return Revision(dict(before), left=self.left)

    def every(
        self, before: Mapping[str, int], after: Mapping[str, int], speeds: Mapping[str, Speed]
    ) -> int:
        """Return how many iterations are made from one exchange of halos to the next.

        Not so many that a worker has no memory for their halos.
        """
        tuning, prefetch = self.context.tuning.stencil, self.context.spec["prefetch"]
        most, worth = min(self.left, tuning.most_every), 0.0
        sizes = Sizes.of(self.spec, prefetch=prefetch)
        # in the buffers, in strips, and in two copies of either edge
        halo = 2 * self.spec.depth[0] * (sizes.in_core + 3 * sum(sizes.fields))
        for worker, rows in after.items():
            spare = self.room.memory[worker] - in_core_nbytes(self.spec, rows, prefetch=prefetch)
            if rows and halo:
                most = int(min(most, 1 + max(0.0, spare) / halo))
        if after == before and self.left:  # else the buffers are new in any case
            worth = moving_seconds(before, before, speeds, self.spec.row_nbytes)
            worth = (worth + tuning.move_seconds) / self.left
        return exchange_every(
            speeds,
            after,
            self.spec.depth[0],
            most,
            worth,
            now=self.every_now if after == before else 1,
            wraps=self._wraps,
        )


def as_trial(told: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return what a worker has told of its last iterations as it tells of the first ones."""
    return {
        "trial": told["again"],
        "row_seconds": told["compute"] / rows if rows else None,
        "io_seconds": told["io"] / rows if rows else 0.0,
        "exchange_seconds": told["send"] + told["receive"],
        "byte_seconds": told["byte_seconds"],
        "call_seconds": told["call_seconds"],
        "rows": rows,
        "calls": told["calls"],
    }
