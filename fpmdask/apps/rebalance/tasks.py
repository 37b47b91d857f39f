"""The user's kernel as workers time it, and a chunk of the result as Dask makes it again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fpmdask.errors import KernelError
from fpmdask.runtime.worker.rows import cut, joined, length
from fpmdask.timing import callable_name

# Before the first timed call there is one with this part of its rows.
WARM = 16


class RowsKernel:
    """A function of the local rows as a kernel.

    Parameters
    ----------
    function
        Called with some rows of each collection.
    parameters
        What else tells one call from another.

    Notes
    -----
    `setup` takes rows from those of this worker, the first ones first, and over again where there
    are fewer than it needs. Where these need more memory than there is, fewer are timed, and the
    seconds are scaled.

    Examples
    --------
    >>> kernel = RowsKernel(lambda x: print(len(x)), {})
    >>> kernel.know([[np.arange(3), np.arange(2)]], [0, 5], [0, 5], most=8)
    >>> kernel.setup(7)  # once with some of them before the clock starts
    1
    >>> kernel.run()
    7
    """

    implementation = ""

    def __init__(self, function: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
        self.function, self.parameters = function, dict(parameters)
        self.name = callable_name(function)
        self._pieces: Sequence[Sequence[Any]] = ()
        self._given: list[Any] = []
        self._scale = 1.0
        self._warm = False

    def know(
        self,
        pieces: Sequence[Sequence[Any]],
        rows: Sequence[int],
        units: Sequence[float],
        most: float,
    ) -> None:
        """Take note of this worker's rows.

        Parameters
        ----------
        pieces
            Of each collection, in order.
        rows, units
            So many of these rows are so many units.
        most
            Rows for which there is memory beside those that are held.
        """
        self._pieces, self._most = pieces, most
        self._rows, self._units = np.asarray(rows), np.asarray(units, float)

    def setup(self, units: int) -> None:
        """Join the rows of so many units."""
        if not self._pieces:
            raise KernelError("this worker has joined later and holds no rows to be timed with")
        wanted = self._rows_of(units)
        # the first rows of the first piece are a view
        within = max(length(own[0], 0) for own in self._pieces)
        rows = max(1, wanted if wanted <= within else min(wanted, int(min(self._most, wanted))))
        self._scale = wanted / rows
        if not self._warm:  # what it imports or compiles is not timed
            self._call(self._first(-(-rows // WARM)))
            self._warm = True
        self._given = self._first(rows)

    def _first(self, rows: int) -> list[Any]:
        return [_first(own, rows) for own in self._pieces]

    def _call(self, given: Sequence[Any]) -> None:
        # a frame may be the caller's: columns that the function adds or takes away are its own
        frames = (x.copy(deep=False) if hasattr(x, "iloc") else x for x in given)
        self.function(*frames)

    def _rows_of(self, units: float) -> int:
        over, rest = divmod(units, float(self._units[-1]))
        rows = over * int(self._rows[-1]) + float(np.interp(rest, self._units, self._rows))
        return max(1, math.ceil(rows))

    def run(self) -> float | None:
        """Call the function."""
        began = time.perf_counter()
        self._call(self._given)
        return None if self._scale == 1.0 else (time.perf_counter() - began) * self._scale

    def teardown(self) -> None:
        """Let go of the rows."""
        self._given = []

    def complexity(self, units: int) -> float:
        """Return the units themselves: nothing else is known of a function."""
        return float(units)


def _first(pieces: Sequence[Any], rows: int) -> Any:
    """Return the first rows, over again where there are not enough; arrays are read-only."""
    found: list[Any] = []
    every = sum(length(piece, 0) for piece in pieces)
    while rows and every:
        for piece in pieces:
            taken = min(rows, length(piece, 0))
            if taken:
                found.append(cut(piece, 0, 0, taken))
            rows -= taken
    block = joined(found or list(pieces[:1]), 0)
    if isinstance(block, np.ndarray):
        block = block.view()
        block.flags.writeable = False  # it may be the caller's data
    return block


def again(spans: Sequence[tuple[int, int]], *chunks: Any) -> Any:
    """Task: a chunk of the result, from the rows of all chunks that have some of it."""
    parts = [cut(chunk, 0, *span) for chunk, span in zip(chunks, spans, strict=True)]
    # with memory of its own where it is a view of one
    return parts[0].copy() if len(parts) == 1 and parts[0] is not chunks[0] else joined(parts, 0)
