"""`Balancer.models`: what the coordinator knows, for every client, and forgetting it."""

from distributed import Client, Worker
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.models import ConstantModel
from fpmdask.runtime.coordinator.library import ModelLibrary
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
