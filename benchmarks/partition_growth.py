"""How the time of `geometric` grows in workers, in points per model and in units.

Run ``python benchmarks/partition_growth.py``: a table on the screen, figures and a plot in
``benchmarks/results/partition_growth.{json,png}``. Each time is the median of several calls from
a Python list of models on one core, gathering their points included.
"""

import argparse
import json
import math
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from fpmdask.models import PiecewiseLinearModel
from fpmdask.partition import geometric

RESULTS = Path(__file__).parent / "results"
SIZES = 10**6  # models are measured from 1 to this many units
HEADLINES = {10_000: 0.030, 100_000: 0.5}  # workers: seconds that the project promises
Row = dict[str, Any]


def make_models(workers: int, points: int, shape: str, seed: int = 0) -> list[PiecewiseLinearModel]:
    """Return models whose speed falls with size; `shape` is "smooth" or "plateaus"."""
    rng = np.random.default_rng(seed)
    models = []
    for _ in range(workers):
        units = np.sort(rng.uniform(1, SIZES, points))
        speed = rng.uniform(1e3, 1e4) * (1 - 0.7 * np.linspace(0, 1, points) ** 2)
        seconds = units / speed
        if shape == "plateaus":
            seconds = np.ceil(seconds / 10) * 10.0
        models.append(PiecewiseLinearModel.from_points(units, seconds))
    return models


def measure(models: list[PiecewiseLinearModel], units: int, repeats: int) -> float:
    """Return the median seconds of `geometric`, after one call to warm up."""
    geometric(units, models)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        geometric(units, models)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def grow(repeats: int, largest: int) -> list[Row]:
    """Return one row per measurement: what grows, the sizes, the seconds."""
    rows: list[Row] = []

    def add(series: str, models: list[PiecewiseLinearModel], units: int, shape: str) -> None:
        row: Row = {
            "series": series,
            "shape": shape,
            "workers": len(models),
            "points": int(models[0].points[0].size),
            "units": units,
            "seconds": measure(models, units, repeats),
        }
        rows.append(row)
        print(
            f"{series:8} {shape:9} {row['workers']:8,d} {row['points']:7d} {units:22,d} "
            f"{row['seconds'] * 1e3:11.2f}",
            flush=True,
        )

    print(f"{'grows':8} {'times':9} {'workers':>8} {'points':>7} {'units':>22} {'ms':>11}")
    for shape in ("smooth", "plateaus"):
        everyone = make_models(largest, 20, shape)
        for workers in (100, 1000, 10_000, 100_000):
            if workers <= largest:
                add("workers", everyone[:workers], workers * SIZES // 10, shape)
        for digits in range(4, 16):
            add("units", everyone[: min(10_000, largest)], 10**digits, shape)
        for points in (5, 20, 80, 320, 1280):
            add("points", make_models(1000, points, shape), 1000 * SIZES // 10, shape)
    return rows


def exponent(rows: list[Row], series: str, shape: str, size: str, least: float) -> float:
    """Return the slope of log(seconds) over log(size) for sizes from `least`."""
    chosen = [
        (math.log(row[size]), math.log(row["seconds"]))
        for row in rows
        if row["series"] == series and row["shape"] == shape and row[size] >= least
    ]
    if len(chosen) < 2:
        return math.nan
    return float(np.polyfit(*zip(*chosen, strict=True), 1)[0])


def plot(rows: list[Row], path: Path) -> None:
    """Draw one panel per series."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for panel, series in zip(panels, ("workers", "points", "units"), strict=True):
        for shape, marker in (("smooth", "o-"), ("plateaus", "s--")):
            chosen = [r for r in rows if r["series"] == series and r["shape"] == shape]
            x = [r[series] for r in chosen]
            panel.loglog(x, [r["seconds"] * 1e3 for r in chosen], marker, label=shape)
        panel.set_xlabel(series if series != "points" else "points per model")
        panel.set_ylabel("milliseconds")
        panel.grid(alpha=0.3)
    panels[0].legend()
    figure.suptitle("geometric: time by workers, points and units")
    figure.savefig(path, dpi=120)


def headlines(rows: list[Row]) -> list[Row]:
    """Print and return the promised figures beside the slowest measured for that many workers."""
    found = []
    for workers, promised in HEADLINES.items():
        times = [r["seconds"] for r in rows if r["workers"] == workers and r["points"] == 20]
        if times:
            found.append({"workers": workers, "promised": promised, "slowest": max(times)})
            print(
                f"{workers:,} workers, 20 points: {max(times) * 1e3:.1f} ms at most "
                f"(promised {promised * 1e3:.0f})"
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="calls per measurement")
    parser.add_argument("--largest", type=int, default=100_000, help="most workers")
    options = parser.parse_args()
    rows = grow(options.repeats, options.largest)
    summary = headlines(rows)
    growth = {
        shape: {
            "workers": exponent(rows, "workers", shape, "workers", 1000),
            "points": exponent(rows, "points", shape, "points", 20),
            "units": exponent(rows, "units", shape, "units", 1e6),
        }
        for shape in ("smooth", "plateaus")
    }
    for shape, powers in growth.items():
        text = ", ".join(f"{name}^{power:.2f}" for name, power in powers.items())
        print(f"{shape}: seconds grow as {text}")
    RESULTS.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "numpy": np.__version__}
    report = {"machine": machine, "rows": rows, "headlines": summary, "growth": growth}
    (RESULTS / "partition_growth.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    plot(rows, RESULTS / "partition_growth.png")
    print(f"written: {RESULTS / 'partition_growth.json'} and .png")


if __name__ == "__main__":
    main()
