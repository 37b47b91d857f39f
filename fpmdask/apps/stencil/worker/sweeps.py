"""Iterations of one worker's rows: halos are exchanged, the update is called, threads are used.

Runs in the thread of a step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np

from fpmdask.apps.stencil.block import Array, Block
from fpmdask.apps.stencil.worker.counters import Counters
from fpmdask.apps.stencil.worker.halos import Halos
from fpmdask.apps.stencil.worker.streamed import OnDisk, Streamed
from fpmdask.errors import RunCancelledError
from fpmdask.runtime.dask_private import for_the_task_of_this_thread
from fpmdask.runtime.rows import Span, in_pieces
from fpmdask.runtime.worker.offers import rows_of
from fpmdask.timing.meter import NoRecorder

if TYPE_CHECKING:
    from fpmdask.mheta.instrument import Recorder


class Threads:
    """Calls functions with each of some rows, in a worker's threads.

    Parameters
    ----------
    count
        Of the worker.
    cancelled
        Is set when the run is over.
    """

    def __init__(self, count: int, cancelled: threading.Event) -> None:
        self.count, self._cancelled = count, cancelled
        begin = for_the_task_of_this_thread()  # an update may ask for its worker
        self._pool = ThreadPoolExecutor(count, "fpmdask-stencil", begin) if count > 1 else None

    def in_groups(
        self,
        make: Callable[[Span], list[Array]],
        put: Callable[[Span, list[Array]], None],
        spans: Sequence[Span],
    ) -> None:
        """Call `make` with as many rows at once as there are threads, then `put` with what it made.

        Until the run is over. Each is made by a thread of its own, as what is made may be a buffer
        of that thread's.
        """
        for at in range(0, len(spans), self.count):
            some = spans[at : at + self.count]
            self.check()
            if self._pool is None or len(some) < 2:
                for span in some:
                    put(span, make(span))
            else:
                made = list(self._pool.map(_with_barrier(make, len(some)), some))
                for _ in self._pool.map(put, some, made):
                    pass

    def check(self) -> None:
        """Raise `RunCancelledError` if the run is over."""
        if self._cancelled.is_set():
            raise RunCancelledError("the run is over")

    def close(self) -> None:
        """End them."""
        if self._pool is not None:
            self._pool.shutdown()


def _with_barrier(make: Callable[[Span], list[Array]], count: int) -> Callable[[Span], list[Array]]:
    """Return a function that so many threads call, and that returns once all have made theirs."""
    barrier = threading.Barrier(count)

    def made(span: Span) -> list[Array]:
        try:
            found = make(span)
        except BaseException:
            barrier.abort()
            raise
        with suppress(threading.BrokenBarrierError):  # another one has failed, and says why
            barrier.wait()
        return found

    return made


class InCore:
    """Iterations of rows that are in memory.

    Parameters
    ----------
    block, halos, threads, counters
        The rows, and what iterations use and count.
    every
        Iterations from one exchange of halos to the next.
    iterations
        Of the step, the last of which makes the result.
    """

    blocks = 0  # on disk

    def __init__(
        self,
        block: Block,
        halos: Halos,
        threads: Threads,
        counters: Counters,
        every: int,
        iterations: int,
    ) -> None:
        self.block, self._halos, self._threads, self._counters = block, halos, threads, counters
        self._every, self._iterations, self._ahead = every, iterations, 0
        self._result: list[Array] = []

    def one(self, turn: int, recorder: Recorder | NoRecorder, *, checks: bool) -> float:
        """Make one iteration; return the largest change of a cell where that is looked at.

        Halos are exchanged with the first one of a cycle, while rows that do not need them are
        computed.
        """
        block, changes = self.block, [0.0] if checks else None
        if block.low == block.high:
            return 0.0
        fresh = not self._ahead
        if fresh:
            self._ahead = min(self._every, self._iterations - turn)
        self._ahead -= 1
        above, below = (block.spec.depth[0] * is_open for is_open in block.open)
        low, high = block.low - self._ahead * above, block.high + self._ahead * below
        here = (block.low, block.high) if fresh else (low - above, high + below)
        with self._counters.timed("computing"):
            block.fill(block.fields, *here)
        halos = None
        if fresh and (above or below):
            exchanged = self._halos.exchanged(block, recorder)
            fetch = self._halos.fetch([want for _, some in exchanged for want in some])

            def halos() -> None:
                with recorder.receive():
                    fetch.wait()
                self._counters.nbytes_received += fetch.nbytes

        last = turn + 1 == self._iterations
        if last:
            self._result = block.room()
        block.sweep(
            low,
            high,
            self._threads.in_groups,
            halos=halos,
            computing=self._computing,
            compact=last,
            changes=changes,
        )
        return float(np.max(changes)) if changes else 0.0

    @contextmanager
    def _computing(self, span: Span) -> Iterator[None]:
        """Count what computing some rows takes."""
        counters, began, rows = self._counters, time.perf_counter(), span[1] - span[0]
        yield
        seconds = time.perf_counter() - began
        counters.seconds["computing"] += seconds
        counters.rows_computed += rows
        counters.spans += 1
        calls = -(-len(self.block.bands(*span)) // self._threads.count)
        counters.call_costs.add(calls, rows, seconds)

    def now(self) -> Sequence[Array]:
        """Return the fields' rows."""
        return self._result or self.block.sources()

    def result(self, piece: int) -> list[Array]:
        """Return the fields' rows, so many of which are copied at once."""
        return self._result or self.block.compacted(piece)


class OutOfCore:
    """Iterations of rows that are on disk: as `InCore`."""

    def __init__(self, block: Streamed, halos: Halos, threads: Threads, counters: Counters) -> None:
        self.block, self._halos, self._threads, self._counters = block, halos, threads, counters

    @property
    def blocks(self) -> int:
        """Into which the rows are cut."""
        return len(self.block.blocks)

    def one(self, turn: int, recorder: Recorder | NoRecorder, *, checks: bool) -> float:
        """Make one iteration: exchange halos, then stream the rows."""
        block, counters, changes = self.block, self._counters, [0.0]
        fetches = [
            (self._halos.rank(peer), self._halos.fetch(wants))
            for peer, wants in self._halos.exchanged(block, recorder)
        ]
        for rank, fetch in fetches:
            with recorder.receive(rank) as receiving:
                fetch.wait()
                if receiving is not None:
                    receiving.nbytes = fetch.nbytes
            counters.nbytes_received += fetch.nbytes
        began, io = time.perf_counter(), block.io_seconds
        block.sweep(self._threads.in_groups, recorder, changes if checks else None)
        io = block.io_seconds - io
        counters.seconds["io"] += io
        counters.seconds["computing"] += time.perf_counter() - began - io
        counters.rows_computed += block.high - block.low
        return float(np.max(changes))

    def now(self) -> Sequence[OnDisk]:
        """Return the fields' rows."""
        return self.block.sources()

    def result(self, piece: int) -> list[Array]:
        """Return the fields' rows, in new memory: so many are read at once."""
        sources = self.block.sources()
        self.block.release()
        found = [np.empty(one.shape, one.dtype) for one in sources]
        for target, source in zip(found, sources, strict=True):
            for start, stop in in_pieces(0, len(target), piece):
                target[start:stop] = rows_of(source, start, stop)
        return found
