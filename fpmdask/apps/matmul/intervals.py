"""Half-open intervals of rows."""

from collections.abc import Sequence


def count(intervals: Sequence[tuple[int, int]]) -> int:
    """Return the rows in intervals that do not overlap."""
    return sum(row1 - row0 for row0, row1 in intervals)


def merged(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intervals in order, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for row0, row1 in sorted(intervals):
        if joined and joined[-1][1] == row0:
            joined[-1] = joined[-1][0], row1
        else:
            joined.append((row0, row1))
    return joined
