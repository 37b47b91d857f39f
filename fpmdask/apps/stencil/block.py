"""One worker's rows of all fields, with their halo: what an iteration does to them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fpmdask.apps.stencil.spec import Condition, StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.runtime.rows import Span
from fpmdask.tuning import DEFAULT

Array = np.ndarray[Any, Any]
# Calls a function with each of some rows, in threads perhaps.
Each = Callable[[Callable[[Span], None], Sequence[Span]], None]
# Fills rows start … stop of all fields, or of all constant arrays, without halo.
Bring = Callable[[list[Array], int, int], None]
# A band has so many times as many rows as its halo at least.
BAND_DEPTHS = 16


class UpdateFailed(Exception):
    """The user's function has raised; `__cause__` is what."""


@dataclass(frozen=True)
class Update:
    """The user's function. With several fields it gets and returns a tuple."""

    function: Callable[..., Any]
    several: bool

    def __call__(self, fields: Sequence[Array], args: Sequence[Array]) -> Sequence[Any]:
        """Return what it makes of each field.

        Raises
        ------
        UpdateFailed
            Where it raises.
        PartitionError
            If it returns something else than an array for each field.
        """
        try:
            made = self.function(tuple(fields) if self.several else fields[0], *args)
        except BaseException as error:  # an exit, too, is the user's and not the worker's
            raise UpdateFailed from error
        found = made if self.several else (made,)
        if not isinstance(found, tuple | list) or len(found) != len(fields):
            raise PartitionError(
                f"update returned a {type(made).__name__} for {len(fields)} fields; return a tuple "
                "of as many arrays"
            )
        for one in found:
            if not isinstance(one, np.ndarray):
                raise PartitionError(
                    f"update returned a {type(one).__name__}; return a NumPy array for each field"
                )
        return found


def fill(array: Array, axis: int, before: int, after: int, condition: Condition) -> None:
    """Fill the halo at both ends of an axis.

    Examples
    --------
    >>> line = np.array([0, 0, 1, 2, 3, 0])
    >>> fill(line, 0, 2, 1, "reflect")
    >>> line
    array([2, 1, 1, 2, 3, 3])
    """
    lines = np.moveaxis(array, axis, 0)
    end = len(lines) - after
    own = lines[before:end]
    match condition:
        case "none":
            return
        case "reflect":
            low, high = own[:before][::-1], own[len(own) - after :][::-1]
        case "nearest":
            low, high = own[:1], own[-1:]
        case "periodic":
            low, high = own[len(own) - before :], own[:after]
        case _:
            lines[:before] = lines[end:] = condition
            return
    lines[:before], lines[end:] = low, high


