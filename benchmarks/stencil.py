"""`Balancer.stencil` against iterated `dask.array.map_overlap` on unequal workers.

Every turn of every side has a lab of its own. The input is persisted evenly, for Dask in three
chunkings; ours gets 24 chunks of rows. A *first* call is the first one on this lab; *later* ones
follow it; *even* is a first call of ours in even shares. Results are compared by their sums.

- large, longer: what fits in memory.
- small: what a notebook's user does, many sweeps of little.
- disk: from and to Zarr, three times the memory of the small workers of `hy1`; Dask spills there,
  to the machine's own disk, ours streams from disks as slow as the lab says.

*Ideal* is all rows at the speeds at which the workers have computed theirs.

    python benchmarks/stencil.py --repeats 3 [--cases large small longer disk]
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dfpa_matmul_parts.bench import table
from distributed import Client, wait

import fpmdask
from fpmdask.apps.stencil import jacobi
from fpmdask.lab import Lab

Chunks = tuple[int, int]
LATER = 2


@dataclass(frozen=True)
class Case:
    """A square of so many rows and columns, iterated so often, and Dask's chunkings."""

    n: int
    sweeps: int
    chunkings: tuple[Chunks, ...]
    lab: str = "hcl6"
    zarr: bool = False
    even: bool = False


CASES = {
    "large": Case(6144, 10, ((1024, 6144), (256, 6144), (1536, 1536)), even=True),
    "small": Case(512, 100, ((512, 512), (86, 512), (256, 256))),
    "longer": Case(8192, 50, ((1366, 8192), (512, 8192), (2048, 2048)), even=True),
    "disk": Case(12288, 10, ((3072, 12288), (512, 12288), (2048, 2048)), "hy1", zarr=True),
}


def padded(block: np.ndarray) -> np.ndarray:
    """Return what map_overlap wants: the block's own shape."""
    found = np.empty_like(block)
    found[1:-1, 1:-1] = jacobi(block)
    return found


def values(n: int, chunks: Chunks) -> da.Array:
    rows = da.arange(n, chunks=chunks[0], dtype=float)
    columns = da.arange(n, chunks=chunks[1], dtype=float)
    found: da.Array = da.sin(rows[:, None] * columns[None, :])
    return found


def given(case: Case, chunks: Chunks, folder: Path) -> Any:
    """Return the input: in the workers' memory, or a Zarr array in these chunks."""
    if not case.zarr:
        x = values(case.n, chunks).persist()
        wait(x)
        return x
    import zarr

    shape = (case.n, case.n)
    made = zarr.create_array(folder / "u0", shape=shape, chunks=chunks, dtype="f8")
    for low in range(0, case.n, chunks[0]):  # not by workers that have little memory
        rows = np.arange(low, min(case.n, low + chunks[0]), dtype=float)
        made[low : low + chunks[0]] = np.sin(rows[:, None] * np.arange(case.n, dtype=float))
    return made


def target(case: Case, chunks: Chunks, folder: Path) -> Any:
    if not case.zarr:
        return None
    import zarr

    shape = (case.n, case.n)
    return zarr.create_array(folder / "out", shape=shape, chunks=chunks, dtype="f8", overwrite=True)


def summed(u: Any, chunks: Chunks) -> float:
    """Return the sum of a result; of a Zarr array here, as workers may have little memory."""
    if isinstance(u, da.Array):
        return float(u.sum().compute())
    return float(sum(u[low : low + chunks[0]].sum() for low in range(0, u.shape[0], chunks[0])))


def by_dask(case: Case, chunks: Chunks, folder: Path) -> dict[str, Any]:
    x, out = given(case, chunks, folder), target(case, chunks, folder)
    began = time.perf_counter()
    u = da.from_zarr(x) if case.zarr else x
    for _ in range(case.sweeps):
        u = da.map_overlap(
            padded, u, depth=1, boundary="reflect", dtype=float, meta=np.empty((0, 0))
        )
    if case.zarr:
        da.store(u, out, lock=False)
    else:
        u = u.persist()
        wait(u)
    seconds = time.perf_counter() - began
    return {"seconds": [seconds], "sum": summed(out if case.zarr else u, chunks)}


def by_us(case: Case, client: Client, folder: Path, distribution: str) -> dict[str, Any]:
    chunks = (-(-case.n // 24), case.n)
    x = given(case, chunks, folder)
    balancer = fpmdask.Balancer(client)
    found: dict[str, Any] = {"seconds": [], "phases": [], "of_ideal": []}
    for _ in range(1 + LATER if distribution == "mheta" else 1):
        out = target(case, chunks, folder)
        began = time.perf_counter()
        u = balancer.stencil(jacobi, x, case.sweeps, out=out, distribution=distribution)
        found["seconds"].append(time.perf_counter() - began)
        report = balancer.report
        assert report is not None
        found["phases"].append({k: round(v, 3) for k, v in report.phases.items()})
        found["shares"] = [dict(share) for share in report.shares]
        speeds = [one["units"] / one["compute_seconds"] for one in report.shares if one["units"]]
        found["of_ideal"].append(case.n / sum(speeds) / report.phases["iterate"])
        found["sum"] = summed(out if case.zarr else u, chunks)
        del u
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/stencil.json"))
    options = parser.parse_args()
    # as an installation does: a checkout may have none, and compiling counts on slow workers
    compileall.compile_dir(Path(fpmdask.__file__).parent, quiet=1)
    results: dict[str, Any] = {}
    for name in options.cases:
        case = CASES[name]
        sides: dict[str, Any] = {"ours": "mheta"}
        if case.even:
            sides["ours, even"] = "even"
        sides |= {f"dask {chunks}": chunks for chunks in case.chunkings}
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side, how in sides.items():
                folder = Path(tempfile.mkdtemp(prefix="fpmdask-stencil-"))
                lab = Lab.from_toml(case.lab, name=f"stencil-{os.getpid()}")
                try:
                    with lab, Client(lab.scheduler_address) as client:
                        made = (
                            by_us(case, client, folder, how)
                            if isinstance(how, str)
                            else by_dask(case, how, folder)
                        )
                finally:
                    shutil.rmtree(folder)
                found[side].append(made)
                print(name, side, made, flush=True)
        sums = [one["sum"] for turns in found.values() for one in turns]
        np.testing.assert_allclose(sums, sums[0], rtol=1e-9)
        first = {
            side: statistics.median(one["seconds"][0] for one in turns)
            for side, turns in found.items()
        }
        later = statistics.median(s for one in found["ours"] for s in one["seconds"][1:])
        best = min(seconds for side, seconds in first.items() if side.startswith("dask"))
        ideal = [
            statistics.median(some)
            for some in zip(*(t["of_ideal"] for t in found["ours"]), strict=True)
        ]
        rows = [[side, f"{seconds:.2f}"] for side, seconds in first.items()]
        table(f"{case.n}² x {case.sweeps} sweeps on {case.lab}", ["side", "first s"], rows)
        ratios = {"first": best / first["ours"], "later": best / later, "later s": later}
        ratios |= {"of the ideal, first": ideal[0], "of the ideal, later": ideal[-1]}
        if case.even:
            ratios["even over ours, first"] = first["ours, even"] / first["ours"]
        print("best of Dask's over ours: " + str(ratios), flush=True)
        results[name] = {**found, "ratios": ratios}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
