"""`X.T @ X` of a tall X by ranges of K and by Dask, from persisted chunks of rows, on a lab.

    python benchmarks/matmul_gram.py [--sizes 4000000x32 200000x512] [--chunks 48] [--lab hcl6]
        [--repeats 3] [--layout auto]

Both multiply the same X in turns; our first turn measures where lines are handed over. The products
are compared with Dask's. A table and JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dfpa_matmul_parts.bench import Bench, bench, table
from distributed import wait
from sort_against_dask import clocked


def turns(made: Bench, size: tuple[int, int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Multiply one X in turns."""
    height, width = size
    chunks = (-(-height // options.chunks), width)
    x = da.random.default_rng(1).random((height, width), chunks=chunks).persist()
    wait(x)

    def by_dask() -> da.Array:
        found = (x.T @ x).persist()
        wait(found)
        return found

    found = []
    for _ in range(options.repeats):
        right, turn = clocked(made, by_dask)
        expected = right.compute()
        del right  # or the next turn would find it done
        found.append({**turn, "kind": "dask"})
        c, turn = clocked(made, lambda: made.balancer.matmul(x.T, x, layout=options.layout))
        np.testing.assert_allclose(c.compute(), expected, rtol=1e-9)
        report = made.balancer.report
        assert report is not None
        del c
        found.append({**turn, "kind": report.layout["name"], "why": report.layout["why"]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["4000000x32", "200000x512"])
    parser.add_argument("--chunks", type=int, default=48, help="of rows")
    parser.add_argument("--lab", default="hcl6")
    parser.add_argument("--layout", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/matmul_gram.json"))
    options = parser.parse_args()
    results = {}
    for size in options.sizes:
        height, width = map(int, size.split("x"))
        with bench(options.lab) as made:
            results[size] = turns(made, (height, width), options)
        rows = [
            [turn["kind"], turn["seconds"], turn["cpu_seconds"], turn["bytes_moved"] / 1e6]
            for turn in results[size]
        ]
        table(f"X.T @ X, X {size}, {options.lab}", ["kind", "s", "CPU s", "MB moved"], rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
