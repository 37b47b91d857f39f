"""What a product costs beside its multiplications: placing, submitting, the graph of C.

    python benchmarks/matmul_submission.py

In-process workers and small blocks; wanted: <= 0.2 s for 6 workers, <= 2 s for 256. The whole call
is shown beside it, all workers of which share this one process: of 256 only in columns, since in
rows each would open a channel to every other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
from distributed import Client, LocalCluster, wait

import fpmdask
from fpmdask.apps.matmul.client import arrays
from fpmdask.apps.matmul.coordinator import run
from fpmdask.apps.matmul.coordinator.product import Product
from fpmdask.partition import proportional

QUIET = {
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.worker.profile.enabled": False,
}
WANTED = {6: 0.2, 256: 2.0}
LAYOUTS = ("rows", "columns")
MANY = 100
STEPS = ((run, "placed"), (Product, "_assign"), (arrays, "collect"))


@contextmanager
def timed(owner: Any, name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Add up what calls of a function take."""
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **options)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began

    setattr(owner, name, wrapped)
    try:
        yield
    finally:
        setattr(owner, name, original)


def products(workers: int, n: int, chunk: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the facts of each product."""
    options = {"n_workers": workers, "threads_per_worker": 1, "processes": False}
    with (
        dask.config.set(QUIET),
        LocalCluster(dashboard_address=":0", memory_limit=0, **options) as cluster,
        Client(cluster) as client,
        fpmdask.Balancer(client) as balancer,
    ):
        client.wait_for_workers(workers)
        info = client.scheduler_info(n_workers=-1)["workers"].values()
        names = sorted(str(worker["name"]) for worker in info)
        weights = [1 + number % 4 for number in range(workers)]
        rows = proportional(n, weights)
        distribution = dict(zip(names, map(int, rows), strict=True))
        a, b = (client.persist(da.random.random((n, n), chunks=chunk)) for _ in range(2))
        wait([a, b])
        for layout in LAYOUTS[workers > MANY :]:
            for _ in range(repeats + 1):
                seconds: dict[str, float] = {}
                with ExitStack() as stack:
                    for owner, name in STEPS:
                        stack.enter_context(timed(owner, name, seconds))
                    began = time.perf_counter()
                    c = balancer.matmul(a, b, layout=layout, distribution=distribution)
                    call = time.perf_counter() - began
                yield {
                    "workers": workers,
                    "n": n,
                    "chunk": chunk,
                    "layout": layout,
                    "tasks": len(balancer.report.shares) + c.npartitions,
                    "call": call,
                    **seconds,
                }
                del c


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--workers", type=int, nargs="+", default=[6, 256])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/matmul_submission.json")
    )
    arguments = parser.parse_args()
    facts = []
    for workers in arguments.workers:
        for found in products(workers, arguments.n, arguments.chunk, arguments.repeats):
            facts.append(found)
        for layout in LAYOUTS[workers > MANY :]:
            own = [f for f in facts if (f["workers"], f["layout"]) == (workers, layout)][1:]
            middle = {
                step: statistics.median(f[step] for f in own)
                for step in ("placed", "_assign", "collect", "call")
            }
            total = middle["placed"] + middle["_assign"] + middle["collect"]
            print(
                f"{workers:4d} workers, {layout:7s}: {total:.3f} s (wanted: "
                f"{WANTED.get(workers, float('nan'))}): place {middle['placed']:.3f}, submit "
                f"{middle['_assign']:.3f}, graph of C {middle['collect']:.3f}; "
                f"{own[0]['tasks']} tasks; the whole call {middle['call']:.2f} s",
                flush=True,
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
