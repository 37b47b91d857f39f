"""The sort's run on the scheduler: shares, splitters, exchange; again where a worker was lost."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any
from uuid import uuid4

import numpy as np
from distributed.utils import offload

from fpmdask.apps.dealing import Piece, dealt
from fpmdask.apps.sort.attempt import Attempt, LostWorker, again
from fpmdask.apps.sort.kernel import NAME
from fpmdask.apps.sort.parted import SURE
from fpmdask.apps.sort.payload import Payload, run_edges, tied
from fpmdask.apps.sort.plan import SortSpec, check_fits, exchange, recipe
from fpmdask.apps.sort.share import sort_share
from fpmdask.apps.sort.shares import ROUGH, Speeds
from fpmdask.apps.sort.splitters import Splitting, place_of, sample_count
from fpmdask.coordinator.chunks import free_nbytes, publish, wait_for_chunks, without_fpmdask
from fpmdask.coordinator.context import KernelFailed, RunContext
from fpmdask.errors import CoordinatorError, PartitionError

# Fewer keys than this per worker are not worth measuring anybody.
FEW = 1 << 17
# Under which the library keeps what sorts took.
LEARNED = "sort.share"
# A worker that has just joined is prepared within so long.
JOIN_SECONDS, LOOK_AGAIN_SECONDS = 5.0, 0.1


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If the keys, on their way, and the input that is not in memory yet, do not fit into the
        workers' memory.
    """
    workers = context.candidates()
    if "sort" not in context.spec:
        return  # their number is not known yet
    spec = SortSpec.from_json(context.spec["sort"])
    free = sum(free_nbytes(context, address) for address in workers)
    coming, needed = int(context.spec.get("coming", 0)), spec.units * spec.nbytes_needed
    if free < coming + needed:
        raise PartitionError(
            f"{spec.units} keys of {spec.dtype.itemsize} bytes need {needed} bytes beside the "
            f"input, of which {coming} bytes are not in memory yet; the workers have room for "
            f"{free:.0f} bytes; add workers or memory"
        )


async def run(context: RunContext) -> dict[str, Any]:
    """Sort; the value names the result's keys and their sizes.

    With a payload it says instead, under "left", why rows could not travel with their keys.
    """
    spec = SortSpec.from_json(context.spec["sort"])
    began = time.perf_counter()
    await context.acquire({"name": NAME, "parameters": {"dtype": spec.dtype.str}})
    prepared = time.perf_counter()
    context.report["phases"] = {"prepare": prepared - began, "measure": 0.0, "sort": 0.0}
    if spec.payload is not None:
        return await _carry(context, spec)
    speeds = _speeds(context, spec, payload=False)
    room = partial(_room, context, spec)
    shares = await speeds.shares(spec.units, room)
    measured = time.perf_counter()
    number = 0
    while True:
        sorting = Sorting(context, spec, number, speeds)
        try:
            value = await sorting.run(shares)
            break
        except LostWorker as lost:
            sorting.stop()
            number += 1
            await again(context, number, lost)
            shares = await speeds.shares(spec.units, room)
        except BaseException:
            sorting.stop()
            raise
    speeds.learn(_taken(context))
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": measured - prepared,
        "sort": time.perf_counter() - measured,
    }
    return value


async def _carry(context: RunContext, spec: SortSpec) -> dict[str, Any]:
    """Sort keys with which rows travel; there is no other attempt.

    What is made again of a lost worker's rows is elsewhere then than its keys; what does not fit
    may do so where less is done at once.
    """
    began = time.perf_counter()
    speeds = _speeds(context, spec, payload=True)
    sorting = Sorting(context, spec, 0, speeds)
    try:
        shares = await speeds.shares(spec.units, partial(_room, context, spec))
        measured = time.perf_counter()
        value = await sorting.run(shares)
    except (LostWorker, PartitionError, KernelFailed) as error:
        sorting.stop()
        return {"left": str(error)}
    except BaseException:
        sorting.stop()
        raise
    speeds.learn(_taken(context))
    context.report["phases"] |= {
        "measure": measured - began,
        "sort": time.perf_counter() - measured,
    }
    return value


