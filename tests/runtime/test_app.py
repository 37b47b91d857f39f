"""Applications of other packages: found by their place, checked, and run like ours."""

import os
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps import APPS
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.app import App, find
from fpmdask.runtime.client.conformance import check_app
from tests.eventually import no_data
from tests.tuned import SHORT_ROUNDS

POWER = "power_iteration:POWER"
VALUES = np.random.default_rng(0).random((90, 90))
NOT_AN_APP = 3
NO_FUNCTION = App("none", "tests.runtime.test_app:nothing")
NO_MODULE = App("none", "tests.no_such:run", "tests.no_such:check")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the other package for this process, and for those that it starts."""
    folder = str(tmp_path_factory.mktemp("installed"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    source = Path(__file__).parents[1] / "outsider"
    subprocess.run([*pip, "--no-index", "--target", folder, source], check=True, cwd=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        patch.setenv("PYTHONPATH", path)
        yield folder


def cluster(workers=3):
    nthreads = [("127.0.0.1", 1)] * workers
    return gen_cluster(client=True, nthreads=nthreads, config=SHORT_ROUNDS, timeout=120)


def spec_of(x):
    keys = [list(key) for (key,) in x.__dask_keys__()]
    return {"keys": keys, "heights": list(x.chunks[0]), "columns": 90, "iterations": 60}


def is_right(value):
    largest = max(abs(np.linalg.eigvals(VALUES)))
    return abs(value["eigenvalue"] - largest) < 1e-9 * largest


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@cluster()
async def test_an_application_of_another_package_conforms(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = c.persist(da.from_array(VALUES, chunks=(20, 90)))
    await wait(x)
    spec = spec_of(x)
    wrong = {**spec, "columns": 91}
    await check_app(
        balancer, POWER, spec, is_right, wrong=wrong, lose=lambda: workers[2].close(timeout=1)
    )
    assert balancer.report.app == POWER
    assert sum(share["units"] for share in balancer.report.shares or []) in (0, 90)
    async with Client(s.address, asynchronous=True) as other:
        assert is_right(await (await fpmdask.Balancer(other)).run(POWER, spec))
    del x
    await no_data(s, workers[:2])


@pytest.mark.slow
def test_workers_in_processes_of_their_own_run_it(installed):
    local = LocalCluster(2, threads_per_worker=1, dashboard_address=":0")
    with local, Client(local) as client:
        assert all(path.startswith(installed) for path in client.run(place).values())
        x = da.from_array(VALUES, chunks=(20, 90)).persist()
        wait(x)
        assert is_right(fpmdask.Balancer(client).run(POWER, spec_of(x)))


def place():
    import power_iteration

    return power_iteration.__file__


@pytest.mark.usefixtures("installed")
@cluster(1)
async def test_what_is_no_application_is_refused_at_once(c, s, worker):
    balancer = await fpmdask.Balancer(c)
    for app, message in {
        "nothing": "found the application 'nothing'; give 'module:attribute'",
        None: "found the application None",
        "..:x": "cannot be imported",
        "tests.runtime.test_app:NO_FUNCTION": "test_app:nothing' of the application 'none' cannot",
        "tests.runtime.test_app:NO_MODULE": "no_such:check' of .* cannot be imported",
        "tests.no_such:APP": "cannot be imported .*no_such.*; install its package",
        "power_iteration:NOTHING": "cannot be imported .*NOTHING",
        "tests.runtime.test_app:NOT_AN_APP": "is a int; give an fpmdask App",
    }.items():
        with pytest.raises(CoordinatorError, match=message):
            await balancer.run(app, {})
    for spec, message in {
        "x": ({"a": {1, 2}}, r"spec\['a'\] is a set; give numbers"),
        "y": ({1: 2}, "spec is a dict"),
        "z": ([1], "spec is a list; give a mapping"),
        "n": ({"a": [2**70]}, r"spec\['a'\]\[0\] = 1180591620717411303424; messages carry"),
    }.values():
        with pytest.raises(PartitionError, match=message):
            await balancer.run(POWER, spec)


@pytest.mark.parametrize("arguments", [("a-b", "m:f"), ("a", "m"), ("a", "m:f", ":f")])
def test_an_application_checks_its_names(arguments):
    with pytest.raises(ValueError, match=r"give letters|is no 'module:function'"):
        App(*arguments)


@pytest.mark.parametrize("name", APPS)
def test_ours_are_found(name):
    assert find(name, APPS).name == name
