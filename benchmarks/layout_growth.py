"""How the time of the layouts grows in workers, and how near they come to squares.

Run ``python benchmarks/layout_growth.py``: three tables on the screen, their figures in
``benchmarks/results/layout_growth.json``, and two plots beside it: how far the best layout is from
its lower bound for random speeds, and the sides of the rectangles for 1 to 1,000 workers of 20
kinds, Fig. 4(c) of Clarke, Lastovetsky and Rychkov (2011), whose 20 speeds are not printed: here
they lie evenly between 1 and 4. Each time is the median of several calls on one core.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fpmdask.layout import br, columns, fpm_br, kl, nrrp
from fpmdask.models import ConstantModel

RESULTS = Path(__file__).parent / "results"
FIGURE = Path(__file__).parent / "figures" / "layouts.png"
BLOCKS = (1024, 1024)
PROMISE = 0.050  # seconds of `columns` for 1,000 workers
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
Row = dict[str, Any]


def median(call: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of `call`, after one call to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def grow(repeats: int) -> list[Row]:
    """Return one row per number of workers: the seconds of each function."""
    rows: list[Row] = []
    print(f"{'workers':>8} {'columns':>10} {'br':>10} {'kl':>10} {'fpm_br':>10}   ms")
    for workers in (10, 30, 100, 300, 1000, 3000):
        speeds = np.random.default_rng(workers).uniform(1, 100, workers)
        models = [ConstantModel(s) for s in speeds]
        shape = (4 * workers, 4 * workers)
        row: Row = {
            "workers": workers,
            "columns": median(lambda s=speeds: columns(s), repeats),
            "br": median(lambda s=speeds, m=shape: br(s, m), repeats),
            "kl": median(lambda s=speeds, m=shape: kl(s, m), repeats),
            "fpm_br": median(lambda s=models, m=shape: fpm_br(s, m), repeats),
        }
        rows.append(row)
        times = " ".join(f"{row[n] * 1e3:10.2f}" for n in ("columns", "br", "kl", "fpm_br"))
        print(f"{workers:8,d} {times}", flush=True)
    return rows


def nearness(cases: int) -> tuple[list[Row], list[float]]:
    """Return, per range of workers, the distribution of half-perimeter / lower bound."""
    rng = np.random.default_rng(2011)
    found: dict[tuple[int, int], list[float]] = {(2, 3): [], (4, 15): [], (16, 64): []}
    other = 0
    for _ in range(cases):
        workers = int(rng.integers(2, 65))
        speeds = 10 ** rng.uniform(0, rng.uniform(0, 2), workers)
        rectangles = columns(speeds)
        around = nrrp(speeds, BLOCKS)
        ratios = (
            rectangles.half_perimeter / rectangles.lower_bound,
            around.half_perimeter / around.lower_bound,
        )
        other += ratios[1] < ratios[0]
        key = next(k for k in found if workers <= k[1])
        found[key].append(min(ratios))
    found[(4, 64)] = found[(4, 15)] + found[(16, 64)]
    print(f"\nbest of columns and nrrp over the lower bound; nrrp is the best in {other} sets")
    print(f"{'workers':>8} {'sets':>6} {'mean':>7} " + " ".join(f"{q:7.0%}" for q in QUANTILES))
    rows: list[Row] = []
    for (low, high), ratios in found.items():
        row: Row = {
            "workers": [low, high],
            "sets": len(ratios),
            "mean": float(np.mean(ratios)),
            "quantiles": dict(
                zip(map(str, QUANTILES), np.quantile(ratios, QUANTILES).tolist(), strict=True)
            ),
        }
        rows.append(row)
        parts = " ".join(f"{v:7.4f}" for v in row["quantiles"].values())
        print(f"{f'{low}-{high}':>8} {row['sets']:6d} {row['mean']:7.4f} {parts}", flush=True)
    return rows, found[(4, 64)]


def sides(most: int) -> list[float]:
    """Return width / height of every rectangle for 1 … `most` workers of 20 kinds."""
    kinds = np.linspace(1.0, 4.0, 20)
    rng = np.random.default_rng(4)
    found: list[float] = []
    for workers in range(1, most + 1):
        layout = columns(rng.choice(kinds, workers))
        for column, width in zip(layout.columns, layout.widths, strict=True):
            found += [width / layout.heights[i] for i in column]
    shares = [float(np.mean([r <= x and 1 / x <= r for r in found])) for x in (1.25, 1.5, 2.0)]
    print(
        f"\nsides of {len(found):,} rectangles for 1 … {most} workers of 20 kinds: "
        f"{shares[0]:.1%} within 1 : 1.25, {shares[1]:.1%} within 1 : 1.5, {shares[2]:.1%} within "
        f"1 : 2; the longest 1 : {max(max(found), 1 / min(found)):.3g}"
    )
    return found


def draw(ratios: list[float], found: list[float]) -> None:
    """Draw both distributions."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.hist(ratios, bins=60)
    left.set(xlabel="half-perimeter / lower bound", ylabel="sets of 4 to 64 speeds")
    right.hist(np.log2(found), bins=np.linspace(-2, 2, 81))
    right.set(xlabel="width : height", ylabel="rectangles")
    right.set_xticks([-2, -1, 0, 1, 2], ["1:4", "1:2", "1:1", "2:1", "4:1"])
    figure.savefig(FIGURE, dpi=120)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--most", type=int, default=1000, help="workers of 20 kinds")
    options = parser.parse_args()
    growth = grow(options.repeats)
    near, ratios = nearness(options.cases)
    found = sides(options.most)
    counts, edges = np.histogram(np.log2(found), bins=80, range=(-2, 2))
    result = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "growth": growth,
        "nearness": near,
        "sides": {"log2": edges.tolist(), "rectangles": counts.tolist()},
    }
    draw(ratios, found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "layout_growth.json").write_text(json.dumps(result, indent=1) + "\n")
    took = next(row["columns"] for row in growth if row["workers"] == 1000)
    print(f"\ncolumns for 1,000 workers: {took * 1e3:.1f} ms, promised {PROMISE * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
