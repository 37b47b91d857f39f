"""The first call on a fresh cluster, and three later ones, ours against Dask's.

Every turn of every side has a lab of its own, whose workers have imported nothing of either side
before. Sides take turns. ``prepare``, ``measure`` and what else comes before multiplying is the
overhead of a first product; installing is ``Balancer(client)``, apart. Results are compared with
those of the other side: element sums of products, order and sum of sorted keys.

    python benchmarks/first_call.py --repeats 5
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dfpa_matmul_parts.bench import table
from distributed import Client, wait

import fpmdask
from fpmdask.lab import Lab

N, CHUNK = 4096, 1024
KEYS, KEY_CHUNKS = 24_000_000, 24
LATER = 3


@contextmanager
def fresh(definition: str) -> Iterator[Client]:
    """Bring a lab up of which nobody has used anything."""
    lab = Lab.from_toml(definition, name=f"first-{Path(definition).stem}-{os.getpid()}")
    with lab, Client(lab.scheduler_address) as client:
        yield client


def clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made


def product(client: Client, side: str) -> dict[str, Any]:
    """Multiply the same matrices several times on a fresh lab."""
    a, b = (
        da.random.RandomState(seed).random_sample((N, N), chunks=CHUNK).persist() for seed in (1, 2)
    )
    wait([a, b])
    found: dict[str, Any] = {"side": side, "seconds": [], "before": [], "phases": []}
    balancer = None
    if side == "ours":
        found["install"], balancer = clocked(lambda: fpmdask.Balancer(client))
    for _ in range(1 + LATER):
        if balancer is None:
            seconds, c = clocked(lambda: (a @ b).persist())
            seconds += clocked(lambda c=c: wait(c))[0]
        else:
            seconds, c = clocked(lambda: balancer.matmul(a, b))
            report = balancer.report
            assert report is not None
            found["before"].append(seconds - report.phases["multiply"])
            found["phases"].append(dict(report.phases))
        found["seconds"].append(seconds)
        found["sum"] = float(c.sum().compute())
        name = c.name
        del c
        while client.run_on_scheduler(_holds, name):  # a later one has the same name
            time.sleep(0.1)
    return found


def _holds(name: str, dask_scheduler: Any) -> bool:
    return any(isinstance(key, tuple) and key[0] == name for key in dask_scheduler.tasks)


def sort(client: Client, side: str) -> dict[str, Any]:
    """Sort the same keys several times on a fresh lab."""
    x = da.random.RandomState(3).random_sample(KEYS, chunks=KEYS // KEY_CHUNKS).persist()
    wait(x)
    found: dict[str, Any] = {"side": side, "seconds": []}
    balancer = None
    if side == "ours":
        found["install"], balancer = clocked(lambda: fpmdask.Balancer(client))
    for _ in range(1 + LATER if balancer is not None else 1):
        if balancer is None:
            seconds, keys = clocked(lambda: _sorted_by_dask(x))
        else:
            seconds, keys = clocked(lambda: balancer.sort(x))
        found["seconds"].append(seconds)
        values = keys.map_blocks(_facts, dtype=object, chunks=(1,)).compute()
        ends = [value for value in values if value[0]]
        assert all(ordered for _, ordered, *_ in ends)
        assert all(left[3] <= right[2] for left, right in pairwise(ends))
        found["sum"] = [sum(value[0] for value in ends), sum(value[4] for value in ends)]
        del keys
    return found


def _sorted_by_dask(x: da.Array) -> da.Array:
    import dask.dataframe as dd

    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        frame = dd.from_dask_array(x.rechunk(KEYS // 12), columns="k").to_frame()
        made = frame.sort_values("k")["k"].persist()
    wait(made)
    return made.to_dask_array()


def _facts(block: np.ndarray) -> np.ndarray:
    found = np.empty(1, dtype=object)
    found[0] = (
        (len(block), bool((np.diff(block) >= 0).all()), block[0], block[-1], float(block.sum()))
        if len(block)
        else (0, True, 0.0, 0.0, 0.0)
    )
    return found


WORK = {"product": product, "sort": sort}


def middle(turns: list[dict[str, Any]], of: Callable[[dict[str, Any]], float]) -> float:
    return statistics.median(map(of, turns))


def show(what: str, turns: list[dict[str, Any]]) -> dict[str, float]:
    """Print medians, and the ratios that are wanted."""
    by = {side: [turn for turn in turns if turn["side"] == side] for side in ("dask", "ours")}
    first = {side: middle(own, lambda turn: turn["seconds"][0]) for side, own in by.items() if own}
    later = {
        side: middle(own, lambda turn: statistics.median(turn["seconds"][1:]))
        for side, own in by.items()
        if own and len(own[0]["seconds"]) > 1
    }
    rows = [[side, f"{first[side]:.2f}", f"{later.get(side, float('nan')):.2f}"] for side in first]
    table(what, ["side", "first s", "later s"], rows)
    found = {"first over later": first["ours"] / later["ours"]}
    found["install s"] = middle(by["ours"], lambda turn: turn["install"])
    if "dask" in first:
        found["Dask's first over ours"] = first["dask"] / first["ours"]
    if what == "product":
        found["before multiplying s"] = middle(by["ours"], lambda turn: turn["before"][0])
    print("  ".join(f"{name}: {value:.2f}" for name, value in found.items()), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lab", default="hcl6")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work", nargs="+", choices=WORK, default=[*WORK])
    parser.add_argument("--sides", nargs="+", choices=("dask", "ours"), default=("dask", "ours"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/first_call.json"))
    options = parser.parse_args()
    # as an installation does: a checkout may have none, and compiling counts on slow workers
    compileall.compile_dir(Path(fpmdask.__file__).parent, quiet=1)
    results: dict[str, Any] = {}
    for what in options.work:
        turns = results[what] = []
        for _ in range(options.repeats):
            for side in options.sides:
                with fresh(options.lab) as client:
                    turns.append(WORK[what](client, side))
                print(what, side, [round(seconds, 2) for seconds in turns[-1]["seconds"]])
                sums = [turn["sum"] for turn in turns]
                np.testing.assert_allclose(sums, [sums[0]] * len(sums), rtol=1e-9)
        results[f"{what} summary"] = show(what, turns)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
