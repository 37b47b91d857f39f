"""What microbenchmarks measured on each node, checked: overheads, calls and messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.instrument.events import finite

OVERHEADS = ("prefetch_overhead_s", "read_overhead_s", "write_overhead_s")
CALLS = ("reads", "writes")


class Message(NamedTuple):
    """A message of `nbytes` bytes to `peer` and back, in seconds of CPU and of the round trip."""

    peer: int
    nbytes: float
    send: float
    receive: float
    round_trip: float


class Call(NamedTuple):
    """A read or write of `nbytes` bytes, in seconds."""

    nbytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What microbenchmarks measured on one node; None: not measured.

    Attributes
    ----------
    prefetch_overhead_s : float or None
        Seconds of CPU of an asynchronous read's issue beyond the overhead of a read.
    read_overhead_s, write_overhead_s : float or None
        Seconds of a read or write whatever its size, used where one size only is known.
    reads, writes : tuple of Call
        Which count as those of the instrumented iteration: small ones tell the overhead. None is
        an outlier; the median of several is one.
    messages : tuple of Message
        Of at least two sizes, to all peers, the more the better.
    """

    prefetch_overhead_s: float | None
    read_overhead_s: float | None
    write_overhead_s: float | None
    messages: tuple[Message, ...]
    reads: tuple[Call, ...] = ()
    writes: tuple[Call, ...] = ()

    def overhead(self, verb: str) -> float | None:
        """Return the overhead of ``"read"``, ``"write"`` or ``"prefetch"``, not below 0."""
        found: float | None = getattr(self, f"{verb}_overhead_s")
        return None if found is None else max(0.0, found)


def node_benchmarks(benchmarks: Any, nodes: int) -> tuple[Benchmark, ...]:
    """Return the benchmarks of all nodes, in node order; of nodes left out nothing is known.

    Parameters
    ----------
    benchmarks : mapping of int to mapping
        As `fit` takes them.
    nodes : int
        How many nodes there are.

    Raises
    ------
    PartitionError
        If a node, key or peer is unknown, or a value is not allowed.
    """
    if not isinstance(benchmarks, Mapping):
        raise PartitionError(f"benchmarks must map each node to a mapping, got {benchmarks!r}")
    for node in benchmarks:
        if node not in range(nodes):
            raise PartitionError(
                f"benchmarks have the unknown node {node!r}; traces have 0 to {nodes - 1}"
            )
    found = [
        node_benchmark(benchmarks.get(node, {}), f"the benchmarks of node {node}")
        for node in range(nodes)
    ]
    for node, benchmark in enumerate(found):
        for i, message in enumerate(benchmark.messages):
            if message.peer == node or message.peer >= nodes:
                raise PartitionError(
                    f"the benchmarks of node {node}: the peer of messages[{i}] is {message.peer}; "
                    f"another of the nodes 0 to {nodes - 1} is allowed"
                )
    return tuple(found)


def node_benchmark(data: Any, where: str) -> Benchmark:
    """Return the benchmarks of one node, given as a mapping.

    Raises
    ------
    PartitionError
        If a key is unknown, or a value is not allowed; the message begins with `where`.
    """
    data = checks.mapping(data, where, (*OVERHEADS, "messages", *CALLS))
    # differences of two timings, which may be negative
    prefetch, read, write = (
        None if data.get(key) is None else finite(data[key], f"{where}: {key}") for key in OVERHEADS
    )
    messages = checks.sequence(data.get("messages", ()), f"{where}: messages", "messages")
    found = (_message(message, f"{where}: messages[{i}]") for i, message in enumerate(messages))
    calls = (_calls(data.get(key, ()), f"{where}: {key}") for key in CALLS)
    return Benchmark(prefetch, read, write, tuple(found), *calls)


def _calls(values: Any, where: str) -> tuple[Call, ...]:
    found = []
    for i, value in enumerate(checks.sequence(values, where, "calls")):
        place = f"{where}[{i}]"
        figures = zip(Call._fields, _entries(value, place, Call._fields), strict=True)
        found.append(Call(*(checks.figure(v, f"{place}.{name}") for name, v in figures)))
    return tuple(found)


def _entries(value: Any, where: str, names: Sequence[str]) -> Sequence[Any]:
    entries: Sequence[Any] = checks.sequence(value, where, "numbers")
    if len(entries) != len(names):
        raise PartitionError(f"{where} has {len(entries)} entries; {', '.join(names)} are needed")
    return entries


def _message(value: Any, where: str) -> Message:
    entries = _entries(value, where, Message._fields)
    peer = checks.count(entries[0], f"{where}.peer", least=0)
    figures = zip(Message._fields[1:], entries[1:], strict=True)
    return Message(peer, *(checks.figure(v, f"{where}.{name}") for name, v in figures))
