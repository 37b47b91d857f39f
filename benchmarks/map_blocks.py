"""`Balancer.map_blocks` against `dask.array.map_blocks` on unequal workers.

One lab, three functions: bound by CPU (20 s of CPU in all), by memory (passes over the block), and
one with a fixed cost of 50 ms of CPU per call. Dask gets the input in 6, 24 and 96 chunks, each
persisted evenly; ours in 24. Sides take turns. A *first* call is one of a function that was never
called before on this cluster (a different number among its arguments), a *later* one is of the same
function again. What workers do alone, all at once, is measured in the same run: the ideal is all
work at the sum of these speeds. Results are compared by their sums.

    python benchmarks/map_blocks.py --repeats 5 [--functions cpu memory fixed]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dfpa_matmul_parts.bench import table
from distributed import Client, wait

import fpmdask
from fpmdask.lab import Lab

CHUNKS = (6, 24, 96)
OURS = 24
# rows, columns of float64
SHAPES = {"cpu": (96_000, 64), "memory": (960_000, 100), "fixed": (96_000, 64)}
FIXED_SECONDS = 0.05


def cpu(block: np.ndarray, number: int) -> np.ndarray:
    """About 0.2 ms of CPU per row."""
    found = block + number * 0.0
    for _ in range(CPU_PASSES):
        found = np.sin(found)
    return found


def memory(block: np.ndarray, number: int) -> np.ndarray:
    """A few passes over what no cache holds."""
    found = block * 2.0
    for _ in range(12):
        found += block
    found += number * 0.0
    return found


def fixed(block: np.ndarray, number: int) -> np.ndarray:
    """What a call costs that reads a model, say: half of the work is that of rows."""
    end = time.thread_time() + FIXED_SECONDS
    while time.thread_time() < end:
        np.sin(np.zeros(1000))
    found = block + number * 0.0
    for _ in range(CPU_PASSES // 2):
        found = np.sin(found)
    return found


CPU_PASSES = 320
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {"cpu": cpu, "memory": memory, "fixed": fixed}


def clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made


def computed(made: da.Array) -> da.Array:
    persisted = made.persist()
    wait(persisted)
    return persisted


def one_chunk(function: str, rows: int, columns: int) -> float:
    """Task: rows per second, of a few calls on one chunk."""
    block = np.random.default_rng(0).random((rows, columns))
    work = FUNCTIONS[function]
    work(block, 0)
    began = time.perf_counter()
    for _ in range(2):
        work(block, 0)
    return 2 * rows / (time.perf_counter() - began)


def ideal(client: Client, function: str, rows: int, columns: int) -> float:
    """Return the seconds that all rows take at the sum of the workers' speeds, all busy at once."""
    names = client.scheduler_info(n_workers=-1)["workers"]
    futures = [
        client.submit(one_chunk, function, rows // 24, columns, workers=[name], pure=False)
        for name in names
    ]
    return rows / sum(client.gather(futures))


def case(client: Client, balancer: fpmdask.Balancer, name: str, repeats: int) -> dict[str, Any]:
    rows, columns = SHAPES[name]
    function = FUNCTIONS[name]
    least = rows // max(CHUNKS)
    base = computed(
        da.random.RandomState(1).random_sample((rows, columns), chunks=(least, columns))
    )
    inputs = {count: computed(base.rechunk((rows // count, columns))) for count in CHUNKS}
    expected = float(da.map_blocks(function, base, 0, dtype=float).sum().compute())
    del base

    def check(result: da.Array) -> None:
        np.testing.assert_allclose(float(result.sum().compute()), expected, rtol=1e-9)

    found: dict[str, list[float]] = {}
    # modules and memory
    for count in CHUNKS:
        computed(da.map_blocks(function, inputs[count], 0, dtype=float))
    balancer.map_blocks(function, inputs[OURS], 0, dtype=float)
    facts: dict[str, Any] = {"ideal": [], "calls": []}
    for turn in range(1, repeats + 1):
        facts["ideal"].append(ideal(client, name, rows, columns))
        for count in CHUNKS:
            mapped = partial(da.map_blocks, function, inputs[count], turn, dtype=float)
            seconds, result = clocked(lambda mapped=mapped: computed(mapped()))
            found.setdefault(f"dask {count}", []).append(seconds)
            check(result)
            del result
        for which in ("first", "later"):
            ours = partial(balancer.map_blocks, function, inputs[OURS], turn, dtype=float)
            seconds, result = clocked(ours)
            found.setdefault(f"ours {which}", []).append(seconds)
            report = balancer.report
            assert report is not None
            facts["calls"].append([share["calls"] for share in report.shares])
            check(result)
            del result
        print(
            name,
            turn,
            {k: round(v[-1], 2) for k, v in found.items()},
            facts["calls"][-2:],
            flush=True,
        )
    return {**facts, "seconds": found}


def low(values: list[float]) -> float:
    """Return the lower end of the 90 % interval of the median, by resampling."""
    random = np.random.default_rng(0)
    drawn = random.choice(values, (2000, len(values)))
    return float(np.quantile(np.median(drawn, axis=1), 0.05))


def show(name: str, made: dict[str, Any]) -> dict[str, float]:
    seconds, ideal_seconds = made["seconds"], statistics.median(made["ideal"])
    rows = [
        [kind, f"{statistics.median(own):.2f}", f"{ideal_seconds / statistics.median(own):.2f}"]
        for kind, own in seconds.items()
    ]
    table(name, ["side", "s", "of the ideal"], rows)
    best = min(
        (f"dask {count}" for count in CHUNKS), key=lambda kind: statistics.median(seconds[kind])
    )
    ratios = {
        which: [d / o for d, o in zip(seconds[best], seconds[f"ours {which}"], strict=True)]
        for which in ("first", "later")
    }
    one = [d / o for d, o in zip(seconds["dask 6"], seconds["ours later"], strict=True)]
    found = {
        f"first over the best of Dask's ({best}), lower end": low(ratios["first"]),
        "first over it": statistics.median(ratios["first"]),
        "later over it": statistics.median(ratios["later"]),
        "later of the ideal": ideal_seconds / statistics.median(seconds["ours later"]),
        "later over one chunk per worker": statistics.median(one),
    }
    print("  ".join(f"{what}: {value:.2f}" for what, value in found.items()), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lab", default="hcl6")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=[*FUNCTIONS])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/map_blocks.json"))
    options = parser.parse_args()
    lab = Lab.from_toml(options.lab, name=f"blocks-{os.getpid()}")
    results: dict[str, Any] = {}
    with lab, Client(lab.scheduler_address) as client:
        balancer = fpmdask.Balancer(client)
        for name in options.functions:
            made = case(client, balancer, name, options.repeats)
            results[name] = {**made, "summary": show(name, made)}
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
