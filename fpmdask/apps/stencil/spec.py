"""What is to be iterated. Plain data on its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from fpmdask.runtime.rows import Rows
from fpmdask.runtime.wire import Packed, Request

Condition = str | int | float  # "reflect", "periodic", "nearest", "none", or what is beyond


@dataclass(frozen=True)
class StencilSpec:
    """All of it.

    Parameters
    ----------
    fields
        What is iterated.
    args
        Arrays of the same shape that stay as they are.
    depth, boundary
        Cells of halo on both sides of each axis, and what is beyond the ends.
    iterations
        At most.
    tolerance
        It ends when no cell changes by more in one iteration; None: never earlier.
    check_every
        Iterations between two looks at the tolerance.
    """

    fields: tuple[Rows, ...]
    args: tuple[Rows, ...]
    depth: tuple[int, ...]
    boundary: tuple[Condition, ...]
    iterations: int
    tolerance: float | None = None
    check_every: int = 10

    @property
    def shape(self) -> tuple[int, ...]:
        """Of every array."""
        return (self.fields[0].count, *(self.fields[0].shape or ())[1:])

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row of all arrays that an update reads."""
        items = sum(np.dtype(one.dtype).itemsize for one in (*self.fields, *self.args))
        return items * prod(self.shape[1:])

    @property
    def sides(self) -> tuple[int, ...]:
        """Cells of halo that rows are kept with, on both sides of each axis but the first."""
        ends = zip(self.depth[1:], self.boundary[1:], strict=True)
        return tuple(0 if condition == "none" else cells for cells, condition in ends)

    @property
    def least(self) -> int:
        """Rows that a worker must have, if it has any: a neighbour's halo comes from one worker."""
        return max(1, self.depth[0])

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StencilSpec:
        """Rebuild a spec from `to_json`."""
        return cls(
            tuple(map(Rows.from_json, data["fields"])),
            tuple(map(Rows.from_json, data["args"])),
            tuple(data["depth"]),
            tuple(data["boundary"]),
            data["iterations"],
            data["tolerance"],
            data["check_every"],
        )


class StencilRequest(Request):
    """Iterate; ``stencil`` is a `StencilSpec`.

    ``memory`` is bytes for rows, of every worker or by name; ``rule`` who gets which rows;
    ``machine`` a saved `fpmdask.mheta.Machine`; ``output`` and ``checkpoint`` what workers write.
    """

    stencil: Mapping[str, Any]
    update: Packed
    distribution: Mapping[str, int] | None
    memory: float | Mapping[str, float] | None
    prefetch: bool
    rule: Literal["mheta", "even", "balanced", "in-core"]
    machine: Mapping[str, Any] | None
    output: Mapping[str, Any] | None
    checkpoint: Mapping[str, Any] | None
