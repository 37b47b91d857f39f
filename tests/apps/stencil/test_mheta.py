"""Rows that do not fit into memory are where MHETA predicts the shortest iterations."""

import collections
import json
import math
import time
from types import ModuleType

import numpy as np
import pytest
import zarr

import fpmdask
from fpmdask.apps.stencil import jacobi
from fpmdask.apps.stencil.coordinator.iterations import INSTRUMENTED
from fpmdask.apps.stencil.coordinator.known_machine import WHY
from fpmdask.apps.stencil.planner import Planner
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.mheta import predict
from fpmdask.mheta.document import Document
from fpmdask.runtime.known_models import KnownMachine
from fpmdask.runtime.report import Report
from fpmdask.store import ModelStore
from tests.apps.stencil.test_stencil import RANDOM, cluster, local, worker_name
from tests.apps.stencil.test_storage import stored, zarr_cluster
from tests.eventually import nothing_left
from tests.tuned import tuned

SLOW = {"fpmdask.lab.disk.overhead-seconds": 0.001, "fpmdask.lab.disk.seconds-per-byte": 1e-5}
U0 = RANDOM.random((60, 50))
# Of worker "1": 6 rows are in core, 5 with prefetch. The others have no limit. With a constant
# array rows take more in core than the result does, which has to be in memory.
MEMORY = {"1": 12_480}
KEPT = np.zeros(U0.shape)
GIVEN = {"memory": MEMORY, "args": (KEPT,)}
INPUTS = {"u0": U0, "kept": KEPT}


def busy(block, *_):
    """Compute for a time that does not depend on who does it."""
    time.sleep(0.001 * len(block))
    return jacobi(block)


# In what tells functions apart modules count with their names, other values as they are.
STATE = ModuleType("state")
STATE.calls = CALLS = collections.Counter()


def careful(block, *_):
    """Compute as `busy` where cells are near their neighbours, and raise where not.

    Worker "2" takes ten times as long after some iterations.
    """
    if abs(np.diff(block[:, 0])).max() > 1:
        STATE.calls["refused"] += 1
        raise ValueError("no cell may be that far from its neighbour")
    if worker_name() == "2" and STATE.calls["swept"] > STATE.slow_after:
        time.sleep(0.009 * len(block))
    STATE.calls["swept"] += worker_name() == "2"
    return busy(block)


def failing(block, *_):
    """Compute as `busy`, and raise after some calls."""
    STATE.calls["all"] += 1
    if STATE.calls["all"] > STATE.fails_after:
        raise KeyError("seven")
    return busy(block)


def slowing(block, *_):
    """Compute as `busy`, but worker "2" four times as long after some iterations."""
    STATE.calls[worker_name()] += 1
    late = worker_name() == "2" and STATE.calls["2"] > 50
    time.sleep((0.01 if late else 0.001) * len(block))
    return jacobi(block)


def shares_of(report):
    return dict(zip(report.workers, report.distribution.tolist(), strict=True))


def rows_of(said, worker):
    """Return the rows that a worker had in each phase."""
    at = said["workers"].index(worker)
    return [phase["rows"][at] for phase in said["phases"]]


def check_report(report, iterations):
    """Check what holds for the report of any run that MHETA distributed."""
    said = report.mheta
    assert said["version"] == 1
    assert said["why"]
    assert sorted(said["workers"]) == sorted(shares_of(report))
    counts = [(phase["first"], phase["count"]) for phase in said["phases"]]
    first = counts[0][0]
    for begin, count in counts:
        assert begin == first
        first += count
    assert first == iterations + 1
    for phase in said["phases"]:
        assert sum(phase["rows"]) == sum(report.distribution)
        for side in ("measured", "predicted"):
            assert phase[side].keys() == {"seconds", "compute", "io", "send", "wait", "receive"}
            assert all(len(values) == len(said["workers"]) for values in phase[side].values())
    last = dict(zip(said["workers"], said["phases"][-1]["rows"], strict=True))
    assert {name: rows for name, rows in last.items() if rows} == {
        name: rows for name, rows in shares_of(report).items() if rows
    }
    document = Document.from_dict(said["document"])
    found = predict(document.program, document.machine, said["spectrum"]["rows"][0])
    assert found.seconds == pytest.approx(said["spectrum"]["seconds"][0])
    assert "predicted" in report._repr_html_()
    again = Report.from_json(report.to_json())
    assert again.mheta["phases"] == said["phases"]
    return said


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [False, True])
@cluster(config=SLOW)
async def test_rows_move_off_the_disk(c, s, *workers, prefetch):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    found = await balancer.stencil(busy, U0, 20, **GIVEN, prefetch=prefetch)
    np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 20))
    report = balancer.report
    said = check_report(report, 20)
    assert report.reason == "measured"
    assert said["phases"][0]["first"] == 1
    assert shares_of(report)["1"] <= 7, said["why"]
    (choice, *_) = said["choices"]
    assert (choice["after"], choice["moving_seconds"]) == (0, 0), "a sample was instrumented"
    assert [event["rows"] for event in events if event["event"] == "shared out"][-1] == (
        shares_of(report)
    )
    assert report.shares[0]["blocks"] == 0
    # the same again, of which nothing is measured
    for machine in (report, said["document"], Document.from_dict(said["document"]).machine):
        events.clear()
        found = await balancer.stencil(busy, U0, 6, **GIVEN, prefetch=prefetch, machine=machine)
        np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 6))
        again = check_report(balancer.report, 6)
        assert balancer.report.reason == "predicted"
        assert again["phases"][0]["first"] == 1
        assert shares_of(balancer.report)["1"] <= 7, again["why"]
        assert "measure" not in [
            e["step"] for e in events if e["event"] == "step"
        ] or not isinstance(machine, dict | Report)
    del found
    await nothing_left(s)


