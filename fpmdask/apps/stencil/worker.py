"""The iterations on one worker: halos come from its neighbours, rows stay until shares change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

from fpmdask.apps.stencil.block import Array, Block, Update, UpdateFailed
from fpmdask.apps.stencil.plan import neighbours
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import KernelError, PartitionError, RunCancelledError
from fpmdask.runtime.dask_private import send_to_scheduler
from fpmdask.runtime.regions import common, whole
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.rows import Rows, Span
from fpmdask.runtime.worker.fetch import FetchFailed, Want
from fpmdask.runtime.worker.reduce import AllReduce
from fpmdask.runtime.worker.side import RunSpace, WorkerSide
from fpmdask.runtime.worker.space import Whole
from fpmdask.runtime.worker.steps import step
from fpmdask.runtime.zarr_storage import StoredRows
from fpmdask.timing import FunctionKernel


def iterate(order: Mapping[str, Any]) -> None:
    """Task: take part in all iterations."""
    step(order, lambda side, space: _iterate(side, space, order))


def _iterate(side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    threads = side.worker.state.nthreads
    pool = ThreadPoolExecutor(threads, "fpmdask-stencil") if threads > 1 else None
    iterating = Iterating(side, space, order, pool)
    try:
        with side.blas_threads():
            return iterating.run()
    except UpdateFailed as failed:
        # the run is over: its end ends what the others wait for
        return {"raised": describe_error(failed.__cause__ or failed)}
    except PartitionError as unusable:
        return {"unusable": str(unusable)}
    except FetchFailed as failed:
        iterating.end()
        return {"missing": failed.peers[0]}
    except BaseException:
        iterating.end()
        raise
    finally:
        if pool is not None:
            pool.shutdown()


class Iterating:
    """One attempt on one worker.

    Parameters
    ----------
    side, space, order
        The worker, the run, and what it is to do.
    pool
        The worker's threads, None where it has one.
    """

    def __init__(
        self,
        side: WorkerSide,
        space: RunSpace,
        order: Mapping[str, Any],
        pool: ThreadPoolExecutor | None,
    ) -> None:
        update = getattr(space.kernel, "function", None)
        if not isinstance(space.kernel, FunctionKernel) or not isinstance(update, Update):
            raise KernelError("the update was not prepared on this worker")
        self.side, self.space, self.exchange, self.order = side, space, space.exchange, order
        self.exchange.know(order["channels"], order["bare"])
        self.own, self.attempt, self.update, self.pool = (
            side.worker.address,
            order["attempt"],
            update,
            pool,
        )
        self.tuning = space.tuning.stencil
        self.spec = StencilSpec.from_json(order["spec"])
        self.notes = space.notes(f"attempt {self.attempt}")
        self.reduce = AllReduce(
            self.exchange, f"stencil {self.attempt}", [worker for worker, *_ in order["rows"]]
        )
        self.spent = dict.fromkeys(("loading", "computing", "moving", "total"), 0.0)
        self.received = self.rows_computed = self.cycle = self.ahead = 0
        self.every = 1
        self.result: list[Array] = []
        self._place(order["rows"])

    def _place(self, rows: Sequence[tuple[str, int, int]]) -> None:
        """Take note of who has which rows."""
        self.spans: dict[str, Span] = {worker: (low, high) for worker, low, high in rows}
        wraps = self.spec.boundary[0] == "periodic"
        found = neighbours(self.spans, self.own, wraps)
        self.above, self.below = found if self.spec.depth[0] else (None, None)

    def run(self) -> Mapping[str, Any]:
        """Iterate; the result is kept for the coordinator to publish."""
        began = time.perf_counter()
        spec = self.spec
        if self.order["probe"]:
            self._say(probe=self._probe())
            self._place(self._note()["rows"])
            began = time.perf_counter()
        self.block = self._block()
        low, high = self.spans[self.own]
        self._load(spec.fields, self.order["fields"], self.block.cells(self._buffers(0), low, high))
        self._load_args()
        self.spent["loading"] = time.perf_counter() - began
        done = self._iterations(time.perf_counter())
        low, high = self.spans[self.own]
        if not self.result:
            self.result = [
                cells.copy() for cells in self.block.cells(self._buffers(done), low, high)
            ]
        for number, value in enumerate(self.result):
            self.space.parts[number] = Whole(value)
        self.spent["total"] = time.perf_counter() - began
        return {
            "iterations": done,
            "rows_computed": self.rows_computed,
            "nbytes_received": self.received,
            **self.spent,
        }

    def _block(self) -> Block:
        span = self.spans[self.own]
        return Block(self.spec, self.update, span, self.every, self.tuning.band_nbytes)

    def _probe(self) -> float | None:
        """Return the seconds that a row takes, of a few that this worker would have; None of none.

        What a neighbour has is taken to be as the nearest row: for a time that is near enough.
        """
        low, high = self.spans[self.own]
        if low == high:
            return None
        low, high = self._block().bands(low, high)[0]
        spec = replace(self.spec, boundary=("nearest", *self.spec.boundary[1:]))
        self.block = block = Block(spec, self.update, (low, high))
        block.open = False, False
        self._load(spec.fields, self.order["fields"], block.cells(block.buffers[0], low, high))
        self._load_args()
        turn, began = 0, time.perf_counter()
        while True:
            block.fill(block.buffers[turn % 2], low, high)
            block.compute(turn % 2, low, high, self._each)
            turn += 1
            now = time.perf_counter()
            if turn == 1:  # not typical: memory is new
                began, first = now, now - began
            elif now - began >= self.tuning.trial_seconds:
                return (now - began) / (turn - 1) / (high - low)
            if turn == 1 and first >= self.tuning.trial_seconds:
                return first / (high - low)

    def _iterations(self, began: float) -> int:
        """Make all of them; return how many there were."""
        spec, told = self.spec, began
        look = 1 if self.order["trial"] else spec.iterations
        before = self._so_far()
        for done in range(1, spec.iterations + 1):
            self._one(done - 1)
            now = time.perf_counter()
            if done == spec.iterations:
                break
            if now - told >= self.tuning.news_seconds and self.own == next(iter(self.spans)):
                told = now
                self._say(iterations=done)
            checks = spec.tolerance is not None and not done % spec.check_every
            if not checks and done != look:
                continue
            change = self.block.change(self._each) if checks else 0.0
            change, seconds = self.reduce([change, now - began])
            if checks and change <= (spec.tolerance or 0.0):
                return done
            if done != look:
                continue
            look = min(2 * look, spec.iterations)
            if done == 1:  # not typical: memory is new, channels are opened
                before, began = self._so_far(), time.perf_counter()
            elif seconds >= self.tuning.trial_seconds:
                self._revise(done, before, now - began)
                look = spec.iterations
        return spec.iterations

    def _so_far(self) -> tuple[float, int]:
        return self.spent["computing"], self.rows_computed

    def _one(self, turn: int) -> None:
        """Make one iteration; with the first of a cycle halos are exchanged meanwhile."""
        if not self.notes.empty():
            self._note()
        block, depth, old = self.block, self.spec.depth[0], turn % 2
        if block.low == block.high:
            self._last(turn)
            return
        fresh = not self.ahead
        if fresh:
            self.ahead = min(self.every, self.spec.iterations - turn)
        self.ahead -= 1
        above, below = (depth * is_open for is_open in block.open)
        low, high = block.low - self.ahead * above, block.high + self.ahead * below
        into = self._last(turn)
        if not fresh or not (above or below):
            self._compute(old, [(low, high)], into, fill=(low - above, high + below))
            return
        began = time.perf_counter()
        block.fill(block.buffers[old], block.low, block.high)
        self.spent["computing"] += time.perf_counter() - began
        fetch = self._halos(old)
        inner = block.low + above, block.high - below
        if inner[0] < inner[1]:
            self._compute(old, [inner], into)
            rest = [(low, inner[0]), (inner[1], high)]
        else:
            rest = [(low, high)]
        fetch.wait()
        self.received += fetch.nbytes
        self._compute(old, rest, into)

    def _last(self, turn: int) -> Sequence[Array] | None:
        """Return where the last iteration goes: it is the result."""
        if turn + 1 < self.spec.iterations:
            return None
        # In the memory of the buffer that would be written to: new memory costs over 1 s per GB.
        shape = (self.block.high - self.block.low, *self.spec.shape[1:])
        self.result = [
            one.reshape(-1)[: math.prod(shape)].reshape(shape) for one in self._buffers(turn + 1)
        ]
        return self.result

    def _compute(
        self,
        old: int,
        spans: Sequence[Span],
        into: Sequence[Array] | None,
        fill: Span | None = None,
    ) -> None:
        began = time.perf_counter()
        if fill is not None:
            self.block.fill(self.block.buffers[old], *fill)
        for low, high in spans:
            self.block.compute(old, low, high, self._each, into)
            self.rows_computed += high - low
        self.spent["computing"] += time.perf_counter() - began

    def _each(self, function: Callable[[Span], None], spans: Sequence[Span]) -> None:
        """Call a function with each of some rows, in the worker's threads."""

        def one(span: Span) -> None:
            if self.space.cancelled.is_set():
                raise RunCancelledError("the run is over")
            function(span)

        if self.pool is None or len(spans) < 2:
            for span in spans:
                one(span)
        else:
            for _ in self.pool.map(one, spans):
                pass

    # ---- other workers

    def _halos(self, old: int) -> Any:
        """Offer the rows at both ends, which neighbours need, and ask for theirs."""
        block, buffers = self.block, self.block.buffers[old]
        reach, self.cycle = self.every * self.spec.depth[0], self.cycle + 1
        wants = []
        for peer, way, ours, theirs in (
            (self.above, "down", block.low, block.low - reach),
            (self.below, "up", block.high - reach, block.high),
        ):
            if peer is None:
                continue
            back = "up" if way == "down" else "down"
            for n, rows in enumerate(block.rows(buffers, ours, ours + reach)):
                # Who has come so far has read the version before the last one. A copy, so that
                # buffers may be written to whenever it is read.
                self.exchange.offer(self._halo(back, n), rows.copy(), self.cycle)
            for n, rows in enumerate(block.rows(buffers, theirs, theirs + reach)):
                wants.append(Want(self._halo(way, n), whole(rows.shape), rows, [peer], self.cycle))
        # with at_once = 0 all are asked now, and this thread receives when it waits
        return self.exchange.fetch(wants, at_once=0)

    def _halo(self, way: str, field: int, parity: int | None = None) -> tuple[Any, ...]:
        """Return the key of rows that go up, or down, to a neighbour in this cycle."""
        return ("halo", self.attempt, way, field, self.cycle % 2 if parity is None else parity)

    def _revise(self, done: int, before: tuple[float, int], seconds: float) -> None:
        """Tell how fast this worker is, and have rows move if the coordinator says so."""
        computing, rows = (a - b for a, b in zip(self._so_far(), before, strict=True))
        low, high = self.spans[self.own]
        turns = max(1, round(rows / (high - low))) if high > low else 1
        nbytes = (high - low) * self.spec.row_nbytes
        self._say(
            trial=done,
            row_seconds=computing / rows if rows else None,
            exchange_seconds=(seconds - computing) / turns,
            byte_seconds=self.spent["loading"] / nbytes if nbytes else 0.0,
        )
        note = self._note()
        began = time.perf_counter()
        if note["rows"] is not None:
            self._move(done, note["rows"], note["every"])
        self.spent["moving"] = time.perf_counter() - began

    def _move(self, done: int, rows: Sequence[tuple[str, int, int]], every: int) -> None:
        """Have the rows of a new distribution, those of others straight from them."""
        before, old = self.spans, self.block
        self._place(rows)
        self.every, self.ahead = every, 0
        span = self.spans[self.own]
        self.block = new = self._block()
        wants = []
        for peer, theirs in self.spans.items():
            if peer != self.own and (met := common((theirs,), (before[self.own],))) is not None:
                for n, cells in enumerate(old.cells(old.buffers[done % 2], *met[0])):
                    self.exchange.offer(self._moved(n, peer), cells)
        for peer, theirs in before.items():
            if (met := common((theirs,), (span,))) is None:
                continue
            targets = new.cells(self._buffers(done), *met[0])
            if peer == self.own:
                for target, cells in zip(
                    targets, old.cells(old.buffers[done % 2], *met[0]), strict=True
                ):
                    target[...] = cells
                continue
            for n, target in enumerate(targets):
                wants.append(Want(self._moved(n, self.own), whole(target.shape), target, [peer]))
        self._fetch(wants)
        self._load_args()
        self.reduce([0.0])  # all have what they need: the old buffers can go
        for key in self._keys("moved"):
            self.exchange.retire(key)

    def _moved(self, field: int, reader: str) -> tuple[Any, ...]:
        return ("moved", self.attempt, field, reader)

    def _keys(self, what: str) -> Iterator[tuple[Any, ...]]:
        """Return all that this worker may offer."""
        fields = range(len(self.spec.fields))
        if what == "moved":
            yield from (self._moved(n, peer) for n, peer in product(fields, self.spans))
        else:
            for way, n, parity in product(("up", "down"), fields, range(2)):
                yield self._halo(way, n, parity)

    def end(self) -> None:
        """Have all that wait for this worker be refused: it goes on no further."""
        self.reduce.end()
        for key in (*self._keys("moved"), *self._keys("halo")):
            self.exchange.offers.end(key)

    # ---- chunks of the inputs

    def _buffers(self, turn: int) -> list[Array]:
        return self.block.buffers[turn % 2]

    def _load_args(self) -> None:
        """Fill the constant arrays and their halo, that of neighbours from the inputs, too."""
        block, total = self.block, self.spec.shape[0]
        if not self.spec.args or block.low == block.high:
            return
        low, high = (
            edge + sign * halo * is_open
            for edge, sign, halo, is_open in zip(
                (block.low, block.high), (-1, 1), block.halo, block.open, strict=True
            )
        )
        while low < high:  # a periodic halo may be at the other end
            start = low % total
            count = min(high - low, total - start)
            cells = block.cells(block.args, low, low + count)
            self._load(self.spec.args, self.order["args"], cells, start)
            low += count
        block.fill(block.args, block.first, block.high + block.halo[1])

    def _load(
        self,
        inputs: Sequence[Rows],
        holders: Sequence[Sequence[Sequence[str]]],
        targets: Sequence[Array],
        start: int | None = None,
    ) -> None:
        """Fetch rows of inputs, those of this worker by default, into their places."""
        wants = []
        for one, places, target in zip(inputs, holders, targets, strict=True):
            low, at = self.block.low if start is None else start, 0
            if not len(target):
                continue
            if one.stored is not None:
                self._stored(one.stored).read(low, target)
                continue
            for chunk, begin, end in one.pieces((low, low + len(target))):
                rest = target.shape[1:]
                box = ((begin, end), *whole(rest))
                out = target[at : at + end - begin]
                shape = (one.lengths[chunk], *rest)
                wants.append(Want(one.keys[chunk], box, out, places[chunk], shape=shape))
                at += end - begin
        self._fetch(wants)

    def _stored(self, array: bytes) -> StoredRows:
        """Return a Zarr array, which is opened once."""
        kept = self.space.kept
        if array not in kept:
            kept[array] = StoredRows(array, f"worker {self.side.worker.name}")
        found: StoredRows = kept[array]
        return found

    def _fetch(self, wants: Sequence[Want]) -> None:
        fetch = self.exchange.fetch(wants)
        fetch.wait()
        self.received += fetch.nbytes

    # ---- the coordinator

    def _note(self) -> Mapping[str, Any]:
        note: Mapping[str, Any] | None = self.notes.get()
        if note is None or "stop" in note:
            raise RunCancelledError("this attempt is over")
        return note

    def _say(self, **news: Any) -> None:
        message = {"op": "fpmdask-news", "run": self.order["run"], "attempt": self.attempt, **news}
        send_to_scheduler(self.side.worker, message)
