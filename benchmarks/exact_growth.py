"""Growth of `exact` and of the dynamic program with the number of sizes, in seconds.

Run with ``python benchmarks/exact_growth.py [--json FILE] [--quick]``. Sixteen workers, units =
sizes. The tables are not monotone: *steep* (rising, 20 % scatter), *random*, *gaps* (odd sizes
are impossible) and *caches* (a saw). The dynamic program T(i, n) = min over x of
max(T(i - 1, n - x), t_i(x)) is written in the two ways that NumPy makes fast: for each size x all
totals at once, and for blocks of totals n, small enough for the cache, all sizes at once. The
ratio is that of the faster one. It runs up to 16,384 sizes; its makespans must equal `exact`'s.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fpmdask.partition import exact

Array = NDArray[np.float64]
WORKERS = 16
KINDS = ("steep", "random", "gaps", "caches")


def tables(kind: str, sizes: int, seed: int = 0) -> list[Array]:
    """Return one table per worker for 0 to `sizes` units."""
    rng = np.random.default_rng(seed)
    x = np.arange(sizes + 1)
    found = []
    for speed in rng.uniform(1, 4, WORKERS):
        scatter = rng.uniform(0.8, 1.2, x.size)
        seconds = {
            "steep": x / speed * scatter,
            "random": rng.uniform(0, 1, x.size),
            "gaps": np.where(x % 2 == 0, x / speed * scatter, np.inf),
            "caches": x / speed * (1 + 0.5 * (x % 64 > 32)),
        }[kind]
        seconds[0] = 0
        found.append(seconds)
    return found


def dp_by_size(units: int, times: list[Array]) -> float:
    """Return the optimal makespan: for each size x, all n at once."""
    best = times[0][: units + 1].copy()
    scratch = np.empty(units + 1)
    for table in times[1:]:
        new = np.maximum(best, table[0])
        for x in range(1, units + 1):
            part = scratch[: units + 1 - x]
            np.maximum(best[: units + 1 - x], table[x], out=part)
            np.minimum(new[x:], part, out=new[x:])
        best = new
    return float(best[units])


def dp_by_total(units: int, times: list[Array]) -> float:
    """Return the optimal makespan: for blocks of totals n, all sizes at once."""
    best, block = times[0][: units + 1].copy(), max(1, 2**17 // (units + 1))
    for table in times[1:]:
        padded = np.concatenate([np.full(units, np.inf), best])
        windows = sliding_window_view(padded, units + 1)
        backwards = table[units::-1].copy()
        new = np.empty(units + 1)
        for n in range(0, units + 1, block):
            new[n : n + block] = np.maximum(windows[n : n + block], backwards).min(axis=1)
        best = new
    return float(best[units])


def timed(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return the least of `repeats` durations, and what the last call returned."""
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        least = min(least, time.perf_counter() - start)
    return least, result


def measure(kind: str, sizes: int, with_program: bool) -> dict[str, Any]:
    """Return one row; stops where `exact` and a dynamic program disagree."""
    times = tables(kind, sizes)
    seconds, distribution = timed(lambda: exact(sizes, times), 3)
    makespan = max(float(t[x]) for t, x in zip(times, distribution, strict=True))
    row: dict[str, Any] = {"kind": kind, "sizes": sizes, "exact": seconds}
    if with_program:
        for name, program in (("by_size", dp_by_size), ("by_total", dp_by_total)):
            row[name], optimum = timed(partial(program, sizes, times), 1)
            if optimum != makespan:
                raise SystemExit(f"{kind}, {sizes} sizes: {makespan} found, {optimum} optimal")
        row["ratio"] = min(row["by_size"], row["by_total"]) / seconds
    return row


def main() -> None:
    """Print the table and, on request, write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--quick", action="store_true", help="up to 4,096 sizes only")
    arguments = parser.parse_args()
    rows = []
    print(f"{'tables':8} {'sizes':>7} {'exact':>9} {'DP by x':>9} {'DP by n':>9} {'ratio':>7}")
    for sizes in (1024, 2048, 4096) if arguments.quick else (1024, 4096, 16_384, 65_536):
        for kind in KINDS:
            row = measure(kind, sizes, with_program=sizes <= 16_384)
            rows.append(row)
            shown = [
                f"{row[k]:9.4f}" if k in row else f"{'':9}"
                for k in ("exact", "by_size", "by_total")
            ]
            ratio = f"{row['ratio']:6.1f}x" if "ratio" in row else ""
            print(f"{kind:8} {sizes:7d} {' '.join(shown)} {ratio}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
