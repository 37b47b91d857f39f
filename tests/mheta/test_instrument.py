"""Instrumentation: figures that made a trace come back from it, and what noise makes of them."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.mheta import (
    Communication,
    Machine,
    Program,
    Section,
    Stage,
    predict_many,
    spectrum,
)
from fpmdask.mheta.instrument import Event, fit
from fpmdask.mheta.instrument.linear import robust_line
from fpmdask.mheta.machine import PER_NODE, SHARED
from fpmdask.models import PiecewiseLinearModel
from fpmdask.partition import even
from tests.mheta.random_programs import random_case
from tests.mheta.simulated_node import compute_seconds
from tests.mheta.traces import (
    Noise,
    jacobi,
    many_blocks,
    three_blocks,
    traced_jacobi,
    write_benchmarks,
    write_traces,
)

TABLE = json.loads((Path(__file__).parent / "oracles.json").read_text())["table_1"]
MACHINES, PROGRAMS = tuple(TABLE["machines"]), tuple(TABLE["programs"])
BLK = [512] * 8
SEEDS = range(3)


def pair(kind, name):
    """Return the program and the machine of Table 1."""
    machine = dict(TABLE["machines"][kind])
    power = machine.pop("power")
    program = json.loads(json.dumps(TABLE["programs"][name]))
    for section in program["sections"]:
        for stage in section["stages"]:
            seconds = stage.pop("seconds_per_row_at_power_1")
            stage["seconds_per_row"] = [seconds / p for p in power]
    return Program.from_dict(program), Machine.from_dict(machine, len(power))


def structure(program):
    """Return a program without its figures."""
    sections = [
        Section(
            [Stage(None, None, s.reads, s.writes, s.prefetch) for s in section.stages],
            section.tiles,
            Communication(section.communication.pattern),
        )
        for section in program.sections
    ]
    return Program(sections, program.arrays, program.fixed_bytes)


def streams(program, verb):
    """Whether any node of such a program reads (writes) anything of a disk."""
    resident = {array.name for array in program.arrays if array.resident}
    stages = [stage for section in program.sections for stage in section.stages]
    names = {name for stage in stages for name in getattr(stage, verb)}
    if verb == "reads":
        names |= {section.communication.source for section in program.sections} - {None}
    return bool(names - resident)


def knowable(program, machine):
    """Return a machine without the figures that no trace of the program shows."""
    figures = machine.to_dict()
    for verb, name in (("reads", "read"), ("writes", "write")):
        if not streams(program, verb):
            figures = {k: v for k, v in figures.items() if not k.startswith(f"{name}_")}
    if machine.nodes == 1:
        words = ("send_", "receive_", "latency_", "transfer_")
        figures = {k: v for k, v in figures.items() if not k.startswith(words)}
    return Machine.from_dict(figures, machine.nodes)


def assert_machine(found, expected, relative=1e-9):
    for name in PER_NODE:
        np.testing.assert_allclose(
            found.figures(name), expected.figures(name), relative, 1e-12, err_msg=name
        )
    for name in SHARED:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), relative, 1e-12)


def assert_program(found, expected, relative=1e-9):
    assert structure(found) == structure(expected)
    for one, other in zip(found.sections, expected.sections, strict=True):
        if relative < 0.01:
            assert one.communication.source == other.communication.source
        size = other.communication.message_bytes
        assert one.communication.message_bytes == pytest.approx(size, relative)
        for stage, wanted in zip(one.stages, other.stages, strict=True):
            np.testing.assert_allclose(
                stage.seconds_per_row, wanted.seconds_per_row, relative, 1e-12
            )


# what comes back


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "RNA" else n for n in PROGRAMS]
)
def test_table_1_comes_back(kind, name):
    program, machine = pair(kind, name)
    traces, benchmarks = write_traces(program, machine, BLK), write_benchmarks(machine)
    found, figures = fit(structure(program), traces, benchmarks, machine.memory_bytes)
    assert_program(found, program)
    assert_machine(figures, knowable(program, machine))


def random_pair(rng):
    """Return a random program and machine of which a trace with all nodes shows all figures."""
    case = random_case(rng)
    nodes = len(case["distribution"])
    plain = case["program"]
    for section in plain["sections"]:
        messages = section.get("communication", {})
        resident = {a["name"] for a in plain["arrays"] if a.get("resident")}
        # nodes that send nothing read no message, and no message is read of nothing
        if messages.get("source") and messages["pattern"] == "pipeline":
            del messages["source"]
        if messages.get("pattern", "none") == "none" or nodes == 1:
            section["communication"] = {"pattern": messages.get("pattern", "none")}
        elif messages.get("source") in resident:
            del messages["source"]
        elif messages.get("source"):
            messages["message_bytes"] = messages.get("message_bytes", 0) or 1
    return Program.from_dict(plain), Machine.from_dict(case["machine"], nodes), plain


def seconds_of(plain, section, stage, node, rows):
    return compute_seconds(plain["sections"][section]["stages"][stage], node, rows)


def assert_stage(stage, blocks, seconds):
    """The stage's figures are those of the blocks of each node."""
    if stage.models is None:
        times = [math.fsum(seconds(n, b) for b in cut) / sum(cut) for n, cut in enumerate(blocks)]
        np.testing.assert_allclose(stage.seconds_per_row, times, 1e-9, 1e-12)
        return
    assert any(len(set(cut)) > 1 for cut in blocks)
    for node, (model, cut) in enumerate(zip(stage.models, blocks, strict=True)):
        sizes, times = model.points
        assert sizes.tolist() == sorted(set(cut))
        np.testing.assert_allclose(times, [seconds(node, b) for b in sizes.astype(int)], 1e-9)


