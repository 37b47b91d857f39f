"""From uniformly chunked dask arrays: ``layout="rows"`` against ``A @ B`` of dask.array."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from distributed import wait

from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, Experiment, bench, figure, rounds_of, table

Chunks = tuple[tuple[int, ...], tuple[int, ...]]
KINDS = ("dask", "cold", "known")


def run(options: Any, out: Path) -> Experiment:
    """Multiply the same matrices in four chunkings, dask.array and ours in turns."""
    sizes = (1024,) if options.quick else (4096, 8192)
    found: dict[str, Any] = {}
    with bench("hcl6") as made:
        for n in sizes:
            turns = [
                _turn(made, n, label, a, b, options)
                for _ in range(options.repeats)
                for label, (a, b) in chunkings(n, options.quick).items()
            ]
            found[str(n)] = {"turns": turns, "summary": _summary(turns)}
            _show(n, found[str(n)])
        definition = made.lab.definition.to_json()
    figure(out.with_name(out.stem + "_chunks.png"), len(sizes), lambda *axes: _draw(axes, found))
    return Experiment({"lab": definition, "sizes": found})


def chunkings(n: int, quick: bool) -> dict[str, tuple[Chunks, Chunks]]:
    """Return the four chunkings of A and B; "rows" has A in twelve slabs and B in one piece."""
    made = {}
    for side in (128, 256, 512) if quick else (512, 1024, 2048):
        axis = (side,) * (n // side)
        made[str(side)] = ((axis, axis), (axis, axis))
    height = -(-n // 12)
    slabs = tuple(min(height, n - top) for top in range(0, n, height))
    made["rows"] = ((slabs, (n,)), ((n,), (n,)))
    return made


def _turn(
    made: Bench, n: int, label: str, a_chunks: Chunks, b_chunks: Chunks, options: Any
) -> dict[str, Any]:
    """Multiply one pair of inputs: by Dask, by us without and with models."""
    a = data.chunked(made.client, "a", a_chunks)
    b = data.chunked(made.client, "b", b_chunks)
    data.warm_memory()
    began = time.perf_counter()
    c = (a @ b).persist()
    wait(c)
    wall = time.perf_counter() - began
    turn: dict[str, Any] = {
        "chunks": label,
        "dask": {"seconds": wall, "error": data.check(c)},
    }
    depth = made.fresh_depth(n, n)
    for kind in KINDS[1:]:
        del c
        data.warm_memory()
        began = time.perf_counter()
        c = made.balancer.matmul(a, b, layout="rows", epsilon=options.epsilon, depth=depth)
        wall = time.perf_counter() - began
        report = made.balancer.report
        assert report is not None
        turn[kind] = {
            "seconds": wall,
            "error": data.check(c),
            "phases": dict(report.phases),
            "bytes_moved": report.bytes_moved,
            "per_worker": [dict(share) for share in report.shares],
            **rounds_of(report),
        }
    return turn


def _summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    labels = list(dict.fromkeys(turn["chunks"] for turn in turns))

    def middle(label: str, kind: str) -> float:
        return statistics.median(t[kind]["seconds"] for t in turns if t["chunks"] == label)

    medians = {label: {kind: middle(label, kind) for kind in KINDS} for label in labels}
    best = {kind: min(medians[label][kind] for label in labels) for kind in KINDS}
    return {
        "medians": medians,
        "best": best,
        "best_dask_over_best_cold": best["dask"] / best["cold"],
        "best_dask_over_best_known": best["dask"] / best["known"],
        "best_dask_over_cold": {k: best["dask"] / row["cold"] for k, row in medians.items()},
        "best_dask_over_known": {k: best["dask"] / row["known"] for k, row in medians.items()},
    }


def _show(n: int, found: dict[str, Any]) -> None:
    summary = found["summary"]
    rows = []
    for label, row in summary["medians"].items():
        ours = [turn["cold"] for turn in found["turns"] if turn["chunks"] == label]
        rows.append(
            [
                label,
                row["dask"],
                row["cold"],
                row["known"],
                statistics.median(turn["phases"]["measure"] for turn in ours),
                statistics.median(len(turn["rounds"]) for turn in ours),
                statistics.median(turn["bytes_moved"] for turn in ours) / 1e9,
                summary["best_dask_over_cold"][label],
                summary["best_dask_over_known"][label],
            ]
        )
    table(
        f"from uniform chunks, n = {n}: seconds (medians), and the best of Dask over ours",
        [
            *("chunks", "dask s", "ours s", "models known s", "DFPA s", "rounds", "moved GB"),
            *("best dask/ours", "with models"),
        ],
        rows,
    )


def _draw(axes: Any, found: dict[str, Any]) -> None:
    """Draw the medians per chunking as bars."""
    names = {"dask": "dask A @ B", "cold": "ours, DFPA included", "known": "ours, models known"}
    for axis, (n, result) in zip(axes, found.items(), strict=True):
        medians = result["summary"]["medians"]
        for at, kind in enumerate(KINDS):
            axis.bar(
                [i + 0.27 * at for i in range(len(medians))],
                [row[kind] for row in medians.values()],
                0.25,
                label=names[kind],
            )
        axis.set_xticks([i + 0.27 for i in range(len(medians))], list(medians))
        axis.set_xlabel("chunks")
        axis.set_ylabel("seconds")
        axis.set_title(f"n = {n}")
        axis.legend()
