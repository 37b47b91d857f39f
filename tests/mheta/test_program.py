"""Programs and machines: frozen, equal by value, stored as plain data, and what is refused."""

import copy
import dataclasses
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.mheta import Array, Communication, Machine, Program, Section, Stage, capacity
from fpmdask.mheta.document import Document
from fpmdask.mheta.machine import PER_NODE
from fpmdask.models import AkimaModel, ConstantModel, PiecewiseLinearModel

ORACLES = json.loads((Path(__file__).parent / "oracles.json").read_text())
CASES = ORACLES["cases"] + ORACLES["anchors"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plain_data_is_read_and_written_without_a_difference(case):
    nodes = len(case["distribution"])
    program, machine = (
        Program.from_dict(case["program"]),
        Machine.from_dict(case["machine"], nodes),
    )
    assert program.to_dict() == case["program"]
    assert machine.to_dict() == case["machine"]
    for value, twin in (
        (program, Program.from_dict(json.loads(json.dumps(program.to_dict(), allow_nan=False)))),
        (program, pickle.loads(pickle.dumps(program))),
        (machine, Machine.from_dict(json.loads(json.dumps(machine.to_dict())), nodes)),
        (machine, pickle.loads(pickle.dumps(machine))),
        (machine, copy.deepcopy(machine)),
    ):
        assert twin == value
        assert hash(twin) == hash(value)


def test_machines_are_equal_if_their_figures_are():
    plain = Machine(2)
    assert plain == Machine(2, [None, np.inf], read_overhead_s=[0, None])
    assert hash(plain) == hash(Machine(2, [None, None]))
    assert plain != Machine(3)
    assert plain != Machine(2, latency_s=1)
    assert plain != Machine(2, memory_bytes=[1, None])
    assert plain != 2
    assert Machine(1, read_overhead_s=[-0.0]) == Machine(1)
    assert Machine(2, memory_bytes=np.array([5, 7])).memory_bytes == (5, 7)


def test_values_are_frozen_and_lists_are_copied():
    names = ["A"]
    stage = Stage(reads=names)
    names.append("B")
    assert stage.reads == ("A",)
    program = {"sections": [{"stages": [{"seconds_per_row": [0.5]}]}]}
    document = Document.from_dict({"rows": 9, "program": program, "machine": {}})
    for value in (stage, Array("A", 1), Communication(), Section(), Machine(1), document):
        field = dataclasses.fields(value)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, None)


def test_every_kind_of_model_is_stored():
    measured = PiecewiseLinearModel.from_points([1, 2], [1, 3]).with_point(2, 4)
    models = [ConstantModel(2.0), AkimaModel.from_points([1, 2], [1, 3]), measured]
    program = Program([Section([Stage(models=models)])])
    assert Program.from_dict(json.loads(json.dumps(program.to_dict()))) == program


def test_messages_may_have_a_fraction_of_a_byte():
    """On average, that is; whole numbers are kept as such."""
    assert Communication("pipeline", 8.5).message_bytes == 8.5
    assert repr(Communication("pipeline", 8.0).message_bytes) == "8"


