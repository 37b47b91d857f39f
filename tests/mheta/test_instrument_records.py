"""Events, the recorder, traces and benchmarks as documents, participants, and the accuracy."""

import copy
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.mheta.instrument import (
    Event,
    Recorder,
    accuracy,
    benchmarks_from_dict,
    benchmarks_to_dict,
    traces_from_dict,
    traces_to_dict,
)
from fpmdask.mheta.instrument.events import KINDS
from fpmdask.mheta.instrument.peers import pattern_peers
from fpmdask.mheta.sections import PATTERNS
from fpmdask.timing.meter import Meter
from tests.mheta.traces import traced_jacobi

VALUES = {
    "stage": st.integers(0, 9),
    "tile": st.integers(0, 9),
    "array": st.text(min_size=1),
    "peer": st.integers(0, 9),
    "rows": st.integers(1, 1 << 52),
    "nbytes": st.integers(0, 1 << 52) | st.floats(0, 1e300),
}
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SECONDS = st.floats(0, 1e300)


@st.composite
def events(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    needed, possible = KINDS[kind]
    fields = {name: draw(VALUES[name]) for name in needed}
    if draw(st.booleans()):
        fields |= {name: draw(VALUES[name]) for name in possible}
    return Event(kind, draw(st.integers(0, 9)), start=draw(FINITE), seconds=draw(SECONDS), **fields)


def ticking():
    """Return a clock that goes on by a second whenever it is read."""
    return map(float, itertools.count()).__next__


# events


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "think"}, "kind of an event is 'think'; allowed are stage, compute, read"),
        ({"section": -1}, "section of a read event .* got -1"),
        ({"section": 0.5}, "section of a read event .* got 0.5"),
        ({"array": None}, "array of a read event in section 0 is missing; a read event has array"),
        ({"peer": 1}, "peer of a read event in section 0 is 1; .* leave the others None"),
        ({"array": 3}, "array of a read event .* string"),
        ({"rows": 0}, "rows of a read event in section 0 is 0"),
        ({"rows": -3}, "rows of a read event .* got -3"),
        ({"nbytes": -1}, "nbytes of a read event .* is -1"),
        ({"tile": None}, "tile of a read event in section 0 is missing; inside of a stage"),
        ({"seconds": -1.0}, "seconds of a read event in section 0 is -1.0"),
        ({"seconds": float("nan")}, "seconds of a read event in section 0 is nan"),
        ({"start": float("nan")}, "start of a read event in section 0 is nan"),
        ({"start": float("inf")}, "start of a read event in section 0 is inf"),
        ({"start": "0"}, "start of a read event in section 0 is '0'"),
        ({"start": True}, "start of a read event in section 0 is True"),
        ({"start": 10**400}, "start of a read event in section 0 is 1000"),
    ],
)
def test_what_is_no_event(fields, words):
    good = {"stage": 0, "tile": 0, "array": "A", "rows": 3, "nbytes": 8, "start": -1, "seconds": 2}
    assert Event("read", 0, **good).end == 1.0
    with pytest.raises(PartitionError, match=words):
        Event(**{"kind": "read", "section": 0} | good | fields)


def test_start_and_seconds_are_needed():
    with pytest.raises(PartitionError, match="start of a send event"):
        Event("send", 0, peer=1, nbytes=8, seconds=1.0)
    with pytest.raises(PartitionError, match="seconds of a send event"):
        Event("send", 0, peer=1, nbytes=8, start=1.0)


# recorder


def test_start_and_stop_in_place_of_with():
    recorder = Recorder(ticking())
    recorder.at(2, tile=1)
    call = recorder.send(peer=3, nbytes=8).start()
    call.stop()
    assert recorder.events == [Event("send", 2, None, 1, None, 3, None, 8, 0.0, 1.0)]
    recorder.clear()
    assert recorder.events == []


def test_who_sent_is_known_when_it_is_received():
    recorder = Recorder(ticking())
    recorder.at(0)
    with recorder.receive() as call:
        call.peer, call.nbytes = 4, 16
    assert recorder.events == [Event("receive", 0, peer=4, nbytes=16, start=0.0, seconds=1.0)]


