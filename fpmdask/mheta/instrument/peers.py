"""Messages of the iteration: who takes part in them, their sizes, and what they are read from."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile

from fpmdask.errors import PartitionError
from fpmdask.mheta.instrument.events import Event
from fpmdask.mheta.instrument.trace import NodeTrace, place
from fpmdask.mheta.sections import Communication, Section

# A node whose messages are so much larger or smaller than those of the section on average cannot
# be described by one size.
UNEQUAL = 2.0


def fit_communication(traces: Sequence[NodeTrace], index: int, section: Section) -> Communication:
    """Return the communication of a section: its pattern, with the traced size and source.

    Parameters
    ----------
    traces : sequence of NodeTrace
        In node order.
    index : int
        Which section it is.
    section : Section
        Its structure.

    Raises
    ------
    PartitionError
        If peers contradict the pattern, nodes send messages of very unequal sizes, or only some
        messages are read from disk.

    Notes
    -----
    `message_bytes` is the mean over all messages of the section: tiles may differ by a column or
    in the last one, and the seconds of a node's messages depend on their sum. The mean of every
    node must be within a factor of two of it.
    """
    _check_peers(traces, index, section)
    pattern = section.communication.pattern
    sizes = [[event.nbytes or 0 for event in _sends(trace, index)] for trace in traces]
    sent = [size for found in sizes for size in found]
    sources = {node: _source(trace, index) for node, trace in enumerate(traces) if sizes[node]}
    for node, trace in enumerate(traces):
        if not sizes[node] and trace.messages.get(index):
            _check_no_read(trace, index)
    if not sent:
        return Communication(pattern)
    mean = sent[0] if len(set(sent)) == 1 else sum(sent) / len(sent)
    for node, found in enumerate(sizes):
        own = sum(found) / len(found) if found else mean
        if not mean / UNEQUAL <= own <= mean * UNEQUAL:
            raise PartitionError(
                f"{place(node, index)}: its messages have {own:g} bytes, those of the section "
                f"{mean:g} on average; MHETA has one size per section, up to a factor of two: "
                "make two sections of it"
            )
    return Communication(pattern, mean, _agreed(sources, index))


def _sends(trace: NodeTrace, index: int) -> list[Event]:
    return [event for event in trace.messages.get(index, ()) if event.kind == "send"]


def _check_peers(traces: Sequence[NodeTrace], index: int, section: Section) -> None:
    pattern, nodes = section.communication.pattern, len(traces)
    for trace in traces:
        sends, receives = pattern_peers(pattern, trace.node, nodes)
        for kind, verb, wanted in (
            ("send", "sends to", sends),
            ("receive", "receives from", receives),
        ):
            events = [e for e in trace.messages.get(index, ()) if e.kind == kind]
            where = f"{place(trace.node, index)}"
            if pattern != "pipeline":
                _compare(where, pattern, verb, (e.peer or 0 for e in events), wanted)
                continue
            for event in events:
                if event.tile is None:
                    raise PartitionError(f"{where}: a {kind} event of a pipeline has no tile")
            for tile in range(section.tiles):
                peers = (e.peer or 0 for e in events if e.tile == tile)
                _compare(f"{where}, tile {tile}", pattern, verb, peers, wanted)


def _compare(
    where: str, pattern: str, verb: str, found: Iterable[int], wanted: Sequence[int]
) -> None:
    peers = list(found)
    if Counter(peers) != Counter(wanted):
        raise PartitionError(
            f"{where}: it {verb} {_names(peers)}; in the pattern {pattern!r} it {verb} "
            f"{_names(wanted)}"
        )


def _names(peers: Sequence[int]) -> str:
    if not peers:
        return "nobody"
    noun = "node" if len(peers) == 1 else "nodes"
    return f"{noun} {', '.join(map(str, peers))}"


def pattern_peers(pattern: str, rank: int, nodes: int) -> tuple[list[int], list[int]]:
    """Return to whom a rank sends, and from whom it receives: once each, in a pipeline per tile.

    Parameters
    ----------
    pattern : str
        One of the patterns of `Communication`.
    rank, nodes : int
        Which of how many nodes, all with rows; R9 to R11.

    Examples
    --------
    >>> pattern_peers("nearest_neighbour", 1, 4), pattern_peers("reduction_tree", 2, 4)
    (([0, 2], [0, 2]), ([0, 3], [0, 3]))
    """
    neighbours = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < nodes]
    if pattern == "nearest_neighbour":
        return neighbours, neighbours
    if pattern == "pipeline":
        return [p for p in neighbours if p > rank], [p for p in neighbours if p < rank]
    if pattern == "reduction_tree":
        # binomial: the parent is the rank without its lowest bit
        steps = takewhile(lambda d: d < nodes and not rank & d, (1 << k for k in range(64)))
        children = [rank + d for d in steps if rank + d < nodes]
        family = ([rank & (rank - 1)] if rank else []) + children
        return family, family
    if pattern == "reduction_flat":
        others = [0] if rank else list(range(1, nodes))
        return others, others
    return [], []


def _source(trace: NodeTrace, index: int) -> str | None:
    """Return the array that all messages of a node are read from; None: none is."""
    events = trace.messages.get(index, ())
    sends = [event for event in events if event.kind == "send"]
    reads = [event for event in events if event.kind == "read"]
    if not reads:
        return None
    where = place(trace.node, index)
    names = sorted({read.array or "" for read in reads})
    if len(names) > 1:
        raise PartitionError(
            f"{where}: its messages are read from the arrays {', '.join(names)}; MHETA has one "
            "source per section"
        )
    if len(reads) != len(sends):
        raise PartitionError(
            f"{where}: {len(reads)} reads of array {names[0]!r} outside of stages for "
            f"{len(sends)} sends; read each message, or none, just before it is sent"
        )
    for read, send in zip(reads, sends, strict=True):
        if read.start > send.start:
            raise PartitionError(
                f"{where}: a read of array {names[0]!r} outside of stages follows its send; read "
                "a message just before it is sent"
            )
    return names[0]


def _check_no_read(trace: NodeTrace, index: int) -> None:
    for event in trace.messages[index]:
        if event.kind == "read":
            raise PartitionError(
                f"{place(trace.node, index)}: a read of array {event.array!r} outside of stages, "
                "but the node sends nothing there; record reads of blocks inside of their stage"
            )


def _agreed(sources: dict[int, str | None], index: int) -> str | None:
    first, source = next(iter(sources.items()))
    for node, found in sources.items():
        if found != source:
            raise PartitionError(
                f"section {index}: the messages of node {first} are read from {source!r}, those "
                f"of node {node} from {found!r}; the source of a section is that of all nodes"
            )
    return source
