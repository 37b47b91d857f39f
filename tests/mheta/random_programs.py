"""Random programs, machines and distributions, in the form of the cases of ``oracles.json``.

They are to find what a formula hides: empty nodes, several sections and iterations, all patterns,
arrays that are resident, memory that is unlimited, scarce, exactly enough or too small.
"""

import math
from typing import Any

import numpy as np

from tests.mheta.simulated_node import needed_bytes

PATTERNS = ("none", "nearest_neighbour", "pipeline", "reduction_tree", "reduction_flat")
# The largest sensible figure of each key: seconds, or seconds per byte. A row has some 60 bytes
# and computes some 0.01 s.
FIGURES = {
    "read_overhead_s": 0.05,
    "read_s_per_byte": 4e-4,
    "write_overhead_s": 0.05,
    "write_s_per_byte": 4e-4,
    "prefetch_overhead_s": 0.02,
    "send_overhead_s": 0.05,
    "send_s_per_byte": 1e-3,
    "receive_overhead_s": 0.05,
    "receive_s_per_byte": 1e-3,
}
MOST_BLOCKS = 30

Plain = dict[str, Any]


def random_case(rng: np.random.Generator) -> Plain:
    """Return a case: rows, distribution, iterations, machine and program, as plain data.

    Of the cases, about one in ten is infeasible, and more than half are feasible and stream.
    """
    nodes = int(rng.integers(1, 9))
    arrays = _arrays(rng)
    sections = [_section(rng, nodes, arrays) for _ in range(rng.integers(1, 4))]
    program: Plain = {"arrays": arrays, "sections": sections}
    if _chance(rng, 0.4):
        program["fixed_bytes"] = int(rng.integers(0, 2000))
    distribution = _distribution(rng, nodes)
    return {
        "rows": sum(distribution),
        "distribution": distribution,
        "iterations": int(rng.integers(1, 5)),
        "machine": _machine(rng, program, distribution),
        "program": program,
    }


