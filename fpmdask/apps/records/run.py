"""The sort of records on the scheduler: survey, shares, runs, splitters, parts, manifest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any

import numpy as np
from distributed.utils import offload

from fpmdask.apps.records.kernel import NAME
from fpmdask.apps.records.plan import (
    Job,
    assigned,
    dealt,
    merged,
    parts_of,
    run_records,
    split_at,
)
from fpmdask.apps.records.share import sort_share
from fpmdask.apps.records.survey import FORMAT, VERSION, claim, finish, part_name, survey
from fpmdask.apps.sort.attempt import Attempt, LostWorker, again
from fpmdask.apps.sort.plan import MOST_SAMPLES, candidates, cuts, sample_count
from fpmdask.apps.sort.shares import Speeds
from fpmdask.coordinator.context import RunContext
from fpmdask.errors import RecordsError
from fpmdask.records.format import KEY, KEY_NBYTES, RECORD_NBYTES
from fpmdask.records.verify import checked_manifest

# Fewer records than this per worker are not worth measuring anybody.
FEW = 1 << 15
# Of a worker's memory limit, what a sort may use whatever else is there.
WORKING = 0.1
# Under which the library keeps what sorts took.
LEARNED = "records.share"


async def run(context: RunContext) -> dict[str, Any]:
    """Sort files of records into parts; the value is the manifest."""
    began = time.perf_counter()
    await context.acquire({"name": NAME, "parameters": {}})
    sort = RecordsSort(context)
    finished = await sort.look()
    looked = time.perf_counter()
    phases = context.report["phases"] = {"prepare": looked - began}
    if finished is not None:
        context.set_result({}, {}, None, "complete already", {})
        return finished
    speeds = Speeds(context, LEARNED, {}, FEW, "records")
    shares = await sort.shares(speeds) if sort.job.records else {}
    measured = time.perf_counter()
    phases["measure"] = measured - looked
    await sort.claim()
    sort.began = True
    while sort.missing():
        attempt = Sorting(sort, next(sort.numbers))
        try:
            await attempt.run(shares)
        except LostWorker as lost:
            attempt.stop()
            await again(context, attempt.number, lost)
            await sort.look_again()
            shares = await sort.shares(speeds)
        except BaseException:
            attempt.stop()
            raise
    if "shares" in context.report:
        speeds.learn(_taken(context))
    phases["sort"] = time.perf_counter() - measured
    return await sort.finish()


def _taken(context: RunContext) -> Iterator[tuple[str, float, float]]:
    """Return (worker, records, seconds) of the sort's own steps, without waits for others."""
    addresses = {context.name(address): address for address in context.workers}
    for share in context.report["shares"]:
        if share["worker"] in addresses:
            units = (share["records_read"] + share["units"]) / 2
            waits = sum(share["phases"].get(phase, 0.0) for phase in ("exchange", "checksum"))
            yield addresses[share["worker"]], units, share["seconds"] - waits


@dataclass(frozen=True)
class Memory:
    """Bytes of a worker's memory for a sort: ``working`` on runs and parts, ``kept`` beside that.

    The first is a tenth of its limit, whatever was there before, so that parts are of the same
    size in the next call; the second what is left up to the spill target, which is below the pause.
    """

    working: float
    kept: float


def memory_of(context: RunContext, address: str, resident: float) -> Memory:
    """Return what a sort may use on a worker in whose process so many bytes are ``resident``."""
    state = context.scheduler.workers.get(address)
    if state is None or not state.memory_limit:
        return Memory(math.inf, math.inf)
    limit = state.memory_limit
    working = WORKING * limit
    left = context.coordinator.spill_target * limit - resident - working
    return Memory(working, max(0.0, left))


