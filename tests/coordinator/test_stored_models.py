"""Models that outlive the scheduler: loaded as priors at the start, saved beside the runs."""

import json
import logging
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul.coordinator.learned import NAME as SHARE
from fpmdask.models import ConstantModel, PiecewiseLinearModel
from fpmdask.runtime.coordinator.instructions import Member
from fpmdask.runtime.coordinator.stored_models import STORED
from fpmdask.runtime.known_models import KnownModel
from fpmdask.store import ModelStore
from fpmdask.store.document import merged, path_of
from fpmdask.store.store import MOST_AGE_SECONDS
from tests.eventually import until
from tests.tuned import tuned

SPEEDS = {"0": 100.0, "1": 200.0, "2": 300.0}


def cluster(url, workers=3):
    config = {"fpmdask.models-url": None if url is None else str(url)}
    nthreads = [("127.0.0.1", 1)] * workers
    return gen_cluster(client=True, nthreads=nthreads, config=config, timeout=60)


def emulated(speeds=SPEEDS):
    models = {name: ConstantModel(speed).to_json() for name, speed in speeds.items()}
    return "emulated", {"models": models}


def measured(url, speeds=SPEEDS):
    """Have a cluster measure; return its report and what its coordinator knew before."""
    found = []

    @cluster(url)
    async def run(c, s, *workers):
        balancer = await fpmdask.Balancer(c)
        before = list(await balancer.models)
        shares = await balancer.partition(emulated(speeds), 600)
        found.append((shares.report, before))

    run()
    return found[0]


def test_the_next_scheduler_begins_with_what_this_one_measured(tmp_path):
    first, before = measured(tmp_path)
    assert (before, len(first.rounds)) == ([], 2)
    stored = ModelStore(tmp_path).load()
    assert {one.worker: one.model for one in stored} == first.models
    second, before = measured(tmp_path)
    # a prior until it is measured: the first round is the balanced one
    assert sorted(before, key=lambda one: one.worker) == sorted(stored, key=lambda o: o.worker)
    assert not any(one.connected for one in before)
    assert len(second.rounds) == 1
    assert list(second) == list(first)
    # no store, nothing known
    third, before = measured(None)
    assert (before, len(third.rounds)) == ([], 2)


def sines(units):
    np.sin(np.zeros(100 * units))


def test_the_intervals_of_what_was_timed_are_stored_and_loaded(tmp_path):
    known = []

    @cluster(tmp_path)
    async def run(c, s, *workers):
        balancer = await fpmdask.Balancer(c)
        known.append(await balancer.models)
        await balancer.partition(sines, 3000)
        known.append(await balancer.models)

    run()
    run()
    assert not len(known[0])
    for one in known[1]:
        assert one.half_widths
        seconds = dict(zip(*(column.tolist() for column in one.model.points), strict=True))
        for units, half_width in one.half_widths.items():
            assert units in seconds
            assert 0 <= half_width < math.inf  # it may be wider than the seconds on a busy machine
    told = {one.worker: dict(one.half_widths) for one in known[1]}
    assert {one.worker: dict(one.half_widths) for one in known[2]} == told
    points = [
        point
        for document in ModelStore(tmp_path).documents()[0].values()
        for own in document["workers"].values()
        for point in own["points"]
    ]
    assert any(point["half_width"] is not None for point in points)


def test_what_is_stored_and_wrong_is_measured_again_and_stored(tmp_path):
    """As after a change of the hardware that nobody can see."""
    measured(tmp_path)
    wrong = [one.facts for one in ModelStore(tmp_path).load()]
    ModelStore(tmp_path).forget()
    for one in wrong:  # ten times as fast for one of them
        factor = 10.0 if one.worker == "0" else 1.0
        one.model["seconds"] = [factor * spent for spent in one.model["seconds"]]
    ModelStore(tmp_path).save(map(KnownModel.from_facts, wrong))
    report, before = measured(tmp_path)
    assert len(before) == 3
    assert dict(zip(report.workers, report.distribution.tolist(), strict=True)) == {
        "0": 100,
        "1": 200,
        "2": 300,
    }
    found = {one.worker: one.model for one in ModelStore(tmp_path).load()}
    assert found["0"].speed(100.0) == pytest.approx(100.0)


def test_what_was_measured_too_long_ago_is_no_prior(tmp_path):
    measured(tmp_path)
    models = ModelStore(tmp_path).load()
    then = datetime.now(UTC) - timedelta(seconds=1.01 * MOST_AGE_SECONDS)
    for one in models:
        path = tmp_path / path_of(one)
        path.write_text(json.dumps(merged(None, [one], then, "0.1")))
    report, before = measured(tmp_path)
    assert (before, len(report.rounds)) == ([], 2)
    assert len(ModelStore(tmp_path).load()) == len(models)


