"""One attempt to sort an array: runs, splitters, exchange, and the result's chunks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np

from fpmdask.apps.sort.plan import check_fits, exchange, recipe
from fpmdask.apps.sort.spec import SORT
from fpmdask.runtime.coordinator.chunks import (
    check_reachable,
    free_nbytes_of,
    publish,
    wait_for_chunks,
)
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.speeds import Speeds
from fpmdask.runtime.coordinator.team import Attempt, LostWorker
from fpmdask.runtime.placement import SURPLUS, Piece, dealt, loads
from fpmdask.sorting.payload import Payload, run_edges, tied
from fpmdask.sorting.spec import SortSpec
from fpmdask.sorting.splitters import Splitting, place_of, sample_count

# What it costs to send or to receive a key, relative to copying it and sorting it in its block:
# 0.3 s per GB on either side to 0.75, and what makes a sender late that sorts meanwhile.
MOVING = 0.6
# What samples leave open is taken for so many standard deviations.
SURE = 3.0


class Sorting(Attempt):
    """One attempt to sort an array."""

    def __init__(self, context: RunContext, spec: SortSpec, number: int, speeds: Speeds) -> None:
        super().__init__(context, number)
        self.spec, self.speeds = spec, speeds
        self._planned: dict[str, dict[str, float]] = {}

    async def run(self, shares: Mapping[str, int]) -> dict[str, Any]:
        """Go through the steps; return what the client needs to know of the result."""
        context, spec = self.context, self.spec
        places = await wait_for_chunks(context, spec.keys)
        await check_reachable(context, places)
        shares = {worker: n for worker, n in shares.items() if worker in context.workers}
        if sum(shares.values()) < spec.units:
            raise LostWorker("a worker left before the sort began")
        busy = {worker: share for worker, share in shares.items() if share}
        held = [places[key] for key in spec.keys]
        # without `extra`: what a part needs of it bounds the share, a run needs none
        free = await free_nbytes_of(context, list(busy))
        room = {worker: nbytes / spec.nbytes_per_key for worker, nbytes in free.items()}
        pieces = await asyncio.to_thread(pieces_of, spec, held, busy, room)
        sizes = {worker: sum(piece.size for piece in own) for worker, own in pieces.items()}
        there = [worker for worker in busy if worker in context.scheduler.workers]
        if len(there) < len(busy):
            raise LostWorker("a worker left before the sort began")
        along = in_part = 1.0
        if spec.payload is not None:
            # what goes with a run's keys takes as much room as so many other keys; what goes with
            # those of a part, too, and runs are kept until all parts are made
            along += spec.payload.nbytes_per_row / spec.nbytes_per_key
            in_part += spec.payload.nbytes_in_part / spec.nbytes_per_key
        check_fits(
            {context.name(w): along * sizes[w] + in_part * busy[w] for w in busy},
            {context.name(worker): keys for worker, keys in room.items()},
        )
        planned = [size for _, size in _parts(context, busy)]
        count = sample_count(spec.units, min(planned), len(busy))
        # the same objects for all workers: they are pickled once
        sort, of_runs = spec.to_json(), {}
        if spec.payload is not None:
            of_runs = runs_of(pieces, context.tuning.sort.run_bits)
        orders = {
            worker: {
                "sort": sort,
                "samples": count,
                "parts": len(planned),
                "turn": (turn, len(busy)),
                "pieces": [(p.chunk, p.low, p.high, p.owner) for p in pieces[worker]],
                "runs": of_runs,
            }
            for turn, worker in enumerate(busy)
        }
        self.dispatch(SORT, orders)

        # rows that travel are put in order where they are, however many that is
        self.work = sizes if spec.payload is not None else {}
        told = await self.everyone("samples", "sort")
        self.work = {}
        runs = [(w, n) for w in self.workers for n in range(len(told[w]["sizes"]))]
        told_sizes = {worker: list(told[worker]["sizes"]) for worker in self.workers}
        samples = [np.frombuffer(told[w]["samples"][n], spec.dtype) for w, n in runs]
        noise = SURE * math.hypot(*(told[w]["noise"][n] for w, n in runs))
        taken = {worker: (sizes[worker], told[worker]["seconds"]) for worker in busy}
        # what a key needs that is in no run; `extra` may be less, as a frame's index may be a range
        beside = max(in_part, spec.nbytes_needed / spec.nbytes_per_key - 1)
        bounds = {worker: (room[worker] - along * sizes[worker]) / beside for worker in busy}
        busy = await self.speeds.revised(busy, taken, bounds)
        if self.speeds.learned:  # what follows takes as long as it took before
            expected = context.report["result"]["seconds"]
            self._planned = {
                worker: {"planned_seconds": spent + expected[worker]}
                for worker, (_, spent) in taken.items()
                if expected.get(worker)
            }
        parts = _parts(context, busy)
        splitting = await self._cut(runs, told_sizes, samples, [size for _, size in parts], noise)
        edges = splitting.edges
        if spec.payload is not None and not spec.payload.whole:
            await self._set_apart(runs, edges, spec.payload)
        buckets = await asyncio.to_thread(splitting.buckets)
        wanted = await asyncio.to_thread(exchange, buckets, runs, splitting.lengths, parts)
        for worker in self.workers:
            self.tell(worker, exchange=wanted[worker])

        answers = await self.everyone(None, "exchange")
        found = (edges[:, 1:] - edges[:, :-1]).sum(0).tolist()
        ends = {part: pair for a in answers.values() for part, pair in a.pop("ends").items()}
        self._report(parts, found, answers)
        value = await self._publish(parts, found)
        value["ends"] = [ends[part] for part in range(len(parts))]
        if spec.index:
            value["plan"] = await asyncio.to_thread(
                recipe, self.workers, pieces, told_sizes, wanted
            )
        return value

    async def _cut(
        self,
        runs: Sequence[tuple[str, int]],
        sizes: Mapping[str, Sequence[int]],
        samples: Sequence[np.ndarray],
        shares: Sequence[int],
        noise: float,
    ) -> Splitting:
        """Find out where each run is cut so that all shares are met."""
        places = [
            place_of(turn, len(self.workers), n, len(sizes[worker]))
            for turn, worker in enumerate(self.workers)
            for n in range(len(sizes[worker]))
        ]
        lengths = [sizes[worker][n] for worker, n in runs]
        bucket = self.spec.bucket(self.context.tuning.sort)
        splitting = await asyncio.to_thread(
            Splitting, samples, lengths, places, shares, noise, bucket
        )
        while splitting.tried is not None:
            counts = await self._counted(runs, splitting.tried)
            between = await asyncio.to_thread(splitting.counted, *counts)
            if between is not None:
                await asyncio.to_thread(splitting.refined, await self._between(runs, *between))
        return splitting

    async def _set_apart(
        self, runs: Sequence[tuple[str, int]], edges: np.ndarray, payload: Payload
    ) -> None:
        """Move cuts between rows of one prefix to where that begins.

        Which of them comes first is to be seen in one part.
        """
        inner = edges[:, 1:-1]
        places = await asyncio.to_thread(by_worker, runs, inner)
        for worker in self.workers:
            self.tell(worker, beside=places.get(worker, []))
        told = await self.everyone("beside", "count")
        before, after = (
            np.array([np.frombuffer(told[w]["beside"][n][side], np.uint64) for w, n in runs])
            for side in (0, 1)
        )
        last, first = before.max(axis=0), after.min(axis=0)
        pairs = np.stack([last, first], axis=1)
        cut = [tied(pair, payload.row_bits, payload.null)[1] for pair in pairs]
        if any(cut):
            begins = first[cut] >> np.uint64(payload.row_bits) << np.uint64(payload.row_bits)
            below, _ = await self._counted(runs, begins)
            inner[:, cut] = below

    async def _between(
        self, runs: Sequence[tuple[str, int]], count: int, low: np.ndarray, high: np.ndarray
    ) -> list[list[np.ndarray]]:
        """Return keys of each run from between its places `low` and `high`, for each open end."""
        ends = await asyncio.to_thread(by_worker, runs, np.stack([low, high], axis=-1))
        for worker in self.workers:
            self.tell(worker, between=(count, ends.get(worker, [])))
        told = await self.everyone("inner", "count")
        return await asyncio.to_thread(
            lambda: [
                [np.frombuffer(keys, self.spec.dtype) for keys in told[worker]["inner"][n]]
                for worker, n in runs
            ]
        )

    async def _counted(
        self, runs: Sequence[tuple[str, int]], tried: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how many keys of each run are below each candidate, and how many not above it."""
        # keys that were put together are in this machine's byte order
        packed = tried.astype(self.spec.dtype, copy=False).tobytes()
        for worker in self.workers:
            self.tell(worker, count=packed)
        told = await self.everyone("below", "count")
        below, through = await asyncio.to_thread(
            lambda: [
                np.array([np.frombuffer(told[w][side][n], np.int64) for w, n in runs])
                for side in ("below", "through")
            ]
        )
        return below, through

    def _report(
        self,
        parts: Sequence[tuple[str, int]],
        found: Sequence[int],
        answers: Mapping[str, Any],
    ) -> None:
        context = self.context
        units = dict.fromkeys(self.workers, 0)
        for (worker, _), size in zip(parts, found, strict=True):
            units[worker] += size
        context.report["shares"] = [
            {
                "worker": context.name(worker),
                "units": units[worker],
                **answers[worker],
                **self._planned.get(worker, {}),
            }
            for worker in self.workers
        ]

    async def _publish(
        self, parts: Sequence[tuple[str, int]], found: Sequence[int]
    ) -> dict[str, Any]:
        """Make the parts chunks of one dask array."""
        self.context.emit("step", step="publish", attempt=self.number, phase="publish")
        name = f"fpmdask-sort-{uuid4().hex}"
        order = range(len(parts))
        at = dict(zip(reversed(order) if self.spec.descending else order, order, strict=True))
        keys: dict[str, list[tuple[Any, int, Any]]] = {}
        for part, (worker, _) in enumerate(parts):
            keys.setdefault(worker, []).append(((name, at[part]), part, ()))
        if not await publish(self.context, keys):
            raise LostWorker("a worker left while the result was published")
        sizes = [found[part] for part in sorted(order, key=at.__getitem__)]
        return {"name": name, "sizes": sizes}


