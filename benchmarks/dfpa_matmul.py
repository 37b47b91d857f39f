"""DFPA and the multiplication in rows on emulated unequal workers, each against its peer.

    python benchmarks/dfpa_matmul.py [--only in-place,table,paging,chunks,depth] [--quick]

The experiments, each on a lab of its own:

in-place  B on every worker, A made by each worker once the shares are known (Lastovetsky and Reddy
          2009, section 4): the multiplication against ideal (work / Σ speeds, measured before
          and after it, all at once) and against the even split, ours and one NumPy task per worker.
table     Table 1 of that paper, our way: rounds, DFPA, the run with DFPA and with full models; once
          what the full models cost.
paging    one worker whose share outgrows its memory: constant models, DFPA and full models.
chunks    uniformly chunked dask arrays: ``layout="rows"`` against ``A @ B`` of dask.array.
depth     how far a shallow timed panel changes the ratios between workers.

DFPA starts without models in every repetition: the depth of the timed panel is a parameter of the
kernel, so a part of the models' key, and each repetition times a panel one deeper than the last.
Every product is checked on sampled rows against NumPy. ``--quick`` takes small sizes and shows
nothing but that everything runs. JSON and plots go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dfpa_matmul_parts.bench import Experiment, Target, table

RESULTS = Path(__file__).parent / "results"
EXPERIMENTS = {
    "in-place": "in_place",
    "table": "paper_table",
    "paging": "paging",
    "chunks": "chunks",
    "depth": "depth",
}
PACKAGES = ("fpmdask", "numpy", "scipy", "dask", "distributed")


def main() -> None:
    options = _options()
    RESULTS.mkdir(exist_ok=True)
    out = RESULTS / ("dfpa_matmul_quick.json" if options.quick else "dfpa_matmul.json")
    targets: list[Target] = []
    for name in options.only:
        module = import_module(f"dfpa_matmul_parts.{EXPERIMENTS[name]}")
        began = time.perf_counter()
        done: Experiment = module.run(options, out)
        targets += done.targets
        seconds = time.perf_counter() - began
        print(f"\n{name}: {seconds:.0f} s", flush=True)
        _write(out, name, done, {**_circumstances(options), "seconds": seconds})
    _conclude(targets, options.quick)
    print(f"\nwritten: {out} and PNG files beside it")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", type=_chosen, default=list(EXPERIMENTS), help="experiments, comma-separated"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of everything")
    parser.add_argument("--epsilon", type=float, default=0.1, help="DFPA's target imbalance")
    parser.add_argument("--n", type=int, help="matrix size of in-place and depth, largest of table")
    parser.add_argument("--step", type=int, help="step of n in the table")
    parser.add_argument(
        "--accuracy", type=float, default=0.1, help="relative error that full models may have"
    )
    return parser.parse_args()


def _chosen(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown}; known are {', '.join(EXPERIMENTS)}")
    return names


def _circumstances(options: argparse.Namespace) -> dict[str, Any]:
    """Return what else one must know to judge the figures."""
    processors = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "options": vars(options),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
        "machine": {
            "processor": processors[0] if processors else platform.machine(),
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "load": os.getloadavg(),
        },
    }


def _write(out: Path, name: str, done: Experiment, circumstances: dict[str, Any]) -> None:
    """Put one experiment into the file; those of earlier calls stay."""
    kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    found = {
        "what": [vars(target) | {"met": bool(target.met)} for target in done.targets],
        **circumstances,
        **done.data,
    }
    text = json.dumps({**kept, name: _plain(found)}, indent=1, allow_nan=False)
    out.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """Return JSON values; infinity, which JSON lacks, becomes a string."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _conclude(targets: list[Target], quick: bool) -> None:
    table(
        "wanted and measured" + (" (quick: small sizes, means nothing)" if quick else ""),
        ["what", "wanted", "measured", "met"],
        [
            [
                t.what,
                f"{'≥' if t.at_least else '≤'} {t.wanted:g}",
                t.measured,
                "yes" if t.met else "no",
            ]
            for t in targets
        ],
    )


if __name__ == "__main__":
    main()
