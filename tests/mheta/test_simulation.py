"""The simulation against the oracles, and what the random programs cover."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.mheta.random_programs import PATTERNS, random_case
from tests.mheta.simulation import PARTS, simulate

CASES = json.loads((Path(__file__).parent / "oracles.json").read_text())["cases"]
RANDOM = 300
TOLERANCE = 1e-9


def run(case, accounting="exact"):
    arguments = (case[key] for key in ("program", "machine", "distribution", "iterations"))
    return simulate(*arguments, accounting)


def close(expected, makespan):
    """The expected seconds, infinite where null, with a tolerance scaled by the makespan."""
    scale = 0.0 if makespan is None else makespan * TOLERANCE
    if not isinstance(expected, list):
        return pytest.approx(math.inf if expected is None else expected, rel=0, abs=scale)
    seconds = [math.inf if v is None else v for v in expected]
    return pytest.approx(seconds, rel=0, abs=scale)


@pytest.mark.parametrize("accounting", ["exact", "paper"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_oracles(case, accounting):
    # "paper" is given where it differs
    expected = case["expected"].get(accounting, case["expected"]["exact"])
    found, total = run(case, accounting), expected["total_seconds"]
    first, last = found.iteration_ends[0], found.iteration_ends[-1]
    assert len(found.iteration_ends) == case["iterations"]
    assert first == close(expected["node_seconds"], expected["iteration_seconds"])
    assert max(first) == close(expected["iteration_seconds"], expected["iteration_seconds"])
    assert last == close(expected["total_node_seconds"], total)
    assert max(last) == close(total, total)
    if accounting == "exact" and "steady_state_seconds" in case:
        steady = max(last) - max(found.iteration_ends[-2])
        assert steady == close(case["steady_state_seconds"], total)
    assert found.feasible == (total is not None)
    assert found.blocks == expected.get("blocks", [])
    assert found.parts.keys() == expected.get("parts", {}).keys()
    for part, seconds in expected.get("parts", {}).items():
        assert found.parts[part] == close(seconds, expected["iteration_seconds"])


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("infeasible_block", [1]), ("infeasible_resident", [0]), ("memory_boundary", [])],
)
def test_which_nodes_make_it_infeasible(name, nodes):
    case = next(case for case in CASES if case["name"] == name)
    assert run(case).infeasible == nodes


def test_unknown_accounting_is_refused():
    with pytest.raises(ValueError, match="allowed are exact, paper"):
        simulate({"sections": []}, {}, [1], accounting="printed")


@pytest.fixture(scope="module")
def simulated():
    """Random cases, each with what the simulation finds."""
    rng = np.random.default_rng(20260101)
    cases = [random_case(rng) for _ in range(RANDOM)]
    return [(case, run(case)) for case in cases]


def traits(case, found):
    """What the case covers, in words."""
    sections, machine = case["program"]["sections"], case["machine"]
    patterns = [section.get("communication", {}).get("pattern", "none") for section in sections]
    stages = [stage for section in sections for stage in section.get("stages", [])]
    blocks = [stage for section in found.blocks for stage in section] or [[0]] * len(stages)
    streaming = [stage for stage, counts in zip(stages, blocks, strict=True) if max(counts) > 1]
    counts = [n for stage in blocks for n in stage]
    flags = {
        "infeasible": not found.feasible,
        "streams": any(counts),
        "prefetches": any(stage.get("prefetch") and stage.get("reads") for stage in streaming),
        "writes": any(stage.get("writes") for stage in streaming),
        "streams and computes by an FPM": any("fpm" in stage for stage in streaming),
        "streams in tiles": any(
            section.get("tiles", 1) > 1 and any(n for stage in counts for n in stage)
            for section, counts in zip(sections, found.blocks, strict=False)
        ),
        "at least ten blocks": max(counts, default=0) >= 10,
        "one block": 1 in counts,
        "empty nodes": 0 in case["distribution"],
        "no computing": any(not stage.keys() & {"fpm", "seconds_per_row"} for stage in stages),
        "no stages": any(not section.get("stages") for section in sections),
        "reads from disk to send": any(
            section.get("communication", {}).get("source") for section in sections
        ),
        "no memory limit": machine.get("memory_bytes") is None,
        "figures left out": "read_overhead_s" not in machine,
        "figures of None": any(None in v for v in machine.values() if isinstance(v, list)),
    }
    return {name for name, holds in flags.items() if holds} | set(patterns)


@pytest.mark.slow
def test_random_cases_cover_the_rules(simulated):
    shares = Counter(trait for case, found in simulated for trait in traits(case, found))
    wanted = dict.fromkeys(PATTERNS, (0.25, 0.6)) | {
        "infeasible": (0.05, 0.15),
        "streams": (0.5, 0.9),
        "prefetches": (0.2, 0.6),
        "writes": (0.3, 0.8),
        "streams in tiles": (0.3, 0.8),
        "streams and computes by an FPM": (0.1, 0.5),
        "at least ten blocks": (0.2, 0.6),
        "one block": (0.1, 0.5),
        "empty nodes": (0.2, 0.6),
        "no computing": (0.1, 0.5),
        "no stages": (0.1, 0.5),
        "reads from disk to send": (0.2, 0.7),
        "no memory limit": (0.02, 0.15),
        "figures left out": (0.05, 0.2),
        "figures of None": (0.3, 1.0),
    }
    for trait, (least, most) in wanted.items():
        assert least <= shares[trait] / RANDOM <= most, (trait, shares[trait])


@pytest.mark.slow
def test_random_cases_are_plain_data_of_sensible_size(simulated):
    for case, found in simulated:
        assert json.loads(json.dumps(case)) == case
        assert case["rows"] == sum(case["distribution"]) <= 200
        assert 1 <= len(case["distribution"]) <= 8
        assert max((n for s in found.blocks for stage in s for n in stage), default=0) <= 60


@pytest.mark.slow
def test_parts_add_up(simulated):
    """Nodes with rows lose no second between the begin and the end of a section."""
    for case, found in simulated:
        if not found.feasible:
            continue
        makespan = max(found.iteration_ends[0])
        before = [0.0] * len(case["distribution"])
        for start, end, parts in found.sections:
            assert start == before
            assert sorted(parts) == sorted(PARTS)
            spent = [sum(seconds) for seconds in zip(start, *parts.values(), strict=True)]
            assert spent == close(end, makespan)
            before = end
        assert before == found.iteration_ends[0]
