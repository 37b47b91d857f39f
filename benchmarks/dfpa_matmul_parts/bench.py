"""What the experiments share: a lab with a client, measurements of single sizes, tables."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
import psutil
from distributed import Client, futures_of, wait

import fpmdask
from dfpa_matmul_parts import data
from fpmdask.apps.matmul.coordinator.distribute import least_gain, scout_rows, timing
from fpmdask.apps.matmul.kernel import panel_depth
from fpmdask.errors import PartitionError
from fpmdask.lab import Lab
from fpmdask.runtime.report import Report
from fpmdask.timing import TimingPolicy

Shares = dict[str, int]
HERE = str(Path(__file__).parent.parent)
# A virtual machine's host takes cores away; a turn of which it took more is taken again.
CALM = 0.06
TAKES = 4


@dataclass(frozen=True)
class Target:
    """A figure that is wanted; `at_least` says from which side."""

    what: str
    wanted: float
    measured: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted


@dataclass
class Experiment:
    """What an experiment found: plain data for JSON, and the targets it speaks to."""

    data: dict[str, Any]
    targets: list[Target] = field(default_factory=list)


@dataclass
class Bench:
    """A lab that is up, its client, and a balancer per worker beside that of all."""

    lab: Lab
    client: Client
    balancer: fpmdask.Balancer
    addresses: dict[str, str]
    alone: dict[str, fpmdask.Balancer]
    used_depths: dict[int, set[int]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self.addresses)

    def fresh_depth(self, width: int, inner: int) -> int:
        """Return the timed depth, one deeper each time: the coordinator knows no model of it."""
        used = self.used_depths.setdefault(width, set())
        depth = panel_depth(inner)
        while depth in used:
            depth += 1
        used.add(depth)
        return depth

    def dfpa(self, n: int, epsilon: float) -> dict[str, Any]:
        """Return the shares that DFPA finds for the product, starting without models."""
        kernel = panel(n, self.fresh_depth(n, n))
        data.warm_memory()
        began = time.perf_counter()
        report = self.balancer.partition(
            kernel,
            n,
            epsilon=epsilon,
            timing=timing(),
            scout=scout_rows(n, len(self.addresses)),
            least_gain=least_gain((n, n, n), len(self.addresses)),
        ).report
        wall = time.perf_counter() - began
        return {"seconds": wall, "shares": shares(report), **rounds_of(report)}

    def multiply(self, n: int, rows: Shares, b: da.Array) -> dict[str, Any]:
        """Multiply with A made in place, outside the clock; return the seconds, checked."""
        a = data.rows_in_place(self.client, n, rows, self.addresses)
        data.warm_memory()
        began = time.perf_counter()
        c = self.balancer.matmul(a, b, layout="rows", distribution=rows)
        wall = time.perf_counter() - began
        report = self.balancer.report
        assert report is not None
        return {
            "seconds": wall,
            "phases": dict(report.phases),
            "per_worker": [dict(share) for share in report.shares],
            "bytes_moved": report.bytes_moved,
            "error": data.check(c),
        }

    def plain(self, n: int, rows: Shares, b: da.Array) -> dict[str, Any]:
        """Multiply with A in place by one pinned NumPy task per worker, as with Dask alone."""
        a = data.rows_in_place(self.client, n, rows, self.addresses)
        (b_block,) = futures_of(b)
        data.warm_memory()
        began = time.perf_counter()
        blocks = [
            self.client.submit(np.matmul, block, b_block, workers=[where], pure=False)
            for block, where in zip(futures_of(a), self.addresses.values(), strict=True)
        ]
        wait(blocks)
        wall = time.perf_counter() - began
        name = f"c-{uuid4().hex}"
        graph = {(name, i, 0): block for i, block in enumerate(blocks)}
        c = da.Array(graph, name, (a.chunks[0], (n,)), dtype=float)
        return {"seconds": wall, "error": data.check(c)}

    def measure(
        self,
        sizes: Mapping[str, int],
        kernel: Any,
        policy: TimingPolicy,
        deadline: float | None = None,
    ) -> dict[str, float]:
        """Return the kernel's seconds of one size per worker, all measured at once."""
        with ThreadPoolExecutor(len(sizes)) as pool:
            found = pool.map(
                lambda name: self.measure_one(name, sizes[name], kernel, policy, deadline), sizes
            )
            return dict(zip(sizes, found, strict=True))

    def measure_one(
        self,
        name: str,
        units: int,
        kernel: Any,
        policy: TimingPolicy,
        deadline: float | None = None,
    ) -> float:
        """Return the seconds of one size on one worker: a distribution over it alone."""
        if units < 1:
            return 0.0
        try:
            report = (
                self.alone[name]
                .partition(kernel, units, max_rounds=1, timing=policy, deadline=deadline)
                .report
            )
        except PartitionError:  # its only worker has become limited to fewer units
            return float("inf")
        return float(report.seconds[0])


