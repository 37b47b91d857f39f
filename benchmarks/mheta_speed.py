"""Seconds that MHETA takes to predict one distribution.

    python benchmarks/mheta_speed.py [--json FILE] [--quick]

The pairs of machine and program of Table 1, 8 nodes, in microseconds per distribution, the minimum
of 20 repeats: batches of K distributions by a prepared evaluator, one alone by `predict_many`, one
with all its parts by `predict`. *Empty*: in every distribution one node has no rows. Then that
tiles, blocks and rows cost nothing, 64 and 1,024 nodes, and the most memory that 100,000
distributions take beyond themselves. The paper (Nakazawa, Lowenthal and Zhou 2005): 5,400
microseconds.
"""

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mheta_parts.table1 import ROWS, pairs
from numpy.typing import NDArray

from fpmdask.mheta import (
    Array,
    Communication,
    Machine,
    Program,
    Section,
    Stage,
    evaluator,
    predict,
    predict_many,
)

REPEATS = 20
PATTERNS = ("nearest_neighbour", "pipeline", "reduction_tree", "reduction_flat")


def batch(rows: int, nodes: int, count: int, empty: bool = False) -> NDArray[np.int64]:
    """Return random distributions in which every node has rows, or all but one."""
    rng = np.random.default_rng(nodes)
    found = rng.multinomial(rows - nodes, np.ones(nodes) / nodes, size=count) + 1
    if empty:
        at, none = np.arange(count), rng.integers(1, nodes, count)
        found[at, 0] += found[at, none]
        found[at, none] = 0
    return found


def microseconds(repeats: int, count: int, call: Callable[..., Any], *arguments: Any) -> float:
    """Return the minimum of some repeats of a call, per distribution."""
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call(*arguments)
        least = min(least, time.perf_counter() - start)
    return least / count * 1e6


def of_table_1(repeats: int) -> list[dict[str, Any]]:
    """Measure the pairs of Table 1."""
    rows = []
    for (machine_name, program_name), (program, machine) in pairs().items():
        predicts = evaluator(program, machine)
        points = batch(ROWS, machine.nodes, 512)
        empty = batch(ROWS, machine.nodes, 512, empty=True)
        row: dict[str, Any] = {"machine": machine_name, "program": program_name}
        for k in (512, 56, 1):
            row[f"K={k}"] = microseconds(repeats, k, predicts, points[:k])
        for k in (512, 56):
            row[f"K={k} empty"] = microseconds(repeats, k, predicts, empty[:k])
        row["many"] = microseconds(repeats, 1, predict_many, program, machine, points[:1])
        row["predict"] = microseconds(repeats, 1, predict, program, machine, points[0])
        rows.append(row)
    return rows


def made(nodes: int, tiles: int, memory: int, pattern: str) -> tuple[Program, Machine]:
    """Return a program that streams, prefetches and communicates, on unequal nodes."""
    rng = np.random.default_rng(nodes)
    stage = Stage(rng.uniform(1e-3, 2e-3, nodes), reads=["A"], writes=["A"], prefetch=True)
    words = Communication(pattern, 256)
    program = Program([Section([stage], tiles, words)], [Array("A", 1024)])
    figures = {name: rng.uniform(1e-4, 2e-4, nodes) for name in ("send_overhead_s",)}
    return program, Machine(nodes, [memory] * nodes, read_overhead_s=[1e-3] * nodes, **figures)


def of_sizes(repeats: int) -> list[dict[str, Any]]:
    """Measure what tiles, blocks, rows and nodes cost."""
    cases = [
        ("as is", 8, 16, 2**20, 8192),
        ("tiles x 64", 8, 1024, 2**20, 8192),
        ("blocks x 64", 8, 16, 2**14, 8192),
        ("rows x 64", 8, 16, 2**26, 8192 * 64),
        ("64 nodes", 64, 16, 2**20, 8192 * 8),
        ("1024 nodes", 1024, 16, 2**20, 8192 * 128),
    ]
    rows = []
    for name, nodes, tiles, memory, units in cases:
        row: dict[str, Any] = {"case": name}
        points = batch(units, nodes, 512)
        for pattern in PATTERNS:
            predicts = evaluator(*made(nodes, tiles, memory, pattern))
            for k in (512, 1):
                row[f"{pattern} K={k}"] = microseconds(repeats, k, predicts, points[:k])
        rows.append(row)
    return rows


def largest_memory() -> dict[str, float]:
    """Return the memory that 100,000 distributions take beyond themselves and their makespans."""
    predicts = evaluator(*made(64, 16, 2**20, "reduction_flat"))
    points = batch(8192 * 8, 64, 100_000, empty=True)
    tracemalloc.start()
    predicts(points)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"arguments MiB": points.nbytes / 2**20, "peak beyond MiB": peak / 2**20}


def shown(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table, and the largest of each column."""
    names = list(rows[0])
    print("  ".join(f"{name:>14}" for name in names))
    for row in rows:
        print("  ".join(_cell(row[name]) for name in names))
    most = {n: max(r[n] for r in rows) if isinstance(rows[0][n], float) else "" for n in names}
    print("  ".join(_cell(most[n] if most[n] != "" or n != names[0] else "most") for n in names))


def _cell(value: Any) -> str:
    return f"{value:14.2f}" if isinstance(value, float) else f"{value:>14}"


def main() -> None:
    """Print the tables and, on request, write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--quick", action="store_true", help="two repeats: that everything runs")
    arguments = parser.parse_args()
    repeats = 2 if arguments.quick else REPEATS
    print("microseconds per distribution, Table 1, 8 nodes; wanted: 5 (K = 512), 12 (56), 150 (1)")
    table = of_table_1(repeats)
    shown(table)
    print("\nmicroseconds per distribution: tiles, blocks, rows, nodes")
    sizes = of_sizes(repeats)
    shown(sizes)
    memory = largest_memory()
    print("\n100,000 distributions over 64 nodes:", memory)
    if arguments.json:
        result = {"table_1": table, "sizes": sizes, "memory": memory}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
