"""The path through the anchors along which the paper compares distributions."""

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.mheta import checks
from fpmdask.mheta.anchors import anchors
from fpmdask.mheta.checks import IntArray
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.program import Program


def spectrum(program: Program, machine: Machine, rows: float, steps: int = 8) -> IntArray:
    """Return the distributions along Blk → I-C → I-C/Bal → Bal → Blk.

    Parameters
    ----------
    program : Program
    machine : Machine
        Of as many nodes as the program has figures for.
    rows : int
        From 1 to 2**52.
    steps : int
        Points per leg, at least 1.

    Returns
    -------
    ndarray of int64, shape [1 + steps * legs, p]
        Blk, and `steps` points for each leg whose ends differ, the last of which is its end.
        Equal powers leave Blk and I-C, no memory limits Blk and Bal.

    Raises
    ------
    PartitionError
        As `anchors`, or if `steps` is not a whole number of at least 1.

    References
    ----------
    Nakazawa, Lowenthal and Zhou (2005), section 5.1, Fig. 8.

    Examples
    --------
    >>> from fpmdask.mheta import Section, Stage
    >>> program = Program([Section([Stage([1.0, 3.0])])])
    >>> spectrum(program, Machine(2), 100, steps=2).tolist()
    [[50, 50], [63, 37], [75, 25], [63, 37], [50, 50]]
    """
    steps = checks.count(steps, "steps")
    found = anchors(program, machine, rows)
    points = [found[name] for name in ("Blk", "I-C", "I-C/Bal", "Bal", "Blk")]
    return polyline(points, steps)


def polyline(points: ArrayLike, steps: int) -> IntArray:
    """Return distributions along the straight lines between points.

    Parameters
    ----------
    points : array_like of int64, shape [m, p]
        Distributions of the same rows.
    steps : int
        Points per leg; the k-th is (1 - k/steps) of its start and k/steps of its end, rounded by
        largest remainder, among equal ones the lowest node's.

    Returns
    -------
    ndarray of int64, shape [1 + steps * legs, p]
        The first point, and the points of each leg whose ends differ.

    Notes
    -----
    In whole numbers, so that remainders are exact.

    Examples
    --------
    >>> polyline([[4, 0], [1, 3]], 2)
    array([[4, 0],
           [3, 1],
           [1, 3]])
    """
    corners = np.asarray(points, dtype=np.int64)
    part = np.arange(1, steps + 1)[:, np.newaxis]
    found = [corners[:1]]
    for start, end in pairwise(corners):
        if (start != end).any():
            # start + (end - start) k / steps, as quotient and remainder
            whole, rest = np.divmod((end - start) * part, steps)
            missing = rest.sum(axis=1) // steps
            order = np.argsort(-rest, axis=1, kind="stable")
            place = np.argsort(order, axis=1, kind="stable")
            found.append(start + whole + (place < missing[:, np.newaxis]))
    return np.concatenate(found)
