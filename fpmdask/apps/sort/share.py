"""A worker's part in a sort: its runs before the exchange, its share of the result after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fpmdask.apps.sort.fetch import Fetcher, PeersMissing, Wanted, check_dtype
from fpmdask.apps.sort.kernel import slices
from fpmdask.apps.sort.order import merged_positions, sort_with_positions
from fpmdask.apps.sort.plan import INDEX, Piece, SortSpec
from fpmdask.apps.sort.splitters import place_of, sampled
from fpmdask.coordinator.steps import step
from fpmdask.coordinator.worker import RunSpace, WorkerSide, checked_chunk
from fpmdask.errors import PartitionError, RunCancelledError


@dataclass(frozen=True)
class Sorted:
    """Consecutive keys of the result."""

    keys: np.ndarray

    def chunk(self, bounds: Sequence[int]) -> np.ndarray:
        """Return them; they are one chunk."""
        return self.keys


def sort_share(order: Mapping[str, Any]) -> None:
    """Task: sort ``order["pieces"]``, tell samples and counts, take a share and sort that."""
    step(order, lambda side, space: _answer(side, space, order))


RUN = "fpmdask-run"
# Keys that are reversed at once.
REVERSED = 1 << 16


def run_key(attempt: int, number: int, what: str = "keys") -> tuple[str, int, int, str]:
    """Return the key under which a worker offers one of its sorted runs, or their positions."""
    return RUN, attempt, number, what


def _answer(side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        with Fetcher(side, order["run"], order["channels"]) as fetcher:
            return _Share(side, space, order, fetcher).sort()
    except PeersMissing as missing:
        return {"missing": str(missing)}
    except PartitionError as unusable:
        return {"unusable": str(unusable)}


class _Share:
    def __init__(
        self, side: WorkerSide, space: RunSpace, order: Mapping[str, Any], fetcher: Fetcher
    ) -> None:
        self.side, self.space, self.order, self.fetcher = side, space, order, fetcher
        self.spec = SortSpec.from_json(order["sort"])
        self.attempt = order["attempt"]
        self.notes = space.notes(f"attempt {self.attempt}")
        self.threads = max(1, side.worker.state.nthreads)
        self.positions: list[np.ndarray] = []
        self.received = 0
        self.seconds: dict[str, float] = {}
        self.cpu = time.process_time()

    def sort(self) -> Mapping[str, Any]:
        """Go through the steps, each at the coordinator's word."""
        self._forget_earlier()
        runs = self._runs()
        for number, run in enumerate(runs):
            self.space.offered[run_key(self.attempt, number)] = run.reshape(1, -1)
            if self.spec.index:
                key = run_key(self.attempt, number, "positions")
                self.space.offered[key] = self.positions[number].reshape(1, -1)
        turn, of = self.order["turn"]
        samples = [
            sampled(run, self.order["samples"], place_of(turn, of, n, len(runs)))
            for n, run in enumerate(runs)
        ]
        self._say(
            sizes=[run.size for run in runs],
            samples=[sample.tobytes() for sample in samples],
            seconds=self.seconds["sort"],
        )
        with ThreadPoolExecutor(self.threads, "fpmdask-sort") as threads:
            merging = []
            for part, pieces in self._cut(runs):
                taken = self._timed("exchange", partial(self._part, runs, pieces))
                merging.append((part, threads.submit(self._merged, *taken)))
            self._timed("merge", partial(self._keep, merging))
        return {
            "seconds": sum(self.seconds.values()),
            "phases": self.seconds,
            "nbytes_received": self.received,
            "cpu_seconds": {"process": time.process_time() - self.cpu},
            "keys_sorted": sum(run.size for run in runs),
            "nbytes_input": sum(run.nbytes for run in runs),
        }

    def _forget_earlier(self) -> None:
        """Drop what attempts left that were given up."""
        self.space.parts.clear()
        for key in [key for key in self.space.offered if key[0] == RUN]:
            del self.space.offered[key]

    # ---- before the exchange

    def _runs(self) -> list[np.ndarray]:
        """Return sorted runs of the pieces: of those that are here, then of those that come."""
        pieces = [Piece(*piece) for piece in self.order["pieces"]]
        own = self.side.worker.address
        here = [piece for piece in pieces if piece.owner == own]  # the first ones
        remote = [piece for piece in pieces if piece.owner != own]
        local = sum(piece.size for piece in here)
        total = local + sum(piece.size for piece in remote)
        keys: np.ndarray = self.space.scratch.take("sort.keys", total, self.spec.dtype)
        wanted: dict[str, list[Wanted]] = {}
        at = local
        for piece in remote:
            target = keys[at : at + piece.size]
            size = self.spec.sizes[piece.chunk]
            item = Wanted(self.spec.key(piece.chunk), piece.low, piece.high, (size,), target)
            wanted.setdefault(piece.owner, []).append(item)
            at += piece.size
        with ThreadPoolExecutor(max(2, self.threads), "fpmdask-sort") as threads:
            coming = threads.submit(self.fetcher.receive, wanted)
            runs = self._timed("sort", partial(self._copied, here, keys[:local]))
            late = slices(keys[local:], self.threads)
            if self.spec.index:
                self.positions = self._positions(pieces, [*runs, *late])
            at = len(runs)
            self._timed("sort", partial(self._sort, threads, runs, self.positions[:at]))
            self.received += self._timed("receive", coming.result)
            self._timed("sort", partial(self._sort, threads, late, self.positions[at:]))
        return [*runs, *late]

    def _copied(self, here: Sequence[Piece], keys: np.ndarray) -> list[np.ndarray]:
        """Fill `keys` with the pieces that are here; return it as unsorted runs."""
        chunks = self._chunks([self.spec.key(piece.chunk) for piece in here])
        at = 0
        for piece in here:
            chunk = chunks[self.spec.key(piece.chunk)]
            checked = checked_chunk(piece.chunk, chunk, (self.spec.sizes[piece.chunk],))
            check_dtype(chunk.dtype, self.spec.dtype)
            keys[at : at + piece.size] = checked[piece.low : piece.high]
            at += piece.size
        return slices(keys, self.threads)

    def _sort(
        self, threads: ThreadPoolExecutor, runs: list[np.ndarray], positions: list[np.ndarray]
    ) -> None:
        if self.spec.index:
            list(threads.map(sort_with_positions, runs, positions))
        else:
            list(threads.map(np.ndarray.sort, runs))

    def _positions(self, pieces: Sequence[Piece], runs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return where in the whole array the keys of each run are, before they are sorted."""
        total = sum(piece.size for piece in pieces)
        positions: np.ndarray = self.space.scratch.take("sort.positions", total, INDEX)
        offsets = [0, *accumulate(self.spec.sizes)]
        at = 0
        for piece in pieces:
            first = offsets[piece.chunk] + piece.low
            positions[at : at + piece.size] = np.arange(first, first + piece.size)
            at += piece.size
        edges = [0, *accumulate(run.size for run in runs)]
        return [positions[low:high] for low, high in pairwise(edges)]

    def _chunks(self, wanted: Sequence[Any]) -> dict[Any, Any]:
        async def look() -> dict[Any, Any]:
            data: Mapping[Any, Any] = self.side.worker.data
            return {key: data[key] for key in wanted if key in data}

        loop: Any = self.side.worker.loop
        found = asyncio.run_coroutine_threadsafe(look(), loop.asyncio_loop).result()
        if len(found) < len(set(wanted)):
            raise PeersMissing(self.side.worker.address)
        return found

    def _cut(self, runs: Sequence[np.ndarray]) -> Any:
        """Answer the coordinator's questions about the runs until it knows where to cut them.

        Returns what this worker is to take: (part, pieces of runs) for each of its parts.
        """
        while True:
            note = self._note()
            if "count" in note:
                tried = np.frombuffer(note["count"], self.spec.dtype)
                below, through = self._timed("count", partial(_counts, runs, tried))
                self._say(below=below, through=through)
            elif "between" in note:
                count, wanted = note["between"]
                inner = [
                    [sampled(run[low:high], count).tobytes() for low, high in places]
                    for run, places in zip(runs, wanted, strict=True)
                ]
                self._say(inner=inner)
            else:
                return note["exchange"]

    # ---- the exchange

    def _part(
        self, runs: Sequence[np.ndarray], pieces: Sequence[Sequence[Any]]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the keys of one part, unsorted, and their positions where these are wanted."""
        keys = self._taken(runs, pieces, "keys")
        return keys, self._taken(self.positions, pieces, "positions") if self.spec.index else None

    def _merged(self, keys: np.ndarray, positions: np.ndarray | None) -> np.ndarray:
        """Return a part of the result."""
        if positions is None:
            keys.sort()
        else:
            keys = merged_positions(keys, positions)
        if self.spec.descending:
            reverse(keys)
        return keys

    def _keep(self, merging: Sequence[tuple[int, Future[np.ndarray]]]) -> None:
        for part, made in merging:
            self.space.parts[part] = Sorted(made.result())

    def _taken(
        self, runs: Sequence[np.ndarray], pieces: Sequence[Sequence[Any]], what: str
    ) -> np.ndarray:
        """Return the keys of one part, unsorted, or their positions, from all workers' runs."""
        own = self.side.worker.address
        dtype = self.spec.dtype if what == "keys" else INDEX
        keys = np.empty(sum(high - low for *_, low, high, _ in pieces), dtype)
        wanted: dict[str, list[Wanted]] = {}
        local, at = [], 0
        for peer, number, low, high, length in pieces:
            target = keys[at : at + high - low]
            at += high - low
            if peer == own:
                local.append((target, runs[number][low:high]))
            elif low < high:
                key = run_key(self.attempt, number, what)
                wanted.setdefault(peer, []).append(Wanted(key, low, high, (1, length), target))
        for target, piece in local:
            target[...] = piece
        self.received += self.fetcher.receive(wanted)
        return keys

    # ---- the coordinator

    def _note(self) -> Mapping[str, Any]:
        note: Mapping[str, Any] | None = self.notes.get()
        if note is None or "stop" in note:
            raise RunCancelledError("this sort is not wanted any more")
        return note

    def _say(self, **news: Any) -> None:
        worker = self.side.worker
        message = {
            "op": "fpmdask-news",
            "run": self.order["run"],
            "attempt": self.attempt,
            **news,
        }
        worker.loop.add_callback(worker.batched_send, message)

    def _timed(self, phase: str, work: Any) -> Any:
        began = time.perf_counter()
        try:
            return work()
        finally:
            spent = time.perf_counter() - began
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent


def _counts(runs: Sequence[np.ndarray], tried: np.ndarray) -> list[list[bytes]]:
    """Return, packed, how many keys of each run are below each candidate, and how many through."""
    return [
        [np.searchsorted(run, tried, side).astype(np.int64).tobytes() for run in runs]
        for side in ("left", "right")
    ]


def reverse(keys: np.ndarray) -> None:
    """Reverse an array in place, in blocks: another copy of all might not fit.

    Examples
    --------
    >>> keys = np.arange(5)
    >>> reverse(keys)
    >>> keys
    array([4, 3, 2, 1, 0])
    """
    low, high = 0, keys.size
    while high - low > 1:
        count = min(REVERSED, (high - low) // 2)
        head = keys[low : low + count].copy()
        keys[low : low + count] = keys[high - count : high][::-1]
        keys[high - count : high] = head[::-1]
        low, high = low + count, high - count
