"""The experiment of the 2006 paper: records on eight workers of two classes, split in four ways.

    python benchmarks/records_paper.py [--records 40e6] [--repeats 3] [--folder /var/tmp]

Speeds are 1 and 1.5 (`two_classes.toml`). *Naive*: shares as the speeds. *Exact*: as n log n wants.
*Models*: as the sorts before have taught. *Two threads*: models, two runs or parts at once on every
worker. Each sorts the same files, in turns; no checksums, every result is verified once. Seconds
are medians; *spread* is how far the last worker's end lies from the mean of all ends, *first* and
*last* the ends of the first and the last worker. It is told whether models are no slower than the
exact split, and that than the naive one, beyond what turns of one split differ by. JSON, a table
and a plot.

The same splits without noise, at the paper's size and on its 96 workers: `sort_shares.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
from dfpa_matmul_parts.bench import Bench, bars, bench, figure, table

from fpmdask.models import AnalyticModel
from fpmdask.partition import by_complexity, integral
from fpmdask.records import verify, write_records

LAB = str(Path(__file__).parent / "two_classes.toml")
SPEEDS = {"slow": 1.0, "fast": 1.5}


def splits(made: Bench, records: int) -> dict[str, dict[str, int] | None]:
    """Return shares by way; None where the models say."""
    speeds = np.array([SPEEDS[name.rstrip("1234")] for name in made.names])
    models = [AnalyticModel("nlogn", speed) for speed in speeds]
    ways = {
        "naive": integral(speeds / speeds.sum() * records, records, models),
        "exact": integral(by_complexity(records, speeds, "nlogn"), records, models),
    }
    shares = {
        way: dict(zip(made.names, map(int, found), strict=True)) for way, found in ways.items()
    }
    return {**shares, "models": None}


def turn(made: Bench, sources: str, target: Path, given: Any, records: int) -> dict[str, Any]:
    """Sort once; return seconds and what every worker took."""
    shutil.rmtree(target, ignore_errors=True)
    began = time.perf_counter()
    made.balancer.sort_records(sources, target, distribution=given, checksum=False)
    wall = time.perf_counter() - began
    report = made.balancer.report
    assert report is not None
    ends = [share["finished"] for share in report.shares]
    mean = statistics.mean(ends)
    return {
        "seconds": wall,
        "first": min(ends),
        "last": max(ends),
        "spread": max(abs(end - mean) for end in ends) / mean,
        "bytes_moved": report.bytes_moved,
        "shares": [dict(share) for share in report.shares],
        "phases": dict(report.phases),
        "records": records,
    }


def run(made: Bench, ways: dict[str, Any], folder: Path, options: Any) -> dict[str, list[Any]]:
    """Sort in all ways, in turns, once before to warm up."""
    sources, target = str(folder / "in" / "*"), folder / "out"
    records = int(options.records)
    turn(made, sources, target, next(iter(ways.values())), records)
    found: dict[str, list[Any]] = {way: [] for way in ways}
    for repeat in range(options.repeats):
        for way, given in ways.items():
            found[way].append(turn(made, sources, target, given, records))
            print(f"  {way}: {found[way][-1]['seconds']:.1f} s", flush=True)
            if not repeat and not (result := verify(str(target), records=records)).ok:
                raise AssertionError(result.problems)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=float, default=40e6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/records_paper.json"))
    options = parser.parse_args()
    records = int(options.records)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_records(folder / "in", [records // 8] * 7 + [records - records // 8 * 7])
        with bench(LAB) as made:
            found = run(made, splits(made, records), folder, options)
        with dask.config.set({"fpmdask.slots": 2}), bench(LAB) as made:
            found |= run(made, {"two threads": None}, folder, options)
    rows = [
        [
            way,
            *(
                float(statistics.median(turn[what] for turn in turns))
                for what in ("seconds", "first", "last", "spread")
            ),
            " ".join(f"{turn['seconds']:.1f}" for turn in turns),
        ]
        for way, turns in found.items()
    ]
    head = ["split", "s", "first", "last", "spread", "all"]
    table(f"{records} records on eight workers of two classes", head, rows)
    for better, other in (("models", "exact"), ("exact", "naive")):
        ours, theirs = ([turn["seconds"] for turn in found[way]] for way in (better, other))
        ratio = statistics.median(ours) / statistics.median(theirs)
        noise = max((max(some) - min(some)) / statistics.median(some) for some in (ours, theirs))
        print(
            f"{better} over {other}: {ratio:.3f}, turns of one split differ by {noise:.3f}; "
            f"no slower beyond that: {ratio <= 1 + noise}"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1))
    middle = {str(row[0]): {"first end": row[2], "last end": row[3], "all": row[1]} for row in rows}
    figure(options.out.with_suffix(".png"), 1, lambda axis: bars(axis, middle))


if __name__ == "__main__":
    main()
