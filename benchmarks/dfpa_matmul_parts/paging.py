"""One worker pages: constant models cycle, DFPA and full models find the cliff."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dfpa_matmul_parts.bench import Bench, Experiment, Target, bench, panel, rounds_of, table
from dfpa_matmul_parts.full_models import build
from dfpa_matmul_parts.paging_plot import plot
from fpmdask.errors import CoordinatorError
from fpmdask.partition import even, geometric, imbalance, proportional
from fpmdask.timing import FullModelBuilder, TimingPolicy
from fpmdask.tuning import DEFAULT

WIDTH = 4096
DEPTHS = {"constant": 64, "dfpa": 65, "full": 66}  # of each its own: nobody learns from another
# Of the memory that the paging worker seems to have free, by the even share. It pages from 1.15 on,
# and its balanced share would be 1.23 times the even one.
FILLED = 1.02
PAGING = "p4"
ATTEMPTS = 4
# Workers keep the buffers of a run for the next one. What one method has paged out must not be the
# next one's first measurement, so each begins when the buffers are gone.
FORGOTTEN = DEFAULT.runtime.scratch_seconds + 2.0
# A run that brings pages back from the swap is followed by one that shows the size's own time.
POLICY = TimingPolicy(
    relative_error=0.1, min_repetitions=2, min_seconds=0.5, max_repetitions=20, budget_seconds=6.0
)


def run(options: Any, out: Path) -> Experiment:
    """Follow the three methods on the same workers and units."""
    killed: list[str] = []
    while True:
        try:
            found = _methods(options)
        except CoordinatorError as error:
            # Under heavy paging the kernel sometimes kills the worker although swap is free.
            killed.append(str(error))
            print(f"paging: {error}; once more on a new lab", flush=True)
            if len(killed) == ATTEMPTS:
                raise
        else:
            break
    _show(found)
    plot(found, PAGING, out.with_name(out.stem + "_paging.png"))
    return Experiment({**found, "killed": killed}, _targets(found, options.epsilon))


def _methods(options: Any) -> dict[str, Any]:
    """Return what each method did, on one lab; an error if a worker was killed."""
    deadline, turns, points = (10.0, 6, 12) if options.quick else (30.0, 8, 30)
    with bench("paging") as made:
        units = _units(made)
        found: dict[str, Any] = {
            "lab": made.lab.definition.to_json(),
            "units": units,
            "width": WIDTH,
            "deadline": deadline,
        }
        found["constant"] = _constant(made, units, turns, deadline)
        time.sleep(FORGOTTEN)
        found["dfpa"] = _dfpa(made, units, options.epsilon, deadline)
        time.sleep(FORGOTTEN)
        found["full"] = _full(made, units, points, deadline, options.accuracy)
        gone = set(made.names) - set(found["dfpa"]["rounds"][-1]["units"])
        if gone:
            raise CoordinatorError(f"{', '.join(sorted(gone))} left during DFPA")
        return found


def _units(made: Bench) -> int:
    """Return units whose even share nearly fills the memory of the worker that pages."""
    memory = next(worker.memory for worker in made.lab.workers if worker.name == PAGING)
    assert memory is not None
    address = made.addresses[PAGING]
    process = made.client.run(lambda: psutil.Process().memory_info(), workers=[address])[address]
    held = process.rss - process.shared  # what it shares is charged to whoever came first
    row_nbytes = (WIDTH + max(DEPTHS.values())) * 8
    return len(made.names) * int(FILLED * (memory - held) / row_nbytes)


def _constant(made: Bench, units: int, turns: int, deadline: float) -> dict[str, Any]:
    """Share out by the speeds last measured, again and again."""
    shares, rounds = even(units, len(made.names)), []
    speeds = np.ones(len(made.names))
    began = time.perf_counter()
    for _ in range(turns):
        rounds.append(_round(made, shares, DEPTHS["constant"], deadline))
        seconds = np.array([rounds[-1]["seconds"][name] for name in made.names])
        seconds = np.minimum(seconds, deadline)
        speeds = np.where(shares > 0, shares / np.where(shares > 0, seconds, 1.0), speeds)
        shares = proportional(units, speeds)
    return {"seconds": time.perf_counter() - began, "rounds": rounds}


def _dfpa(made: Bench, units: int, epsilon: float, deadline: float) -> dict[str, Any]:
    began = time.perf_counter()
    report = made.balancer.partition(
        panel(WIDTH, DEPTHS["dfpa"]), units, epsilon=epsilon, timing=POLICY, deadline=deadline
    ).report
    wall = time.perf_counter() - began
    return {
        "seconds": wall,
        "models": {name: model.to_json() for name, model in report.models.items()},
        **rounds_of(report),
    }


def _full(made: Bench, units: int, points: int, deadline: float, accuracy: float) -> dict[str, Any]:
    """Build a model of every worker up to half of all units, then measure their shares once."""
    builders = {
        name: FullModelBuilder(units // 100, units // 2, accuracy=accuracy, max_points=points)
        for name in made.names
    }
    cost = build(made, builders, DEPTHS["full"], POLICY, width=WIDTH, deadline=deadline)
    limits = [b.limit if b.limit is not None else math.inf for b in builders.values()]
    shares = geometric(units, [b.model for b in builders.values()], limits)
    return {**cost, "rounds": [_round(made, shares, DEPTHS["full"], deadline)]}


def _round(made: Bench, shares: Any, depth: int, deadline: float) -> dict[str, Any]:
    """Measure one distribution, all workers at once."""
    units = dict(zip(made.names, map(int, shares), strict=True))
    seconds = made.measure(units, panel(WIDTH, depth), POLICY, deadline)
    return {
        "units": units,
        "seconds": seconds,
        "imbalance": imbalance(list(seconds.values()), shares),
    }


def makespan(round_: dict[str, Any]) -> float:
    """Return the slowest worker's seconds in a round."""
    return max(value for value in round_["seconds"].values() if value is not None)


def _show(found: dict[str, Any]) -> None:
    titles = {"constant": "constant models", "dfpa": "DFPA", "full": "full models, their shares"}
    for method, title in titles.items():
        rounds, spent = found[method]["rounds"], found[method]["seconds"]
        table(
            f"paging, {found['units']} rows of {WIDTH}: {title} ({spent:.1f} s in all)",
            ["round", *rounds[0]["units"], f"{PAGING} s", "makespan s", "imbalance"],
            [
                [
                    at + 1,
                    *record["units"].values(),
                    record["seconds"][PAGING],
                    makespan(record),
                    record["imbalance"],
                ]
                for at, record in enumerate(rounds)
            ],
        )
    print(f"  DFPA ended: {found['dfpa']['reason']}, imbalance {found['dfpa']['imbalance']:.3g}")
    cost = {name: worker["points"] for name, worker in found["full"]["workers"].items()}
    print(f"  the full models took {cost} points", flush=True)


def _targets(found: dict[str, Any], epsilon: float) -> list[Target]:
    constant = found["constant"]["rounds"][1:]
    best = found["dfpa"]["imbalance"]
    return [
        Target("paging: DFPA's imbalance", epsilon, best, at_least=False),
        Target(
            "paging: constant models' least imbalance from round 2",
            epsilon,
            min(record["imbalance"] for record in constant),
        ),
        Target(
            "paging: DFPA's makespan / full models'",
            1.0 + epsilon,
            min(map(makespan, found["dfpa"]["rounds"])) / makespan(found["full"]["rounds"][0]),
            at_least=False,
        ),
    ]
