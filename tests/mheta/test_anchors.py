"""Anchors and the path through them: the oracles, ties, limits and what is refused."""

import itertools
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.mheta import (
    Array,
    Communication,
    Machine,
    Program,
    Section,
    Stage,
    anchors,
    predict,
    predict_many,
    spectrum,
)
from fpmdask.mheta.spectrum_path import corner_names
from fpmdask.models import ConstantModel, PiecewiseLinearModel, TabulatedModel
from tests.conformance import check_distribution

ORACLES = json.loads((Path(__file__).parent / "oracles.json").read_text())
TABLE = ORACLES["table_1"]
PAIRS = list(itertools.product(TABLE["machines"], TABLE["programs"]))


def plain(found):
    return {name: shares.tolist() for name, shares in found.items()}


@pytest.mark.parametrize("case", ORACLES["anchors"], ids=lambda case: case["name"])
def test_oracles(case):
    machine = Machine.from_dict(case["machine"], len(case["distribution"]))
    found = anchors(Program.from_dict(case["program"]), machine, case["rows"])
    assert plain(found) == case["expected"]
    for shares in found.values():
        check_distribution(shares, case["rows"], machine.nodes)


def pair(machine_name, program_name):
    """Return a program of Table 1 on a machine of Table 1."""
    figures = dict(TABLE["machines"][machine_name])
    power = figures.pop("power")
    program = json.loads(json.dumps(TABLE["programs"][program_name]))
    for section in program["sections"]:
        for stage in section["stages"]:
            seconds = stage.pop("seconds_per_row_at_power_1")
            stage["seconds_per_row"] = [seconds / share for share in power]
    return Program.from_dict(program), Machine.from_dict(figures, len(power))


@pytest.mark.parametrize(("machine_name", "program_name"), PAIRS)
def test_table_1(machine_name, program_name):
    program, machine = pair(machine_name, program_name)
    found = anchors(program, machine, TABLE["rows"])
    assert plain(found) == TABLE["distributions"][machine_name][program_name]
    expected = TABLE["seconds"][machine_name][program_name]
    assert expected.keys() == found.keys()
    for name, shares in found.items():
        wanted = pytest.approx(expected[name], rel=1e-9)
        assert predict(program, machine, shares).seconds == wanted
        assert predict_many(program, machine, [shares])[0] == wanted


def computing(*rates, **words):
    return Program([Section([Stage(list(rates), **words)])], [Array("A", 100)])


def test_the_row_goes_to_the_node_that_ends_earliest():
    rng = np.random.default_rng(3)
    for _ in range(30):
        rates = rng.choice([0.1, 0.2, 0.3, 0.6, 0.7], size=rng.integers(1, 6)).tolist()
        rows, shares = int(rng.integers(1, 60)), np.zeros(len(rates), dtype=int)
        for _ in range(rows):
            ends = [Fraction(r) * int(x + 1) for r, x in zip(rates, shares, strict=True)]
            shares[ends.index(min(ends))] += 1
        found = anchors(computing(*rates), Machine(len(rates)), rows)
        assert found["Bal"].tolist() == shares.tolist()
        assert found["I-C/Bal"].tolist() == shares.tolist()


def test_loads_of_several_stages_and_models_are_summed():
    cliff = PiecewiseLinearModel.from_points([10, 20], [1.0, 10.0])
    stages = [Stage([0.1, 0.1]), Stage(models=[cliff, ConstantModel(5.0)])]
    program = Program([Section(stages), Section([Stage(models=[cliff, cliff])])])
    shares = anchors(program, Machine(2), 50)["Bal"]
    check_distribution(shares, 50, 2)

    def load(node, rows):
        second = cliff.time(rows) if node == 0 else rows / 5
        return 0.1 * rows + second + cliff.time(rows)

    makespan = max(load(i, int(x)) for i, x in enumerate(shares))
    assert makespan == min(max(load(0, x), load(1, 50 - x)) for x in range(51))


def test_one_node_is_out_of_core_at_most():
    # 100 rows, room for 60; node 2's disk is the fastest
    program = computing(1.0, 1.0, 1.0, reads=["A"])
    machine = Machine(3, [2000, 2000, 2000], read_overhead_s=[9, 9, 1])
    found = anchors(program, machine, 100)
    assert found["I-C"].tolist() == [20, 20, 60]
    assert found["I-C/Bal"].tolist() == [20, 20, 60]
    assert found["Bal"].tolist() == [34, 33, 33]
    # all the same: the lowest node
    assert anchors(program, Machine(3, [2000] * 3), 100)["I-C"].tolist() == [60, 20, 20]


