"""Microbenchmark of a worker's block file: small calls, for MHETA's machine.

Runs on workers, in the thread of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from fpmdask.runtime.worker.block_file import SECTOR, Prefetch, Region, aligned

REPEATS = 5


def benchmark_disk(rows: Region, repeats: int = REPEATS) -> dict[str, Any]:
    """Time small reads and writes of a worker's disk, and how much longer a prefetch's issue takes.

    Parameters
    ----------
    rows
        That have been written, and that no one needs any more.

    Returns
    -------
    dict
        ``reads`` and ``writes``, of one call each: (nbytes, seconds); ``prefetch_overhead_s``.

    Notes
    -----
    Medians of calls that move a sector, each far from the one before, unless the rows are few: as a
    block's are, which is read between the writes of others, so that neither the system nor the disk
    has read it ahead. It is in a disk's cache where all of the rows are, too. One call of each kind
    is not timed. Where a read is waited for longer than its issue takes, which is so on any real
    disk, the third is negative.
    """
    sectors = rows.in_sectors()
    count = sectors.shape[0]
    memory = aligned(SECTOR).reshape(1, SECTOR)
    places = [n * (count - 1) // repeats for n in range(repeats + 1)]

    def issue(at: int) -> Prefetch:
        return sectors.prefetch((at, at + 1), memory)

    reading = _seconds(lambda at: sectors.read((at, at + 1), memory), places)
    issuing = _seconds(issue, places, Prefetch.wait)
    writing = _seconds(lambda at: sectors.write((at, at + 1), memory), places)
    return {
        "reads": [(SECTOR, reading)],
        "writes": [(SECTOR, writing)],
        "prefetch_overhead_s": issuing - reading,
    }


def _seconds(
    call: Callable[[int], Any], places: Sequence[int], after: Callable[[Any], None] | None = None
) -> float:
    found = []
    for at in places:
        began = time.perf_counter()
        made = call(at)
        found.append(time.perf_counter() - began)
        if after is not None:
            after(made)
    return median(found[1:])
