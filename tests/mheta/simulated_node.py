"""A node of the simulation: what it does, block by block and message by message.

It follows the rules R1 to R12 of ``_rules`` in ``oracles.json`` step by step, on the plain
dictionaries of that file; no sum over blocks, tiles or ranks is written as a formula.
"""

from collections.abc import Collection
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from tests.mheta.events import PARTS, Clock, Process, Steps

Plain = dict[str, Any]


class Case(NamedTuple):
    """What is simulated: the arguments of `tests.mheta.simulation.simulate`."""

    program: Plain
    machine: Plain
    distribution: list[int]
    iterations: int
    accounting: str


class Figures:
    """The machine's figures of one node; those that are left out or None are 0."""

    def __init__(self, machine: Plain, node: int) -> None:
        def figure(name: str) -> float:
            found = machine.get(name)
            return (found[node] or 0.0) if found else 0.0

        self.read, self.read_byte = figure("read_overhead_s"), figure("read_s_per_byte")
        self.write, self.write_byte = figure("write_overhead_s"), figure("write_s_per_byte")
        self.prefetch = figure("prefetch_overhead_s")
        self.send, self.send_byte = figure("send_overhead_s"), figure("send_s_per_byte")
        self.receive, self.receive_byte = figure("receive_overhead_s"), figure("receive_s_per_byte")
        self.latency = machine.get("latency_s", 0.0)
        self.wire_byte = machine.get("transfer_s_per_byte", 0.0)