@pytest.mark.slow
@pytest.mark.parametrize("disturbed", [1, 9])
@cluster(config=SLOW)
async def test_a_disturbed_sample_is_measured_again(c, s, *workers, disturbed, monkeypatch):
    """Where it is disturbed each time, rows are shared out by speed."""
    fits, fit = [], Planner.fit

    def disturbs(planner, *given):
        fits.append(given)
        if len(fits) <= disturbed:
            raise PartitionError("other programs ran")
        fit(planner, *given)

    monkeypatch.setattr(Planner, "fit", disturbs)
    balancer = await fpmdask.Balancer(c)
    found = await balancer.stencil(busy, U0, 6, **GIVEN)
    np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 6))
    report = balancer.report
    assert len(fits) == min(disturbed + 1, INSTRUMENTED)
    assert ("document" in report.mheta) == (disturbed < INSTRUMENTED)
    if disturbed < INSTRUMENTED:
        check_report(report, 6)
    else:
        assert "other programs ran" in report.mheta["why"]
        assert sum(shares_of(report).values()) == len(U0)
    del found
    await nothing_left(s)


@pytest.mark.slow
@cluster(config={**SLOW, **tuned(stencil={"sample_nbytes": 1})})
async def test_an_update_may_refuse_the_sample(c, s, *workers):
    """Its rows are not all neighbours in the whole array; then they are shared out by speed."""
    u0 = np.repeat(np.arange(60.0), 50).reshape(60, 50)
    STATE.calls.clear()
    STATE.slow_after = 10**6
    balancer = await fpmdask.Balancer(c)
    found = await balancer.stencil(careful, u0, 6, **GIVEN)
    np.testing.assert_allclose(await c.compute(found), local(jacobi, u0, 6))
    assert STATE.calls["refused"]
    report = balancer.report
    assert report.reason == "measured"
    assert "raised in a sample of rows: no cell may be that far" in report.mheta["why"]
    assert shares_of(report)["1"] <= 7, "in core"
    with pytest.raises(ValueError, match="no cell may be that far"):
        await balancer.stencil(careful, 2 * u0, 6, **GIVEN)
    del found
    await nothing_left(s)


@pytest.mark.slow
@cluster(config={**SLOW, **tuned(stencil={"sample_nbytes": 1})})
async def test_a_worker_that_slows_down_gets_fewer_rows_where_the_sample_was_refused(
    c, s, *workers
):
    u0 = np.repeat(np.arange(60.0), 50).reshape(60, 50)
    STATE.calls.clear()
    STATE.slow_after = 40
    balancer = await fpmdask.Balancer(c)
    found = await balancer.stencil(careful, u0, 60, **GIVEN)
    np.testing.assert_allclose(await c.compute(found), local(jacobi, u0, 60))
    assert STATE.calls["refused"]
    rows = rows_of(balancer.report.mheta, "2")
    assert rows[-1] < rows[0] / 2


