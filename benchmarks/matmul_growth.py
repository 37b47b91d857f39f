"""How a product's time, bytes and tasks grow with the matrices and with the workers.

    python benchmarks/matmul_growth.py [--sizes 1024 … 16384] [--workers 2 4 8 16]

Every product is of matrices in chunks of 1024, on a lab whose workers share 1.4 cores as 4 : 3 : 2
: 1, in turn; the second one of its kind, which goes by what the first has taught. The workers are
varied at n = 4096. *Tasks* are those submitted: shares, helps, and a recipe per chunk of C. JSON, a
table and a plot.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, bench, figure, table

CHUNK = 1024
CORES = 1.4
PATTERN = (4, 3, 2, 1)
MIDDLE = 4096
WORKERS = 6


def definition(workers: int, folder: Path) -> str:
    """Write the definition of a lab and return its path."""
    weights = [PATTERN[i % len(PATTERN)] for i in range(workers)]
    # the kernel's smallest quota is 1 ms per period
    period = max(0.010, 1.1e-3 * sum(weights) / (CORES * min(weights)))
    lines = [
        f'description = "{workers} workers that share {CORES} cores"',
        f"[lab]\nperiod = {period:.4f}",
        '[dask]\n"distributed.worker.profile.enabled" = false',
        '"distributed.admin.tick.interval" = "500ms"',
        *(
            f'[[workers]]\nname = "w{i}"\ncpu = {CORES * weight / sum(weights):.4f}'
            for i, weight in enumerate(weights)
        ),
    ]
    path = folder / f"growth{workers}.toml"
    path.write_text("\n".join(lines))
    return str(path)


def product(made: Bench, n: int, repeats: int) -> dict[str, Any]:
    """Multiply once to learn, then as often as asked; return medians."""
    axis = tuple(min(CHUNK, n - at) for at in range(0, n, CHUNK))
    a, b = (data.chunked(made.client, name, (axis, axis)) for name in "ab")
    found = []
    for turn in range(repeats + 1):
        data.warm_memory()
        began = time.perf_counter()
        c = made.balancer.matmul(a, b)
        wall = time.perf_counter() - began
        report = made.balancer.report
        assert report is not None
        if turn:
            tasks = len(report.shares) + len(report.helps) + c.npartitions
            found.append((wall, report.bytes_moved, tasks))
        data.check(c)
        del c
    seconds, nbytes, tasks = (
        float(statistics.median(column)) for column in zip(*found, strict=True)
    )
    return {
        "n": n,
        "workers": len(made.names),
        "seconds": seconds,
        "bytes_moved": nbytes,
        "tasks": int(tasks),
        "gflops": 2 * n**3 / seconds / 1e9,
    }


def show(rows: list[dict[str, Any]]) -> None:
    table(
        "a product as matrices and workers grow (medians)",
        ["n", "workers", "seconds", "Gflop/s", "moved GB", "tasks"],
        [
            [r["n"], r["workers"], r["seconds"], r["gflops"], r["bytes_moved"] / 1e9, r["tasks"]]
            for r in rows
        ],
    )


def draw(rows: list[dict[str, Any]], by: str, axes: Any) -> None:
    for axis, key, name in zip(
        axes, ("seconds", "bytes_moved", "tasks"), ("seconds", "bytes moved", "tasks"), strict=True
    ):
        axis.loglog([row[by] for row in rows], [row[key] for row in rows], "o-")
        axis.set(xlabel=by, ylabel=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1024 << i for i in range(5)])
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/matmul_growth.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with bench(definition(WORKERS, Path(folder))) as made:
            sizes = [product(made, n, options.repeats) for n in options.sizes]
        workers = []
        for count in options.workers:
            with bench(definition(count, Path(folder))) as made:
                workers.append(product(made, MIDDLE, options.repeats))
    show(sizes)
    show(workers)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"sizes": sizes, "workers": workers}, indent=1))
    for rows, by in ((sizes, "n"), (workers, "workers")):
        path = options.out.with_name(f"{options.out.stem}_{by}.png")
        figure(path, 3, lambda *axes, rows=rows, by=by: draw(rows, by, axes))


if __name__ == "__main__":
    main()
