"""One worker's rows of all fields, with their halo: what an iteration does to them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fpmdask.apps.stencil.spec import Condition, StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.runtime.rows import Span
from fpmdask.tuning import DEFAULT

Array = np.ndarray[Any, Any]
# Calls a function with each of some rows, and another one with these and what the first one has
# made, in this order; in threads perhaps, as many at once as there are: all are made first.
InGroups = Callable[
    [Callable[[Span], list[Array]], Callable[[Span, list[Array]], None], Sequence[Span]], None
]
# Fills rows start … stop of all fields, or of all constant arrays, without halo.
Bring = Callable[[list[Array], int, int], None]
# A band has so many times as many rows as its halo at least.
BAND_DEPTHS = 8


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

    def replace(
        self,
        bands: Sequence[Span],
        fields: Sequence[Array],
        args: Sequence[Array],
        first: int,
        there: Span,
        targets: Callable[[Span], Sequence[Array]],
        in_groups: InGroups,
        changes: list[float] | None = None,
    ) -> None:
        """Compute bands of rows in their order, and put each where old rows may be.

        Parameters
        ----------
        bands
            Of rows. What one replaces is not needed for those that come after it.
        fields, args, first, there
            As for `updated`.
        targets
            Where the new rows of a band go.
        in_groups
            Calls functions with the bands.
        changes
            Gets the largest differences of a cell to the iteration before.

        Raises
        ------
        UpdateFailed, PartitionError
            As `updated`.
        """

        def make(span: Span) -> list[Array]:
            made = [  # it may return its input, of another field perhaps
                np.array(value) if shared(value, fields) else value
                for value in self.updated(span, fields, args, first, there)
            ]
            if changes is not None:
                old = (self.inner(rows[span[0] - first : span[1] - first]) for rows in fields)
                changes.extend(map(difference, made, old))
            return made

        def put(span: Span, made: list[Array]) -> None:
            for value, target in zip(made, targets(span), strict=True):
                target[...] = value

        in_groups(make, put, bands)

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
    """Rows of all fields, which an iteration replaces in place, and of the constant arrays.

    A field's buffer has room for `depth` rows more than there are. A sweep upward computes the rows
    in ascending order, and puts the new ones `depth` rows further up, where old ones are no longer
    needed; the next one goes downward. So a field takes half the memory of two buffers that take
    turns, and new rows are written where old ones are in the cache.

    With halos of neighbours, a sweep may compute the rows that need none of them first. Those at
    both ends are computed from copies then: `strips` of the halo and of `2 * depth` rows.

    Attributes
    ----------
    fields, args : list of numpy.ndarray
        Rows from `first` on, with their halo.
    """

    def __init__(
        self,
        spec: StencilSpec,
        update: Update,
        rows: Span,
        every: int = 1,
        band_nbytes: int = DEFAULT.stencil.band_nbytes,
    ) -> None:
        super().__init__(spec, update, rows, every, band_nbytes)
        self._depth, count = spec.depth[0], self.last - self.first
        buffer = (count + self._depth, *self.row_shape)
        self._buffers = [np.empty(buffer, one.dtype) for one in spec.fields]
        self._upward = True  # the next sweep: rows are at the lower end
        self.args = [np.empty((count, *self.row_shape), one.dtype) for one in spec.args]
        strip = (self.reach + 2 * self._depth, *self.row_shape)
        self._strips = [
            [np.empty(strip, one.dtype) for one in spec.fields] if is_open else []
            for is_open in self.open
        ]

    @property
    def fields(self) -> list[Array]:
        """Return the fields' rows of now: views."""
        return self._at(self._depth if self._upward else 0)

    def _at(self, start: int) -> list[Array]:
        count = self.last - self.first
        return [buffer[start : start + count] for buffer in self._buffers]

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

    def sweep(
        self,
        low: int,
        high: int,
        in_groups: InGroups,
        *,
        halos: Callable[[], None] | None = None,
        computing: Callable[[Span], AbstractContextManager[Any]] = nullcontext,
        compact: bool = False,
        changes: list[float] | None = None,
    ) -> None:
        """Make the next iteration's rows from `low` to `high`, which may be beyond this part's.

        Parameters
        ----------
        in_groups
            As for `Part.replace`.
        halos
            Waits for the halos that neighbours have sent to `neighbours_rows`; None: rows of
            neighbours are here from the iterations before.
        computing
            Is entered with the rows that are computed within.
        compact
            Whether this is the last sweep: its rows go where `room` is, without any halo.
        changes
            Gets the largest differences of a cell to the iteration before.

        Raises
        ------
        UpdateFailed, PartitionError
            As `Part.updated`.
        """
        fields, new = self.fields, self._at(0 if self._upward else self._depth)
        room = self.room() if compact else None
        there = self.first, self.last

        def targets(span: Span) -> list[Array]:
            if room is None:
                return self.cells(new, *span)
            return [one[span[0] - self.low : span[1] - self.low] for one in room]

        def compute(span: Span, some: Sequence[Array], args: Sequence[Array], at: Span) -> None:
            bands = self.bands(*span)
            bands = bands if self._upward else bands[::-1]
            with computing(span):
                self.replace(bands, some, args, at[0], at, targets, in_groups, changes)

        above, below = (self._depth * is_open for is_open in self.open)
        inner = self.low + above, self.high - below
        if halos is None or inner[0] >= inner[1] or self.high - self.low < 2 * self._depth:
            if halos is not None:
                halos()
                for side, strips in enumerate(self._strips):
                    self._take(fields, side, strips)
            compute((low, high), fields, self.args, there)
        else:
            spans = [self._strip(side) for side in range(2)]
            for strips, span, own in zip(self._strips, spans, self._ends(), strict=True):
                if strips:
                    rows = self.rows(fields, *own)
                    for strip, old in zip(strips, rows, strict=True):
                        strip[own[0] - span[0] : own[1] - span[0]] = old
            compute(inner, fields, self.args, there)
            halos()
            for side, (start, stop) in enumerate(((low, inner[0]), (inner[1], high))):
                if start < stop:
                    args = self.rows(self.args, *spans[side])
                    compute((start, stop), self._strips[side], args, spans[side])
        self._upward = not self._upward

    def _strip(self, side: int) -> Span:
        """Return the rows of the strip at the upper end (0), the lower one (1)."""
        if side:
            return self.high - 2 * self._depth, self.high + self.reach
        return self.low - self.reach, self.low + 2 * self._depth

    def _ends(self) -> tuple[Span, Span]:
        """Return this part's own rows of both strips."""
        twice = 2 * self._depth
        return (self.low, self.low + twice), (self.high - twice, self.high)

    def _take(self, fields: Sequence[Array], side: int, strips: Sequence[Array]) -> None:
        """Copy a neighbour's rows from a strip to where this part's rows are."""
        low = (self.low - self.reach, self.high)[side]
        own = self.neighbours_rows(side)
        for target, rows in zip(self.rows(fields, low, low + self.reach), own, strict=False):
            target[...] = rows

    def room(self) -> list[Array]:
        """Return where the last sweep puts all rows, without halo: at an end of each buffer.

        New memory costs over 1 s per GB.
        """
        shape = (self.high - self.low, *self.spec.shape[1:])
        count = math.prod(shape)
        flat = [buffer.reshape(-1) for buffer in self._buffers]
        ends = [one[:count] if self._upward else one[len(one) - count :] for one in flat]
        return [one.reshape(shape) for one in ends]

    def compacted(self, count: int) -> list[Array]:
        """Return all rows without halo, moved to an end of each buffer, so many rows at once."""
        made = []
        shape, own = (self.high - self.low, *self.spec.shape[1:]), self.sources()
        for buffer, rows in zip(self._buffers, own, strict=True):
            target = buffer.reshape(-1)[: math.prod(shape)].reshape(shape)
            for low in range(0, len(target), max(1, count)):
                target[low : low + count] = rows[low : low + count]
            made.append(target)
        return made

    # ---- as `Streamed` has it, too

    def edge(self, side: int) -> list[Array]:
        """Return copies of the rows of each field that the neighbour above (0), below (1) needs."""
        low = (self.low, self.high - self.reach)[side]
        return [rows.copy() for rows in self.rows(self.fields, low, low + self.reach)]

    def neighbours_rows(self, side: int) -> list[Array]:
        """Return where the rows of the neighbour above (0), below (1) go."""
        here = slice(2 * self._depth, None) if side else slice(0, self.reach)
        return [strip[here] for strip in self._strips[side]]

    def bring(self, bring: Bring, unit: int = 1) -> None:
        """Have the fields' rows filled, all at once, whatever their unit."""
        bring(self.sources(), self.low, self.high)

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

    def sources(self) -> list[Array]:
        """Return the fields' rows."""
        return self.cells(self.fields, self.low, self.high)

    def release(self) -> None:
        """Let go of the memory; who has asked for rows keeps theirs."""
        self.args, self._buffers, self._strips = [], [], [[], []]


