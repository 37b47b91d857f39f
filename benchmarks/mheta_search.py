"""How good the distributions are that MHETA's searches find, and what a whole search costs.

    python benchmarks/mheta_search.py [--json FILE] [--seeds N] [--programs N] [--quick]

Two comparisons, both as ratios of predicted times. *Table 1*: the twenty pairs of machine and
program, 8 nodes, 4,096 rows, ten seeds, against the best distribution known, which is the best
that any search found with any seed, or one gbs with twenty times the budget. *Small programs*: 500
random ones on 2 to 4 nodes with scarce memory, at most some thousand distributions, against
`exhaustive`: gbs with ten seeds, the others with one. All start from the four anchors and Blk
again; the budget is 10,000 distributions. Milliseconds are those of a whole search, predictions
included.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from mheta_parts.random_programs import random_program
from mheta_parts.table1 import ROWS, pairs
from numpy.typing import NDArray

from fpmdask.mheta import Machine, Program, anchors, evaluator
from fpmdask.mheta.search import SearchResult, annealing, exhaustive, gbs, genetic, random_search

CORNERS = ("Blk", "I-C", "I-C/Bal", "Bal", "Blk")
SEARCHES: tuple[Callable[..., SearchResult], ...] = (gbs, genetic, annealing, random_search)
BUDGET = 10_000
Row = dict[str, Any]


def starts(program: Program, machine: Machine, rows: int) -> NDArray[np.int64]:
    """Return the distributions that every search starts from."""
    found = anchors(program, machine, rows)
    return np.array([found[name] for name in CORNERS])


def searched(
    search: Callable[..., SearchResult],
    predict: Any,
    start: NDArray[np.int64],
    seeds: Iterable[int],
) -> list[Row]:
    """Return what a search found with each seed."""
    found = []
    for seed in seeds:
        began = time.perf_counter()
        result = search(predict, start, rng=np.random.default_rng(seed), budget=BUDGET)
        elapsed = time.perf_counter() - began
        found.append(
            {
                "search": search.__name__,
                "seed": seed,
                "predicted_s": result.seconds,
                "evaluations": result.evaluations,
                "search_s": elapsed,
            }
        )
    return found


def table_1(seeds: int) -> list[Row]:
    """Search all pairs of Table 1; print what a whole gbs costs on each."""
    print(f"gbs on Table 1, {seeds} seeds; evaluations and ms: medians")
    print(
        f"{'machine':8} {'program':15} {'best known, s':>13} {'best start / it':>15} "
        f"{'gbs / it, worst':>15} {'evaluations':>11} {'ms':>5}"
    )
    rows = []
    for (machine_name, program_name), (program, machine) in pairs().items():
        predict, start = evaluator(program, machine), starts(program, machine, ROWS)
        found = [row for s in SEARCHES for row in searched(s, predict, start, range(seeds))]
        rng = np.random.default_rng(seeds)
        long = gbs(predict, start, rng=rng, budget=20 * BUDGET).seconds
        best = min(long, *(row["predicted_s"] for row in found))
        for row in found:
            row |= {"machine": machine_name, "program": program_name}
            row["ratio"] = row["predicted_s"] / best
        own = [row for row in found if row["search"] == "gbs"]
        evaluations, elapsed = (
            np.median([row[key] for row in own]) for key in ("evaluations", "search_s")
        )
        start_ratio, ratio = predict(start).min() / best, max(row["ratio"] for row in own)
        print(
            f"{machine_name:8} {program_name:15} {best:13.4f} {start_ratio:15.4f} {ratio:15.5f} "
            f"{evaluations:11.0f} {elapsed * 1e3:5.0f}",
            flush=True,
        )
        rows += found
    return rows


def small_programs(programs: int, seeds: int) -> list[Row]:
    """Search small random programs that have a feasible distribution."""
    rows = []
    for number in range(programs):
        program, machine, units = random_program(number)
        predict, start = evaluator(program, machine), starts(program, machine, units)
        best = exhaustive(predict, start, budget=BUDGET)
        if not np.isfinite(best.seconds):
            continue
        for search in SEARCHES:
            for row in searched(search, predict, start, range(seeds if search is gbs else 1)):
                row["program"] = number
                row["ratio"] = row["predicted_s"] / best.seconds
                row["part"] = row["evaluations"] / best.evaluations
                rows.append(row)
    return rows


def summary(title: str, rows: list[Row]) -> None:
    """Print worst and mean ratio and what a search costs, a line per search."""
    with_part = "part" in rows[0]
    print(f"\n{title}")
    print(
        f"{'search':14} {'searches':>8} {'ratio, worst':>12} {'mean':>8} {'above 1.005':>11} "
        f"{'evaluations':>11} {'ms':>5}{'of all' if with_part else '':>8}"
    )
    for search in SEARCHES:
        own = [row for row in rows if row["search"] == search.__name__]
        ratios = np.array([row["ratio"] for row in own])
        evaluations, elapsed = (
            np.median([row[key] for row in own]) for key in ("evaluations", "search_s")
        )
        part = f"{np.median([row['part'] for row in own]):8.0%}" if with_part else ""
        print(
            f"{search.__name__:14} {ratios.size:8d} {ratios.max():12.5f} {ratios.mean():8.5f} "
            f"{(ratios > 1.005).sum():11d} {evaluations:11.0f} {elapsed * 1e3:5.0f}{part}"
        )


def main() -> None:
    """Print the tables and, on request, write all searches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write a row per search to this file")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--programs", type=int, default=500, help="small random programs")
    parser.add_argument("--quick", action="store_true", help="two seeds, 50 programs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.programs = 2, 50
    pairs_found = table_1(arguments.seeds)
    title = f"Table 1 against the best known: {arguments.seeds} seeds; evaluations and ms: medians"
    summary(title, pairs_found)
    small_found = small_programs(arguments.programs, arguments.seeds)
    summary(
        f"{len({row['program'] for row in small_found})} small random programs against exhaustive; "
        "evaluations and ms: medians",
        small_found,
    )
    if arguments.json:
        found = {"table_1": pairs_found, "small_programs": small_found}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
