"""How long our code holds the scheduler's event loop, as workers grow.

    python benchmarks/scheduler_growth.py [--workers 16 64 256] [--only dfpa matmul sort]

A scheduler in a process of its own, workers of one thread each, up to 64 of them in a process, four
chunks of each input per worker. Without channels (`fpmdask.channels`): those of 256 workers would
take more threads than one machine has, so that pieces travel in Dask's messages.

Every step of the event loop (a callback, or a coroutine up to its
next `await`) is timed by the thread's CPU clock, garbage collections subtracted. A timer looks each
millisecond at what the loop's thread runs: the part of a step's samples that have a function of
fpmdask on the stack is ours, by the outermost of these functions. Wanted: no step of ours longer
than 10 ms. Beside it the longest step without a function of ours, which is Dask's. JSON and tables.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import math
import multiprocessing
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, Scheduler, Worker, wait

import fpmdask
import fpmdask.config  # its defaults must be there before `QUIET` is set for a while

WANTED = 0.010
SAMPLE_SECONDS = 0.001
# Steps shorter than this are added up only.
SHORT = 0.001
IN_PROCESS = 64
CHUNKS = 4
# As many keys as make a sort measure its workers.
KEYS_PER_WORKER = 1 << 17
BLOCK = 64
OURS = str(Path(fpmdask.__file__).parent)
QUIET = {
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.comm.timeouts.connect": "120s",
    # a channel has a thread on either side: 256 workers on one machine would have 60,000
    "fpmdask.channels": False,
}


@dataclass(frozen=True)
class Step:
    """A step of the event loop: its seconds, those that are ours, and the functions of the most."""

    seconds: float
    ours: float
    path: tuple[str, ...]  # functions of fpmdask, the outermost first; of another step its name


class Steps:
    """Times the steps of this process's event loop."""

    def __init__(self) -> None:
        self.found: list[Step] = []
        self._samples: list[tuple[str, ...]] = []
        self._collecting = 0.0
        self._collected = 0.0
        self._original = asyncio.events.Handle._run

    def install(self) -> None:
        """Wrap every callback, and look at the stack each millisecond."""
        steps = self

        def timed(handle: asyncio.Handle) -> Any:
            steps._samples.clear()
            steps._collected = 0.0
            name = _name(handle)
            began = time.thread_time()
            try:
                return steps._original(handle)
            finally:
                seconds = time.thread_time() - began - steps._collected
                if seconds >= SHORT:
                    steps._note(seconds, name)

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]
        gc.callbacks.append(self._collection)
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, SAMPLE_SECONDS, SAMPLE_SECONDS)

    def _collection(self, phase: str, info: dict[str, int]) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting

    def _look(self, number: int, frame: FrameType | None) -> None:
        path: list[str] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(OURS):
                where = Path(code.co_filename).relative_to(OURS).with_suffix("")
                path.append(f"{'.'.join(where.parts)}.{code.co_qualname}")
            frame = frame.f_back
        self._samples.append((*reversed(path),))

    def _note(self, seconds: float, name: str) -> None:
        own = [path for path in self._samples if path]
        if own:
            # as far down as most of the samples agree
            share = len(own) / len(self._samples)
            self.found.append(Step(seconds, seconds * share, _common(own)))
        else:
            self.found.append(Step(seconds, 0.0, (name,)))


