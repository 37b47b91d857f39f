"""Traces and benchmarks that contradict the program, or say too little: what the errors name."""

import dataclasses

import pytest

from fpmdask.errors import PartitionError
from fpmdask.mheta import Array, Communication, Machine, Program, Section, Stage
from fpmdask.mheta.instrument import (
    Event,
    Recorder,
    accuracy,
    fit,
    traces_from_dict,
    traces_to_dict,
)
from fpmdask.mheta.instrument.linear import robust_line
from tests.mheta.traces import jacobi, traced_jacobi, write_benchmarks, write_traces


def is_kind(kind, stage=0):
    return lambda event: event.kind == kind and event.stage == stage


def changed(wanted, **fields):
    """Return what changes the wanted events of a node."""
    return lambda events: [dataclasses.replace(e, **fields) if wanted(e) else e for e in events]


def without(unwanted):
    return lambda events: [event for event in events if not unwanted(event)]


def with_one_more(kind, **fields):
    """Return what adds an event of section 0."""
    fields = {"section": 0, "start": 0.0, "seconds": 0.0} | fields
    return lambda events: [*events, Event(kind, **fields)]


def twice(wanted, **fields):
    """Return what adds a copy of the first wanted event."""
    return lambda events: [
        *events,
        dataclasses.replace(next(e for e in events if wanted(e)), **fields),
    ]


def reads_for_issues(events):
    """The prefetching stage reads its blocks without prefetching."""
    kept = without(is_kind("wait"))(events)
    return changed(is_kind("issue"), kind="read")(kept)


BLOCK = {"stage": 0, "tile": 0, "array": "A", "rows": 1, "nbytes": 8}
# what is done to the events of node 1, and what the error says besides "node 1"
UNKNOWN = {
    "section": (with_one_more("send", section=7, peer=0, nbytes=1), "unknown section 7; 0 to 0"),
    "stage": (with_one_more("write", **BLOCK | {"stage": 5}), "unknown stage 5; 0 to 0"),
    "tile": (with_one_more("write", **BLOCK | {"tile": 3}), "unknown tile 3; 0 to 0"),
    "array": (with_one_more("write", **BLOCK | {"array": "Z"}), "unknown array 'Z'; known are A"),
    "peer": (with_one_more("send", peer=9, nbytes=1), "unknown peer 9; 0 to 2"),
    "itself": (with_one_more("send", peer=1, nbytes=1), "has itself as its peer"),
    "rubbish": (lambda events: [*events, "read"], "'read'; an Event is needed"),
    "not a list": (lambda events: "events", "the trace of node 1 must be a sequence"),
}
STAGES = {
    "no mark": (without(is_kind("stage")), "stage 0, tile 0: 0 stage marks"),
    "two marks": (twice(is_kind("stage")), "stage 0, tile 0: 2 stage marks"),
    "no rows": (changed(is_kind("stage"), rows=0), "has no rows, .* at least one"),
    "no events": (lambda events: [], "0 stage marks found, with 0 other events"),
    "no reads": (without(is_kind("read")), "0 of 50 rows of array 'A' read; every node does I/O"),
    "no writes": (without(is_kind("write")), "0 of 50 rows of array 'A' write; every node"),
    "a block not read": (
        without(lambda e: e.kind == "read" and e.rows == 10),
        "40 of 50 rows of array 'A' read",
    ),
    "overlap": (twice(is_kind("read"), start=1e-4), "a read event starts at .* before the end of"),
    "too early": (twice(is_kind("read"), start=-9.0), "a read event starts at -9.0 s, before"),
    "too late": (twice(is_kind("read"), start=99.0), "the stage ends at .* before the end of"),
    "an issue": (with_one_more("issue", **BLOCK), "stage 0 of the program does not prefetch"),
}
MESSAGES = {
    "wrong peer": (
        changed(is_kind("send", None), peer=2),
        "sends to nodes 2, 2; in the pattern 'nearest_neighbour' it sends to nodes 0, 2",
    ),
    "no messages": (
        without(is_kind("receive", None)),
        "receives from nobody; .* it receives from nodes 0, 2",
    ),
    "one more": (
        with_one_more("send", peer=0, nbytes=800),
        "sends to nodes 0, 0, 2; .* it sends to nodes 0, 2",
    ),
    "sizes": (
        changed(is_kind("send", None), nbytes=8000),
        "have 800 bytes, those of the section 4400 on average; .* a factor of two",
    ),
}
SOURCES = {
    "one read too many": (
        with_one_more("read", array="A", rows=1, nbytes=8),
        "3 reads of array 'A' outside of stages for 2 sends",
    ),
    "no read on one node": (
        without(is_kind("read", None)),
        "messages of node 0 are read from 'A', those of node 1 from None",
    ),
    "read too late": (
        changed(is_kind("read", None), start=99.0),
        "outside of stages follows its send",
    ),
}
PREFETCHING = {
    "no issues": (reads_for_issues, "3 blocks of array 'A' are read without an issue"),
    "no waits": (without(is_kind("wait")), "the last issue of a prefetch has no wait"),
    "wait first": (changed(is_kind("wait"), start=0.0), "a wait at 0.0 s before any issue"),
}


