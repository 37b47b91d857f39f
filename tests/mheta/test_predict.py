"""The predictor: by oracles, by simulating random programs, and by properties."""

import copy
import json
import pickle
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
    evaluator,
    predict,
    predict_many,
)
from fpmdask.mheta.evaluate import Evaluator
from fpmdask.mheta.prediction import PARTS
from fpmdask.mheta.stages import ACCOUNTINGS
from fpmdask.models import AkimaModel, ConstantModel, PiecewiseLinearModel, TabulatedModel
from tests.mheta.random_programs import PATTERNS, random_case
from tests.mheta.simulation import simulate

ORACLES = json.loads((Path(__file__).parent / "oracles.json").read_text())
CASES = [
    pytest.param(case, accounting, id=f"{case['name']}-{accounting}")
    for case in ORACLES["cases"]
    for accounting in case["expected"]
]
TOLERANCE = 1e-9


def made(case):
    """Return the case's program and machine."""
    nodes = len(case["distribution"])
    return Program.from_dict(case["program"]), Machine.from_dict(case["machine"], nodes)


def seconds(values):
    return np.array([np.inf if v is None else v for v in np.atleast_1d(values)], dtype=float)


def assert_close(found, expected, makespan):
    found = np.atleast_1d(np.asarray(found, dtype=float))
    finite = np.isfinite(expected)
    assert (np.isfinite(found) == finite).all()
    np.testing.assert_allclose(found[finite], expected[finite], rtol=0, atol=TOLERANCE * makespan)


@pytest.mark.parametrize(("case", "accounting"), CASES)
def test_oracles(case, accounting):
    program, machine = made(case)
    expected, iterations = case["expected"][accounting], case["iterations"]
    found = predict(
        program, machine, case["distribution"], iterations=iterations, accounting=accounting
    )
    total = 0 if expected["total_seconds"] is None else expected["total_seconds"]
    assert_close(found.seconds, seconds(expected["total_seconds"]), total)
    assert_close(found.node_seconds, seconds(expected["total_node_seconds"]), total)
    assert_close(found.iteration_ends[0], seconds(expected["node_seconds"]), total)
    assert_close(found.iteration_seconds, seconds(expected["iteration_seconds"]), total)
    for part, values in expected.get("parts", {}).items():
        assert_close(found.parts[part], seconds(values), total)
    blocks = [[stage.tolist() for stage in section.blocks] for section in found.sections]
    assert blocks == expected.get("blocks", [])
    if "steady_state_seconds" in case:
        assert_close(found.steady_state_seconds, seconds(case["steady_state_seconds"]), total)


@pytest.mark.parametrize(("case", "accounting"), CASES)
def test_oracles_in_batches(case, accounting):
    program, machine = made(case)
    expected, words = case["expected"][accounting], {"accounting": accounting}
    words["iterations"] = case["iterations"]
    total = 0 if expected["total_seconds"] is None else expected["total_seconds"]
    alone = predict_many(program, machine, [case["distribution"]], **words)
    assert_close(alone, seconds(expected["total_seconds"]), total)
    rng = np.random.default_rng(0)
    shape = (40, machine.nodes)
    others = rng.integers(0, 2, shape) * rng.integers(0, 3 * case["rows"], shape)
    batch = np.vstack([others, [case["distribution"]], np.zeros_like(others[:1])])
    assert predict_many(program, machine, batch, **words)[40] == alone[0]
    of_nodes = evaluator(program, machine, **words).node_seconds(batch)
    assert_close(of_nodes[40], seconds(expected["total_node_seconds"]), total)
    assert (of_nodes[41] == 0).all()


