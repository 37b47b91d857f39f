"""What rows take of a worker's memory, and what their arrays are called. Pure.

This is the memory of `program`, in a module that does not load MHETA: all calls need it, and most
are in core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from fpmdask.apps.stencil.spec import StencilSpec

# A worker is in core for certain with so many times the memory that its rows take: what Python and
# an update take besides is not known to a per cent.
SPARE = 1.2


def field_name(number: int) -> str:
    """Return the name of a field."""
    return f"u0[{number}]"


def is_moved(name: str) -> bool:
    """Tell whether rows of an array move from worker to worker: of fields they do, once."""
    return name.startswith("u0[")


def arg_name(number: int) -> str:
    """Return the name of a constant array."""
    return f"args[{number}]"


@dataclass(frozen=True)
class Sizes:
    """Bytes of a row of each array with its halo on the other axes, and of what is beside rows.

    Attributes
    ----------
    fields, args
        Of each field, and of each constant array.
    block
        Of a row in a block, out of core: one buffer, or two where the next block is prefetched.
    fixed
        Beside the rows: halos and edges, as many as out of core, or in core if these are more
        (`Block`: two halos, two strips of three times `depth` rows, two copies of either edge, and
        `depth` rows by which rows move).
    """

    fields: tuple[int, ...]
    args: tuple[int, ...]
    block: int
    fixed: int

    @classmethod
    def of(cls, spec: StencilSpec, *, prefetch: bool) -> Sizes:
        """Return those of a call."""
        fields, args = (
            tuple(row_nbytes(spec, one.dtype) for one in some) for some in (spec.fields, spec.args)
        )
        read, buffers = sum(fields) + sum(args), 2 if prefetch else 1
        halos = (3 * buffers + 2) * read + 4 * sum(fields)
        in_core = 13 * sum(fields) + 2 * sum(args)
        return cls(fields, args, buffers * read, spec.depth[0] * max(halos, in_core))

    @property
    def in_core(self) -> int:
        """Bytes of a row in core."""
        return sum(self.fields) + sum(self.args)


def in_core_nbytes(spec: StencilSpec, rows: int, *, prefetch: bool = True) -> int:
    """Return what rows take of a worker's memory where they are in core."""
    sizes = Sizes.of(spec, prefetch=prefetch)
    return sizes.fixed + rows * sizes.in_core


def fits_with_room(
    spec: StencilSpec, memory: Sequence[float], rows: Sequence[int], *, prefetch: bool = True
) -> bool:
    """Tell whether all workers have `SPARE` times the memory that their rows take in core."""
    return all(
        not count or SPARE * in_core_nbytes(spec, count, prefetch=prefetch) <= nbytes
        for count, nbytes in zip(rows, memory, strict=True)
    )


def most_rows(
    spec: StencilSpec, memory: Sequence[float], *, prefetch: bool = True, stored: bool = False
) -> tuple[list[float], list[float]]:
    """Return the rows that workers hold in core, and those that they hold at all.

    Unless it is stored elsewhere, the result must fit into a worker's memory, once.

    Parameters
    ----------
    spec, prefetch
        The call.
    memory
        Of each worker, in bytes; inf: no limit.

    Examples
    --------
    >>> from fpmdask.runtime.rows import Rows
    >>> rows = Rows(("a",), (100,), 0, "<f8", (100, 1000))
    >>> spec = StencilSpec((rows,), (), (0, 0), ("none", "none"), 10)
    >>> most_rows(spec, [160_000.0, 15_999.0, 15.0])
    ([20.0, 1.0, 0.0], [20.0, 1.0, 0.0])
    """
    sizes = Sizes.of(spec, prefetch=prefetch)
    rooms = [nbytes - sizes.fixed for nbytes in memory]
    in_core = [max(0.0, _quotient(room, sizes.in_core)) for room in rooms]
    streamed = [math.inf if room >= sizes.block else 0.0 for room in rooms]
    result = sum(np.dtype(one.dtype).itemsize for one in spec.fields) * prod(spec.shape[1:])
    results = (math.inf if stored else _quotient(nbytes, result) for nbytes in memory)
    return in_core, list(map(min, map(max, in_core, streamed), results))


def _quotient(nbytes: float, row_nbytes: int) -> float:
    return nbytes if math.isinf(nbytes) else float(int(nbytes) // max(1, row_nbytes))


def row_nbytes(spec: StencilSpec, dtype: str | None) -> int:
    """Return the bytes of a row with its halo on the other axes.

    Examples
    --------
    >>> from fpmdask.runtime.rows import Rows
    >>> rows = Rows(("a",), (100,), 0, "<f8", (100, 1000))
    >>> row_nbytes(StencilSpec((rows,), (), (1, 1), ("none", 0.0), 10), "<f8")
    8016
    """
    return np.dtype(dtype).itemsize * prod(
        cells + 2 * side for cells, side in zip(spec.shape[1:], spec.sides, strict=True)
    )