def test_the_lowest_node_wins_among_equal_predictions():
    stage = Stage([0.1] * 3, reads=["A"])
    pipeline = Communication("pipeline", 10)
    program = Program([Section([stage], 3, pipeline)], [Array("A", 100)])
    machine = Machine(3, [700] * 3, latency_s=0.3)
    assert anchors(program, machine, 30)["I-C"].tolist() == [16, 7, 7]


def test_memory_that_holds_nothing_leaves_all_infeasible_but_makes_anchors():
    program = Program([Section([Stage([1, 1], reads=["A"])])], [Array("A", 100)], fixed_bytes=50)
    found = anchors(program, Machine(2, [10, 10]), 5)
    assert found["I-C"].tolist() == [5, 0]
    assert predict(program, Machine(2, [10, 10]), found["I-C"]).infeasible == (0,)


def test_the_path_leaves_out_legs_without_length():
    equal, unequal = computing(1.0, 1.0, reads=["A"]), computing(1.0, 3.0, reads=["A"])
    roomy, small = Machine(2), Machine(2, [1000, 9000])
    assert spectrum(equal, roomy, 100).tolist() == [[50, 50]]
    # equal powers: Blk and I-C
    points = spectrum(equal, small, 100, steps=4)
    assert points[:, 0].tolist() == [50, 40, 30, 20, 10, 20, 30, 40, 50]
    # no limits: Blk and Bal
    points = spectrum(unequal, roomy, 100, steps=5)
    assert points[:, 0].tolist() == [50, 55, 60, 65, 70, 75, 70, 65, 60, 55, 50]
    points = spectrum(unequal, small, 100, steps=8)
    assert points.shape == (1 + 8 * 3, 2)
    assert points.dtype == np.int64
    assert (points.sum(axis=1) == 100).all()


def test_corners_that_are_one_have_all_names():
    assert corner_names(anchors(computing(1.0, 1.0), Machine(2), 10)) == [
        "Blk = I-C = I-C/Bal = Bal"
    ]


def test_points_are_rounded_by_largest_remainder():
    program = computing(1.0, 1.0, 1.0, reads=["A"])
    machine = Machine(3, [100, 500, 500])
    # from 4, 3, 3 to 1, 5, 4 in three steps: 3, 3 2/3, 3 1/3 and 2, 4 1/3, 3 2/3
    assert spectrum(program, machine, 10, steps=3)[:4].tolist() == [
        [4, 3, 3],
        [3, 4, 3],
        [2, 4, 4],
        [1, 5, 4],
    ]


@pytest.mark.parametrize(
    ("program", "rows", "steps", "message"),
    [
        (computing(1.0, 1.0), 0, 8, "rows must be a whole number of at least 1.*got 0"),
        (computing(1.0, 1.0), 1.5, 8, r"rows .*got 1\.5"),
        (computing(1.0, 1.0), "9", 8, "rows .*of type str"),
        (computing(1.0, 1.0), 9, 0, "steps must be a whole number of at least 1 and at most 1000"),
        (computing(1.0, 1.0), 9, 1001, "steps .*at most 1000, got 1001"),
        (computing(1.0, 1.0), 2**52 + 1, 8, r"rows .*at most 2\*\*52, got"),
        (
            computing(1.0, 0.0),
            9,
            8,
            "seconds_per_row: node 1 would compute 9 rows in 0 s",
        ),
        (computing(1.0, 1.0, 1.0), 9, 8, "figures for 3 nodes, the machine has 2"),
    ],
)
def test_bad_input_is_refused(program, rows, steps, message):
    with pytest.raises(PartitionError, match=message):
        spectrum(program, Machine(2), rows, steps)


def test_the_largest_rows_and_steps_stay_whole():
    points = spectrum(computing(1.0, 1e9), Machine(2), 2**52, 1000)
    assert (points >= 0).all()
    assert (points.sum(axis=1) == 2**52).all()


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([TabulatedModel([0, 3, 1, 4]), ConstantModel(1.0)], "the times of node 0 decrease"),
        ([TabulatedModel([0, 1, 2]), TabulatedModel([0, 1])], "9 rows do not fit: .* nodes have"),
    ],
)
def test_models_that_cannot_be_balanced_are_refused(models, message):
    program = Program([Section([Stage(models=models)])])
    with pytest.raises(PartitionError, match=message):
        anchors(program, Machine(2), 9)