def refuse(case, **words):
    damage, message = case
    program, traces, benchmarks = traced_jacobi(**words)
    fit(program, traces, benchmarks, None)
    with pytest.raises(PartitionError, match=message) as error:
        fit(program, traces | {1: damage(traces[1])}, benchmarks, None)
    assert "node" in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_things(case):
    refuse(UNKNOWN[case])


@pytest.mark.parametrize("case", STAGES)
def test_stages_that_contradict_the_program(case):
    refuse(STAGES[case])


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_that_contradict_the_pattern(case):
    refuse(MESSAGES[case])


def test_messages_of_a_node_may_be_up_to_half_or_twice_as_large_as_the_mean():
    program, traces, benchmarks = traced_jacobi()
    # two of node 1, and one of 800 bytes each of nodes 0 and 2: mean 1600
    larger = changed(is_kind("send", None), nbytes=2400)
    found, _ = fit(program, traces | {1: larger(traces[1])}, benchmarks, None)
    assert found.sections[0].communication.message_bytes == 1600
    larger = changed(is_kind("send", None), nbytes=2404)
    with pytest.raises(PartitionError, match="800 bytes, those of the section 1602 on average"):
        fit(program, traces | {1: larger(traces[1])}, benchmarks, None)


@pytest.mark.parametrize("case", SOURCES)
def test_messages_whose_source_is_unclear(case):
    refuse(SOURCES[case], source="A")


@pytest.mark.parametrize("case", PREFETCHING)
def test_prefetches_that_are_none(case):
    refuse(PREFETCHING[case], prefetch=True)


# prefetching: what T_A must be


def prefetching_trace(*order, waits=0.0, idle=0.0):
    """Return a stage of two blocks of 4 rows: its parts in this order, a second each.

    Before a wait nothing happens for `idle` seconds; the wait takes `waits`.
    """
    events, now = [], 0.0
    for kind in order:
        now += idle if kind == "wait" else 0.0
        seconds = waits if kind == "wait" else 1.0
        array = None if kind == "compute" else "A"
        nbytes = None if kind == "compute" else 32
        events.append(Event(kind, 0, 0, 0, array, None, 4, nbytes, now, seconds))
        now += seconds
    return {0: [*events, Event("stage", 0, 0, 0, rows=8, start=0.0, seconds=now)]}


GOOD = ("read", "issue", "compute", "wait", "write", "compute", "write")
PREFETCHER = Program([Section([Stage(reads=["A"], writes=["A"], prefetch=True)])], [Array("A", 8)])
OVERHEADS = {
    0: {"prefetch_overhead_s": 0.1, "read_overhead_s": 0.5, "write_overhead_s": 0.5},
}


def untimed(trace):
    return {0: without(is_kind("compute"))(trace[0])}


@pytest.mark.parametrize("prepare", [dict, untimed], ids=["compute events", "stage marks"])
def test_the_time_from_issue_to_wait_is_that_of_the_computing(prepare):
    fit(PREFETCHER, prepare(prefetching_trace(*GOOD)), OVERHEADS, None)
    for order in (
        ("read", "issue", "wait", "compute", "write", "compute", "write"),
        ("read", "issue", "compute", "write", "wait", "compute", "write"),
    ):
        with pytest.raises(PartitionError, match=r"node 0, section 0, stage 0: .* they may differ"):
            fit(PREFETCHER, prepare(prefetching_trace(*order)), OVERHEADS, None)


def test_a_fifth_of_the_computing_may_pass_before_the_wait():
    fit(PREFETCHER, prefetching_trace(*GOOD, idle=0.19), OVERHEADS, None)
    with pytest.raises(PartitionError, match=r"1\.21 s from .* but 1 s of .* may differ by 20%"):
        fit(PREFETCHER, prefetching_trace(*GOOD, idle=0.21), OVERHEADS, None)


def test_a_wait_that_waits():
    fit(PREFETCHER, prefetching_trace(*GOOD, waits=0.06), OVERHEADS, None)  # 1 % of 6.06 s
    with pytest.raises(PartitionError, match="stage 0: the waits for prefetches take 1 of 7 s"):
        fit(PREFETCHER, prefetching_trace(*GOOD, waits=1.0), OVERHEADS, None)


