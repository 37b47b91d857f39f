"""Traces and benchmarks as plain data for JSON, with a format and its version."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from fpmdask.errors import PartitionError
from fpmdask.mheta import checks
from fpmdask.mheta.instrument.benchmarks import CALLS, OVERHEADS, node_benchmark
from fpmdask.mheta.instrument.events import Event

TRACES = "fpmdask.mheta.traces"
BENCHMARKS = "fpmdask.mheta.benchmarks"
VERSION = 1

Found = TypeVar("Found")
_FIELDS = tuple(field.name for field in fields(Event))
_LISTS = ("messages", *CALLS)
_NEEDED = ("kind", "section", "start", "seconds")


def traces_to_dict(traces: Mapping[int, Iterable[Event]]) -> dict[str, Any]:
    """Return the events of nodes as plain data: numbers, strings, lists and mappings.

    Parameters
    ----------
    traces : mapping of int to iterable of Event
        The events of each node; not all nodes need be there.

    Raises
    ------
    PartitionError
        If a node is not a whole number, or an event is not an `Event`.

    Examples
    --------
    >>> mark = Event("stage", 0, 0, 0, rows=10, start=0.0, seconds=1.5)
    >>> traces_to_dict({0: [mark], 1: []})
    {'format': 'fpmdask.mheta.traces', 'version': 1, 'nodes': {'0': [{'kind': 'stage',
    'section': 0, 'stage': 0, 'tile': 0, 'rows': 10, 'start': 0.0, 'seconds': 1.5}], '1': []}}
    """
    return _document(TRACES, traces, _plain_events)


def traces_from_dict(data: Mapping[str, Any]) -> dict[int, list[Event]]:
    """Return the events of nodes that `traces_to_dict` described.

    Parameters
    ----------
    data : mapping
        What `traces_to_dict` returned, possibly after a trip through a file.

    Raises
    ------
    PartitionError
        If the format or version is another one, or something is missing, unknown or not allowed;
        the message names the place.

    Examples
    --------
    >>> traces = {0: [Event("send", 0, peer=1, nbytes=8, start=0.0, seconds=0.5)]}
    >>> traces_from_dict(traces_to_dict(traces)) == traces
    True
    """
    return _nodes(TRACES, data, _events)


def benchmarks_to_dict(benchmarks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the benchmarks of nodes as plain data: numbers, strings, lists and mappings.

    Parameters
    ----------
    benchmarks : mapping of int to mapping
        As `fit` takes them; not all nodes need be there.

    Raises
    ------
    PartitionError
        If a node is not a whole number, a key is unknown, or a value is not allowed.

    Examples
    --------
    >>> messages = [(1, 8, 1e-4, 1e-4, 1.4e-3), (1, 32768, 1.5e-4, 1.5e-4, 2.5e-3)]
    >>> benchmarks_to_dict({0: {"prefetch_overhead_s": 2e-5, "messages": messages}})
    {'format': 'fpmdask.mheta.benchmarks', 'version': 1, 'nodes': {'0': {'prefetch_overhead_s':
    2e-05, 'messages': [[1, 8.0, 0.0001, 0.0001, 0.0014], [1, 32768.0, 0.00015, 0.00015, 0.0025]]}}}
    """
    return _document(BENCHMARKS, benchmarks, lambda node, found: _benchmark(found, f"node {node}"))


def benchmarks_from_dict(data: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the benchmarks of nodes that `benchmarks_to_dict` described.

    Parameters
    ----------
    data : mapping
        What `benchmarks_to_dict` returned, possibly after a trip through a file.

    Raises
    ------
    PartitionError
        If the format or version is another one, or something is missing, unknown or not allowed;
        the message names the place.

    Examples
    --------
    >>> benchmarks = {0: {"read_overhead_s": 0.001}, 1: {}}
    >>> benchmarks_from_dict(benchmarks_to_dict(benchmarks)) == benchmarks
    True
    """

    def read(found: Any, where: str) -> dict[str, Any]:
        known = _benchmark(found, where)
        lists = {key: [tuple(one) for one in known[key]] for key in _LISTS if key in known}
        return known | lists

    return _nodes(BENCHMARKS, data, read)


def _document(
    format_: str, nodes: Mapping[int, Any], plain: Callable[[int, Any], Any]
) -> dict[str, Any]:
    if not isinstance(nodes, Mapping):
        raise PartitionError(f"{format_}: a mapping from nodes is needed, got {nodes!r}")
    found = {checks.count(n, f"{format_}: node", least=0): value for n, value in nodes.items()}
    entries = {str(node): plain(node, value) for node, value in found.items()}
    return {"format": format_, "version": VERSION, "nodes": entries}


def _nodes(format_: str, data: Any, read: Callable[[Any, str], Found]) -> dict[int, Found]:
    if not isinstance(data, Mapping) or data.get("format") != format_:
        found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        raise PartitionError(
            f"not a document of {format_!r}: format {found!r} found; pass what to_dict returned"
        )
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        raise PartitionError(
            f"the document of {format_!r} has version {version!r}, this fpmdask reads version "
            f"{VERSION}; instrument an iteration again"
        )
    checks.mapping(data, format_, ("format", "version", "nodes"))
    nodes = data.get("nodes")
    if not isinstance(nodes, Mapping):
        raise PartitionError(f"{format_}: nodes must be a mapping, got {nodes!r}")
    return {_node(key, format_): read(v, f"{format_}: nodes[{key!r}]") for key, v in nodes.items()}


def _node(key: Any, format_: str) -> int:
    short = isinstance(key, str) and len(key) <= len(str(checks.MOST_NODES))
    if not short or not key.isdecimal() or key != str(int(key)):
        raise PartitionError(f"{format_}: nodes has the key {key!r}; '0', '1', … are allowed")
    return int(key)


def _plain_events(node: int, events: Any) -> list[dict[str, Any]]:
    if not isinstance(events, Iterable):
        raise PartitionError(f"node {node}: events are needed, got {events!r}")
    return [_plain(node, event) for event in events]


def _plain(node: int, event: Any) -> dict[str, Any]:
    if not isinstance(event, Event):
        raise PartitionError(f"node {node}: {event!r} is no Event")
    values = ((name, getattr(event, name)) for name in _FIELDS)
    return {name: value for name, value in values if value is not None}


def _events(data: Any, where: str) -> list[Event]:
    found: Sequence[Any] = checks.sequence(data, where, "events")
    return [_event(entry, f"{where}[{i}]") for i, entry in enumerate(found)]


def _event(data: Any, where: str) -> Event:
    data = checks.mapping(data, where, _FIELDS)
    for name in _NEEDED:
        if name not in data:
            raise PartitionError(f"{where} has no {name!r}, which every event has")
    try:
        return Event(**data)
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from error


def _benchmark(data: Any, where: str) -> dict[str, Any]:
    """Return what is known, as lists and numbers."""
    found = node_benchmark(data, where)
    known = {key: v for key in OVERHEADS if (v := getattr(found, key)) is not None}
    lists = {key: [list(one) for one in getattr(found, key)] for key in _LISTS}
    return known | {key: some for key, some in lists.items() if some}