def by_worker(runs: Sequence[tuple[str, int]], of_runs: np.ndarray) -> dict[str, list[Any]]:
    """Return worker -> what `of_runs` has of each of its runs, as lists. O(elements)."""
    found: dict[str, list[Any]] = {}
    for (worker, _), own in zip(runs, of_runs.tolist(), strict=True):
        found.setdefault(worker, []).append(own)
    return found


def pieces_of(
    spec: SortSpec,
    places: Sequence[Sequence[str]],
    shares: Mapping[str, int],
    free: Mapping[str, float],
) -> dict[str, list[Piece]]:
    """Return worker -> the pieces of chunks that it puts in order before the exchange.

    Parameters
    ----------
    spec
        The sort.
    places
        The workers that hold each chunk.
    shares
        Worker -> keys of the result that it is to have.
    free
        Worker -> keys that it has memory for.

    Raises
    ------
    LostWorker
        If rows travel with the keys, and a worker has some but no share.
    """
    if spec.payload is None:
        pieces = dealt(spec.sizes, places, loads_of(spec, places, shares, free))
    else:
        pieces = where_they_are(spec, places, shares)
    for worker, own in pieces.items():
        # those of one owner come together
        own.sort(key=lambda p: (p.owner != worker, p.owner, p.chunk, p.low))
    return pieces


