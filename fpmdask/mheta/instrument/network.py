"""Messages of the microbenchmarks: what sending, receiving and the wire cost."""

from collections.abc import Sequence
from typing import NamedTuple

from fpmdask.errors import PartitionError
from fpmdask.mheta.instrument.benchmarks import Benchmark
from fpmdask.mheta.instrument.linear import robust_line

Line = tuple[float, float]


class Network(NamedTuple):
    """The figures of messages, named as in `Machine`; lists are in node order."""

    send_overhead_s: tuple[float, ...]
    send_s_per_byte: tuple[float, ...]
    receive_overhead_s: tuple[float, ...]
    receive_s_per_byte: tuple[float, ...]
    latency_s: float
    transfer_s_per_byte: float


def fit_network(benchmarks: Sequence[Benchmark]) -> Network:
    """Return what messages cost, from those of the microbenchmarks.

    Parameters
    ----------
    benchmarks : sequence of Benchmark
        In node order, at least two.

    Raises
    ------
    PartitionError
        If a node has no messages, or all of one size.

    Notes
    -----
    Per node a line through its sends and one through its receives, and one line through the wire
    times of all pairs, each with the median per size (see `robust_line`): for the wire that is the
    median over pairs. A round trip of node i with peer j is
    S_i + W + V_j + S_j + W + V_i, hence W = (round trip − S_i − V_i − S_j − V_j) / 2 with the
    seconds S of sending and V of receiving that the lines of both nodes give; between equal nodes
    that is half a round trip less both overheads.

    Examples
    --------
    >>> from fpmdask.mheta.instrument.benchmarks import node_benchmark
    >>> messages = [(0, 0.25, 0.5, 3.5), (8, 0.25, 0.75, 6.0)]
    >>> found = fit_network([
    ...     node_benchmark({"messages": [(1 - node, *m) for m in messages]}, f"node {node}")
    ...     for node in range(2)
    ... ])
    >>> [round(found.receive_overhead_s[1], 9), round(found.receive_s_per_byte[1], 9)]
    [0.5, 0.03125]
    >>> [round(found.latency_s, 9), round(found.transfer_s_per_byte, 9)]
    [1.0, 0.125]
    """
    for node, benchmark in enumerate(benchmarks):
        known = {message.nbytes for message in benchmark.messages}
        if len(known) < 2:
            raise PartitionError(
                f"the benchmarks of node {node}: {len(benchmark.messages)} messages of "
                f"{len(known)} sizes; messages of at least two sizes are needed on every node"
            )
    sends = [_line(benchmark, "send") for benchmark in benchmarks]
    receives = [_line(benchmark, "receive") for benchmark in benchmarks]
    both = [(s[0] + r[0], s[1] + r[1]) for s, r in zip(sends, receives, strict=True)]
    sizes, wires = [], []
    for (overhead, pace), benchmark in zip(both, benchmarks, strict=True):
        for message in benchmark.messages:
            peer = both[message.peer]
            cpu = overhead + peer[0] + (pace + peer[1]) * message.nbytes
            sizes.append(message.nbytes)
            wires.append((message.round_trip - cpu) / 2)
    wire = robust_line(sizes, wires, "the round trips")
    return Network(*_columns(sends), *_columns(receives), *wire)


def _line(benchmark: Benchmark, name: str) -> Line:
    sizes = [message.nbytes for message in benchmark.messages]
    seconds = [float(getattr(message, name)) for message in benchmark.messages]
    return robust_line(sizes, seconds, name)


def _columns(lines: Sequence[Line]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    overheads, paces = zip(*lines, strict=True)
    return overheads, paces