def test_a_call_that_raises_is_not_recorded():
    recorder = Recorder(ticking())
    recorder.at(0, tile=0)
    stage = recorder.stage(0, rows=3)
    with pytest.raises(OSError, match="disk"), stage, recorder.read("A", rows=3, nbytes=24):
        raise OSError("disk")
    assert recorder.events == []
    recorder.at(1, tile=0)  # no stage is open any more


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda r: r.write("A", 1, 1), "a write outside of a stage"),
        (lambda r: r.issue("A", 1, 1), "an issue outside of a stage"),
        (lambda r: r.wait("A"), "a wait outside of a stage"),
        (lambda r: r.compute(1), "computing outside of a stage"),
    ],
)
def test_what_belongs_into_a_stage(use, words):
    recorder = Recorder(ticking())
    with pytest.raises(PartitionError, match="outside of any section; call at"):
        use(recorder)
    recorder.at(0, tile=0)
    with pytest.raises(PartitionError, match=words):
        use(recorder)


@pytest.mark.parametrize(
    "use",
    [
        lambda r: r.at(1),
        lambda r: r.stage(1, 3),
        lambda r: r.send(1, 8),
        lambda r: r.receive(1, 8),
    ],
)
def test_what_does_not_belong_into_a_stage(use):
    recorder = Recorder(ticking())
    recorder.at(0, tile=2)
    with (
        recorder.stage(1, rows=3),
        pytest.raises(PartitionError, match="inside of stage 1 of section 0, tile 2"),
    ):
        use(recorder)


def test_values_are_checked_when_they_are_asked_for():
    recorder = Recorder(ticking())
    recorder.at(0, tile=0)
    with recorder.stage(0, rows=-1):
        pass
    with pytest.raises(PartitionError, match="rows of a stage event"):
        _ = recorder.events


# documents


@settings(max_examples=40)
@given(st.dictionaries(st.integers(0, 99), st.lists(events(), max_size=5), max_size=3))
def test_traces_survive_json(traces):
    text = json.dumps(traces_to_dict(traces), allow_nan=False)
    assert traces_from_dict(json.loads(text)) == traces


MESSAGES = st.tuples(st.integers(0, 9), SECONDS, SECONDS, SECONDS, SECONDS)
BENCHMARKS = st.fixed_dictionaries(
    {},
    optional={
        "read_overhead_s": FINITE,
        "write_overhead_s": FINITE,
        "prefetch_overhead_s": FINITE,
        "messages": st.lists(MESSAGES, min_size=1, max_size=4),
        "reads": st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=4),
        "writes": st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=4),
    },
)


@given(st.dictionaries(st.integers(0, 99), BENCHMARKS, max_size=3))
def test_benchmarks_survive_json(benchmarks):
    text = json.dumps(benchmarks_to_dict(benchmarks), allow_nan=False)
    assert benchmarks_from_dict(json.loads(text)) == benchmarks


def set_at(*path):
    """Return what puts the last of the arguments at a place of a document."""

    def put(document):
        *way, key, value = path
        for step in way:
            document = document[step]
        document[key] = value

    return put


DAMAGE = [
    (set_at("format", "fpmdask.model"), "format 'fpmdask.model' found"),
    (set_at("version", 2), "has version 2, this fpmdask reads version 1"),
    (set_at("version", True), "has version True, this fpmdask reads version 1"),
    (set_at("more", 1), "unknown key 'more'"),
    (set_at("nodes", [1]), r"nodes must be a mapping, got \[1\]"),
    (set_at("nodes", "01", {}), "nodes has the key '01'"),
    (set_at("nodes", "²", {}), "nodes has the key '²'"),
    (set_at("nodes", "one", {}), "nodes has the key 'one'"),
]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        *DAMAGE,
        (set_at("nodes", "1", 5), r"nodes\['1'\] must be a sequence"),
        (set_at("nodes", "1", 2, 5), r"nodes\['1'\]\[2\] must be a mapping"),
        (set_at("nodes", "1", 2, {}), r"nodes\['1'\]\[2\] has no 'kind'"),
        (set_at("nodes", "1", 2, "seconds", -1), r"nodes\['1'\]\[2\]: seconds of a"),
        (set_at("nodes", "1", 2, "seconds", None), r"nodes\['1'\]\[2\]: seconds of a"),
        (set_at("nodes", "1", 2, "colour", 1), r"nodes\['1'\]\[2\] has the unknown key 'colour'"),
    ],
)
def test_damaged_traces(damage, words):
    document = copy.deepcopy(traces_to_dict(traced_jacobi()[1]))
    damage(document)
    with pytest.raises(PartitionError, match=words):
        traces_from_dict(document)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        *DAMAGE,
        (set_at("nodes", "1", 5), r"nodes\['1'\] must be a mapping"),
        (set_at("nodes", "1", "messages", 0, 2, "x"), r"nodes\['1'\]: messages\[0\].send"),
        (set_at("nodes", "1", "read_overhead_s", "x"), r"nodes\['1'\]: read_overhead_s is 'x'"),
    ],
)
def test_damaged_benchmarks(damage, words):
    document = copy.deepcopy(benchmarks_to_dict(traced_jacobi()[2]))
    damage(document)
    with pytest.raises(PartitionError, match=words):
        benchmarks_from_dict(document)


