"""Even, BR, FPM-KL and FPM-BR on sixteen workers with little memory: Figs. 5 and 7 of the paper.

    python benchmarks/matmul_layouts.py [--sizes 4096 6144 8192 9216]

The speeds are those of the sixteen hcl machines; beyond 40 MB each has a sixteenth of its memory of
2011, then a swap file. (Of the 80 MB of an idle worker all but 16 are swapped out at no cost.)
Constant speeds, measured on small squares, cannot see where a worker begins to page; models of
squares (FPM-BR) and of rectangles (FPM-KL) can. The layouts are then given to `Balancer.matmul` as
they are, in turns, for growing n × K by K × n matrices: K is small so that parts of C fill the
memory, with a share's buffers of panels, as in what is timed. The 8 to 10 MB that a worker holds
of A and B beside them the models do not know. With the first fourteen workers, KL and
BR by the same speeds show what their volumes cost in time. JSON, tables and a plot.

D. Clarke, A. Lastovetsky, V. Rychkov (2011), Column-Based Matrix Partitioning for Parallel Matrix
Multiplication on Heterogeneous Processors Based on Functional Performance Models, section 4.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, bench, figure, panel, table

from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.lab.parsing import load
from fpmdask.layout import Layout, br, fpm_br, fpm_kl, kl
from fpmdask.models import PiecewiseLinearModel, SurfaceModel
from fpmdask.timing import TimingPolicy

BLOCK = 64
CHUNK = 512
DEPTH = 256  # of two panels that a share of such a product multiplies, and of the next two
PROCESS_MB = 40
MEMORY_2011_MB = {456: 1024, 328: 512, 296: 384, 264: 256}
KINDS = ("even", "br", "fpm_kl", "fpm_br")
POLICY = TimingPolicy(
    relative_error=0.2, min_repetitions=1, min_seconds=0.6, max_repetitions=8, budget_seconds=2.0,
    warmup=1,
)  # fmt: skip
INNER = 1024
DEADLINE = 20.0


def definition(folder: Path) -> str:
    """Write the lab's definition and return its path."""
    lines = ["[lab]", 'backend = "root"', "period = 0.020"]
    lines += ['[dask]\n"distributed.worker.profile.enabled" = false']
    lines += ['"distributed.admin.tick.interval" = "500ms"', "[defaults]\nmemory_manager = false"]
    for worker in load("hcl16").workers:
        assert worker.memory is not None
        megabytes = PROCESS_MB + MEMORY_2011_MB[round(worker.memory / 1e6)] // 16
        lines += [f'[[workers]]\nname = "{worker.name}"', f"cpu = {worker.cpu}"]
        lines += [f'memory = "{megabytes} MB"', 'swap = "500 MB"']
    path = folder / "layouts16.toml"
    path.write_text("\n".join(lines))
    return str(path)


def measured(made: Bench, sides: Sequence[int]) -> dict[str, dict[tuple[int, int], float]]:
    """Return seconds of a panel update by (rows, columns) of C, all workers at once.

    `inf` where a worker did not finish in time, or was killed: it is not asked for larger sizes,
    which are `inf`, too.
    """
    found: dict[str, dict[tuple[int, int], float]] = {name: {} for name in made.names}
    for width in sides:
        for rows in sides:
            sizes = {}
            for name in made.names:
                points = found[name].items()
                if any(r <= rows and w <= width and math.isinf(t) for (r, w), t in points):
                    found[name][rows, width] = math.inf
                else:
                    sizes[name] = rows
            if not sizes:
                continue
            seconds: Mapping[str, float | None] = {}
            while sizes and not seconds:
                try:
                    seconds = made.measure(sizes, panel(width, DEPTH), POLICY, DEADLINE)
                except CoordinatorError as error:
                    print(f"  {rows} x {width}: {error}", flush=True)
                    killed = revived(made)
                    if not killed:
                        raise
                    for name in killed:
                        found[name][rows, width] = math.inf
                        sizes.pop(name, None)
            for name, taken in seconds.items():
                found[name][rows, width] = taken if taken is not None else math.inf
            for name in revived(made):
                found[name][rows, width] = math.inf
    return found