class RecordsSort:
    """One sort, over its attempts: what is sorted, who has read what, which parts are done."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.request = context.spec["records"]
        self.numbers = count()
        self.job = Job(())
        self.seen: list[list[str]] = []
        self.disk: dict[str, float] = {}
        self.memory: dict[str, Memory] = {}
        self.runs: dict[tuple[int, int], str] = {}
        self.sums: dict[tuple[int, int], np.ndarray] = {}
        self.began = False
        self.before: str | None = None  # whose job the target holds
        self.parts: list[int] | None = None
        self.splitters: list[str] = []
        self.done: dict[int, dict[str, Any]] = {}

    # ---- before

    async def look(self) -> dict[str, Any] | None:
        """Find the files and look at the target; return the manifest of one that is complete.

        Raises
        ------
        RecordsError
            If the files cannot be sorted, or not into this target.
        """
        order = {"sources": self.request["sources"], "target": self.request["target"]}
        found = await self._ask(survey, order, "survey")
        name = self.context.name
        for source in self.request["sources"]:
            lacking = [answer["lacking"].get(source) for answer in found.values()]
            if all(lacking):
                raise RecordsError(f"{lacking[0]} (no worker finds it)")
        by_name = {name(worker): answer["files"] for worker, answer in found.items()}
        self.job, seen = merged(by_name)
        addresses = {name(worker): worker for worker in found}
        self.seen = [[addresses[each] for each in there] for there in seen]
        self._note_room(found)
        first = next(iter(found.values()))
        for worker, answer in found.items():
            if answer["names"] != first["names"]:
                raise RecordsError(
                    f"{self.request['target']} does not hold the same files for "
                    f"{name(next(iter(found)))} and {name(worker)}; give a folder that all workers "
                    "share"
                )
        manifest = first["manifest"]
        if manifest is not None and checked_manifest(manifest).get("job") == self.job.identity:
            return self._complete(manifest, first["names"])
        self._resume(first["job"], first["names"])
        if not self.job.records:
            self.parts = []
        free = min(answer["target_nbytes"] for answer in found.values())
        needed = self._missing_nbytes(first["names"])
        if free < needed:
            raise RecordsError(
                f"{self.request['target']} has room for {free / 1e9:.2f} GB, the sorted records "
                f"need {needed / 1e9:.2f} GB; make room, or give another target"
            )
        return None

    def _note_room(self, found: Mapping[str, Any]) -> None:
        for worker, answer in found.items():
            self.disk[worker] = answer["local_nbytes"]
            self.memory[worker] = memory_of(self.context, worker, answer["resident_nbytes"])

    async def look_again(self) -> None:
        """Learn what workers see that have come since the first look; others are not asked."""
        new = [worker for worker in self.context.workers if worker not in self.memory]
        if not new:
            return
        order = {"sources": self.request["sources"], "target": self.request["target"]}
        found = await self._ask(survey, order, "survey", new)
        self._note_room(found)
        numbers = {file: n for n, file in enumerate(self.job.files)}
        for worker, answer in found.items():
            for file in Job.from_json(answer["files"]).files:
                if file in numbers:  # others are not the ones that the sort began with
                    self.seen[numbers[file]].append(worker)

    def _complete(self, manifest: dict[str, Any], names: Mapping[str, int]) -> dict[str, Any]:
        target = self.request["target"]
        for part in manifest["parts"]:
            if names.get(part["name"]) != part["nbytes"]:
                raise RecordsError(
                    f"{target} had these records sorted, but {part['name']} is gone or has another "
                    "length; empty it and call again"
                )
        if self.request["checksums"] and manifest.get("checksum") is None:
            raise RecordsError(
                f"{target} holds these records sorted, without a checksum; `fpmdask records "
                "verify` computes it"
            )
        return manifest

    def _resume(self, job: Any, names: Mapping[str, int]) -> None:
        """Take up what is in the target, if it is of this job."""
        if not names:
            return
        if not isinstance(job, dict) or job.get("format") != FORMAT:
            raise RecordsError(
                f"{self.request['target']} is not empty: {', '.join(sorted(names)[:3])}"
                f"{', …' * (len(names) > 3)}; give an empty folder or a new one"
            )
        if job.get("version") != VERSION or job.get("identity") != self.job.identity:
            raise RecordsError(
                f"{self.request['target']} holds the beginning of another sort, of other files or "
                "of these before they changed; give another folder, or empty this one"
            )
        self.before = job["run"]
        if job["parts"] is not None:
            self.parts, self.splitters = [*job["parts"]], [*job["splitters"]]

    def _missing_nbytes(self, names: Mapping[str, int]) -> int:
        if self.parts is None:
            return self.job.nbytes
        missing = [size for n, size in enumerate(self.parts) if part_name(n) not in names]
        return sum(missing) * RECORD_NBYTES

    async def shares(self, speeds: Speeds) -> dict[str, int]:
        """Return the records that each worker is to sort, and how much memory it may use."""
        context = self.context
        given = self.request["distribution"]
        if given is None:
            return await speeds.shares(self.job.records, self._room)
        there = {context.name(address): address for address in context.workers}
        if not self.began:
            self._check_distribution(given, there)
        shares = {address: given.get(name, 0) for name, address in there.items()}
        if (left := sum(shares.values())) < self.job.records:  # a worker was lost
            parts = {a: (n if left else 1) * self.job.records for a, n in shares.items()}
            ends = [end // (left or len(shares)) for end in accumulate(parts.values())]
            shares = dict(zip(parts, np.diff([0, *ends]).tolist(), strict=True))
        context.set_result(shares, dict.fromkeys(shares, 0.0), None, "given", shares)
        return shares

    def _check_distribution(self, given: Mapping[str, int], there: Mapping[str, str]) -> None:
        if unknown := sorted(given.keys() - there.keys()):
            raise RecordsError(
                f"no worker {', '.join(unknown)} takes part; distribution is for some of "
                f"{', '.join(there)}"
            )
        if sum(given.values()) != self.job.records:
            raise RecordsError(
                f"the distribution has {sum(given.values())} records, the files "
                f"{self.job.records}; make them equal"
            )

    def _room(self, address: str) -> float:
        """Return how many records a worker can take: in its memory and on its disk."""
        memory = self.memory.get(address, Memory(0.0, 0.0))
        return (memory.kept + self.disk.get(address, 0.0)) // RECORD_NBYTES

    def threads(self, address: str) -> int:
        """Return how many runs or parts a worker does at once: its threads, or its slots."""
        state = self.context.scheduler.workers.get(address)
        return max(1, state.nthreads if state else 1, self.context.coordinator.slots)

    def most(self, address: str) -> int:
        """Return how many records a run or part may have there."""
        return run_records(self.memory[address].working, self.threads(address))

    async def claim(self) -> None:
        """Make the target and note the job there; learn which parts are finished."""
        order = {"target": self.request["target"], "job": self.noted(), "before": self.before}
        answer = await self._ask_one(claim, order, "claim")
        self.done = {int(number): facts for number, facts in answer["done"].items()}

    def noted(self) -> dict[str, Any]:
        """Return what the target says of the job until it is finished."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "identity": self.job.identity,
            "run": self.context.run,
            "checksums": self.request["checksums"],
            "parts": self.parts,
            "splitters": self.splitters,
        }

    def missing(self) -> dict[int, int]:
        """Return part → records of what is not done; one of no size where nothing is planned."""
        if self.parts is None:
            return {0: 0}
        return {n: size for n, size in enumerate(self.parts) if n not in self.done}

    # ---- after

    async def finish(self) -> dict[str, Any]:
        """Check the sums, write the manifest and return it."""
        facts = [self.done[number] for number in sorted(self.done)]
        records = sum(part["records"] for part in facts)
        sums = np.array([part["sums"] for part in facts], np.uint32).sum(0, dtype=np.uint32)
        read = np.array([*self.sums.values()], np.uint32).sum(0, dtype=np.uint32)
        if records != self.job.records or (self.sums and not np.array_equal(sums, read)):
            raise RecordsError(
                f"{records} records were written of {self.job.records} that were read, or others: "
                "the files changed while they were sorted; empty the target and call again"
            )
        checksum = None
        if self.request["checksums"]:
            checksum = f"{sum(int(part['checksum'], 16) for part in facts):x}"
        kept = ("name", "records", "nbytes", "checksum", "first", "last")
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "job": self.job.identity,
            "sources": [file.path for file in self.job.files],
            "target": self.request["target"],
            "records": records,
            "checksum": checksum,
            "parts": [{key: part[key] for key in kept} for part in facts],
        }
        order = {"target": self.request["target"], "manifest": manifest, "run": self.context.run}
        await self._ask_one(finish, order, "finish")
        return manifest

    # ---- questions

    async def _ask(
        self,
        task: Callable[[Mapping[str, Any]], None],
        order: Mapping[str, Any],
        step: str,
        workers: Iterable[str] | None = None,
    ) -> dict[str, Any]:
        """Return the answers of workers to a task, by default of all."""
        while True:
            attempt = RecordsAttempt(self.context, next(self.numbers))
            there = self.context.workers
            asked = list(there) if workers is None else [w for w in workers if w in there]
            try:
                attempt.dispatch(task, dict.fromkeys(asked, order))
                return await attempt.everyone(None, step)
            except LostWorker as lost:
                await again(self.context, attempt.number, lost)

    async def _ask_one(
        self, task: Callable[[Mapping[str, Any]], None], order: Mapping[str, Any], step: str
    ) -> dict[str, Any]:
        """Return the answer of one worker to a task."""
        while True:
            attempt = RecordsAttempt(self.context, next(self.numbers))
            try:
                attempt.dispatch(task, dict.fromkeys([*self.context.workers][:1], order))
                (answer,) = (await attempt.everyone(None, step)).values()
                return dict(answer)
            except LostWorker as lost:
                await again(self.context, attempt.number, lost)


