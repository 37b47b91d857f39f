"""Calibration: MHETA's program and machine from what workers tell of their iterations. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from fpmdask.apps.stencil.history import typical
from fpmdask.apps.stencil.plan import Cost
from fpmdask.apps.stencil.program import with_computing
from fpmdask.errors import PartitionError
from fpmdask.mheta import Machine, Program, capacity, predict
from fpmdask.mheta.blocks import block_rows
from fpmdask.mheta.instrument import Event, fit
from fpmdask.mheta.instrument.peers import pattern_peers
from fpmdask.mheta.machine import PER_NODE
from fpmdask.mheta.prediction import PARTS
from fpmdask.models import PiecewiseLinearModel
from fpmdask.timing.meter import METERED

# A credit of more than half of a block's seconds is none: what was measured was disturbed.
LEAST_PART = 0.5
# Rows within this part of a block's are as those of a block.
NEAR = 0.8
# More rows than a node that streams any has in core.
MANY = 2**40


def fitted(
    program: Program,
    told: Sequence[Mapping[str, Any]],
    memory: Sequence[float | None],
    row_seconds: Sequence[float] | None = None,
) -> tuple[Program, Machine]:
    """Return the figures of all nodes, from what they tell of the instrumented iteration.

    Parameters
    ----------
    program
        The structure.
    told
        Of each node, in the order of ranks: ``events``, as the fields of `Event`, ``benchmarks``,
        as `fit` takes them, and ``message_delay_s``, by which a CPU quota delays a message.
    memory
        Of each node, in bytes.
    row_seconds
        What each node takes to compute a row where it does nothing else for long.

    Raises
    ------
    PartitionError
        As `fit`.

    Notes
    -----
    Between reads and writes a node may compute faster than without: a CPU quota gathers credit
    while the node waits for its disk, some milliseconds for each block. One iteration says little
    of one node's, which is of the size of its noise: the median over the nodes is taken. So a model
    has `row_seconds` for any rows but about a block that fits into the node's memory, which takes
    that much less.
    """
    (section,) = program.sections
    traces = {}
    for rank, one in enumerate(told):
        sends, receives = pattern_peers(section.communication.pattern, rank, len(told))
        peers = {"send": sends, "receive": receives}
        # messages around the ends of a periodic boundary are not in the pattern
        traces[rank] = [
            Event(**event)
            for event in one["events"]
            if event["kind"] not in peers or event["peer"] in peers[event["kind"]]
        ]
    benchmarks = {rank: one["benchmarks"] for rank, one in enumerate(told)}
    found, machine = fit(program, traces, benchmarks, memory)
    delays = np.array([one["message_delay_s"] for one in told])
    if delays.any():
        slower = machine.figures("receive_overhead_s") + delays
        machine = replace(machine, receive_overhead_s=slower.tolist())
    if row_seconds is None:
        return found, machine
    (stage,) = found.sections[0].stages
    assert stage.seconds_per_row is not None  # no models were asked for
    pairs = zip(stage.seconds_per_row, row_seconds, strict=True)
    credit = median(_credit(*pair, traces[rank]) for rank, pair in enumerate(pairs))
    in_core = capacity(program, machine)
    models = [
        _model(alone, credit, float(in_core[rank]), _block(program, memory[rank]))
        for rank, alone in enumerate(row_seconds)
    ]
    return with_computing(found, None, models), machine


def _credit(streamed: float, alone: float, events: Sequence[Event]) -> float:
    """Return how many seconds a block has taken less than its rows take alone, at least 0."""
    sizes = [event.rows or 1 for event in events if event.kind == "compute"]
    return max(0.0, (alone - streamed) * sum(sizes) / len(sizes))


def _block(program: Program, memory: float | None) -> int:
    """Return the rows of a block of a node that is out of core, 0 where no rows are."""
    found = block_rows(program, memory, MANY)
    return found[0] if found else 0


def _model(alone: float, credit: float, in_core: float, block: int) -> PiecewiseLinearModel:
    """Return a model of seconds by rows: those of a block have a credit, all others have none.

    Examples
    --------
    >>> model = _model(1.0, 20.0, 100, 100)
    >>> model.time([50, 100, 200]).tolist()
    [50.0, 80.0, 200.0]
    """
    less = block * alone - credit
    if not block or not credit or less < LEAST_PART * block * alone:
        return PiecewiseLinearModel.from_points([1], [alone])
    low = min(in_core, less / alone)
    sizes = [size for size in (low, block, block / NEAR) if size > 0]
    seconds = [less if size == block else size * alone for size in sizes]
    return PiecewiseLinearModel.from_points(sizes, seconds)


def from_saved(
    saved: Mapping[str, Any],
    program: Program,
    names: Sequence[str],
    memory: Sequence[float | None],
    seconds_per_row: Sequence[float] | None = None,
) -> tuple[Program, Machine] | None:
    """Return the figures of a machine that the caller has saved, for these workers.

    Parameters
    ----------
    saved
        As of `fpmdask.runtime.client.machines.saved_machine`.
    program
        The structure.
    names
        Of the workers, in the order of ranks; where the saved one names none, its nodes are these
        in the order of their names.
    memory
        Of each, in bytes, which counts.
    seconds_per_row
        Of each, where these were not saved with the machine.

    Returns
    -------
    tuple or None
        None if nothing is known of computing.

    Raises
    ------
    PartitionError
        If it is a machine of other workers, or of another program.
    """
    known = saved["workers"] or sorted(names, key=lambda name: (len(name), name))
    if len(known) != saved["nodes"] or set(known) != set(names):
        of = ", ".join(known) if saved["workers"] else f"{saved['nodes']} nodes"
        raise PartitionError(
            f"machine is of {of}, and the workers are {', '.join(names)}; give one of these, or "
            "have it measured"
        )
    order = [known.index(name) for name in names]
    figures = Machine.from_dict(saved["machine"], saved["nodes"]).to_dict()
    for name, values in figures.items():
        if isinstance(values, list):
            figures[name] = [values[node] for node in order]
    machine = Machine.from_dict({**figures, "memory_bytes": list(memory)}, len(order))
    if saved["program"] is not None:
        other = Program.from_dict(saved["program"])
        if other.arrays != program.arrays:
            raise PartitionError(
                f"machine was measured with the arrays {_sizes(other)}, this call has "
                f"{_sizes(program)}; give one of the same program, or have it measured"
            )
        (section, *_) = other.sections
        (stage,) = section.stages
        if stage.models is not None:
            models = [stage.models[node] for node in order]
            return with_computing(program, None, models), machine
        if stage.seconds_per_row is not None:
            seconds_per_row = [stage.seconds_per_row[node] for node in order]
    if seconds_per_row is None:
        return None
    return with_computing(program, seconds_per_row), machine


def with_node(
    program: Program, machine: Machine, at: int, memory: float | None, cost: Cost, rows: int
) -> tuple[Program, Machine]:
    """Return the figures with one more node, which has the median of each figure of the others.

    Parameters
    ----------
    at
        The place of the new node.
    memory
        Its own, in bytes.
    cost
        What it takes to compute rows.
    rows
        Of all nodes.
    """

    def added(values: Sequence[Any], value: Any) -> list[Any]:
        return [*values[:at], value, *values[at:]]

    figures = machine.to_dict()
    for name in PER_NODE:
        if name == "memory_bytes":
            known = figures.get(name) or [None] * machine.nodes
            figures[name] = added(known, memory)
        elif figures.get(name) is not None:
            values = machine.figures(name).tolist()
            figures[name] = added(values, median(values))
    grown = Machine.from_dict(figures, machine.nodes + 1)
    (stage,) = program.sections[0].stages
    if stage.models is not None:
        units = sorted({*(2**n for n in range(rows.bit_length())), rows})
        model = PiecewiseLinearModel.from_points(units, list(map(cost.seconds, units)))
        return with_computing(program, None, added(stage.models, model)), grown
    known = stage.seconds_per_row or [0.0] * machine.nodes
    each = max(1, rows // (machine.nodes + 1))
    return with_computing(program, added(known, cost.seconds(each) / each)), grown


def _sizes(program: Program) -> str:
    return ", ".join(f"{array.name} of {array.row_bytes} bytes a row" for array in program.arrays)


def predicted(program: Program, machine: Machine, rows: Sequence[int]) -> dict[str, list[float]]:
    """Return the seconds of an iteration on each node, and of its parts, as plain data."""
    found = predict(program, machine, rows)
    parts = {part: found.parts[part].tolist() for part in PARTS}
    return {"seconds": found.node_seconds.tolist(), **parts}


def measured(
    phases: Sequence[Mapping[str, Any]], expected: Mapping[str, Sequence[float]] | None
) -> dict[str, list[float]]:
    """Return what a typical iteration took each node on average, by the parts of a prediction.

    Parameters
    ----------
    phases
        The same one of all nodes' histories.
    expected
        The prediction. A worker waits for a message and receives it at once: as many seconds as
        are predicted count as receiving, the others as waiting.
    """
    found = {
        name: [phase[name] / max(1, typical(phase)) for phase in phases]
        for name in ("seconds", *METERED)
    }
    together = found["receive"]
    most = together if expected is None else expected["receive"]
    found["receive"] = [min(a, b) for a, b in zip(together, most, strict=True)]
    found["wait"] = [a - b for a, b in zip(together, found["receive"], strict=True)]
    return found
