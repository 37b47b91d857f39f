"""The path through the anchors along which the paper compares distributions."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.mheta import checks
from fpmdask.mheta.anchor_distributions import anchors
from fpmdask.mheta.checks import IntArray
from fpmdask.mheta.machine import Machine
from fpmdask.mheta.program import Program

# Rows of up to 2**52 times steps are whole numbers of 64 bits.
MOST_STEPS = 1000
_PATH = ("Blk", "I-C", "I-C/Bal", "Bal", "Blk")


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
        Points per leg, from 1 to 1000.

    Returns
    -------
    ndarray of int64, shape [1 + steps * legs, p]
        Blk, and `steps` points for each leg whose ends differ, the last of which is its end.
        Equal powers leave Blk and I-C, no memory limits Blk and Bal.

    Raises
    ------
    PartitionError
        As `anchors`, or if `steps` is not a whole number from 1 to 1000.

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
    steps = checks.count(steps, "steps", most=MOST_STEPS)
    found = anchors(program, machine, rows)
    return polyline([found[name] for name in _PATH], steps)


def corner_names(found: Mapping[str, IntArray]) -> list[str]:
    """Return what the corners of the path are, equal neighbours in one.

    Parameters
    ----------
    found : mapping of str to ndarray of int64
        What `anchors` returned.

    Returns
    -------
    list of str
        Of the points 0, steps, 2 steps, ... of `spectrum`.

    Examples
    --------
    >>> even, other = np.array([5, 5]), np.array([2, 8])
    >>> corner_names({"Blk": even, "I-C": even, "I-C/Bal": other, "Bal": other})
    ['Blk = I-C', 'I-C/Bal = Bal', 'Blk']
    """
    names: list[list[str]] = []
    before: IntArray | None = None
    for name in _PATH:
        if before is not None and (found[name] == before).all():
            names[-1].append(name)
        else:
            names.append([name])
        before = found[name]
    if len(names) == 1:
        return [" = ".join(names[0][:-1])]
    return [" = ".join(corner) for corner in names]


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
