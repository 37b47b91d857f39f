"""Fields that the workers of a team have by rows, written to Zarr arrays.

Runs in the thread of a step. Each chunk is written once, by the worker that has its first row;
others that have rows of it send them through the run's exchange.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fpmdask.errors import PartitionError
from fpmdask.runtime.aligned_rows import AlignedRows, Array
from fpmdask.runtime.regions import common, whole
from fpmdask.runtime.rows import Span
from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import Want
from fpmdask.runtime.worker.reduce import AllReduce
from fpmdask.runtime.zarr_storage import OUT_MARK, Marked, snapshot_index, write_unit

# First row, and rows of each field.
Pieces = Iterable[tuple[int, Sequence[Array]]]


class StorageFailed(Exception):
    """Shared storage refuses to be written; `__cause__` is an OSError for the user."""


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

    def save(self, spans: Mapping[str, Span], iteration: int, pieces: Pieces) -> None:
        """Write this worker's rows after an iteration; returns when all workers have.

        Parameters
        ----------
        spans
            Worker → its rows, of the whole team.
        pieces
            This worker's, in order.

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
            return
        at = snapshot_index(self._begin, self._every, iteration)
        span, parts = spans[self._exchange.address], []
        skip = 0 if at is None else 1
        for target in self._targets:
            if not target.found():
                raise PartitionError(target.elsewhere([self._writer]))
            shape, unit = target.out.shape[skip:], write_unit(target.out)[skip]
            write = partial(self._write, target.out, at)
            parts.append(AlignedRows(span, unit, shape, target.out.dtype, write))
        for low, fields in pieces:
            for part, rows in zip(parts, fields, strict=True):
                part.add(low, rows)
        wants = []
        for field, part in enumerate(parts):
            key = self._key(field)
            if len(part.head):
                self._exchange.offer(key, part.head, self._turn)
            for peer, (low, high) in spans.items():
                met = common(((low, high),), ((span[1], part.end),))
                if met is None or peer == self._exchange.address:
                    continue
                ((start, stop),) = met
                box = ((start - low, stop - low), *whole(part.head.shape[1:]))
                wants.append(Want(key, box, part.tail(start, stop), [peer], self._turn))
        self._exchange.fetch(wants, at_once=0).wait()
        for part in parts:
            part.finish()
        self._reduce([0.0])
        self._turn, self.saved = self._turn + 1, iteration

    def _write(self, array: Any, at: int | None, low: int, rows: Array) -> None:
        region = (slice(low, low + len(rows)),)
        with _Explained(array, self._writer):
            array[region if at is None else (at, *region)] = np.asarray(rows)

    def retire(self) -> None:
        """Let go of what is offered, once all workers have written for the last time."""
        for field in range(len(self._targets)):
            self._exchange.retire(self._key(field))

    def end(self) -> None:
        """Have all that wait for rows of this worker be refused."""
        for field in range(len(self._targets)):
            self._exchange.offers.end(self._key(field))

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
