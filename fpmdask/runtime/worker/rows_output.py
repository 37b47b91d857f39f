"""Fields that the workers of a team have by rows, written to Zarr arrays.

Runs in the thread of a step. All workers offer their rows through the run's exchange; each chunk is
written once, by a worker that gets the rows of it that others have: see `chunk_writers`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.runtime.chunk_writers import writers
from fpmdask.runtime.regions import common, whole
from fpmdask.runtime.rows import Span, in_pieces
from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import Fetch, Want
from fpmdask.runtime.worker.offers import Source, rows_of
from fpmdask.runtime.worker.reduce import AllReduce
from fpmdask.runtime.zarr_storage import OUT_MARK, Marked, snapshot_index, write_unit

Array = np.ndarray[Any, Any]
# Rows come in pieces of so many bytes, which their holder may have to read from disk.
PIECE_NBYTES = 1 << 20
# Rows that this worker has in memory are written by so many bytes at a time, or by one chunk: of
# several Zarr copies each, and encodes ten at once.
AT_ONCE_NBYTES = 32 << 20


class StorageFailed(Exception):
    """Shared storage refuses to be written; `__cause__` is an OSError for the user."""


class _Part(NamedTuple):
    """Rows of one field that this worker writes at once."""

    field: int
    rows: Span


class RowsOutput:
    """Where a step of this worker writes its rows to.

    Parameters
    ----------
    exchange, reduce
        Of the run and of the team; all workers of the team write at the same time.
    name
        Of what is offered, the same on all workers and another one for each attempt.
    order
        What `Output.order` of the client returned.
    writer
        What this worker is called in messages.

    Attributes
    ----------
    saved : int
        The iteration that was written last, -1: none.
    """

    def __init__(
        self,
        exchange: Exchange,
        reduce: AllReduce,
        name: str,
        order: Mapping[str, Any],
        writer: str,
    ) -> None:
        self._exchange, self._reduce, self._name, self._writer = exchange, reduce, name, writer
        self._targets = [
            Marked(pickle.loads(array), OUT_MARK, order["run"]) for array in order["arrays"]
        ]
        self._every, self._begin = order["every"], order["begin"]
        self._turn, self.saved = 0, -1

    def due(self, iteration: int) -> bool:
        """Tell whether the fields after an iteration, not the last one, are written."""
        return self._every is not None and not iteration % self._every

    def save(
        self,
        spans: Mapping[str, Span],
        iteration: int,
        sources: Sequence[Array | Source],
        speed: float,
    ) -> int:
        """Write the fields after an iteration; returns when all workers have written.

        Parameters
        ----------
        spans
            Worker → its rows, of the whole team.
        sources
            This worker's rows of each field; they stay as they are meanwhile.
        speed
            Of this worker's computing, in rows per second, 0: not known. By the speeds of all it
            is decided who encodes which chunks.

        Returns
        -------
        int
            Bytes received from others.

        Raises
        ------
        StorageFailed
            If the storage does not take them.
        PartitionError
            If the arrays are not there for this worker.
        FetchFailed
            If a worker of the team has left.
        """
        if iteration == self.saved:
            return 0
        for target in self._targets:
            if not target.found():
                raise PartitionError(target.elsewhere([self._writer]))
        for key, source in zip(self._keys(), sources, strict=True):
            self._exchange.offer(key, source, self._turn)
        slots = [speed if worker == self._exchange.address else 0.0 for worker in spans]
        speeds = dict(zip(spans, self._reduce(slots).tolist(), strict=True))
        parts = self._parts(spans, speeds, sources)
        nbytes = self._write_all(parts, spans, iteration, sources)
        self._reduce([0.0])
        if self._every is not None:
            if self._exchange.address == next(iter(spans)):
                self._record(iteration)
            self._reduce([0.0])  # a worker that fails right after it ends the run before
        for key in self._keys():
            self._exchange.retire(key)
        self._turn, self.saved = self._turn + 1, iteration
        return nbytes

    def _record(self, iteration: int) -> None:
        """Note in the arrays' attributes that a snapshot is complete.

        A worker does, and not the client, which may stop while workers go on and write checkpoints:
        who goes on from these must know which snapshots there are.
        """
        at = snapshot_index(self._begin, self._every, iteration)
        for target in self._targets:
            with _Explained(target.out, self._writer):
                state = target.state()
                if state.get("run") == target.run:
                    target.update(iterations=[*state.get("iterations", ())[:at], iteration])

    def first_missing(self) -> int | None:
        """Return the iteration whose snapshot is the first that is missing; None: none are made.

        A checkpoint of it, or of a later iteration, is of no use: that snapshot would never come.
        """
        if self._every is None:
            return None
        there = []
        for target in self._targets:
            with _Explained(target.out, self._writer):
                there.append(len(target.state().get("iterations", ())))
        missing: int = (max(0, min(there) - self._begin) + 1) * self._every
        return missing

    def _parts(
        self,
        spans: Mapping[str, Span],
        speeds: Mapping[str, float],
        sources: Sequence[Array | Source],
    ) -> Iterator[_Part]:
        """Yield what this worker writes: whole chunks, as many as are in memory together.

        Rows in its memory have `AT_ONCE_NBYTES`, others, and those on its disk, `PIECE_NBYTES`; or
        one chunk where that has more.
        """
        own = spans[self._exchange.address]
        for field, (target, source) in enumerate(zip(self._targets, sources, strict=True)):
            unit = write_unit(target.out)[0 if self._every is None else 1]
            row_nbytes = max(1, prod(source.shape[1:]) * source.dtype.itemsize)
            step = unit * max(1, PIECE_NBYTES // (unit * row_nbytes))
            most = unit * max(1, AT_ONCE_NBYTES // (unit * row_nbytes))
            shares = bool(getattr(target.out, "compressors", ()))  # else encoding takes nothing
            for (low, high), worker in writers(spans, unit, speeds if shares else {}):
                if worker != self._exchange.address:
                    continue
                start = stop = low
                if isinstance(source, np.ndarray):
                    start = min(high, max(low, -(-own[0] // unit) * unit))
                    ends = own[1] if own[1] >= high else own[1] // unit * unit
                    stop = max(start, min(high, ends))
                for first in range(low, start, step):
                    yield _Part(field, (first, min(first + step, start)))
                for first in range(start, stop, most):
                    yield _Part(field, (first, min(first + most, stop)))
                for first in range(stop, high, step):
                    yield _Part(field, (first, min(first + step, high)))

    def _write_all(
        self,
        parts: Iterable[_Part],
        spans: Mapping[str, Span],
        iteration: int,
        sources: Sequence[Array | Source],
    ) -> int:
        """Write one part after the other; return the bytes received.

        The next one is not gathered meanwhile: a worker out of core may have no memory for that.
        """
        at, nbytes = snapshot_index(self._begin, self._every, iteration), 0
        for part in parts:
            array, (rows, fetch) = self._targets[part.field].out, self._gather(part, spans, sources)
            fetch.wait()
            nbytes += fetch.nbytes
            self._write(array, at, part.rows[0], rows)
            del rows, fetch  # before the next ones are gathered
        return nbytes

    def _gather(
        self, part: _Part, spans: Mapping[str, Span], sources: Sequence[Array | Source]
    ) -> tuple[Array, Fetch]:
        """Return the rows of a part, and what fetches those that others have."""
        source, (low, high) = sources[part.field], part.rows
        own = spans[self._exchange.address]
        if isinstance(source, np.ndarray) and own[0] <= low and high <= own[1]:
            return source[low - own[0] : high - own[0]], self._exchange.fetch([])
        found = np.empty((high - low, *source.shape[1:]), source.dtype)
        piece = max(1, PIECE_NBYTES // max(1, found[0].nbytes))
        wants, here = [], []
        for peer, (first, last) in spans.items():
            met = common(((first, last),), (part.rows,))
            for start, stop in () if met is None else in_pieces(*met[0], piece):
                rows = found[start - low : stop - low]
                if peer == self._exchange.address:
                    here.append((start - first, stop - first, rows))
                    continue
                box = ((start - first, stop - first), *whole(found.shape[1:]))
                wants.append(Want(self._key(part.field), box, rows, [peer], self._turn))
        fetch = self._exchange.fetch(wants)
        for start, stop, rows in here:
            rows[...] = rows_of(source, start, stop)
        return found, fetch

    def _write(self, array: Any, at: int | None, low: int, rows: Array) -> None:
        with _Explained(array, self._writer):
            if at is None:
                array[low : low + len(rows)] = rows
            else:  # of the chunks' dimensions, or Zarr copies a whole chunk as well
                array[at : at + 1, low : low + len(rows)] = rows[None]

    def end(self) -> None:
        """Have all that wait for rows of this worker be refused."""
        for key in self._keys():
            self._exchange.offers.end(key)

    def _keys(self) -> Iterator[tuple[Any, ...]]:
        return map(self._key, range(len(self._targets)))

    def _key(self, field: int) -> tuple[Any, ...]:
        return ("rows to write", self._name, field)


class _Explained:
    """Makes what storage raises a `StorageFailed` with a message for the user."""

    def __init__(self, array: Any, writer: str) -> None:
        self._where, self._writer = array.store_path, writer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        says = f"worker {self._writer} cannot write to out at {self._where} ({error})"
        number = getattr(error, "errno", None)
        told = OSError(number, says) if number else OSError(says)
        told.__cause__ = error
        raise StorageFailed from told