def test_prefetching_needs_its_overhead():
    some = {0: {"read_overhead_s": 0.5, "write_overhead_s": 0.5}}
    with pytest.raises(PartitionError, match="node 0 have no prefetch_overhead_s"):
        fit(PREFETCHER, prefetching_trace(*GOOD), some, None)


# messages of other patterns


def traced_messages(pattern, source=None, tiles=2, reads=()):
    """Return program, traces and benchmarks of four nodes that only send and receive."""
    stages = [Stage([1.0] * 4, reads=reads)] if reads else []
    section = Section(stages, tiles, Communication(pattern, 80, source))
    program = Program([section], [Array("A", 80)])
    machine = Machine(4, read_s_per_byte=[0.01] * 4)
    return program, write_traces(program, machine, [9] * 4), write_benchmarks(machine)


@pytest.mark.parametrize(
    ("pattern", "peers"),
    [
        ("none", "from nobody|sends to nobody"),
        ("nearest_neighbour", "sends to nodes 1, 3"),
        ("pipeline", "tile 0: .*it sends to node 3"),
        ("reduction_tree", "sends to nodes 0, 3"),
        ("reduction_flat", "sends to node 0"),
    ],
)
def test_each_pattern_refuses_the_peers_of_the_others(pattern, peers):
    section = Section((), 2, Communication(pattern))
    for other in ("nearest_neighbour", "pipeline", "reduction_tree", "reduction_flat"):
        program, traces, benchmarks = traced_messages(other)
        if other == pattern:
            assert fit(program, traces, benchmarks, None)[0] == program
            continue
        # the others are as they should be, so that node 2 is the first that is not
        right = traces if pattern == "none" else traced_messages(pattern)[1]
        mixed = {k: [] if pattern == "none" else right[k] for k in range(4)} | {2: traces[2]}
        with pytest.raises(PartitionError, match=rf"node 2.*(?:{peers}|receives|no tile)"):
            fit(Program([section], program.arrays), mixed, benchmarks, None)


def test_tiles_of_a_pipeline():
    program, traces, benchmarks = traced_messages("pipeline")
    late = changed(lambda e: e.kind == "send" and e.tile == 1, tile=0)
    with pytest.raises(PartitionError, match="node 1, section 0, tile 0: it sends to nodes 2, 2;"):
        fit(program, traces | {1: late(traces[1])}, benchmarks, None)
    nowhere = changed(is_kind("send", None), tile=None)
    with pytest.raises(PartitionError, match=r"node 1, section 0: a send event .* has no tile"):
        fit(program, traces | {1: nowhere(traces[1])}, benchmarks, None)


def test_sizes_of_messages_are_averaged():
    program, traces, benchmarks = traced_messages("pipeline")
    narrow = changed(lambda e: e.kind == "send" and e.tile == 1, nbytes=40)
    traces = {node: narrow(events) for node, events in traces.items()}
    assert fit(program, traces, benchmarks, None)[0].sections[0].communication.message_bytes == 60


def test_nodes_that_read_nothing_while_others_do():
    program, traces, benchmarks = traced_messages("pipeline", source="A")
    with pytest.raises(PartitionError, match="node 3 reads nothing, others do; every node"):
        fit(program, traces, benchmarks, None)


def test_a_message_is_read_and_not_sent():
    program, traces, benchmarks = traced_messages("pipeline", source="A", reads=["A"])
    assert fit(program, traces, benchmarks, None)[0].sections[0].communication.source == "A"
    more = with_one_more("read", array="A", rows=1, nbytes=80)
    with pytest.raises(PartitionError, match="node 3, section 0: a read of array 'A' outside"):
        fit(program, traces | {3: more(traces[3])}, benchmarks, None)


def test_messages_that_are_read_from_two_arrays():
    program, traces, benchmarks = traced_jacobi(source="A")
    program = Program(program.sections, [*program.arrays, Array("B", 8)])
    other = twice(is_kind("read", None), array="B")
    with pytest.raises(PartitionError, match=r"node 1, .* from the arrays A, B; MHETA has one"):
        fit(program, traces | {1: other(traces[1])}, benchmarks, None)


def test_arrays_that_the_stage_does_not_stream():
    program, traces, benchmarks = traced_jacobi()
    stage = Stage(reads=["A"])
    halo = program.sections[0].communication
    reader = Program([Section([stage], communication=halo)], program.arrays)
    with pytest.raises(PartitionError, match=r"a write event of node 0 .* stage 0 does not write"):
        fit(reader, traces, benchmarks, None)
    resident = Program(program.sections, [Array("A", 800, resident=True)])
    with pytest.raises(PartitionError, match=r"node 0 .* which is resident"):
        fit(resident, traces, benchmarks, None)


