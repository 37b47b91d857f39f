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


def room_of(context: RunContext, spec: StencilSpec, free: Mapping[str, float]) -> Room:
    """Return what workers have for rows: what is free, and not more than the caller says.

    Raises
    ------
    PartitionError
        If the result does not fit, or not the rows that are given.
    """
    given, names = context.spec["memory"], {worker: context.name(worker) for worker in free}
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(names.values(), given)
    output = context.spec["output"]
    units = 0 if output is None else output["nbytes"]
    least = {
        w: min(nbytes, by_name.get(names[w]) or math.inf) - units for w, nbytes in free.items()
    }
    if units and max(least.values()) < 0:
        raise PartitionError(
            f"workers need {units} bytes for the rows that out writes as one, which is more than "
            "each has; give more memory, or out with chunks, or shards, of fewer rows"
        )
    memory = {
        w: nbytes if math.isinf(nbytes) else max(0, math.floor(nbytes))
        for w, nbytes in least.items()
    }
    stored = output is not None
    found = most_rows(spec, [*memory.values()], prefetch=context.spec["prefetch"], stored=stored)
    in_core, most = (
        {w: count if count >= spec.least else 0.0 for w, count in zip(free, rows, strict=True)}
        for rows in found
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
        raise PartitionError(
            f"the result has {spec.shape[0]} rows, and the workers' memory holds a block of rows "
            f"and the result of {sum(most.values()):.0f} rows (bytes: {have}); add workers or "
            "memory, or give out=, a Zarr array to which it is written"
        )
    return Room(memory, in_core, most)
