"""What workers tell of their iterations, and the figures that MHETA makes of it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fpmdask.apps.stencil.calibration import (
    fitted,
    from_saved,
    measured,
    predicted,
)
from fpmdask.apps.stencil.distribution import updated
from fpmdask.apps.stencil.history import BLOCKS, History, instrumented_rows
from fpmdask.apps.stencil.program import program, with_computing
from fpmdask.errors import PartitionError
from fpmdask.mheta import capacity, predict
from fpmdask.mheta.document import Document
from fpmdask.runtime.client.machines import saved_machine
from tests.apps.stencil.test_distribution import ROWS, pair
from tests.apps.stencil.test_program import spec


def parts(**spent):
    return {**dict.fromkeys(("seconds", "compute", "io", "send", "receive"), 0.0), **spent}


def test_the_instrumented_iteration_has_blocks_of_two_sizes():
    for rows in range(4, 200):
        for streamed in (0, 1, rows // 2, rows):
            block = instrumented_rows(rows, streamed)
            assert 1 <= block <= rows
            assert not streamed or block <= streamed
            count, last = -(-rows // block), rows % block or block
            if rows > 10:
                assert count >= BLOCKS
                assert streamed or last < block


def test_a_history_has_phases_and_forgets_single_iterations_at_last():
    history = History()
    history.begin()  # nothing has been done: the same phase
    for _ in range(600):
        history.add(parts(seconds=2.0, compute=1.0))
    history.begin()
    assert not history.is_full
    history.add(parts(seconds=70.0, io=9.0))  # memory is new
    assert not history.is_full
    for n in range(5):
        history.add(parts(seconds=3.0 + n, io=1.0))
    assert history.is_full
    assert history.middle() == 5.0
    assert history.phases[-1]["seconds"] == 25.0
    assert history.scatter() == pytest.approx(1.4826)
    for n in range(5):
        history.add(parts(seconds=30.0 + n))
    assert history.scatter() == pytest.approx(1.4826), "of those before"
    for n in range(5):
        history.add(parts(seconds=3.0 + n, io=1.0))
    assert history.medians() == {"compute": 0.0, "io": 1.0, "send": 0.0, "receive": 0.0}
    found = json.loads(json.dumps(history.to_json()))
    assert [(phase["first"], phase["count"]) for phase in found["phases"]] == [(1, 600), (601, 16)]
    assert found["phases"][0]["compute"] == 599.0
    assert len(found["iterations"]) == 512
    assert found["iterations"][-1] == [7.0, 0.0, 1.0, 0.0, 0.0]


def told(made, machine, rows, blocks, periodic=False):
    """Return what noise-free nodes with so many rows tell, in events that follow from figures."""
    (section,) = made.sections
    (stage,) = section.stages
    row_bytes = {array.name: array.row_bytes for array in made.arrays}
    found = []
    for node, count in enumerate(rows):
        clock, events = [0.0], []

        def event(kind, seconds, clock=clock, events=events, **facts):
            events.append(
                {"kind": kind, "section": 0, "start": clock[0], "seconds": seconds, **facts}
            )
            clock[0] += seconds

        inside = {"stage": 0, "tile": 0}

        def moved(kind, names, some, event=event, node=node, inside=inside):
            for name in names:
                nbytes = row_bytes[name] * some
                verb = "write" if kind == "write" else "read"
                seconds = machine.figures(f"{verb}_overhead_s")[node]
                seconds += machine.figures(f"{verb}_s_per_byte")[node] * nbytes
                event(kind, seconds, array=name, rows=some, nbytes=nbytes, **inside)

        block = instrumented_rows(count, blocks)
        sizes = [min(block, count - low) for low in range(0, count, block)]
        moved("read", stage.reads, sizes[0])
        for number, size in enumerate(sizes):
            ahead = sizes[number + 1 :][:1]
            if stage.prefetch:
                for some in ahead:
                    moved("issue", stage.reads, some)
            event("compute", stage.seconds_per_row[node] * size, rows=size, **inside)
            if stage.prefetch and ahead:
                for name in stage.reads:
                    event("wait", 0.0, array=name, **inside)
            moved("write", stage.writes, size)
            if not stage.prefetch:
                for some in ahead:
                    moved("read", stage.reads, some)
        mark = {"kind": "stage", "section": 0, "start": 0.0, "seconds": clock[0], "rows": count}
        peers = [peer for peer in (node - 1, node + 1) if 0 <= peer < len(rows)]
        if periodic and node in (0, len(rows) - 1):
            peers.append(len(rows) - 1 - node)
        nbytes = section.communication.message_bytes
        for kind in ("send", "receive"):
            for peer in peers:
                event(kind, 0.001, peer=peer, nbytes=nbytes)
        messages = []
        for size in (1, 1 << 20):
            send, receive = (
                machine.figures(f"{what}_overhead_s")[node]
                + machine.figures(f"{what}_s_per_byte")[node] * size
                for what in ("send", "receive")
            )
            wire = machine.latency_s + machine.transfer_s_per_byte * size
            messages += [
                (peer, size, send, receive, 2 * (send + wire + receive))
                for peer in (node - 1, node + 1)
                if 0 <= peer < len(rows)
            ]
        benchmarks = {
            "messages": messages,
            "prefetch_overhead_s": machine.figures("prefetch_overhead_s")[node],
        }
        found.append(
            {"events": [mark | inside, *events], "benchmarks": benchmarks, "message_delay_s": 0.0}
        )
    return json.loads(json.dumps(found))


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("name", ["IO", "HY1"])
def test_figures_that_made_a_trace_come_back(name, prefetch, periodic):
    made, machine = pair(name, prefetch=prefetch)
    bare = with_computing(made, [1.0] * 8)
    news = told(made, machine, [ROWS // 8] * 8, 100, periodic)
    found, figures = fitted(bare, news, list(machine.memory_bytes))
    rows = [ROWS // 8 + 10 * (n - 3) - 5 for n in range(8)]
    assert predict(found, figures, rows).seconds == pytest.approx(
        predict(made, machine, rows).seconds, rel=1e-6
    )


def test_what_a_quota_delays_is_received_later_and_no_part_of_the_wire():
    made, machine = pair("IO")
    news = told(made, machine, [ROWS // 8] * 8, 100)
    _, plain = fitted(made, news, list(machine.memory_bytes))
    news[2]["message_delay_s"] = 0.25
    _, slower = fitted(made, news, list(machine.memory_bytes))
    delay = slower.figures("receive_overhead_s") - plain.figures("receive_overhead_s")
    np.testing.assert_allclose(delay, [0, 0, 0.25, 0, 0, 0, 0, 0])
    assert replace(slower, receive_overhead_s=plain.receive_overhead_s) == plain


def test_blocks_between_which_a_node_waits_for_its_disk_take_less():
    """Credit of a CPU quota, as much for each block; in core there is none."""
    made, machine = pair("IO")
    rows = ROWS // 8
    news = told(made, machine, [rows] * 8, 0)
    (stage,) = made.sections[0].stages
    alone = [1.1 * seconds for seconds in stage.seconds_per_row]
    found, figures = fitted(made, news, list(machine.memory_bytes), alone)
    many = [10 * rows] * 8
    compute = predict(found, figures, many).parts["compute"]
    blocks = predict(found, figures, many).sections[0].blocks[0]
    credit = 0.1 * stage.seconds_per_row[0] * rows / 3
    for node, count in enumerate(blocks):
        wanted = many[node] * alone[node] - (count - 1 if count else 0) * credit
        assert compute[node] == pytest.approx(wanted, abs=1.1 * credit)
    assert sum(blocks > 1) >= 4
    few = capacity(made, machine).astype(int).clip(max=rows) // 2
    compute = predict(found, figures, few).parts["compute"]
    assert compute.tolist() == pytest.approx((few * np.array(alone)).tolist())
    bare, _ = fitted(made, news, [None] * 8, alone)
    for share in (few, np.full(8, rows)):
        compute = predict(bare, figures, share).parts["compute"]
        assert compute.tolist() == pytest.approx((share * np.array(alone)).tolist())
    # which is kept, and of whom it was
    document = {**Document(found, figures, ROWS).to_dict(), "_workers": list("abcdefgh")}
    again, _ = from_saved(saved_machine(document), made, list("hgfedcba"), [None] * 8)
    assert again.sections[0].stages[0].models == found.sections[0].stages[0].models[::-1]
    # a slower worker is slower in blocks of any size
    slower, _ = updated(found, figures, few, 2 * compute, [0.0] * 8)
    twice = predict(slower, figures, few).parts["compute"]
    assert twice.tolist() == pytest.approx((2 * compute).tolist())


def test_what_was_saved_is_for_the_workers_that_it_names():
    made, machine = pair("HY2")
    names = [f"w{n}" for n in range(8)]
    document = {**Document(made, machine, ROWS).to_dict(), "_workers": names}
    bare = program(spec((ROWS, 4096), (1, 0), ("reflect", "none")), prefetch=False)
    order = [3, 1, 2, 0, 7, 6, 5, 4]
    found, figures = from_saved(
        saved_machine(document), bare, [names[n] for n in order], [10**9] * 8
    )
    rows = np.arange(8) + 500
    assert predict(found, figures, rows[order]).parts["compute"].tolist() == (
        predict(made, machine, rows).parts["compute"][order].tolist()
    )
    assert figures.read_s_per_byte == tuple(machine.read_s_per_byte[n] for n in order)
    assert figures.memory_bytes == (10**9,) * 8
    # a machine alone knows nothing of computing, and its nodes are the workers by name
    alone = saved_machine(replace(machine, memory_bytes=None))
    assert from_saved(alone, bare, names, [None] * 8) is None
    found, figures = from_saved(alone, bare, names[::-1], [None] * 8, [0.5] * 8)
    assert figures.read_s_per_byte == machine.read_s_per_byte[::-1]
    assert found.sections[0].stages[0].seconds_per_row == (0.5,) * 8
    with pytest.raises(PartitionError, match=r"machine is of w0, w1.*the workers are a, b"):
        from_saved(saved_machine(document), bare, ["a", "b"], [None] * 2)
    with pytest.raises(PartitionError, match="machine is of 8 nodes"):
        from_saved(alone, bare, ["a", "b"], [None] * 2)
    wider = program(spec((ROWS, 999), (1, 0), ("reflect", "none")), prefetch=False)
    with pytest.raises(PartitionError, match=r"32768 bytes a row.*7992 bytes a row"):
        from_saved(saved_machine(document), wider, names, [None] * 8)


def test_waiting_and_receiving_are_told_apart_by_the_prediction():
    made, machine = pair("HY1")
    expected = predicted(made, machine, [512] * 8)
    history = History()
    for _ in range(4):
        history.add(parts(seconds=3.0, compute=1.0, receive=1.0))
    found = measured([history.phases[0]] * 8, expected)
    assert found.keys() == expected.keys()
    assert found["receive"] == expected["receive"]
    assert found["wait"] == pytest.approx([1.0 - one for one in expected["receive"]])
    assert measured([history.phases[0]], None)["receive"] == [1.0]