class Part:
    """The rows of one worker, where its halo comes from, and what an update makes of them.

    Parameters
    ----------
    spec, update
        What is iterated.
    rows
        Of this worker.
    every
        Iterations between two exchanges of halos: so many times `depth` rows of each neighbour are
        kept, and computed as far as the next iterations need them.
    band_nbytes
        Of the rows that an update is called with at once, about.

    Attributes
    ----------
    open : tuple of bool
        Whether the halo above, and that below, is a neighbour's.
    first, last : int
        The rows with the halo; `first` is below 0 where it is beyond the array.
    row_shape : tuple of int
        Of a row with its halo on the other axes.
    """

    def __init__(
        self,
        spec: StencilSpec,
        update: Update,
        rows: Span,
        every: int = 1,
        band_nbytes: int = DEFAULT.stencil.band_nbytes,
    ) -> None:
        self.spec, self.update, (self.low, self.high) = spec, update, rows
        depth, total = spec.depth[0], spec.shape[0]
        wraps = spec.boundary[0] == "periodic"
        alone = rows == (0, total) or not depth
        self.open = (
            not alone and (self.low > 0 or wraps),
            not alone and (self.high < total or wraps),
        )
        closed = 0 if spec.boundary[0] == "none" or self.low == self.high else depth
        self.reach = every * depth
        self.halo = tuple(self.reach if is_open else closed for is_open in self.open)
        self.first, self.last = self.low - self.halo[0], self.high + self.halo[1]
        shapes = zip(spec.shape[1:], spec.sides, strict=True)
        self.row_shape = tuple(n + 2 * side for n, side in shapes)
        count = max(1, -(-band_nbytes // max(1, spec.row_nbytes)), BAND_DEPTHS * depth)
        self._band = max(1, min(count, self.high - self.low))

    def inner(self, rows: Array) -> Array:
        """Return rows without halo on the other axes: a view."""
        sides = zip(self.spec.sides, self.spec.shape[1:], strict=True)
        return rows[:, *(slice(side, side + n) for side, n in sides)]

    def fill_sides(self, rows: Array) -> None:
        """Fill the halo of rows on the other axes."""
        for axis, side in enumerate(self.spec.sides, 1):
            fill(rows, axis, side, side, self.spec.boundary[axis])

    def bands(self, low: int, high: int) -> list[Span]:
        """Return rows in pieces of which updates are made one after the other."""
        count = max(1, round((high - low) / self._band))
        edges = [low + (high - low) * n // count for n in range(count + 1)]
        return [span for span in pairwise(edges) if span[0] < span[1]]

    def updated(
        self, span: Span, fields: Sequence[Array], args: Sequence[Array], first: int, there: Span
    ) -> list[Array]:
        """Return rows after the next iteration, without halo.

        Parameters
        ----------
        span
            Which rows.
        fields, args
            Rows from number `first` on, with their halo.
        there
            Which of these there are.

        Raises
        ------
        UpdateFailed, PartitionError
            As `Update`, and for arrays of another shape or dtype than they should have.
        """
        depth = self.spec.depth[0]
        start, stop = max(span[0] - depth, there[0]), min(span[1] + depth, there[1])
        blocks, constant = (
            [array[start - first : stop - first] for array in arrays] for arrays in (fields, args)
        )
        for one in (*blocks, *constant):
            one.flags.writeable = False  # the next band needs these cells, too
        made = self.update(blocks, constant)
        return [
            self._cut(value, block, span[1] - span[0], span[0] - start)
            for value, block in zip(made, blocks, strict=True)
        ]

    def _cut(self, value: Array, block: Array, count: int, above: int) -> Array:
        """Return what an update has made, without halo."""
        if value.dtype != block.dtype:
            raise PartitionError(
                f"update returned {value.dtype} for blocks of {block.dtype}; give u0 of "
                f"{value.dtype} (astype), or have update return {block.dtype}"
            )
        shape = (count, *self.spec.shape[1:])
        if value.shape == shape:
            return value
        if value.shape != block.shape:
            raise PartitionError(
                f"update returned the shape {value.shape} for a block of the shape {block.shape}; "
                f"return that, or {shape}, without halo"
            )
        return self.inner(value[above : above + count])


class Block(Part):
    """Rows of all fields, in two buffers that take turns, and of the constant arrays; in memory."""

    def __init__(
        self,
        spec: StencilSpec,
        update: Update,
        rows: Span,
        every: int = 1,
        band_nbytes: int = DEFAULT.stencil.band_nbytes,
    ) -> None:
        super().__init__(spec, update, rows, every, band_nbytes)
        shape = (self.last - self.first, *self.row_shape)
        self.buffers = [[np.empty(shape, one.dtype) for one in spec.fields] for _ in range(2)]
        self.args = [np.empty(shape, one.dtype) for one in spec.args]

    def rows(self, arrays: Sequence[Array], low: int, high: int) -> list[Array]:
        """Return rows of arrays with their halo on the other axes: views."""
        return [array[low - self.first : high - self.first] for array in arrays]

    def cells(self, arrays: Sequence[Array], low: int, high: int) -> list[Array]:
        """Return rows of arrays without halo on the other axes: views."""
        return [self.inner(rows) for rows in self.rows(arrays, low, high)]

    def fill(self, arrays: Sequence[Array], low: int, high: int) -> None:
        """Fill what follows from rows that are there: on the other axes, and beyond the ends."""
        above, below = self.open
        if low <= self.low and not above:
            low = self.first
        if high >= self.high and not below:
            high = self.last
        ends = [0 if is_open else n for is_open, n in zip(self.open, self.halo, strict=True)]
        for array in self.rows(arrays, self.low - ends[0], self.high + ends[1]):
            fill(array, 0, ends[0], ends[1], self.spec.boundary[0])
        for array in self.rows(arrays, low, high):
            self.fill_sides(array)

    def compute(
        self, old: int, low: int, high: int, each: Each, into: Sequence[Array] | None = None
    ) -> None:
        """Make the next iteration's rows in the other buffer, or in what begins with the first row.

        Raises
        ------
        UpdateFailed, PartitionError
            As `updated`.
        """

        def band(span: Span) -> None:
            targets = (
                self.cells(self.buffers[1 - old], *span)
                if into is None
                else [one[span[0] - self.low : span[1] - self.low] for one in into]
            )
            there = self.first, self.last
            made = self.updated(span, self.buffers[old], self.args, self.first, there)
            for value, target in zip(made, targets, strict=True):
                target[...] = value

        each(band, self.bands(low, high))

    def change(self, each: Each) -> float:
        """Return the largest difference of a cell between the two buffers, 0 without rows."""
        found = [0.0]

        def band(span: Span) -> None:
            one, other = (self.cells(buffers, *span) for buffers in self.buffers)
            found.extend(map(difference, one, other))

        each(band, self.bands(self.low, self.high))
        return float(np.max(found))

    # ---- as `Streamed` has it, too

    def edge(self, turn: int, side: int) -> list[Array]:
        """Return copies of the rows of each field that the neighbour above (0), below (1) needs."""
        low = (self.low, self.high - self.reach)[side]
        return [rows.copy() for rows in self.rows(self.buffers[turn % 2], low, low + self.reach)]

    def neighbours_rows(self, turn: int, side: int) -> list[Array]:
        """Return where the rows of the neighbour above (0), below (1) go."""
        low = (self.low - self.reach, self.high)[side]
        return self.rows(self.buffers[turn % 2], low, low + self.reach)

    def bring(self, turn: int, bring: Bring, unit: int = 1) -> None:
        """Have the fields' rows filled, all at once, whatever their unit."""
        bring(self.cells(self.buffers[turn % 2], self.low, self.high), self.low, self.high)

    def bring_args(self, bring: Bring, unit: int = 1) -> None:
        """Have the rows of the constant arrays filled, and the halo that neighbours have."""
        if not self.args or self.low == self.high:
            return
        low, high = (
            edge + sign * self.reach * is_open
            for edge, sign, is_open in zip((self.low, self.high), (-1, 1), self.open, strict=True)
        )
        bring(self.cells(self.args, low, high), low, high)
        self.fill(self.args, self.first, self.last)

    def sources(self, turn: int) -> Sequence[Array]:
        """Return the fields' rows."""
        return self.cells(self.buffers[turn % 2], self.low, self.high)


def difference(one: Array, other: Array) -> float:
    """Return the largest difference of a cell, 0 without cells."""
    if not one.size:
        return 0.0
    kind = np.result_type(one.dtype, np.float64 if one.dtype.kind in "iub" else one.dtype)
    return float(np.abs(np.subtract(one, other, dtype=kind)).max())


def in_turn(function: Callable[[Span], None], spans: Iterable[Span]) -> None:
    """Call a function with each of some rows."""
    for span in spans:
        function(span)


def iterated(
    spec: StencilSpec, update: Update, arrays: Sequence[Array], iterations: int
) -> list[Array]:
    """Return the fields after some iterations, all rows in this process.

    Parameters
    ----------
    arrays
        The fields at the start, and the constant arrays.
    """
    total = spec.shape[0]
    block = Block(spec, update, (0, total))
    count = len(spec.fields)
    for target, source in zip(block.cells(block.buffers[0], 0, total), arrays, strict=False):
        target[...] = source
    for target, source in zip(block.cells(block.args, 0, total), arrays[count:], strict=True):
        target[...] = source
    block.fill(block.args, 0, total)
    for turn in range(iterations):
        block.fill(block.buffers[turn % 2], 0, total)
        block.compute(turn % 2, 0, total, in_turn)
    return [one.copy() for one in block.cells(block.buffers[iterations % 2], 0, total)]