async def deal(context: RunContext) -> dict[str, Any]:
    """Find out who should have how many of the keys; the value has shares, unless all are equal.

    ``payload`` of the spec tells whether rows are to travel with them.
    """
    spec = SortSpec.from_json(context.spec["sort"])
    began = time.perf_counter()
    await context.acquire({"name": NAME, "parameters": {"dtype": spec.dtype.str}})
    prepared = time.perf_counter()
    speeds = _speeds(context, spec, payload=bool(context.spec["payload"]))
    shares = await speeds.shares(spec.units, partial(_room, context, spec))
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": time.perf_counter() - prepared,
    }
    return {"shares": shares if speeds.told else None}


def _speeds(context: RunContext, spec: SortSpec, *, payload: bool) -> Speeds:
    what = {"dtype": spec.dtype.str, "index": spec.index, "payload": payload}
    return Speeds(context, LEARNED, what, FEW, "keys", ROUGH)


def _room(context: RunContext, spec: SortSpec, address: str) -> float:
    """Return the keys that a worker can take: a run to be sorted, and a part of the result."""
    room = free_nbytes(context, address) / spec.nbytes_needed
    return math.floor(room) if math.isfinite(room) else room


def _taken(context: RunContext) -> Iterator[tuple[str, float, float]]:
    """Return (worker, keys, seconds) of the sort's own steps.

    Without the exchange: in it workers wait for each other.
    """
    addresses = {context.name(address): address for address in context.workers}
    for share in context.report["shares"]:
        phases = share["phases"]
        if share["worker"] in addresses:
            units = (share["keys_sorted"] + share["units"]) / 2
            seconds = sum(phases.get(phase, 0.0) for phase in ("sort", "gather", "count", "merge"))
            yield addresses[share["worker"]], units, seconds


