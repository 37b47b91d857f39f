"""A call of the stencil as MHETA sees it: one section of one stage and the halos. Pure.

Who streams rows out of core takes the sizes of its blocks from this program, too, so that what is
predicted and what is done are one.
"""

from __future__ import annotations

from math import prod

import numpy as np

from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.mheta import Array, Communication, Program, Section, Stage

NORM_NBYTES = 8


def field_name(number: int) -> str:
    """Return the name of a field's rows before an iteration."""
    return f"u0[{number}]"


def new_name(number: int) -> str:
    """Return the name of a field's rows after it."""
    return f"new[{number}]"


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
    1. Each field is two arrays, which take turns: the stage reads one and writes the other. In core
       a row takes both, and so does a row of a block.
    2. What does not depend on the rows is `fixed_bytes`: the halo of the rows, or of a block, above
       and below.
    3. Where the boundary is periodic the first and the last node are neighbours, too: two messages
       per iteration that `nearest_neighbour` does not have.
    4. An exchange of halos for several iterations at once is predicted as one for each.

    Examples
    --------
    >>> from fpmdask.runtime.rows import Rows
    >>> rows = Rows(("a",), (100,), 0, "<f8", (100, 1000))
    >>> found = program(StencilSpec((rows,), (), (1, 0), ("reflect", "none"), 10))
    >>> [(array.name, array.row_bytes) for array in found.arrays]
    [('u0[0]', 8000), ('new[0]', 8000)]
    >>> found.sections[0].communication.message_bytes
    8000
    """
    fields = [row_nbytes(spec, one.dtype) for one in spec.fields]
    args = [row_nbytes(spec, one.dtype) for one in spec.args]
    read = [*map(field_name, range(len(fields))), *map(arg_name, range(len(args)))]
    written = list(map(new_name, range(len(fields))))
    arrays = [
        Array(name, nbytes)
        for name, nbytes in zip([*read, *written], [*fields, *args, *fields], strict=True)
    ]
    depth, buffers = spec.depth[0], 2 if prefetch else 1
    stage = Stage(reads=read, writes=written, prefetch=prefetch)
    halos = Communication("nearest_neighbour", depth * sum(fields)) if depth else Communication()
    sections = [Section([stage], communication=halos)]
    if checks:
        sections.append(Section(communication=Communication("reduction_tree", NORM_NBYTES)))
    around = 2 * depth * (sum(fields) + buffers * (sum(fields) + sum(args)))
    return Program(sections, arrays, around)


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