@pytest.mark.slow
@zarr_cluster(config=SLOW)
async def test_a_resumed_call_reckons_with_the_iterations_that_are_left(c, s, *workers, tmp_path):
    balancer = await fpmdask.Balancer(c)
    source, kept = (stored(tmp_path / name, one, (10, 50)) for name, one in INPUTS.items())
    given = {"memory": MEMORY, "args": (kept,)}
    given["out"] = zarr.create_array(
        str(tmp_path / "out"), shape=U0.shape, chunks=(2, 50), dtype="f8"
    )
    given |= {"checkpoint": tmp_path / "kept", "checkpoint_every": 4}
    STATE.calls.clear()
    STATE.fails_after = 14
    with pytest.raises(KeyError, match="seven"):
        await balancer.stencil(failing, source, 30, **given, distribution={"0": 60})
    STATE.fails_after = math.inf
    found = await balancer.stencil(failing, source, 30, **given)
    np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 30))
    said = balancer.report.mheta
    made = said["choices"][0]["after"]
    assert made >= 4
    assert made % 4 == 0
    assert f"less in {30 - made} iterations" in said["choices"][0]["why"]
    assert said["phases"][0]["first"] == made + 1
    del found
    await nothing_left(s)


@pytest.mark.slow
@cluster(config=SLOW)
async def test_rules_have_names(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    wanted = local(jacobi, U0, 4)
    shares = {}
    for rule in ("even", "balanced", "in-core"):
        found = await balancer.stencil(busy, U0, 4, **GIVEN, distribution=rule)
        np.testing.assert_allclose(await c.compute(found), wanted)
        assert not balancer.report.mheta
        shares[rule] = shares_of(balancer.report)
    assert shares["even"] == {"0": 20, "1": 20, "2": 20}
    assert shares["in-core"]["1"] <= 7
    assert shares["balanced"]["1"] > 7
    with pytest.raises(PartitionError, match="'mheta', 'even', 'balanced', 'in-core'"):
        await balancer.stencil(busy, U0, 4, distribution="uneven")
    with pytest.raises(PartitionError, match="machine is a float"):
        await balancer.stencil(busy, U0, 4, machine=0.5)


@pytest.mark.slow
@cluster(config=SLOW)
async def test_what_is_in_core_with_room_to_spare_is_never_on_disk(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    found = await balancer.stencil(busy, U0, 6, memory="1 MB")
    np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 6))
    assert not balancer.report.mheta
    assert not any(share["io_seconds"] for share in balancer.report.shares)


@pytest.mark.slow
@cluster(config=SLOW)
async def test_given_rows_are_predicted_by_a_saved_machine(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    await balancer.stencil(busy, U0, 6, **GIVEN)
    saved = balancer.report.mheta["document"]
    given = {"0": 30, "1": 20, "2": 10}
    await balancer.stencil(busy, U0, 6, machine=saved, distribution=given, **GIVEN)
    said = check_report(balancer.report, 6)
    assert balancer.report.reason == "given"
    assert shares_of(balancer.report) == given
    (phase,) = said["phases"]
    at = said["workers"].index("1")
    for side in ("predicted", "measured"):
        assert phase[side]["io"][at] > 0.02
        assert phase[side]["compute"][at] > 0.015
    given = {"memory": MEMORY, "args": (KEPT[:, :20],)}
    with pytest.raises(PartitionError, match="of the same program"):
        await balancer.stencil(busy, U0[:, :20], 6, machine=saved, **given)


@pytest.mark.slow
@cluster(config=SLOW)
async def test_a_worker_that_slows_down_is_measured_again(c, s, *workers):
    CALLS.clear()
    balancer = await fpmdask.Balancer(c)
    found = await balancer.stencil(slowing, U0, 60, **GIVEN)
    np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 60))
    said = check_report(balancer.report, 60)
    assert len(said["choices"]) > 1
    rows = rows_of(said, "2")
    assert rows[-1] < rows[0]


@pytest.mark.slow
@cluster(config=SLOW)
async def test_rows_move_by_speed_where_figures_are_given_up_amid_the_run(c, s, *workers):
    def contradicted(*_):
        raise PartitionError("what workers tell contradicts itself")

    CALLS.clear()
    balancer = await fpmdask.Balancer(c)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fpmdask.apps.stencil.planner.updated", contradicted)
        found = await balancer.stencil(slowing, U0, 60, **GIVEN)
    np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 60))
    said = balancer.report.mheta
    assert "contradicts itself" in said["why"]
    rows = rows_of(said, "2")
    assert rows[-1] < rows[0] / 2