def check_against_simulation(case, accounting):
    program, machine = made(case)
    arguments = (case["distribution"], case["iterations"], accounting)
    wanted = simulate(case["program"], case["machine"], *arguments)
    words = {"iterations": case["iterations"], "accounting": accounting}
    found = predict(program, machine, case["distribution"], **words)
    many = predict_many(program, machine, [case["distribution"]], **words)
    assert found.infeasible == tuple(wanted.infeasible)
    assert many[0] == found.seconds
    if not wanted.feasible:
        assert found.seconds == np.inf
        assert (found.iteration_ends == np.inf).all()
        return
    makespan = np.max(wanted.iteration_ends)
    close = {"rtol": 0, "atol": TOLERANCE * makespan}
    np.testing.assert_allclose(found.iteration_ends, wanted.iteration_ends, **close)
    for number, (start, end, parts) in enumerate(wanted.sections):
        section = found.sections[number]
        np.testing.assert_allclose(section.start, start, **close)
        np.testing.assert_allclose(section.end, end, **close)
        for part in PARTS:
            np.testing.assert_allclose(getattr(section, part), parts[part], **close)
        assert [stage.tolist() for stage in section.blocks] == wanted.blocks[number]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_simulation_agrees_on_few_nodes(nodes, pattern):
    """The ends of a chain, of a tree and of a list of peers are next to each other there."""
    rng, tried = np.random.default_rng(nodes), 0
    while tried < 12:
        case = random_case(rng)
        sections = [s for s in case["program"]["sections"] if "communication" in s]
        if len(case["distribution"]) == nodes and sections:
            tried += 1
            for section in sections:
                section["communication"]["pattern"] = pattern
            check_against_simulation(case, "exact")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_the_simulation_agrees_on_random_programs(seed):
    rng = np.random.default_rng(seed)
    for _ in range(100):
        case = random_case(rng)
        for accounting in ACCOUNTINGS:
            check_against_simulation(case, accounting)


@pytest.fixture(scope="module")
def cases():
    """Return random programs with their machine and 24 distributions, some infeasible."""
    rng, found = np.random.default_rng(77), []
    for _ in range(80):
        case = random_case(rng)
        program, machine = made(case)
        weights = rng.dirichlet(np.ones(machine.nodes), size=24)
        batch = np.floor(weights * 2 * case["rows"]).astype(np.int64)
        batch[0] = case["distribution"]
        found.append((case, program, machine, batch))
    return found


def test_neither_the_order_of_a_batch_nor_its_chunks_matter(cases):
    for _, program, machine, batch in cases:
        predicts = evaluator(program, machine, iterations=2)
        whole = predicts(batch)
        np.testing.assert_array_equal(predicts(batch[::-1]), whole[::-1])
        np.testing.assert_array_equal([predicts([row])[0] for row in batch], whole)
        np.testing.assert_array_equal(predicts.node_seconds(batch).max(axis=1), whole)
        assert predicts(batch[:0]).shape == (0,)
    for _, program, machine, batch in cases[:10]:
        chunked = Evaluator(program, machine, iterations=2, chunk=5)(batch)
        np.testing.assert_array_equal(chunked, predict_many(program, machine, batch, iterations=2))


