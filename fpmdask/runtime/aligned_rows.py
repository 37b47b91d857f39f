"""Rows of a distributed array cut where chunks of its target begin, so that each is written once.

The chunk rows in which a worker's rows begin belong to the worker that has their first row::

    unit     |----------|----------|----------|
    worker        a  |  b |      c     |            a writes unit 0, c units 1 and 2:
    b sends its rows to a and c's first rows go to a, too, as far as unit 0 goes

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fpmdask.runtime.rows import Span

Array = np.ndarray[Any, Any]


class AlignedRows:
    """The rows of one worker on their way to a target that is written in units of rows.

    Parameters
    ----------
    span
        Rows of this worker.
    unit
        Rows that are written as one.
    shape, dtype
        Of the whole array.
    write
        Is called with a first row, where a unit begins, and rows: whole units, or up to the end.

    Attributes
    ----------
    head
        The first rows, which another worker writes.
    end
        The row after the last one that this worker writes: those from ``span[1]`` on come from
        others.

    Examples
    --------
    >>> written = []
    >>> rows = AlignedRows((2, 7), 4, (9,), "i8", lambda low, rows: written.append((low, [*rows])))
    >>> rows.add(2, np.array([2, 3, 4]))
    >>> rows.add(5, np.array([5, 6]))
    >>> rows.head.tolist(), rows.end
    ([2, 3], 8)
    >>> rows.tail(7, 8)[...] = 7
    >>> rows.finish()
    >>> written == [(4, [4, 5, 6, 7])]
    True
    """

    def __init__(
        self,
        span: Span,
        unit: int,
        shape: Sequence[int],
        dtype: Any,
        write: Callable[[int, Array], None],
    ) -> None:
        self._unit, self._total, self._write = unit, shape[0], write
        self._low, self._high = span
        self._start = min(self._high, self._rounded_up(self._low))
        self.end = self._high
        if self._start < self._high:
            self.end = min(self._total, self._rounded_up(self._high))
        self._rest, self._dtype = tuple(shape[1:]), np.dtype(dtype)
        self.head = self._empty(self._start - self._low)
        self._pending, self._first = self._empty(0), 0

    def _rounded_up(self, row: int) -> int:
        return -(-row // self._unit) * self._unit

    def _empty(self, rows: int) -> Array:
        return np.empty((rows, *self._rest), self._dtype)

    def add(self, low: int, rows: Array) -> None:
        """Take rows from number ``low`` on, which come in order; write the units that are whole."""
        if low < self._start:
            count = min(len(rows), self._start - low)
            self.head[low - self._low :][:count] = rows[:count]
            low, rows = low + count, rows[count:]
        while len(rows):
            at = low % self._unit
            is_last = low + len(rows) == self._total
            if not at and (is_last or len(rows) >= self._unit):
                count = len(rows) if is_last else len(rows) - len(rows) % self._unit
                self._write(low, rows[:count])
            else:
                if not at:
                    self._pending = self._empty(min(self._unit, self._total - low))
                    self._first = low
                count = min(len(self._pending) - at, len(rows))
                self._pending[at : at + count] = rows[:count]
                if at + count == len(self._pending):
                    self.finish()
            low, rows = low + count, rows[count:]

    def tail(self, low: int, high: int) -> Array:
        """Return where rows of others go, of the last unit."""
        return self._pending[low - self._first : high - self._first]

    def finish(self) -> None:
        """Write the last unit, all rows of which are there now."""
        if len(self._pending):
            self._write(self._first, self._pending)
            self._pending = self._empty(0)
