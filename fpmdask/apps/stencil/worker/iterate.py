"""The iterations on one worker: halos come from its neighbours, rows stay until shares change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from fpmdask.apps.stencil.block import Array, Block, Part, Update, UpdateFailed
from fpmdask.apps.stencil.history import History, instrumented_rows, is_off
from fpmdask.apps.stencil.load_checks import LoadChecks
from fpmdask.apps.stencil.neighbours import having, neighbours
from fpmdask.apps.stencil.sizes import in_core_nbytes
from fpmdask.apps.stencil.spec import ITERATE, StencilSpec
from fpmdask.apps.stencil.worker.inputs import Inputs
from fpmdask.apps.stencil.worker.streamed import OnDisk, Streamed, pieces, rows_of
from fpmdask.errors import KernelError, PartitionError, RunCancelledError, StorageError
from fpmdask.runtime.regions import common, whole
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.rows import Span
from fpmdask.runtime.worker.block_file import BlockFile, DiskFailed
from fpmdask.runtime.worker.fetch import FetchFailed, Want
from fpmdask.runtime.worker.reduce import AllReduce
from fpmdask.runtime.worker.rows_output import RowsOutput, StorageFailed
from fpmdask.runtime.worker.side import RunSpace, WorkerSide
from fpmdask.runtime.worker.space import Whole
from fpmdask.runtime.worker.steps import Commands, step
from fpmdask.timing import FunctionKernel
from fpmdask.timing.meter import Meter, NoRecorder

if TYPE_CHECKING:
    from fpmdask.mheta.instrument import Recorder
    from fpmdask.runtime.worker.checkpoints import Checkpoints


def iterate(order: Mapping[str, Any]) -> None:
    """Task: take part in all iterations."""
    step(ITERATE, order, lambda side, space: _iterate(side, space, order))


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
    except StorageFailed as failed:
        return {"failed": describe_error(failed.__cause__ or failed)}
    except StorageError as failed:
        return {"failed": describe_error(failed)}
    except PartitionError as unusable:
        return {"unusable": str(unusable)}
    except DiskFailed as failed:  # the others have no more room than before
        return {"unusable": f"on worker {side.worker.name} {failed.strerror}"}
    except FetchFailed as failed:
        iterating.end()
        return {"missing": failed.peers[0]}
    except BaseException:
        iterating.end()
        raise
    finally:
        iterating.closing.close()
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
        listening = f"attempt {self.attempt}"
        self.commands = Commands(side, space, ITERATE, order, listening, attempt=self.attempt)
        phases = ("loading", "computing", "io", "moving", "saving", "total")
        self.spent = dict.fromkeys(phases, 0.0)
        self.received = self.rows_computed = self.cycle = self.ahead = self.moved = 0
        self.every = 1
        self.result: list[Array] = []
        self.closing = ExitStack()
        self.blocks = 0  # into which the rows are cut; 0 where they are in memory
        self.recorder: Recorder | Meter | NoRecorder = NoRecorder()
        self.history: History | None = None
        self.moves = 0
        self.start = 0  # iterations that a checkpoint has
        self.load_checks = LoadChecks(self.tuning.trial_seconds, self.tuning.load_check_seconds)
        self.tries: bool = order["trial"]  # whether the speeds are still to be told
        self.asked = False  # whether the coordinator waits for a look
        self.byte_seconds = 0.0
        self.inputs = Inputs(space, self.spec, order, str(side.worker.name))
        self._gather([worker for worker, *_ in order["rows"]])
        self._heed(order)

    def _gather(self, team: Sequence[str]) -> None:
        """Have reductions, outputs and checkpoints be those of a team, in order of its ranks."""
        order, self.team = self.order, list(team)
        name, writer = f"stencil {self.attempt} {self.moved}", str(self.side.worker.name)
        self.reduce = AllReduce(self.exchange, name, team)
        self.checkpoints: Checkpoints | None = None
        if order["checkpoint"] is not None:
            from fpmdask.runtime.worker.checkpoints import Checkpoints

            self.checkpoints = Checkpoints(
                order["checkpoint"],
                self.attempt,
                self.own,
                team,
                self.reduce,
                self.space.cancelled,
                lambda message: self.commands.tell(warning=message),
            )
        self.output: RowsOutput | None = None
        if order["output"] is not None:
            self.output = RowsOutput(self.exchange, self.reduce, name, order["output"], writer)

    def _place(self, rows: Sequence[tuple[str, int, int]]) -> None:
        """Take note of who has which rows."""
        self.spans: dict[str, Span] = {worker: (low, high) for worker, low, high in rows}
        wraps = self.spec.boundary[0] == "periodic"
        found = neighbours(self.spans, self.own, wraps)
        self.above, self.below = found if self.spec.depth[0] else (None, None)
        self.ranks = {worker: rank for rank, worker in enumerate(having(self.spans))}

    def run(self) -> Mapping[str, Any]:
        """Iterate; the result is kept for the coordinator to publish."""
        began = time.perf_counter()
        if self.order["probe"]:
            self.commands.tell(probe=self._probe())
            if not self.order["joins"]:
                self._heed(self._command())
            began = time.perf_counter()
        done = self._join() if self.order["joins"] else self._begin(began)
        done = self._iterations(time.perf_counter(), done)
        if self.output is not None:
            self._save(done, last=True)
        else:
            self._keep_result(done)
        self.spent["total"] = time.perf_counter() - began
        return {
            "iterations": self.start + done,
            "rows_computed": self.rows_computed,
            "nbytes_received": self.received + self.inputs.nbytes_received,
            "blocks": self.blocks,
            "history": None if self.history is None else self.history.to_json(),
            **self.spent,
        }

    def _begin(self, began: float) -> int:
        """Load this worker's rows; return how many iterations are made, none."""
        if self.checkpoints is not None:
            self.start = self.checkpoints.find(self.spec.iterations)
            self.spec = replace(self.spec, iterations=self.spec.iterations - self.start)
            if self.spec.iterations < 2:  # nothing is left to be told of
                self.instruments = False
        if self.instruments:
            from fpmdask.mheta.instrument import Recorder

            self.recorder = Recorder(time.perf_counter)
        self.block = self._part()
        self.block.bring(0, self._load_checkpoint if self.start else self.inputs.fields)
        self.block.bring_args(self.inputs.args)
        self.spent["loading"] = time.perf_counter() - began
        self._brought(self.spent["loading"])
        return 0

    def _join(self) -> int:
        """Get this worker's rows from a team amid its iterations; return how many are made."""
        note = self._command()
        done: int = note["done"]
        self.spans = {worker: (low, high) for worker, low, high in note["before"]}
        self.moved = note["moved"]
        self.block = Block(self.spec, self.update, self.spans[self.own])
        if note["history"]:
            self._keep_history(done)
        self._go_on(done, note)
        return done

    def _brought(self, seconds: float) -> None:
        """Take note of how long it took to bring this worker's rows into their buffers."""
        low, high = self.spans[self.own]
        if nbytes := (high - low) * self.spec.row_nbytes:
            self.byte_seconds = seconds / nbytes

    def _heed(self, note: Mapping[str, Any]) -> None:
        """Take the coordinator's word for what comes first."""
        self._place(note["rows"])
        self.expected: float | None = note["expected"]
        self.instruments = bool(note["instrument"])
        self.planned: bool = note["history"]
        if self.planned and not self.instruments:
            self._keep_history(0)

    def _part(self) -> Block | Streamed:
        """Return room for this worker's rows: in memory, or on disk where that is too small."""
        low, high = span = self.spans[self.own]
        memory, prefetch = self.order["memory"], self.order["prefetch"]
        self.blocks, count = 0, 0
        band_nbytes = self.tuning.band_nbytes
        needed = in_core_nbytes(self.spec, high - low, prefetch=prefetch)
        if memory is not None and needed > memory:
            from fpmdask.apps.stencil.program import streamed_rows  # loads MHETA

            count = streamed_rows(self.spec, high - low, memory, prefetch=prefetch)
        if self.instruments:
            count = instrumented_rows(high - low, count)
        if not count:
            return Block(self.spec, self.update, span, self.every, band_nbytes)
        found = Streamed(
            self.spec,
            self.update,
            span,
            count,
            self._file(),
            prefetch=prefetch,
            threads=self.side.worker.state.nthreads,
            band_nbytes=band_nbytes,
        )
        self.blocks = len(found.blocks)
        return found

    def _keep_result(self, done: int) -> None:
        """Make the fields' rows a chunk of the result."""
        block, (low, high) = self.block, self.spans[self.own]
        if not self.result:
            sources: Sequence[Array | OnDisk] = block.sources(done)
            if isinstance(block, Block):
                self.result = self._unused(done)
            else:
                block.release()
                self.result = [np.empty(one.shape, one.dtype) for one in sources]
            for target, source in zip(self.result, sources, strict=True):
                for start, stop in pieces(0, high - low, self._piece(source)):
                    target[start:stop] = rows_of(source, start, stop)
        for number, value in enumerate(self.result):
            self.space.parts[number] = Whole(value)

    def _piece(self, source: Array | OnDisk) -> int:
        """Return how many rows are copied at once."""
        if isinstance(source, OnDisk):
            return source.rows_in(self.tuning.band_nbytes)
        return max(1, len(source))

    def _probe(self) -> float | None:
        """Return the seconds that a row takes, of a few that this worker would have; None of none.

        What a neighbour has is taken to be as the nearest row: for a time that is near enough.
        """
        low, high = self.spans[self.own]
        if low == high:
            return None
        part = Part(self.spec, self.update, (low, high), 1, self.tuning.band_nbytes)
        low, high = part.bands(low, high)[0]
        spec = replace(self.spec, boundary=("nearest", *self.spec.boundary[1:]))
        self.block = block = Block(spec, self.update, (low, high))
        block.open = False, False
        block.bring(0, self.inputs.fields)
        block.bring_args(self.inputs.args)
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

    def _iterations(self, began: float, first: int) -> int:
        """Make all of them but the `first` ones; return how many there were."""
        spec, told, load = self.spec, began, self.load_checks
        load.moved(first)
        before = self._so_far()
        for done in range(first + 1, spec.iterations + 1):
            count = self.start + done
            checks = spec.tolerance is not None and not count % spec.check_every
            change = self._timed(done, checks=checks and done < spec.iterations)
            if done == spec.iterations:
                break
            now = time.perf_counter()
            taken = now - began
            if now - told >= self.tuning.news_seconds and self.own == next(iter(self.spans)):
                told = now
                self.commands.tell(iterations=count)
            due = load.due(done) and (self.tries or self.order["load_checks"])
            if checks or due:
                change, seconds, asked = self.reduce([change, taken, float(self.asked)])
            if checks and change <= (spec.tolerance or 0.0):
                return done
            began += self._save(done)
            timed, goes_on = due and load.are_timed(done, seconds), self.moved
            asked = timed and bool(asked)
            if self.instruments:
                self._tell_measured(done)
            elif self.history is not None:
                self._judge(done, asked=asked)
            elif timed and (asked or self.tries):
                self._revise(done, before, taken)
            if self.moved != goes_on:
                load.moved(done)
            elif timed:
                load.begin(done)
            if load.since == done:
                before, began = self._so_far(), time.perf_counter()
        return spec.iterations

    def _timed(self, done: int, *, checks: bool) -> float:
        """Make one iteration as `_one`, and keep what it takes where that is wanted."""
        computed = self.spent["computing"]
        if isinstance(self.recorder, Meter):
            self.recorder.taken()
        change = self._one(done - 1, checks=checks)
        if isinstance(self.recorder, Meter) and self.history is not None:
            spent = self.recorder.taken()
            self.history.add({**spent, "compute": self.spent["computing"] - computed})
        return change

    def _save(self, done: int, *, last: bool = False) -> float:
        """Write the rows of now where that is due; return the seconds that this took."""
        began, iteration = time.perf_counter(), self.start + done
        if self.output is not None and (last or self.output.due(iteration)):
            self._say_phase("write" if last else "snapshot", iteration)
            self.output.save(self.spans, iteration, self._rows_now(done))
            self.commands.tell(saved=iteration)
            self._say_phase("write" if last else "snapshot", iteration, ended=True)
        if self.checkpoints is not None and not last and self.checkpoints.due(iteration):
            fields = len(self.spec.fields)
            self._say_phase("checkpoint", iteration)
            self.checkpoints.save(self.spans, iteration, fields, self._rows_now(done))
            self._say_phase("checkpoint", iteration, ended=True)
        seconds = time.perf_counter() - began
        self.spent["saving"] += seconds
        return seconds

    def _rows_now(self, done: int) -> Iterator[tuple[int, Sequence[Array]]]:
        """Yield the rows of now, in order, those on disk in pieces: the first one, and fields."""
        low, high = self.spans[self.own]
        sources = self.result or self.block.sources(done)
        for start, stop in pieces(0, high - low, min(map(self._piece, sources))):
            yield low + start, [rows_of(source, start, stop) for source in sources]

    def _so_far(self) -> tuple[float, int, float]:
        return self.spent["computing"], self.rows_computed, self.spent["io"]

    def _one(self, turn: int, *, checks: bool) -> float:
        """Make one iteration; return the largest change of a cell where that is looked at."""
        while (command := self.commands.poll()) is not None:  # it may have to stop
            self._heard(command)
        self.recorder.at(section=0, tile=0)
        block = self.block
        if isinstance(block, Streamed):
            return self._streamed(block, checks=checks)
        self._in_memory(block, turn)
        return block.change(self._each) if checks else 0.0

    def _streamed(self, block: Streamed, *, checks: bool) -> float:
        """Make one iteration out of core: exchange halos, then stream the rows."""
        changes = [0.0]
        # with at_once = 0 all are asked now, and this thread receives when it waits
        fetches = [
            (self.ranks[peer], self.exchange.fetch(wants, at_once=0))
            for peer, wants in self._halos(block, 0)
        ]
        for rank, fetch in fetches:
            with self.recorder.receive(rank) as receiving:
                fetch.wait()
                if receiving is not None:
                    receiving.nbytes = fetch.nbytes
            self.received += fetch.nbytes
        began, io = time.perf_counter(), block.io_seconds
        block.sweep(self._together, self.recorder, changes if checks else None)
        io = block.io_seconds - io
        self.spent["io"] += io
        self.spent["computing"] += time.perf_counter() - began - io
        self.rows_computed += block.high - block.low
        return float(np.max(changes))

    def _together(self, function: Callable[[Span], None], bands: Sequence[Span]) -> None:
        if self.space.cancelled.is_set():
            raise RunCancelledError("the run is over")
        if self.pool is None or len(bands) < 2:
            for band in bands:
                function(band)
        else:
            for _ in self.pool.map(function, bands):
                pass

    def _in_memory(self, block: Block, turn: int) -> None:
        """Make one iteration; with the first of a cycle halos are exchanged meanwhile."""
        depth, old = self.spec.depth[0], turn % 2
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
            self._compute(block, old, [(low, high)], into, fill=(low - above, high + below))
            return
        began = time.perf_counter()
        block.fill(block.buffers[old], block.low, block.high)
        self.spent["computing"] += time.perf_counter() - began
        # with at_once = 0 all are asked now, and this thread receives when it waits
        wants = [want for _, some in self._halos(block, old) for want in some]
        fetch = self.exchange.fetch(wants, at_once=0)
        inner = block.low + above, block.high - below
        if inner[0] < inner[1]:
            self._compute(block, old, [inner], into)
            rest = [(low, inner[0]), (inner[1], high)]
        else:
            rest = [(low, high)]
        with self.recorder.receive():
            fetch.wait()
        self.received += fetch.nbytes
        self._compute(block, old, rest, into)

    def _last(self, turn: int) -> Sequence[Array] | None:
        """Return where the last iteration goes: it is the result."""
        if turn + 1 < self.spec.iterations:
            return None
        self.result = self._unused(turn)
        return self.result

    def _unused(self, turn: int) -> list[Array]:
        """Return room for all rows in the memory of the buffer that an iteration writes to.

        New memory costs over 1 s per GB.
        """
        assert isinstance(self.block, Block)
        shape = (self.block.high - self.block.low, *self.spec.shape[1:])
        return [
            one.reshape(-1)[: math.prod(shape)].reshape(shape)
            for one in self.block.buffers[(turn + 1) % 2]
        ]

    def _compute(
        self,
        block: Block,
        old: int,
        spans: Sequence[Span],
        into: Sequence[Array] | None,
        fill: Span | None = None,
    ) -> None:
        began = time.perf_counter()
        if fill is not None:
            block.fill(block.buffers[old], *fill)
        for low, high in spans:
            block.compute(old, low, high, self._each, into)
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

    def _halos(self, block: Block | Streamed, old: int) -> list[tuple[str, list[Want]]]:
        """Offer the rows at both ends, which neighbours need; return what to ask them for."""
        self.cycle += 1
        found = []
        for side, peer in enumerate((self.above, self.below)):
            if peer is None:
                continue
            way, back = ("up", "down") if side else ("down", "up")
            edges, halos = block.edge(old, side), block.neighbours_rows(old, side)
            # Who has come so far has read the version before the last one. These rows stay as they
            # are, so that the part may be written to whenever they are read.
            with self.recorder.send(self.ranks[peer], sum(rows.nbytes for rows in edges)):
                for n, rows in enumerate(edges):
                    self.exchange.offer(self._halo(back, n), rows, self.cycle)
            wants = [
                Want(self._halo(way, n), whole(rows.shape), rows, [peer], self.cycle)
                for n, rows in enumerate(halos)
            ]
            found.append((peer, wants))
        return found

    def _halo(self, way: str, field: int, parity: int | None = None) -> tuple[Any, ...]:
        """Return the key of rows that go up, or down, to a neighbour in this cycle."""
        parity = self.cycle % 2 if parity is None else parity
        return ("halo", self.attempt, self.moved, way, field, parity)

    def _revise(self, done: int, before: tuple[float, int, float], seconds: float) -> None:
        """Tell how fast this worker is, and have rows move if the coordinator says so."""
        computing, rows, io = (a - b for a, b in zip(self._so_far(), before, strict=True))
        low, high = self.spans[self.own]
        turns = max(1, round(rows / (high - low))) if high > low else 1
        self.tries = False
        self.commands.tell(
            trial=self.start + done,
            row_seconds=computing / rows if rows else None,
            io_seconds=io / rows if rows else 0.0,
            exchange_seconds=(seconds - computing - io) / turns,
            byte_seconds=self.byte_seconds,
        )
        self._go_on(done, self._command())
        # where a tolerance may end it, moving pays only after some iterations
        self.tries = self.spec.tolerance is not None and self.order["again"] and not self.moves

    # ---- what MHETA wants to know

    def _keep_history(self, done: int) -> None:
        self.recorder, self.history = Meter(time.perf_counter), History(done)

    def _tell_measured(self, done: int) -> None:
        """Tell what the instrumented iteration has taken; rows move to where they are to stay."""
        # on a tenth of a core modules that few runs need cost 0.1 s each
        from fpmdask.runtime.worker.disk_benchmark import benchmark_disk
        from fpmdask.runtime.worker.message_benchmark import benchmark_messages

        assert not isinstance(self.recorder, NoRecorder)
        assert isinstance(self.block, Streamed)
        events = [
            {name: value for name, value in asdict(event).items() if value is not None}
            for event in self.recorder.events
        ]
        team, messages = list(self.ranks), []
        if self.spec.depth[0]:
            sizes = [1, max(2, sum(rows.nbytes for rows in self.block.edge(0, 0)))]
            messages = benchmark_messages(self.exchange, f"{self.attempt} {done}", team, sizes)
        seconds = sum(event["seconds"] for event in events if event["kind"] == "compute")
        low, high = self.spans[self.own]
        self.commands.tell(
            measured={
                "events": events,
                "benchmarks": {**benchmark_disk(self.block.file), "messages": messages},
            },
            row_seconds=max(seconds, 1e-9) / (high - low),
            done=self.start + done,
        )
        self.instruments = False
        self._keep_history(done)
        self._go_on(done, self._command())

    def _judge(self, done: int, *, asked: bool) -> None:
        """Have the coordinator look again where iterations take other times than they should."""
        history, again = self.history, asked
        assert history is not None
        if history.is_full and self.expected is not None:
            told = self.reduce([history.middle(), history.scatter()])
            again = again or is_off(float(told[0]), float(told[1]), self.expected)
        count = self.start + done
        # where a tolerance may end it, moving pays only after some iterations
        if self.spec.tolerance is not None and self.order["again"]:
            again = again or (not self.moves and not count & (count - 1))
        if again:
            facts = {"middle": history.middle(), "byte_seconds": self.byte_seconds}
            self.commands.tell(again=count, **facts, **history.mean())
            self._go_on(done, self._command())

    def _go_on(self, done: int, note: Mapping[str, Any]) -> None:
        """Do what the coordinator makes of it: rows move, or not."""
        began = time.perf_counter()
        self.asked, self.expected = False, note["expected"]
        if note["rows"] is not None:
            self.moves += note["moves"]
            self._move(done, note)
            if self.history is not None:
                self.history.begin()
        self.spent["moving"] += time.perf_counter() - began

    def _move(self, done: int, note: Mapping[str, Any]) -> None:
        """Have the rows of a new distribution, those of others straight from them.

        Where workers are out of core, some rows at once: holders read them from disk. Workers that
        have joined are members of the team from here on.
        """
        before, old, piece = self.spans, self.block, note["piece"]
        halos, reduce, output = [*self._keys("halo")], self.reduce, self.output
        self.exchange.know(note["channels"])
        self._place(note["rows"])
        self.every, self.ahead, self.cycle, self.moved = note["every"], 0, 0, self.moved + 1
        if self.team != [*self.spans]:
            self._gather([*self.spans])
        self._say_phase("move", self.moved)
        sources = self._old_sources(old, done)
        for n, source in enumerate(sources):
            self.exchange.offer(self._moved(n), source)
        self.block = self._part()

        def bring(targets: Sequence[Array], low: int, high: int) -> None:
            wants: list[Want] = []
            for peer, theirs in before.items():
                if (met := common((theirs,), ((low, high),))) is None:
                    continue
                for start, stop in pieces(*met[0], piece or high):
                    some = [target[start - low : stop - low] for target in targets]
                    start, stop = start - theirs[0], stop - theirs[0]
                    if peer == self.own:
                        for target, source in zip(some, sources, strict=True):
                            target[...] = rows_of(source, start, stop)
                        continue
                    for n, target in enumerate(some):
                        box = ((start, stop), *whole(target.shape[1:]))
                        wants.append(Want(self._moved(n), box, target, [peer]))
                    if piece is not None:
                        self._fetch(wants)
                        wants.clear()
            self._fetch(wants)

        began = time.perf_counter()
        self.block.bring(done, bring)
        self.block.bring_args(self.inputs.args)
        self._brought(time.perf_counter() - began)
        self.reduce([0.0])  # all have what they need: the old rows can go
        for key in (*self._keys("moved"), *halos):
            self.exchange.retire(key)
        if reduce is not self.reduce:
            reduce.retire()
            if output is not None:
                output.retire()
        if isinstance(old, Streamed):
            old.file.close()
        self._say_phase("move", self.moved, ended=True)

    def _old_sources(self, old: Block | Streamed, done: int) -> Sequence[Array | OnDisk]:
        """Return the rows so far, in as little memory as may be: new ones come beside them."""
        if isinstance(old, Streamed):
            old.release()
            return old.sources(done)
        low, high = self.spans[self.own]
        old.args, old.buffers[(done + 1) % 2] = [], []
        memory, now = self.order["memory"], old.buffers[done % 2]
        new = in_core_nbytes(self.spec, high - low, prefetch=self.order["prefetch"])
        if memory is None or new + sum(rows.nbytes for rows in now) <= memory:
            return old.sources(done)
        file, found = self._file(), []
        for rows in old.rows(now, old.low, old.high):
            found.append(OnDisk(old, file.reserve(rows.shape, rows.dtype)))
            found[-1].region.write((0, len(rows)), rows)
        now.clear()
        return found

    def _file(self) -> BlockFile:
        found = BlockFile(self.side.worker.local_directory)
        self.closing.callback(found.close)
        return found

    def _moved(self, field: int) -> tuple[Any, ...]:
        return ("moved", self.attempt, self.moved, field)

    def _keys(self, what: str) -> Iterator[tuple[Any, ...]]:
        """Return all that this worker may offer."""
        fields = range(len(self.spec.fields))
        if what == "moved":
            yield from map(self._moved, fields)
        else:
            for way, n, parity in product(("up", "down"), fields, range(2)):
                yield self._halo(way, n, parity)

    def end(self) -> None:
        """Have all that wait for this worker be refused: it goes on no further."""
        self.reduce.end()
        if self.output is not None:
            self.output.end()
        for key in (*self._keys("moved"), *self._keys("halo")):
            self.exchange.offers.end(key)

    def _load_checkpoint(self, targets: Sequence[Array], low: int, high: int) -> None:
        """Fill rows from the checkpoint that was found."""
        assert self.checkpoints is not None
        self.checkpoints.load(targets, low)

    def _fetch(self, wants: Sequence[Want]) -> None:
        fetch = self.exchange.fetch(wants)
        fetch.wait()
        self.received += fetch.nbytes

    # ---- the coordinator

    def _command(self) -> Mapping[str, Any]:
        """Return what the coordinator decides, which is waited for."""
        while (decision := self._heard(self.commands.get())) is None:
            pass
        return decision

    def _heard(self, command: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return a decision, None where it only asks for a load check."""
        if "load_check" in command:
            self.asked = True
            return None
        return command

    def _say_phase(self, phase: str, which: int, *, ended: bool = False) -> None:
        """Tell that something begins that is no iteration, or that this worker is through."""
        if ended or self.own == next(iter(self.spans)):
            self.commands.tell(phase=phase, which=which, ended=ended)