class RecordsAttempt(Attempt):
    """An attempt whose tasks may refuse files or folders."""

    def _check(self, worker: str, answer: Mapping[str, Any]) -> None:
        if "refused" in answer:
            raise RecordsError(answer["refused"])
        super()._check(worker, answer)


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
                "kept_nbytes": sort.memory[worker].kept,
                "threads": sort.threads(worker),
                "scribe": worker == busy[0],
            }
            for worker in busy
        }
        self.work = {w: sum(end - first for first, end in o["runs"]) for w, o in orders.items()}
        self.dispatch(sort_share, orders)
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
        found = dealt([(first, end) for first, end, _ in spans], seen, sizes, most)
        sort.runs |= {(first, end): worker for first, end, worker in found}

    async def _edges(
        self, runs: list[tuple[int, int]], sizes: list[int], exact: list[int]
    ) -> np.ndarray:
        """Have all sort their runs; return where each is cut for the parts, from 0 to its end.

        Parts end at the ranks ``exact`` as exactly as a round of counts tells.
        """
        sort = self.sort
        own = {worker: [r for r in runs if sort.runs[r] == worker] for worker in self.workers}
        told = await self.everyone("samples", "sort")
        samples = {}
        for worker in self.workers:
            for n, run in enumerate(own[worker]):
                samples[run] = _keys(told[worker]["samples"][n])
                sort.sums[run] = np.frombuffer(told[worker]["sums"][n], np.uint32)
        lengths = [end - first for first, end in runs]
        ranks = [*accumulate(sizes)][:-1]
        if sort.parts is None:
            some = [samples[run] for run in runs]
            inner = await offload(candidates, some, lengths, exact[:-1])
            tried = np.union1d(inner, await offload(candidates, some, lengths, ranks, 1))
        else:
            tried = np.unique(_keys(b"".join(map(bytes.fromhex, sort.splitters))))
        packed = tried.tobytes()
        for worker in self.workers:
            self.tell(worker, count=packed)
        told = await self.everyone("below", "count")
        below, through = (
            [
                np.frombuffer(told[sort.runs[run]][side][own[sort.runs[run]].index(run)], np.int64)
                for run in runs
            ]
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
