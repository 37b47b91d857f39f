"""The paging experiment's picture: rounds, and the speed of the worker that pages."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dfpa_matmul_parts.bench import figure

STYLES = {
    "constant": ("constant models", "x--", "C3"),
    "dfpa": ("DFPA", "o-", "C0"),
    "full": ("full models", "s:", "C2"),
}


def plot(found: dict[str, Any], worker: str, path: Path) -> None:
    """Draw imbalance and makespan by round, and speed by size with each method's points."""
    figure(path, 3, lambda *axes: _draw(axes, found, worker))


def _draw(axes: Any, found: dict[str, Any], worker: str) -> None:
    for method, (label, style, colour) in STYLES.items():
        rounds = found[method]["rounds"]
        at = range(1, len(rounds) + 1)
        makespans = [max(s for s in r["seconds"].values() if s is not None) for r in rounds]
        # a logarithmic axis has no zero
        balance = [max(r["imbalance"] or 0.0, 1e-3) for r in rounds]
        for axis, values in zip(axes, (balance, makespans), strict=False):
            if method == "full":  # one round, after its models are built
                axis.axhline(values[0], ls=":", color=colour, label=label)
            else:
                axis.plot(at, values, style, color=colour, label=label)
        sizes = (
            [(rows, seconds) for rows, seconds in found["full"]["workers"][worker]["measured"]]
            if method == "full"
            else [(r["units"][worker], r["seconds"][worker]) for r in rounds]
        )
        known = sorted((x, x / s) for x, s in sizes if s and math.isfinite(s))
        line = style[0] + "-" if method == "full" else style[0]
        axes[2].plot(*zip(*known, strict=True), line, color=colour, label=label)
    for axis, title in zip(axes, ("imbalance", "makespan, seconds"), strict=False):
        axis.set_yscale("log")
        axis.set_xlabel("round")
        axis.set_title(title)
    axes[2].set_yscale("log")
    axes[2].axvline(found["dfpa"]["rounds"][0]["units"][worker], color="0.7", lw=1)
    axes[2].set_xlabel("rows")
    axes[2].set_title(f"speed of {worker}, rows per second (grey: even share)")
    for axis in axes:
        axis.legend()
