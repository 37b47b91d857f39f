"""Two commits against each other: products, sorts, records and DFPA of the same data, in turn.

Each turn of a commit is a process of its own, with its package and a new lab, so that first calls
are first calls. The commits take turns; ratios are of neighbouring turns: the commit's seconds over
the one before's. It is slower where the 90 % interval of the median ratio lies above 1.03.

    python benchmarks/commits.py BEFORE [AFTER] [--turns 9] [--lab hcl6]

BEFORE and AFTER are what git knows (AFTER: HEAD), checked out in temporary work trees.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SLOWER = 1.03
# name → seconds of one commit's turn
Seconds = dict[str, float]


def clocked(work: Callable[[], Any], seconds: Seconds, name: str) -> Any:
    """Return what some work gives, and note its seconds."""
    began = time.perf_counter()
    made = work()
    seconds[name] = time.perf_counter() - began
    return made


def turn(lab_name: str) -> Seconds:
    """Make all cases once, in this process, with the package that it imports."""
    import dask.array as da
    import dask.dataframe as dd
    from dfpa_matmul_parts import data
    from distributed import Client, wait

    import fpmdask
    from fpmdask.lab import Lab
    from fpmdask.records import verify, write_records

    found: Seconds = {}
    with (
        Lab.from_toml(lab_name, name=f"commits-{os.getpid()}") as lab,
        Client(lab.scheduler_address) as client,
        fpmdask.Balancer(client) as balancer,
    ):
        data.warm_memory(2 * data.WARMED)
        for n, chunk, dtype in ((4096, 1024, float), (6144, 2048, float), (6144, 2048, "f4")):
            chunks = ((chunk,) * (n // chunk),) * 2
            a, b = (data.chunked(client, which, chunks, dtype) for which in ("a", "b"))
            for which in ("first", "later"):
                name = f"product of {n}, {np.dtype(dtype).name}, {which}"
                made = clocked(partial(balancer.matmul, a, b), found, name)
                assert made.shape == (n, n)
                del made
            del a, b
        random = da.random.RandomState(1)
        keys = random.random_sample(24_000_000, chunks=1_000_000).persist()
        integers = random.randint(0, 1 << 60, 24_000_000, chunks=1_000_000).persist()
        wait([keys, integers])
        for name, x in (("24 million float64", keys), ("24 million int64", integers)):
            for which in ("first", "later"):
                made = clocked(partial(balancer.sort, x), found, f"sort of {name}, {which}")
                assert bool((made[1:] >= made[:-1]).all().compute())
                del made
        frame = dd.from_dask_array(keys[:12_000_000, None], columns=["k"]).assign(v=1.0)
        wait(frame := frame.persist())
        for which in ("first", "later"):
            name = f"sort_values of 12 million rows, {which}"
            made = clocked(partial(balancer.sort_values, frame, "k"), found, name)
            assert len(made) == 12_000_000
            del made
        del keys, integers, frame, x
        with tempfile.TemporaryDirectory() as folder:
            source, target = f"{folder}/in/*", f"{folder}/out"
            written = write_records(f"{folder}/in", [4_000_000])
            sort = partial(balancer.sort_records, source, target)
            clocked(sort, found, "sort_records of 4 million")
            assert verify(target, records=4_000_000, checksum=written.checksum).ok
        clocked(lambda: balancer.partition(sines, 40_000), found, "partition of 40,000 units")
    return found


def sines(units: int) -> None:
    """Kernel: about 2 µs of CPU per unit."""
    for _ in range(units // 100):
        np.sin(np.zeros(20_000))


def table(turns: list[tuple[Seconds, Seconds]]) -> None:
    random = np.random.default_rng(0)
    print(
        "| case | before, s | after, s | after over before (90 %) | slower |\n|---|---|---|---|---|"
    )
    for name in turns[0][0]:
        before, after = ([pair[side][name] for pair in turns] for side in (0, 1))
        ratios = [b / a for a, b in zip(before, after, strict=True)]
        medians = np.median(random.choice(ratios, (2000, len(ratios))), axis=1)
        low, high = np.quantile(medians, [0.05, 0.95])
        own = f"{statistics.median(before):.2f} | {statistics.median(after):.2f}"
        ratio = f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
        print(f"| {name} | {own} | {ratio} | {'yes' if low > SLOWER else ''} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default="HEAD")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--lab", default="hcl6")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/commits.json"))
    parser.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        print(json.dumps(turn(options.lab)))
        return
    turns: list[tuple[Seconds, Seconds]] = []
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder) / side for side in ("before", "after")]
        git = ["git", "-C", str(Path(__file__).parent)]
        for tree, commit in zip(trees, (options.before, options.after), strict=True):
            subprocess.run([*git, "worktree", "add", "-q", "--detach", tree, commit], check=True)
        try:
            for number in range(options.turns):
                pair = [one_turn(tree, options.lab) for tree in trees]
                turns.append((pair[0], pair[1]))
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(turns, indent=1))
                print(f"turn {number + 1} of {options.turns}", file=sys.stderr, flush=True)
        finally:
            for tree in trees:
                subprocess.run([*git, "worktree", "remove", "--force", tree], check=True)
    table(turns)


def one_turn(tree: Path, lab: str) -> Seconds:
    """Return the seconds of a turn of the package in a work tree."""
    command = [sys.executable, __file__, "before", "--turn", "--lab", lab]
    env = {**os.environ, "PYTHONPATH": f"{tree}:{Path(__file__).parent}"}
    done = subprocess.run(command, cwd=tree, env=env, check=True, stdout=subprocess.PIPE, text=True)
    found: Seconds = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
