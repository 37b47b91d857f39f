"""A worker's part in a sort of records: its runs of the input, its parts of the result."""

from __future__ import annotations

import os
import queue
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np

from fpmdask.apps.records.kernel import gather
from fpmdask.apps.records.plan import Job
from fpmdask.apps.records.spec import SORT
from fpmdask.apps.records.worker.runs import SPARSE, Run, picked
from fpmdask.apps.records.worker.survey import JOB, note, side_name
from fpmdask.errors import RecordsError, RunCancelledError
from fpmdask.records.files import Folder, read
from fpmdask.records.format import (
    KEY,
    KEY_NBYTES,
    RECORD_NBYTES,
    Records,
    checksum,
    order,
    word_sums,
)
from fpmdask.records.verify import part_name
from fpmdask.runtime.worker.fetch import FetchFailed, Want
from fpmdask.runtime.worker.side import RunSpace, WorkerSide
from fpmdask.runtime.worker.spill import Spilled, SpillFile
from fpmdask.runtime.worker.steps import Commands, step
from fpmdask.sorting.splitters import place_of, sampled
from fpmdask.storage import said

# Records that are gathered, summed and written at once: they stay in the cache meanwhile.
STEP = 1 << 14
# Under which the run keeps its spill file.
SPILL = "spill"


def sort_share(order: Mapping[str, Any]) -> None:
    """Task: sort ``order["runs"]`` of the input, then make parts of the result."""
    step(SORT, order, lambda side, space: _answer(side, space, order))


