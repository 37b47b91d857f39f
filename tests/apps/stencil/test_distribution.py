"""Who gets which rows where memory is short, on the machines of MHETA's Table 1."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fpmdask.apps.stencil.distribution import (
    MOST_CHANGE,
    choose,
    drawn,
    moving_seconds,
    steady_seconds,
    updated,
)
from fpmdask.apps.stencil.history import is_off, scatter
from fpmdask.apps.stencil.program import program
from fpmdask.mheta import Machine, anchors, capacity, predict
from tests.apps.stencil.test_program import spec

ORACLES = Path(__file__).parents[2] / "mheta" / "oracles.json"
ROWS = 4096
MACHINES = ("DC", "IO", "HY1", "HY2")


def pair(name, *, prefetch=False, args=()):
    """Return Jacobi on a machine of Table 1, whose memory is doubled: a field is two arrays."""
    table = json.loads(ORACLES.read_text("utf-8"))["table_1"]["machines"][name]
    figures = {key: value for key, value in table.items() if key != "power"}
    figures["memory_bytes"] = [2 * nbytes for nbytes in figures["memory_bytes"]]
    given = spec((ROWS, 4096), (1, 0), ("reflect", "none"), args=args)
    return figured(given, table["power"], prefetch), Machine(8, **figures)


def figured(given, power, prefetch):
    made = program(given, prefetch=prefetch)
    (section,) = made.sections
    (stage,) = section.stages
    stage = replace(stage, seconds_per_row=[0.0005 / one for one in power])
    return replace(made, sections=[replace(section, stages=[stage])])


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("name", MACHINES)
def test_many_iterations_go_on_with_what_is_at_least_as_good_as_any_of_the_path(name, prefetch):
    made, machine = pair(name, prefetch=prefetch)
    even = anchors(made, machine, ROWS)["Blk"].tolist()
    found = choose(made, machine, even, 1000)
    assert sum(found.rows) == ROWS
    assert found.moves
    assert found.rows == found.best
    assert found.seconds == steady_seconds(made, machine, found.rows)
    shown = drawn(made, machine, ROWS)
    assert predict(made, machine, found.rows).seconds <= min(shown["seconds"])
    assert shown["rows"][0] == even == shown["rows"][-1]
    assert found.saved == pytest.approx(
        1000 * (steady_seconds(made, machine, even) - found.seconds)
    )
    assert found.saved > found.moving > 0
    assert "rows move" in found.why
    assert choose(made, machine, even, 1000) == found


@pytest.mark.slow
def test_rows_stay_where_the_iterations_left_do_not_pay_for_moving():
    made, machine = pair("IO")
    even = anchors(made, machine, ROWS)["Blk"].tolist()
    many = choose(made, machine, even, 1000)
    enough = many.moving / (many.saved / 1000)
    for left in (0, int(enough)):
        found = choose(made, machine, even, left)
        assert not found.moves
        assert found.rows == tuple(even)
        assert found.best == many.best
        assert "rows stay" in found.why
    assert choose(made, machine, even, int(enough) + 1).moves
    # whoever moves rows brings all into new buffers
    slow = many.saved / sum(array.row_bytes for array in made.arrays) / min(many.best)
    assert not choose(made, machine, even, 1000, byte_seconds=slow).moves
    assert choose(made, machine, even, 1000, byte_seconds=1e-3 * slow).moves
    # where nothing is loaded yet, moving costs nothing
    assert choose(made, machine, even, 1, placed=False).moves


def test_no_node_has_fewer_rows_than_a_halo():
    made, machine = pair("HY2")
    even = anchors(made, machine, ROWS)["Blk"].tolist()
    found = choose(made, machine, even, 10**6, 700)
    assert all(rows == 0 or rows >= 700 for rows in found.rows)
    most = [600.0] * 8
    assert max(choose(made, machine, even, 10**6).rows) > 600
    assert max(choose(made, machine, even, 10**6, 1, most).rows) <= 600
    # nothing is allowed: rows stay
    assert not choose(made, machine, even, 10**6, 1, [100.0] * 8).moves


def test_constant_arrays_and_rows_out_of_core_cost_more_to_move():
    even, after = [512] * 8, [256] * 4 + [768] * 4
    plain = moving_seconds(*pair("IO"), even, after)
    assert moving_seconds(*pair("IO"), even, even) == 0
    assert moving_seconds(*pair("IO", args=("<f8",)), even, after) > plain
    made, machine = pair("IO")
    roomy = replace(machine, memory_bytes=None)
    assert moving_seconds(made, roomy, even, after) < plain


def test_an_iteration_is_off_by_a_tenth_and_by_the_noise():
    quiet = [1.0, 1.01, 0.99, 1.0, 1.02]
    assert is_off(1.11, scatter(quiet), 1.0)
    assert is_off(0.89, scatter(quiet), 1.0)
    assert not is_off(1.09, scatter(quiet), 1.0)
    assert not is_off(1.3, scatter([0.8, 1.2, 0.9, 1.1, 1.4]), 1.0)
    assert scatter([1.0, 2.0]) == 0.0


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("name", MACHINES)
def test_what_iterations_take_tells_who_has_become_slower(name, prefetch):
    made, machine = pair(name, prefetch=prefetch)
    rows = anchors(made, machine, ROWS)["Blk"].tolist()
    (section,) = made.sections
    (stage,) = section.stages
    slow = [3.0 * s if n == 5 else s for n, s in enumerate(stage.seconds_per_row)]
    changed = replace(
        made, sections=[replace(section, stages=[replace(stage, seconds_per_row=slow)])]
    )
    slower = replace(
        machine,
        **{
            key: [
                figure * (2.0 if n == 1 else 1.0) for n, figure in enumerate(machine.figures(key))
            ]
            for key in (
                "read_overhead_s",
                "read_s_per_byte",
                "write_overhead_s",
                "write_s_per_byte",
            )
        },
    )
    truth = predict(changed, slower, rows)
    found, disk = updated(made, machine, rows, truth.parts["compute"], truth.parts["io"])
    np.testing.assert_allclose(found.sections[0].stages[0].seconds_per_row, slow)
    again = predict(found, disk, rows)
    np.testing.assert_allclose(again.parts["compute"], truth.parts["compute"])
    np.testing.assert_allclose(again.parts["io"], truth.parts["io"], rtol=1e-6)
    out = np.asarray(rows) > capacity(made, machine)
    if out[1]:
        assert disk.read_s_per_byte[1] == pytest.approx(slower.read_s_per_byte[1], rel=1e-6)
    np.testing.assert_array_equal(
        np.asarray(disk.read_s_per_byte)[~out], np.asarray(machine.read_s_per_byte)[~out]
    )


def test_seconds_that_no_disk_explains_tell_nothing_of_disks():
    """Else each call would take a disk for a hundred times as fast as the one before."""
    made, machine = pair("IO", prefetch=True)
    rows = anchors(made, machine, ROWS)["Blk"].tolist()
    machine = replace(machine, prefetch_overhead_s=[0.5] * 8)
    parts = predict(made, machine, rows).parts
    out = np.asarray(rows) > capacity(made, machine)
    assert updated(made, machine, rows, parts["compute"], np.full(8, 1e-4))[1] == machine
    io = np.where(np.arange(8) == np.flatnonzero(out)[0], 1e-4, 2 * parts["io"])
    _, disks = updated(made, machine, rows, parts["compute"], io)
    ratios = disks.figures("read_s_per_byte") / machine.figures("read_s_per_byte")
    assert ratios[np.flatnonzero(out)[0]] == 1
    assert (ratios[np.flatnonzero(out)[1:]] > 1).all()
    # much slower is possible
    _, disks = updated(made, machine, rows, parts["compute"], 1e5 * parts["io"])
    ratios = disks.figures("read_s_per_byte") / machine.figures("read_s_per_byte")
    np.testing.assert_allclose(ratios[out], MOST_CHANGE)


@pytest.mark.parametrize("io", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("name", ["DC", "IO"])
def test_who_waits_least_tells_what_messages_take(name, seconds, io):
    made, machine = pair(name)
    rows = anchors(made, machine, ROWS)["Blk"].tolist()
    parts = predict(made, machine, rows).parts
    beside = [1.0] * 8
    for node, peers in ((3, 2), (7, 1)):
        beside[node] = seconds
        found, network = updated(
            made, machine, rows, parts["compute"], parts["io"] if io else None, beside
        )
        again = predict(found, network, rows).parts
        least = parts["send"][node]
        size = made.sections[0].communication.message_bytes
        least += peers * machine.figures("receive_s_per_byte")[node] * size
        assert (again["send"] + again["receive"])[node] >= seconds * (1 - 1e-9)
        if seconds > least:
            assert (again["send"] + again["receive"])[node] == pytest.approx(seconds)
        np.testing.assert_allclose(again["io"], parts["io"], rtol=1e-6)
        others = np.arange(8) != node
        np.testing.assert_array_equal(
            network.figures("receive_overhead_s")[others],
            machine.figures("receive_overhead_s")[others],
        )
        for key in ("send_overhead_s", "send_s_per_byte", "receive_s_per_byte"):
            np.testing.assert_array_equal(network.figures(key), machine.figures(key))
        # and what was once measured is no more than the last word
        quiet = [one if n != node else 1e-4 for n, one in enumerate(beside)]
        _, quieter = updated(found, network, rows, parts["compute"], None, quiet)
        assert quieter.figures("receive_overhead_s")[node] <= 1e-4
        beside[node] = 1.0


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_seconds_that_are_none_tell_nothing_of_messages(wrong):
    made, machine = pair("DC")
    rows = anchors(made, machine, ROWS)["Blk"].tolist()
    compute = predict(made, machine, rows).parts["compute"]
    assert updated(made, machine, rows, compute, None, [wrong] * 8)[1] == machine


def test_a_node_that_is_alone_tells_nothing_of_messages():
    made, machine = pair("IO")
    rows = [0, 0, ROWS, 0, 0, 0, 0, 0]
    compute = predict(made, machine, rows).parts["compute"]
    assert updated(made, machine, rows, compute, None, [0.1] * 8)[1] == machine


def test_nodes_without_rows_keep_what_is_known_of_them():
    made, machine = pair("IO")
    rows = [0, 1024, 1024, 1024, 1024, 0, 0, 0]
    truth = predict(made, machine, rows)
    found, disk = updated(made, machine, rows, truth.parts["compute"], truth.parts["io"])
    np.testing.assert_allclose(
        found.sections[0].stages[0].seconds_per_row, made.sections[0].stages[0].seconds_per_row
    )
    np.testing.assert_allclose(disk.read_s_per_byte, machine.read_s_per_byte, rtol=1e-6)