@pytest.mark.parametrize("data", [None, 3, [], {}, {"format": None}])
def test_no_document(data):
    for read in (traces_from_dict, benchmarks_from_dict):
        with pytest.raises(PartitionError, match="not a document of 'fpmdask"):
            read(data)


def test_what_cannot_be_written():
    with pytest.raises(PartitionError, match="node 0: 'x' is no Event"):
        traces_to_dict({0: ["x"]})
    with pytest.raises(PartitionError, match="node must be a whole number"):
        traces_to_dict({"a": []})
    with pytest.raises(PartitionError, match="a mapping from nodes is needed"):
        benchmarks_to_dict([{}])
    with pytest.raises(PartitionError, match="node 2: read_overhead_s is 'x'"):
        benchmarks_to_dict({2: {"read_overhead_s": "x"}})


# participants


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8, 13, 64])
def test_who_is_sent_to_receives(pattern, nodes):
    peers = [pattern_peers(pattern, rank, nodes) for rank in range(nodes)]
    sent = sorted((rank, to) for rank, (sends, _) in enumerate(peers) for to in sends)
    received = sorted((of, rank) for rank, (_, receives) in enumerate(peers) for of in receives)
    assert sent == received
    assert len(set(sent)) == len(sent)
    expected = {"none": 0, "pipeline": nodes - 1}.get(pattern, 2 * (nodes - 1))
    assert len(sent) == expected


# accuracy


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_accuracy_is_symmetric_and_at_most_1(one, other):
    assert accuracy(one, other) == accuracy(other, one) <= 1.0
    assert (accuracy(one, other) == 1.0) == (one == other) or one == pytest.approx(other)
    assert accuracy([one], [other]).tolist() == [accuracy(one, other)]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan"), "x", [1.0, 0.0], [[1], 2]])
def test_accuracy_of_what_is_no_time(bad):
    with pytest.raises(PartitionError, match=r"predicted (has|must)"):
        accuracy(bad, 1.0)
    with pytest.raises(PartitionError, match=r"measured (has|must)"):
        accuracy(1.0, bad)


def test_accuracy_of_different_shapes():
    with pytest.raises(PartitionError, match=r"predicted has the shape \(2,\), measured \(\)"):
        accuracy([1.0, 2.0], 1.0)


# a meter


def test_a_meter_has_the_methods_of_a_recorder_and_adds_up_what_it_records():
    def iterate(recorder):
        recorder.at(section=0, tile=0)
        with recorder.stage(0, rows=5):
            with recorder.read("A", rows=3, nbytes=24):
                pass
            with recorder.issue("A", rows=2, nbytes=16):
                pass
            with recorder.compute(3):
                pass
            with recorder.wait("A"):
                pass
            with recorder.write("A", rows=3, nbytes=24):
                pass
        with recorder.send(peer=1, nbytes=8):
            pass
        with recorder.receive() as call:
            call.peer, call.nbytes = 1, 8

    recorder, meter = Recorder(ticking()), Meter(ticking())
    iterate(recorder)
    iterate(meter)
    seconds = {event.kind: event.seconds for event in recorder.events}
    found = meter.taken()
    assert found["io"] == sum(seconds[kind] for kind in ("read", "issue", "wait", "write"))
    assert (found["send"], found["receive"]) == (seconds["send"], seconds["receive"])
    # both count what a stage does besides as computing, and a meter reads the clock less often
    assert found["compute"] == seconds["stage"] - found["io"] - 2
    assert sum(meter.taken().values()) == meter.taken()["seconds"] == 1.0


def test_what_raises_in_metered_code_is_raised():
    meter = Meter(ticking())
    with pytest.raises(ZeroDivisionError), meter.stage(0, rows=1):
        raise ZeroDivisionError
