"""`Balancer.sort` against `dask.dataframe.sort_values`, from persisted uniform chunks, on a lab.

    python benchmarks/sort_against_dask.py [--cases 24e6:f8:uniform 24e6:i8:zipf ...] [--lab hcl6]
        [--partitions 12 24 48] [--methods tasks p2p] [--repeats 3] [--firsts 3]
        [--rows [--columns 0]]

A case is the number of keys, their dtype, and uniform, zipf, equal (all the same) or most (95 % one
value). Dask sorts a data frame of one column, its partitions in memory, by tasks and by p2p, in
three partition counts; the best counts. *Ours* measures the workers, each time in a new lab;
*known* goes by the models that are there then. With `--rows`, ours is `Balancer.sort_values` of
Dask's frame, and both have so many columns more. All results are checked: in order, and with the
sum of the keys' bits.
CPU-seconds, the largest resident memory of each worker, summed up, and the bytes that their network
interfaces receive are beside the seconds; so is the time of other keys over that of uniform ones
(at most 1.3 is wanted). Needs ``pip install -e ".[peers]"``. JSON, a table and a plot.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, Target, bars, bench, figure, table
from distributed import futures_of, wait
from matmul_against_dask import peak_of, usage

DEFAULT = (
    *(
        f"{count}:{dtype}:{kind}"
        for count in ("24e6", "96e6")
        for dtype in ("f8", "i8")
        for kind in ("uniform", "zipf")
    ),
    "24e6:f8:equal",
    "24e6:f8:most",
)
CHUNKS = 24
# Memory that is given to every turn warm, in bytes of what is sorted (of a frame with its index):
# either side touches more than one copy of it, and 96 million keys on memory that is touched for
# the first time take twice as long.
WARM = 4


def keys(count: int, dtype: str, kind: str, seed: int) -> np.ndarray:
    """Return random keys; made on the workers."""
    random = np.random.default_rng(seed)
    if kind == "zipf":
        return np.minimum(random.zipf(1.3, count), 1 << 50).astype(dtype)
    if kind == "equal":
        return np.full(count, 7, dtype)
    made = random.random(count) if dtype[0] == "f" else random.integers(0, 1 << 60, count)
    if kind == "most":
        made = np.where(random.random(count) < 0.95, 7, made)
    return made.astype(dtype)


def facts(block: Any) -> tuple[int, int, bool, Any, Any]:
    """Return size, sum of bits, whether it is in order, first and last key."""
    found = np.asarray(block["k"] if hasattr(block, "columns") else block).reshape(-1)
    ordered = bool((found[1:] >= found[:-1]).all())
    bits = int(found.view(f"u{found.itemsize}").sum(dtype="u8")) if found.size else 0
    return found.size, bits, ordered, *(found[[0, -1]].tolist() if found.size else (None, None))


def inputs(made: Bench, case: str) -> da.Array:
    """Return the keys in uniform chunks, dealt out to the workers in turns."""
    count, dtype, kind = case.split(":")
    each, name = int(float(count)) // CHUNKS, f"keys-{uuid4().hex}"
    where = list(made.addresses.values())
    futures = {
        (name, n): made.client.submit(
            keys, each, dtype, kind, n, key=(name, n), workers=[where[n % len(where)]], pure=False
        )
        for n in range(CHUNKS)
    }
    wait(list(futures.values()))
    return da.Array(futures, name, ((each,) * CHUNKS,), dtype=dtype)


def check(made: Bench, blocks: Any, expected: tuple[int, int]) -> None:
    """Raise unless the blocks are the sorted keys."""
    found = made.client.gather(made.client.map(facts, blocks, pure=False))
    full = [block for block in found if block[0]]
    total = sum(block[0] for block in full), sum(block[1] for block in full) % (1 << 64)
    ordered = all(block[2] for block in full) and all(a[4] <= b[3] for a, b in pairwise(full))
    if not ordered or total != expected:
        raise AssertionError(f"not sorted: in order {ordered}, {total} instead of {expected}")


def clocked(made: Bench, sort: Any, nbytes: int) -> tuple[Any, dict[str, Any]]:
    """Return what `sort` of keys of so many bytes returns, and its seconds, CPU, bytes, memory."""
    pids = {worker.name: made.lab.worker_pid(worker.name) for worker in made.lab.workers}
    data.warm_memory(max(data.WARMED, WARM * nbytes))
    before = made.client.run(usage)
    with peak_of(pids) as peak:
        began = time.perf_counter()
        found = sort()
        wall = time.perf_counter() - began
    after = made.client.run(usage)
    return found, {
        "seconds": wall,
        "cpu_seconds": sum(after[w][0] - before[w][0] for w in after),
        "bytes_moved": sum(after[w][1] - before[w][1] for w in after),
        "peak_nbytes": sum(peak.values()),
    }


def wider(keys: Any, columns: int) -> Any:
    """Return a frame of keys and so many columns that are as long."""
    return keys.to_frame("k").assign(**{f"c{n}": keys.to_numpy() for n in range(columns)})


def frame_of(x: da.Array, columns: int) -> Any:
    """Return the persisted frame of keys, a partition per chunk."""
    import dask.dataframe as dd

    frame = dd.from_dask_array(x, columns="k").map_partitions(wider, columns).persist()
    wait(frame)
    return frame


def by_dask(
    made: Bench, x: da.Array, partitions: int, method: str, columns: int, sums: Any
) -> dict[str, Any]:
    """Sort a data frame of so many partitions."""
    with dask.config.set({"dataframe.shuffle.method": method}):
        frame = frame_of(x.rechunk(x.size // partitions), columns)

        def sort() -> Any:
            found = frame.sort_values("k").persist()
            wait(found)
            return found

        found, turn = clocked(made, sort, x.nbytes * (1 + len(frame.columns)))
        check(made, sorted(futures_of(found), key=lambda block: block.key[1]), sums)
    return {**turn, "kind": f"dask {method} {partitions}"}


def by_us(made: Bench, x: Any, kind: str, sums: Any) -> dict[str, Any]:
    """Sort the array, or the frame."""
    balancer = made.balancer
    nbytes = 8 * sums[0]
    if isinstance(x, da.Array):
        found, turn = clocked(made, lambda: balancer.sort(x), nbytes)
    else:
        nbytes *= 1 + len(x.columns)
        found, turn = clocked(made, lambda: balancer.sort_values(x, "k"), nbytes)
    report = balancer.report
    assert report is not None
    check(made, sorted(futures_of(found), key=lambda block: block.key[1]), sums)
    return {
        **turn,
        "kind": kind,
        "reported_bytes": report.bytes_moved,
        "phases": dict(report.phases),
        "reason": report.reason,
        "shares": [dict(share) for share in report.shares],
    }


def given_to(made: Bench, case: str, options: argparse.Namespace) -> tuple[da.Array, Any, Any]:
    """Return the keys, what is to be sorted, and the number and the sum of keys."""
    x = inputs(made, case)
    found = made.client.gather(made.client.map(facts, futures_of(x), pure=False))
    sums = sum(block[0] for block in found), sum(block[1] for block in found) % (1 << 64)
    return x, frame_of(x, options.columns) if options.rows else x, sums


def first_of(made: Bench, case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Sort one input where nothing is known of the workers."""
    _, given, sums = given_to(made, case, options)
    turn = by_us(made, given, "ours", sums)
    print(f"  {case} ours: {turn['seconds']:.2f} s", flush=True)
    return turn


