"""What `import fpmdask` costs beyond `import numpy`.

    python benchmarks/import_time.py

Wanted: less than 0.1 s. Each import runs in a new interpreter, in turns, warm-up first; medians of
what the interpreter itself reads from its clock around the import.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CASES = {
    "numpy": "import numpy",
    "numpy and fpmdask": "import numpy, fpmdask",
    "numpy and fpmdask.partition": "import numpy, fpmdask.partition",
    "fpmdask.Balancer (with Dask)": "import fpmdask; fpmdask.Balancer",
}
WANTED_SECONDS = 0.1
_TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def seconds_of(statement: str) -> float:
    """Return the seconds that a new interpreter takes for ``statement``."""
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(statement)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def measure(repeat: int, cases: Sequence[str] = tuple(CASES)) -> dict[str, list[float]]:
    """Return seconds per case, the cases taken in turns; the first turn only warms caches."""
    turns = [[seconds_of(CASES[case]) for case in cases] for _ in range(repeat + 1)][1:]
    return dict(zip(cases, map(list, zip(*turns, strict=True)), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=9, help="turns (default: 9)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/import_time.json"))
    arguments = parser.parse_args()
    seconds = measure(arguments.repeat)
    medians = {case: statistics.median(values) for case, values in seconds.items()}
    added = medians["numpy and fpmdask"] - medians["numpy"]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps({"seconds": seconds, "medians": medians, "added": added}, indent=1)
    )
    for case, median in medians.items():
        print(f"{case:30} {median:7.3f} s")
    print(f"fpmdask adds {added * 1e3:.1f} ms to numpy (wanted: < {WANTED_SECONDS * 1e3:.0f} ms)")
    return 0 if added < WANTED_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