def _answer(side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return _Share(side, space, order).sort()
    except FetchFailed as failed:
        return {"missing": failed.peers[0]}
    except RecordsError as error:
        return {"refused": f"{error} (worker {side.worker.name})"}


def run_key(first: int, end: int) -> tuple[str, int, int]:
    """Return the key under which a worker offers a sorted run."""
    return "fpmdask-run", first, end


class _Share:
    def __init__(self, side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> None:
        self.side, self.space, self.order = side, space, order
        self.job = Job.from_json(order["files"])
        self.offsets = [0, *accumulate(file.records for file in self.job.files)]
        self.target = Folder(order["target"])
        self.threads: int = order["threads"]
        attempt = order["attempt"]
        self.commands = Commands(side, space, SORT, order, f"attempt {attempt}", attempt=attempt)
        self.heard: list[Mapping[str, Any]] = []
        self.seconds: dict[str, float] = {}
        self.counting = threading.Lock()
        self.received = self.spilled = 0
        self.cpu = time.process_time()
        self.began = time.perf_counter()
        self.buffers: queue.SimpleQueue[Records] = queue.SimpleQueue()
        runs, (turn, of) = order["runs"], order["turn"]
        self._make_buffers(max((end - first for first, end in runs), default=0))
        self.places = {first: place_of(turn, of, n, len(runs)) for n, (first, _) in enumerate(runs)}
        kept = sum(
            run.held.nbytes
            for run in space.kept.values()
            if isinstance(run, Run) and not isinstance(run.held, Spilled)
        )
        self.room: float = order["kept_nbytes"] - kept

    def _make_buffers(self, records: int) -> None:
        """Have one buffer per thread, of so many records."""
        while not self.buffers.empty():
            self.buffers.get()
        for n in range(self.threads):
            buffer = self.space.scratch.take(f"records.{n}", (records, RECORD_NBYTES), np.uint8)
            self.buffers.put(buffer)

    def sort(self) -> Mapping[str, Any]:
        """Go through the steps, each at the coordinator's word."""
        job = self.target.read_json(JOB)
        if job is None or job.get("run") != self.order["run"]:
            raise RecordsError(
                f"{self.order['target']} is not the same folder for all workers; give one that all "
                "share"
            )
        runs = self._each(self._run, self.order["runs"])
        self.commands.tell(
            samples=[run.samples.tobytes() for run in runs],
            places=[run.place for run in runs],
            sums=[run.sums.tobytes() for run in runs],
        )
        tried = np.frombuffer(self._command("count"), KEY)
        with self._timed("count"):
            counts = [run.search(tried) for run in runs]
        self.commands.tell(
            below=[below.tobytes() for below, _ in counts],
            through=[through.tobytes() for _, through in counts],
        )
        if self.order["scribe"]:
            note(self.target, self._command("plan"))
            self.commands.tell(planned=True)
        wanted = self._command("exchange")
        self._parts(wanted)
        return {
            "seconds": sum(self.seconds.values()),
            "finished": time.perf_counter() - self.began,
            "phases": self.seconds,
            "nbytes_received": self.received,
            "nbytes_spilled": self.spilled,
            "cpu_seconds": {"process": time.process_time() - self.cpu},
            "records_read": sum(run.size for run in runs),
            "nbytes_input": sum(run.size for run in runs) * RECORD_NBYTES,
        }

    def _each(self, work: Callable[[Any], Any], things: Sequence[Any]) -> list[Any]:
        """Do the same for several things in the worker's threads; what one raises ends all."""
        failed = threading.Event()

        def unless_failed(thing: Any) -> Any:
            if failed.is_set():
                raise RunCancelledError("another thread has failed")
            try:
                self._check()
                return work(thing)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(self.threads, "fpmdask-records") as pool:
            doing = [pool.submit(unless_failed, thing) for thing in things]
        failures = [each.exception() for each in doing]
        failures.sort(key=lambda error: isinstance(error, RunCancelledError))
        found = next(filter(None, failures), None)
        try:
            if found is not None:
                raise found
            return [each.result() for each in doing]
        finally:
            # an exception holds this frame, and all that is to be forgotten with the run
            del doing, failures, found

    # ---- before the exchange

    def _run(self, span: Sequence[int]) -> Run:
        """Return a sorted run, one of an earlier attempt if that is kept."""
        first, end = span
        key = run_key(first, end)
        known: Run | None = self.space.kept.get(key)
        if known is not None:
            return known
        buffer = self.buffers.get()
        try:
            run = self._sorted(first, end, buffer[: end - first])
        finally:
            self.buffers.put(buffer)
        self.space.kept[key] = run
        self.space.exchange.offer(key, run.offered)
        self.commands.tell(done=span)  # a sign of life
        return run

    def _sorted(self, first: int, end: int, records: Records) -> Run:
        with self._timed("read"):
            for number, low, high in self._places(first, end):
                at = self.offsets[number] + low - first
                read(self.job.files[number], low, records[at : at + high - low])
        with self._timed("sort"):
            sums = word_sums(records)
            numbers = order(records)
        place = self.places[first]
        samples = picked(records, sampled(numbers, self.order["samples"], place))
        with self.counting:
            fits = self.room >= records.nbytes
            if fits:
                self.room -= records.nbytes
        if fits:
            with self._timed("gather"):
                held = np.empty_like(records)
                gather(records, numbers, held)
            return Run(first, end, held, samples[:0], samples, place, sums)
        with self._disk():
            spilled = self._spill_file().reserve(records.nbytes)
            for block in self._gathered("gather", records, numbers):
                with self._timed("spill"):
                    spilled.write(block)
        with self.counting:
            self.spilled += records.nbytes
        return Run(first, end, spilled, picked(records, numbers[::SPARSE]), samples, place, sums)

    def _spill_file(self) -> SpillFile:
        with self.counting:
            known: SpillFile | None = self.space.kept.get(SPILL)
            if known is None:
                known = self.space.kept[SPILL] = SpillFile(self.side.worker.local_directory)
        return known

    def _places(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Give (file, first record, end) of what the input's records ``first … end`` are."""
        number = int(np.searchsorted(self.offsets, first, "right")) - 1
        while first < end:
            stop = min(end, self.offsets[number + 1])
            if first < stop:
                start = self.offsets[number]
                yield number, first - start, stop - start
            first, number = stop, number + 1

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self.side.worker.local_directory
            raise RecordsError(f"{where} cannot hold what is spilled: {said(error)}") from error

    # ---- the exchange

    def _parts(self, wanted: Sequence[Any]) -> None:
        """Make parts of the result: (number, size, pieces of runs) each."""
        self._make_buffers(max((size for _, size, _ in wanted), default=0))
        self.space.exchange.know(self.order["channels"])

        def make(part: Sequence[Any]) -> None:
            buffer = self.buffers.get()
            try:
                number, size, pieces = part
                self._part(number, pieces, buffer[:size])
            finally:
                self.buffers.put(buffer)

        self._each(make, wanted)

    def _part(self, number: int, pieces: Sequence[Sequence[Any]], records: Records) -> None:
        with self._timed("exchange"):
            self._receive(pieces, records)
        with self._timed("merge"):
            numbers = order(records)
        total = 0
        sums = np.zeros(RECORD_NBYTES // 4, np.uint32)
        name = part_name(number)
        suffix = f"{self.order['run']}-{self.order['attempt']}-{os.getpid()}"
        with self.target.writing(name, suffix, durable=True) as write:
            for block in self._gathered("merge", records, numbers):
                sums += word_sums(block)
                if self.order["checksums"]:
                    with self._timed("checksum"):
                        total += checksum(block)
                with self._timed("write"):
                    write(block)
            facts = {
                "job": self.job.identity,
                "name": name,
                "records": len(records),
                "nbytes": records.nbytes,
                "checksums": self.order["checksums"],
                "checksum": f"{total:x}" if self.order["checksums"] else None,
                "first": records[numbers[0], :KEY_NBYTES].tobytes().hex() if numbers.size else "",
                "last": records[numbers[-1], :KEY_NBYTES].tobytes().hex() if numbers.size else "",
                "sums": sums.tolist(),
            }
            self.target.write_json(side_name(number), facts)
        self.commands.tell(part=number, facts=facts)

    def _receive(self, pieces: Sequence[Sequence[Any]], records: Records) -> None:
        """Fill ``records`` with pieces of runs, in the order of the input."""
        own = self.side.worker.address
        wanted: dict[str, list[Want]] = {}
        here, at = [], 0
        for peer, first, end, low, high in pieces:
            target = records[at : at + high - low]
            at += high - low
            key = run_key(first, end)
            if peer == own:
                here.append((self.space.kept[key], low, high, target))
                continue
            box = ((low * RECORD_NBYTES, high * RECORD_NBYTES),)
            wanted.setdefault(peer, []).append(Want(key, box, target.reshape(-1), (peer,)))
        with self._disk():
            for run, low, high, target in here:
                run.take(low, high, target)
        # everybody begins with those behind it, so that not all ask the same one first
        turns = _turned(sorted(wanted), own)
        fetch = self.space.exchange.fetch(want for peer in turns for want in wanted[peer])
        fetch.wait()
        with self.counting:
            self.received += fetch.nbytes

    def _gathered(self, phase: str, records: Records, numbers: np.ndarray) -> Iterator[Records]:
        """Give the records of these numbers, in that order, some at a time, in the same memory."""
        block = np.empty((min(STEP, len(numbers)), RECORD_NBYTES), np.uint8)
        for at in range(0, len(numbers), STEP):
            chosen = numbers[at : at + STEP]
            part = block[: chosen.size]
            with self._timed(phase):
                gather(records, chosen, part)
            yield part

    # ---- the coordinator

    def _check(self) -> None:
        """Stop where the coordinator wants no more of this attempt."""
        while (command := self.commands.poll()) is not None:
            self.heard.append(command)

    def _command(self, what: str) -> Any:
        return (self.heard.pop(0) if self.heard else self.commands.get())[what]

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            with self.counting:
                self.seconds[phase] = self.seconds.get(phase, 0.0) + spent


def _turned(peers: list[str], own: str) -> list[str]:
    at = bisect_right(peers, own)
    return peers[at:] + peers[:at]