@contextmanager
def bench(definition: str) -> Iterator[Bench]:
    """Bring a lab up and warm it up."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if HERE not in paths:  # the lab's processes open functions of `data`
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, *paths]))
    lab = Lab.from_toml(definition, name=f"bench-{Path(definition).stem}-{os.getpid()}")
    with lab, Client(lab.scheduler_address) as client:
        info = client.scheduler_info(n_workers=-1)["workers"]
        where = {str(worker["name"]): address for address, worker in info.items()}
        addresses = {worker.name: where[worker.name] for worker in lab.workers}
        made = Bench(
            lab,
            client,
            fpmdask.Balancer(client),
            addresses,
            {name: fpmdask.Balancer(client, workers=[name]) for name in addresses},
        )
        client.run(data.block, "a", 0, 0, 8, 8)
        small = np.ones((240, 240))
        made.balancer.matmul(small, small).compute()
        # all of them: the first share imports what it needs
        every = dict.fromkeys(addresses, len(small) // len(addresses))
        every[lab.workers[0].name] += len(small) - sum(every.values())
        made.balancer.matmul(small, small, distribution=every).compute()
        yield made


def panel(width: int, depth: int) -> tuple[str, dict[str, Any]]:
    """Return the product's own kernel."""
    return "matmul.panel", {"width": width, "depth": depth, "dtype": "float64"}


def shares(report: Report) -> Shares:
    """Return units per worker name, as the product shares them out."""
    return dict(zip(report.workers, map(int, report.proposal), strict=True))


def rounds_of(report: Report) -> dict[str, Any]:
    """Return what a report says of DFPA, as plain data."""
    return {
        "reason": report.reason,
        "imbalance": report.imbalance,
        "rounds": [
            {
                "units": dict(record.units),
                "seconds": dict(record.seconds),
                "imbalance": record.imbalance,
                "wall": record.wall_seconds,
                "overhead": record.overhead_seconds,
            }
            for record in report.rounds
        ],
    }


def calmest(take: Callable[[], dict[str, Any]], most: int = TAKES) -> dict[str, Any]:
    """Return a turn that the machine's host disturbed little.

    The turn is repeated, up to `most` times in all, until less than `CALM` of the cores' time was
    stolen from this machine while it ran; otherwise the least disturbed one counts. *stolen* is
    that fraction. The same for all peers, and whatever their seconds are.
    """
    taken = []
    while len(taken) < most and not any(found["stolen"] < CALM for found in taken):
        before = psutil.cpu_times()
        found = take()
        after = psutil.cpu_times()
        stolen = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
        taken.append({**found, "stolen": stolen / (sum(after) - sum(before))})
    return min(taken, key=lambda found: found["stolen"])


def median(rows: Sequence[Mapping[str, Any]], get: Callable[[Any], float]) -> float:
    """Return the median of a figure over repetitions."""
    return statistics.median(get(row) for row in rows)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    text = [list(head), *([_shown(value) for value in row] for row in rows)]
    widths = [max(len(row[at]) for row in text) for at in range(len(head))]
    print(f"\n{title}")
    for row in text:
        print("  " + "  ".join(v.rjust(w) for v, w in zip(row, widths, strict=True)))
    print(end="", flush=True)


def phases_table(title: str, turn: Mapping[str, Any], phases: Sequence[str]) -> None:
    """Print the seconds that each worker of a sort spent in its phases, idle, and on a CPU."""
    rows = [
        [
            share["worker"],
            share["units"],
            *(share["phases"].get(name, 0.0) for name in phases),
            turn["phases"]["sort"] - share["seconds"],
            share["cpu_seconds"]["process"],
        ]
        for share in turn["shares"]
    ]
    table(title, ["worker", "units", *(f"{name} s" for name in phases), "idle s", "CPU s"], rows)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else str(value)


def figure(path: Path, panels: int, draw: Callable[..., None]) -> None:
    """Draw a row of panels into a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(1, panels, figsize=(5 * panels, 4), layout="constrained")
    draw(*np.atleast_1d(axes))
    for axis in np.atleast_1d(axes):
        axis.grid(alpha=0.3)
    drawn.savefig(path, dpi=120)
    pyplot.close(drawn)


def bars(axis: Any, groups: Mapping[str, Mapping[str, float]], unit: str = "seconds") -> None:
    """Draw groups of bars: group -> what each bar is -> its height."""
    kinds = list(dict.fromkeys(kind for group in groups.values() for kind in group))
    width = 0.8 / len(kinds)
    for n, kind in enumerate(kinds):
        own = [(at, group[kind]) for at, group in enumerate(groups.values()) if kind in group]
        places = [at + (n - (len(kinds) - 1) / 2) * width for at, _ in own]
        axis.bar(places, [height for _, height in own], width, label=kind)
    axis.set_xticks(range(len(groups)), list(groups))
    axis.set_ylabel(unit)
    if len(kinds) > 1:
        axis.legend()
