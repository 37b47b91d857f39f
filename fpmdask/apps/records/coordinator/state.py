"""One sort of records over its attempts: what is there, who has read what, which parts are done."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any

import numpy as np
from dask.utils import format_bytes

from fpmdask.apps.records.plan import VERSION, Job, merged, run_records
from fpmdask.apps.records.spec import CLAIM, FINISH, SURVEY, TIDY
from fpmdask.errors import PartitionError, RecordsError
from fpmdask.records.format import RECORD_NBYTES
from fpmdask.records.verify import FORMAT, checked_manifest, part_name
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.speeds import Speeds
from fpmdask.runtime.coordinator.team import Attempt, attempted
from fpmdask.runtime.memory import Account
from fpmdask.runtime.wire import Step

# Of a worker's memory limit, what a sort may use whatever else is there.
WORKING = 0.1


@dataclass(frozen=True)
class Memory:
    """Bytes of a worker's memory for a sort: ``working`` on runs and parts, ``kept`` beside that.

    The first is a tenth of its limit, whatever was there before, so that parts are of the same
    size in the next call; the second what is left up to the spill target, which is below the pause.
    Without a limit parts have the largest size that there is, and its machine's memory bounds it.
    """

    working: float
    kept: float


def memory_of(context: RunContext, address: str, resident: float, available: float) -> Memory:
    """Return what a sort may use on a worker.

    Parameters
    ----------
    resident
        Bytes that are in its process.
    available
        Bytes that its machine has for it beside that.
    """
    state = context.scheduler.workers.get(address)
    target = context.coordinator.known_workers.accounts.spill_target
    if state is None or not state.memory_limit:
        return Memory(math.inf, target * available)
    working = WORKING * state.memory_limit
    # the worker has just measured its process: none of that is expected to go
    account = Account(state.memory_limit, target, beside=resident)
    return Memory(working, account.free(reserved=working))


class RecordsAttempt(Attempt):
    """An attempt whose tasks may refuse files or folders."""

    def _check(self, worker: str, answer: Mapping[str, Any]) -> None:
        if "refused" in answer:
            raise RecordsError(answer["refused"])
        super()._check(worker, answer)


class RecordsSort:
    """One sort, over its attempts: what is sorted, who has read what, which parts are done."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.request = context.spec["records"]
        self.numbers = count()
        self.job = Job(())
        self.seen: list[list[str]] = []
        self.disk: dict[str, tuple[Any, float]] = {}  # which one it spills to, and its free bytes
        self.memory: dict[str, Memory] = {}
        self.needed = 0  # bytes of the parts that the target lacks
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
        found = await self._ask(SURVEY, order, "survey")
        name = self.context.name
        for source in self.request["sources"]:
            lacking = [answer["lacking"].get(source) for answer in found.values()]
            if all(lacking):
                raise RecordsError(f"{lacking[0]} (no worker finds it)")
        by_name = {name(worker): answer["files"] for worker, answer in found.items()}
        self.job, seen = merged(by_name)
        addresses = {name(worker): worker for worker in found}
        self.seen = [[addresses[each] for each in there] for there in seen]
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
            complete = self._complete(manifest, first["names"])
            if first["untidy"]:
                order = {"target": self.request["target"], "identity": self.job.identity}
                await self._ask_one(TIDY, order, "tidy")
            return complete
        self._resume(first["job"], first["names"])
        if not self.job.records:
            self.parts = []
        free = min(answer["target_nbytes"] for answer in found.values())
        needed = self._missing_nbytes(first["names"])
        if free < needed:
            raise RecordsError(
                f"{self.request['target']} has room for {format_bytes(int(free))}, the sorted "
                f"records need {format_bytes(int(needed))}; make room, or give another target"
            )
        self.needed = needed
        self._note_room(found)
        return None

    def _note_room(self, found: Mapping[str, Any]) -> None:
        """Note the memory of workers, and what is free where they spill, less what is written."""
        for worker, answer in found.items():
            written = self.needed if answer["target_is_local"] else 0
            free = max(0.0, answer["local_nbytes"] - written)
            self.disk[worker] = tuple(answer["local_disk"]), free
        beside = Counter(host for (host, _), _ in self.disk.values())
        for worker, answer in found.items():
            available = answer["available_nbytes"] / beside[answer["local_disk"][0]]
            resident = answer["resident_nbytes"]
            self.memory[worker] = memory_of(self.context, worker, resident, available)

    async def look_again(self) -> None:
        """Learn what workers see that have come since the first look; others are not asked."""

        def new(there: Iterable[str]) -> list[str]:
            return [worker for worker in there if worker not in self.memory]

        if not new(self.context.workers):
            return
        order = {"sources": self.request["sources"], "target": self.request["target"]}
        found = await self._ask(SURVEY, order, "survey", new)
        if self.parts is not None:
            self.needed = sum(self.missing().values()) * RECORD_NBYTES
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
        return manifest | {"target": target}  # the folder may have been moved

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
            try:
                return await speeds.shares(self.job.records, self._room())
            except PartitionError as error:
                raise RecordsError(str(error)) from error
        there = {context.name(address): address for address in context.workers}
        if not self.began:
            self._check_distribution(given, there)
        shares = {address: given.get(name, 0) for name, address in there.items()}
        if (left := sum(shares.values())) < self.job.records:  # a worker was lost
            parts = {a: (n if left else 1) * self.job.records for a, n in shares.items()}
            ends = [end // (left or len(shares)) for end in accumulate(parts.values())]
            shares = dict(zip(parts, np.diff([0, *ends]).tolist(), strict=True))
        context.set_result(shares, dict.fromkeys(shares), None, "given", shares)
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

    def _room(self) -> Callable[[str], float]:
        """Return how many records a worker can take: in memory, and on its part of a disk."""
        sharing = Counter(self.disk[w][0] for w in self.context.workers if w in self.disk)

        def room(address: str) -> float:
            if address not in self.disk:
                return 0.0
            which, free = self.disk[address]
            return (self.memory[address].kept + free / max(1, sharing[which])) // RECORD_NBYTES

        return room

    def threads(self, address: str) -> int:
        """Return how many runs or parts a worker does at once: its threads, or its slots."""
        state = self.context.scheduler.workers.get(address)
        return max(1, state.nthreads if state else 1, self.context.coordinator.slots)

    def most(self, address: str) -> int:
        """Return how many records a run or part may have there."""
        working, threads = self.memory[address].working, self.threads(address)
        return run_records(working, threads, self.context.tuning.records)

    async def claim(self) -> None:
        """Make the target and note the job there; learn which parts are finished."""
        order = {"target": self.request["target"], "job": self.noted(), "before": self.before}
        answer = await self._ask_one(CLAIM, order, "claim")
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
        order = {"target": self.request["target"], "manifest": manifest}
        await self._ask_one(FINISH, order, "finish")
        return manifest

    # ---- questions

    async def _ask(
        self,
        task: Step,
        order: Mapping[str, Any],
        step: str,
        some: Callable[[Iterable[str]], list[str]] = list,
    ) -> dict[str, Any]:
        """Return the answers to a task of all workers that are there, or ``some`` of them."""

        async def asked(number: int) -> dict[str, Any]:
            attempt = RecordsAttempt(self.context, number)
            attempt.dispatch(task, dict.fromkeys(some(self.context.workers), order))
            return await attempt.everyone(None, step)

        return await attempted(self.context, self.numbers, asked)

    async def _ask_one(self, task: Step, order: Mapping[str, Any], step: str) -> dict[str, Any]:
        """Return the answer of one worker to a task."""
        (answer,) = (await self._ask(task, order, step, lambda there: [*there][:1])).values()
        return dict(answer)
