"""How the time of the layouts grows in workers, and how near they come to squares.

Run ``python benchmarks/layout_growth.py``: two tables on the screen, their figures in
``benchmarks/results/layout_growth.json``. Each time is the median of several calls on one core.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fpmdask.layout import br, columns, fpm_br, kl
from fpmdask.models import ConstantModel

RESULTS = Path(__file__).parent / "results"
PROMISE = 0.050  # seconds of `columns` for 1,000 workers
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
Row = dict[str, Any]


def median(call: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of `call`, after one call to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def grow(repeats: int) -> list[Row]:
    """Return one row per number of workers: the seconds of each function."""
    rows: list[Row] = []
    print(f"{'workers':>8} {'columns':>10} {'br':>10} {'kl':>10} {'fpm_br':>10}   ms")
    for workers in (10, 30, 100, 300, 1000, 3000):
        speeds = np.random.default_rng(workers).uniform(1, 100, workers)
        models = [ConstantModel(s) for s in speeds]
        shape = (4 * workers, 4 * workers)
        row: Row = {
            "workers": workers,
            "columns": median(lambda s=speeds: columns(s), repeats),
            "br": median(lambda s=speeds, m=shape: br(s, m), repeats),
            "kl": median(lambda s=speeds, m=shape: kl(s, m), repeats),
            "fpm_br": median(lambda s=models, m=shape: fpm_br(s, m), repeats),
        }
        rows.append(row)
        times = " ".join(f"{row[n] * 1e3:10.2f}" for n in ("columns", "br", "kl", "fpm_br"))
        print(f"{workers:8,d} {times}", flush=True)
    return rows


def nearness(cases: int) -> list[Row]:
    """Return, per range of workers, the distribution of half-perimeter / lower bound."""
    rng = np.random.default_rng(2011)
    found: dict[tuple[int, int], list[float]] = {(2, 3): [], (4, 15): [], (16, 64): []}
    for _ in range(cases):
        workers = int(rng.integers(2, 65))
        layout = columns(10 ** rng.uniform(0, rng.uniform(0, 2), workers))
        key = next(k for k in found if workers <= k[1])
        found[key].append(layout.half_perimeter / layout.lower_bound)
    found[(4, 64)] = found[(4, 15)] + found[(16, 64)]
    print(f"\n{'workers':>8} {'sets':>6} {'mean':>7} " + " ".join(f"{q:7.0%}" for q in QUANTILES))
    rows: list[Row] = []
    for (low, high), ratios in found.items():
        row: Row = {
            "workers": [low, high],
            "sets": len(ratios),
            "mean": float(np.mean(ratios)),
            "quantiles": dict(
                zip(map(str, QUANTILES), np.quantile(ratios, QUANTILES).tolist(), strict=True)
            ),
        }
        rows.append(row)
        parts = " ".join(f"{v:7.4f}" for v in row["quantiles"].values())
        print(f"{f'{low}-{high}':>8} {row['sets']:6d} {row['mean']:7.4f} {parts}")
    return rows


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cases", type=int, default=10_000)
    options = parser.parse_args()
    growth = grow(options.repeats)
    result = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "growth": growth,
        "nearness": nearness(options.cases),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "layout_growth.json").write_text(json.dumps(result, indent=1) + "\n")
    took = next(row["columns"] for row in growth if row["workers"] == 1000)
    print(f"\ncolumns for 1,000 workers: {took * 1e3:.1f} ms, promised {PROMISE * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
