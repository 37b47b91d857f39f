"""A call of the stencil as MHETA sees it: one section of one stage and the halos. Pure.

Who streams rows out of core takes the sizes of its blocks from this program, too, so that what is
predicted and what is done are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fpmdask.apps.stencil.sizes import Sizes, arg_name, field_name
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.mheta import Array, Communication, Program, Section, Stage
from fpmdask.mheta.blocks import block_rows
from fpmdask.models import Model

NORM_NBYTES = 8


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
    1. Rows are replaced in place: in core (`Block`), and out of core in a block and on disk
       (`Streamed`).
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
    [('u0[0]', 8000)]
    >>> found.sections[0].communication.message_bytes
    8000
    """
    sizes = Sizes.of(spec, prefetch=prefetch)
    fields, args = sizes.fields, sizes.args
    read = [*map(field_name, range(len(fields))), *map(arg_name, range(len(args)))]
    arrays = [Array(name, nbytes) for name, nbytes in zip(read, [*fields, *args], strict=True)]
    depth = spec.depth[0]
    stage = Stage(reads=read, writes=read[: len(fields)], prefetch=prefetch)
    halos = Communication("nearest_neighbour", depth * sum(fields)) if depth else Communication()
    sections = [Section([stage], communication=halos)]
    if checks:
        sections.append(Section(communication=Communication("reduction_tree", NORM_NBYTES)))
    return Program(sections, arrays, sizes.fixed)


def with_computing(
    program: Program,
    seconds_per_row: Sequence[float] | None,
    models: Sequence[Model] | None = None,
) -> Program:
    """Return a program of one stage with the computing of each node: seconds per row, or models."""
    (section, *rest) = program.sections
    (stage,) = section.stages
    stage = replace(stage, seconds_per_row=seconds_per_row, models=models)
    return replace(program, sections=(replace(section, stages=(stage,)), *rest))


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