def _name(handle: asyncio.Handle) -> str:
    """Return what a step runs: the coroutine of its task, or the callback."""
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_coro().__qualname__
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _common(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the longest path that at least half of the paths begin with."""
    found: tuple[str, ...] = ()
    while True:
        longer = Counter(path[: len(found) + 1] for path in paths if path[: len(found)] == found)
        best, count = longer.most_common(1)[0]
        if len(best) == len(found) or 2 * count < len(paths):
            return found or best
        found = best


def taken(dask_scheduler: Any) -> list[tuple[Any, ...]]:
    """Return the steps since the last call; runs on the scheduler."""
    found, dask_scheduler.steps.found = dask_scheduler.steps.found, []
    return [(step.seconds, step.ours, step.path) for step in found]


def schedule(address: Any) -> None:
    """Run a scheduler whose steps are timed, until the process is ended."""

    async def run() -> None:
        async with Scheduler(dashboard_address=":0", port=0, host="127.0.0.1") as scheduler:
            scheduler.steps = Steps()
            scheduler.steps.install()
            address.send(scheduler.address)
            await scheduler.finished()

    quiet(run())


def work(scheduler: str, names: list[str], folder: str) -> None:
    """Run some workers in one process, until it is ended."""

    async def run() -> None:
        options = {"nthreads": 1, "dashboard": False, "local_directory": folder}
        async with AsyncExitStack() as stack:
            for name in names:
                worker = Worker(scheduler, name=name, memory_limit="16GiB", **options)
                await stack.enter_async_context(worker)
            await asyncio.Event().wait()

    quiet(run())


def quiet(running: Coroutine[Any, Any, None]) -> None:
    """Run what a process is for, without Dask's log and without what Dask does by the clock."""
    logging.getLogger("distributed").setLevel(logging.WARNING)
    with dask.config.set(QUIET):
        asyncio.run(running)


@contextmanager
def cluster(workers: int) -> Iterator[Client]:
    """Start a scheduler and workers in processes of their own."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    processes = [spawn.Process(target=schedule, args=(there,), daemon=True)]
    with tempfile.TemporaryDirectory() as folder, dask.config.set(QUIET):
        try:
            processes[0].start()
            address = here.recv()
            names = [f"w{number}" for number in range(workers)]
            for first in range(0, workers, IN_PROCESS):
                own = names[first : first + IN_PROCESS]
                processes.append(
                    spawn.Process(target=work, args=(address, own, folder), daemon=True)
                )
                processes[-1].start()
            with Client(address) as client:
                client.wait_for_workers(workers, timeout=300)
                yield client
        finally:
            for process in reversed(processes):
                process.kill()
                process.join()


def dfpa(client: Client, balancer: Any, workers: int) -> None:
    """Measure an emulated kernel in rounds that all miss epsilon."""
    models = {
        f"w{number}": {
            "format": "fpmdask.model",
            "version": 1,
            "kind": "constant",
            "units_per_second": 1e6 * (1 + number % 7),
        }
        for number in range(workers)
    }
    balancer.partition(("emulated", {"models": models}), 1_000_000, epsilon=1e-6, max_rounds=4)


def matmul(client: Client, balancer: Any, workers: int) -> None:
    """Multiply twice: the second product goes by what the first has taught."""
    n = BLOCK * round(math.sqrt(CHUNKS * workers))
    a, b = (client.persist(da.random.random((n, n), chunks=BLOCK)) for _ in range(2))
    wait([a, b])
    client.run_on_scheduler(taken)
    for _ in range(2):
        balancer.matmul(a, b)


def keys_of(chunk: int, count: int) -> np.ndarray:
    """Return the keys of a chunk: most of them lie between those of its neighbours."""
    return np.random.default_rng(chunk).random(count) * 2.0 + chunk


def sort(client: Client, balancer: Any, workers: int) -> None:
    """Sort once, and learn from that.

    Keys are nearly in order, so that a worker receives from its neighbours only: 256 times 255
    connections are too many for one machine. What workers that share two cores teach is noise, by
    which another sort would move keys between all of them.
    """
    info = client.scheduler_info(n_workers=-1)["workers"]
    addresses = {worker["name"]: address for address, worker in info.items()}
    count = KEYS_PER_WORKER // CHUNKS
    parts = [
        client.submit(keys_of, chunk, count, workers=[addresses[f"w{chunk // CHUNKS}"]])
        for chunk in range(workers * CHUNKS)
    ]
    lazy = [da.from_delayed(part, (count,), dtype=float) for part in parts]
    x = client.persist(da.concatenate(lazy))
    wait(x)
    client.run_on_scheduler(taken)
    balancer.sort(x)


APPS: dict[str, Callable[[Client, Any, int], None]] = {
    "dfpa": dfpa,
    "matmul": matmul,
    "sort": sort,
}


def facts(app: str, workers: int, steps: list[Step]) -> dict[str, Any]:
    """Return the longest step of ours and of Dask's, and what the steps of each spend most on."""
    groups: dict[tuple[str, ...], list[Step]] = {}
    for step in steps:
        groups.setdefault(step.path, []).append(step)
    offenders = [
        {
            "ours": bool(own[0].ours),
            "path": path,
            "longest": max(step.ours or step.seconds for step in own),
            "steps": len(own),
            "total": sum(step.ours or step.seconds for step in own),
        }
        for path, own in groups.items()
    ]
    offenders.sort(key=lambda one: -one["longest"])
    return {
        "app": app,
        "workers": workers,
        "longest": max((step.ours for step in steps), default=0.0),
        "dask": max((step.seconds for step in steps if not step.ours), default=0.0),
        "offenders": offenders,
    }


def show(found: dict[str, Any], most: int) -> None:
    met = "met" if found["longest"] <= WANTED else "MISSED"
    print(
        f"\n{found['app']}, {found['workers']} workers, {found['seconds']:.1f} s: longest step of "
        f"ours {found['longest'] * 1e3:.1f} ms (wanted {WANTED * 1e3:.0f}: {met}), of Dask's "
        f"{found['dask'] * 1e3:.1f} ms",
    )
    for one in found["offenders"][:most]:
        print(
            f"  {one['longest'] * 1e3:6.1f} ms longest, {one['total'] * 1e3:7.1f} ms in "
            f"{one['steps']:4d} steps  {'' if one['ours'] else 'Dask: '}"
            f"{' > '.join(name.rpartition('.')[2] for name in one['path'][:-1][-3:])} > "
            f"{one['path'][-1]}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--only", nargs="+", choices=APPS, default=[*APPS])
    parser.add_argument("--most", type=int, default=8, help="lines per application")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/scheduler_growth.json")
    )
    options = parser.parse_args()
    rows = []
    for workers in options.workers:
        with cluster(workers) as client, fpmdask.Balancer(client) as balancer:
            for app in options.only:
                client.run_on_scheduler(taken)
                began = time.perf_counter()
                APPS[app](client, balancer, workers)
                seconds = time.perf_counter() - began
                steps = [Step(*step) for step in client.run_on_scheduler(taken)]
                rows.append({**facts(app, workers, steps), "seconds": seconds})
                show(rows[-1], options.most)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
