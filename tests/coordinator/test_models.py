"""`Balancer.models`: what the coordinator knows, for every client, and forgetting it."""

import time
from dataclasses import replace

import dask.array as da
import pytest
from distributed import Client, Worker
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.errors import KernelError
from fpmdask.models import ConstantModel, PiecewiseLinearModel
from fpmdask.runtime.coordinator.library import ModelLibrary
from fpmdask.runtime.identity import Fingerprint, KernelId, WorkerIdentity
from tests.eventually import until


def cluster(workers=3):
    return gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * workers, timeout=60)


def emulated(speeds):
    models = {name: ConstantModel(speed).to_json() for name, speed in speeds.items()}
    return "emulated", {"models": models}


KERNEL = emulated({"0": 100.0, "1": 200.0, "2": 300.0, "late": 50.0})


@cluster()
async def test_models_of_every_worker_are_seen_and_forgotten(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    assert list(await balancer.models) == []
    shares = await balancer.partition(KERNEL, 600)
    report = balancer.report
    models = await balancer.models
    assert {one.worker for one in models} == set(shares)
    assert {one.kernel for one in models} == {"emulated"}
    assert all(one.connected for one in models)
    assert {one.worker: one.model for one in models} == report.models
    assert models[0] in models
    assert len(models[1:]) == 2
    assert balancer.report is report  # to look is no call that leaves a report
    assert "emulated" in models.table()
    assert models._repr_html_().startswith("<div>")
    # another client sees the same
    async with Client(s.address, asynchronous=True) as other:
        assert list(await (await fpmdask.Balancer(other)).models) == list(models)
    # what is known is only confirmed; what was forgotten is measured again
    assert len((await balancer.partition(KERNEL, 600)).report.rounds) == 1
    assert await models.forget(worker="1") == 1
    assert {one.worker for one in await balancer.models} == {"0", "2"}
    assert len(models) == 3  # as it was when it was read
    assert [one.worker for one in models.of(worker="2")] == ["2"]
    assert await models.forget(kernel="another") == 0
    assert await models.forget() == 2
    assert len(await balancer.models) == 0
    again = (await balancer.partition(KERNEL, 600)).report
    assert len(again.rounds) == len(report.rounds)


class Timed:
    """A kernel that times itself, by code that may change."""

    name, implementation, parameters = "timed", "1", {"width": 3}

    def __init__(self, change):
        self.change = change

    def setup(self, units):
        self.units = units

    def run(self):
        return self.units / 100

    def teardown(self):
        pass

    def complexity(self, units):
        return float(units)


@cluster(2)
async def test_models_of_a_kernel_that_has_a_name_outlive_its_code(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for change in (1, 2):
        await balancer.partition(Timed(change), 600, name="mine")
        models = await balancer.models
        assert [(one.kernel, one.implementation) for one in models] == [("mine", "1")] * 2
    x = c.persist(da.ones((100, 4), chunks=50))
    for exponent in (1, 2):
        await balancer.rebalance(x, kernel=lambda x, e=exponent: time.sleep(0.02 * e), name="slept")
    named = [one.kernel for one in await balancer.models]
    assert sorted(named) == ["mine"] * 2 + ["slept"] * 2
    for change in (1, 2):  # else each code has its own
        await balancer.partition(Timed(change), 600)
    assert len(await balancer.models) == 8
    with pytest.raises(KernelError, match="give a string that is not empty"):
        await balancer.partition(Timed(1), 600, name="")
    with pytest.raises(KernelError, match="registered kernel"):
        await balancer.partition(KERNEL, 600, name="mine")


@cluster(1)
async def test_a_worker_that_is_gone_has_models_that_say_so(c, s, worker):
    balancer = await fpmdask.Balancer(c)
    async with Worker(s.address, nthreads=1, name="late"):
        await balancer.partition(KERNEL, 600)
        assert [one.connected for one in await balancer.models] == [True, True]
    await until(lambda: len(s.workers) == 1)
    connected = {one.worker: one.connected for one in await balancer.models}
    assert connected == {"0": True, "late": False}


def test_a_synchronous_client_gets_them_without_awaiting():
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    with Client(dashboard_address=":0", **options) as client:
        balancer = fpmdask.Balancer(client)
        balancer.partition(KERNEL, 600)
        assert len(balancer.models) == 2
        assert balancer.models.forget() == 2
        assert len(balancer.models) == 0


def test_an_empty_library_has_nothing_to_forget():
    library = ModelLibrary()
    assert library.entries() == []
    assert library.forget() == 0


KERNEL_ID = KernelId("sort.local", "numpy 2", "{}")
ALPHA = WorkerIdentity("alpha", Fingerprint("Some CPU", "blas", "Zen", 1, 1, None, 10**9), "first")


def test_machines_are_counted_among_what_is_forgotten():
    library = ModelLibrary()
    library.store(KERNEL_ID, ALPHA, PiecewiseLinearModel.from_points([10], [1.0]))
    library.store_machine(KERNEL_ID, ALPHA, {"seconds_per_row": 0.5})
    assert library.forget(worker="beta") == 0
    assert library.forget(worker="alpha") == 2
    assert (library.entries(), library.machines()) == ([], [])


def test_half_widths_belong_to_the_points_as_they_are():
    """One that was measured again has that of the mean, or none where nobody could tell."""
    library = ModelLibrary()

    def half_widths(model, told, start="first"):
        library.store(KERNEL_ID, replace(ALPHA, start=start), model, told)
        return library.half_widths(KERNEL_ID, ALPHA.fingerprint, ALPHA.name)

    first = PiecewiseLinearModel.from_points([10, 20, 30], [1.0, 2.0, 3.0])
    assert half_widths(first, {10: 0.1, 20: 0.4}) == {10: 0.1, 20: 0.4}
    # the same points after a restart, and one more
    more = first.with_point(40, 4.0)
    assert half_widths(more, {40: 0.2}, "second") == {10: 0.1, 20: 0.4, 40: 0.2}
    assert half_widths(more.with_point(20, 2.4), {20: 0.3}) == {10: 0.1, 20: 0.25, 40: 0.2}
    # a product's seconds come without one
    learned = more.with_point(20, 2.4).with_point(10, 1.2)
    assert half_widths(learned, {}) == {20: 0.25, 40: 0.2}
    # of two measurements one has none: their mean has none
    assert half_widths(learned.with_point(10, 1.1), {10: 0.1}) == {20: 0.25, 40: 0.2}
    # a worker that has changed begins again
    afresh = PiecewiseLinearModel.from_points([20], [8.0])
    assert half_widths(afresh, {20: 0.5}) == {20: 0.5}
    assert half_widths(PiecewiseLinearModel.from_points([20], [9.0]), {}) == {}


def test_what_was_measured_often_counts_as_the_model_counts_it():
    library = ModelLibrary()
    model = PiecewiseLinearModel.from_points([10], [1.0])
    library.store(KERNEL_ID, ALPHA, model, {10: 0.4})
    for _ in range(6):
        model = model.with_point(10, 1.5)
        library.store(KERNEL_ID, ALPHA, model, {10: 0.4})
    # of four equal ones a half, and a moving mean stays near it
    found = library.half_widths(KERNEL_ID, ALPHA.fingerprint, ALPHA.name)[10]
    assert 0.14 < found <= 0.2
