"""`Balancer.matmul` against `A @ B` of dask.array, from persisted uniform chunks, on a lab.

    python benchmarks/matmul_against_dask.py [--cases 4096 8192 8192f4 16384x2048x8192]
        [--lab hcl6] [--repeats 5] [--takes 4] [--layout auto]

A case is n, or rows of A x its columns x columns of B, and f4 for float32. Both multiply the same
inputs in turns, in five chunkings; every product is checked on sampled rows. *Ours* measures the
workers, *known* goes by what the product before has taught. *Ideal* is the work over the speeds
that the workers show, all at once, after each of our products. A turn of either from which the
machine's host stole more than 6 % of the cores' time is taken again, up to `takes` times in all.
CPU-seconds, the largest resident memory of each worker while it runs, summed up, and the bytes that
their network interfaces receive are beside the seconds. JSON, a table and a plot.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import TAKES, Bench, bars, bench, calmest, figure, table
from dfpa_matmul_parts.chunks import Chunks
from distributed import wait

from fpmdask.timing import TimingPolicy

DEEP = 512
POLICY = TimingPolicy(min_repetitions=1, min_seconds=2.0, budget_seconds=3.0, warmup=0)
KINDS = ("dask", "ours", "known")
SIDES = (512, 1024, 2048, 4096)
SLABS = 12
SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Case:
    """Rows of A, columns of A, columns of B, and the dtype."""

    shape: tuple[int, int, int]
    dtype: str

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read what the command line says."""
        text, dtype = (text[:-2], "f4") if text.endswith("f4") else (text, "f8")
        sizes = tuple(map(int, text.split("x")))
        m, k, n = sizes * 3 if len(sizes) == 1 else sizes
        return cls((m, k, n), dtype)

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.shape))}, {self.dtype}"

    def chunkings(self) -> dict[str, tuple[Chunks, Chunks]]:
        """Return chunks of A and B by label: squares, and slabs of A beside a whole B."""
        m, k, n = self.shape

        def cut(length: int, side: int) -> tuple[int, ...]:
            return tuple(min(side, length - at) for at in range(0, length, side))

        made = {
            str(side): ((cut(m, side), cut(k, side)), (cut(k, side), cut(n, side)))
            for side in SIDES
            if side < max(self.shape)
        }
        made["rows"] = ((cut(m, -(-m // SLABS)), (k,)), ((k,), (n,)))
        return made


def usage(dask_worker: Any) -> tuple[float, int]:
    """Return CPU-seconds that this worker process has used, and bytes that it has received.

    The latter as its network namespace counts them: of Dask, channels and shuffles alike.
    """
    links = psutil.net_io_counters(pernic=True)
    received = sum(link.bytes_recv for name, link in links.items() if name != "lo")
    return time.process_time(), received


@contextmanager
def peak_of(pids: dict[str, int]) -> Iterator[dict[str, int]]:
    """Sample the resident memory of processes for as long as the body runs."""
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    peak = dict.fromkeys(pids, 0)
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            for name, process in processes.items():
                peak[name] = max(peak[name], process.memory_info().rss)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def ideal(made: Bench, case: Case, units: dict[str, int]) -> float:
    """Return the seconds of a product at the speeds that all workers show at once."""
    m, k, n = case.shape
    depth = min(k, DEEP)
    kernel = ("matmul.panel", {"width": n, "depth": depth, "dtype": case.dtype})
    took = made.measure(units, kernel, POLICY)
    return k * m / sum(units[name] * depth / seconds for name, seconds in took.items() if seconds)


def turn(made: Bench, case: Case, label: str, inputs: tuple[Chunks, Chunks], options: Any) -> Any:
    """Multiply one pair of inputs by Dask and by us, without and with models."""
    a, b = (
        data.chunked(made.client, name, chunks, case.dtype)
        for name, chunks in zip("ab", inputs, strict=True)
    )
    _, k, n = case.shape
    pids = {worker.name: made.lab.worker_pid(worker.name) for worker in made.lab.workers}
    found: dict[str, Any] = {"chunks": label}

    def product(kind: str) -> dict[str, Any]:
        depth = made.fresh_depth(n, k) if kind == "ours" else None
        data.warm_memory()
        before = made.client.run(usage)
        with peak_of(pids) as peak:
            began = time.perf_counter()
            if kind == "dask":
                c = (a @ b).persist()
                wait(c)
            else:
                c = made.balancer.matmul(a, b, layout=options.layout, depth=depth)
            wall = time.perf_counter() - began
        after = made.client.run(usage)
        facts = {
            "seconds": wall,
            "cpu_seconds": sum(after[w][0] - before[w][0] for w in after),
            "bytes_moved": sum(after[w][1] - before[w][1] for w in after),
            "peak_nbytes": dict(peak),
            "error": data.check(c, k),
        }
        if kind == "dask":
            return facts
        report = made.balancer.report
        assert report is not None
        return facts | {
            "units": dict(zip(report.workers, map(int, report.distribution), strict=True)),
            "phases": dict(report.phases),
            "reason": report.reason,
            "layout": dict(report.layout),
            "reported_bytes": report.bytes_moved,
            "shares": [dict(share) for share in report.shares],
            "helps": [dict(help) for help in report.helps],
        }

    for kind in KINDS:
        found[kind] = calmest(partial(product, kind), options.takes)
        if kind != "dask":
            found[kind]["ideal_seconds"] = ideal(made, case, found[kind]["units"])
    return found


def summary(turns: list[Any]) -> dict[str, Any]:
    """Return medians per chunking and the ratios of the best."""

    def middle(label: str, kind: str, get: Any) -> float:
        return float(statistics.median(get(t[kind]) for t in turns if t["chunks"] == label))

    labels = list(dict.fromkeys(t["chunks"] for t in turns))
    medians = {
        label: {kind: middle(label, kind, lambda t: t["seconds"]) for kind in KINDS}
        for label in labels
    }
    best = {kind: min(medians[label][kind] for label in labels) for kind in KINDS}
    return {
        "medians": medians,
        "best": best,
        "best_dask_over_best_ours": best["dask"] / best["ours"],
        "best_dask_over_best_known": best["dask"] / best["known"],
        "ideal_seconds": statistics.median(t[k]["ideal_seconds"] for t in turns for k in KINDS[1:]),
        "gigabytes_moved": {
            label: {kind: middle(label, kind, lambda t: t["bytes_moved"] / 1e9) for kind in KINDS}
            for label in labels
        },
        "cpu_seconds": {
            label: {kind: middle(label, kind, lambda t: t["cpu_seconds"]) for kind in KINDS}
            for label in labels
        },
        "peak_gigabytes": {
            label: {
                kind: middle(label, kind, lambda t: sum(t["peak_nbytes"].values()) / 1e9)
                for kind in KINDS
            }
            for label in labels
        },
    }


def show(title: str, found: dict[str, Any], repeats: int) -> None:
    rows = []
    for label, medians in found["medians"].items():
        rows.append(
            [
                label,
                *(medians[kind] for kind in KINDS),
                *(found["ideal_seconds"] / medians[kind] for kind in KINDS),
                *(found["gigabytes_moved"][label][kind] for kind in KINDS[:2]),
                *(found["cpu_seconds"][label][kind] for kind in KINDS[:2]),
                *(found["peak_gigabytes"][label][kind] for kind in KINDS[:2]),
            ]
        )
    table(
        f"{title}: seconds (medians of {repeats})",
        ["chunks", "dask s", "ours s", "known s", "dask / ideal", "ours", "known",
         "dask GB", "ours GB", "dask CPU s", "ours CPU s", "dask peak GB", "ours peak GB"],
        rows,
    )  # fmt: skip
    print(
        f"  ideal {found['ideal_seconds']:.3g} s; best of dask over best of ours: "
        f"{found['best_dask_over_best_ours']:.2f}, known {found['best_dask_over_best_known']:.2f}",
        flush=True,
    )


def draw(results: dict[str, Any], path: Path) -> None:
    def panels(*axes: Any) -> None:
        for axis, (case, found) in zip(axes, results.items(), strict=True):
            bars(axis, found["medians"])
            axis.axhline(found["ideal_seconds"], color="black", linestyle="--")
            axis.set(title=case, xlabel="chunks; dashed: ideal")

    figure(path, len(results), panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=["4096", "8192"], type=Case.parse)
    parser.add_argument("--chunks", nargs="+", help="only these of the five chunkings")
    parser.add_argument("--lab", default="hcl6")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--takes", type=int, default=TAKES, help="of a turn, at most")
    parser.add_argument("--layout", default="auto")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/matmul_against_dask.json")
    )
    options = parser.parse_args()
    results: dict[str, Any] = {"layout": options.layout, "lab": options.lab, "takes": options.takes}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with bench(options.lab) as made:
        for case in options.cases:
            turns = []
            for label, inputs in [*case.chunkings().items()] * options.repeats:
                if options.chunks is None or label in options.chunks:
                    turns.append(turn(made, case, label, inputs, options))
                    seconds = ", ".join(f"{k} {turns[-1][k]['seconds']:.1f} s" for k in KINDS)
                    print(f"  {case}, {label}: {seconds}", flush=True)
                    results[str(case)] = {"turns": turns, **summary(turns)}
                    options.out.write_text(json.dumps(results, indent=1, default=str))
            show(f"{case}, {options.lab}", results[str(case)], options.repeats)
    cases = {str(case): results[str(case)] for case in options.cases}
    draw(cases, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
