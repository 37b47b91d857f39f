"""Traces of an instrumented iteration, and microbenchmarks, of machines whose figures are known.

The simulated nodes of `tests.mheta.simulated_node` walk through one iteration as MHETA wants it
instrumented, with a `Recorder` whose clock is the simulation's: every node does I/O for every
distributed array, in blocks that it is told, an issue blocks, and a wait does nothing.
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from fpmdask.mheta import Array, Communication, Machine, Program, Section, Stage
from fpmdask.mheta.instrument import Event, Recorder
from tests.mheta.events import Clock, Steps
from tests.mheta.simulated_node import Case, Memory, Node, Plain, compute_seconds

Blocks = Callable[[int], list[int]]
Seconds = Callable[[float], float]


def three_blocks(rows: int) -> list[int]:
    """Return the share in about three blocks, the last about half as large.

    Two sizes wherever there are three rows or more.

    Examples
    --------
    >>> three_blocks(512), three_blocks(4), three_blocks(2)
    ([205, 205, 102], [2, 1, 1], [1, 1])
    """
    block = max(1, -(-2 * rows // 5))
    sizes = [min(block, rows - done) for done in range(0, rows, block)]
    if len(set(sizes)) == 1 and block > 1:
        sizes[-1:] = [block - 1, 1]
    return sizes


def many_blocks(large: int, small: int) -> Blocks:
    """Return a rule that cuts a share into equal blocks and a number of single rows.

    Examples
    --------
    >>> many_blocks(3, 2)(50)
    [16, 16, 16, 1, 1]
    """

    def cut(rows: int) -> list[int]:
        block = max(1, -(-(rows - small) // large))
        rest = rows - small
        sizes = [min(block, rest - done) for done in range(0, rest, block)]
        return sizes + [1] * small

    return cut


class Noise:
    """Seconds times a normal factor around 1; calls are at times ten times as long.

    Parameters
    ----------
    seed : int
        Of the random numbers.
    relative : float
        Standard deviation of the factor.
    outliers : float
        Share of the calls that are outliers.
    """

    def __init__(self, seed: int, relative: float = 0.05, outliers: float = 0.02) -> None:
        self._rng = np.random.default_rng(seed)
        self._relative, self._outliers = relative, outliers

    def duration(self, seconds: float) -> float:
        """Return a duration without outliers: computing, transfers on the wire."""
        return seconds * max(0.0, self._rng.normal(1.0, self._relative))

    def call(self, seconds: float) -> float:
        """Return the duration of a call: a read, a write, a message."""
        return self.duration(seconds) * (10 if self._rng.random() < self._outliers else 1)


EXACT = Noise(0, relative=0.0, outliers=0.0)


def write_traces(
    program: Program,
    machine: Machine,
    distribution: Collection[int],
    blocks: Blocks = three_blocks,
    noise: Noise = EXACT,
) -> dict[int, list[Event]]:
    """Return the events of each node in one instrumented iteration.

    Parameters
    ----------
    program : Program
        With the figures of the machine's nodes.
    machine : Machine
        Its memory and prefetch overheads do not show in the events.
    distribution : collection of int
        Rows of each node, at least 1.
    blocks : callable
        Cuts a number of rows into blocks.
    noise : Noise
        Of all durations; none by default.
    """
    rows = [int(x) for x in distribution]
    case = Case(program.to_dict(), machine.to_dict(), rows, 1, "exact")
    clock = Clock()
    nodes = [InstrumentedNode(case, node, clock, blocks, noise) for node in range(len(rows))]
    for node in nodes:
        node.peers = list(nodes)
        node.process.start(node.walk())
    clock.run()
    return {node.node: node.recorder.events for node in nodes}


def write_benchmarks(
    machine: Machine,
    noise: Noise = EXACT,
    repeats: int = 1,
    sizes: tuple[int, ...] = (0, 1 << 20),
) -> dict[int, Plain]:
    """Return what microbenchmarks on a machine measure: messages to all peers, and overheads."""
    nodes = range(machine.nodes)

    def cpu(what: str, node: int, nbytes: int) -> float:
        overhead = machine.figures(f"{what}_overhead_s")[node]
        return float(overhead + machine.figures(f"{what}_s_per_byte")[node] * nbytes)

    def message(node: int, peer: int, nbytes: int) -> tuple[int, int, float, float, float]:
        send, receive = cpu("send", node, nbytes), cpu("receive", node, nbytes)
        wire = machine.latency_s + machine.transfer_s_per_byte * nbytes
        there = send + wire + cpu("receive", peer, nbytes)
        back = cpu("send", peer, nbytes) + wire + receive
        trip = noise.call(there + back)
        return peer, nbytes, noise.call(send), noise.call(receive), trip

    found: dict[int, Plain] = {}
    for node in nodes:
        pairs = [(peer, size) for peer in nodes if peer != node for size in sizes]
        names = ("prefetch_overhead_s", "read_overhead_s", "write_overhead_s")
        found[node] = {name: float(machine.figures(name)[node]) for name in names}
        found[node]["messages"] = [message(node, *pair) for pair in pairs * repeats]
    return found


def jacobi(prefetch: bool = False, source: str | None = None) -> tuple[Program, Machine]:
    """Return a program with a halo exchange and its machine of three nodes, no two alike."""
    stage = Stage([0.01, 0.02, 0.03], reads=["A"], writes=["A"], prefetch=prefetch)
    halo = Communication("nearest_neighbour", 800, source)
    program = Program([Section([stage], communication=halo)], [Array("A", 800)])
    figures = {
        f"{what}_{figure}": [(k + n) * least for k in range(2, 5)]
        for n, what in enumerate(("read", "write", "send", "receive"))
        for figure, least in (("overhead_s", 1e-3), ("s_per_byte", 1e-6))
    }
    machine = Machine(
        3,
        prefetch_overhead_s=[1e-4, 2e-4, 3e-4],
        latency_s=0.01,
        transfer_s_per_byte=1e-5,
        **figures,
    )
    return program, machine


def traced_jacobi(
    prefetch: bool = False, source: str | None = None
) -> tuple[Program, dict[int, list[Event]], dict[int, Plain]]:
    """Return the program, traces and benchmarks of `jacobi` with 50 rows on each node."""
    program, machine = jacobi(prefetch, source)
    return program, write_traces(program, machine, [50] * 3), write_benchmarks(machine)


class InstrumentedNode(Node):
    """A node that walks through one iteration and records it; all nodes have rows."""

    def __init__(self, case: Case, node: int, clock: Clock, blocks: Blocks, noise: Noise) -> None:
        super().__init__(case, node, node, Memory(case.program, None, 1), clock)
        self.recorder = Recorder(clock=lambda: clock.now)
        self.blocks, self.noise = blocks(case.distribution[node]), noise
        arrays = case.program["arrays"]
        self.on_disk = {a["name"]: a["row_bytes"] for a in arrays if not a.get("resident")}

    def _section(self, section: Plain, blocks: list[list[int]], tag: Any) -> Steps:
        messages, tiles = section["communication"], section["tiles"]
        chain = messages["pattern"] == "pipeline"
        for tile in range(tiles):
            self.recorder.at(tag[1], tile)
            if chain and self.rank > 0:
                yield from self._receive((tag, tile), [self.rank - 1], messages)
            for index, stage in enumerate(section["stages"]):
                with self.recorder.stage(index, rows=sum(self.blocks)):
                    yield from self._stage(stage, self.blocks, tiles)
            if chain and self.rank < len(self.peers) - 1:
                yield from self._send((tag, tile), self.rank + 1, messages)
        if not chain:
            self.recorder.at(tag[1])
            yield from super()._section(section | {"tiles": 1, "stages": []}, blocks, tag)

    def _stage(self, stage: Plain, blocks: list[int], tiles: int) -> Steps:
        reads = [name for name in stage.get("reads", []) if name in self.on_disk]
        writes = [name for name in stage.get("writes", []) if name in self.on_disk]
        ahead = bool(stage.get("prefetch") and reads)
        for k, rows in enumerate(blocks):
            if k == 0 or not ahead:
                yield from self._io("read", reads, rows, tiles)
            prefetched = reads if ahead and k + 1 < len(blocks) else []
            if prefetched:
                yield from self._io("issue", prefetched, blocks[k + 1], tiles)
            with self.recorder.compute(rows):
                seconds = compute_seconds(stage, self.node, rows) / tiles
                yield from self.process.busy("compute", self.noise.duration(seconds))
            for name in prefetched:
                with self.recorder.wait(name):
                    pass
            yield from self._io("write", writes, rows, tiles)

    def _io(self, kind: str, names: list[str], rows: int, tiles: int) -> Steps:
        overhead, pace = self.figures.read, self.figures.read_byte
        if kind == "write":
            overhead, pace = self.figures.write, self.figures.write_byte
        for name in names:
            nbytes = self.on_disk[name] * rows / tiles
            with getattr(self.recorder, kind)(name, rows, nbytes):
                yield from self.process.busy("io", self.noise.call(overhead + pace * nbytes))

    def _send(self, tag: Any, to: int, messages: Plain) -> Steps:
        nbytes, figures = messages.get("message_bytes", 0), self.figures
        if (source := messages.get("source")) in self.on_disk:
            with self.recorder.read(source, rows=1, nbytes=nbytes):
                seconds = figures.read + figures.read_byte * nbytes
                yield from self.process.busy("send", self.noise.call(seconds))
        with self.recorder.send(to, nbytes):
            seconds = figures.send + figures.send_byte * nbytes
            yield from self.process.busy("send", self.noise.call(seconds))
        wire = self.noise.duration(figures.latency + figures.wire_byte * nbytes)
        peer = self.peers[to].process
        self.process.clock.after(wire, lambda: peer.deliver(tag, self.rank))

    def _receive(self, tag: Any, senders: Collection[int], messages: Plain) -> Steps:
        with self.recorder.receive(nbytes=messages.get("message_bytes", 0)) as call:
            mailbox = self.process._mailbox
            while not (found := [m for m in mailbox if m[0] == tag and m[1] in senders]):
                yield None
            mailbox.remove(found[0])
            call.peer = found[0][1]
            seconds = self.figures.receive + self.figures.receive_byte * call.nbytes
            yield from self.process.busy("receive", self.noise.call(seconds))
