"""`Balancer.sort_records` against Dask's, Polars' and DuckDB's sort of the same records.

    python benchmarks/records_against.py [--records 4e6] [--repeats 3] [--folder /var/tmp]
        [--peers dask polars duckdb] [--dask-repeats 1]

As a user would, from files of 100-byte records: Dask reads them as a data frame of keys and values,
sorts by key and writes Parquet, on the same `hcl6` (by tasks and by p2p, 24 partitions); Polars and
DuckDB do the same in one process that nothing throttles, on all of this machine's cores. *Ours*
writes sorted record files, with and without their checksums. All results are checked: every key
is there, in order. The *floor* is what the workers need, all at once, to read their shares, sort
the keys, bring the records into order and write them, and the bytes that came over links at the
speed measured of them, right after each of our turns without checksums. Rows and bytes of records
per second, peak memory (of all workers, or of the peer's process), and the phases of each worker.
Needs ``pip install -e ".[peers]"``. JSON, a table and a plot.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
from dfpa_matmul_parts import data
from dfpa_matmul_parts.bench import Bench, bars, bench, figure, phases_table, table
from distributed import wait
from matmul_against_dask import peak_of

from fpmdask.apps.records.kernel import gather
from fpmdask.rawio import read_at, write_at
from fpmdask.records import verify, write_records
from fpmdask.records.format import RECORD_NBYTES, order

PARTITIONS = 24
# About what any of them takes; so much memory is warmed up before each turn.
MOST_NBYTES = 5 << 29
FLOOR = ("alone", "exchange")
PHASES = ("read", "sort", "gather", "count", "exchange", "merge", "write")

READ = """
import sys, numpy as np, pyarrow as pa
def columns(path):
    found = np.fromfile(path, np.uint8).reshape(-1, 100)
    parts = [pa.Array.from_buffers(pa.binary(width), len(found), [None, pa.py_buffer(
        np.ascontiguousarray(found[:, low:low + width]))]) for low, width in ((0, 10), (10, 90))]
    return pa.table([part.cast(pa.binary()) for part in parts], ["key", "value"])
t = pa.concat_tables([columns(path) for path in sys.argv[2:]])
"""
POLARS = """
import polars
polars.from_arrow(t).sort("key").write_parquet(sys.argv[1], compression="uncompressed")
"""
DUCKDB = """
import duckdb
duckdb.sql("copy (select * from t order by key) to '" + sys.argv[1] + "' (format parquet, "
           "compression uncompressed)")
"""


def frame_of(path: str, first: int, count: int) -> Any:
    """Return records of a file as a data frame of two binary columns, for Dask."""
    import pandas as pd
    import pyarrow as pa

    found = np.fromfile(path, np.uint8, count * 100, offset=first * 100).reshape(count, 100)
    columns = {}
    for name, low, width in (("key", 0, 10), ("value", 10, 90)):
        raw = pa.py_buffer(np.ascontiguousarray(found[:, low : low + width]))
        array = pa.Array.from_buffers(pa.binary(width), count, [None, raw]).cast(pa.binary())
        columns[name] = pd.Series(pd.arrays.ArrowExtensionArray(array))
    return pd.DataFrame(columns)


def by_dask(
    made: Bench, paths: list[str], records: int, out: Path, method: str
) -> dict[str, float]:
    """Read, sort and write with Dask on the lab; return the seconds and the workers' peak."""
    import dask.dataframe as dd

    each = -(-records // PARTITIONS)
    blocks = []
    for path in paths:
        size = os.stat(path).st_size // RECORD_NBYTES
        blocks += [(path, at, min(each, size - at)) for at in range(0, size, each)]
    shutil.rmtree(out, ignore_errors=True)
    data.warm_memory(MOST_NBYTES)
    with dask.config.set({"dataframe.shuffle.method": method}), peak_of(pids(made)) as peak:
        began = time.perf_counter()
        frame = dd.from_map(lambda block: frame_of(*block), blocks, meta=frame_of(paths[0], 0, 1))
        frame.sort_values("key").to_parquet(str(out), compression=None)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "peak_nbytes": sum(peak.values())}


def pids(made: Bench) -> dict[str, int]:
    """Return the process of each worker."""
    return {worker.name: made.lab.worker_pid(worker.name) for worker in made.lab.workers}


def keys_of(path: str) -> np.ndarray:
    """Return the keys of a file of records."""
    found = np.fromfile(path, np.uint8).reshape(-1, RECORD_NBYTES)
    return np.ascontiguousarray(found[:, :10]).view("S10").reshape(-1)


