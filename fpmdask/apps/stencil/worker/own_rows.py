"""One worker's rows: where they are, in memory or on disk, how they come there and move.

Runs in the thread of a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpmdask.apps.stencil.block import Array, Block, Bring, Update
from fpmdask.apps.stencil.call_costs import CallCosts
from fpmdask.apps.stencil.sizes import in_core_nbytes
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.apps.stencil.worker.counters import Counters
from fpmdask.apps.stencil.worker.halos import Halos
from fpmdask.apps.stencil.worker.kept import Kept, Survivors, brought
from fpmdask.apps.stencil.worker.streamed import OnDisk, Streamed
from fpmdask.apps.stencil.worker.sweeps import InCore, OutOfCore, Threads
from fpmdask.apps.stencil.worker.team import Team
from fpmdask.runtime.rows import in_pieces
from fpmdask.runtime.worker.block_file import BlockFile
from fpmdask.runtime.worker.heap import given_back
from fpmdask.runtime.worker.offers import rows_of
from fpmdask.tuning import StencilTuning


@dataclass(frozen=True)
class Means:
    """What a worker has for its rows.

    Parameters
    ----------
    update
        The user's function.
    memory
        Bytes; None: no limit.
    prefetch
        Whether the next block is read while one is computed, out of core.
    folder
        On its disk.
    threads, counters
        Of its step.
    tuning
        The scheduler's.
    """

    update: Update
    memory: float | None
    prefetch: bool
    folder: str
    threads: Threads
    counters: Counters
    tuning: StencilTuning


class OwnRows:
    """The rows that this worker has now.

    Parameters
    ----------
    spec, means, team
        What is iterated, with what, by whom.
    survivors
        What this worker keeps for later attempts.

    Attributes
    ----------
    spec : StencilSpec
        With the iterations that this attempt makes.
    survivors : Survivors
    sweeps : InCore or OutOfCore
        The rows, and what iterates them.
    every : int
        Iterations from one exchange of halos to the next, of rows that are loaded from now on.
    byte_seconds : float
        What it took to bring a byte of them into its buffers.
    """

    sweeps: InCore | OutOfCore

    def __init__(self, spec: StencilSpec, means: Means, team: Team, survivors: Survivors) -> None:
        self.spec, self._means, self._team, self.survivors = spec, means, team, survivors
        self._halos = Halos(team, len(spec.fields))
        self._files: list[BlockFile] = []
        self.every, self.byte_seconds = 1, 0.0

    def load(self, fields: Bring, args: Bring, unit: int) -> None:
        """Bring the rows that this worker begins with; so many of an input are read at once."""
        with self._means.counters.timed("loading"):
            self._make()
            self._bring(fields, args, unit)

    def join(self) -> None:
        """Have no rows yet, in a team whose rows are elsewhere."""
        block = Block(self.spec, self._means.update, self._team.span)
        self.sweeps = self._in_core(block)

    def _bring(self, fields: Bring, args: Bring, unit: int) -> None:
        began, block = time.perf_counter(), self.sweeps.block
        with given_back() if isinstance(block, Streamed) else nullcontext():
            block.bring(fields, unit)
            block.bring_args(args, unit)
        low, high = self._team.span
        if nbytes := (high - low) * self.spec.row_nbytes:
            self.byte_seconds = (time.perf_counter() - began) / nbytes

    def _make(self) -> None:
        """Make room for this worker's rows: in memory, or on disk where that is too small."""
        means, spec, (low, high) = self._means, self.spec, self._team.span
        means.counters.call_costs, count = CallCosts(), 0
        needed = in_core_nbytes(spec, high - low, prefetch=means.prefetch)
        if means.memory is not None and needed > means.memory:
            from fpmdask.apps.stencil.program import streamed_rows  # loads MHETA

            count = streamed_rows(spec, high - low, means.memory, prefetch=means.prefetch)
        band_nbytes = means.tuning.band_nbytes
        if not count:
            block = Block(spec, means.update, (low, high), self.every, band_nbytes)
            self.sweeps = self._in_core(block)
            return
        with given_back():  # its buffers are not kept once it lets go of them
            streamed = Streamed(
                spec,
                means.update,
                (low, high),
                count,
                self._file(),
                prefetch=means.prefetch,
                band_nbytes=band_nbytes,
            )
        self.sweeps = OutOfCore(streamed, self._halos, means.threads, means.counters)

    def _in_core(self, block: Block) -> InCore:
        means = self._means
        return InCore(
            block, self._halos, means.threads, means.counters, self.every, self.spec.iterations
        )

    def move(self, iteration: int, note: Mapping[str, Any], args: Bring) -> bool:
        """Have the rows of a new distribution, those of others straight from them.

        Where workers are out of core, some rows at once: holders read them from disk. Workers that
        have joined are members of the team from here on; then those that were there before keep
        the rows that they had.

        Parameters
        ----------
        iteration
            After which this is.

        Returns
        -------
        bool
            Whether the team is another one.
        """
        team, old, before, halos = self._team, self.sweeps.block, self._team.spans, self._halos
        retired, reduce = [*halos.keys()], team.reduce
        team.move(note["rows"], note["channels"])
        halos.moved()
        joined, self.every = reduce is not team.reduce, note["every"]
        team.say_phase("move", team.moved)
        sources = self._old_sources(old)
        for n, source in enumerate(sources):
            team.exchange.offer(self._key(n), source)
        files = {one.file for one in sources if isinstance(one, OnDisk)}
        keeps = joined and before[team.own][0] < before[team.own][1]
        if keeps:  # from here on: who joins may be lost while rows move
            self.survivors.keep(Kept(iteration, before[team.own], sources))
            self._files = [file for file in self._files if file not in files]
        self._make()
        self._bring(brought(team, before, sources, self._key, note["piece"]), args, 1)
        team.reduce([0.0])  # all have what they need: the old rows can go
        for key in (*self._keys(), *retired):
            team.exchange.retire(key)
        if joined:
            reduce.retire()
        for file in files if not keeps else ():  # else its last user closes it
            self._files.remove(file)
            file.close()
        team.say_phase("move", team.moved, ended=True)
        return joined

    def _old_sources(self, old: Block | Streamed) -> Sequence[Array | OnDisk]:
        """Return the rows so far, in as little memory as may be: new ones come beside them."""
        sources: Sequence[Array | OnDisk] = old.sources()
        if isinstance(old, Streamed):
            old.release()
            return sources
        low, high = self._team.span
        memory, now = self._means.memory, old.rows(old.fields, old.low, old.high)
        old.release()
        beside = sum(rows.nbytes for rows in now)
        if (kept := self.survivors.kept) is not None:
            beside += kept.nbytes
        new = in_core_nbytes(self.spec, high - low, prefetch=self._means.prefetch)
        if memory is None or new + beside <= memory:
            return sources
        file, found = self._file(), []
        for rows in now:
            found.append(OnDisk(old, file, file.reserve(rows.shape, rows.dtype)))
            found[-1].region.write((0, len(rows)), rows)
        return found

    def _file(self) -> BlockFile:
        self._files.append(BlockFile(self._means.folder))
        return self._files[-1]

    def _key(self, field: int) -> tuple[Any, ...]:
        return ("moved", self._team.attempt, self._team.moved, field)

    def _keys(self) -> Iterator[tuple[Any, ...]]:
        return map(self._key, range(len(self.spec.fields)))

    def now(self) -> Iterator[tuple[int, Sequence[Array]]]:
        """Yield the rows of now, in order, those on disk in pieces: the first one, and fields."""
        low, high = self._team.span
        sources = self.sweeps.now()
        for start, stop in in_pieces(0, high - low, min(map(self._piece, sources))):
            yield low + start, [rows_of(source, start, stop) for source in sources]

    def result(self) -> list[Array]:
        """Return the fields' rows, all in memory, after the last iteration."""
        nbytes = max(1, self.spec.row_nbytes)
        return self.sweeps.result(max(1, self._means.tuning.band_nbytes // nbytes))

    def _piece(self, source: Array | OnDisk) -> int:
        """Return how many rows are copied at once."""
        if isinstance(source, np.ndarray):
            return max(1, len(source))
        return source.rows_in(self._means.tuning.band_nbytes)

    def end(self) -> None:
        """Have all that wait for this worker be refused: it goes on no further."""
        kept = self.survivors.keys(self._team, len(self.spec.fields))
        self._team.end((*self._keys(), *self._halos.keys(), *kept))

    def close(self) -> None:
        """Give the disk's room back."""
        for file in self._files:
            file.close()