class Sorting(Attempt):
    """One attempt to sort an array."""

    def __init__(self, context: RunContext, spec: SortSpec, number: int, speeds: Speeds) -> None:
        super().__init__(context, number)
        self.spec, self.speeds = spec, speeds

    async def run(self, shares: Mapping[str, int]) -> dict[str, Any]:
        """Go through the steps; return what the client needs to know of the result."""
        context, spec = self.context, self.spec
        places = await wait_for_chunks(context.scheduler, spec.keys, context.spec["recovery"])
        await reachable(context, places)
        shares = {worker: n for worker, n in shares.items() if worker in context.workers}
        if sum(shares.values()) < spec.units:
            raise LostWorker("a worker left before the sort began")
        busy = {worker: share for worker, share in shares.items() if share}
        held = [places[key] for key in spec.keys]
        if spec.payload is None:
            pieces = await offload(dealt, spec.sizes, held, busy)
        else:
            pieces = where_they_are(spec, held, busy)
        for worker, own in pieces.items():
            own.sort(key=lambda piece: (piece.owner != worker, piece.chunk, piece.low))
        sizes = {worker: sum(piece.size for piece in own) for worker, own in pieces.items()}
        of_runs = {
            worker: [
                (piece.chunk, run) for piece in own for run in range(len(run_edges(piece.size)) - 1)
            ]
            for worker, own in pieces.items()
        }
        there = [worker for worker in busy if worker in context.scheduler.workers]
        if len(there) < len(busy):
            raise LostWorker("a worker left before the sort began")
        # without `extra`: what a part needs of it bounds the share, a run needs none
        room = {w: free_nbytes(context, w) / spec.nbytes_per_key for w in busy}
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
        least, expected = min(planned), [n / spec.units for n in accumulate(planned[:-1])]
        count = sample_count(spec.units, least, len(busy))
        orders = {
            worker: {
                "sort": spec.to_json(),
                "samples": count,
                "turn": (turn, len(busy)),
                "ends": expected,
                "pieces": [(p.chunk, p.low, p.high, p.owner) for p in pieces[worker]],
                "runs": of_runs if spec.payload is not None else {},
            }
            for turn, worker in enumerate(busy)
        }
        self.dispatch(sort_share, orders)

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
        if len({any(told[worker]["noise"]) for worker in busy}) == 1:
            # all have parted their runs, or all have sorted them, which takes longer
            busy = await self.speeds.revised(busy, taken, bounds)
        parts = _parts(context, busy)
        edges = await self._cut(runs, told_sizes, samples, [size for _, size in parts], noise)
        if spec.payload is not None and not spec.payload.whole:
            await self._set_apart(runs, edges, spec.payload)
        wanted = await offload(exchange, edges, runs, parts)
        for worker in self.workers:
            self.tell(worker, exchange=wanted[worker])

        answers = await self.everyone(None, "exchange")
        found = (edges[:, 1:] - edges[:, :-1]).sum(0).tolist()
        ends = {part: pair for a in answers.values() for part, pair in a.pop("ends").items()}
        self._report(parts, found, answers)
        value = await self._publish(parts, found)
        if spec.payload is not None:
            value["ends"] = [ends[part] for part in range(len(parts))]
        if spec.index:
            value["plan"] = await offload(recipe, self.workers, pieces, told_sizes, wanted)
        return value

    async def _cut(
        self,
        runs: Sequence[tuple[str, int]],
        sizes: Mapping[str, Sequence[int]],
        samples: Sequence[np.ndarray],
        shares: Sequence[int],
        noise: float,
    ) -> np.ndarray:
        """Return where each run is cut, runs × (parts + 1), so that all shares are met."""
        places = [
            place_of(turn, len(self.workers), n, len(sizes[worker]))
            for turn, worker in enumerate(self.workers)
            for n in range(len(sizes[worker]))
        ]
        lengths = [sizes[worker][n] for worker, n in runs]
        splitting = await offload(Splitting, samples, lengths, places, shares, noise)
        while splitting.tried is not None:
            counts = await self._counted(runs, splitting.tried)
            between = await offload(splitting.counted, *counts)
            if between is not None:
                await offload(splitting.refined, await self._between(runs, *between))
        return splitting.edges

    async def _set_apart(
        self, runs: Sequence[tuple[str, int]], edges: np.ndarray, payload: Payload
    ) -> None:
        """Move cuts between rows of one prefix to where that begins.

        Which of them comes first is to be seen in one part.
        """
        inner = edges[:, 1:-1]
        places: dict[str, list[Any]] = {worker: [] for worker in self.workers}
        for (worker, _), own in zip(runs, inner.tolist(), strict=True):
            places[worker].append(own)
        for worker in self.workers:
            self.tell(worker, beside=places[worker])
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
        ends: dict[str, list[Any]] = {worker: [] for worker in self.workers}
        for (worker, _), pair in zip(runs, np.stack([low, high], axis=-1).tolist(), strict=True):
            ends[worker].append(pair)
        for worker in self.workers:
            self.tell(worker, between=(count, ends[worker]))
        told = await self.everyone("inner", "count")
        return [
            [np.frombuffer(keys, self.spec.dtype) for keys in told[worker]["inner"][n]]
            for worker, n in runs
        ]

    async def _counted(
        self, runs: Sequence[tuple[str, int]], tried: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how many keys of each run are below each candidate, and how many not above it."""
        # keys that were put together are in this machine's byte order
        packed = tried.astype(self.spec.dtype, copy=False).tobytes()
        for worker in self.workers:
            self.tell(worker, count=packed)
        told = await self.everyone("below", "count")
        below, through = (
            np.array([np.frombuffer(told[w][side][n], np.int64) for w, n in runs])
            for side in ("below", "through")
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
            {"worker": context.name(worker), "units": units[worker], **answers[worker]}
            for worker in self.workers
        ]

    async def _publish(
        self, parts: Sequence[tuple[str, int]], found: Sequence[int]
    ) -> dict[str, Any]:
        """Make the parts chunks of one dask array."""
        self.context.emit("step", step="publish", attempt=self.number)
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


async def reachable(context: RunContext, places: Mapping[Any, Sequence[str]]) -> None:
    """Refuse chunks that only workers without fpmdask hold: nobody can ask these for pieces.

    Raises
    ------
    CoordinatorError
        With the workers and how many chunks they hold.
    """
    give_up = time.monotonic() + JOIN_SECONDS
    while True:
        bare = set(without_fpmdask(context.scheduler, places))
        alone = [holders for holders in places.values() if holders and bare.issuperset(holders)]
        if not alone:
            return
        if time.monotonic() < give_up:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            continue
        names = ", ".join(sorted({context.name(worker) for holders in alone for worker in holders}))
        raise CoordinatorError(
            f"{len(alone)} of {len(places)} chunks are only on workers without this fpmdask "
            f"({names}); install it there, or move the chunks with client.replicate"
        )


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