def test_capacity():
    program = Program([Section()], [Array("A", 8), Array("v", 2, resident=True)], 100)
    memory = [100, 99, 109, 110, None, 2**53 - 1]
    most = capacity(program, Machine(6, memory))
    assert most.dtype == np.float64
    assert most.tolist() == [0, 0, 0, 1, np.inf, (2**53 - 101) // 10]
    assert capacity(Program([Section()]), Machine(2, [0, 5])).tolist() == [np.inf, np.inf]


STAGE = {"seconds_per_row": [1.0, 2.0], "reads": ["A"], "writes": ["A"]}
DATA = {
    "arrays": [{"name": "A", "row_bytes": 8}],
    "sections": [{"tiles": 1, "stages": [STAGE], "communication": {"pattern": "none"}}],
}
# where in DATA, what is put there, and what the message says
BAD_PROGRAMS = [
    ("", [], "program must be a mapping"),
    ("section", [], "program has the unknown key 'section'"),
    ("sections", {}, r"program\.sections must be a sequence of mappings"),
    ("sections", [], "at least one section"),
    ("sections.0", 3, r"program\.sections\[0\] must be a mapping, got 3"),
    ("sections.0.tile", 3, r"program\.sections\[0\] has the unknown key 'tile'; known are"),
    ("sections.0.tiles", 0, r"program\.sections\[0\]: tiles .* at least 1 .*got 0"),
    ("sections.0.tiles", 1.5, r"tiles of a section must be a whole number"),
    ("sections.0.tiles", True, r"tiles of a section .*got True of type bool"),
    ("sections.0.tiles", "2", r"tiles of a section .*of type str"),
    ("sections.0.tiles", np.nan, r"tiles of a section .*got nan"),
    ("sections.0.stages", "no", r"program\.sections\[0\]\.stages must be a sequence"),
    ("sections.0.stages.0", [], r"program\.sections\[0\]\.stages\[0\] must be a mapping"),
    ("sections.0.stages.0.read", ["A"], r"stages\[0\] has the unknown key 'read'"),
    ("sections.0.stages.0.reads", "A", r"reads of a stage must be a sequence of array names"),
    ("sections.0.stages.0.reads", [1], r"reads of a stage\[0\] must be a string"),
    ("sections.0.stages.0.reads", ["A", "A"], r"reads of a stage has 'A' twice"),
    ("sections.0.stages.0.reads", ["B"], r"stages\[0\]\.reads names the unknown array 'B'; known"),
    ("sections.0.stages.0.writes", ["B"], r"stages\[0\]\.writes names the unknown array 'B'"),
    ("sections.0.stages.0.prefetch", 1, r"prefetch of a stage must be True or False, got 1"),
    ("sections.0.stages.0.seconds_per_row", 1.0, r"must be a sequence of one number per node"),
    ("sections.0.stages.0.seconds_per_row", [], r"seconds_per_row is empty"),
    ("sections.0.stages.0.seconds_per_row", [1, -1], r"seconds_per_row\[1\] \(node 1\) is -1; a "),
    ("sections.0.stages.0.seconds_per_row", [np.nan, 1], r"\[0\] \(node 0\) is nan"),
    ("sections.0.stages.0.seconds_per_row", [np.inf, 1], r"\[0\] \(node 0\) is inf; a finite"),
    ("sections.0.stages.0.seconds_per_row", ["1", 1], r"\(node 0\) must be a number, got '1'"),
    ("sections.0.stages.0.seconds_per_row", [None, 1], r"\(node 0\) must be a number, got None"),
    ("sections.0.stages.0.fpm", [{"rows": [1], "seconds": [1]}] * 2, "both seconds_per_row and"),
    ("sections.0.communication", "none", r"sections\[0\]\.communication must be a mapping"),
    ("sections.0.communication.pattern", "ring", r"pattern of a .*'ring'; allowed are none, near"),
    ("sections.0.communication.pattern", 3, r"pattern of a communication is 3"),
    ("sections.0.communication.message_bytes", -1, r"message_bytes of a communication is -1"),
    ("sections.0.communication.source", "B", r"communication\.source names the unknown array 'B'"),
    ("sections.0.communication.source", 3, r"source of a communication must be a string"),
    ("arrays", None, r"program\.arrays must be a sequence"),
    ("arrays.0", "A", r"program\.arrays\[0\] must be a mapping"),
    ("arrays.0", {"row_bytes": 8}, r"program\.arrays\[0\] has no 'name'"),
    ("arrays.0", {"name": "A"}, r"program\.arrays\[0\] has no 'row_bytes'"),
    ("arrays.0.name", "", r"Array\.name must be a string that is not empty"),
    ("arrays.0.row_bytes", -8, r"row_bytes of array 'A' is -8; a whole number of bytes"),
    ("arrays.0.row_bytes", 8.5, r"row_bytes of array 'A' is 8\.5"),
    ("arrays.0.row_bytes", 2**53, r"row_bytes of array 'A' is 9007199254740992"),
    ("arrays.0.row_bytes", "8", r"row_bytes of array 'A' must be a whole number of bytes"),
    ("arrays.0.resident", "no", r"resident of array 'A' must be True or False"),
    ("arrays.1", {"name": "A", "row_bytes": 1}, r"arrays of a program has 'A' twice"),
    ("fixed_bytes", -1, r"fixed_bytes of a program is -1"),
    ("fixed_bytes", 0.5, r"fixed_bytes of a program is 0\.5"),
]


def changed(data, place, value):
    """Return the data with another value at a place, which may be new."""
    if not place:
        return value
    found = copy.deepcopy(data)
    *path, last = place.split(".")
    inside = found
    for key in path:
        inside = inside[int(key) if key.isdigit() else key]
    if last.isdigit():
        inside[int(last) :] = [value]
    else:
        inside[last] = value
    return found


@pytest.mark.parametrize(("place", "value", "message"), BAD_PROGRAMS)
def test_bad_programs_are_refused_by_place_and_value(place, value, message):
    assert Program.from_dict(DATA).nodes == 2
    with pytest.raises(PartitionError, match=message):
        Program.from_dict(changed(DATA, place, value))


@pytest.mark.parametrize(
    ("fpm", "message"),
    [
        (3, r"stages\[0\]\.fpm must be a sequence of one mapping per node"),
        ([], "models is empty"),
        ([3], r"stages\[0\]\.fpm\[0\] must be a mapping, got 3"),
        ([{"rows": [1]}], r"stages\[0\]\.fpm\[0\] has no 'seconds'"),
        ([{"rows": [1], "seconds": [-1]}], r"stages\[0\]\.fpm\[0\]: seconds\[0\] is -1"),
        ([{"rows": [1, 2], "seconds": [1]}], r"fpm\[0\]: 2 rows and 1 seconds found"),
        ([{"rows": [10**400], "seconds": [1]}], r"fpm\[0\]: no numbers of rows and seconds"),
        ([{"rows": eval("[" * 60 + "1" + "]" * 60), "seconds": [1]}], r"fpm\[0\]: "),
        ([{"rows": [1], "seconds": [1], "x": 1}], r"fpm\[0\] has the unknown key 'x'"),
        ([{"format": "fpmdask.model"}], r"fpm\[0\]: the stored model has version None"),
    ],
)
def test_bad_models_are_refused(fpm, message):
    with pytest.raises(PartitionError, match=message):
        Program.from_dict({"sections": [{"stages": [{"fpm": fpm}]}]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stage(models=[3]), r"models\[0\] \(node 0\) is 3; a model of fpmdask\.models"),
        (lambda: Section([3]), r"stages\[0\] of a section is 3; a Stage is needed"),
        (lambda: Section(communication="none"), "a Communication is needed"),
        (lambda: Program([Stage()]), r"sections\[0\] is .*; a Section is needed"),
        (lambda: Program([Section()], ["A"]), r"arrays\[0\] is 'A'; an Array is needed"),
        (
            lambda: Program([Section([Stage([1, 2])]), Section([Stage([1])])]),
            r"sections\[1\]\.stages\[0\] has figures for 1 nodes, an earlier stage for 2",
        ),
    ],
)
def test_bad_parts_are_refused(make, message):
    with pytest.raises(PartitionError, match=message):
        make()


