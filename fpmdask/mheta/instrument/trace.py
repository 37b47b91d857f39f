"""The events of one node, checked against the program's structure and put in order."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.instrument.events import Event
from fpmdask.mheta.program import Program

# Events of one thread follow each other; starts and durations are differences of floats, and
# readings of a clock may be rounded to microseconds.
CLOCK_SLACK_S = 2e-6

IO = ("read", "write", "issue")


@dataclass(frozen=True, slots=True)
class StageTrace:
    """One stage in one tile on one node.

    Attributes
    ----------
    where : str
        Node, section, stage and tile, for errors.
    mark : Event
        From the begin to the end of the stage.
    calls : tuple of Event
        What happened in between, in order.
    """

    where: str
    mark: Event
    calls: tuple[Event, ...]

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """Return the calls of some kinds, in order."""
        return tuple(call for call in self.calls if call.kind in kinds)

    @property
    def computing(self) -> float:
        """Seconds of computing: the stage without its reads, writes and issues."""
        return max(0.0, self.mark.seconds - sum(call.seconds for call in self.of(*IO)))


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """The instrumented iteration on one node.

    Attributes
    ----------
    node : int
        Which one.
    rows : int
        Its rows; 0 if the program has no stages.
    stages : mapping of (section, stage) to tuple of StageTrace
        One per tile, in the order of tiles.
    messages : mapping of section to tuple of Event
        Sends, receives, and reads outside of stages, in order.
    """

    node: int
    rows: int
    stages: Mapping[tuple[int, int], tuple[StageTrace, ...]]
    messages: Mapping[int, tuple[Event, ...]]

    def events(self, *kinds: str) -> list[Event]:
        """Return all events of some kinds, inside and outside of stages."""
        tiles = (tile for tiles in self.stages.values() for tile in tiles)
        found = [call for tile in tiles for call in tile.calls if call.kind in kinds]
        return found + [e for part in self.messages.values() for e in part if e.kind in kinds]


def node_traces(program: Program, traces: Mapping[int, Sequence[Event]]) -> tuple[NodeTrace, ...]:
    """Return the traces of all nodes, in node order.

    Parameters
    ----------
    program : Program
        The structure: sections, stages, tiles and arrays.
    traces : mapping of int to sequence of Event
        The events of each node 0 … p − 1, in any order that their times tell.

    Raises
    ------
    PartitionError
        If a node is missing or has no rows, an event contradicts the structure, marks are missing
        or occur twice, or events overlap.
    """
    if not isinstance(traces, Mapping) or not traces:
        raise PartitionError(f"traces must map each node to its events, got {traces!r}")
    for node in range(len(traces)):
        if node not in traces:
            raise PartitionError(
                f"traces have no node {node}, but {', '.join(map(str, traces))}; give the events "
                f"of the nodes 0 to {len(traces) - 1}"
            )
    return tuple(
        _node_trace(program, node, len(traces), traces[node]) for node in range(len(traces))
    )


def _node_trace(program: Program, node: int, nodes: int, trace: Any) -> NodeTrace:
    events = checks.sequence(trace, f"the trace of node {node}", "Event")
    inside: defaultdict[tuple[int, int, int], list[Event]] = defaultdict(list)
    outside: defaultdict[int, list[Event]] = defaultdict(list)
    for index, event in enumerate(events):
        if not isinstance(event, Event):
            raise PartitionError(f"node {node}: event {index} is {event!r}; an Event is needed")
        _check_known(program, node, nodes, event)
        if event.stage is None:
            outside[event.section].append(event)
        else:
            assert event.tile is not None  # an Event sees to it
            inside[event.section, event.stage, event.tile].append(event)
    stages = {
        (i, j): tuple(
            _stage_trace(f"{place(node, i, j)}, tile {k}", inside[i, j, k])
            for k in range(section.tiles)
        )
        for i, section in enumerate(program.sections)
        for j in range(len(section.stages))
    }
    messages = {i: tuple(sorted(found, key=_start)) for i, found in outside.items()}
    return NodeTrace(node, _rows(node, stages), stages, messages)


def place(node: int, section: int, stage: int | None = None) -> str:
    """Return where something happened, for errors."""
    where = f"node {node}, section {section}"
    return where if stage is None else f"{where}, stage {stage}"


def _check_known(program: Program, node: int, nodes: int, event: Event) -> None:
    """Refuse an event of a section, stage, tile, array or node that there is not."""
    where = f"a {event.kind} event of node {node}"
    _check_index("section", event.section, len(program.sections), where)
    section = program.sections[event.section]
    where += f" in section {event.section}"
    if event.stage is not None:
        _check_index("stage", event.stage, len(section.stages), where)
    if event.tile is not None:
        _check_index("tile", event.tile, section.tiles, where)
    if event.peer is not None:
        _check_index("peer", event.peer, nodes, where)
        if event.peer == node:
            raise PartitionError(f"{where} has itself as its peer; messages go between two nodes")
    if event.array is not None:
        _check_array(program, event, where)


def _check_index(name: str, value: int, count: int, where: str) -> None:
    if value >= count:
        known = f"0 to {count - 1} are known" if count else "there is none"
        raise PartitionError(f"{where} has the unknown {name} {value}; {known}")


def _check_array(program: Program, event: Event, where: str) -> None:
    resident = {array.name: array.resident for array in program.arrays}
    if event.array not in resident:
        raise PartitionError(
            f"{where} has the unknown array {event.array!r}; known are "
            f"{', '.join(resident) or 'none: give the program arrays'}"
        )
    if resident[event.array]:
        raise PartitionError(
            f"{where} moves the array {event.array!r}, which is resident: it is never on disk"
        )
    if event.stage is None:
        return
    stage = program.sections[event.section].stages[event.stage]
    streamed = stage.writes if event.kind == "write" else stage.reads
    if event.array not in streamed:
        verb = "write" if event.kind == "write" else "read"
        raise PartitionError(
            f"{where} moves the array {event.array!r}, which stage {event.stage} does not {verb} "
            f"in the program; it {verb}s {', '.join(streamed) or 'none'}"
        )
    if event.kind in ("issue", "wait") and not stage.prefetch:
        raise PartitionError(f"{where}, but stage {event.stage} of the program does not prefetch")


def _stage_trace(where: str, events: Iterable[Event]) -> StageTrace:
    found = sorted(events, key=_start)
    marks = [event for event in found if event.kind == "stage"]
    if len(marks) != 1:
        raise PartitionError(
            f"{where}: {len(marks)} stage marks found, with {len(found) - len(marks)} other "
            "events; the trace of one whole iteration has one for each stage in each tile"
        )
    mark = marks[0]
    calls = tuple(event for event in found if event.kind != "stage")
    _check_order(where, mark, calls)
    return StageTrace(where, mark, calls)


def _check_order(where: str, mark: Event, calls: Sequence[Event]) -> None:
    """Refuse what lies outside of the mark, and what overlaps: its seconds would count twice."""
    last, name = mark.start, "the begin of the stage"
    for call in calls:
        if call.start < last - CLOCK_SLACK_S:
            raise PartitionError(
                f"{where}: a {call.kind} event starts at {call.start!r} s, before {name} at "
                f"{last!r} s; record what one thread does, one after the other"
            )
        last, name = call.end, f"the end of a {call.kind} event"
    if mark.end < last - CLOCK_SLACK_S:
        raise PartitionError(
            f"{where}: the stage ends at {mark.end!r} s, before {name} at {last!r} s; record what "
            "one thread does, one after the other"
        )


def _rows(node: int, stages: Mapping[tuple[int, int], tuple[StageTrace, ...]]) -> int:
    """Return the rows of a node, on which all its marks must agree."""
    marks = [tile.mark for tiles in stages.values() for tile in tiles]
    found = {mark.rows or 0 for mark in marks}
    if len(found) > 1:
        raise PartitionError(
            f"node {node}: its stage marks have {', '.join(map(str, sorted(found)))} rows; all "
            "stages of an iteration work on the same rows"
        )
    rows = found.pop() if found else 0
    if marks and not rows:
        raise PartitionError(
            f"node {node} has no rows, and nothing can be said of it; instrument an iteration in "
            "which every node has at least one"
        )
    return rows


def _start(event: Event) -> tuple[float, float]:
    # An event that takes no time comes before one that starts when it ends; of two such the first
    # recorded, since the sort is stable.
    return event.start, event.end
