"""How far the splits of sorting work are from the exact one, by N: naive, corrected, exact.

    python benchmarks/sort_shares.py

For x ln x on 48 workers of speed 1 and 48 of 1.5 (the cluster of Cérin, Dubacq and Roch, 2006, who
sort 5.4e8 records on it), and on two workers of 1 and 2. The makespan of each split, in whole
units, over that of the exact one. No cluster, no noise. JSON, a table and a plot.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from dfpa_matmul_parts.bench import figure, table

from fpmdask.models import AnalyticModel
from fpmdask.partition import by_complexity, integral, nlogn_correction, nlogn_lambert

CLUSTERS = {"48 of 1 and 48 of 1.5": [1.0] * 48 + [1.5] * 48, "1 and 2": [1.0, 2.0]}
SIZES = (*(10**n for n in range(3, 13)), 540_000_000)


def excesses(units: int, speeds: list[float]) -> dict[str, float]:
    """Return by how much each split's makespan is above the exact one's."""
    models = [AnalyticModel("nlogn", speed) for speed in speeds]
    rates = np.array(speeds)
    splits = {
        "naive": rates / rates.sum() * units,
        "correction": nlogn_correction(units, speeds),
        "lambert": nlogn_lambert(units, speeds),
        "exact": by_complexity(units, speeds, "nlogn"),
    }

    def makespan(shares: np.ndarray) -> float:
        whole = integral(shares, units, models)
        return max(float(model.time(n)) for model, n in zip(models, whole, strict=True))

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
            ["N", "naive", "correction", "lambert", "exact"],
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
            for split in ("naive", "correction", "lambert"):
                axis.semilogx([*rows], [row[split] for row in rows.values()], "o-", label=split)
            axis.set(
                title=f"workers {title}", xlabel="N", ylabel="makespan above the exact split's"
            )
            axis.legend()

    figure(out.with_suffix(".png"), len(found), draw)


if __name__ == "__main__":
    main()