@pytest.mark.slow
@cluster(config={**SLOW, **tuned(runtime={"learned_least_seconds": 0})})
async def test_a_run_by_a_machine_of_before_adapts_to_a_worker_that_slows_down(c, s, *workers):
    CALLS.clear()
    balancer = await fpmdask.Balancer(c)
    await balancer.stencil(slowing, U0, 6, **GIVEN)
    assert CALLS["2"] < 50
    found = await balancer.stencil(slowing, U0, 60, **GIVEN)
    np.testing.assert_allclose(await c.compute(found), local(jacobi, U0, 60))
    said = check_report(balancer.report, 60)
    assert said["why"].startswith(WHY)
    assert len(said["choices"]) > 1
    rows = rows_of(said, "2")
    assert rows[-1] < rows[0]


@pytest.mark.slow
@cluster(config=SLOW)
async def test_with_a_tolerance_the_first_rows_are_the_best_ones(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    found = await balancer.stencil(
        busy, U0, 50, **GIVEN, tolerance=1e-12, check_every=4, boundary="periodic"
    )
    assert found.shape == U0.shape
    said = check_report(balancer.report, 50)
    assert said["choices"][0]["rows"] != [20, 20, 20]
    assert shares_of(balancer.report)["1"] <= 7


@pytest.mark.slow
@cluster(config=SLOW)
async def test_a_machine_of_other_workers_is_refused(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    await balancer.stencil(busy, U0, 6, **GIVEN)
    saved = balancer.report.mheta["document"]
    two = await fpmdask.Balancer(c, workers=["0", "1"])
    with pytest.raises(PartitionError, match=r"machine is of .*2.*, and the workers are"):
        await two.stencil(busy, U0, 6, **GIVEN, machine=saved)
    with pytest.raises(CoordinatorError, match="memory names 7"):
        await two.stencil(busy, U0, 6, memory={"7": 10**6})


def with_store(url):
    """Return the configuration of a cluster that keeps what it measures."""
    return {**SLOW, "fpmdask.models-url": str(url), **tuned(runtime={"learned_least_seconds": 0})}


@pytest.mark.slow
def test_a_machine_is_found_after_a_restart_and_nothing_is_measured(tmp_path):
    found = []

    @cluster(config=with_store(tmp_path))
    async def run(c, s, *workers):
        events = []
        balancer = await fpmdask.Balancer(c, progress=events.append)
        result = await balancer.stencil(busy, U0, 6, **GIVEN)
        np.testing.assert_allclose(await c.compute(result), local(jacobi, U0, 6))
        steps = {event["step"] for event in events if event["event"] == "step"}
        found.append((balancer.report, steps))

    run()
    run()
    (first, measuring), (second, steps) = found
    check_report(first, 6)
    said = check_report(second, 6)
    assert (first.reason, second.reason) == ("measured", "predicted")
    assert not first.mheta["why"].startswith(WHY)
    assert said["why"].startswith(WHY)
    assert said["phases"][0]["first"] == 1, "nothing was instrumented"
    assert {"measure", "instrument"} <= measuring
    assert not {"measure", "instrument"} & steps
    assert shares_of(second)["1"] <= 7, said["why"]


@pytest.mark.slow
def test_a_machine_that_is_wrong_is_measured_again_and_not_kept(tmp_path):
    found, seen = [], []

    @cluster(config=with_store(tmp_path))
    async def run(c, s, *workers):
        balancer = await fpmdask.Balancer(c)
        await balancer.stencil(busy, U0, 8, **GIVEN)
        found.append(balancer.report)
        seen.extend((await balancer.models).machines)

    @cluster(config=with_store(tmp_path))
    async def twice(c, s, *workers):
        balancer = await fpmdask.Balancer(c)
        for _ in range(2):  # five looks: on a busy machine iterations scatter too much for one
            await balancer.stencil(busy, U0, 26, **GIVEN)
            found.append(balancer.report)

    run()
    store = ModelStore(tmp_path)
    machines = [one for one in store.known()[0] if isinstance(one, KnownMachine)]
    assert {one.worker for one in machines} == {"0", "1", "2"}
    assert all(one.connected for one in seen)
    known = {one.worker: json.loads(json.dumps(one.figures)) for one in seen}
    assert known == {one.worker: one.figures for one in machines}
    for one in machines:  # all compute in a twentieth of the time
        for model in [one.figures["model"]] if "model" in one.figures else []:
            model["seconds"] = [spent / 20 for spent in model["seconds"]]
        if "seconds_per_row" in one.figures:
            one.figures["seconds_per_row"] /= 20
    store.save(machines)
    twice()
    _, wrong, later = found
    assert wrong.reason == "predicted"
    assert len(wrong.mheta["choices"]) >= 2, "it looked again"
    phase = later.mheta["phases"][0]
    expected, took = (max(phase[side]["seconds"]) for side in ("predicted", "measured"))
    assert 1 / 3 < expected / took < 3
