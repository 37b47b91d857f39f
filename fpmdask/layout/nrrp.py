"""NRRP: recursive cuts where a dominant worker may take what is left around a corner."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fpmdask.layout.br import br
from fpmdask.layout.validate import Shape, check_shape
from fpmdask.layout.zones import Layout, Rectangle
from fpmdask.partition.proportional import proportional
from fpmdask.partition.validate import FloatArray, Limits, check_limits, check_positive

# Up to so many workers every cut is followed to its end; beyond, its cost is estimated.
_FEW = 5


def nrrp(speeds: ArrayLike, shape: Shape, limits: Limits | None = None) -> Layout:
    """Return zones in proportion to speeds, rectangles or rectangles without a corner.

    Parameters
    ----------
    speeds : array_like of float
        Blocks per second of each worker, finite and > 0; only their ratios matter.
    shape : tuple of int
        Block rows and block columns of the matrix.
    limits : sequence of float or None, optional
        Most blocks per worker, ``None`` or ``inf`` for no limit.

    Returns
    -------
    Layout
        A worker has one rectangle or two, which then form an L: read `zones`. It moves less than
        rectangles do where one worker has over three quarters of a part of the matrix. Every edge
        is within half a block of the exact one; where whole blocks break a limit, the zones are
        those of `br`.

    Raises
    ------
    PartitionError
        If an argument is not allowed, or no zones that were tried keep the limits.

    Notes
    -----
    A rectangle is cut in two across its longer side, the workers being in order of their areas, or
    the worker with the largest area takes an L around a square for the others. For two workers the
    L is better if the smaller area is below a quarter of the square of the shorter side. Up to
    five workers the best of all such cuts is found; for more the cut is taken whose parts have the
    least estimated cost. O(p²).

    1. The paper proves the ratio 2/√3 to the lower bound for its own choice of cuts; here the cuts
       are chosen by their cost, without that proof.

    References
    ----------
    O. Beaumont, L. Eyraud-Dubois, T. Lambert (2016), A New Approximation Algorithm for Matrix
    Partitioning in Presence of Strongly Heterogeneous Processors.

    Examples
    --------
    >>> layout = nrrp([8.0, 1.0], (12, 12))
    >>> [len(zone) for zone in layout.zones], layout.volume
    ([2, 1], 32)
    """
    shape = check_shape(shape)
    rates = check_positive(speeds, "speeds")
    blocks = shape[0] * shape[1]
    most = check_limits(limits, rates.size, blocks)
    areas = proportional(blocks, rates, most).astype(np.float64)
    order = [int(i) for i in np.argsort(-areas, kind="stable") if areas[i] > 0]
    whole = _Rect(0.0, 0.0, float(shape[0]), float(shape[1]))
    found = _best(whole, order, areas)
    zones = tuple(_whole_blocks(found.zones.get(i, ())) for i in range(rates.size))
    if any(sum(r.area for r in zone) > limit for zone, limit in zip(zones, most, strict=True)):
        return br(rates, shape, limits)
    return Layout(shape, zones, speeds=tuple(rates.tolist()))


@dataclass(frozen=True)
class _Rect:
    top: float
    left: float
    height: float
    width: float

    @property
    def turned(self) -> "_Rect":
        return _Rect(self.left, self.top, self.width, self.height)

    def cut(self, area: float) -> "tuple[_Rect, _Rect]":
        """Return a part of `area` and the rest, cut across the longer side."""
        if self.height < self.width:
            first, second = self.turned.cut(area)
            return first.turned, second.turned
        at = area / self.width
        below = _Rect(self.top + at, self.left, self.height - at, self.width)
        return _Rect(self.top, self.left, at, self.width), below

    def corner(self, side: float) -> "tuple[_Rect, tuple[_Rect, _Rect]]":
        """Return the square at the lower right, and the L around it as two rectangles."""
        above = _Rect(self.top, self.left, self.height - side, self.width)
        beside = _Rect(above.top + above.height, self.left, side, self.width - side)
        square = _Rect(beside.top, self.left + beside.width, side, side)
        return square, (above, beside)


@dataclass(frozen=True)
class _Found:
    cost: float  # rows and columns that all workers together need
    zones: dict[int, tuple[_Rect, ...]]


def _best(rect: _Rect, order: Sequence[int], areas: FloatArray) -> _Found:
    """Return zones of the workers, largest area first, in a rectangle of their areas."""
    if len(order) == 1:
        return _Found(rect.height + rect.width, {order[0]: (rect,)})
    sums = np.cumsum(areas[list(order)])
    few = len(order) <= _FEW
    estimates = {k: _estimate(rect, order, areas, sums, k) for k in range(len(order))}
    tried = [k for k, cost in estimates.items() if math.isfinite(cost)]
    if not few:
        # of equal ones that which leaves about as many on both sides: the depth is their logarithm
        middle = len(order) / 2
        tried = [min(tried, key=lambda k: (estimates[k], abs(k - middle)))]
    return min((_followed(rect, order, areas, sums, k) for k in tried), key=lambda f: f.cost)


def _followed(
    rect: _Rect, order: Sequence[int], areas: FloatArray, sums: FloatArray, k: int
) -> _Found:
    """Return the zones after a cut behind the first k workers; 0 is the corner for all but one."""
    if k == 0:
        square, around = rect.corner(math.sqrt(sums[-1] - sums[0]))
        rest = _best(square, order[1:], areas)
        return _Found(rect.height + rect.width + rest.cost, {**rest.zones, order[0]: around})
    first, second = rect.cut(float(sums[k - 1]))
    a, b = _best(first, order[:k], areas), _best(second, order[k:], areas)
    return _Found(a.cost + b.cost, {**a.zones, **b.zones})


def _estimate(
    rect: _Rect, order: Sequence[int], areas: FloatArray, sums: FloatArray, k: int
) -> float:
    """Return what a cut will cost at least, ``inf`` where it cannot be made."""
    if k == 0:
        side = math.sqrt(sums[-1] - sums[0])
        if side >= min(rect.height, rect.width):
            return math.inf
        return rect.height + rect.width + _squares(order[1:], areas)
    first, second = rect.cut(float(sums[k - 1]))
    return sum(
        max(_squares(part, areas), r.height + r.width)
        for r, part in ((first, order[:k]), (second, order[k:]))
    )


def _squares(order: Sequence[int], areas: FloatArray) -> float:
    return 2.0 * float(np.sqrt(areas[list(order)]).sum())


def _whole_blocks(zone: Sequence[_Rect]) -> tuple[Rectangle, ...]:
    """Return a zone with every edge at the nearest block, without what becomes empty."""
    found = []
    for r in zone:
        top, left = _nearest(r.top), _nearest(r.left)
        height, width = _nearest(r.top + r.height) - top, _nearest(r.left + r.width) - left
        if height and width:
            found.append(Rectangle(top, left, height, width))
    return tuple(found)


def _nearest(edge: float) -> int:
    # the same for both neighbours, whose edges differ by rounding errors
    return math.floor(edge + 0.5 + 1e-7)
