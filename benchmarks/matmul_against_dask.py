"""`Balancer.matmul` against `A @ B` of dask.array, from persisted uniform chunks, on the lab.

    python benchmarks/matmul_against_dask.py [--sizes 4096,8192] [--repeats 1] [--layout auto]

Both multiply the same inputs in turns, in five chunkings; every product is checked on sampled rows.
*Ideal* is the work over the speeds that the workers show, all at once, after each of our products.
Resident memory right after it and bytes moved are beside the seconds. JSON and a table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import psutil
from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, bench, panel, table
from dfpa_matmul_parts.chunks import Chunks, chunkings
from distributed import wait

from fpmdask.timing import TimingPolicy

DEEP = 512
POLICY = TimingPolicy(min_repetitions=1, min_seconds=2.0, budget_seconds=3.0, warmup=0)
KINDS = ("dask", "first", "known")  # ours without models, and with those of the first


def with_slabs(n: int) -> dict[str, tuple[Chunks, Chunks]]:
    """Return the four chunkings of `chunkings` and one of 4096, where that is not the whole."""
    made = chunkings(n, quick=False)
    if n > 4096:
        axis = (4096,) * (n // 4096)
        made["4096"] = ((axis, axis), (axis, axis))
    return made


def cpu_seconds() -> float:
    """Return what this worker process has used."""
    return time.process_time()


def resident_nbytes() -> int:
    """Return the resident memory of this worker process now."""
    return int(psutil.Process().memory_info().rss)


def ideal(made: Bench, n: int, units: dict[str, int]) -> float:
    """Return the seconds of a product at the speeds that all workers show at once."""
    took = made.measure(units, panel(n, DEEP), POLICY)
    return n / sum(units[name] * DEEP / n / seconds for name, seconds in took.items() if seconds)


def turn(made: Bench, n: int, label: str, inputs: tuple[Chunks, Chunks], layout: str) -> Any:
    """Multiply one pair of inputs by Dask and by us, without and with models."""
    a, b = (data.chunked(made.client, name, c) for name, c in zip("ab", inputs, strict=True))
    depth = made.fresh_depth(n, n)
    found: dict[str, Any] = {"chunks": label}
    for kind in KINDS:
        data.warm_memory()
        before = made.client.run(cpu_seconds)
        began = time.perf_counter()
        if kind == "dask":
            c = (a @ b).persist()
            wait(c)
        else:
            c = made.balancer.matmul(a, b, layout=layout, depth=depth)
        wall = time.perf_counter() - began
        after = made.client.run(cpu_seconds)
        found[kind] = {
            "seconds": wall,
            "cpu_seconds": sum(after[w] - before[w] for w in after),
            "resident_nbytes": made.client.run(resident_nbytes),
            "error": data.check(c),
        }
        if kind != "dask":
            report = made.balancer.report
            assert report is not None
            units = dict(zip(report.workers, map(int, report.distribution), strict=True))
            found[kind] |= {
                "ideal_seconds": ideal(made, n, units),
                "phases": dict(report.phases),
                "bytes_moved": report.bytes_moved,
                "shares": [dict(share) for share in report.shares],
            }
        del c
    return found


def summary(turns: list[Any]) -> dict[str, Any]:
    """Return medians per chunking and the ratios of the best."""

    def middle(label: str, kind: str, key: str = "seconds") -> float:
        return statistics.median(t[kind][key] for t in turns if t["chunks"] == label)

    labels = list(dict.fromkeys(t["chunks"] for t in turns))
    best = {kind: min(middle(label, kind) for label in labels) for kind in KINDS}
    return {
        "medians": {label: {kind: middle(label, kind) for kind in KINDS} for label in labels},
        "best": best,
        "best_dask_over_best_first": best["dask"] / best["first"],
        "best_dask_over_best_known": best["dask"] / best["known"],
        "efficiency": {
            label: {
                kind: statistics.median(
                    t[kind]["ideal_seconds"] / t[kind]["seconds"]
                    for t in turns
                    if t["chunks"] == label
                )
                for kind in KINDS[1:]
            }
            for label in labels
        },
    }


def show(n: int, found: dict[str, Any], turns: list[Any]) -> None:
    rows = []
    for label, medians in found["medians"].items():
        ours = [t["first"] for t in turns if t["chunks"] == label]
        cpu = [statistics.median(t[k]["cpu_seconds"] for t in turns if t["chunks"] == label)
               for k in ("dask", "first")]  # fmt: skip
        rows.append(
            [
                label,
                *(medians[kind] for kind in KINDS),
                *(found["efficiency"][label][kind] for kind in KINDS[1:]),
                ours[0]["bytes_moved"] / 1e9,
                *cpu,
            ]
        )
    table(
        f"n = {n}, float64, hcl6: seconds (medians of {len(turns) // len(rows)})",
        ["chunks", "dask s", "ours s", "models known s", "ours / ideal", "known / ideal",
         "moved GB", "dask CPU s", "ours CPU s"],
        rows,
    )  # fmt: skip
    print(
        f"  best of dask over best of ours: {found['best_dask_over_best_first']:.2f}, "
        f"with models {found['best_dask_over_best_known']:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="4096,8192")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layout", default="auto")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/matmul_against_dask.json")
    )
    options = parser.parse_args()
    results: dict[str, Any] = {"layout": options.layout}
    with bench("hcl6") as made:
        for n in map(int, options.sizes.split(",")):
            turns = [
                turn(made, n, label, inputs, options.layout)
                for _ in range(options.repeats)
                for label, inputs in with_slabs(n).items()
            ]
            results[str(n)] = {"turns": turns, **summary(turns)}
            show(n, results[str(n)], turns)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1, default=str))


if __name__ == "__main__":
    main()
