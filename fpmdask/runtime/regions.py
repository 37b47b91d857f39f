"""Boxes of arrays: one (start, stop) per axis. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Box = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all of an array.

    Examples
    --------
    >>> whole((3, 4))
    ((0, 3), (0, 4))
    """
    return tuple((0, int(length)) for length in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """Return the lengths of a box.

    Examples
    --------
    >>> shape_of(((1, 3), (0, 4)))
    (2, 4)
    """
    return tuple(stop - start for start, stop in box)


def size(box: Box) -> int:
    """Return the number of elements of a box, 1 where it has no axes."""
    return math.prod(shape_of(box))


def common(one: Box, other: Box) -> Box | None:
    """Return the intersection of two boxes, None where it is empty.

    Examples
    --------
    >>> common(((0, 3), (2, 9)), ((1, 5), (0, 4)))
    ((1, 3), (2, 4))
    >>> common(((0, 3),), ((3, 4),)) is None
    True
    """
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(start < stop for start, stop in found) else None


def is_within(box: Box, shape: Sequence[int]) -> bool:
    """Tell whether a box lies in an array of a shape.

    Examples
    --------
    >>> is_within(((0, 3),), (3,)), is_within(((1, 4),), (3,)), is_within(((0, 1),), (3, 3))
    (True, False, False)
    """
    return len(box) == len(shape) and all(
        0 <= start <= stop <= length for (start, stop), length in zip(box, shape, strict=True)
    )


def is_covered(box: Box, parts: Iterable[Box]) -> bool:
    """Tell whether boxes that do not overlap cover one. O(parts).

    Examples
    --------
    >>> is_covered(((0, 4), (0, 2)), [((0, 4), (0, 1)), ((0, 3), (1, 2))])
    False
    >>> is_covered(((0, 3), (0, 2)), [((0, 4), (0, 1)), ((0, 3), (1, 2))])
    True
    """
    there = (size(met) for part in parts if (met := common(box, part)) is not None)
    return sum(there) >= size(box)


def view(array: np.ndarray[Any, Any], box: Box) -> np.ndarray[Any, Any]:
    """Return a box of an array, without a copy."""
    return array[tuple(slice(start, stop) for start, stop in box)]
