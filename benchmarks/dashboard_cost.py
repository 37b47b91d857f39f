"""What an open dashboard page costs the scheduler.

Two schedulers, the dashboard of one of which lacks fpmdask's pages, each in a process of its own
and with 64 workers in another one. A run that measures all workers begins every second: on the one
without the pages, in turn with the other one, first with its page closed, then with its page open;
at the end with Dask's own `/status` open. In this order, since bokeh keeps a session for half a
minute after its page was closed. A page has been open for some seconds when its window begins.
Seconds of CPU of the scheduler's process per second, by the operating system's account. A page that
is open is a bokeh client that takes in all that is sent.

    python benchmarks/dashboard_cost.py [--workers 64] [--seconds 15] [--turns 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
from dfpa_matmul_parts.bench import table
from distributed import Client, Worker

import fpmdask
from fpmdask.runtime.coordinator.observability import PAGES as PAGES_MODULE

# A scheduler without fpmdask's pages, then one with them.
WITHOUT = "without"
STATUS = "/status"
PAGES = {WITHOUT: None, "closed": None, "open": "/fpmdask", STATUS: STATUS}
WANTED = 0.02
# Seconds that a page has been open for when a window begins: making and sending all of it, once, is
# no part of what it costs while it is open.
OPEN_SECONDS = 3.0


def run_workers(address: str, count: int) -> None:
    """Run so many workers of one thread each, in this process."""

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # of connections that close

    async def serve() -> None:
        workers = [Worker(address, nthreads=1, dashboard=False) for _ in range(count)]
        await asyncio.gather(*workers)
        await asyncio.gather(*(worker.finished() for worker in workers))

    asyncio.run(serve())


@contextmanager
def opened(url: str | None) -> Iterator[None]:
    """Have a page open, None for none."""
    if url is None:
        yield
        return
    from bokeh.client import pull_session

    ready, ended = threading.Event(), threading.Event()

    def look() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        session = pull_session(url=url)
        ready.set()
        while not ended.is_set():
            session.force_roundtrip()  # takes in what has come; browsers ask for nothing
            ended.wait(1.0)
        session.close()

    thread = threading.Thread(target=look)
    thread.start()
    if not ready.wait(30):
        raise TimeoutError(f"{url} was not opened within 30 s")
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass(frozen=True)
class Cluster:
    """A scheduler with workers, and what a run on it is."""

    balancer: fpmdask.Balancer
    kernel: Any
    pid: int
    root: str


def has_page(root: str) -> bool:
    """Tell whether a dashboard has fpmdask's page."""
    try:
        urlopen(f"{root}{PAGES['open']}", timeout=30).close()
    except HTTPError:
        return False
    return True


@contextmanager
def cluster(workers: int, file: Path, *, pages: bool) -> Iterator[Cluster]:
    """Run a scheduler in a process of its own, and workers in another one."""
    preload = file.with_suffix(".py")
    preload.write_text("" if pages else f"import sys\nsys.modules[{PAGES_MODULE!r}] = None\n")
    command = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    where = ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(file)]
    scheduler = subprocess.Popen(
        [sys.executable, *command, *where, "--preload", str(preload)], stderr=subprocess.DEVNULL
    )
    try:
        with Client(scheduler_file=str(file), timeout=60, set_as_default=False) as client:
            spawn = multiprocessing.get_context("spawn")
            process = spawn.Process(target=run_workers, args=(client.scheduler.address, workers))
            process.start()
            client.wait_for_workers(workers, timeout=120)
            balancer = fpmdask.Balancer(client)
            names = [one["name"] for one in client.scheduler_info(-1)["workers"].values()]
            speeds = {
                str(name): fpmdask.models.ConstantModel(100.0 + n).to_json()
                for n, name in enumerate(names)
            }
            root = client.dashboard_link.removesuffix("/status")
            if has_page(root) is not pages:
                raise RuntimeError(f"{root}{PAGES['open']} is there: {not pages}; wanted: {pages}")
            yield Cluster(balancer, ("emulated", {"models": speeds}), scheduler.pid, root)
            client.shutdown()
        process.join(30)
    finally:
        scheduler.terminate()
        scheduler.wait()


def window(of: Cluster, seconds: float) -> tuple[float, int]:
    """Return the scheduler's CPU per second, and the runs, while a run begins every second."""
    process, began, runs = psutil.Process(of.pid), time.perf_counter(), 0
    before = sum(process.cpu_times()[:2])
    while (spent := time.perf_counter() - began) < seconds:
        of.balancer.models.forget()
        of.balancer.partition(of.kernel, 6400)
        runs += 1
        time.sleep(max(0.0, runs - (time.perf_counter() - began)))
    return (sum(process.cpu_times()[:2]) - before) / spent, runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/dashboard_cost.json"))
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in PAGES}
    runs: list[int] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(options.workers, Path(folder) / "without.json", pages=False) as without,
        cluster(options.workers, Path(folder) / "with.json", pages=True) as shown,
    ):
        for of in (without, shown):
            window(of, 3.0)
        turns = [[WITHOUT, "closed"], [WITHOUT, "open"], [STATUS]]
        for name in chain(*(turn * options.turns for turn in turns)):
            of, page = without if name == WITHOUT else shown, PAGES[name]
            with opened(None if page is None else of.root + page):
                window(of, OPEN_SECONDS)
                cpu, count = window(of, options.seconds)
            found[name].append(cpu)
            runs.append(count)
            print(f"  {name}: {100 * cpu:.1f} % of a core, {count} runs", flush=True)
    middle = {name: statistics.median(own) for name, own in found.items()}
    rows = [
        [name, f"{100 * cpu:.1f}", f"{100 * (cpu - middle[WITHOUT]):.1f}"]
        for name, cpu in middle.items()
    ]
    heads = ["page", "CPU, % of a core", "more than without"]
    table(f"{options.workers} workers", heads, rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"cpu_per_second": found, "runs": runs}, indent=1))
    for name in ("closed", "open"):
        more = 100 * (middle[name] - middle[WITHOUT])
        print(f"{name} costs {more:.1f} % of a core more than without ({WANTED:.0%})")


if __name__ == "__main__":
    main()