def check(out: Path, expected: np.ndarray) -> None:
    """Raise unless the keys in Parquet files are those expected, which are in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = [out]
    if out.is_dir():
        files = sorted(out.glob("*.parquet"), key=lambda file: int(file.stem.split(".")[1]))
    found = []
    for file in files:
        for chunk in pq.read_table(str(file), columns=["key"])["key"].chunks:
            raw = chunk.cast(pa.binary(10))
            found.append(np.frombuffer(raw.buffers()[1], "S10")[raw.offset :][: len(raw)])
    if not np.array_equal(np.concatenate(found), expected):
        raise AssertionError(f"{out} is not sorted")


def by_script(script: str, paths: list[str], out: Path) -> dict[str, float]:
    """Run a single-node peer in a process of its own; return the seconds, imports left out."""
    shutil.rmtree(out, ignore_errors=True)
    data.warm_memory(MOST_NBYTES)
    head = "import resource, time, polars, duckdb, pyarrow, numpy\nbegan = time.perf_counter()\n"
    tail = (
        "print(time.perf_counter() - began,"
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + READ + script + tail, str(out), *paths],
        check=True,
        capture_output=True,
        text=True,
    )
    *_, seconds, peak = done.stdout.split()  # DuckDB shows its progress before
    return {"seconds": float(seconds), "peak_nbytes": float(peak)}


def by_us(made: Bench, source: str, out: Path, checksum: bool) -> dict[str, Any]:
    """Sort; return seconds and the report's facts."""
    shutil.rmtree(out, ignore_errors=True)
    data.warm_memory(MOST_NBYTES)
    with peak_of(pids(made)) as peak:
        began = time.perf_counter()
        made.balancer.sort_records(source, out, checksum=checksum)
        wall = time.perf_counter() - began
    report = made.balancer.report
    assert report is not None
    return {
        "seconds": wall,
        "peak_nbytes": sum(peak.values()),
        "phases": dict(report.phases),
        "bytes_moved": report.bytes_moved,
        "shares": [dict(share) for share in report.shares],
    }


def alone(path: str, out: str, first: int, count: int) -> float:
    """Read, order, gather and write so many records; return the seconds."""
    records, made = np.ones((2, count, RECORD_NBYTES), np.uint8)
    began = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY)
    read_at(descriptor, first * RECORD_NBYTES, records)
    os.close(descriptor)
    gather(records, order(records), made)
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write_at(descriptor, 0, made)
    os.fdatasync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - began


def floor(made: Bench, path: str, folder: Path, turn: dict[str, Any]) -> dict[str, float]:
    """Return the seconds that the shares of a sort need without each other, and the exchange."""
    futures, at = [], 0
    for share in turn["shares"]:
        name, count = share["worker"], int(share["units"])
        arguments = path, str(folder / f"floor-{name}"), at, count
        futures.append(
            made.client.submit(alone, *arguments, workers=[made.addresses[name]], pure=False)
        )
        at += count
    wait(futures)
    square = np.ones((2048, 2048))
    made.balancer.matmul(square, square)
    report = made.balancer.report
    assert report is not None
    links = report.links
    exchange = max(
        share["nbytes_received"] * links.get(share["worker"], (0.0, 0.0))[0]
        for share in turn["shares"]
    )
    return {"alone": max(made.client.gather(futures)), "exchange": exchange}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=float, default=4e6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dask-repeats", type=int, default=1)
    parser.add_argument("--peers", nargs="*", default=("dask", "polars", "duckdb"))
    parser.add_argument("--folder", default=None)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/records_against.json"))
    options = parser.parse_args()
    records = int(options.records)
    turns: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name, bench("hcl6") as made:
        folder = Path(name)
        written = write_records(folder / "in", [records])
        (path,) = written.paths
        out = folder / "out"

        def check_ours() -> None:
            if not (result := verify(str(out), records=records, checksum=written.checksum)).ok:
                raise AssertionError(result.problems)

        by_us(made, path, out, True)
        check_ours()
        expected = keys_of(path)
        expected.sort()

        def note(way: str, turn: dict[str, Any]) -> None:
            turns.setdefault(way, []).append(turn)
            print(f"  {way}: {turn['seconds']:.2f} s", flush=True)

        for repeat in range(options.repeats):
            note("ours", by_us(made, path, out, False))
            check_ours()
            turns["ours"][-1]["floor"] = floor(made, path, folder, turns["ours"][-1])
            note("ours, checksums", by_us(made, path, out, True))
            check_ours()
            if "dask" in options.peers and repeat < options.dask_repeats:
                for method in ("tasks", "p2p"):
                    note(f"dask {method}", by_dask(made, [path], records, out, method))
                    check(out, expected)
            for peer, script in (("polars", POLARS), ("duckdb", DUCKDB)):
                if peer in options.peers:
                    note(peer, by_script(script, [path], folder / "sorted"))
                    check(folder / "sorted", expected)
    rows = []
    for way, some in turns.items():
        seconds = float(statistics.median(turn["seconds"] for turn in some))
        peak = float(statistics.median(turn["peak_nbytes"] for turn in some)) / 1e9
        rows.append([way, seconds, records / seconds / 1e6, records / seconds / 1e4, peak])
    table(f"{records} records, hcl6", ["way", "s", "M rows/s", "MB/s", "peak GB"], rows)
    ours = sorted(turns["ours"], key=lambda turn: turn["seconds"])
    middle = ours[len(ours) // 2]
    title = f"ours in {middle['seconds']:.2f} s, of which the sort {middle['phases']['sort']:.2f} s"
    phases_table(title, middle, PHASES)
    shares = [sum(turn["floor"].values()) / turn["seconds"] for turn in turns["ours"]]
    least = {what: statistics.median(turn["floor"][what] for turn in ours) for what in FLOOR}
    print(
        f"floor: read, sort, gather, write {least['alone']:.2f} s, exchange "
        f"{least['exchange']:.2f} s, medians; ours is at {statistics.median(shares):.2f} of that "
        f"speed ({' '.join(f'{share:.2f}' for share in sorted(shares))})"
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"turns": turns, "floor": least}, indent=1))
    rates = {way: {"million rows/s": rate} for way, _, rate, *_ in rows}
    figure(options.out.with_suffix(".png"), 1, lambda axis: bars(axis, rates, "million rows/s"))


if __name__ == "__main__":
    main()
