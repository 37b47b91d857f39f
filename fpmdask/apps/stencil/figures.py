"""What workers tell of their iterations, and the figures that MHETA makes of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fpmdask.errors import PartitionError
from fpmdask.mheta import Machine, Program, predict
from fpmdask.mheta.instrument import Event, fit
from fpmdask.mheta.instrument.peers import pattern_peers
from fpmdask.mheta.prediction import PARTS
from fpmdask.timing.meter import METERED


def fitted(
    program: Program,
    told: Sequence[Mapping[str, Any]],
    memory: Sequence[float | None],
) -> tuple[Program, Machine]:
    """Return the figures of all nodes, from what they tell of the instrumented iteration.

    Parameters
    ----------
    program
        The structure.
    told
        Of each node, in the order of ranks: ``events``, as the fields of `Event`, and
        ``benchmarks``, as `fit` takes them.
    memory
        Of each node, in bytes.

    Raises
    ------
    PartitionError
        As `fit`.
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
    return fit(program, traces, benchmarks, memory)


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
        if stage.seconds_per_row is not None:
            seconds_per_row = [stage.seconds_per_row[node] for node in order]
    if seconds_per_row is None:
        return None
    return with_seconds(program, seconds_per_row), machine


def with_seconds(program: Program, seconds_per_row: Sequence[float]) -> Program:
    """Return a program of one stage with the seconds of computing of each node."""
    (section, *rest) = program.sections
    (stage,) = section.stages
    stage = replace(stage, seconds_per_row=list(seconds_per_row), models=None)
    return replace(program, sections=(replace(section, stages=(stage,)), *rest))


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
    """Return what an iteration took each node on average, by the parts of a prediction.

    Parameters
    ----------
    phases
        The same one of all nodes' histories.
    expected
        The prediction. A worker waits for a message and receives it at once: as many seconds as
        are predicted count as receiving, the others as waiting.
    """
    found = {
        name: [phase[name] / max(1, phase["count"]) for phase in phases]
        for name in ("seconds", *METERED)
    }
    together = found["receive"]
    most = together if expected is None else expected["receive"]
    found["receive"] = [min(a, b) for a, b in zip(together, most, strict=True)]
    found["wait"] = [a - b for a, b in zip(together, found["receive"], strict=True)]
    return found