def _chance(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def _distribution(rng: np.random.Generator, nodes: int) -> list[int]:
    """Return rows per node, 200 at most in sum; in a third of the cases some nodes have none."""
    weights = rng.dirichlet(np.full(nodes, 2.0))
    if _chance(rng, 0.35):
        weights *= rng.random(nodes) < 0.6
    if not weights.any():
        weights[rng.integers(nodes)] = 1.0
    rows = rng.multinomial(rng.integers(1, 201), weights / weights.sum())
    return [int(x) for x in rows]


def _arrays(rng: np.random.Generator) -> list[Plain]:
    arrays: list[Plain] = []
    for name in "ABC"[: rng.choice(4, p=[0.08, 0.32, 0.35, 0.25])]:
        arrays.append({"name": name, "row_bytes": int(rng.integers(1, 129))})
        if _chance(rng, 0.2):
            arrays[-1]["resident"] = True
    return arrays


def _section(rng: np.random.Generator, nodes: int, arrays: list[Plain]) -> Plain:
    stages = [_stage(rng, nodes, arrays) for _ in range(rng.choice(4, p=[0.12, 0.48, 0.25, 0.15]))]
    section: Plain = {"stages": stages} if stages or _chance(rng, 0.5) else {}
    if _chance(rng, 0.6):
        section["tiles"] = int(rng.integers(1, 6))
    pattern = str(rng.choice(PATTERNS))
    if pattern == "none" and _chance(rng, 0.5):
        return section
    messages: Plain = {"pattern": pattern}
    if _chance(rng, 0.8):
        messages["message_bytes"] = int(rng.integers(0, 200))
    if arrays and _chance(rng, 0.4):
        messages["source"] = str(rng.choice([array["name"] for array in arrays]))
    section["communication"] = messages
    return section


def _stage(rng: np.random.Generator, nodes: int, arrays: list[Plain]) -> Plain:
    stage: Plain = {}
    kind = rng.choice(["seconds_per_row", "fpm", "no computing"], p=[0.65, 0.2, 0.15])
    if kind == "seconds_per_row":
        stage[kind] = [_round(10 ** rng.uniform(-3.5, -1)) for _ in range(nodes)]
    elif kind == "fpm":
        stage[kind] = [_points(rng) for _ in range(nodes)]
    for key, share in (("reads", 0.6), ("writes", 0.4)):
        names = [array["name"] for array in arrays if _chance(rng, share)]
        if names or _chance(rng, 0.5):
            stage[key] = names
    if _chance(rng, 0.45):
        stage["prefetch"] = True
    return stage


def _points(rng: np.random.Generator) -> Plain:
    """Return an FPM: increasing rows, non-decreasing seconds, at times the same twice."""
    rows = np.sort(rng.choice(np.arange(1, 201), rng.integers(1, 5), replace=False))
    paces = 10 ** rng.uniform(-3.5, -1, rows.size)
    paces[1:] *= rng.random(rows.size - 1) < 0.85
    seconds = np.cumsum(np.diff(rows, prepend=0) * paces)
    return {"rows": rows.tolist(), "seconds": seconds.tolist()}


def _machine(rng: np.random.Generator, program: Plain, distribution: list[int]) -> Plain:
    """Return figures, some left out, 0 or None, and memory that suits the distribution."""
    machine: Plain = {}
    for key, most in FIGURES.items():
        kind = rng.choice(["each", "one", "zero", "left out", "None"], p=[0.5, 0.2, 0.1, 0.1, 0.1])
        figures: list[float | None] = [_round(most * rng.random()) for _ in distribution]
        if kind == "one":
            figures = figures[:1] * len(figures)
        elif kind == "zero":
            figures = [0.0] * len(figures)
        elif kind == "None":
            figures = [None if _chance(rng, 0.5) else figure for figure in figures]
        if kind != "left out":
            machine[key] = figures
    for key, most in (("latency_s", 0.2), ("transfer_s_per_byte", 1e-3)):
        if _chance(rng, 0.8):
            machine[key] = _round(most * rng.random())
    if _chance(rng, 0.95):
        memory = [_memory(rng, program, rows) for rows in distribution]
        if _chance(rng, 0.11):
            node = int(rng.choice(np.flatnonzero(distribution)))
            memory[node] = _too_small(program, distribution[node], memory[node])
        machine["memory_bytes"] = memory
    return machine


def _memory(rng: np.random.Generator, program: Plain, rows: int) -> int | None:
    """Return memory in which so many rows are feasible: unlimited, enough or scarce."""
    if not rows:
        return None if _chance(rng, 0.3) else int(rng.integers(0, 5000))
    kept, everything = _footprint(program, rows)
    need, tiles = _worst(program)
    kind = rng.choice(["unlimited", "plenty", "just enough", "scarce"], p=[0.1, 0.1, 0.1, 0.7])
    if kind == "unlimited":
        return None
    if kind == "plenty":
        return everything + int(rng.integers(0, 5000))
    if kind == "just enough" or kept == everything:
        return everything
    blocks = math.exp(rng.uniform(0.0, math.log(MOST_BLOCKS)))
    block = math.ceil(rows / blocks)
    memory = kept + -(-need * block // tiles)  # exactly enough for such a block
    one_row = kept + -(-need // tiles)
    if _chance(rng, 0.2):
        memory = max(memory - 1, one_row)
    elif _chance(rng, 0.5):
        memory += int(rng.integers(0, need // tiles + 1))
    # out of core if that leaves room for one row, otherwise in core, just so
    return min(memory, everything - 1) if one_row < everything else everything


def _too_small(program: Plain, rows: int, memory: int | None) -> int | None:
    """Return memory that makes the node infeasible, the one given if it cannot be."""
    kept, everything = _footprint(program, rows)
    need, tiles = _worst(program)
    short = kept + -(-need // tiles) - 1
    return short if 0 <= short < everything else memory


def _footprint(program: Plain, rows: int) -> tuple[int, int]:
    """Return the bytes that are never out of core, and all bytes, of so many rows."""
    fixed = program.get("fixed_bytes", 0)
    resident = sum(a["row_bytes"] for a in program["arrays"] if a.get("resident"))
    row_bytes = sum(a["row_bytes"] for a in program["arrays"])
    return fixed + rows * resident, fixed + rows * row_bytes


def _worst(program: Plain) -> tuple[int, int]:
    """Return buffer bytes per row and tiles of the stage that needs most memory for a row."""
    streamed = {a["name"]: a["row_bytes"] for a in program["arrays"] if not a.get("resident")}
    needs = [
        (needed_bytes(stage, streamed), section.get("tiles", 1))
        for section in program["sections"]
        for stage in section.get("stages", [])
    ]
    return max(needs, key=lambda pair: pair[0] / pair[1], default=(0, 1))


def _round(value: float) -> float:
    return float(f"{value:.4g}")
