"""A product while a worker dies, and while one slows down to a third, half-way.

    python benchmarks/matmul_disturbed.py [--size 6144] [--repeats 3]

On the lab's ``hcl6``, inputs in chunks of 1024, with models of products before. *Killed*: over the
time of the remaining workers alone, undisturbed (at most 1.5 is wanted). *Slowed*: over the ideal
of both phases, from the speeds that all workers show at once (at most 1.25 is wanted). Results are
checked. JSON, a table and a plot.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, Target, bars, bench, figure, table
from matmul_against_dask import Case, ideal

import fpmdask

CHUNK = 1024
KILLED = "w3"
SLOWED, SLOWER = "w1", 3.0


def product(
    balancer: fpmdask.Balancer, a: Any, b: Any, at: float = 0.0, event: Callable[[], None] = int
) -> float:
    """Return the seconds of a product in which `event` happens `at` so many seconds."""
    data.warm_memory()
    timer = threading.Timer(at, event)
    if at:
        timer.start()
    began = time.perf_counter()
    c = balancer.matmul(a, b)
    wall = time.perf_counter() - began
    if at:
        timer.join()
    data.check(c)
    return wall


def inputs(made: Bench, n: int) -> tuple[Any, Any]:
    axis = tuple(min(CHUNK, n - at) for at in range(0, n, CHUNK))
    a, b = (data.chunked(made.client, name, (axis, axis)) for name in "ab")
    return a, b


def killed(made: Bench, n: int) -> dict[str, float]:
    """Kill a worker half-way; it is started again afterwards."""
    others = fpmdask.Balancer(made.client, workers=[w for w in made.names if w != KILLED])
    a, b = inputs(made, n)
    product(others, a, b)
    remaining = product(others, a, b)
    product(made.balancer, a, b)
    undisturbed = product(made.balancer, a, b)
    disturbed = product(made.balancer, a, b, undisturbed / 2, lambda: made.lab.kill_worker(KILLED))
    made.lab.restart_worker(KILLED)
    made.client.wait_for_workers(len(made.names))
    return {
        "undisturbed": undisturbed,
        "remaining": remaining,
        "disturbed": disturbed,
        "factor": disturbed / remaining,
    }


def slowed(made: Bench, n: int, case: Case) -> dict[str, float]:
    """Cut a worker's quota half-way; it is given back afterwards."""
    a, b = inputs(made, n)
    product(made.balancer, a, b)
    undisturbed = product(made.balancer, a, b)
    report = made.balancer.report
    assert report is not None
    units = dict(zip(report.workers, map(int, report.distribution), strict=True))
    whole = ideal(made, case, units)
    cores = {worker.name: float(worker.cpu or 1.0) for worker in made.lab.workers}
    left = 1 - cores[SLOWED] * (1 - 1 / SLOWER) / sum(cores.values())
    cut = undisturbed / 2
    disturbed = product(
        made.balancer, a, b, cut, lambda: made.lab.set_quota(SLOWED, cores[SLOWED] / SLOWER)
    )
    made.lab.set_quota(SLOWED, cores[SLOWED])
    both = cut + max(0.0, whole - cut) / left
    return {
        "undisturbed": undisturbed,
        "ideal": whole,
        "ideal_of_both": both,
        "disturbed": disturbed,
        "factor": disturbed / both,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=6144)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/matmul_disturbed.json")
    )
    options = parser.parse_args()
    n = options.size
    found: dict[str, list[dict[str, float]]] = {"killed": [], "slowed": []}
    for _ in range(options.repeats):
        with bench("hcl6") as made:  # a lab for each: a slow worker's models would be wrong later
            found["killed"].append(killed(made, n))
            found["slowed"].append(slowed(made, n, Case((n, n, n), "f8")))
    for name, rows in found.items():
        table(f"{name}, n = {n}", list(rows[0]), [list(row.values()) for row in rows])
    targets = [
        Target(
            f"{name}: factor", wanted, statistics.median(r["factor"] for r in found[name]), False
        )
        for name, wanted in (("killed", 1.5), ("slowed", 1.25))
    ]
    for target in targets:
        print(f"{target.what}: {target.measured:.2f}, wanted <= {target.wanted}: {target.met}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1))
    middle = {
        name: {what: statistics.median(row[what] for row in rows) for what in rows[0]}
        for name, rows in found.items()
    }
    for facts in middle.values():
        del facts["factor"]
    figure(options.out.with_suffix(".png"), 1, lambda axis: bars(axis, middle))


if __name__ == "__main__":
    main()