def revived(made: Bench) -> list[str]:
    """Start workers anew that the kernel has killed, as it does where paging falls behind."""
    there = made.client.scheduler_info(n_workers=-1)["workers"].values()
    killed = sorted(set(made.names) - {worker["name"] for worker in there})
    for name in killed:
        made.lab.restart_worker(name)
    made.client.wait_for_workers(len(made.names), timeout=60)
    return killed


def layouts(
    made: Bench, points: Mapping[str, Mapping[tuple[int, int], float]], small: int, n: int
) -> dict[str, Layout | str]:
    """Return the four layouts of an n x n matrix, or why there is none."""
    shape = (n // BLOCK, n // BLOCK)
    per_block = BLOCK * BLOCK
    speeds = [small * small / per_block / points[name][small, small] for name in made.names]
    squares, surfaces = [], []
    for name in made.names:
        # who did not finish in time, or was killed, needs at least so long per element
        least = min((r * w for (r, w), t in points[name].items() if math.isinf(t)), default=1)
        finite = {
            (r, w): t if math.isfinite(t) else DEADLINE * r * w / least
            for (r, w), t in points[name].items()
        }
        equal = {r: t for (r, w), t in finite.items() if r == w}
        # of one panel, as everything here: only ratios matter
        squares.append(
            PiecewiseLinearModel.from_points(
                [r * r / per_block for r in equal], list(equal.values())
            )
        )
        surfaces.append(
            SurfaceModel.from_points(
                [r / BLOCK for r, _ in finite],
                [w / BLOCK for _, w in finite],
                list(finite.values()),
            )
        )
    makers = {
        "even": lambda: kl([1.0] * len(speeds), shape),
        "br": lambda: br(speeds, shape),
        "fpm_kl": lambda: fpm_kl(surfaces, shape),
        "fpm_br": lambda: fpm_br(squares, shape),
    }
    found: dict[str, Layout | str] = {}
    for kind, make in makers.items():
        try:
            found[kind] = make()
        except PartitionError as error:
            found[kind] = str(error)
    return found


def product(made: Bench, names: Sequence[str], layout: Layout, n: int) -> dict[str, Any]:
    """Multiply by a layout; inputs are cut into uniform chunks."""
    axis = tuple(min(CHUNK, n - at) for at in range(0, n, CHUNK))
    inner = (CHUNK,) * (INNER // CHUNK)
    a = data.chunked(made.client, "a", (axis, inner))
    b = data.chunked(made.client, "b", (inner, axis))
    data.warm_memory(1 << 29)
    zones = dict(zip(names, layout.zones, strict=True))
    began = time.perf_counter()
    c = made.balancer.matmul(a, b, layout=zones)
    wall = time.perf_counter() - began
    report = made.balancer.report
    assert report is not None
    return {
        "seconds": wall,
        "bytes_moved": report.bytes_moved,
        "half_perimeter": layout.half_perimeter,
        "converged": layout.converged,
        "shares": [dict(share) for share in report.shares],
        "error": data.check(c, INNER),
    }


def grow(
    made: Bench, points: Any, small: int, sizes: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """Multiply in turns by each layout for growing n; who has failed is not tried again."""
    found, failed = [], set()
    for n in sizes:
        made_for = layouts(made, points, small, n)
        for kind in [*KINDS] * repeats:
            layout = made_for[kind]
            facts: dict[str, Any] = {"n": n, "layout": kind}
            if kind in failed:
                continue
            try:
                if isinstance(layout, str):
                    raise PartitionError(layout)
                facts |= product(made, made.names, layout, n)
            except (CoordinatorError, PartitionError, OSError) as error:
                facts["failed"] = f"{type(error).__name__}: {error}"
                failed.add(kind)
            facts["killed"] = revived(made)
            outcome = facts.get("failed") or f"{facts['seconds']:.1f} s"
            print(f"  n = {n}, {kind}: {outcome}, killed: {facts['killed']}", flush=True)
            found.append(facts)
    return found


def fourteen(made: Bench, points: Any, small: int, n: int, repeats: int) -> dict[str, Any]:
    """Compare the grid with rectangles by the same speeds on fourteen workers."""
    names = made.names[:14]
    shape = (n // BLOCK, n // BLOCK)
    speeds = [small * small / points[name][small, small] for name in names]
    tried = {"kl": kl(speeds, shape), "br": br(speeds, shape)}
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in tried}
    for _ in range(repeats):
        for kind, layout in tried.items():
            runs[kind].append(product(made, names, layout, n))
    return {
        kind: {
            "half_perimeter": tried[kind].half_perimeter,
            "seconds": statistics.median(run["seconds"] for run in own),
            "gigabytes_moved": own[0]["bytes_moved"] / 1e9,
            "runs": own,
        }
        for kind, own in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 6144, 8192, 9216])
    parser.add_argument("--sides", type=int, nargs="+", default=[768, 1536, 2048, 2304, 2560, 3072])
    parser.add_argument("--fourteen", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/matmul_layouts.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    small = options.sides[0]
    with tempfile.TemporaryDirectory() as folder, bench(definition(Path(folder))) as made:
        began = time.perf_counter()
        points = measured(made, options.sides)
        print(f"models: {time.perf_counter() - began:.0f} s", flush=True)
        pair = fourteen(made, points, small, options.fourteen, options.repeats)
        found = grow(made, points, small, options.sizes, options.repeats)
        lab = made.lab.definition.to_json()
    as_text = {
        name: {f"{rows}x{width}": t for (rows, width), t in own.items()}
        for name, own in points.items()
    }
    results = {"lab": lab, "points": as_text, "fourteen": pair, "grow": found}
    options.out.write_text(json.dumps(results, indent=1, default=str))
    show(found, pair, options)


def show(found: list[dict[str, Any]], pair: dict[str, Any], options: Any) -> None:
    at: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for facts in found:
        at.setdefault((facts["n"], facts["layout"]), []).append(facts)

    def cell(n: int, kind: str) -> Any:
        runs = at.get((n, kind), [])
        if not runs or any("failed" in facts for facts in runs):
            return "failed" if runs else "-"
        return statistics.median(facts["seconds"] for facts in runs)

    def moved(n: int) -> float:
        return max((facts.get("bytes_moved", 0) for facts in at.get((n, "fpm_br"), [])), default=0)

    def killed(n: int) -> str:
        """Return how many workers each layout has lost in all its turns."""
        return " ".join(str(sum(len(f["killed"]) for f in at.get((n, kind), []))) for kind in KINDS)

    table(
        "sixteen workers: seconds, medians",
        ["n", *KINDS, "killed", "fpm_br GB", "best other / fpm_br"],
        [
            [
                n,
                *(cell(n, kind) for kind in KINDS),
                killed(n),
                moved(n) / 1e9,
                _gain([cell(n, kind) for kind in KINDS]),
            ]
            for n in options.sizes
        ],
    )
    table(
        f"fourteen workers, n = {options.fourteen}: the same speeds in a grid and in rectangles",
        ["layout", "half-perimeter", "GB moved", "seconds"],
        [
            [kind, own["half_perimeter"], own["gigabytes_moved"], own["seconds"]]
            for kind, own in pair.items()
        ],
    )

    def draw(axis: Any) -> None:
        for kind in KINDS:
            own = [(n, cell(n, kind)) for n in options.sizes if isinstance(cell(n, kind), float)]
            axis.plot(*zip(*own, strict=True), "o-", label=kind.replace("_", "-").upper())
        axis.set(xlabel="n", ylabel="seconds", yscale="log", title="sixteen workers")
        axis.legend()

    figure(options.out.with_suffix(".png"), 1, draw)


def _gain(cells: list[Any]) -> Any:
    *others, ours = cells
    finished = [seconds for seconds in others if isinstance(seconds, float)]
    return min(finished) / ours if finished and isinstance(ours, float) else "-"


if __name__ == "__main__":
    main()
