"""What of a sort of records is decided without data: who reads what, and what the parts are."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from fpmdask.errors import RecordsError
from fpmdask.records.format import RECORD_NBYTES, File
from fpmdask.tuning import DEFAULT, RecordsTuning

# Of what the target says of a job that is not finished.
VERSION = 1

# A run or part needs so many times its bytes: itself, its order, copies on their way; with room.
AT_ONCE = 4


@dataclass(frozen=True)
class Job:
    """What is sorted: files, one after the other; their records are numbered through."""

    files: tuple[File, ...]

    @property
    def records(self) -> int:
        """Records in all."""
        return sum(file.records for file in self.files)

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.records * RECORD_NBYTES

    @cached_property
    def identity(self) -> str:
        """A name for just these versions of these files."""
        text = json.dumps([(file.path, file.nbytes, file.stamp) for file in self.files])
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> list[tuple[str, int, str]]:
        """Return plain data."""
        return [(file.path, file.nbytes, file.stamp) for file in self.files]

    @classmethod
    def from_json(cls, data: Sequence[Sequence[Any]]) -> Job:
        """Rebuild a job from `to_json`; what a row has more is left out."""
        return cls(tuple(File(str(row[0]), int(row[1]), str(row[2])) for row in data))


def merged(found: Mapping[str, Sequence[Sequence[Any]]]) -> tuple[Job, list[list[str]]]:
    """Return the files that workers have found, in the order of the sources, and who sees each.

    Parameters
    ----------
    found : mapping
        Worker -> its files, as `Job.to_json` has them, each with the number of its source.

    Raises
    ------
    RecordsError
        If two workers see different files under one path, or there is no record in any.

    Examples
    --------
    >>> job, seen = merged({"b": [("x", 200, "1", 1)], "a": [("y", 100, "7", 0)]})
    >>> [file.path for file in job.files], seen
    (['y', 'x'], [['a'], ['b']])
    """
    files: dict[str, File] = {}
    sources: dict[str, int] = {}
    seen: dict[str, list[str]] = {}
    for worker, there in found.items():
        for file, (*_, source) in zip(Job.from_json(there).files, there, strict=True):
            known = files.setdefault(file.path, file)
            sources[file.path] = min(source, sources.get(file.path, source))
            if known != file:
                raise RecordsError(
                    f"{file.path} is not the same file for all workers: {known.nbytes} bytes on "
                    f"{seen[file.path][0]}, {file.nbytes} on {worker}, or of another time; name "
                    "files of a shared folder, or give those of one worker other names"
                )
            seen.setdefault(file.path, []).append(worker)
    paths = sorted(files, key=lambda path: (sources[path], path))
    return Job(tuple(files[path] for path in paths)), [seen[path] for path in paths]


def run_records(working: float, threads: int, tuning: RecordsTuning = DEFAULT.records) -> int:
    """Return how many records a run or a part may have on a worker with so many bytes for them.

    Raises
    ------
    RecordsError
        If that is too little to work with.

    Examples
    --------
    >>> run_records(float("inf"), 1), run_records(100e6, 2)
    (671088, 125000)
    """
    nbytes = min(tuning.part_most_nbytes, working / (AT_ONCE * threads))
    if nbytes < tuning.part_least_nbytes:
        needed = AT_ONCE * threads * tuning.part_least_nbytes
        raise RecordsError(
            f"a worker has {working / 1e6:.0f} MB of memory to work with; "
            f"{needed / 1e6:.0f} MB are needed: give it more, or fewer "
            "threads"
        )
    return int(nbytes) // RECORD_NBYTES


def dealt(
    spans: Sequence[tuple[int, int]],
    paths: Sequence[str],
    seen: Sequence[Sequence[str]],
    shares: Mapping[str, int],
    most: Mapping[str, int],
) -> list[tuple[int, int, str]]:
    """Return the runs (first record, end, worker) in which the input is read, in its order.

    Parameters
    ----------
    spans : sequence of (int, int)
        First record and end of each piece of the input, within one file; in order.
    paths : sequence of str
        The file of each, for the error.
    seen : sequence of sequence of str
        Who can read each.
    shares : mapping
        Worker -> records that it can read and sort while the others do theirs.
    most : mapping
        Worker -> records of a run, at most.

    Raises
    ------
    RecordsError
        If nobody among ``shares`` can read a piece.

    Notes
    -----
    What few can read is dealt first; then everybody gets neighbouring records, up to its share.
    Where those who can read a piece have no share left they get it all the same, in the ratio of
    their shares. O(spans · workers + runs).

    Examples
    --------
    >>> dealt([(0, 100), (100, 150)], ["x", "y"], [["a", "b"], ["b"]], {"a": 100, "b": 50},
    ...       {"a": 60, "b": 60})
    [(0, 50, 'a'), (50, 100, 'a'), (100, 150, 'b')]
    """
    left = dict(shares)
    given: list[tuple[int, int, str]] = []
    for number in sorted(range(len(spans)), key=lambda n: (len(seen[n]), n)):
        allowed = set(seen[number])
        readers = [worker for worker in shares if worker in allowed]
        if not readers:
            raise RecordsError(
                f"{paths[number]} was only on workers that are gone or left out; start one that "
                "can read it and call again: parts that are finished are taken up"
            )
        at, end = spans[number]
        for worker in readers:
            count = min(left[worker], end - at)
            if count > 0:
                given.append((at, at + count, worker))
                left[worker] -= count
                at += count
        whole = sum(shares[worker] for worker in readers)
        over, done, weight = end - at, 0, 0
        for n, worker in enumerate(readers, 1):
            weight += shares[worker]
            upto = over * weight // whole if whole else over * n // len(readers)
            if upto > done:
                given.append((at + done, at + upto, worker))
                left[worker] -= upto - done
                done = upto
    joined: list[tuple[int, int, str]] = []
    for first, end, worker in sorted(given):
        if joined and joined[-1][1:] == (first, worker):
            joined[-1] = joined[-1][0], end, worker
        else:
            joined.append((first, end, worker))
    return [
        (first + low, first + high, worker)
        for first, end, worker in joined
        for low, high in cut(end - first, most[worker])
    ]


def split_at(spans: Sequence[tuple[int, int]], ends: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return spans cut where files end, each with the number of its file.

    Examples
    --------
    >>> split_at([(10, 120)], [100, 150])
    [(10, 100, 0), (100, 120, 1)]
    """
    found = []
    for first, end in spans:
        number = bisect_right(ends, first)
        while first < end:
            stop = min(end, ends[number])
            found.append((first, stop, number))
            first, number = stop, number + 1
    return found


