"""Synchronous programs on rows that are placed evenly, and on rows that `rebalance` has placed.

Every worker of the lab holds as many rows first, in one chunk. `Balancer.rebalance` places them
anew, by a kernel that is a small piece of the program. The program is run on both, alternating,
after a first run on few rows. Quality is that of the trained models on rows which they have not
seen.

    python benchmarks/rebalance.py --repeats 5
    python benchmarks/rebalance.py --cases xgboost --rows 600000 --repeats 2 --more
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import dask.array as da
import numpy as np
from dfpa_matmul_parts.bench import table
from distributed import Client, futures_of, wait

import fpmdask
from fpmdask.lab import Lab

COLUMNS = 20
SEEN_ROUNDS, STEPS, SMALL = 50, 30, 12_000
PARAMS = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 6, "nthread": 1}
LEAVES = {"num_leaves": 63, "verbose": -1, "n_estimators": SEEN_ROUNDS, "n_jobs": 1}


def features(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, COLUMNS), dtype=np.float32)


def labels(x: np.ndarray) -> np.ndarray:
    score = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + x[:, 3] - 0.5 * x[:, 4] ** 2
    noise = np.random.default_rng(int(abs(x[0, 0]) * 1e6)).standard_normal(len(x))
    return (score + noise > 0).astype(np.float32)


def evenly(client: Client, rows: int, name: str = "rows") -> tuple[da.Array, da.Array]:
    """Return the rows, as many on each worker."""
    fx, fy = f"{name}-features", f"{name}-labels"
    workers = client.scheduler_info(n_workers=-1)["workers"]
    homes = sorted(workers, key=lambda address: workers[address]["name"])
    each = rows // len(homes)
    xs = {
        (fx, n, 0): client.submit(features, each, n, workers=[home], key=(fx, n, 0))
        for n, home in enumerate(homes)
    }
    ys = {
        (fy, n): client.submit(labels, x, workers=[home], key=(fy, n))
        for n, (home, x) in enumerate(zip(homes, xs.values(), strict=True))
    }
    wait([*xs.values(), *ys.values()])
    chunks = (each,) * len(homes)
    x = da.Array(xs, fx, (chunks, (COLUMNS,)), dtype=np.float32)
    return x, da.Array(ys, fy, (chunks,), dtype=np.float32)


def logloss(probability: np.ndarray, y: np.ndarray) -> float:
    p = np.clip(probability, 1e-7, 1 - 1e-7)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


# ---- programs: what is timed; each returns a function of features that gives probabilities


def xgboost_dask(client: Client, x: da.Array, y: da.Array) -> Callable[[np.ndarray], np.ndarray]:
    import xgboost
    from xgboost.collective import Config
    from xgboost.dask import DaskQuantileDMatrix, train

    host = urlparse(client.scheduler.address).hostname  # the lab's network, on this host
    data = DaskQuantileDMatrix(client, x, y)
    config = Config(tracker_host_ip=host)
    found = train(client, PARAMS, data, num_boost_round=SEEN_ROUNDS, coll_cfg=config)
    return lambda new: found["booster"].predict(xgboost.DMatrix(new))


def xgboost_kernel(x: np.ndarray, y: np.ndarray) -> None:
    import xgboost

    xgboost.train(PARAMS, xgboost.QuantileDMatrix(x, y, nthread=1), 2)


def lightgbm_dask(client: Client, x: da.Array, y: da.Array) -> Callable[[np.ndarray], np.ndarray]:
    from lightgbm.dask import DaskLGBMClassifier

    model = DaskLGBMClassifier(client=client, **LEAVES).fit(x, y).to_local()
    return lambda new: model.predict_proba(new)[:, 1]


def lightgbm_kernel(x: np.ndarray, y: np.ndarray) -> None:
    import lightgbm

    lightgbm.train(
        {"objective": "binary", "verbose": -1, "num_leaves": 63, "num_threads": 1},
        lightgbm.Dataset(x, y),
        2,
    )


def gradient(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    p = 1 / (1 + np.exp(-(x @ weights)))
    return np.asarray(x.T @ (p - y))


def descent(client: Client, x: da.Array, y: da.Array) -> Callable[[np.ndarray], np.ndarray]:
    """Logistic regression by gradient descent: one all-reduce a step, on the client."""
    xs, ys = (sorted(futures_of(one), key=lambda f: f.key[1]) for one in (x, y))
    homes = client.who_has(xs)
    weights = np.zeros(COLUMNS, np.float32)
    for _ in range(STEPS):
        parts = [
            client.submit(gradient, *own, weights, workers=homes[own[0].key], pure=False)
            for own in zip(xs, ys, strict=True)
        ]
        weights = weights - np.float32(1.0 / len(x)) * sum(client.gather(parts))
    return lambda new: 1 / (1 + np.exp(-(new @ weights)))


def descent_kernel(x: np.ndarray, y: np.ndarray) -> None:
    gradient(x, y, np.zeros(COLUMNS, np.float32))


CASES = {
    "xgboost": (xgboost_dask, xgboost_kernel, (600_000, 3_000_000)),
    "lightgbm": (lightgbm_dask, lightgbm_kernel, (600_000, 3_000_000)),
    "descent": (descent, descent_kernel, (12_000_000,)),
}


def compared(client: Client, case: str, rows: int, repeats: int) -> dict[str, Any]:
    """Run a program on both placements."""
    program, kernel, _ = CASES[case]
    seen = features(100_000, seed=1234)
    expected = labels(seen)
    evens = evenly(client, rows)
    balancer = fpmdask.Balancer(client)
    began = time.perf_counter()
    placed = balancer.rebalance(*evens, kernel=kernel)
    own = time.perf_counter() - began
    report = balancer.report
    assert report is not None
    found: dict[str, Any] = {
        "case": case,
        "rows": rows,
        "rebalance": own,
        "phases": dict(report.phases),
        "rounds": [record.wall_seconds for record in report.rounds],
        "shares": dict(zip(report.workers, (report.distribution / rows).tolist(), strict=True)),
        "moved": report.bytes_moved,
        "even": [],
        "ours": [],
        "loss": {},
    }
    program(client, *evenly(client, SMALL, "small"))  # what is imported does not count
    print(f"{case} {rows}: rebalanced in {own:.1f} s, {found['rounds']}, {report}", flush=True)
    for _ in range(repeats):
        for side, data in (("even", evens), ("ours", placed)):
            began = time.perf_counter()
            model = program(client, *data)
            seconds = time.perf_counter() - began
            found[side].append(seconds)
            found["loss"][side] = logloss(model(seen), expected)
            print(f"  {side} {seconds:.2f} s, logloss {found['loss'][side]:.4f}", flush=True)
    return found


def show(results: list[dict[str, Any]]) -> None:
    merged: dict[tuple[str, int], dict[str, Any]] = {}
    for one in results:
        known = merged.setdefault((one["case"], one["rows"]), {**one, "even": [], "ours": []})
        known["even"] += one["even"]
        known["ours"] += one["ours"]
    head = ["program", "rows", "even s", "rebalanced s", "times as fast", "rebalance s", "logloss"]
    rows = []
    for one in merged.values():
        even, ours = statistics.median(one["even"]), statistics.median(one["ours"])
        loss = one["loss"]["ours"] / one["loss"]["even"] - 1
        numbers = f"{even:.2f}", f"{ours:.2f}", f"{even / ours:.2f}", f"{one['rebalance']:.1f}"
        rows.append([one["case"], f"{one['rows']:,}", *numbers, f"{loss:+.2%}"])
    table("even against rebalanced", head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lab", default="hcl6")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--rows", nargs="+", type=int, help="in place of each case's")
    parser.add_argument("--more", action="store_true", help="turns beside those of the last call")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/rebalance.json"))
    options = parser.parse_args()
    compileall.compile_dir(Path(fpmdask.__file__).parent, quiet=1)
    results: list[dict[str, Any]] = []
    if options.more:
        results = json.loads(options.out.read_text())
    for case in options.cases:
        for rows in options.rows or CASES[case][2]:
            lab = Lab.from_toml(options.lab, name=f"rebalance-{os.getpid()}")
            with lab, Client(lab.scheduler_address) as client:
                results.append(compared(client, case, rows, options.repeats))
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=1))
    show(results)


if __name__ == "__main__":
    main()