# large enough that no worker does all of another one's share, which would teach nothing of that one
A = np.ones((1024, 1024))


def multiplied(url, workers=2):
    """Have a cluster multiply twice; return both reports, and what it knew after the first."""
    found = []
    learning = tuned(matmul={"learned_least_seconds": 1e-6})

    @gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * workers,
        config={"fpmdask.models-url": str(url), **learning},
        timeout=60,
    )
    async def run(c, s, *workers):
        balancer = await fpmdask.Balancer(c)
        for _ in range(2):
            product = await balancer.matmul(A, A)
            assert (await c.compute(product) == len(A)).all()
            found.append((balancer.report, list(await balancer.models)))

    run()
    (first, models), (second, _) = found
    return first, second, models


@pytest.mark.slow
def test_a_product_goes_by_priors_and_drops_those_that_it_refutes(tmp_path):
    first, *_ = multiplied(tmp_path)
    assert first.rounds  # a second one where timings disagree
    first, *_ = multiplied(tmp_path)
    assert (first.reason, first.rounds) == ("known", ())
    wrong = [one.facts for one in ModelStore(tmp_path).load()]
    ModelStore(tmp_path).forget()
    for one in wrong:
        one.model["seconds"] = [1000.0 * spent for spent in one.model["seconds"]]
    shares = [one for one in wrong if one.kernel == SHARE]
    most = max(shares, key=lambda one: one.model["units"][-1])
    for one in shares:  # both are as slow: each gets half, which comes near to what it had
        one.model.update(most.model)
    wrong = [KnownModel.from_facts(one) for one in wrong]
    ModelStore(tmp_path).save(wrong)
    first, second, models = multiplied(tmp_path)
    assert (first.reason, first.rounds, second.rounds) == ("known", (), ())
    after = {one.worker: one.model for one in models if one.kernel == SHARE}
    of_shares = [one for one in wrong if one.kernel == SHARE]
    # others may have multiplied all of a worker's share: it was not measured then
    assert any(
        after[one.worker].time(units) < 0.1 * seconds
        for one in of_shares
        for units, seconds in zip(*one.model.points, strict=True)
    )


def test_a_prior_is_kept_where_a_measurement_agrees_within_twice_epsilon():
    prior = Member("a", model=PiecewiseLinearModel.from_points([100], [1.0]), prior=True)
    assert [prior.refuted(100, seconds, 0.1) for seconds in (0.81, 1.19)] == [False, False]
    assert [prior.refuted(100, seconds, 0.1) for seconds in (0.79, 1.21, math.inf)] == [True] * 3
    assert not replace(prior, prior=False).refuted(100, 9.0, 0.1)


def test_what_cannot_be_read_is_logged_once_and_measured(tmp_path, caplog):
    measured(tmp_path)
    lost, *kept = ModelStore(tmp_path).load()  # of this kernel each worker has its own parameters
    damaged = tmp_path / path_of(lost)
    damaged.write_text("{")
    with caplog.at_level(logging.WARNING):
        report, before = measured(tmp_path)
    assert sorted(one.worker for one in before) == sorted(one.worker for one in kept)
    assert report.distribution.sum() == 600
    told = [record for record in caplog.records if "left alone" in record.getMessage()]
    assert len(told) == 1
    assert damaged.read_text() == "{"


@pytest.mark.parametrize("url", ["nothing://at/all", "/proc/nothing"])
def test_a_store_that_is_not_there_is_in_the_way_of_nothing(url, caplog):
    with caplog.at_level(logging.WARNING):
        report, _ = measured(url)
    assert len(report.rounds) == 2
    assert any("cannot be saved" in record.getMessage() for record in caplog.records)


def test_saving_is_not_repeated_and_what_a_client_saves_is_the_same(tmp_path):
    @cluster(tmp_path / "by the scheduler")
    async def run(c, s, *workers):
        balancer = await fpmdask.Balancer(c)
        plugin = s.plugins["fpmdask"]
        await balancer.partition(emulated(), 600)
        store = ModelStore(tmp_path / "by the scheduler")
        await until(lambda: len(store.load()) == 3)
        paths = sorted((tmp_path / "by the scheduler").rglob("*.json"))
        written = [path.stat().st_mtime_ns for path in paths]
        assert all(start != STORED for *_, start, _ in plugin.library.entries())
        models = await balancer.models
        assert models.save(tmp_path / "by a client").documents == len(paths)
        assert models.save(tmp_path / "by a client").documents == 0
        mine = ModelStore(tmp_path / "by a client").load()
        assert mine == store.load()
        # a run that learns nothing new
        plugin.stored_models.changed()
        await plugin.stored_models.close()
        assert [path.stat().st_mtime_ns for path in paths] == written

    run()
