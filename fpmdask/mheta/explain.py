"""Predictions in words: which nodes are out of core, and which one the others wait for."""

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.mheta.blocks import capacity
from fpmdask.mheta.checks import IntArray, named
from fpmdask.mheta.evaluate import predict
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.prediction import PARTS, Prediction
from fpmdask.mheta.program import Program

# Parts of a node's time below this share are not worth a word.
_WORTH = 0.05


def explain(
    program: Program, machine: Machine, distribution: ArrayLike, *, accounting: str = "exact"
) -> list[str]:
    """Say in plain words why a distribution takes as long as it does.

    Parameters
    ----------
    program : Program
    machine : Machine
    distribution : array_like of int64, shape [p]
        Rows per node.
    accounting : {"exact", "paper"}
        What is charged for I/O, see `predict`.

    Returns
    -------
    list of str
        On the nodes that are out of core, and on the node that is busy longest in the first
        iteration, for which the others wait; on the nodes that make it infeasible, where it is.

    Raises
    ------
    PartitionError
        As `predict`.

    Examples
    --------
    >>> from fpmdask.mheta import Array, Section, Stage
    >>> program = Program([Section([Stage([0.01] * 3, reads=["A"])])], [Array("A", 100)])
    >>> machine = Machine(3, [None, 10_000, 10_000], read_overhead_s=[0.5] * 3)
    >>> explain(program, machine, [300, 200, 200])
    ['nodes 1-2 go out of core at 200 rows (100 fit)',
        'node 0 is busy longest, 3 of 3 s: 100 % compute']
    """
    found = predict(program, machine, distribution, accounting=accounting)
    words = out_of_core(program, machine, found.distribution)
    if found.infeasible:
        return [*words, f"infeasible: {named(found.infeasible)} cannot hold or stream so many rows"]
    return [*words, busiest(found)] if found.distribution.any() else ["no node has rows"]


def out_of_core(program: Program, machine: Machine, distribution: IntArray) -> list[str]:
    """Return a phrase for each number of rows with which nodes go out of core."""
    most = capacity(program, machine)
    out = np.flatnonzero(distribution > most)
    groups: dict[tuple[int, float], list[int]] = {}
    for node in out.tolist():
        groups.setdefault((int(distribution[node]), float(most[node])), []).append(node)
    return [
        f"{named(nodes)} {'goes' if len(nodes) == 1 else 'go'} out of core at {rows} "
        f"{'row' if rows == 1 else 'rows'} ({fit:.0f} fit)"
        for (rows, fit), nodes in groups.items()
    ]


def busiest(prediction: Prediction) -> str:
    """Return which node has the most to do in the first iteration, and what; others wait for it."""
    busy = np.sum([prediction.parts[part] for part in PARTS if part != "wait"], axis=0)
    node = int(np.argmax(busy))
    whole = max(float(busy[node]), np.finfo(float).tiny)
    shares = {part: float(prediction.parts[part][node]) / whole for part in PARTS}
    spent = sorted((s, part) for part, s in shares.items() if s >= _WORTH and part != "wait")
    words = ", ".join(f"{100 * share:.0f} % {part}" for share, part in reversed(spent))
    return (
        f"node {node} is busy longest, {busy[node]:.3g} of {prediction.iteration_seconds:.3g} s: "
        f"{words or 'nothing'}"
    )