def test_stages_of_different_rows():
    stages = [Event("stage", 0, j, 0, rows=8 + j, start=float(j), seconds=1.0) for j in range(2)]
    with pytest.raises(PartitionError, match="node 0: its stage marks have 8, 9 rows"):
        fit(Program([Section([Stage(), Stage()])]), {0: stages}, {}, None)


# nodes and benchmarks


def test_nodes():
    program, traces, benchmarks = traced_jacobi()
    for wrong in ({}, [traces[0]], None):
        with pytest.raises(PartitionError, match="traces must map each node to its events"):
            fit(program, wrong, benchmarks, None)
    with pytest.raises(PartitionError, match=r"no node 2, but 0, 1, 3; .* nodes 0 to 2"):
        fit(program, {0: traces[0], 1: traces[1], 3: traces[2]}, benchmarks, None)
    with pytest.raises(PartitionError, match="memory_bytes has 2 entries for 3 nodes"):
        fit(program, traces, benchmarks, [1, 2])


def test_one_block_size_needs_a_benchmark():
    program, machine = jacobi()
    traces = write_traces(program, machine, [50] * 3, blocks=lambda rows: [rows // 2] * 2)
    benchmarks = write_benchmarks(machine)
    del benchmarks[1]["write_overhead_s"]
    with pytest.raises(PartitionError, match=r"2 writes of node 1 \(write_overhead_s\): all move"):
        fit(program, traces, benchmarks, None)


MESSAGE = (0, 8, 0.1, 0.1, 0.5)


@pytest.mark.parametrize(
    ("of_node_1", "words"),
    [
        ({}, "0 messages of 0 sizes; messages of at least two sizes"),
        ({"messages": [MESSAGE] * 3}, "3 messages of 1 sizes; messages of at least two sizes"),
        ({"messages": [(1, *MESSAGE[1:])]}, r"peer of messages\[0\] is 1; another of the nodes"),
        ({"messages": [(7, *MESSAGE[1:])]}, r"peer of messages\[0\] is 7; another of the nodes"),
        ({"messages": [MESSAGE, MESSAGE[:4]]}, r"messages\[1\] has 4 entries; peer, nbytes, send"),
        ({"messages": [(0, 8, 0.1, -0.1, 1)]}, r"messages\[0\].receive is -0.1"),
        ({"messages": [(0, 8, float("nan"), 0.1, 1)]}, r"messages\[0\].send is nan"),
        ({"messages": 3}, "messages must be a sequence"),
        ({"read_overhead_s": float("nan")}, "read_overhead_s is nan; a finite number"),
        ({"read_overhead_s": "1"}, "read_overhead_s is '1'; a finite number"),
        ({"reads": [(8, 0.1), (8,)]}, r"reads\[1\] has 1 entries; nbytes, seconds are needed"),
        ({"writes": [(8, -0.1)]}, r"writes\[0\].seconds is -0.1"),
        ({"writes": [("8", 0.1)]}, r"writes\[0\].nbytes must be a number"),
        ({"reads": 3}, "reads must be a sequence of calls"),
        ({"latency": 1}, "unknown key 'latency'"),
        (5, "must be a mapping"),
    ],
)
def test_benchmarks(of_node_1, words):
    program, traces, benchmarks = traced_jacobi()
    with pytest.raises(PartitionError, match=f"the benchmarks of node 1.*{words}"):
        fit(program, traces, benchmarks | {1: of_node_1}, None)


def test_benchmarks_of_unknown_nodes():
    program, traces, benchmarks = traced_jacobi()
    with pytest.raises(PartitionError, match="unknown node 3; traces have 0 to 2"):
        fit(program, traces, benchmarks | {3: {}}, None)
    with pytest.raises(PartitionError, match="benchmarks must map each node"):
        fit(program, traces, [], None)


def test_seconds_below_zero_are_no_outliers():
    assert robust_line([8, 80], [-1.0, -2.0], "wire") == (0.0, 0.0)
    overhead, per_byte = robust_line([8, 8, 80, 80], [-1e-5, -2e-5, 1e-5, 2e-5], "wire")
    assert overhead == 0.0
    assert per_byte == pytest.approx(1.5e-5 / 80, rel=0.2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit("x", {0: []}, {}, None), "program is a str; a Program is needed"),
        (lambda: fit(Program([Section()]), {}, {}, [1], models="no"), "models must be True or"),
        (lambda: Recorder(5), "clock is 5; a callable"),
        (lambda: traces_to_dict({0: None}), "node 0: events are needed, got None"),
        (
            lambda: traces_from_dict(
                {"format": "fpmdask.mheta.traces", "version": 1, "nodes": {"9" * 5000: []}}
            ),
            "nodes has the key",
        ),
        (lambda: accuracy(10**400, 1.0), "predicted must be seconds"),
    ],
)
def test_other_wrong_arguments_are_refused(call, message):
    with pytest.raises(PartitionError, match=message):
        call()
