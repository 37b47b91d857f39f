"""How many rows each worker has memory for, in core and at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fpmdask.apps.stencil.sizes import most_rows
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.runtime.coordinator.context import RunContext


@dataclass(frozen=True)
class Room:
    """What workers have for rows: address → bytes, and rows in core, and rows at all."""

    memory: dict[str, float]
    in_core: dict[str, float]
    most: dict[str, float]

    def with_joined(self, other: Room) -> Room:
        """Return this and what another one says of further workers."""
        return Room(
            self.memory | other.memory, self.in_core | other.in_core, self.most | other.most
        )


def free_room(context: RunContext, spec: StencilSpec, free: Mapping[str, float]) -> Room:
    """Return what workers have for rows: what is free, and not more than the caller says."""
    given, names = context.spec["memory"], {worker: context.name(worker) for worker in free}
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(names.values(), given)
    output = context.spec["output"]
    units = 0 if output is None else output["nbytes"]
    least = {
        w: min(nbytes, by_name.get(names[w]) or math.inf) - units for w, nbytes in free.items()
    }
    memory = {
        w: nbytes if math.isinf(nbytes) else max(0, math.floor(nbytes))
        for w, nbytes in least.items()
    }
    stored, prefetch = output is not None, context.spec["prefetch"]
    found = most_rows(spec, [*memory.values()], prefetch=prefetch, stored=stored)
    in_core, most = (
        {w: count if count >= spec.least else 0.0 for w, count in zip(free, rows, strict=True)}
        for rows in found
    )
    return Room(memory, in_core, most)


def room_of(context: RunContext, spec: StencilSpec, free: Mapping[str, float]) -> Room:
    """Return the `free_room` of workers that are to hold all rows.

    Raises
    ------
    PartitionError
        If the result does not fit, or not the rows that are given.
    """
    room = free_room(context, spec, free)
    memory, most = room.memory, room.most
    names, output = {worker: context.name(worker) for worker in free}, context.spec["output"]
    if output is not None and output["nbytes"] and not max(memory.values(), default=0):
        raise PartitionError(
            f"workers need {output['nbytes']} bytes for the rows that out writes as one, which is "
            "more than each has; give more memory, or out with chunks, or shards, of fewer rows"
        )
    distribution = context.spec["distribution"] or {}
    for worker, name in names.items():
        if (rows := distribution.get(name, 0)) > most[worker]:
            raise PartitionError(
                f"distribution gives {name} {rows} rows, and it has {memory[worker]:.0f} bytes of "
                f"memory, which hold a block of rows and the result of {most[worker]:.0f} rows; "
                "give it fewer, or more memory, or give out="
            )
    if sum(most.values()) < spec.shape[0]:
        have = ", ".join(f"{names[w]} {nbytes:.0f}" for w, nbytes in memory.items())
        advice = "" if output is not None else ", or give out=, a Zarr array to which it is written"
        raise PartitionError(
            f"the result has {spec.shape[0]} rows, and the workers' memory holds a block of rows "
            f"and the result of {sum(most.values()):.0f} rows (bytes: {have}); add workers or "
            f"memory{advice}"
        )
    return room
