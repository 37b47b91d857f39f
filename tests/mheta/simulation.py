"""An event-driven simulation of a program on a machine: the independent check of `fpmdask.mheta`.

It works on the plain dictionaries of ``oracles.json`` and shares no code with `fpmdask.mheta`.
Every node is a process (a generator, `tests.mheta.simulated_node`) on a common clock, whose heap
holds the events to come.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from tests.mheta.events import PARTS, Clock
from tests.mheta.simulated_node import Case, Memory, Node, Plain

Parts = dict[str, list[float]]


class SimulatedSection(NamedTuple):
    """When each node enters and leaves a section, and how it spends the seconds between."""

    start: list[float]
    end: list[float]
    parts: Parts


@dataclass
class Simulated:
    """What a simulation found: seconds and blocks, lists in node order.

    `iteration_ends` is [iteration][node], ``inf`` if infeasible. `parts`, `sections` and `blocks`
    ([section][stage][node], 0 where nothing is streamed) belong to the first iteration and are
    empty if infeasible. `infeasible` lists the nodes that make it so.
    """

    feasible: bool
    infeasible: list[int]
    iteration_ends: list[list[float]]
    parts: Parts
    sections: list[SimulatedSection]
    blocks: list[list[list[int]]]


def simulate(
    program: Plain,
    machine: Plain,
    distribution: list[int],
    iterations: int = 1,
    accounting: str = "exact",
) -> Simulated:
    """Run a program on a machine and return when everything happened, in seconds.

    Parameters
    ----------
    program, machine : dict
        Plain data as in ``oracles.json``.
    distribution : list of int
        Rows of each node, at least 0.
    iterations : int
        At least 1.
    accounting : str
        ``"exact"``: each block moves its own rows. ``"paper"``: full blocks, and one prefetch
        overhead too many, as in the printed equations.

    Raises
    ------
    ValueError
        If the accounting is unknown.

    Examples
    --------
    >>> stage = {"seconds_per_row": [0.5, 0.25]}
    >>> chain = {"pattern": "pipeline", "message_bytes": 8}
    >>> program = {"sections": [{"tiles": 2, "stages": [stage], "communication": chain}]}
    >>> found = simulate(program, {"latency_s": 1}, [4, 4])
    >>> found.iteration_ends, found.parts["wait"]
    ([[2.0, 3.5]], [0.0, 2.5])
    """
    if accounting not in ("exact", "paper"):
        raise ValueError(f"accounting is {accounting!r}; allowed are exact, paper")
    limits = machine.get("memory_bytes") or [None] * len(distribution)
    memories = {
        node: Memory(program, limits[node], rows) for node, rows in enumerate(distribution) if rows
    }
    if infeasible := [node for node, memory in memories.items() if not memory.feasible]:
        ends = [[math.inf] * len(distribution) for _ in range(iterations)]
        return Simulated(False, infeasible, ends, {}, [], [])
    case = Case(program, machine, distribution, iterations, accounting)
    clock = Clock()
    ranks = [Node(case, node, rank, m, clock) for rank, (node, m) in enumerate(memories.items())]
    for one in ranks:
        one.peers = ranks
        one.process.start(one.walk())
    clock.run()
    return _collect(case, {one.node: one for one in ranks})


def _collect(case: Case, ranks: dict[int, Node]) -> Simulated:
    """Put what the nodes recorded into node order, with zeros for those without rows."""
    nothing = (0.0, 0.0, dict.fromkeys(PARTS, 0.0))
    nodes = range(len(case.distribution))
    stuck = [n for n, one in ranks.items() if len(one.iteration_ends) < case.iterations]
    assert not stuck, f"nodes {stuck} wait for messages that nobody sends"
    sections, blocks = [], []
    for i, section in enumerate(case.program["sections"]):
        found = [ranks[n].sections[i] if n in ranks else nothing for n in nodes]
        start, end, spent = map(list, zip(*found, strict=True))
        sections.append(SimulatedSection(start, end, {p: [s[p] for s in spent] for p in PARTS}))
        stages = range(len(section.get("stages", [])))
        cut = {n: ranks[n].memory.blocks[i] for n in ranks}
        blocks.append([[len(cut[n][j]) if n in cut else 0 for n in nodes] for j in stages])
    parts = {p: [math.fsum(s.parts[p][n] for s in sections) for n in nodes] for p in PARTS}
    ends = [
        [ranks[n].iteration_ends[k] if n in ranks else 0.0 for n in nodes]
        for k in range(case.iterations)
    ]
    return Simulated(True, [], ends, parts, sections, blocks)
