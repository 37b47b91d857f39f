"""How well MHETA's predictions of out-of-core iterations agree with what these take.

On each lab come five runs of the even distribution, whose scatter no prediction can beat, and turns
of distributions along the path of the anchors. The first call measures the machine. Then what is
known of it is forgotten, and the second call measures it again, for all that follow. Measuring is
the probe of a row's speed, the instrumented sample, and MHETA itself; in the first call also the
imports on the workers. It is given in iterations of the even distribution (on `dc` rows are
measured on disk, and iterations are in core).

Before and after every three runs a call learns from its iterations how fast nodes compute now, and
what their messages take; what is predicted for these runs is the mean of both predictions: a
processor's own speed drifts, by a fourth in a minute on virtual machines. *Drift* is how much the
even distribution's prediction scatters over these calls. The other calls learn nothing. An
iteration's seconds are the median of what a run's iterations add to its makespan, the first one
left out; predicted and measured ones are the medians over the turns. With and without prefetching
distributions are the same ones, so that what it saves can be told, in percent of an iteration
without it. The machine's processors are kept awake (`awake.py`).

    python benchmarks/mheta_accuracy.py --labs io hy1 [--prefetch yes no] [--points 9] [--turns 3]

Nothing here but `Jacobi` knows the stencil: another program needs a class with the same methods.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from awake import awake
from dfpa_matmul_parts.bench import table
from distributed import Client

import fpmdask
from fpmdask.apps.stencil import jacobi
from fpmdask.apps.stencil.distribution import updated
from fpmdask.apps.stencil.history import median_parts
from fpmdask.apps.stencil.program import with_computing
from fpmdask.lab import Lab
from fpmdask.mheta import anchors, predict, spectrum
from fpmdask.mheta.document import Document
from fpmdask.mheta.instrument import accuracy
from fpmdask.mheta.run_html import spectrum_svg
from fpmdask.mheta.spectrum_path import corner_names

POINTS = {"io": 9, "hy1": 9, "dc": 5, "hy2": 5}
STEPS = 8
STEADY = 8
REPEATS = 5
RUNS = 3  # between two calls that learn
ENOUGH = 2**40


class Adapter(Protocol):
    """A program, as this benchmark sees it."""

    name: str

    def run(
        self, machine: Any = None, distribution: Mapping[str, int] | None = None
    ) -> Mapping[str, Any]:
        """Run it on the lab; return what `Report.mheta` says, and ``measuring``, seconds."""

    def forget(self) -> None:
        """Have the machine measured again by the next call."""


class Jacobi:
    """Jacobi sweeps over a Zarr array: half an even share fits where a lab's memory is small.

    A row is computed `WORK` times, so that computing and I/O are as in MHETA.md's Table 1, and an
    iteration has many periods of the CPU quotas, of 10 ms: one is all that its seconds are sure to.
    """

    ROWS, COLUMNS, SWEEPS, WORK = 2048, 4096, 12, 30
    LEARNING = 18  # sweeps of a call from which the machine is learned
    OUT_ROWS = 16
    # Of an even share, the part that is in core, by the memory of the lab's workers.
    SHARES: ClassVar[dict[int, float]] = {400_000_000: 8 / 16, 530_000_000: 14 / 16}

    def __init__(self, client: Client, lab: Lab, folder: Path, *, prefetch: bool) -> None:
        import zarr

        self.name = "Jacobi, prefetching" if prefetch else "Jacobi"
        self._balancer, self._prefetch = fpmdask.Balancer(client), prefetch
        shape, chunks = (self.ROWS, self.COLUMNS), (self.OUT_ROWS, self.COLUMNS)
        self._u0 = zarr.create_array(folder / "u0", shape=shape, chunks=chunks, dtype="f8")
        self._u0[...] = np.random.default_rng(0).random(shape)
        self._out = zarr.create_array(folder / "out", shape=shape, chunks=chunks, dtype="f8")
        row = 8 * (self.COLUMNS + 2)
        beside = 16 * row + 2 * self.OUT_ROWS * row  # halos, and what is written as one
        even = self.ROWS // len(lab.workers)
        self._memory = {
            worker.name: int(row * even * self.SHARES[worker.memory] + beside)
            for worker in lab.workers
            if worker.memory is not None
        }
        # Where all is in core, nothing would be measured: only the calls that measure are streamed.
        half = int(row * even / 2 + beside)
        self._streamed = self._memory or {worker.name: half for worker in lab.workers}

    def run(
        self, machine: Any = None, distribution: Mapping[str, int] | None = None
    ) -> Mapping[str, Any]:
        work = self.WORK

        def update(block: np.ndarray) -> np.ndarray:
            for _ in range(work - 1):
                jacobi(block)
            return jacobi(block)

        self._balancer.stencil(
            update,
            self._u0,
            self.SWEEPS if distribution else self.LEARNING,
            out=self._out,
            memory=self._memory if machine else self._streamed,
            prefetch=self._prefetch,
            machine=machine,
            distribution=distribution or "mheta",
        )
        report = self._balancer.report
        assert report is not None
        said = {**report.mheta, "measuring": report.phases["measure"]}
        if not self._memory and machine is None and "document" in said:
            self._in_core(said)
        return said

    def forget(self) -> None:
        self._balancer.models.forget()

    def _in_core(self, said: Mapping[str, Any]) -> None:
        """Have a document say how fast nodes compute in core.

        While a node waits for its disk others of its threads compute, Dask's: 1 % of a core, which
        is a tenth of what the slowest node has. In core they take that from the rows.
        """
        document, rows = said["document"], said["phases"][-1]["rows"]
        document["machine"]["memory_bytes"] = [ENOUGH] * len(rows)
        again = self.run(document, dict(zip(said["workers"], rows, strict=True)))["iterations"]
        took = [median_parts(again[name][1:]) for name in said["workers"]]
        compute, beside = ([one[part] for one in took] for part in ("compute", "beside"))
        known = Document.from_dict(document)
        program = with_computing(known.program, [1.0] * len(rows))  # whatever is known of blocks
        program, machine = updated(program, known.machine, rows, compute, None, beside)
        document["program"], document["machine"] = program.to_dict(), machine.to_dict()


def seconds_of(said: Mapping[str, Any]) -> float:
    """Return the median of what each iteration of a run but the first adds to its makespan.

    Not of the longest that any node takes for it: nodes drift apart and catch up again, so that
    this is the largest of several that scatter: 2 to 4 % more on hy1, and 30 % in single runs.
    """
    each = [[one[0] for one in some] for some in said["iterations"].values()]
    makespans = np.cumsum(each, axis=1).max(axis=0)
    return float(np.median(np.diff(makespans)))


def steady(document: Document, rows: Sequence[int]) -> float:
    found = predict(document.program, document.machine, rows, iterations=STEADY)
    return float(found.steady_state_seconds or np.inf)


def path_points(document: Document, path: Any, count: int) -> dict[int, list[int]]:
    """Return evenly spaced points of a path by their index, each distribution once."""
    seconds = [steady(document, rows) for rows in path]
    found: dict[tuple[int, ...], int] = {}
    for n in range(len(path) - 1, -1, -1):
        if np.isfinite(seconds[n]):
            found[tuple(path[n].tolist())] = n
    indices = sorted(found.values())
    if len(indices) > count:
        at = np.linspace(0, len(indices) - 1, count).round().astype(int)
        indices = [indices[n] for n in at]
    return {n: path[n].tolist() for n in indices}


def measure(adapter: Adapter, points: int, turns: int, like: Mapping[str, Any]) -> dict[str, Any]:
    """Return predicted and measured seconds along the path, and how well runs repeat.

    They are those of so many points of it, or the same ones as in what was returned before.
    """
    measuring = [_measured(adapter)["measuring"]]
    adapter.forget()
    first = _measured(adapter)
    measuring.append(first["measuring"])
    document, workers = Document.from_dict(first["document"]), first["workers"]
    figures = document.program, document.machine, document.rows
    path = np.array(like["rows"]) if like else spectrum(*figures, steps=STEPS)
    corners = like["corners"] if like else corner_names(anchors(*figures))
    chosen = like["points"] if like else path_points(document, path, points)

    def run(rows: Sequence[int]) -> float:
        given = dict(zip(workers, rows, strict=True))
        return seconds_of(adapter.run(first["document"], given))

    run(chosen[0])  # warm
    repeats = [run(chosen[0]) for _ in range(REPEATS)]
    turned: dict[str, dict[int, list[float]]] = {
        side: {n: [] for n in chosen} for side in ("predicted", "measured")
    }
    said = _learned(adapter, workers)
    drift, runs = [steady(said, chosen[0])], [*chosen.items()]
    for first_run in [*range(0, len(runs), RUNS)] * turns:
        some, before = runs[first_run : first_run + RUNS], said
        for n, rows in some:
            turned["measured"][n].append(run(rows))
        said = _learned(adapter, workers)
        drift.append(steady(said, chosen[0]))
        for n, rows in some:
            predicted = statistics.mean(steady(known, rows) for known in (before, said))
            turned["predicted"][n].append(predicted)
            took = turned["measured"][n][-1]
            print(adapter.name, n, rows, f"{predicted:.3f} {took:.3f}", flush=True)
    middle = {
        side: {n: statistics.median(some) for n, some in each.items()}
        for side, each in turned.items()
    }
    return {
        "program": adapter.name,
        "workers": workers,
        "document": first["document"],
        "choices": first["choices"],
        "measuring": measuring,
        "corners": corners,
        "rows": path.tolist(),
        "path": [steady(document, rows) for rows in path],
        "points": chosen,
        "repeats": repeats,
        "drift": drift,
        "turns": turned,
        **middle,
    }


def _learned(adapter: Adapter, workers: Sequence[str]) -> Document:
    """Return what is known of the machine after another call."""
    said = _measured(adapter)
    assert said["workers"] == workers, "workers changed places"
    return Document.from_dict(said["document"])


def _measured(adapter: Adapter) -> Mapping[str, Any]:
    """Return what a call reports that had its machine measured."""
    said = adapter.run()
    if "document" not in said:
        raise SystemExit(f"nothing was out of core: {said.get('why', 'no report')}")
    return said


def summary(found: Mapping[str, Any]) -> dict[str, float]:
    predicted, measured = ([*found[side].values()] for side in ("predicted", "measured"))
    off = 1 - np.asarray(accuracy(predicted, measured))
    repeats, drift = found["repeats"], found["drift"]
    named, best = int(np.argmin(predicted)), int(np.argmin(measured))
    return {
        "s": statistics.stdev(repeats) / statistics.mean(repeats),
        "drift": statistics.stdev(drift) / statistics.mean(drift),
        "mean off": float(off.mean()),
        "worst off": float(off.max()),
        "best above": measured[named] / measured[best] - 1,
        "worst / best": max(measured) / min(measured),
        "measuring, first": found["measuring"][0] / statistics.mean(repeats),
        "measuring": found["measuring"][1] / statistics.mean(repeats),
    }


def savings(without: Mapping[str, Any], prefetching: Mapping[str, Any]) -> list[str]:
    """Return what prefetching saves, predicted and measured in percent, and how far that is off."""
    predicted, measured = (
        np.array([100 * (1 - prefetching[side][n] / without[side][n]) for n in without["points"]])
        for side in ("predicted", "measured")
    )
    off, most = np.abs(predicted - measured), int(np.argmax(measured))
    figures = (predicted[most], measured[most], off.mean(), off.max())
    return [f"{figure:.1f}" for figure in figures]


def picture(name: str, found: Mapping[str, Any]) -> str:
    """Return the predicted and measured path as SVG."""
    measured = [found["measured"].get(n, np.nan) for n in range(len(found["path"]))]
    title = f"{found['program']} on {name}, seconds per iteration"
    return spectrum_svg(
        found["corners"], {"predicted": found["path"], "measured": measured}, title=title
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labs", nargs="+", choices=POINTS, default=[*POINTS])
    parser.add_argument("--prefetch", nargs="+", choices=("no", "yes"), default=["no", "yes"])
    parser.add_argument("--points", type=int, help="of the path, by default as many as wanted")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--backend", choices=("auto", "root", "duty-cycle"), default="auto")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/mheta_accuracy"))
    options = parser.parse_args()
    # as an installation does: a checkout may have none, and compiling counts on slow workers
    compileall.compile_dir(Path(fpmdask.__file__).parent, quiet=1)
    options.out.mkdir(parents=True, exist_ok=True)
    rows, saved = [], []
    for name in options.labs:
        without: dict[str, Any] = {}
        for prefetch in options.prefetch:
            folder = Path(tempfile.mkdtemp(prefix="fpmdask-accuracy-"))
            lab = Lab.from_toml(name, name=f"mheta-{os.getpid()}", backend=options.backend)
            try:
                with lab, awake(), Client(lab.scheduler_address) as client:
                    adapter = Jacobi(client, lab, folder, prefetch=prefetch == "yes")
                    points = options.points or POINTS[name]
                    found = measure(adapter, points, options.turns, without)
            finally:
                shutil.rmtree(folder)
            stem = f"{name}-prefetch-{prefetch}"
            (options.out / f"{stem}.json").write_text(json.dumps(found, indent=1))
            (options.out / f"{stem}.svg").write_text(picture(name, found))
            facts = summary(found)
            percent = [f"{100 * v:.1f}" for v in [*facts.values()][:5]]
            ratios = [f"{v:.2f}" for v in [*facts.values()][5:]]
            rows.append([name, adapter.name, str(len(found["points"])), *percent, *ratios])
            heads = ["lab", "program", "points", "s %", "drift %", "mean off %", "worst off %"]
            heads += ["named best above measured best %", "worst / best"]
            heads += ["measuring, first call, iterations", "measuring again"]
            table("predicted and measured seconds per iteration", heads, rows)
            if without:
                saved.append([name, *savings(without, found)])
                heads = ["lab", "predicted most %", "measured %", "mean off points", "worst off"]
                table("what prefetching saves of an iteration", heads, saved)
            without = found if prefetch == "no" else {}


if __name__ == "__main__":
    main()