def loads_of(
    spec: SortSpec,
    places: Sequence[Sequence[str]],
    shares: Mapping[str, int],
    free: Mapping[str, float],
) -> Mapping[str, int]:
    """Return worker -> keys that it is to put in order; arguments as for `pieces_of`.

    Its share of the result, where chunks are on workers that have none.
    """
    held = dict.fromkeys(shares, 0)
    for size, holders in zip(spec.sizes, places, strict=True):
        here = [worker for worker in holders if worker in shares]
        if here:
            held[here[0]] += size
        elif size:
            return shares
    # who holds little more than it is to have keeps it
    room = {worker: (free[worker] - share) / SURPLUS for worker, share in shares.items()}
    return loads(held, shares, MOVING, room)


def runs_of(
    pieces: Mapping[str, Sequence[Piece]], run_bits: int
) -> dict[str, list[tuple[int, int]]]:
    """Return worker -> (chunk, number of the run of its piece) of each run that it makes."""
    return {
        worker: [
            (piece.chunk, run)
            for piece in own
            for run in range(len(run_edges(piece.size, run_bits)) - 1)
        ]
        for worker, own in pieces.items()
    }


def where_they_are(
    spec: SortSpec, places: Sequence[Sequence[str]], shares: Mapping[str, int]
) -> dict[str, list[Piece]]:
    """Return worker -> the chunks that it holds.

    Raises
    ------
    LostWorker
        If one has chunks but no share.
    """
    own: dict[str, list[Piece]] = {worker: [] for worker in shares}
    for chunk, (size, holders) in enumerate(zip(spec.sizes, places, strict=True)):
        here = [worker for worker in holders if worker in shares]
        if not size:
            continue
        if not here:
            raise LostWorker("a worker has rows but no share")
        own[here[0]].append(Piece(chunk, 0, size, here[0]))
    return own


def _parts(context: RunContext, shares: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (worker, keys) of the result's parts in order: one per thread of a worker.

    Raises
    ------
    LostWorker
        If one has left meanwhile.
    """
    parts = []
    for worker, share in shares.items():
        state = context.scheduler.workers.get(worker)
        if state is None:
            raise LostWorker(f"{context.name(worker)} left")
        threads = min(max(1, state.nthreads), max(1, share >> 14))
        for n in range(threads):
            parts.append((worker, share * (n + 1) // threads - share * n // threads))
    return parts
