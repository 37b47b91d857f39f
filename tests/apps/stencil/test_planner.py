"""A planner's choices, and what is left of them where figures are wrong."""

from dataclasses import replace

import numpy as np
import pytest

from fpmdask.apps.stencil.history import History
from fpmdask.apps.stencil.planner import Planner
from fpmdask.errors import PartitionError
from fpmdask.mheta import capacity, predict
from fpmdask.mheta.document import Document
from fpmdask.runtime.client.machines import saved_machine
from tests.apps.stencil.test_calibration import parts, told
from tests.apps.stencil.test_distribution import ROWS, pair
from tests.apps.stencil.test_program import spec

NAMES = [f"w{n}" for n in range(8)]
PER_CALL = ("overhead_s", "s_per_byte")


def planner(machine, *, prefetch=False, **settings):
    given = spec((ROWS, 4096), (1, 0), ("reflect", "none"), **settings)
    return Planner(given, NAMES, machine.memory_bytes, [ROWS] * 8, prefetch=prefetch)


def test_from_the_instrumented_iteration_to_the_report():
    made, machine = pair("IO")
    found = planner(machine)
    even = [ROWS // 8] * 8
    found.fit(told(made, machine, even, 100))
    # ten iterations are too few for moving rows at first
    choice = found.choose(even, 1)
    assert choice.rows == tuple(even) or choice.saved > choice.moving
    found.begin(choice.rows)
    history = History(1)
    for _ in range(9):
        history.add(parts(seconds=2.0, compute=1.0, io=1.0))
    said = found.report([history.to_json()] * 8)
    (phase,) = said["phases"]
    assert (phase["first"], phase["count"]) == (2, 9)
    assert phase["measured"]["compute"] == [1.0] * 8
    assert said["choices"][0]["after"] == 1
    assert set(said["iterations"]) == set(NAMES)
    # which is a machine for later calls
    again = planner(machine)
    assert again.know(saved_machine(said["document"]))
    assert again.figures == found.figures
    assert Document.from_dict(said["document"]).rows == ROWS


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_report_keeps_what_iterations_say_of_disks(prefetch):
    """One is twice as slow as it was in the sample; nothing is known of those that are in core."""
    made, machine = pair("IO", prefetch=prefetch)
    found, even = planner(machine, prefetch=prefetch), [ROWS // 8] * 8
    found.fit(told(made, machine, even, 100))
    (program, disks), node = found.figures, 1
    names = [f"{verb}_{figure}" for verb in ("read", "write") for figure in PER_CALL]
    slow = [1.0 + (n == node) for n in range(8)]
    changed = {name: (disks.figures(name) * slow).tolist() for name in names}
    found.begin(even)
    took = predict(program, replace(disks, **changed), even).parts
    out = np.asarray(even) > capacity(program, disks)
    assert out[node]
    assert not out.all()

    def reported(count):
        histories = []
        for compute, io in zip(took["compute"], took["io"], strict=True):
            histories.append(History(1))
            for _ in range(count):
                spent = {"compute": float(compute), "io": float(io)}
                histories[-1].add(parts(seconds=float(compute + io), **spent))
        return found.report([history.to_json() for history in histories])["document"]

    assert Document.from_dict(reported(2)).machine.figures("read_s_per_byte") == pytest.approx(
        disks.figures("read_s_per_byte")
    )
    for _ in range(2):
        learned = Document.from_dict(reported(9)).machine
        for name in names:
            np.testing.assert_allclose(learned.figures(name), changed[name], rtol=1e-6)


def test_without_figures_nothing_is_predicted():
    _, machine = pair("HY1")
    found = planner(machine)
    with pytest.raises(PartitionError, match="node 0"):
        found.fit([{"events": [], "benchmarks": {}, "message_delay_s": 0.0}] * 8)
    found.give_up("too noisy")
    found.begin([ROWS // 8] * 8)
    history = History()
    history.add(parts(seconds=1.0))
    said = found.report([history.to_json()] * 8)
    assert "too noisy" in said["why"]
    assert "document" not in said
    assert "predicted" not in said["phases"][0]
