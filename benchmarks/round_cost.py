"""What a DFPA round costs beyond its slowest kernel, with emulated kernels that return at once.

    python benchmarks/round_cost.py

Six worker processes (wanted: <= 25 ms) and 256 in-process workers (wanted: <= 1 s). Every round is
made to miss epsilon by noise in the emulated kernel, so that several rounds are seen.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import dask
from distributed import Client, LocalCluster

import fpmdask


def rounds(workers: int, processes: bool, repeat: int) -> list[float]:
    """Return the overhead of each round, seconds."""
    # 256 workers in one process read /proc 512 times a second otherwise, and look at their threads
    # 25,600 times for Dask's statistical profiler: their load, not ours
    quiet = {
        "distributed.admin.system-monitor.interval": "60s",
        "distributed.worker.profile.enabled": False,
    }
    with (
        dask.config.set(quiet),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=processes,
            dashboard_address=":0",
            memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        balancer = fpmdask.Balancer(client)
        info = client.scheduler_info(n_workers=-1)["workers"].values()
        found: list[float] = []
        for attempt in range(repeat):
            models = {
                str(worker["name"]): {
                    "format": "fpmdask.model",
                    "version": 1,
                    "kind": "constant",
                    "units_per_second": 1e6 * (1 + (number + attempt) % 7),
                }
                for number, worker in enumerate(info)
            }
            report = balancer.partition(
                ("emulated", {"models": models}), 1_000_000, epsilon=1e-6, max_rounds=4
            ).report
            found += [record.overhead_seconds for record in report.rounds]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/round_cost.json"))
    arguments = parser.parse_args()
    results = {}
    for workers, processes, wanted in ((6, True, 0.025), (256, False, 1.0)):
        seconds = rounds(workers, processes, repeat=5)
        results[str(workers)] = seconds
        print(
            f"{workers:4d} {'processes' if processes else 'in-process workers'}: median "
            f"{statistics.median(seconds) * 1e3:.1f} ms, largest {max(seconds) * 1e3:.1f} ms over "
            f"{len(seconds)} rounds (wanted: {wanted * 1e3:.0f} ms)"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
