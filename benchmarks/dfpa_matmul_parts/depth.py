"""How far a shallow timed panel changes the ratios between workers."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from dfpa_matmul_parts.bench import Bench, Experiment, bench, figure, panel, table
from fpmdask.apps.matmul.kernel import panel_depth
from fpmdask.timing import TimingPolicy

DEPTHS = (16, 32, 64, 128, 256, 512, 1024)


def run(options: Any, out: Path) -> Experiment:
    """Measure every depth on the balanced shares, all workers at once, in turns."""
    n = options.n or (1024 if options.quick else 8192)
    seconds = 0.3 if options.quick else 2.0
    depths = DEPTHS[1:5] if options.quick else DEPTHS
    with bench("hcl6") as made:
        shares = made.dfpa(n, options.epsilon)["shares"]
        turns = [_turn(made, n, shares, depths, seconds) for _ in range(options.repeats)]
        definition = made.lab.definition.to_json()
    rows = _deviations(turns, depths)
    chosen = panel_depth(n)
    table(
        f"depth of the timed panel, n = {n}: speed relative to the sum of all, against depth "
        f"{depths[-1]} (per cent); depth {chosen} is what a run times",
        ["depth", "Gflop/s", *shares, "largest", "spread of turns"],
        [
            [
                row["depth"],
                row["gflops"],
                *(100 * row["deviation"][name] for name in shares),
                100 * row["largest"],
                100 * row["spread"],
            ]
            for row in rows
        ],
    )
    figure(out.with_name(out.stem + "_depth.png"), 2, lambda *axes: _draw(axes, rows, list(shares)))
    return Experiment(
        {"n": n, "lab": definition, "shares": shares, "speeds": turns, "deviations": rows}
    )


def _turn(
    made: Bench, n: int, shares: dict[str, int], depths: tuple[int, ...], seconds: float
) -> dict[int, dict[str, float]]:
    """Return flop/s per depth and worker."""
    policy = TimingPolicy(min_repetitions=1, min_seconds=seconds, budget_seconds=2 * seconds)
    speeds = {}
    for depth in depths:
        took = made.measure(shares, panel(n, depth), policy)
        speeds[depth] = {
            name: 2.0 * n * depth * units / took[name] for name, units in shares.items() if units
        }
    return speeds


def _deviations(
    turns: list[dict[int, dict[str, float]]], depths: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Return, per depth, how the workers' relative speeds differ from those at the deepest."""

    def relative(speeds: dict[str, float]) -> dict[str, float]:
        total = sum(speeds.values())
        return {name: speed / total for name, speed in speeds.items()}

    names = list(turns[0][depths[0]])
    shown = {
        depth: {name: [relative(turn[depth])[name] for turn in turns] for name in names}
        for depth in depths
    }
    deepest = {name: statistics.median(shown[depths[-1]][name]) for name in names}
    rows = []
    for depth in depths:
        deviation = {
            name: statistics.median(shown[depth][name]) / deepest[name] - 1 for name in names
        }
        rows.append(
            {
                "depth": depth,
                "gflops": statistics.median(sum(turn[depth].values()) / 1e9 for turn in turns),
                "deviation": deviation,
                "largest": max(abs(value) for value in deviation.values()),
                "spread": max(
                    (max(seen) - min(seen)) / statistics.median(seen)
                    for seen in shown[depth].values()
                ),
            }
        )
    return rows


def _draw(axes: Any, rows: list[dict[str, Any]], names: list[str]) -> None:
    """Draw the deviations and the speed over the depth."""
    depths = [row["depth"] for row in rows]
    for name in (name for name in names if name in rows[0]["deviation"]):
        axes[0].plot(depths, [100 * row["deviation"][name] for row in rows], "o-", label=name)
    axes[0].set_ylabel("relative speed against the deepest, per cent")
    axes[0].legend()
    axes[1].plot(depths, [row["gflops"] for row in rows], "o-")
    axes[1].set_ylabel("Gflop/s of all workers")
    axes[1].set_ylim(0)
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("depth of the timed panel")