def check_random_pair(seed):
    rng = np.random.default_rng(seed)
    program, machine, plain = random_pair(rng)
    rows = even(rng.integers(machine.nodes, 40 * machine.nodes), machine.nodes)
    blocks = [three_blocks(int(x)) for x in rows]
    traces, benchmarks = write_traces(program, machine, rows), write_benchmarks(machine)
    for models in (False, True):
        memory = machine.memory_bytes
        found, figures = fit(structure(program), traces, benchmarks, memory, models=models)
        assert structure(found) == structure(program)
        assert_machine(figures, knowable(program, machine))
        for i, section in enumerate(found.sections):
            assert section.communication == program.sections[i].communication
            for j, stage in enumerate(section.stages):
                assert models or stage.models is None
                assert_stage(stage, blocks, lambda *x, i=i, j=j: seconds_of(plain, i, j, *x))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 240, 40))
def test_random_programs_come_back(first):
    for seed in range(first, first + 40):
        check_random_pair(seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_noise_predictions_along_the_spectrum_within_3_percent(kind, name):
    program, machine = pair(kind, name)
    path = spectrum(program, machine, sum(BLK))
    expected = predict_many(program, machine, path)
    blocks = three_blocks if name == "RNA" else many_blocks(60, 60)
    for seed in SEEDS:
        noise = Noise(seed)
        traces = write_traces(program, machine, BLK, blocks, noise)
        benchmarks = write_benchmarks(machine, noise, repeats=20)
        found = predict_many(*fit(program, traces, benchmarks, machine.memory_bytes), path)
        np.testing.assert_allclose(found, expected, 0.03)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", ["Jacobi", "JacobiPrefetch"])
def test_noise_all_figures_within_3_percent_where_there_are_calls_enough(kind, name):
    program, machine = pair(kind, name)
    for seed in SEEDS:
        noise = Noise(seed)
        traces = write_traces(program, machine, [4096] * 8, many_blocks(100, 200), noise)
        benchmarks = write_benchmarks(machine, noise, repeats=40)
        found, figures = fit(program, traces, benchmarks, machine.memory_bytes)
        assert_program(found, program, 0.03)
        assert_machine(figures, machine, 0.03)


def with_small_calls(machine):
    """Return benchmarks of small reads and writes instead of their overheads."""
    found = write_benchmarks(machine)
    for node, one in found.items():
        for verb in ("read", "write"):
            pace = float(machine.figures(f"{verb}_s_per_byte")[node])
            one[f"{verb}s"] = [(512, one.pop(f"{verb}_overhead_s") + 512 * pace)]
    return found


@settings(max_examples=30)
@given(
    st.integers(0, 2),
    st.sampled_from(["read", "write"]),
    st.integers(0, 2),
    st.floats(10.0, 100.0),
    st.booleans(),
)
def test_one_outlier_among_three_calls_does_no_harm(node, kind, index, factor, small):
    program, machine = jacobi()
    traces = write_traces(program, machine, [50] * 3)
    calls = [event for event in traces[node] if event.kind == kind]
    late = factor * calls[index].seconds - calls[index].seconds
    moved = []
    for event in traces[node]:  # the clock goes on while the call hangs
        start = event.start + (late if event.start > calls[index].start else 0.0)
        hangs = event is calls[index] or event.kind == "stage"
        seconds = event.seconds + (late if hangs else 0.0)
        moved.append(dataclasses.replace(event, start=start, seconds=seconds))
    benchmarks = with_small_calls(machine) if small else write_benchmarks(machine)
    found, figures = fit(program, {**traces, node: moved}, benchmarks, None)
    assert_program(found, program)
    assert_machine(figures, machine)


def test_one_block_size_only():
    program, machine = jacobi()
    traces = write_traces(program, machine, [50] * 3, blocks=lambda rows: [rows // 2] * 2)
    for benchmarks in (write_benchmarks(machine), with_small_calls(machine)):
        found, figures = fit(program, traces, benchmarks, None)
        assert_program(found, program)
        assert_machine(figures, machine)


def test_small_calls_tell_the_overhead_where_a_large_one_is_late():
    """As where it ends in the next period of a quota."""
    nbytes, late = np.array([1.6e6, 1.6e6, 0.8e6]), np.array([0.005, 0.005, 0.0])
    seconds = 0.002 + 20e-9 * nbytes
    wanted = 0.002 + 20e-9 * 4e6
    worse, better = (
        np.dot(robust_line(nbytes, seconds + late, "reads", known=known), [1, 4e6]) / wanted - 1
        for known in ((), [(4096, 0.002 + 20e-9 * 4096)])
    )
    assert worse > 0.15
    assert 0 < better < 0.1


def test_figures_of_nodes_that_are_in_core():
    program, machine = jacobi()
    traces, benchmarks = write_traces(program, machine, [9] * 3), write_benchmarks(machine)
    for memory in ([None] * 3, None, [10**9, None, 10**9]):
        _, figures = fit(program, traces, benchmarks, memory)
        assert_machine(figures, dataclasses.replace(machine, memory_bytes=memory))


def test_neither_the_clock_of_a_node_nor_the_order_of_its_events_matters():
    program, traces, benchmarks = traced_jacobi(prefetch=True, source="A")
    expected, machine = fit(program, traces, benchmarks, None)
    for node, events in traces.items():
        moved = [dataclasses.replace(e, start=e.start - 1000.0 * node) for e in events]
        np.random.default_rng(node).shuffle(moved)
        traces[node] = moved
    found, figures = fit(program, traces, benchmarks, None)
    assert_program(found, expected)
    assert_machine(figures, machine)


def test_a_source_is_found_and_its_read_is_no_overhead_of_sending():
    program, traces, benchmarks = traced_jacobi(source="A")
    found, machine = fit(structure(program), traces, benchmarks, None)
    assert found.sections[0].communication == Communication("nearest_neighbour", 800, "A")
    np.testing.assert_allclose(machine.send_overhead_s, jacobi()[1].send_overhead_s)


def test_computing_between_compute_events_belongs_to_the_models():
    marks = [Event("stage", 0, 0, k, rows=6, start=10.0 * k, seconds=9.0) for k in range(2)]
    blocks = [
        Event("compute", 0, 0, k, rows=rows, start=10.0 * k + start, seconds=seconds)
        for k in range(2)
        for rows, start, seconds in ((4, 0.0, 2.0), (2, 3.0, 1.0))
    ]
    program = Program([Section([Stage()], 2)])
    found, _ = fit(program, {0: marks + blocks}, {}, None, models=True)
    assert found.sections[0].stages[0].models == (
        PiecewiseLinearModel.from_points([2, 4], [6.0, 12.0]),
    )
    plain, _ = fit(program, {0: marks + blocks}, {}, None)
    assert plain.sections[0].stages[0].seconds_per_row == (3.0,)
    one_size = [dataclasses.replace(e, rows=3) if e.kind == "compute" else e for e in blocks]
    assert fit(program, {0: marks + one_size}, {}, None, models=True)[0] == plain
    with pytest.raises(PartitionError, match=r"node 0, .* tile 1: .* have 4 rows .* has 6"):
        fit(program, {0: marks + blocks[:3]}, {}, None, models=True)


# lines


@given(
    st.lists(st.integers(1, 1 << 20), min_size=2, max_size=20),
    st.floats(0, 10),
    st.floats(0, 1e-3),
)
def test_lines_come_back(sizes, overhead, pace):
    seconds = [overhead + pace * size for size in sizes]
    found = robust_line(sizes, seconds, "reads", overhead)
    scale = max(seconds)
    if len(set(sizes)) > 1:
        spread = max(sizes) / (max(sizes) - min(sizes))
        assert found[0] == pytest.approx(overhead, abs=1e-13 * spread**2 * scale + 1e-300)
        assert found[1] * max(sizes) == pytest.approx(
            pace * max(sizes), abs=1e-13 * spread**2 * scale + 1e-300
        )
    else:
        assert found[0] + found[1] * sizes[0] == pytest.approx(seconds[0])


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 1e6)), min_size=1, max_size=30))
def test_lines_are_never_negative(calls):
    overhead, pace = robust_line(*zip(*calls, strict=True), "reads", overhead=0.5)
    assert 0 <= overhead < math.inf
    assert 0 <= pace < math.inf


def test_lines_that_would_leave_what_is_possible():
    assert robust_line([1, 2], [1.0, 3.0], "reads") == (0.0, 4 / 3)
    assert robust_line([1, 1, 2], [3.0, 3.0, 1.5], "reads") == (2.5, 0.0)
    assert robust_line([4, 4], [3.0, 5.0], "reads", overhead=6.0) == (6.0, 0.0)
    assert robust_line([0, 0], [3.0, 5.0], "reads") == (4.0, 0.0)
    assert robust_line([1, 2], [0.0, 0.0], "reads") == (0.0, 0.0)
    assert robust_line([4, 4, 2], [4.0, 4.0, 40.0], "reads") == (0.0, 1.0)
    with pytest.raises(PartitionError, match=r"reads: all move 4 bytes, .* use two sizes"):
        robust_line([4, 4], [3.0, 5.0], "reads")
