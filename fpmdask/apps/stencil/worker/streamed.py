"""One worker's rows out of core: on its disk, and in memory a block of them at a time.

Runs on a worker, in the thread of a step.

A sweep reads blocks of rows one after the other, computes the rows whose neighbours are there, and
writes these, in place on disk. In memory they are replaced in place, too, `depth` rows further up::

    index in a buffer   0       depth                                             rows + 3 depth
    old rows            |       |s - depth ...  s ........ e ...... e + 2 depth |     e + depth = r
    new rows            |s ............... e    |

The rows s … e are computed in bands; the next band needs old rows from `depth` above it on, which
the new rows do not reach. (They begin less than a sector further up, where the disk needs no copy.)
The last 2 · depth old rows are copied to the next buffer, or to the beginning of the only one, and
rows from r on follow there: each row is read once, and written once. On disk the new rows end
`depth` before what is read next. So a field takes as much disk as rows, not twice as much, and a
buffer as much memory as a block: one to compute in, one to prefetch into.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from fpmdask.apps.stencil.block import Array, Bring, InGroups, Part, Update, fill
from fpmdask.apps.stencil.sizes import arg_name, field_name
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.runtime.regions import Box
from fpmdask.runtime.rows import Span, in_pieces
from fpmdask.runtime.worker.block_file import SECTOR, BlockFile, Region, aligned
from fpmdask.timing.meter import NoRecorder
from fpmdask.tuning import DEFAULT

if TYPE_CHECKING:
    from fpmdask.mheta.instrument import Recorder


class Streamed(Part):
    """Rows of all fields and constant arrays on disk.

    Parameters
    ----------
    spec, update, rows, band_nbytes
        As for `Part`.
    block_rows
        Rows of a block; the last one may have fewer.
    file
        Where the rows are kept.
    prefetch
        Whether the next block is read while one is computed.

    Attributes
    ----------
    blocks : list of Span
        The rows that are read at once.
    io_seconds : float
        Spent in reads, writes, and waiting for what is prefetched.
    """

    def __init__(
        self,
        spec: StencilSpec,
        update: Update,
        rows: Span,
        block_rows: int,
        file: BlockFile,
        *,
        prefetch: bool = True,
        band_nbytes: int = DEFAULT.stencil.band_nbytes,
    ) -> None:
        super().__init__(spec, update, rows, 1, band_nbytes)
        low, high = rows
        starts = range(low, high, block_rows)
        self.blocks = [(start, min(start + block_rows, high)) for start in starts]
        self.file, self.io_seconds = file, 0.0
        arrays = [np.dtype(one.dtype) for one in (*spec.fields, *spec.args)]
        self._count = len(spec.fields)
        self._names = [
            *map(field_name, range(self._count)),
            *map(arg_name, range(len(spec.args))),
        ]
        self.file = file
        self._regions = [file.reserve((high - low, *self.row_shape), dtype) for dtype in arrays]
        self._rows = min(block_rows, high - low) + 3 * self.reach
        nbytes = [self._rows * region.row_nbytes + 2 * SECTOR for region in self._regions]
        self._buffers = [
            list(map(aligned, nbytes)) for _ in range(2 if prefetch and len(self.blocks) > 1 else 1)
        ]
        # rows of each array beyond both ends, and the fields' rows at both ends
        edge = (self.reach, *self.row_shape)
        self._halo_rows, self._edges = (
            [[np.empty(edge, dtype) for dtype in arrays] for _ in range(2)] for _ in range(2)
        )

    def _raw(self, number: int) -> Iterable[tuple[Array, Region]]:
        return zip(self._buffers[number % len(self._buffers)], self._regions, strict=True)

    def _old(self, number: int) -> list[Array]:
        """Return the rows of all arrays from `_first` on, in the buffer of a block.

        They begin where transfers need no copy: their address and their place in the file differ by
        sectors.
        """
        return self._placed(number, self._first(number), self._rows)

    def _placed(self, number: int, first: int, count: int) -> list[Array]:
        """Return rows from a number on, in the buffer of a block."""
        found = []
        for raw, region in self._raw(number):
            start = SECTOR + (first - self.low) * region.row_nbytes % SECTOR
            rows = raw[start : start + count * region.row_nbytes]
            found.append(rows.view(region.dtype).reshape(-1, *self.row_shape))
        return found

    def _new(self, number: int, rows: int) -> list[Array]:
        """Return where the new rows of the fields go, from `_begin` on: see `_old`.

        They begin there or less than a sector before, with the same place in a sector as on disk.
        """
        found, begin = [], self._begin(number) - self.low
        for raw, region in islice(self._raw(number), self._count):
            nbytes = region.row_nbytes
            start = SECTOR + (begin - self.reach) * nbytes % SECTOR
            start -= (start - begin * nbytes) % SECTOR
            new = raw[start : start + rows * nbytes]
            found.append(new.view(region.dtype).reshape(-1, *self.row_shape))
        return found

    # ---- one iteration

    def sweep(
        self,
        in_groups: InGroups,
        recorder: Recorder | NoRecorder,
        changes: list[float] | None = None,
    ) -> None:
        """Make the next iteration's rows, once the halos are there.

        Parameters
        ----------
        in_groups
            As for `Part.replace`.
        recorder
            Is told what a `Recorder` wants to know, in section 0, stage 0, tile 0 and by the names
            of `program`. If it records, a prefetch is a blocking read (MHETA.md section 6).
        changes
            Gets the largest differences of a cell to the iteration before.

        Raises
        ------
        UpdateFailed, PartitionError
            As `Part.updated`.
        DiskFailed
            If rows cannot be read or written.
        """
        self._fill_halos()
        edges = [[np.empty_like(rows) for rows in some[: self._count]] for some in self._edges]
        recorder.at(section=0, tile=0)
        with recorder.stage(0, rows=self.high - self.low):
            self._read(0, recorder)
            for number in range(len(self.blocks)):
                self._block(number, edges, in_groups, recorder, changes)
        for rows in chain(*edges):
            self.fill_sides(rows)
        self._edges = edges

    def _block(
        self,
        number: int,
        edges: Sequence[Sequence[Array]],
        in_groups: InGroups,
        recorder: Recorder | NoRecorder,
        changes: list[float] | None,
    ) -> None:
        """Compute a block that has been read, and read the next one."""
        last = number + 1 == len(self.blocks)
        begin, end = self._begin(number), self.high if last else self._begin(number + 1)
        ahead, reads = not last and len(self._buffers) > 1, []
        new = self._new(number, end - begin)
        self._complete(number)
        if ahead:
            for name, region, span, rows in self._reading(number + 1):
                with self._io(recorder.issue(name, len(rows), rows.nbytes)):
                    reads.append(region.prefetch(span, rows))
                    if recorder.records:
                        reads[-1].wait()
        if begin < end:
            with recorder.compute(rows=end - begin):
                self._compute(number, new, in_groups, changes)
        for read, name in zip(reads, self._names, strict=False):
            with self._io(recorder.wait(name)):
                if not recorder.records:
                    read.wait()
        if begin < end:
            self._write(new, begin, recorder)
            self._keep_edges(new, begin, edges)
        if not last:
            self._carry(number)
            if not ahead:
                self._read(number + 1, recorder)

    def _begin(self, number: int) -> int:
        """Return the first row that is computed with a block."""
        return max(self.low, self.blocks[number][0] - self.reach)

    def _first(self, number: int) -> int:
        """Return the row at index 0 of a block's buffer, before it is computed."""
        return self._begin(number) - self.reach

    def _reading(self, number: int) -> Iterator[tuple[str, Region, Span, Array]]:
        """Return what is to be read for a block: array, where from, rows, where to."""
        (low, high), first = self.blocks[number], self._first(number)
        span = low - self.low, high - self.low
        for name, region, array in zip(self._names, self._regions, self._old(number), strict=True):
            yield name, region, span, array[low - first : high - first]

    def _read(self, number: int, recorder: Recorder | NoRecorder) -> None:
        for name, region, span, rows in self._reading(number):
            with self._io(recorder.read(name, len(rows), rows.nbytes)):
                region.read(span, rows)

    def _write(self, new: Sequence[Array], begin: int, recorder: Recorder | NoRecorder) -> None:
        for name, region, rows in zip(self._names, self._regions, new, strict=False):
            start = begin - self.low
            with self._io(recorder.write(name, len(rows), rows.nbytes)):
                region.write((start, start + len(rows)), rows)

    def _complete(self, number: int) -> None:
        """Add to the rows of a block the halos of all rows, and those on the other axes."""
        arrays = self._old(number)
        (low, high), first = self.blocks[number], self._first(number)
        above, below = self.halo
        for rows, array in zip(self._halo_rows[0], arrays, strict=True):
            if low == self.low:
                array[low - above - first : low - first] = rows[:above]
        for rows, array in zip(self._halo_rows[1], arrays, strict=True):
            if high == self.high:
                array[high - first : high + below - first] = rows[:below]
        for array in arrays[: self._count]:
            self.fill_sides(array[low - first : high - first])

    def _compute(
        self,
        number: int,
        new: Sequence[Array],
        in_groups: InGroups,
        changes: list[float] | None,
    ) -> None:
        arrays, first, begin = self._old(number), self._first(number), self._begin(number)
        fields, args = arrays[: self._count], arrays[self._count :]
        low, high = max(first, self.first), self.blocks[number][1]
        there = low, self.last if high == self.high else high
        bands = self.bands(begin, begin + len(new[0]))

        def targets(span: Span) -> list[Array]:
            return [self.inner(rows[span[0] - begin : span[1] - begin]) for rows in new]

        self.replace(bands, fields, args, first, there, targets, in_groups, changes)

    def _carry(self, number: int) -> None:
        """Copy the rows that are there and that the next block needs, too."""
        low, high = max(self._first(number + 1), self.first), self.blocks[number][1]
        before, after = self._first(number), self._first(number + 1)
        for array, other in zip(self._old(number), self._old(number + 1), strict=True):
            other[low - after : high - after] = array[low - before : high - before]

    def _keep_edges(
        self, arrays: Sequence[Array], begin: int, edges: Sequence[Sequence[Array]]
    ) -> None:
        """Copy those of new rows that are at the ends of this worker's rows."""
        end = begin + len(arrays[0])
        for first, some in zip((self.low, self.high - self.reach), edges, strict=True):
            low, high = max(begin, first), min(end, first + self.reach)
            if low < high:
                for rows, array in zip(some, arrays, strict=False):
                    rows[low - first : high - first] = array[low - begin : high - begin]

    def _fill_halos(self, args: bool = False) -> None:
        """Fill the halos that no neighbour has, from the rows at both ends."""
        depth, condition = self.reach, self.spec.boundary[0]
        which = slice(self._count, None) if args else slice(0, self._count)
        for side, is_open in enumerate(self.open):
            if is_open or condition == "none":
                continue
            # alone with a periodic boundary it is its own neighbour
            end = 1 - side if condition == "periodic" else side
            edges = self._edges[end][which]
            for halo, rows in zip(self._halo_rows[side][which], edges, strict=True):
                if condition == "periodic":
                    halo[...] = rows
                    continue
                both = np.concatenate([rows, halo] if side else [halo, rows])
                fill(both, 0, 0 if side else depth, depth if side else 0, condition)
                halo[...] = both[depth:] if side else both[:depth]
                self.fill_sides(halo)

    @contextmanager
    def _io(self, recorded: Any) -> Iterator[None]:
        began = time.perf_counter()
        with recorded:
            yield
        self.io_seconds += time.perf_counter() - began

    # ---- as `Block` has it, too

    def edge(self, side: int) -> list[Array]:
        """Return the rows of each field that the neighbour above (0), below (1) needs."""
        return self._edges[side][: self._count]

    def neighbours_rows(self, side: int) -> list[Array]:
        """Return where the rows of the neighbour above (0), below (1) go."""
        return self._halo_rows[side][: self._count]

    def bring(self, bring: Bring, unit: int = 1) -> None:
        """Have the fields' rows filled, some at once, as `in_pieces` cuts them."""
        self._bring(slice(0, self._count), bring, unit)

    def bring_args(self, bring: Bring, unit: int = 1) -> None:
        """Have the rows of the constant arrays filled, and the halo that neighbours have."""
        if not self.spec.args:
            return
        which = slice(self._count, None)
        self._bring(which, bring, unit)
        starts = self.low - self.reach, self.high
        for is_open, low, some in zip(self.open, starts, self._halo_rows, strict=True):
            if is_open:
                bring([self.inner(rows) for rows in some[which]], low, low + self.reach)
                for rows in some[which]:
                    self.fill_sides(rows)
        self._fill_halos(args=True)

    def _bring(self, which: slice, bring: Bring, unit: int) -> None:
        """Fill one buffer while the rows in the other one are written."""
        most, edges = self._rows - 3 * self.reach, [some[which] for some in self._edges]
        writing: list[Future[None] | None] = [None] * len(self._buffers)
        with ThreadPoolExecutor(1, "fpmdask-bring") as thread:
            for number, (low, high) in enumerate(in_pieces(self.low, self.high, most, unit)):
                at = number % len(writing)
                if (before := writing[at]) is not None:
                    before.result()
                arrays = self._placed(number, low, high - low)[which]
                bring([self.inner(rows) for rows in arrays], low, high)
                for rows in arrays:
                    self.fill_sides(rows)
                self._keep_edges(arrays, low, edges)
                writing[at] = thread.submit(self._keep, which, low, arrays)
            for last in writing:
                if last is not None:
                    last.result()

    def _keep(self, which: slice, first: int, arrays: Sequence[Array]) -> None:
        for region, rows in zip(self._regions[which], arrays, strict=True):
            region.write((first - self.low, first - self.low + len(rows)), rows)

    def sources(self) -> Sequence[OnDisk]:
        """Return the fields' rows."""
        return [OnDisk(self, self.file, region) for region in self._regions[: self._count]]

    def release(self) -> None:
        """Let go of the memory once no more iterations are made: the rows stay on disk."""
        self._buffers, self._halo_rows, self._edges = [], [], []


class OnDisk:
    """Rows of a field, which a worker may offer to others: they are read when they are sent."""

    def __init__(self, part: Part, file: BlockFile, region: Region) -> None:
        self._part, self.file, self.region = part, file, region
        self.shape, self.dtype = (region.shape[0], *part.spec.shape[1:]), region.dtype

    def rows_in(self, nbytes: int) -> int:
        """Return how many rows have so many bytes, at least 1."""
        return max(1, nbytes // max(1, self.region.row_nbytes))

    def read(self, box: Box) -> Array:
        """Return a box of the rows, with memory of its own."""
        (low, high), *rest = box
        nbytes = self.region.row_nbytes
        raw = aligned((high - low) * nbytes, low * nbytes)
        found = raw.view(self.dtype).reshape(high - low, *self.region.shape[1:])
        self.region.read((low, high), found)
        return self._part.inner(found)[:, *(slice(*span) for span in rest)]