def case_of(made: Bench, case: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Sort one input in all ways, in turns."""
    x, given, sums = given_to(made, case, options)
    columns = options.columns
    turns = []
    for repeat in range(options.repeats):
        for kind in ("ours" if not repeat else "known", "known"):
            turns.append(by_us(made, given, kind, sums))
            print(f"  {case} {kind}: {turns[-1]['seconds']:.2f} s", flush=True)
        if repeat < options.dask_repeats:
            for method in options.methods:
                for partitions in options.partitions:
                    turns.append(by_dask(made, x, partitions, method, columns, sums))
                    last = turns[-1]
                    print(f"  {case} {last['kind']}: {last['seconds']:.2f} s", flush=True)
    return turns


def show(case: str, lab: str, turns: list[dict[str, Any]]) -> None:
    """Print the medians, and how many times as fast as the best of Dask we are."""

    def middle(kind: str, what: str) -> float:
        return float(statistics.median(turn[what] for turn in turns if turn["kind"] == kind))

    kinds = list(dict.fromkeys(turn["kind"] for turn in turns))
    rows = [
        [
            kind,
            middle(kind, "seconds"),
            middle(kind, "cpu_seconds"),
            middle(kind, "bytes_moved") / 1e9,
            middle(kind, "peak_nbytes") / 1e9,
        ]
        for kind in kinds
    ]
    table(f"{case}, {lab}", ["kind", "s", "CPU s", "GB moved", "peak GB"], rows)
    peers = [row[1] for row in rows if str(row[0]).startswith("dask")]
    for kind in ("ours", "known"):
        if peers and kind in kinds:
            ratio = min(peers) / middle(kind, "seconds")
            target = Target(f"{case} {kind}: times as fast", 10.0, ratio)
            print(f"{target.what}: {ratio:.1f}, wanted >= 10: {target.met}")


def skew(results: dict[str, list[dict[str, Any]]]) -> None:
    """Print how long other keys take, over uniform ones of the same number and dtype."""
    for case, turns in results.items():
        *same, kind = case.split(":")
        uniform = results.get(":".join([*same, "uniform"]))
        if kind != "uniform" and uniform is not None:
            ratio = best(turns)["known"] / best(uniform)["known"]
            target = Target(f"{case} over uniform", 1.3, ratio, False)
            print(f"{target.what}: {ratio:.2f}, wanted <= 1.3: {target.met}")


def best(turns: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of ours, and of the best way of Dask by tasks and by p2p."""
    found: dict[str, float] = {}
    for kind in dict.fromkeys(turn["kind"] for turn in turns):
        middle = statistics.median(turn["seconds"] for turn in turns if turn["kind"] == kind)
        name = " ".join(kind.split()[:2])
        found[name] = min(middle, found.get(name, middle))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=DEFAULT)
    parser.add_argument("--lab", default="hcl6")
    parser.add_argument("--partitions", nargs="+", type=int, default=(12, 24, 48))
    parser.add_argument("--methods", nargs="+", default=("tasks", "p2p"))
    parser.add_argument("--rows", action="store_true", help="sort frames, not arrays")
    parser.add_argument("--columns", type=int, default=0, help="beside the index and the keys")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--firsts", type=int, default=3, help="sorts that have to measure")
    parser.add_argument("--dask-repeats", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/sort_against_dask.json")
    )
    options = parser.parse_args()
    results = {}
    for case in options.cases:
        with bench(options.lab) as made:
            turns = results[case] = case_of(made, case, options)
        for _ in range(options.firsts - 1):
            with bench(options.lab) as made:
                turns.append(first_of(made, case, options))
        show(case, options.lab, turns)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1))
    skew(results)

    def draw(axis: Any) -> None:
        bars(axis, {case: best(turns) for case, turns in results.items()})
        axis.set(yscale="log")

    figure(options.out.with_suffix(".png"), 1, draw)


if __name__ == "__main__":
    main()
