"""Iterations of one worker's rows: halos are exchanged, the update is called, threads are used.

Runs in the thread of a step.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from fpmdask.apps.stencil.block import Array, Block
from fpmdask.apps.stencil.worker.counters import Counters
from fpmdask.apps.stencil.worker.halos import Halos
from fpmdask.apps.stencil.worker.streamed import OnDisk, Streamed
from fpmdask.errors import RunCancelledError
from fpmdask.runtime.dask_private import for_the_task_of_this_thread
from fpmdask.runtime.rows import Span
from fpmdask.timing.meter import NoRecorder

if TYPE_CHECKING:
    from fpmdask.mheta.instrument import Recorder


class Threads:
    """Calls a function with each of some rows, in a worker's threads.

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

    def each(self, function: Callable[[Span], None], spans: Sequence[Span]) -> None:
        """Call it with each, until the run is over."""

        def one(span: Span) -> None:
            self.check()
            function(span)

        self._call(one, spans)

    def together(self, function: Callable[[Span], None], spans: Sequence[Span]) -> None:
        """Call it with all of them, which wait for one another: at most `count`."""
        self.check()
        self._call(function, spans)

    def _call(self, function: Callable[[Span], None], spans: Sequence[Span]) -> None:
        if self._pool is None or len(spans) < 2:
            for span in spans:
                function(span)
        else:
            for _ in self._pool.map(function, spans):
                pass

    def check(self) -> None:
        """Raise `RunCancelledError` if the run is over."""
        if self._cancelled.is_set():
            raise RunCancelledError("the run is over")

    def close(self) -> None:
        """End them."""
        if self._pool is not None:
            self._pool.shutdown()


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
        self._made(turn, recorder)
        return self.block.change(self._threads.each) if checks else 0.0

    def _made(self, turn: int, recorder: Recorder | NoRecorder) -> None:
        block, old = self.block, turn % 2
        into = self._last(turn)
        if block.low == block.high:
            return
        fresh = not self._ahead
        if fresh:
            self._ahead = min(self._every, self._iterations - turn)
        self._ahead -= 1
        above, below = (block.spec.depth[0] * is_open for is_open in block.open)
        low, high = block.low - self._ahead * above, block.high + self._ahead * below
        if not fresh or not (above or below):
            self._compute(old, [(low, high)], into, fill=(low - above, high + below))
            return
        with self._counters.timed("computing"):
            block.fill(block.buffers[old], block.low, block.high)
        exchanged = self._halos.exchanged(block, old, recorder)
        fetch = self._halos.fetch([want for _, some in exchanged for want in some])
        inner = block.low + above, block.high - below
        if inner[0] < inner[1]:
            self._compute(old, [inner], into)
            rest = [(low, inner[0]), (inner[1], high)]
        else:
            rest = [(low, high)]
        with recorder.receive():
            fetch.wait()
        self._counters.nbytes_received += fetch.nbytes
        self._compute(old, rest, into)

    def _compute(
        self,
        old: int,
        spans: Sequence[Span],
        into: Sequence[Array] | None,
        fill: Span | None = None,
    ) -> None:
        block, counters, rows, calls = self.block, self._counters, 0, 0
        began = time.perf_counter()
        if fill is not None:
            block.fill(block.buffers[old], *fill)
        for low, high in spans:
            block.compute(old, low, high, self._threads.each, into)
            rows += high - low
            calls += -(-len(block.bands(low, high)) // self._threads.count)
            counters.spans += low < high
        seconds = time.perf_counter() - began
        counters.seconds["computing"] += seconds
        counters.rows_computed += rows
        counters.call_costs.add(calls, rows, seconds)

    def _last(self, turn: int) -> Sequence[Array] | None:
        """Return where the last iteration goes: it is the result."""
        if turn + 1 < self._iterations:
            return None
        self._result = self._unused(turn)
        return self._result

    def _unused(self, turn: int) -> list[Array]:
        """Return room for all rows in the memory of the buffer that an iteration writes to.

        New memory costs over 1 s per GB.
        """
        shape = (self.block.high - self.block.low, *self.block.spec.shape[1:])
        return [
            one.reshape(-1)[: math.prod(shape)].reshape(shape)
            for one in self.block.buffers[(turn + 1) % 2]
        ]

    def now(self, done: int) -> Sequence[Array]:
        """Return the fields' rows after so many iterations."""
        return self._result or self.block.sources(done)

    def result(self, done: int) -> tuple[list[Array], Sequence[Array | OnDisk]]:
        """Return room for the fields' rows, and what is to be copied there, if anything."""
        if self._result:
            return self._result, []
        return self._unused(done), self.block.sources(done)


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
            for peer, wants in self._halos.exchanged(block, 0, recorder)
        ]
        for rank, fetch in fetches:
            with recorder.receive(rank) as receiving:
                fetch.wait()
                if receiving is not None:
                    receiving.nbytes = fetch.nbytes
            counters.nbytes_received += fetch.nbytes
        began, io = time.perf_counter(), block.io_seconds
        block.sweep(self._threads.together, recorder, changes if checks else None)
        io = block.io_seconds - io
        counters.seconds["io"] += io
        counters.seconds["computing"] += time.perf_counter() - began - io
        counters.rows_computed += block.high - block.low
        return float(np.max(changes))

    def now(self, done: int) -> Sequence[OnDisk]:
        """Return the fields' rows."""
        return self.block.sources(done)

    def result(self, done: int) -> tuple[list[Array], Sequence[Array | OnDisk]]:
        """Return room for the fields' rows, and what is to be copied there."""
        sources = self.block.sources(done)
        self.block.release()
        return [np.empty(one.shape, one.dtype) for one in sources], sources