def test_what_one_evaluator_predicts_does_not_depend_on_what_it_has_predicted(cases):
    """What messages cost is kept for the next one only where all nodes have rows."""
    for case, program, machine, batch in cases:
        without = np.array(batch[1])
        without[0] = 0
        everyone = np.full(machine.nodes, max(1, case["rows"] // machine.nodes))
        kept = Evaluator(program, machine, iterations=2)
        for rows in (without, everyone, without, everyone):
            found = kept.prediction(rows)
            fresh = Evaluator(program, machine, iterations=2).prediction(rows)
            for part in PARTS:
                np.testing.assert_array_equal(found.parts[part], fresh.parts[part])


def scaled(data, factor):
    """Return a program's or machine's data with all its seconds times a factor."""
    if isinstance(data, list):
        return [scaled(item, factor) for item in data]
    if not isinstance(data, dict):
        return data
    found = {}
    for key, value in data.items():
        if key in ("seconds", "seconds_per_row") or key.endswith(("_s", "_s_per_byte")):
            value = _times(value, factor)
        elif isinstance(value, dict | list):
            value = scaled(value, factor)
        found[key] = value
    return found


def _times(value, factor):
    if isinstance(value, list):
        return [None if v is None else v * factor for v in value]
    return value * factor


def test_all_seconds_twice_are_predictions_twice(cases):
    for case, program, machine, batch in cases:
        double = Program.from_dict(scaled(case["program"], 2.0))
        slower = Machine.from_dict(scaled(case["machine"], 2.0), machine.nodes)
        assert (double, slower) != (program, machine)
        np.testing.assert_allclose(
            predict_many(double, slower, batch), 2 * predict_many(program, machine, batch)
        )


def test_exact_is_never_longer_than_paper(cases):
    for _, program, machine, batch in cases:
        exact, paper = (
            evaluator(program, machine, iterations=2, accounting=a).node_seconds(batch)
            for a in ACCOUNTINGS
        )
        finite = np.isfinite(exact)
        assert (finite == np.isfinite(paper)).all()
        assert (exact[finite] <= paper[finite] * (1 + 1e-12) + 1e-12).all()


SLOWER = [
    *("read_overhead_s", "read_s_per_byte", "write_overhead_s", "write_s_per_byte"),
    *("prefetch_overhead_s", "send_overhead_s", "receive_overhead_s", "latency_s"),
    "seconds_per_row",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOWER)
def test_what_is_made_slower_makes_no_node_end_earlier(cases, name):
    rng, tried = np.random.default_rng(5), 0
    for case, program, machine, batch in cases:
        other = copy.deepcopy(case)
        if name == "latency_s":
            other["machine"][name] = other["machine"].get(name, 0) + 0.5
        elif name == "seconds_per_row":
            for section in other["program"]["sections"]:
                for stage in section.get("stages", ()):
                    if name in stage:
                        stage[name] = [v * rng.uniform(1, 3) for v in stage[name]]
        else:
            figures = machine.figures(name)
            figures[rng.integers(machine.nodes)] += rng.uniform(0, 0.1)
            other["machine"][name] = figures.tolist()
        slower = evaluator(*made(other), iterations=2).node_seconds(batch)
        before = evaluator(program, machine, iterations=2).node_seconds(batch)
        finite = np.isfinite(before)
        assert (slower[finite] >= before[finite] * (1 - 1e-12) - 1e-12).all()
        tried += (slower[finite] > before[finite]).any()
    assert tried > 10


def test_more_memory_makes_nothing_longer_without_prefetch_and_models(cases):
    tried = 0
    for case, program, machine, batch in cases:
        stages = [s for section in program.sections for s in section.stages]
        if machine.memory_bytes is None or any(s.prefetch or s.models for s in stages):
            continue
        other = copy.deepcopy(case)
        other["machine"]["memory_bytes"] = [
            None if v is None else 2 * v for v in machine.memory_bytes
        ]
        more = predict_many(*made(other), batch)
        before = predict_many(program, machine, batch)
        finite = np.isfinite(before)
        assert (more[finite] <= before[finite] * (1 + 1e-12)).all()
        tried += 1
    assert tried > 5


@pytest.mark.parametrize(
    "models",
    [
        [ConstantModel(20.0), ConstantModel(10.0)],
        [PiecewiseLinearModel.from_points([10, 50], [1, 9]), ConstantModel(10.0)],
        [AkimaModel.from_points([5, 20, 60], [0.5, 2, 9]), TabulatedModel([5.0, *range(1, 70)])],
    ],
    ids=["constant", "mixed", "other kinds"],
)
def test_models_of_any_kind_time_each_block(models):
    stage = Stage(models=models, reads=["A"])
    program = Program([Section([stage], tiles=2)], [Array("A", 10)])
    machine = Machine(2, memory_bytes=[200, 150])
    found = predict(program, machine, [45, 0])
    # b = 2 * 200 / 10 = 40 rows, N = 2 per tile, each of half the work
    assert found.node_seconds[0] == pytest.approx(models[0].time(40) + models[0].time(5))
    assert found.node_seconds[1] == 0
    found = predict(program, machine, [0, 45])
    assert found.seconds == pytest.approx(models[1].time(30) + models[1].time(15))
    in_core = predict(program, machine, [20, 15])
    assert in_core.node_seconds == pytest.approx([models[0].time(20), models[1].time(15)])


def test_a_time_that_is_not_finite_is_infeasible():
    stage = Stage(models=[TabulatedModel([0, 1, 2]), TabulatedModel([0, 1, 2, 3, 4])])
    program = Program([Section([stage], 4, Communication("pipeline", 8))])
    machine = Machine(2, send_overhead_s=[1, 1])
    found = predict(program, machine, [3, 1], iterations=2)
    assert found.infeasible == (0,)
    assert found.seconds == found.steady_state_seconds == np.inf
    assert found.sections == ()
    batch = [[3, 1], [2, 2], [0, 5], [0, 4]]
    assert predict_many(program, machine, batch).tolist() == [np.inf, 6.5, np.inf, 4.0]


def test_no_rows_take_no_time():
    program = Program([Section([Stage([1, 1])], 1, Communication("reduction_flat", 8))])
    found = predict(program, Machine(2, send_overhead_s=[1, 1]), [0, 0], iterations=3)
    assert found.seconds == 0
    assert found.infeasible == ()
    assert (found.iteration_ends == 0).all()


def test_predictions_are_values_that_cross_processes_and_are_read_only():
    case = ORACLES["cases"][1]
    found = predict(*made(case), case["distribution"], iterations=2)
    twin = pickle.loads(pickle.dumps(found))
    assert (twin.seconds, twin.distribution.tolist()) == (found.seconds, [1000, 200])
    assert isinstance(found.parts, dict)
    assert copy.deepcopy(found).parts.keys() == found.parts.keys()
    for array in (found.node_seconds, found.iteration_ends, found.sections[0].io):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_figures_that_overflow_harm_only_who_streams():
    stage = Stage([1, 1], reads=["A", "B"])
    program = Program([Section([stage])], [Array("A", 8), Array("B", 8)])
    machine = Machine(2, [None, 16], read_overhead_s=[1e308, 1e308])
    assert predict(program, machine, [5, 1]).seconds == 5
    assert predict(program, machine, [5, 2]).infeasible == (1,)


def test_many_nodes():
    nodes = 300
    rng = np.random.default_rng(1)
    patterns = ("nearest_neighbour", "pipeline", "reduction_tree", "reduction_flat")
    sections = [
        {"tiles": 3, "stages": [{"seconds_per_row": rng.uniform(1, 2, nodes).tolist()}]}
        | {"communication": {"pattern": pattern, "message_bytes": 10}}
        for pattern in patterns
    ]
    figures = {k: rng.uniform(0, 0.1, nodes).tolist() for k in ("send_overhead_s",)}
    case = {"program": {"sections": sections}, "machine": {"latency_s": 0.3, **figures}}
    case |= {"distribution": rng.integers(0, 3, nodes).tolist(), "iterations": 2}
    check_against_simulation(case, "exact")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"iterations": 0}, r"iterations must be a whole number of at least 1.*got 0"),
        ({"iterations": 1.5}, r"iterations .*1\.5"),
        ({"accounting": "printed"}, r"accounting is 'printed'; allowed are exact, paper"),
        ({"distribution": [1, 2, 3]}, r"has 3 entries for 2 nodes"),
        ({"distribution": [1, -2]}, r"node 1 has -2 rows"),
        ({"distribution": [0.5, 2]}, r"node 0 has 0\.5 rows"),
        ({"distribution": [1, np.nan]}, r"node 1 has nan rows"),
        ({"distribution": [1, 2**60]}, r"node 1 has 1152921504606846976 rows"),
        ({"distribution": [[1, 2]]}, r"shape \(1, 2\)"),
        ({"distribution": ["a", "b"]}, r"whole numbers of rows"),
        ({"distribution": [True, False]}, r"whole numbers of rows"),
        ({"distribution": 3}, r"shape \(\)"),
        ({"distribution": [[1], [1, 2]]}, r"lists of unequal lengths"),
        ({"iterations": 10**7}, r"iterations .*at most 1000000, got 10000000"),
        ({"program": {}}, r"a Program and a Machine are needed, got dict"),
        ({"machine": 2}, r"a Program and a Machine are needed, got Program and int"),
        ({"machine": Machine(3)}, r"figures for 2 nodes, the machine has 3"),
        ({"accounting": ["exact"]}, r"accounting is \['exact'\]"),
    ],
)
def test_bad_arguments_are_refused(words, message):
    program = Program([Section([Stage([1, 2])])])
    arguments = {"program": program, "machine": Machine(2), "distribution": [1, 2]} | words
    with pytest.raises(PartitionError, match=message):
        predict(**arguments)
    arguments["distributions"] = [arguments.pop("distribution")]
    with pytest.raises(PartitionError):
        predict_many(**arguments)


@pytest.mark.parametrize("arrays", [[], [Array("A", 10)], [Array("A", 10, resident=True)]])
@pytest.mark.parametrize("short", [0, 1, 2])
def test_a_node_whose_memory_is_a_byte_short_of_the_fixed_bytes_can_have_no_rows(arrays, short):
    """Also where no array is there, or none is streamed."""
    program = Program([Section([Stage([1.0, 1.0])])], arrays, fixed_bytes=50)
    machine = Machine(2, memory_bytes=[None, 50 - short])
    resident = any(array.resident for array in arrays)
    expected = (1,) if short or resident else ()
    assert predict(program, machine, [3, 1]).infeasible == expected
    assert predict(program, machine, [4, 0]).infeasible == ()
