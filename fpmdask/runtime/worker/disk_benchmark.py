"""Microbenchmark of a worker's block file: small calls, for MHETA's machine.

Runs on workers, in the thread of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from fpmdask.runtime.worker.block_file import BlockFile, Prefetch, aligned

REPEATS = 5
NBYTES = 4096  # a sector


def benchmark_disk(file: BlockFile, repeats: int = REPEATS) -> dict[str, Any]:
    """Return a read, a write, and the seconds of a prefetch's issue beyond those of the read.

    Returns
    -------
    dict
        ``reads`` and ``writes``, of one call each: (nbytes, seconds); ``prefetch_overhead_s``.

    Notes
    -----
    Medians of calls that move a sector, each after one that is not timed. Where a read is waited
    for longer than its issue takes, which is so on any real disk, the third is negative.
    """
    memory = aligned(NBYTES)
    memory[:] = 0
    rows = file.reserve((1, NBYTES), np.uint8)
    block, span = memory.reshape(1, NBYTES), (0, 1)

    def issue() -> Prefetch:
        return rows.prefetch(span, block)

    writing = _seconds(lambda: rows.write(span, block), repeats)
    reading = _seconds(lambda: rows.read(span, block), repeats)
    issuing = _seconds(issue, repeats, Prefetch.wait)
    return {
        "reads": [(NBYTES, reading)],
        "writes": [(NBYTES, writing)],
        "prefetch_overhead_s": issuing - reading,
    }


def _seconds(
    call: Callable[[], object], repeats: int, after: Callable[..., object] | None = None
) -> float:
    found = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        made = call()
        found.append(time.perf_counter() - began)
        if after is not None:
            after(made)
    return median(found[1:])
