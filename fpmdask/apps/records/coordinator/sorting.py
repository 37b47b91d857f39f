"""One attempt to make the parts that are missing: runs, splitters, exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from distributed.utils import offload

from fpmdask.apps.records.coordinator.state import RecordsAttempt, RecordsSort
from fpmdask.apps.records.plan import assigned, dealt, parts_of, split_at
from fpmdask.apps.records.spec import SORT
from fpmdask.errors import RecordsError
from fpmdask.records.format import KEY, KEY_NBYTES
from fpmdask.runtime.coordinator.team import LostWorker
from fpmdask.sorting.splitters import MOST_SAMPLES, candidates, cuts, sample_count


class Sorting(RecordsAttempt):
    """One attempt to make the parts that are missing."""

    def __init__(self, sort: RecordsSort, number: int) -> None:
        super().__init__(sort.context, number)
        self.sort = sort

    async def run(self, shares: Mapping[str, int]) -> None:
        """Go through the steps."""
        sort, context = self.sort, self.context
        if sum(shares.get(worker, 0) for worker in context.workers) < sort.job.records:
            raise LostWorker("a worker left before the sort began")
        most = {worker: sort.most(worker) for worker in shares if worker in sort.memory}
        await offload(self._deal, {worker: shares[worker] for worker in most}, most)
        shares = {worker: share for worker, share in shares.items() if share}
        readers = {*sort.runs.values()}
        busy = [*shares, *sorted(readers - shares.keys())]
        largest = min(most[worker] for worker in shares)
        sizes = sort.parts
        if sizes is None:
            threads = {worker: sort.threads(worker) for worker in shares}
            sizes = parts_of(shares, threads, largest)
        elif max(sizes) > 2 * largest:  # there is some room beside what is planned
            raise RecordsError(
                f"a part of {max(sizes)} records does not fit into a worker's memory, which has "
                f"room for {largest}; use the workers of the first run, or empty the target"
            )
        runs = sorted(sort.runs)
        least = min(shares.values())
        # for the shares' sake; and so that a part's length is found within some hundredths of it:
        # errors of many runs, up to a sample's distance each, hardly add up
        fine = math.ceil(10 * len(sizes) / math.sqrt(len(runs)))
        samples = max(sample_count(sort.job.records, least, len(runs)), min(fine, MOST_SAMPLES))
        files = sort.job.to_json()
        orders = {
            worker: {
                "files": files,
                "target": sort.request["target"],
                "checksums": sort.request["checksums"],
                "runs": [run for run in runs if sort.runs[run] == worker],
                "samples": samples,
                "turn": (turn, len(busy)),
                "kept_nbytes": sort.memory[worker].kept,
                "threads": sort.threads(worker),
                "scribe": worker == busy[0],
            }
            for turn, worker in enumerate(busy)
        }
        self.work = {w: sum(end - first for first, end in o["runs"]) for w, o in orders.items()}
        self.dispatch(SORT, orders)
        edges = await self._edges(runs, sizes, [*accumulate(shares.values())])
        wanted = await offload(self._wanted, runs, edges, shares)
        for worker in self.workers:
            self.tell(worker, exchange=wanted[worker])
        self.work = {worker: sum(size for _, size, _ in own) for worker, own in wanted.items()}
        answers = await self.everyone(None, "exchange", self._part_done)
        self._report(answers, edges, wanted)

    def _deal(self, shares: Mapping[str, int], most: Mapping[str, int]) -> None:
        """Deal the input that nobody who is there has read; who has read some keeps it."""
        sort = self.sort
        ends = [*accumulate(file.records for file in sort.job.files)]
        if not sort.runs:
            spans = split_at([(0, sort.job.records)], ends)
            sizes = dict(shares)
        else:
            lost = [run for run, worker in sort.runs.items() if worker not in self.context.workers]
            for run in lost:
                del sort.runs[run]
                sort.sums.pop(run, None)
            spans = split_at(sorted(lost), ends)
            again_ = sum(end - first for first, end, _ in spans)
            whole = sum(shares.values())
            sizes = {worker: share * again_ // max(1, whole) for worker, share in shares.items()}
        seen = [sort.seen[number] for *_, number in spans]
        paths = [sort.job.files[number].path for *_, number in spans]
        found = dealt([(first, end) for first, end, _ in spans], paths, seen, sizes, most)
        sort.runs |= {(first, end): worker for first, end, worker in found}

    async def _edges(
        self, runs: list[tuple[int, int]], sizes: list[int], exact: list[int]
    ) -> np.ndarray:
        """Have all sort their runs; return where each is cut for the parts, from 0 to its end.

        Parts end at the ranks ``exact`` as exactly as a round of counts tells.
        """
        sort = self.sort
        own: dict[str, list[tuple[int, int]]] = {worker: [] for worker in self.workers}
        at_worker = {}  # run → its number among those of its worker
        for run in runs:
            mine = own[sort.runs[run]]
            at_worker[run] = len(mine)
            mine.append(run)
        told = await self.everyone("samples", "sort")
        samples, places = {}, {}
        for worker in self.workers:
            for n, run in enumerate(own[worker]):
                samples[run] = _keys(told[worker]["samples"][n])
                places[run] = float(told[worker]["places"][n])
                sort.sums[run] = np.frombuffer(told[worker]["sums"][n], np.uint32)
        lengths = [end - first for first, end in runs]
        ranks = [*accumulate(sizes)][:-1]
        if sort.parts is None:
            some = [samples[run] for run in runs], lengths
            where = [places[run] for run in runs]
            inner = await offload(candidates, *some, exact[:-1], places=where)
            tried = np.union1d(inner, await offload(candidates, *some, ranks, 1, where))
        else:
            tried = np.unique(_keys(b"".join(map(bytes.fromhex, sort.splitters))))
        packed = tried.tobytes()
        for worker in self.workers:
            self.tell(worker, count=packed)
        told = await self.everyone("below", "count")
        below, through = (
            [np.frombuffer(told[sort.runs[run]][side][at_worker[run]], np.int64) for run in runs]
            for side in ("below", "through")
        )
        at = await offload(cuts, below, through, ranks)
        edges: np.ndarray = np.column_stack([np.zeros(len(runs), np.int64), at, lengths])
        found = np.diff(edges.sum(0)).tolist()
        if sort.parts is None:
            sort.parts = found
            sort.splitters = _splitters(tried, np.sum(through, axis=0), at.sum(0))
        elif found != sort.parts:
            raise RecordsError(
                "the files are not what they were when the sort began; empty the target and call "
                "again"
            )
        self.tell(self.workers[0], plan=sort.noted())
        await self._planned()
        return edges

    async def _planned(self) -> None:
        """Wait until the plan is in the target: whoever goes on needs it."""
        scribe, others = self.workers[0], self.workers[1:]
        self.workers = [scribe]
        try:
            await self.everyone("planned", "plan")
        finally:
            self.workers = [scribe, *others]

    def _wanted(
        self, runs: list[tuple[int, int]], edges: np.ndarray, shares: Mapping[str, int]
    ) -> dict[str, list[Any]]:
        """Return worker → its parts: (number, records, pieces of runs)."""
        sort = self.sort
        missing = sort.missing()
        total, whole = sum(missing.values()), sum(shares.values())
        ends = [*accumulate(shares[w] for w in self.workers if w in shares)]
        at = [end * total // max(1, whole) for end in ends]
        names = [worker for worker in self.workers if worker in shares]
        sizes = dict(zip(names, np.diff([0, *at]).tolist(), strict=True))
        mine = assigned(missing, sizes)
        holders = [(sort.runs[run], n) for n, run in enumerate(runs)]
        parts = [(worker, number) for worker in names for number in mine[worker]]
        chosen = edges[:, [n for _, n in parts] + [n + 1 for _, n in parts]]
        lows, highs = chosen[:, : len(parts)], chosen[:, len(parts) :]
        found: dict[str, list[Any]] = {worker: [] for worker in self.workers}
        for column, (worker, number) in enumerate(parts):
            low, high = lows[:, column].tolist(), highs[:, column].tolist()
            pieces = [
                (holder, *runs[n], low[n], high[n]) for holder, n in holders if low[n] < high[n]
            ]
            found[worker].append((number, missing[number], pieces))
        return found

    def _part_done(self, worker: str, news: Mapping[str, Any]) -> None:
        if "part" in news:
            self.sort.done[int(news["part"])] = dict(news["facts"])
            facts = news["facts"]
            self.context.emit(
                "part",
                part=facts["name"],
                worker=self.context.name(worker),
                records=facts["records"],
                phase="exchange",
                done=sum(each["records"] for each in self.sort.done.values()),
                total=self.sort.job.records,
                unit="records",
            )

    def _report(
        self, answers: Mapping[str, Any], edges: np.ndarray, wanted: Mapping[str, list[Any]]
    ) -> None:
        context = self.context
        context.report["shares"] = [
            {
                "worker": context.name(worker),
                "units": sum(size for _, size, _ in wanted[worker]),
                **answers[worker],
            }
            for worker in self.workers
        ]


def _keys(packed: bytes) -> np.ndarray:
    return np.frombuffer(packed, KEY) if packed else np.empty(0, KEY)


def _splitters(tried: np.ndarray, through: np.ndarray, ranks: np.ndarray) -> list[str]:
    """Return the keys, in hex, by which just these ranks are found again."""
    at = np.unique(np.searchsorted(through, ranks))
    found = np.ascontiguousarray(tried[at[at < tried.size]])
    raw = found.view(np.uint8).reshape(-1, KEY_NBYTES)
    return [row.tobytes().hex() for row in raw]
