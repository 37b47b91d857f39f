"""Saved machines: what is understood, and how what is not is refused."""

import json
from types import SimpleNamespace

import pytest

from fpmdask.errors import PartitionError
from fpmdask.mheta import Array, Machine, Program, Section, Stage
from fpmdask.mheta.document import Document
from fpmdask.runtime.client.machines import saved_machine

MACHINE = Machine(2, memory_bytes=[1000, None], read_overhead_s=[0.1, 0.2], latency_s=0.5)
PROGRAM = Program([Section([Stage([1.0, 2.0], reads=["A"])])], [Array("A", 100)])
DOCUMENT = {**Document(PROGRAM, MACHINE, 10).to_dict(), "_workers": ["a", "b"]}


@pytest.mark.parametrize("way", ["object", "mapping", "text", "path", "path text"])
def test_a_machine_alone(way, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(MACHINE.to_dict()))
    given = {
        "object": MACHINE,
        "mapping": MACHINE.to_dict(),
        "text": json.dumps(MACHINE.to_dict()),
        "path": path,
        "path text": str(path),
    }[way]
    found = saved_machine(given)
    assert Machine.from_dict(found["machine"], found["nodes"]) == MACHINE
    assert found["program"] is found["workers"] is None


def test_a_document_and_a_report_say_what_was_measured_and_of_whom():
    report = SimpleNamespace(mheta={"document": DOCUMENT})
    for given in (DOCUMENT, json.dumps(DOCUMENT), report, {**report.mheta, "phases": []}):
        found = saved_machine(given)
        assert Machine.from_dict(found["machine"], found["nodes"]) == MACHINE
        assert Program.from_dict(found["program"]) == PROGRAM
        assert found["workers"] == ["a", "b"]
    assert saved_machine(None) is None
    assert json.loads(json.dumps(saved_machine(DOCUMENT))) == saved_machine(DOCUMENT)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "machine is a int; give a fpmdask.mheta.Machine"),
        ("{", "not JSON"),
        ("nowhere.json", "nowhere.json' cannot be read"),
        ({}, "no list of figures per node"),
        ({"read_overhead": [1]}, "no list of figures per node, but 'read_overhead'; give"),
        (dict.fromkeys("abcdefghijkl"), "'g', 'h', …; give"),
        ({"read_overhead_s": [1, 2], "writes": 3}, "unknown"),
        ({**DOCUMENT, "_workers": ["a"]}, "names 1 workers, the machine has 2 nodes"),
        ({**DOCUMENT, "version": 99}, "version is 99"),
        (SimpleNamespace(mheta={}), "its run was in core"),
    ],
)
def test_what_is_no_machine(given, words):
    with pytest.raises(PartitionError, match=words):
        saved_machine(given)
