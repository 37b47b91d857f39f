"""Data in place as in the paper of 2009: how near to ideal, how far above the even split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, Experiment, Target, bench, figure, median, panel, table
from fpmdask.partition import even
from fpmdask.timing import TimingPolicy

DEEP = 512  # the run's own panels


def run(options: Any, out: Path) -> Experiment:
    """Repeat [speeds, DFPA, its multiplication, speeds, even: ours, one NumPy task per worker]."""
    n = options.n or (2048 if options.quick else 8192)
    with bench("hcl6") as made:
        made.client.amm.stop()  # it would drop the replicas of B
        b = data.everywhere(made.client, n, made.addresses)
        rows = [_repetition(made, n, b, options) for _ in range(options.repeats)]
        definition = made.lab.definition.to_json()
    summary = _summary(n, rows)
    _show(n, rows, summary)
    figure(out.with_name(out.stem + "_in_place.png"), 1, lambda axis: _draw(axis, rows, n))
    return Experiment(
        {"n": n, "lab": definition, "repetitions": rows, "summary": summary}, _targets(summary)
    )


def _repetition(made: Bench, n: int, b: Any, options: Any) -> dict[str, Any]:
    quotas = {worker.name: worker.cpu or 1.0 for worker in made.lab.definition.workers}
    guess = {name: int(n * quota / sum(quotas.values())) for name, quota in quotas.items()}
    speeds = [_speeds(made, n, guess, options)]
    found = made.dfpa(n, options.epsilon)
    balanced = made.multiply(n, found["shares"], b)
    speeds.append(_speeds(made, n, found["shares"], options))
    same = dict(zip(made.names, map(int, even(n, len(made.names))), strict=True))
    total = sum(sum(each.values()) for each in speeds) / len(speeds)
    in_run = {
        share["worker"]: 2.0 * n * n * share["units"] / share["compute_seconds"]
        for share in balanced["per_worker"]
    }
    return {
        "dfpa": found,
        "balanced": balanced,
        "speeds": speeds,
        "even": made.multiply(n, same, b),
        "plain": made.plain(n, same, b),
        "ideal_seconds": 2.0 * n**3 / total,
        "in_run_seconds": 2.0 * n**3 / sum(in_run.values()),
    }


def _speeds(made: Bench, n: int, shares: dict[str, int], options: Any) -> dict[str, float]:
    """Return flop/s of each worker, all timing the panel of the run at once."""
    seconds = 0.5 if options.quick else 3.0
    policy = TimingPolicy(
        min_repetitions=1, min_seconds=seconds, budget_seconds=1.5 * seconds, warmup=0
    )
    took = made.measure(shares, panel(n, DEEP), policy)
    return {name: 2.0 * n * DEEP * shares[name] / took[name] for name in took if took[name] > 0}


def _summary(n: int, rows: list[dict[str, Any]]) -> dict[str, float]:
    def whole(row: Any) -> float:
        return float(row["dfpa"]["seconds"] + row["balanced"]["seconds"])

    return {
        "n": n,
        "gflops_of_speeds": median(rows, lambda r: 2e-9 * n**3 / r["ideal_seconds"]),
        "efficiency": median(rows, lambda r: r["ideal_seconds"] / r["balanced"]["seconds"]),
        "efficiency_with_dfpa": median(rows, lambda r: r["ideal_seconds"] / whole(r)),
        "even_efficiency": median(rows, lambda r: r["ideal_seconds"] / r["even"]["seconds"]),
        "balance_in_the_run": median(
            rows, lambda r: r["in_run_seconds"] / r["balanced"]["seconds"]
        ),
        "plain_even_efficiency": median(rows, lambda r: r["ideal_seconds"] / r["plain"]["seconds"]),
        "ratio_to_plain_even": median(rows, lambda r: r["plain"]["seconds"] / whole(r)),
        "ratio_to_even": median(rows, lambda r: r["even"]["seconds"] / whole(r)),
        "ratio_to_even_without_dfpa": median(
            rows, lambda r: r["even"]["seconds"] / r["balanced"]["seconds"]
        ),
        "most_rounds": float(max(len(r["dfpa"]["rounds"]) for r in rows)),
        "dfpa_seconds": median(rows, lambda r: r["dfpa"]["seconds"]),
        "dfpa_share": median(rows, lambda r: r["dfpa"]["seconds"] / whole(r)),
        "bytes_moved": float(max(r["balanced"]["bytes_moved"] for r in rows)),
    }


def _show(n: int, rows: list[dict[str, Any]], summary: dict[str, float]) -> None:
    table(
        f"data in place, n = {n}, float64, hcl6",
        [
            *("rep", "rounds", "DFPA s", "multiply s", "ideal s", "even s", "NumPy even s"),
            *("imbalance", "why", "moved"),
        ],
        [
            [
                at,
                len(row["dfpa"]["rounds"]),
                row["dfpa"]["seconds"],
                row["balanced"]["seconds"],
                row["ideal_seconds"],
                row["even"]["seconds"],
                row["plain"]["seconds"],
                row["dfpa"]["imbalance"],
                row["dfpa"]["reason"],
                row["balanced"]["bytes_moved"],
            ]
            for at, row in enumerate(rows)
        ],
    )
    table("medians", ["figure", "value"], list(summary.items()))


def _targets(summary: dict[str, float]) -> list[Target]:
    return [
        Target("in place: multiplication / ideal", 0.88, summary["efficiency"]),
        Target("in place: with DFPA / ideal", 0.82, summary["efficiency_with_dfpa"]),
        Target("in place: with DFPA over even", 2.5, summary["ratio_to_even"]),
        Target("in place: with DFPA over NumPy even", 2.5, summary["ratio_to_plain_even"]),
        Target("in place: DFPA rounds", 5, summary["most_rounds"], at_least=False),
        Target("in place: DFPA's share of the run", 0.05, summary["dfpa_share"], at_least=False),
    ]


def _draw(axis: Any, rows: list[dict[str, Any]], n: int) -> None:
    """Draw each repetition's times as bars."""
    for at, (label, get) in enumerate(
        {
            "even, one NumPy task each": lambda r: r["plain"]["seconds"],
            "even": lambda r: r["even"]["seconds"],
            "DFPA + balanced": lambda r: r["dfpa"]["seconds"] + r["balanced"]["seconds"],
            "balanced": lambda r: r["balanced"]["seconds"],
            "ideal": lambda r: r["ideal_seconds"],
        }.items()
    ):
        axis.bar(
            [i + 0.16 * at for i in range(len(rows))], [get(r) for r in rows], 0.15, label=label
        )
    axis.set_xticks([i + 0.3 for i in range(len(rows))], [str(i) for i in range(len(rows))])
    axis.set_xlabel("repetition")
    axis.set_ylabel("seconds")
    axis.set_title(f"data in place, n = {n}")
    axis.legend()
