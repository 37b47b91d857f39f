"""A call of the stencil as MHETA sees it: one section of one stage and the halos. Pure.

Who streams rows out of core takes the sizes of its blocks from this program, too, so that what is
predicted and what is done are one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import numpy as np

from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.mheta import Array, Communication, Machine, Program, Section, Stage
from fpmdask.mheta.blocks import Memory, block_rows

NORM_NBYTES = 8


def field_name(number: int) -> str:
    """Return the name of a field."""
    return f"u0[{number}]"


def is_moved(name: str) -> bool:
    """Tell whether rows of an array move from worker to worker: of fields they do, once."""
    return name.startswith("u0[")


def second_name(number: int) -> str:
    """Return the name of a field's second buffer, which it has in core."""
    return f"second[{number}]"


def arg_name(number: int) -> str:
    """Return the name of a constant array."""
    return f"args[{number}]"


def program(spec: StencilSpec, *, prefetch: bool = True, checks: bool = False) -> Program:
    """Return the structure of one iteration, without any figure of a node.

    Parameters
    ----------
    spec
        The call.
    prefetch
        Whether the next block is read while one is computed.
    checks
        Whether the iteration ends with the all-reduce of a tolerance, which is every
        `check_every`-th.

    Notes
    -----
    1. In core a field has two buffers that take turns: a second array, which no stage streams. Out
       of core rows are replaced in place, in a block and on disk (`Streamed`).
    2. What does not depend on the rows is `fixed_bytes`: what a block has beside its rows, which
       are 3 · depth rows in each buffer, the halos of the rows, and the rows at both ends, which
       neighbours need, before and after an iteration.
    3. Where the boundary is periodic the first and the last node are neighbours, too: two messages
       per iteration that `nearest_neighbour` does not have.
    4. An exchange of halos for several iterations at once is predicted as one for each.

    Examples
    --------
    >>> from fpmdask.runtime.rows import Rows
    >>> rows = Rows(("a",), (100,), 0, "<f8", (100, 1000))
    >>> found = program(StencilSpec((rows,), (), (1, 0), ("reflect", "none"), 10))
    >>> [(array.name, array.row_bytes) for array in found.arrays]
    [('u0[0]', 8000), ('second[0]', 8000)]
    >>> found.sections[0].communication.message_bytes
    8000
    """
    fields = [row_nbytes(spec, one.dtype) for one in spec.fields]
    args = [row_nbytes(spec, one.dtype) for one in spec.args]
    read = [*map(field_name, range(len(fields))), *map(arg_name, range(len(args)))]
    second = list(map(second_name, range(len(fields))))
    arrays = [
        Array(name, nbytes)
        for name, nbytes in zip([*read, *second], [*fields, *args, *fields], strict=True)
    ]
    depth, buffers = spec.depth[0], 2 if prefetch else 1
    stage = Stage(reads=read, writes=read[: len(fields)], prefetch=prefetch)
    halos = Communication("nearest_neighbour", depth * sum(fields)) if depth else Communication()
    sections = [Section([stage], communication=halos)]
    if checks:
        sections.append(Section(communication=Communication("reduction_tree", NORM_NBYTES)))
    around = depth * ((3 * buffers + 2) * (sum(fields) + sum(args)) + 4 * sum(fields))
    return Program(sections, arrays, around)


def streamed_rows(
    spec: StencilSpec, rows: int, memory: float | None, *, prefetch: bool = True
) -> int:
    """Return the rows of a block of a worker that is out of core, 0 for one that is in core.

    Parameters
    ----------
    spec, prefetch
        The call.
    rows
        Of the worker.
    memory
        What it has for them, in bytes; None: no limit.

    Raises
    ------
    PartitionError
        If not even a block of one row fits.
    """
    if not rows:
        return 0
    found = block_rows(program(spec, prefetch=prefetch), memory, rows)
    if found is None:
        raise PartitionError(
            f"a block of rows, and the halos, do not fit into the {memory:.0f} bytes that a worker "
            "has; give more memory, or leave it out"
        )
    return found[0]


def in_core_nbytes(spec: StencilSpec, rows: int, *, prefetch: bool = True) -> int:
    """Return what rows take of a worker's memory where they are in core."""
    found = program(spec, prefetch=prefetch)
    return found.fixed_bytes + rows * sum(array.row_bytes for array in found.arrays)


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
    ([10.0, 0.0, 0.0], [20.0, 0.0, 0.0])
    """
    limits = [None if math.isinf(nbytes) else int(nbytes) for nbytes in memory]
    found = Memory.of(program(spec, prefetch=prefetch), Machine(len(limits), limits))
    result = sum(np.dtype(one.dtype).itemsize for one in spec.fields) * prod(spec.shape[1:])
    results = (math.inf if stored else nbytes // max(1, result) for nbytes in memory)
    most = np.maximum(0.0, found.most[:, 0]).tolist()
    return found.in_core[:, 0].tolist(), list(map(min, most, results))


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