def difference(one: Array, other: Array) -> float:
    """Return the largest difference of a cell, 0 without cells; two equal infinities have none.

    Examples
    --------
    >>> difference(np.array([2**62, 1]), np.array([2**62 + 1, 1]))
    1.0
    >>> difference(np.array([np.inf, 1.0]), np.array([np.inf, 1.5]))
    0.5
    """
    if not one.size:
        return 0.0
    kind = one.dtype.kind
    if kind == "b":
        return float((one != other).any())
    if kind in "iu":  # exactly: what is more than the largest int is one of the unsigned ones
        apart = np.maximum(one, other) - np.minimum(one, other)
        return float(apart.view(f"u{apart.itemsize}").max())
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
        largest = float(apart.max())
        if math.isnan(largest):
            largest = float(np.where(one == other, 0.0, apart).max())
    return largest


def shared(value: Array, arrays: Sequence[Array]) -> bool:
    """Tell whether an array is a view of others, perhaps."""
    return any(np.may_share_memory(value, array) for array in arrays)


def in_turn(
    make: Callable[[Span], list[Array]],
    put: Callable[[Span, list[Array]], None],
    spans: Sequence[Span],
) -> None:
    """Call functions with each of some rows."""
    for span in spans:
        put(span, make(span))


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
    for target, source in zip(block.sources(), arrays, strict=False):
        target[...] = source
    for target, source in zip(block.cells(block.args, 0, total), arrays[count:], strict=True):
        target[...] = source
    block.fill(block.args, 0, total)
    for _ in range(iterations):
        block.fill(block.fields, 0, total)
        block.sweep(0, total, in_turn)
    return [one.copy() for one in block.sources()]
