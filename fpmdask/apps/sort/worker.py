"""A worker's part in a sort: its runs before the exchange, its share of the result after it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np

from fpmdask.apps.sort.kernel import slices
from fpmdask.apps.sort.spec import SORT
from fpmdask.errors import RunCancelledError
from fpmdask.runtime.placement import Piece
from fpmdask.runtime.regions import Box
from fpmdask.runtime.worker.channel import Scattered
from fpmdask.runtime.worker.fetch import FetchFailed, Want, check_safe
from fpmdask.runtime.worker.serving import checked_chunk
from fpmdask.runtime.worker.side import RunSpace, WorkerSide
from fpmdask.runtime.worker.steps import Commands, exchanging
from fpmdask.sorting import payload
from fpmdask.sorting.blocks import BlockedRun, Run, block_size, cut_up, fillings
from fpmdask.sorting.filling import Filling
from fpmdask.sorting.order import merged_positions, sort_with_positions
from fpmdask.sorting.spec import INDEX, SortSpec
from fpmdask.sorting.splitters import place_of, sampled
from fpmdask.timing.scratch import Scratch


@dataclass(frozen=True)
class Sorted:
    """Consecutive keys of the result, or the rows that came with them."""

    keys: np.ndarray
    ends: Sequence[Any] | None = None

    def chunk(self, bounds: Sequence[int]) -> np.ndarray:
        """Return them; they are one chunk."""
        return self.keys


@dataclass(frozen=True)
class Blocks:
    """A run in blocks, as it is offered to other workers."""

    run: BlockedRun

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of keys."""
        return (self.run.size,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the keys."""
        return self.run.sample.dtype

    def read(self, box: Box) -> Scattered:
        """Return keys between places where the run is cut, without a copy."""
        ((low, high),) = box
        return Scattered(self.run.raw(low, high), self.dtype)


def sort_share(order: Mapping[str, Any]) -> None:
    """Task: sort ``order["pieces"]``, tell samples and counts, take a share and sort that."""
    exchanging(SORT, order, lambda side, space: _Share(side, space, order).sort())


T = TypeVar("T")
# What sorts, as many threads as the worker has, and what waits for others meanwhile.
Pools = tuple[ThreadPoolExecutor, ThreadPoolExecutor]

RUN = "fpmdask-run"
# Keys that are reversed at once.
REVERSED = 1 << 16
# What others are being sent comes before putting in order what is here.
GIVE_WAY_SECONDS = 0.1


def run_key(attempt: int, number: int, what: str = "keys") -> tuple[str, int, int, str]:
    """Return the key under which a worker offers one of its runs, or their positions."""
    return RUN, attempt, number, what


def named(columns: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return columns by what they are called where they are offered."""
    return {f"column {n}": column for n, column in enumerate(columns)}


class _Share:
    def __init__(self, side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> None:
        self.side, self.space, self.order = side, space, order
        self.spec, self.tuning = SortSpec.from_json(order["sort"]), space.tuning.sort
        self.attempt = order["attempt"]
        listening = f"attempt {self.attempt}"
        self.commands = Commands(side, space, SORT, order, listening, attempt=self.attempt)
        self.threads = max(1, side.worker.state.nthreads)
        self.positions: list[np.ndarray] = []
        self.columns: list[list[np.ndarray]] = []  # of each run, where keys have a payload
        self.form: Any = None  # what tells of rows of one prefix which comes first
        self.scratch = space.scratch
        self.received = 0
        self.seconds: dict[str, float] = {}
        self.busy: list[float] = []  # seconds of what threads did in this step
        self.working: list[tuple[float, float]] = []  # all of these, the process's CPU-seconds
        self.cpu = time.process_time()

    def sort(self) -> Mapping[str, Any]:
        """Go through the steps, each at the coordinator's word."""
        self._forget_earlier()
        runs = self._runs()
        for number, run in enumerate(runs):
            offered = Blocks(run) if isinstance(run, BlockedRun) else run.keys
            offer = self.space.exchange.offer
            offer(run_key(self.attempt, number), offered)
            for what, along in self._along(number).items():
                offer(run_key(self.attempt, number, what), along)
        in_order = time.process_time()
        samples = self._timed("sample", partial(self._sampled, runs))
        self.commands.tell(
            sizes=[run.size for run in runs],
            samples=samples,
            noise=[run.noise for run in runs],
            seconds=self.seconds["sort"],
        )
        with ThreadPoolExecutor(self.threads, "fpmdask-sort") as threads:
            try:
                wanted = self._cut(runs, threads)
                began = time.perf_counter()
                making = [(part, self._part(threads, runs, pieces)) for part, pieces in wanted]
                parts = {part: made.result() for part, made in making}
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
            self.space.parts.update(parts)
            self._worked("merge", "exchange", began)
        return {
            "ends": {part: made.ends for part, made in parts.items()},
            "seconds": sum(self.seconds.values()),
            "phases": self.seconds,
            "nbytes_received": self.received,
            "cpu_seconds": {
                "process": time.process_time() - self.cpu,
                "exchange": time.process_time() - in_order,  # and what is before and after it
                "working": sum(cpu for _, cpu in self.working),
            },
            "working_seconds": sum(seconds for seconds, _ in self.working),  # threads add up
            "keys_sorted": sum(run.size for run in runs),
            "nbytes_input": sum(run.nbytes for run in runs),
        }

    def _forget_earlier(self) -> None:
        """Drop what attempts left that were given up."""
        self.space.parts.clear()
        for key in self.space.offers:
            if key[0] == RUN:
                self.space.exchange.retire(key)

    # ---- before the exchange

    def _runs(self) -> list[Run]:
        """Return runs of the pieces that this worker is to put in order."""
        pieces = [Piece(*piece) for piece in self.order["pieces"]]
        if self.spec.payload is not None:
            of_rows = partial(self._runs_of_rows, self.spec.payload, pieces)
            made: list[Run] = self._timed("sort", of_rows)
            return made
        total = sum(piece.size for piece in pieces)
        keys: np.ndarray = self.scratch.take("sort.keys", total, self.spec.dtype)
        made_of = self._with_positions if self.spec.index else self._in_blocks
        with (
            ThreadPoolExecutor(self.threads, "fpmdask-sort") as threads,
            ThreadPoolExecutor(1, "fpmdask-receive") as receiving,
        ):
            return made_of((threads, receiving), pieces, keys)

    def _in_blocks(self, pools: Pools, pieces: Sequence[Piece], keys: np.ndarray) -> list[Run]:
        """Return one run: its blocks are sorted while they are in the cache.

        Those that come from others are once they are here, and a thread is through with its own.
        """
        began = time.perf_counter()
        size = block_size(keys.itemsize, self.order["parts"], self.tuning.block_nbytes)
        wanted = self._wanted(pieces, keys, size)
        threads, receiving = pools
        here = self._here(pieces)
        at = sum(piece.size for piece in here)
        own = [*fillings(here, cut_up(keys[:at], size))]
        late: list[np.ndarray] = []
        coming: dict[str, list[tuple[int, int]]] = {}
        for peer, items in wanted.items():
            end = at + sum(item.out.size for item in items)
            blocks = cut_up(keys[at:end], size)
            coming[peer] = [(len(late) + n, block.size) for n, block in enumerate(blocks)]
            late += blocks
            at = end
        sorting = []

        def put_in_order(block: np.ndarray, arrays: Sequence[np.ndarray] = ()) -> None:
            if arrays:
                np.concatenate(arrays, out=block)
            block.sort()

        def some(turn: int) -> None:
            for block, arrays in own[turn :: self.threads]:
                self._at_work(put_in_order, block, arrays)

        def complete(block: int) -> None:
            sorting.append(threads.submit(self._at_work, put_in_order, late[block]))

        receiving_all = receiving.submit(self._fetched, wanted, Filling(coming, complete).add)
        list(threads.map(some, range(self.threads)))
        self.received += receiving_all.result()
        for each in sorting:
            each.result()
        self._worked("sort", "hand over", began)
        # samples and counts are those of one run at least
        return [BlockedRun([*(block for block, _ in own), *late] or [keys], self.tuning)]

    def _with_positions(self, pools: Pools, pieces: Sequence[Piece], keys: np.ndarray) -> list[Run]:
        """Return runs in order: of the pieces that are here, then of those that come."""
        threads, receiving = pools
        wanted = self._wanted(pieces, keys, keys.size or 1)
        coming = receiving.submit(self._fetched, wanted)

        def copied() -> int:
            at = 0
            for piece in self._here(pieces):
                keys[at : at + piece.size] = piece
                at += piece.size
            return at

        local = self._timed("sort", copied)
        unsorted, late = (slices(some, self.threads) for some in (keys[:local], keys[local:]))
        self.positions = self._positions(pieces, [*unsorted, *late])

        def put_in_order(some: Sequence[np.ndarray], positions: Sequence[np.ndarray]) -> None:
            list(threads.map(sort_with_positions, some, positions))

        first = len(unsorted)
        self._timed("sort", partial(put_in_order, unsorted, self.positions[:first]))
        self.received += self._timed("hand over", coming.result)
        self._timed("sort", partial(put_in_order, late, self.positions[first:]))
        return [*map(Run, [*unsorted, *late])]

    def _here(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """Return the pieces of chunks that are here; they are the first ones."""
        own = self.side.worker.address
        here = [piece for piece in pieces if piece.owner == own]
        chunks = self._chunks([self.spec.key(piece.chunk) for piece in here])
        found = []
        for piece in here:
            chunk = chunks[self.spec.key(piece.chunk)]
            checked = checked_chunk(piece.chunk, chunk, (self.spec.sizes[piece.chunk],))
            check_safe(chunk.dtype, self.spec.dtype)
            found.append(checked[piece.low : piece.high])
        return found

    def _fetched(
        self,
        wanted: Mapping[str, Sequence[Want]],
        filled: Callable[[str, int], None] = lambda peer, keys: None,
    ) -> int:
        """Fill the targets of what is wanted from each peer; return the bytes that came.

        `filled` hears of each, in several threads, how long it is.
        """
        wants = [want for some in wanted.values() for want in some]
        fetch = self.space.exchange.fetch(
            wants, lambda want: filled(want.holders[0], want.out.size)
        )
        fetch.wait()
        return fetch.nbytes

    def _wanted(
        self, pieces: Sequence[Piece], keys: np.ndarray, most: int
    ) -> dict[str, list[Want]]:
        """Return what is to come from other workers, no more than so many keys at once."""
        wanted: dict[str, list[Want]] = {}
        at = 0
        for piece in pieces:
            for low in range(piece.low, piece.high, most):
                high = min(low + most, piece.high)
                target = keys[at : at + high - low]
                at += high - low
                if piece.owner != self.side.worker.address:
                    shape = (self.spec.sizes[piece.chunk],)
                    key = self.spec.key(piece.chunk)
                    item = Want(key, ((low, high),), target, (piece.owner,), shape=shape)
                    wanted.setdefault(piece.owner, []).append(item)
        return wanted

    def _runs_of_rows(self, what: payload.Payload, pieces: Sequence[Piece]) -> list[Run]:
        """Return runs of the rows of whole chunks, all of which are here.

        Keys are made, sorted, and their rows put in order, run by run: what that takes on the way
        stays in the cache, and in memory that is used again.
        """
        runs: list[Run] = []
        work = []
        for piece in pieces:
            key = self.spec.key(piece.chunk)
            numbers = [n for n in what.bundles[piece.chunk] if what.sizes[n]]
            bundle = [what.partitions[n] for n in numbers]
            here = self._chunks([key, *bundle])
            frames = [here[one] for one in bundle]
            self.form = here[key]
            encoder = self.form.encoder(numbers, frames)
            columns = payload.columns_of(frames)
            keys = np.empty(piece.size, self.spec.dtype)
            made = [np.empty(piece.size, word) for word in what.words]
            for low, high in pairwise(payload.run_edges(piece.size, self.tuning.run_bits)):
                own = keys[low:high]
                along = [column[low:high] for column in made]
                runs.append(Run(own))
                self.columns.append(along)
                work.append((encoder, columns, low, own, along))

        def some(turn: int) -> None:
            take, block = Scratch().take, self.tuning.row_block
            for encoder, columns, low, own, along in work[turn :: self.threads]:
                encoder.fill(low, own)
                own.sort()
                payload.gathered(what, columns, low, own, along, take, block=block)

        with ThreadPoolExecutor(self.threads, "fpmdask-sort") as threads:
            list(threads.map(some, range(self.threads)))
        # samples and counts are those of one run at least
        return runs or [Run(np.empty(0, self.spec.dtype))]

    def _along(self, run: int) -> dict[str, np.ndarray]:
        """Return what goes with the keys of one of this worker's runs."""
        if self.spec.index:
            return {"positions": self.positions[run]}
        if not self.columns:
            return {}
        return named(self.columns[run])

    def _positions(self, pieces: Sequence[Piece], runs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return where in the whole array the keys of each run are, before they are sorted."""
        total = sum(piece.size for piece in pieces)
        positions: np.ndarray = self.scratch.take("sort.positions", total, INDEX)
        offsets = [0, *accumulate(self.spec.sizes)]
        at = 0
        for piece in pieces:
            first = offsets[piece.chunk] + piece.low
            positions[at : at + piece.size] = np.arange(first, first + piece.size)
            at += piece.size
        edges = [0, *accumulate(run.size for run in runs)]
        return [positions[low:high] for low, high in pairwise(edges)]

    def _sampled(self, runs: Sequence[Run]) -> list[bytes]:
        """Return samples of each run, packed."""
        turn, of = self.order["turn"]
        return [
            sampled(run.sample, self.order["samples"], place_of(turn, of, n, len(runs))).tobytes()
            for n, run in enumerate(runs)
        ]

    def _chunks(self, wanted: Sequence[Any]) -> dict[Any, Any]:
        async def look() -> dict[Any, Any]:
            data: Mapping[Any, Any] = self.side.worker.data
            return {key: data[key] for key in wanted if key in data}

        loop: Any = self.side.worker.loop
        found = asyncio.run_coroutine_threadsafe(look(), loop.asyncio_loop).result()
        if len(found) < len(set(wanted)):
            own = self.side.worker.address
            raise FetchFailed(dict.fromkeys({*wanted} - found.keys(), (own, "has not got it")))
        return found

    def _cut(self, runs: Sequence[Run], threads: ThreadPoolExecutor) -> Any:
        """Answer the coordinator's questions about the runs until it knows where to cut them.

        Returns what this worker is to take: (part, pieces of runs) for each of its parts.
        """
        while True:
            command = self.commands.get()
            if "count" in command:
                tried = np.frombuffer(command["count"], self.spec.dtype)
                below, through = self._timed("count", partial(_counts, threads, runs, tried))
                self.commands.tell(below=below, through=through)
            elif "between" in command:
                count, wanted = command["between"]
                inner = self._timed("count", partial(_inner, runs, count, wanted))
                self.commands.tell(inner=inner)
            elif "beside" in command:
                pairs = zip(runs, command["beside"], strict=True)
                self.commands.tell(beside=[_beside(run.keys, places) for run, places in pairs])
            else:
                return command["exchange"]

    # ---- the exchange

    def _part(
        self,
        threads: ThreadPoolExecutor,
        runs: Sequence[Run],
        buckets: Sequence[Sequence[Sequence[Any]]],
    ) -> Future[Sorted]:
        """Receive one part; return it as it will be once it is in order."""
        if self.spec.bucket(self.tuning) is not None:
            return self._in_buckets(threads, runs, buckets)
        what = self.spec.payload
        (pieces,) = buckets
        size = sum(high - low for *_, low, high, _ in pieces)
        if what is not None:
            of = self.order["runs"]
            sizes = [(*of[peer][number], high - low) for peer, number, low, high, _ in pieces]
            rows = payload.Part(what, self.spec.dtype, size, self.tuning)
            self._take(runs, pieces, rows.keys, named(rows.columns))
            return threads.submit(self._at_work, self._in_order, rows, sizes)
        keys, positions = np.empty(size, self.spec.dtype), np.empty(size, INDEX)
        self._take(runs, pieces, keys, {"positions": positions})
        return threads.submit(self._at_work, self._merged, keys, positions)

    def _in_buckets(
        self,
        threads: ThreadPoolExecutor,
        runs: Sequence[Run],
        buckets: Sequence[Sequence[Sequence[Any]]],
    ) -> Future[Sorted]:
        """Receive one part, and put each of its buckets in order as soon as it is there."""
        sizes = [sum(high - low for *_, low, high, _ in bucket) for bucket in buckets]
        keys = np.empty(sum(sizes), self.spec.dtype)
        targets = [keys[low:high] for low, high in pairwise([0, *accumulate(sizes)])]
        own = []
        wanted: dict[str, list[Want]] = defaultdict(list)
        coming: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for n, (bucket, target) in enumerate(zip(buckets, targets, strict=True)):
            mine, others = self._sorted_out(bucket, {"keys": target})
            own.append(mine)
            for peer, items in others.items():
                wanted[peer] += items
                coming[peer] += [(n, item.out.size) for item in items]

        def put_in_order(n: int) -> None:
            for number, low, high, here in own[n]:
                runs[number].fill(low, high, targets[n][here])
            targets[n].sort()

        def work(n: int) -> None:
            channels = self.side.channels
            # with more threads there is a core left to send
            if self.threads == 1 and channels is not None and not self.space.cancelled.is_set():
                channels.give_way(GIVE_WAY_SECONDS)
            self._at_work(put_in_order, n)

        sorting = []

        def complete(n: int) -> None:
            sorting.append(threads.submit(work, n))

        from_others = {n for into in coming.values() for n, _ in into}
        for n in set(range(len(buckets))) - from_others:
            complete(n)
        self.received += self._fetched(wanted, Filling(coming, complete).add)

        def part() -> Sorted:
            for each in sorting:  # they began before
                each.result()
            return self._at_work(self._finished, keys, ends_of(keys))

        return threads.submit(part)

    def _merged(self, keys: np.ndarray, positions: np.ndarray) -> Sorted:
        """Return a part of the result, of positions."""
        return self._finished(merged_positions(keys, positions), None)

    def _finished(self, keys: np.ndarray, ends: Any) -> Sorted:
        """Return a part of the result that is in ascending order."""
        if self.spec.descending:
            reverse(keys)
        return Sorted(keys, ends)

    def _in_order(self, rows: payload.Part, pieces: Sequence[tuple[int, int, int]]) -> Sorted:
        """Return a part of the result, of rows."""
        rows.keys.sort()
        ends = (rows.keys[:1].tobytes(), rows.keys[-1:].tobytes()) if rows.keys.size else None
        part = rows.in_order(pieces)
        if self.form is not None:  # otherwise whoever makes a frame of the part does so
            self.form.untie(part, rows.keys.size)
        return Sorted(part, ends)

    def _take(
        self,
        runs: Sequence[Run],
        pieces: Sequence[Sequence[Any]],
        keys: np.ndarray,
        along: Mapping[str, np.ndarray],
    ) -> None:
        """Fill `keys`, and arrays of what goes with them, with pieces of all workers' runs."""
        targets = {"keys": keys, **along}
        own, wanted = self._sorted_out(pieces, targets)
        for number, low, high, here in own:
            runs[number].fill(low, high, keys[here])
            for what, mine in self._along(number).items():
                targets[what][here] = mine[low:high]
        self.received += self._fetched(wanted)

    def _sorted_out(
        self, pieces: Sequence[Sequence[Any]], targets: Mapping[str, np.ndarray]
    ) -> tuple[list[tuple[int, int, int, slice]], dict[str, list[Want]]]:
        """Return (run, low, high, place) of pieces that are here, and what is wanted of others."""
        own = []
        wanted: dict[str, list[Want]] = {}
        at = 0
        for peer, number, low, high, _ in pieces:
            here = slice(at, at + high - low)
            at = here.stop
            if peer == self.side.worker.address:
                own.append((number, low, high, here))
                continue
            for what, target in targets.items():
                key = run_key(self.attempt, number, what)
                item = Want(key, ((low, high),), target[here], (peer,))
                wanted.setdefault(peer, []).append(item)
        return own, wanted

    # ---- what it takes

    def _at_work(self, work: Callable[..., T], *args: Any) -> T:
        """Do something in a thread; how long it takes counts for `_worked`."""
        if self.space.cancelled.is_set():
            raise RunCancelledError("this sort is not wanted any more")
        began, cpu = time.perf_counter(), time.process_time()
        try:
            return work(*args)
        finally:
            seconds = time.perf_counter() - began
            self.busy.append(seconds)
            self.working.append((seconds, time.process_time() - cpu))

    def _worked(self, working: str, waiting: str, began: float) -> None:
        """Note what of a step was work of the threads, and what was not."""
        seconds = sum(self.busy) / max(1, min(self.threads, len(self.busy)))
        self.seconds[working] = seconds
        self.seconds[waiting] = max(0.0, time.perf_counter() - began - seconds)
        self.busy.clear()

    def _timed(self, phase: str, work: Any) -> Any:
        began = time.perf_counter()
        try:
            return work()
        finally:
            spent = time.perf_counter() - began
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent


def _counts(
    threads: ThreadPoolExecutor, runs: Sequence[Run], tried: np.ndarray
) -> list[list[bytes]]:
    """Return, packed, how many keys of each run are below each candidate, and how many through."""

    def counted(run: Run) -> tuple[bytes, bytes]:
        below, through = run.counted(tried)
        return below.astype(np.int64).tobytes(), through.astype(np.int64).tobytes()

    return [[*side] for side in zip(*threads.map(counted, runs), strict=True)]


def _inner(
    runs: Sequence[Run], count: int, places: Sequence[Sequence[tuple[int, int]]]
) -> list[list[bytes]]:
    """Return, packed, keys of each run from between its places, for each open end."""
    return [
        [sampled(run.between(low, high), count).tobytes() for low, high in own]
        for run, own in zip(runs, places, strict=True)
    ]


def _beside(run: np.ndarray, places: Sequence[int]) -> tuple[bytes, bytes]:
    """Return, packed, the keys before and after places in a run; 0 and the largest for none."""
    at = np.array(places, np.intp)
    before, after = np.zeros(at.size, np.uint64), np.full(at.size, ~np.uint64(0))
    before[at > 0] = run[at[at > 0] - 1]
    after[at < run.size] = run[at[at < run.size]]
    return before.tobytes(), after.tobytes()


def ends_of(keys: np.ndarray) -> tuple[bytes, bytes, int, int] | None:
    """Return the first and the last of sorted keys, packed, and how many there are of each.

    Both numbers are those of all keys where these are equal. None where there are no keys.

    Examples
    --------
    >>> ends_of(np.array([1, 1, 2, 3], np.int8))
    (b'\\x01', b'\\x03', 2, 1)
    """
    if not keys.size:
        return None
    first, last = keys[:1], keys[-1:]
    of_first = int(np.searchsorted(keys, first, "right")[0])
    of_last = keys.size - int(np.searchsorted(keys, last, "left")[0])
    return first.tobytes(), last.tobytes(), of_first, of_last


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
