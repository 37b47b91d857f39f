"""The order of keys, equal ones as they were, and positions that follow it."""

from __future__ import annotations

import numpy as np

from fpmdask.packing import ordered_words, packed_order

# As many as can be numbered beside what tells them apart.
MOST_PACKED = 1 << 32


def stable_order(keys: np.ndarray) -> np.ndarray:
    """Return the order of keys, equal ones as they were: ``numpy.argsort(keys, kind="stable")``.

    Booleans, numbers of up to 64 bits, dates and durations are sorted as words together with their
    numbers, which is several times as fast.

    Examples
    --------
    >>> stable_order(np.array([3, 1, 2])).tolist(), stable_order(np.zeros(3)).tolist()
    ([1, 2, 0], [0, 1, 2])
    >>> stable_order(np.array([0.0, np.nan, -0.0, -1.0])).tolist()
    [3, 0, 2, 1]
    """
    words = ordered_words(keys) if keys.size < MOST_PACKED else None
    if words is None:
        return np.argsort(keys, kind="stable")
    order, _ = packed_order(words)
    return order


def sort_with_positions(keys: np.ndarray, positions: np.ndarray) -> None:
    """Sort keys in place, equal ones as they were, and their positions with them."""
    order = stable_order(keys)
    keys[...] = keys[order]
    positions[...] = positions[order]


def merged_positions(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return positions in the order of their keys, equal ones as they were."""
    return np.asarray(positions[stable_order(keys)])