def cut(count: int, most: int) -> list[tuple[int, int]]:
    """Return the fewest pieces of about the same size, not more than ``most`` each.

    Examples
    --------
    >>> cut(10, 4), cut(0, 4)
    ([(0, 3), (3, 6), (6, 10)], [])
    """
    pieces = -(-count // most)
    return [(count * n // pieces, count * (n + 1) // pieces) for n in range(pieces)]


def parts_of(shares: Mapping[str, int], threads: Mapping[str, int], most: int) -> list[int]:
    """Return the sizes of the parts: for each worker as many as its threads, or as `most` wants.

    Examples
    --------
    >>> parts_of({"a": 100, "b": 30}, {"a": 1, "b": 2}, 60)
    [50, 50, 15, 15]
    """
    sizes = []
    for worker, share in shares.items():
        if share:
            pieces = min(share, max(threads[worker], -(-share // most)))
            sizes += [share * (n + 1) // pieces - share * n // pieces for n in range(pieces)]
    return sizes


def assigned(sizes: Mapping[int, int], shares: Mapping[str, int]) -> dict[str, list[int]]:
    """Return worker -> parts, neighbouring ones, as near to the shares as whole parts allow.

    Parameters
    ----------
    sizes : mapping
        Part -> records in it.
    shares : mapping
        Worker -> records, as many as all parts have together. Empty parts alone go to anybody.

    Examples
    --------
    >>> assigned({0: 50, 1: 50, 4: 15, 5: 15}, {"a": 100, "b": 30})
    {'a': [0, 1], 'b': [4, 5]}
    """
    found: dict[str, list[int]] = {worker: [] for worker in shares}
    workers = [worker for worker, share in shares.items() if share] or [*shares]
    ends = [*accumulate(shares[worker] for worker in workers)]
    at, number = 0, 0
    for part, size in sizes.items():
        while number < len(ends) - 1 and at + size / 2 > ends[number]:
            number += 1
        found[workers[number]].append(part)
        at += size
    return found
