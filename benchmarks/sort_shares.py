"""How far the splits of sorting work are from the exact one, by N: naive, corrected, FPM, exact.

    python benchmarks/sort_shares.py

For x ln x on 48 workers of speed 1 and 48 of 1.5 (the cluster of Cérin, Dubacq and Roch, 2006, who
sort 5.4e8 records on it), and on two workers of 1 and 2. The makespan of each split, in whole
units, over that of the exact one, as emulated kernels without noise take it. *FPM* knows nothing at
first: three rounds of measurements, an even split and then what the models say by then. (DFPA ends
after the second where speeds are constant but for n log n: it does not go after gains of 1 %, which
is noise where kernels are real.) No cluster. JSON, a table and a plot.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from dfpa_matmul_parts.bench import figure, table

from fpmdask.models import AnalyticModel, PiecewiseLinearModel
from fpmdask.partition import (
    by_complexity,
    even,
    geometric,
    integral,
    nlogn_correction,
    nlogn_lambert,
)
from fpmdask.timing import EmulatedKernel, WorkerContext, measure

CLUSTERS = {"48 of 1 and 48 of 1.5": [1.0] * 48 + [1.5] * 48, "1 and 2": [1.0, 2.0]}
ROUNDS = 3
SIZES = (*(10**n for n in range(3, 13)), 540_000_000)


def excesses(units: int, speeds: list[float]) -> dict[str, float]:
    """Return by how much each split's makespan is above the exact one's."""
    models = [AnalyticModel("nlogn", speed) for speed in speeds]
    known = {str(n): model.to_json() for n, model in enumerate(models)}
    kernels = [EmulatedKernel(WorkerContext(name), known) for name in known]
    rates = np.array(speeds)

    def seconds(whole: np.ndarray) -> np.ndarray:
        return np.array([measure(k, int(n)).seconds for k, n in zip(kernels, whole, strict=True)])

    def makespan(shares: np.ndarray) -> float:
        return float(seconds(integral(shares, units, models)).max())

    measured: list[dict[int, float]] = [{} for _ in speeds]
    shares = even(units, len(speeds))
    for _ in range(ROUNDS):
        for points, size, took in zip(measured, shares.tolist(), seconds(shares), strict=True):
            points[size] = took
        functional = [
            PiecewiseLinearModel.from_points(*zip(*sorted(p.items()), strict=True))
            for p in measured
        ]
        shares = geometric(units, functional)
    splits = {
        "naive": rates / rates.sum() * units,
        "correction": nlogn_correction(units, speeds),
        "lambert": nlogn_lambert(units, speeds),
        "fpm": shares,
        "exact": by_complexity(units, speeds, "nlogn"),
    }
    least = makespan(splits["exact"])
    return {name: makespan(shares) / least - 1 for name, shares in splits.items()}


def main() -> None:
    found = {
        title: {units: excesses(units, speeds) for units in sorted(SIZES)}
        for title, speeds in CLUSTERS.items()
    }
    for title, rows in found.items():
        table(
            f"makespan above the exact split's, workers {title}",
            ["N", "naive", "correction", "lambert", "fpm", "exact"],
            [
                [f"{units:.2g}", *(f"{value:.4%}" for value in row.values())]
                for units, row in rows.items()
            ],
        )
    out = Path("benchmarks/results/sort_shares.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1))

    def draw(*axes: Any) -> None:
        for axis, (title, rows) in zip(axes, found.items(), strict=True):
            for split in ("naive", "correction", "lambert", "fpm"):
                axis.semilogx([*rows], [row[split] for row in rows.values()], "o-", label=split)
            axis.set(
                title=f"workers {title}", xlabel="N", ylabel="makespan above the exact split's"
            )
            axis.legend()

    figure(out.with_suffix(".png"), len(found), draw)


if __name__ == "__main__":
    main()
