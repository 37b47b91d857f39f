"""Table 1 of Lastovetsky and Reddy (2009), our way."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import dask.array as da

from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, Experiment, Target, bench, figure, median, table
from dfpa_matmul_parts.full_models import build
from fpmdask.apps.matmul.coordinator.distribute import timing
from fpmdask.apps.matmul.kernel import panel_depth
from fpmdask.partition import geometric
from fpmdask.timing import SurfaceModelBuilder

ORACLES = Path(__file__).parents[2] / "tests" / "oracles.json"
FEWEST_ROWS = 32  # the smallest size of the full models


def run(options: Any, out: Path) -> Experiment:
    """Build the full models once; then, for each n, DFPA and its product, and theirs, in turns."""
    largest = options.n or (1024 if options.quick else 8192)
    step = options.step or (512 if options.quick else 1024)
    with bench("hcl6") as made:
        made.client.amm.stop()  # it would drop the replicas of B
        builders, full = _full_models(made, step, largest, options.accuracy)
        rows = []
        for n in range(step, largest + 1, step):
            b = data.everywhere(made.client, n, made.addresses)
            shares = dict(
                zip(
                    builders,
                    map(int, geometric(n, [x.model.slice(n) for x in builders.values()])),
                    strict=True,
                )
            )
            turns = [_turn(made, n, b, shares, options) for _ in range(options.repeats)]
            del b
            rows.append(_row(n, shares, turns))
        definition = made.lab.definition.to_json()
    full["points_per_worker"] = statistics.mean(w["points"] for w in full["workers"].values())
    oracle = json.loads(ORACLES.read_text(encoding="utf-8"))["dfpa_table_1"]
    _show(rows, full, oracle)
    figure(out.with_name(out.stem + "_table.png"), 2, lambda *axes: _draw(axes, rows, full))
    return Experiment(
        {"lab": definition, "full_models": full, "rows": rows, "paper": oracle},
        _targets(rows, full),
    )


def _full_models(
    made: Bench, least: int, largest: int, accuracy: float
) -> tuple[dict[str, SurfaceModelBuilder], dict[str, Any]]:
    """Return the surfaces of all workers over rows <= width <= largest, and their cost."""
    depth = made.fresh_depth(largest, largest)
    for width in range(least, largest, least):
        made.used_depths.setdefault(width, set()).add(depth)  # what a line measures is known
    builders = {
        name: SurfaceModelBuilder(
            largest, largest, min_rows=FEWEST_ROWS, min_width=least, accuracy=accuracy
        )
        for name in made.names
    }
    cost = build(made, builders, depth, timing())
    return builders, {**cost, "depth": depth, "accuracy": accuracy, "policy": timing().to_json()}


def _turn(made: Bench, n: int, b: da.Array, shares: dict[str, int], options: Any) -> dict[str, Any]:
    dfpa = made.dfpa(n, options.epsilon)
    return {
        "dfpa": dfpa,
        "with_dfpa": made.multiply(n, dfpa["shares"], b),
        "with_full": made.multiply(n, shares, b),
    }


def _row(n: int, shares: dict[str, int], turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "n": n,
        "depth": panel_depth(n),
        "rounds": median(turns, lambda t: len(t["dfpa"]["rounds"])),
        "most_rounds": max(len(t["dfpa"]["rounds"]) for t in turns),
        "dfpa_seconds": median(turns, lambda t: t["dfpa"]["seconds"]),
        "with_dfpa_seconds": median(
            turns, lambda t: t["dfpa"]["seconds"] + t["with_dfpa"]["seconds"]
        ),
        "with_full_seconds": median(turns, lambda t: t["with_full"]["seconds"]),
        "full_shares": shares,
        "turns": turns,
    }


def _show(rows: list[dict[str, Any]], full: dict[str, Any], oracle: dict[str, Any]) -> None:
    paper = {line[0]: line[1:] for line in oracle["rows"]}
    table(
        "Table 1, our way (medians), beside the paper's",
        [
            *("n", "rounds", "DFPA s", "with DFPA s", "full models s", "ratio"),
            *("paper: rounds", "DFPA s", "with DFPA s", "full FPMs s", "ratio"),
        ],
        [
            [
                row["n"],
                row["rounds"],
                row["dfpa_seconds"],
                row["with_dfpa_seconds"],
                row["with_full_seconds"],
                row["with_dfpa_seconds"] / row["with_full_seconds"],
                *paper.get(row["n"], [""] * 4),
                paper[row["n"]][2] / paper[row["n"]][3] if row["n"] in paper else "",
            ]
            for row in rows
        ],
    )
    table(
        f"full models, all workers at once: {full['seconds']:.1f} s (paper: "
        f"{oracle['full_model_seconds']} s, {oracle['full_model_points']} points)",
        ["worker", "points", "seconds", "why"],
        [
            [name, worker["points"], worker["seconds"], worker["reason"]]
            for name, worker in full["workers"].items()
        ],
    )


def _targets(rows: list[dict[str, Any]], full: dict[str, Any]) -> list[Target]:
    last = rows[-1]
    points, seconds = full["points_per_worker"], full["seconds"]
    return [
        Target(
            "table: DFPA's points / full, worst n",
            1 / 4,
            max(row["rounds"] for row in rows) / points,
            at_least=False,
        ),
        Target(
            "table: DFPA's seconds / full, worst n",
            1 / 10,
            max(row["dfpa_seconds"] for row in rows) / seconds,
            at_least=False,
        ),
        Target(
            "table: most rounds at the largest n", 5, float(last["most_rounds"]), at_least=False
        ),
    ]


def _draw(axes: Any, rows: list[dict[str, Any]], full: dict[str, Any]) -> None:
    """Draw the runs, and what finding the shares cost, over n."""
    sizes = [row["n"] for row in rows]
    axes[0].plot(sizes, [row["with_dfpa_seconds"] for row in rows], "o-", label="with DFPA")
    axes[0].plot(sizes, [row["with_full_seconds"] for row in rows], "s--", label="with full models")
    axes[0].set_title("the run")
    axes[1].semilogy(sizes, [row["dfpa_seconds"] for row in rows], "o-", label="DFPA, one n")
    axes[1].axhline(full["seconds"], ls="--", color="C1", label="full models, once")
    axes[1].set_title("finding the shares")
    for axis in axes:
        axis.set_xlabel("n")
        axis.set_ylabel("seconds")
        axis.legend()