class Memory:
    """What is out of core on a node with so many rows, and in which blocks (R1, R2).

    `streamed` has the row bytes of the arrays that are out of core, by name; `blocks`, as
    [section][stage], the rows of each block of a tile, none where nothing is streamed. All bytes
    are Python integers.
    """

    def __init__(self, program: Plain, limit: int | None, rows: int) -> None:
        arrays = program.get("arrays", [])
        sizes = {array["name"]: int(array["row_bytes"]) for array in arrays}
        resident = {array["name"] for array in arrays if array.get("resident")}
        fixed = int(program.get("fixed_bytes", 0))
        free = None if limit is None else int(limit) - fixed
        in_core = free is None or rows * sum(sizes.values()) <= free
        self.streamed = {} if in_core else {n: b for n, b in sizes.items() if n not in resident}
        if free is not None:
            free -= rows * sum(sizes[name] for name in resident)
        self.feasible = free is None or free >= 0
        self.blocks: list[list[list[int]]] = []
        for section in program["sections"]:
            self.blocks.append([])
            for stage in section.get("stages", []):
                need, block = needed_bytes(stage, self.streamed), 0
                if need and free is not None:
                    block = max(0, min(rows, section.get("tiles", 1) * free // need))
                    self.feasible = self.feasible and block >= 1
                self.blocks[-1].append(_cut(rows, block) if block else [])


def needed_bytes(stage: Plain, streamed: dict[str, int]) -> int:
    """Return the bytes that one row of a stage needs in its buffers (R2).

    `streamed` has the row bytes of the arrays that are out of core, by name.
    """
    reads, writes = set(stage.get("reads", [])), set(stage.get("writes", []))
    buffers = [*(reads | writes), *(reads if stage.get("prefetch") else [])]
    return sum(streamed.get(name, 0) for name in buffers)


def _cut(rows: int, block: int) -> list[int]:
    return [min(block, rows - done) for done in range(0, rows, block)]


def compute_seconds(stage: Plain, node: int, rows: int) -> float:
    """Return the seconds that a stage computes for so many rows in one iteration (R3)."""
    if stage.get("fpm") is not None:
        points = stage["fpm"][node]
        return rows / _speed(points["rows"], points["seconds"], rows)
    if stage.get("seconds_per_row") is not None:
        return float(stage["seconds_per_row"][node] * rows)
    return 0.0


def _speed(units: list[float], seconds: list[float], rows: int) -> float:
    """Return rows per second: linear between the points, constant outside."""
    speeds = [u / s for u, s in zip(units, seconds, strict=True)]
    if rows <= units[0]:
        return speeds[0]
    for (left, low), (right, high) in pairwise(zip(units, speeds, strict=True)):
        if rows <= right:
            return low + (high - low) * (rows - left) / (right - left)
    return speeds[-1]


class Node:
    """A node with rows that walks through its program (R3 to R12).

    `rank` is its number among the nodes with rows, `peers` are all of those, by rank.
    `sections` has start, end and parts of each section of the first iteration.
    """

    def __init__(self, case: Case, node: int, rank: int, memory: Memory, clock: Clock) -> None:
        self.case, self.node, self.rank = case, node, rank
        self.figures, self.memory = Figures(case.machine, node), memory
        self.process = Process(clock)
        self.peers: list[Node] = []
        self.sections: list[tuple[float, float, dict[str, float]]] = []
        self.iteration_ends: list[float] = []

    def walk(self) -> Steps:
        """Do all iterations."""
        for iteration in range(self.case.iterations):
            for i, section in enumerate(self.case.program["sections"]):
                start = self.process.clock.now
                self.process.spent = spent = dict.fromkeys(PARTS, 0.0)
                yield from self._section(section, self.memory.blocks[i], (iteration, i))
                if iteration == 0:
                    self.sections.append((start, self.process.clock.now, spent))
            self.iteration_ends.append(self.process.clock.now)

    def _section(self, section: Plain, blocks: list[list[int]], tag: Any) -> Steps:
        messages, tiles = section.get("communication", {}), section.get("tiles", 1)
        pattern = messages.get("pattern", "none")
        for _ in range(tiles):
            if pattern == "pipeline" and self.rank > 0:
                yield from self._receive(tag, [self.rank - 1], messages)
            for j, stage in enumerate(section.get("stages", [])):
                yield from self._stage(stage, blocks[j], tiles)
            if pattern == "pipeline" and self.rank < len(self.peers) - 1:
                yield from self._send(tag, self.rank + 1, messages)
        if pattern == "nearest_neighbour":
            yield from self._exchange(tag, messages)
        elif pattern == "reduction_tree":
            yield from self._tree(tag, messages)
        elif pattern == "reduction_flat":
            yield from self._flat(tag, messages)

    # one tile of a stage

    def _stage(self, stage: Plain, blocks: list[int], tiles: int) -> Steps:
        if not blocks:
            yield from self._compute(stage, self.case.distribution[self.node], tiles)
            return
        streamed = self.memory.streamed
        reads = [streamed[name] / tiles for name in stage.get("reads", []) if name in streamed]
        writes = [streamed[name] / tiles for name in stage.get("writes", []) if name in streamed]
        # R6: "paper" moves full blocks
        moved = blocks if self.case.accounting == "exact" else [blocks[0]] * len(blocks)
        ahead = bool(stage.get("prefetch") and reads)
        for k, rows in enumerate(blocks):
            if k == 0 or not ahead:
                yield from self._read(reads, moved[k])
            if ahead and k + 1 < len(blocks):
                yield from self._issue(reads, moved[k + 1])
            elif ahead and self.case.accounting == "paper":
                for _ in reads:  # R6: the prefetch that is charged and not issued
                    yield from self.process.busy("io", self.figures.prefetch)
            yield from self._compute(stage, rows, tiles)
            yield from self.process.await_transfer()
            yield from self._write(writes, moved[k])

    def _compute(self, stage: Plain, rows: int, tiles: int) -> Steps:
        yield from self.process.busy("compute", compute_seconds(stage, self.node, rows) / tiles)

    def _read(self, row_bytes: list[float], rows: int) -> Steps:
        for nbytes in row_bytes:
            seconds = self.figures.read + self.figures.read_byte * nbytes * rows
            yield from self.process.busy("io", seconds)

    def _issue(self, row_bytes: list[float], rows: int) -> Steps:
        for _ in row_bytes:
            yield from self.process.busy("io", self.figures.read + self.figures.prefetch)
        self.process.transfer([self.figures.read_byte * nbytes * rows for nbytes in row_bytes])

    def _write(self, row_bytes: list[float], rows: int) -> Steps:
        for nbytes in row_bytes:
            seconds = self.figures.write + self.figures.write_byte * nbytes * rows
            yield from self.process.busy("io", seconds)

    # messages

    def _send(self, tag: Any, to: int, messages: Plain) -> Steps:
        nbytes, figures = messages.get("message_bytes", 0), self.figures
        seconds = figures.send + figures.send_byte * nbytes
        if messages.get("source") in self.memory.streamed:
            seconds += figures.read + figures.read_byte * nbytes
        yield from self.process.busy("send", seconds)
        arrive = partial(self.peers[to].process.deliver, tag, self.rank)
        self.process.clock.after(figures.latency + figures.wire_byte * nbytes, arrive)

    def _receive(self, tag: Any, senders: Collection[int], messages: Plain) -> Steps:
        yield from self.process.await_message(tag, senders)
        nbytes = messages.get("message_bytes", 0)
        seconds = self.figures.receive + self.figures.receive_byte * nbytes
        yield from self.process.busy("receive", seconds)

    def _exchange(self, tag: Any, messages: Plain) -> Steps:
        neighbours = [r for r in (self.rank - 1, self.rank + 1) if 0 <= r < len(self.peers)]
        for rank in neighbours:
            yield from self._send(tag, rank, messages)
        for _ in neighbours:
            yield from self._receive(tag, neighbours, messages)

    def _flat(self, tag: Any, messages: Plain) -> Steps:
        others = range(1, len(self.peers))
        if self.rank > 0:
            yield from self._send(tag, 0, messages)
            yield from self._receive(tag, [0], messages)
            return
        for _ in others:
            yield from self._receive(tag, others, messages)
        for rank in others:
            yield from self._send(tag, rank, messages)

    def _tree(self, tag: Any, messages: Plain) -> Steps:
        n, distances = len(self.peers), [1]
        while distances[-1] < n:
            distances.append(2 * distances[-1])
        for d in distances:  # up, to rank 0
            if self.rank % (2 * d) == d:
                yield from self._send(tag, self.rank - d, messages)
            elif self.rank % (2 * d) == 0 and self.rank + d < n:
                yield from self._receive(tag, [self.rank + d], messages)
        for d in reversed(distances):  # back, from rank 0
            if self.rank % (2 * d) == d:
                yield from self._receive(tag, [self.rank - d], messages)
            elif self.rank % (2 * d) == 0 and self.rank + d < n:
                yield from self._send(tag, self.rank + d, messages)