@pytest.mark.parametrize("name", PER_NODE)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "must be a sequence of one number per node, got 3"),
        ("ab", "must be a sequence of one number per node, got 'ab'"),
        ([1, 2, 3], "has 3 entries for 2 nodes"),
        ([], "is empty"),
        ([1, -1], r"\[1\] \(node 1\) is -1"),
        ([np.nan, 1], r"\[0\] \(node 0\) is nan"),
        (["1", 1], r"\[0\] \(node 0\) must be a"),
        ([True, 1], r"\[0\] \(node 0\) must be a"),
    ],
)
def test_bad_figures_are_refused_by_name_and_node(name, value, message):
    with pytest.raises(PartitionError, match=f"^{name}.*{message}"):
        Machine(2, **{name: value})
    with pytest.raises(PartitionError, match=f"machine: {name}.*{message}"):
        Machine.from_dict({name: value}, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, "nodes of a machine must be a whole number of at least 1"),
        ({"nodes": 2.5}, "nodes of a machine"),
        ({"nodes": 2**50}, "nodes of a machine .*at most 1048576"),
        ({"nodes": 2, "memory_bytes": [np.array([1, 2]), 1]}, r"memory_bytes\[0\] \(node 0\) must"),
        ({"nodes": 2, "latency_s": -1}, "latency_s is -1"),
        ({"nodes": 2, "transfer_s_per_byte": [1, 2]}, "transfer_s_per_byte must be a number"),
        ({"nodes": 2, "memory_bytes": [1.5, 2]}, r"memory_bytes\[0\] \(node 0\) is 1\.5; a whole"),
        ({"nodes": 2, "memory_bytes": [2**53, 2]}, r"memory_bytes\[0\] \(node 0\) is 90071"),
        ({"nodes": 2, "latency_s": 10**400}, "latency_s is 1000.*too large"),
    ],
)
def test_bad_machines_are_refused(arguments, message):
    with pytest.raises(PartitionError, match=message):
        Machine(**arguments)


def test_unknown_keys_of_a_machine_are_refused():
    with pytest.raises(PartitionError, match="machine has the unknown key 'power'; known are"):
        Machine.from_dict({"power": [1, 2]}, 2)
