"""The best distribution on the path through the starts: points on each leg, then bisection."""

import numpy as np

from fpmdask.mheta.checks import FloatArray, IntArray
from fpmdask.mheta.search.evaluations import Evaluations
from fpmdask.mheta.search.moves import rounded

POINTS = 8
# The part of the budget that the first points may take.
PART = 0.25
# How many points have their neighbourhoods bisected.
BEST = 3


def bisect_path(seen: Evaluations) -> None:
    """Predict distributions on the polyline through the starts, ever closer to the best.

    Parameters
    ----------
    seen : Evaluations
        What predicts; its starts are the corners, in their order.

    Notes
    -----
    A point is (1 − f)·from + f·to of its leg, rounded by largest remainder; legs whose ends are
    equal are left out. First f in steps of h = 1/8. Then h is halved until it is less than a row,
    and the points at a distance of h from the three best so far are predicted, which bisects the
    intervals beside them. O(log rows) batches of at most six distributions.
    """
    corners = seen.start
    corners = corners[np.append(True, (corners[1:] != corners[:-1]).any(axis=1))]
    legs = len(corners) - 1
    if not legs or seen.ended:
        return
    points = POINTS
    while points > 1 and points * legs > PART * seen.budget:
        points //= 2
    h = 1.0 / points
    place = np.arange(points * legs + 1, dtype=np.float64) * h
    seconds = seen(_points(corners, place, seen.rows))
    while h * seen.rows > 0.5 and not seen.ended:
        h /= 2
        best = place[np.argsort(seconds, kind="stable")[:BEST]]
        new = np.setdiff1d(np.concatenate([best - h, best + h]), place)
        new = new[(new >= 0) & (new <= legs)]
        place = np.concatenate([place, new])
        seconds = np.concatenate([seconds, seen(_points(corners, new, seen.rows))])


def _points(corners: IntArray, place: FloatArray, rows: int) -> IntArray:
    """Return the distributions at places of the path: 1.5 is half-way from corner 1 to 2."""
    leg = np.minimum(place.astype(np.int64), len(corners) - 2)
    f = (place - leg)[:, np.newaxis]
    return rounded((1.0 - f) * corners[leg] + f * corners[leg + 1], rows)
