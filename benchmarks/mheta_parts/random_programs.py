"""Small random programs and machines, few enough distributions to try them all."""

from typing import Any

import numpy as np

from fpmdask.mheta import Array, Communication, Machine, Program, Section, Stage

# Rows from and below, by nodes: 20 to about 3,000 distributions.
ROWS = {2: (20, 3000), 3: (10, 75), 4: (8, 26)}
PATTERNS = ("none", "nearest_neighbour", "pipeline", "reduction_tree", "reduction_flat")


def random_program(seed: int) -> tuple[Program, Machine, int]:
    """Return a program, a machine of two to four nodes and a number of rows.

    A node's memory is 0.1 to 1.6 times its even share of all arrays, so that most distributions
    have nodes out of core and many are infeasible. Powers differ by up to 16 times, overheads and
    seconds per byte by powers of ten; stages prefetch, tiles and all patterns occur.
    """
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 5))
    rows = int(rng.integers(*ROWS[nodes]))
    arrays = [
        Array(f"a{i}", 100 * int(rng.integers(1, 50)), resident=i > 0 and rng.random() < 0.2)
        for i in range(rng.integers(1, 4))
    ]
    power = rng.uniform(0.25, 4.0, nodes)
    if rng.random() < 0.25:
        power[:] = 1.0
    sections = [_section(rng, power, arrays, first=i == 0) for i in range(rng.integers(1, 4))]
    everything = rows * sum(array.row_bytes for array in arrays)
    fixed = everything // 20 if rng.random() < 0.3 else 0
    return Program(sections, arrays, fixed), _machine(rng, nodes, everything, fixed), rows


def _section(
    rng: np.random.Generator, power: np.ndarray, arrays: list[Array], first: bool
) -> Section:
    """Return a section; the first one of a program computes."""
    stages = []
    for k in range(rng.integers(1 if first else 0, 3)):
        reads = [array.name for array in arrays if rng.random() < 0.7]
        writes = [array.name for array in arrays if rng.random() < 0.4]
        seconds = (10 ** rng.uniform(-4, -1) / power).tolist()
        computes = k == 0 or rng.random() < 0.9
        prefetch = bool(rng.random() < 0.4)
        stages.append(Stage(seconds if computes else None, None, reads, writes, prefetch))
    messages = Communication(
        str(rng.choice(PATTERNS)),
        float(rng.choice([0, 8, 1000, 100_000])),
        source=arrays[0].name if rng.random() < 0.3 else None,
    )
    return Section(stages, int(rng.choice([1, 1, 2, 8])), messages)


def _machine(rng: np.random.Generator, nodes: int, everything: int, fixed: int) -> Machine:
    def figures(least: float, most: float) -> list[float]:
        found: list[float] = (10 ** rng.uniform(least, most, nodes)).tolist()
        return found

    share = everything / nodes
    memory = [
        None if rng.random() < 0.2 else int(fixed + share * rng.uniform(0.1, 1.6))
        for _ in range(nodes)
    ]
    machine: dict[str, Any] = {"memory_bytes": memory}
    if rng.random() < 0.9:
        machine["prefetch_overhead_s"] = figures(-5, -2)
        for kind in ("read", "write"):
            machine[f"{kind}_overhead_s"] = figures(-4, -1)
            machine[f"{kind}_s_per_byte"] = figures(-9, -5)
    if rng.random() < 0.8:
        machine["latency_s"] = figures(-5, -1)[0]
        machine["transfer_s_per_byte"] = figures(-9, -6)[0]
        for kind in ("send", "receive"):
            machine[f"{kind}_overhead_s"] = figures(-5, -1)
            machine[f"{kind}_s_per_byte"] = figures(-9, -6)
    return Machine(nodes, **machine)
