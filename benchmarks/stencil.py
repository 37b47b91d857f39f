"""`Balancer.stencil` against iterated `dask.array.map_overlap` on unequal workers.

Every turn of every side has a lab of its own. The input is persisted evenly, for Dask in three
chunkings; ours gets 24 chunks of rows. A *first* call is the first one on this lab; *later* ones
follow it. Results are compared by their sums. A second case is what a notebook's user does: small,
and many sweeps.

    python benchmarks/stencil.py --repeats 3 [--cases large small]
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dfpa_matmul_parts.bench import table
from distributed import Client, wait

import fpmdask
from fpmdask.apps.stencil import jacobi
from fpmdask.lab import Lab

# rows and columns, sweeps, Dask's chunkings
CASES: dict[str, tuple[int, int, tuple[tuple[int, int], ...]]] = {
    "large": (6144, 10, ((1024, 6144), (256, 6144), (1536, 1536))),
    "small": (512, 100, ((512, 512), (86, 512), (256, 256))),
}
LATER = 2


def padded(block: np.ndarray) -> np.ndarray:
    """Return what map_overlap wants: the block's own shape."""
    found = np.empty_like(block)
    found[1:-1, 1:-1] = jacobi(block)
    return found


def persisted(n: int, chunks: tuple[int, int]) -> da.Array:
    rows = da.arange(n, chunks=chunks[0], dtype=float)
    columns = da.arange(n, chunks=chunks[1], dtype=float)
    x = da.sin(rows[:, None] * columns[None, :]).persist()
    wait(x)
    return x


def by_dask(client: Client, n: int, sweeps: int, chunks: tuple[int, int]) -> dict[str, Any]:
    x = persisted(n, chunks)
    began = time.perf_counter()
    u = x
    for _ in range(sweeps):
        u = da.map_overlap(
            padded, u, depth=1, boundary="reflect", dtype=float, meta=np.empty((0, 0))
        )
    u = u.persist()
    wait(u)
    return {"seconds": [time.perf_counter() - began], "sum": float(u.sum().compute())}


def by_us(client: Client, n: int, sweeps: int) -> dict[str, Any]:
    x = persisted(n, (-(-n // 24), n))
    balancer = fpmdask.Balancer(client)
    found: dict[str, Any] = {"seconds": [], "phases": []}
    for _ in range(1 + LATER):
        began = time.perf_counter()
        u = balancer.stencil(jacobi, x, sweeps)
        found["seconds"].append(time.perf_counter() - began)
        report = balancer.report
        assert report is not None
        found["phases"].append({k: round(v, 3) for k, v in report.phases.items()})
        found["shares"] = [dict(share) for share in report.shares]
        found["sum"] = float(u.sum().compute())
        del u
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lab", default="hcl6")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/stencil.json"))
    options = parser.parse_args()
    # as an installation does: a checkout may have none, and compiling counts on slow workers
    compileall.compile_dir(Path(fpmdask.__file__).parent, quiet=1)
    results: dict[str, Any] = {}
    for name in options.cases:
        n, sweeps, chunkings = CASES[name]
        sides: dict[str, Any] = {"ours": None, **{f"dask {c}": c for c in chunkings}}
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side, chunks in sides.items():
                lab = Lab.from_toml(options.lab, name=f"stencil-{os.getpid()}")
                with lab, Client(lab.scheduler_address) as client:
                    made = (
                        by_us(client, n, sweeps)
                        if chunks is None
                        else by_dask(client, n, sweeps, chunks)
                    )
                found[side].append(made)
                print(name, side, made, flush=True)
        sums = [one["sum"] for turns in found.values() for one in turns]
        np.testing.assert_allclose(sums, sums[0], rtol=1e-9)
        first = {
            side: statistics.median(one["seconds"][0] for one in turns)
            for side, turns in found.items()
        }
        later = statistics.median(s for one in found["ours"] for s in one["seconds"][1:])
        best = min(seconds for side, seconds in first.items() if side != "ours")
        rows = [[side, f"{seconds:.2f}"] for side, seconds in first.items()]
        table(f"{n}² x {sweeps} sweeps", ["side", "first s"], rows)
        ratios = {"first": best / first["ours"], "later": best / later, "later s": later}
        print("best of Dask's over ours: " + str(ratios), flush=True)
        results[name] = {**found, "ratios": ratios}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
