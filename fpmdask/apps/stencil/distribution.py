"""Who gets which rows where some workers stream theirs from disk: what MHETA says. Pure.

The coordinator calls this in a thread, with a program and a machine that an instrumented iteration
or a saved document gives it. Nodes are the workers in the order of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fpmdask.apps.stencil.program import with_computing
from fpmdask.apps.stencil.sizes import is_moved
from fpmdask.mheta import Machine, Program, anchors, capacity, evaluator, predict, spectrum
from fpmdask.mheta.explain import explain
from fpmdask.mheta.search import gbs
from fpmdask.mheta.spectrum_path import corner_names
from fpmdask.models import Model, PiecewiseLinearModel

PATH = ("Blk", "I-C", "I-C/Bal", "Bal")
# Predictions of a search; on up to eleven nodes more find nothing better. Each takes about so many
# seconds per node, and all of them not more than this share of the iterations to come.
BUDGET, LEAST_BUDGET = 10_000, 500
PREDICTION_SECONDS, WORTH = 4e-6, 0.05
SEED = 2005  # a search's only randomness: the same figures give the same distribution
# An iteration in the long run is the last of so many: nodes have drifted apart as far as they do.
STEADY = 8
# A disk is not taken to have become slower, or faster, by more than this factor at once.
MOST_CHANGE = 100.0


@dataclass(frozen=True)
class Choice:
    """With which rows a run goes on, and why.

    Attributes
    ----------
    rows
        Of each node.
    moves
        Whether they are others than before.
    seconds
        Predicted for each iteration to come, in the long run.
    best, best_seconds
        What the search found; `rows` are these unless moving does not pay.
    saved, moving
        Predicted seconds: saved by `best` in all iterations to come, and taken by moving.
    why
        In words.
    """

    rows: tuple[int, ...]
    moves: bool
    seconds: float
    best: tuple[int, ...]
    best_seconds: float
    saved: float
    moving: float
    why: str


def steady_seconds(program: Program, machine: Machine, rows: Sequence[int]) -> float:
    """Return the predicted seconds of an iteration in the long run; inf where it is infeasible."""
    found = predict(program, machine, rows, iterations=STEADY).steady_state_seconds
    return np.inf if found is None else found


def choose(
    program: Program,
    machine: Machine,
    before: Sequence[int],
    left: int,
    least: int = 1,
    most: Sequence[float] | None = None,
    *,
    placed: bool = True,
    byte_seconds: float = 0.0,
) -> Choice:
    """Return the rows with which to go on.

    Parameters
    ----------
    program, machine
        With the figures of all nodes.
    before
        The rows that nodes have.
    left
        Iterations to come.
    least
        Rows that a node must have, if it has any.
    most
        Rows that each node may have, whatever the model says.
    placed
        Whether `before` is where the rows are already; if not, moving costs nothing.
    byte_seconds
        What it takes to bring a byte of rows into new buffers, whoever had it: memory that is
        touched for the first time may take most of it.

    Notes
    -----
    `search.gbs` from the anchors and from `before`. Rows move if what this saves in all iterations
    to come is more than what moving takes. Some milliseconds to a second.
    """
    evaluate = evaluator(program, machine)
    limits = np.inf if most is None else np.asarray(most)

    def seconds(distributions: Any) -> Any:
        found = evaluate(distributions)
        wrong = ((distributions > 0) & (distributions < least)) | (distributions > limits)
        found[wrong.any(axis=1)] = np.inf
        return found

    corners = anchors(program, machine, sum(before))
    found = gbs(
        seconds,
        np.array([*(corners[name] for name in PATH), corners["Blk"], before]),
        rng=np.random.default_rng(SEED),
        budget=_budget(float(evaluate(np.array([before]))[0]) * left, machine.nodes),
    )
    best, rows = tuple(found.distribution.tolist()), tuple(map(int, before))
    now, then = (steady_seconds(program, machine, some) for some in (rows, best))
    moving = moving_seconds(program, machine, rows, best, byte_seconds) if placed else 0.0
    saved = (now - then) * left if now > then and left else 0.0
    moves = best != rows and saved > moving and np.isfinite(found.seconds)
    why = (
        f"the best of {found.evaluations} distributions takes {then:.3g} s per iteration, the "
        f"present one {now:.3g} s: {saved:.3g} s less in {left} iterations, and {moving:.3g} s to "
        f"move; " + ("rows move" if moves else "rows stay")
    )
    taken = best if moves else rows
    words = "; ".join((why, *explain(program, machine, taken)))
    return Choice(taken, moves, then if moves else now, best, then, saved, moving, words)


def _budget(seconds: float, nodes: int) -> int:
    """Return how many predictions are worth it for iterations that take so long, all together."""
    worth = WORTH * seconds / (PREDICTION_SECONDS * nodes)
    return int(min(max(LEAST_BUDGET, worth), BUDGET))


def moving_seconds(
    program: Program,
    machine: Machine,
    before: Sequence[int],
    after: Sequence[int],
    byte_seconds: float = 0.0,
) -> float:
    """Return what it takes to move rows, on the node that it takes longest.

    Notes
    -----
    Rows of fields that leave a node, or stay, are read where they are out of core; those that come
    or stay are written where they are to be out of core, and constant arrays come anew. O(p).

    Examples
    --------
    >>> from fpmdask.mheta import Array, Section, Stage
    >>> program = Program([Section([Stage(reads=["u0[0]"])])], [Array("u0[0]", 100)])
    >>> machine = Machine(2, send_s_per_byte=[1e-3, 0], receive_s_per_byte=[0, 2e-3])
    >>> moving_seconds(program, machine, [5, 5], [3, 7]), moving_seconds(program, machine, [5], [5])
    (0.4, 0.0)
    """
    if tuple(before) == tuple(after):
        return 0.0
    moved = sum(a.row_bytes for a in program.arrays if is_moved(a.name))
    constant = sum(a.row_bytes for a in program.arrays if a.name.startswith("args"))
    most = capacity(program, machine)
    figures = {name: machine.figures(name) for name in _PER_BYTE}
    spans = (pairwise([0, *accumulate(rows)]) for rows in (before, after))
    longest = 0.0
    for node, ((low, high), (start, stop)) in enumerate(zip(*spans, strict=True)):
        per_byte = {name: float(values[node]) for name, values in figures.items()}
        kept = max(0, min(high, stop) - max(low, start))
        sent, received = high - low - kept, stop - start - kept
        wire = machine.transfer_s_per_byte
        seconds = moved * sent * (per_byte["send_s_per_byte"] + wire)
        seconds += (moved * received + constant * (stop - start)) * (
            per_byte["receive_s_per_byte"] + wire
        )
        if high - low > most[node]:
            seconds += moved * (high - low) * per_byte["read_s_per_byte"]
        if stop - start > most[node]:
            seconds += (moved + constant) * (stop - start) * per_byte["write_s_per_byte"]
        buffers = byte_seconds * (moved + constant) * (stop - start)
        longest = max(longest, seconds, buffers)
    return longest


_PER_BYTE = ("send_s_per_byte", "receive_s_per_byte", "read_s_per_byte", "write_s_per_byte")


def updated(
    program: Program,
    machine: Machine,
    rows: Sequence[int],
    compute: Sequence[float],
    io: Sequence[float] | None,
    beside: Sequence[float] | None = None,
) -> tuple[Program, Machine]:
    """Return the figures of nodes after what iterations of the run have taken.

    Parameters
    ----------
    program, machine
        What is known so far.
    rows
        Of each node in these iterations.
    compute, io
        Seconds of an iteration on each node; without ``io`` disks are as they were known.
    beside
        Seconds of an iteration that are neither of both; without, messages are as they were known.

    Notes
    -----
    A node's computing becomes slower, or faster, by the factor that it was, in blocks of any size.
    Its disk becomes slower, or faster, by the one
    factor with which the I/O of its rows takes the measured seconds (by bisection: it only grows
    with the factor); where it is in core, or takes less than the model allows with any disk,
    nothing is known of its disk that was not known before.
    What prefetching hides is known by the model alone.
    Neighbours make iterations at one pace. The node that spends the least beside computing and I/O
    is taken to wait for nobody: that is the cost of its messages, by which the overhead of
    receiving is set. The other nodes wait, and their messages stay as they were known.
    """
    (stage,) = program.sections[0].stages
    expected = predict(program, machine, rows).parts["compute"]
    factors = [
        spent / seconds if count and spent > 0 and 0 < seconds < np.inf else 1.0
        for seconds, count, spent in zip(expected, rows, compute, strict=True)
    ]
    if stage.models is not None:
        models = [scaled(m, factor) for m, factor in zip(stage.models, factors, strict=True)]
        program = with_computing(program, None, models)
    else:
        known = stage.seconds_per_row or [0.0] * machine.nodes
        per_row = [old * factor for old, factor in zip(known, factors, strict=True)]
        program = with_computing(program, per_row)
    if beside is not None:
        machine = _with_messages(program, machine, rows, beside)
    if io is None:
        return program, machine
    out = np.asarray(rows) > capacity(program, machine)
    wanted = np.where(out, io, 0.0)
    low, high = np.full(machine.nodes, 1 / MOST_CHANGE), np.full(machine.nodes, MOST_CHANGE)
    if not out.any() or not (wanted > 0).any():
        return program, machine
    for _ in range(40):
        middle = np.sqrt(low * high)
        found = predict(program, _slower(machine, middle), rows)
        if found.infeasible:
            return program, machine
        more = found.parts["io"] < wanted
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    explained = (wanted > 0) & (low > 1 / MOST_CHANGE)
    return program, _slower(machine, np.where(explained, np.sqrt(low * high), 1.0))


def _with_messages(
    program: Program, machine: Machine, rows: Sequence[int], beside: Sequence[float]
) -> Machine:
    """Return a machine with the overhead of receiving of the node that waits for nobody."""
    having = np.flatnonzero(rows).tolist()
    communication = program.sections[0].communication
    if len(having) < 2 or communication.pattern == "none" or not np.isfinite(beside).all():
        return machine
    node = min(having, key=beside.__getitem__)
    peers = 1 if node in (having[0], having[-1]) else 2
    per_byte = machine.figures("send_s_per_byte") + machine.figures("receive_s_per_byte")
    rest = machine.figures("send_overhead_s") + per_byte * communication.message_bytes
    overheads = machine.figures("receive_overhead_s").tolist()
    overheads[node] = max(0.0, beside[node] / peers - float(rest[node]))
    return replace(machine, receive_overhead_s=overheads)


def scaled(model: Model, factor: float) -> Model:
    """Return a model of a worker that takes so many times as long."""
    if not isinstance(model, PiecewiseLinearModel):
        return model
    units, seconds = model.points
    return PiecewiseLinearModel.from_points(units, seconds * factor)


_DISK = ("read_overhead_s", "read_s_per_byte", "write_overhead_s", "write_s_per_byte")


def _slower(machine: Machine, factors: Any) -> Machine:
    """Return a machine with slower disks."""
    return replace(
        machine,
        **{name: (machine.figures(name) * factors).tolist() for name in _DISK},
    )


def drawn(program: Program, machine: Machine, total: int) -> Mapping[str, Any]:
    """Return the spectrum as plain data: the corners of the path, its points, their seconds."""
    points = spectrum(program, machine, total)
    seconds = evaluator(program, machine)(points)
    return {
        "corners": corner_names(anchors(program, machine, total)),
        "rows": points.tolist(),
        "seconds": seconds.tolist(),
    }
