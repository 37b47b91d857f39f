"""Where a sort's seconds go, and how they grow with the keys and with the workers.

    python benchmarks/sort_growth.py [--only light growth tiny cut] [--light 96e6]
        [--sizes 1e5 1e6 1e7 1e8] [--workers 2 4 8 16]

*Light*: on `hcl6`, the phases of each worker, and the *ideal*: all keys sorted once at the speeds
that the workers show at once (each copies and sorts as many as it had; the faster of two
measurements), and the bytes that came over links at the speed measured of them, both right after
each sort.
*Growth*: on workers that share 1.4 cores as 4 : 3 : 2 : 1, in turn; the keys at six workers, the
workers at 24 million keys. *Tiny*: a thousand keys on four workers that nothing throttles. *Cut*:
why keys are sorted in blocks before the exchange.
Float64, uniform, models known from a sort before, medians. JSON, tables and a plot.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, bars, bench, figure, phases_table, table
from distributed import Client
from matmul_growth import definition
from sort_against_dask import WARM, inputs

import fpmdask
from fpmdask.apps.sort.kernel import SAMPLE
from fpmdask.sorting.blocks import block_size, cut_up
from fpmdask.timing import TimingPolicy

POLICY = TimingPolicy(min_repetitions=3, min_seconds=1.0, budget_seconds=2.0, warmup=1)
MIDDLE = 24e6
# Links are probed so often: how long a probe takes depends on what is left of a worker's quota.
PROBES = 5
# Speeds are measured so often, and the faster ones taken: for some seconds after memory was given
# back the system may be busy with it.
MEASURED = 2
BLOCK = block_size(8, 6)
PHASES = ("sort", "hand over", "sample", "count", "exchange", "merge")


def sorted_once(made: Bench, x: Any) -> dict[str, Any]:
    """Sort; return seconds and the report's facts."""
    data.warm_memory(max(data.WARMED, WARM * x.nbytes))
    began = time.perf_counter()
    found = made.balancer.sort(x)
    wall = time.perf_counter() - began
    report = made.balancer.report
    assert report is not None
    del found
    return {
        "seconds": wall,
        "phases": dict(report.phases),
        "bytes_moved": report.bytes_moved,
        "shares": [dict(share) for share in report.shares],
    }


def several(made: Bench, units: float, repeats: int) -> dict[str, Any]:
    """Sort once to learn, then as often as asked; return the middle one."""
    x = inputs(made, f"{units}:f8:uniform")
    turns = [sorted_once(made, x) for _ in range(repeats + 1)][1:]
    middle = sorted(turns, key=lambda turn: turn["seconds"])[len(turns) // 2]
    return {**middle, "units": x.size, "workers": len(made.names)}


def forget_links(dask_scheduler: Any) -> None:
    """Let the next product measure links again; runs on the scheduler."""
    dask_scheduler.plugins["fpmdask"].known_workers.links.clear()


def links_of(made: Bench) -> dict[str, float]:
    """Return the seconds per byte that workers receive, all at once: medians of several probes."""
    square = np.ones((2048, 2048))
    found = []
    for _ in range(PROBES):
        made.client.run_on_scheduler(forget_links)
        made.balancer.matmul(square, square)
        report = made.balancer.report
        assert report is not None
        found.append({name: link[0] for name, link in report.links.items()})
    return {name: statistics.median(links[name] for links in found) for name in found[0]}


def beside_light(made: Bench, turn: dict[str, Any]) -> dict[str, Any]:
    """Return the turn with what its keys and bytes take, measured right after it."""
    counts = {share["worker"]: int(share["units"]) for share in turn["shares"]}
    # the kernel sorts one of so many keys
    timed = {name: SAMPLE * count for name, count in counts.items()}
    kernel = "sort.local", {"dtype": "<f8"}
    took = [made.measure(timed, kernel, POLICY) for _ in range(MEASURED)]
    links = links_of(made)
    sorting = min(
        turn["units"] / sum(counts[name] / seconds for name, seconds in found.items())
        for found in took
    )
    exchange = max(share["nbytes_received"] * links[share["worker"]] for share in turn["shares"])
    efficiency = (sorting + exchange) / turn["seconds"]
    print(
        f"  sorted in {turn['seconds']:.2f} s; once by all {sorting:.2f} s, "
        f"exchange {exchange:.2f} s: {efficiency:.2f} of that",
        flush=True,
    )
    return {**turn, "sorting": sorting, "exchange": exchange, "efficiency": efficiency}


def light(units: float, repeats: int) -> dict[str, Any]:
    with bench("hcl6") as made:
        x = inputs(made, f"{units}:f8:uniform")
        sorted_once(made, x)
        turns = [
            beside_light(made, {**sorted_once(made, x), "units": x.size}) for _ in range(repeats)
        ]
    turn = sorted(turns, key=lambda turn: turn["efficiency"])[len(turns) // 2]
    phases_table(f"{turn['units']:.3g} float64 in {turn['seconds']:.2f} s", turn, PHASES)
    efficiency = turn["efficiency"]
    print(f"median {efficiency:.2f} of that, wanted >= 0.6: {efficiency >= 0.6}")
    return {**turn, "turns": turns}


def growth(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with bench(definition(6, Path(folder))) as made:
            rows += [several(made, units, options.repeats) for units in options.sizes]
        for workers in options.workers:
            with bench(definition(workers, Path(folder))) as made:
                rows.append(several(made, MIDDLE, options.repeats))
    table(
        "a sort as keys and workers grow",
        ["keys", "workers", "seconds", "M keys/s", "moved GB"],
        [
            [
                f"{row['units']:.3g}",
                row["workers"],
                row["seconds"],
                row["units"] / row["seconds"] / 1e6,
                row["bytes_moved"] / 1e9,
            ]
            for row in rows
        ],
    )
    return rows


def tiny() -> float:
    with Client(n_workers=4, threads_per_worker=1, dashboard_address=":0") as client:
        balancer = fpmdask.Balancer(client)
        keys = np.random.default_rng(0).random(1000)
        seconds = []
        for _ in range(8):
            began = time.perf_counter()
            balancer.sort(keys)
            seconds.append(time.perf_counter() - began)
    found = statistics.median(seconds[1:])
    print(f"\na thousand keys on four workers: {found:.3f} s, wanted <= 0.3: {found <= 0.3}")
    return found


def halved(keys: np.ndarray, places: Sequence[int]) -> None:
    """Partition keys around each of the places, those in the middle first."""
    if not places:
        return
    middle = len(places) // 2
    at = places[middle]
    keys.partition(at)
    halved(keys[:at], places[:middle])
    halved(keys[at:], [place - at for place in places[middle + 1 :]])


def cut() -> dict[str, float]:
    """Time, on one core, what can tell which keys go where: to sort, to cut or to part them.

    Keys are copied and sorted in blocks that stay in the cache; to partition them around the cuts
    is what could be done instead.

    And how long two threads sort twice as many, which is as long where NumPy lets go of the GIL;
    and what is done with eleven runs that are in order: merged (by NumPy's stable sort, a merge of
    the runs that it finds) or sorted again, as parts are.
    """
    keys = np.random.default_rng(0).random(8_000_000)
    runs = np.concatenate([np.sort(run) for run in np.array_split(keys, 11)])
    ends = [n / 11 for n in range(1, 11)]
    places = [int(keys.size * end) for end in ends]

    def both(x: np.ndarray) -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(np.ndarray.sort, (x, other)))

    ways: dict[str, Callable[[np.ndarray], object]] = {
        "sort": np.ndarray.sort,
        "one place": lambda x: x.partition(x.size // 2),
        "partition": lambda x: x.partition(places),
        "place by place": lambda x: halved(x, places),
        "blocks": lambda x: [block.sort() for block in cut_up(x, BLOCK)],
        "copy": np.ndarray.copy,
        "threads": both,
        "merge of runs": lambda x: x.sort(kind="stable"),
        "sort of runs": np.ndarray.sort,
    }
    found = {}
    for name, way in ways.items():
        seconds = []
        for _ in range(6):
            x, other = (runs if name.endswith("of runs") else keys).copy(), keys.copy()
            began = time.perf_counter()
            way(x)
            seconds.append(time.perf_counter() - began)
        found[name] = statistics.median(seconds[1:])
    said = {
        "sorted": "sort",
        "copied": "copy",
        "partitioned around one place": "one place",
        "around ten at once": "partition",
        "around ten place by place": "place by place",
        f"sorted in blocks of {BLOCK}": "blocks",
        "twice as many by two threads": "threads",
        "eleven runs merged": "merge of runs",
        "sorted again": "sort of runs",
    }
    print("\n8 million keys, seconds:")
    for what, name in said.items():
        print(f"  {what} {found[name]:.3f}")
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the phases of each worker, and the seconds by keys and by workers."""
    phases = {
        share["worker"]: share["phases"] for share in found.get("light", {}).get("shares", ())
    }
    grown = found.get("growth", [])
    by_keys = [row for row in grown if row["workers"] == 6]
    by_workers = [row for row in grown if row["workers"] != 6]
    panels: list[Any] = []
    if phases:
        panels.append(lambda axis: bars(axis, phases))
    for rows, by in ((by_keys, "units"), (by_workers, "workers")):
        if rows:
            panels.append(lambda axis, rows=rows, by=by: _line(axis, rows, by))

    def drawn(*axes: Any) -> None:
        for axis, panel in zip(axes, panels, strict=True):
            panel(axis)

    if panels:
        figure(path, len(panels), drawn)


def _line(axis: Any, rows: list[dict[str, Any]], by: str) -> None:
    axis.loglog([row[by] for row in rows], [row["seconds"] for row in rows], "o-")
    axis.set(xlabel="keys" if by == "units" else by, ylabel="seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=("light", "growth", "tiny", "cut"))
    parser.add_argument("--light", type=float, default=96e6)
    parser.add_argument("--sizes", nargs="+", type=float, default=[1e5, 1e6, 1e7, 1e8])
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sort_growth.json"))
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if "light" in options.only:
        found["light"] = light(options.light, options.repeats)
    if "growth" in options.only:
        found["growth"] = growth(options)
    if "tiny" in options.only:
        found["tiny"] = tiny()
    if "cut" in options.only:
        found["cut"] = cut()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1))
    draw(found, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
