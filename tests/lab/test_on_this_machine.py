"""Labs that root really makes."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from fpmdask import config
from fpmdask.errors import LabError
from fpmdask.lab import Lab, LabState
from fpmdask.lab.cluster import registered
from fpmdask.lab.swap import in_use
from fpmdask.runtime.worker.fingerprint import cpu_quota

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def addresses(client: Client) -> dict[str, str]:
    workers = registered(client)
    return {worker["name"]: address for address, worker in workers.items()}


def spin(seconds: float) -> float:
    """Return the CPU-seconds per second that this process gets while it computes."""
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        pass
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def shares(client: Client, seconds: float = 1.0) -> dict[str, float]:
    """Spin on all workers at once and return each one's part of a core."""
    placed = addresses(client)
    futures = {
        name: client.submit(spin, seconds, workers=[address], pure=False)
        for name, address in placed.items()
    }
    return {name: future.result(timeout=60) for name, future in futures.items()}


def groups_of_me() -> list[str]:
    return Path("/proc/self/cgroup").read_text().splitlines()


def variables(names: list[str]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def disk() -> tuple[float, float]:
    return (
        config.setting("lab.disk.overhead-seconds"),
        config.setting("lab.disk.seconds-per-byte"),
    )


def sweep(nbytes: int) -> float:
    """Touch an array twice and return the seconds of the second time."""
    import numpy as np

    array = np.zeros(nbytes // 8)
    array += 1
    start = time.perf_counter()
    array += 1
    return time.perf_counter() - start


def receive(data: bytes) -> int:
    return len(data)


@pytest.fixture(scope="module")
def hcl6(root: None, prefix: str) -> Iterator[Lab]:
    with Lab.from_toml("hcl6", name=f"{prefix}-hcl6") as lab:
        yield lab


@pytest.fixture
def client(hcl6: Lab) -> Iterator[Client]:
    with Client(hcl6.scheduler_address, set_as_default=False) as client:
        yield client


@pytest.mark.parametrize("backend", ["root", "duty-cycle"])
def test_slow_disks_reach_their_workers_with_root_and_without(
    backend: str, root: None, prefix: str
) -> None:
    with (
        Lab.from_toml("io", name=f"{prefix}-io", backend=backend) as lab,
        Client(lab.scheduler_address, set_as_default=False) as client,
    ):
        found = client.run(disk)
        placed = addresses(client)
        for worker in lab.workers:
            expected = worker.disk_overhead, worker.disk_seconds_per_byte
            assert found[placed[worker.name]] == expected


def test_hcl6_has_six_workers_at_addresses_of_their_own(hcl6: Lab, client: Client) -> None:
    placed = addresses(client)
    assert sorted(placed) == ["w1", "w2", "w3", "w4", "w5", "w6"]
    assert len({address.rpartition(":")[0] for address in placed.values()}) == 6
    pids = client.run(os.getpid)
    assert {name: pids[placed[name]] for name in placed} == {
        name: hcl6.worker_pid(name) for name in placed
    }
    assert set(pids.values()) < set(hcl6.pids)


def test_quotas_hold_and_can_be_cut_in_mid_run(hcl6: Lab, client: Client) -> None:
    # Other work on the machine only takes away: the bound from above is the quota's.
    measured = shares(client)
    for worker in hcl6.workers:
        assert worker.cpu is not None
        assert 0 < measured[worker.name] < worker.cpu * 1.25 + 0.02
    hcl6.set_quota("w1", 0.1)
    assert shares(client)["w1"] < 0.15
    assert hcl6.state.quotas["w1"] == 0.1
    hcl6.set_quota("w1", 0.4)
    with pytest.raises(LabError, match="smallest quota"):
        hcl6.set_quota("w1", 0.01)


def test_workers_see_their_control_groups_and_have_as_many_blas_threads_as_threads(
    hcl6: Lab, client: Client
) -> None:
    placed = addresses(client)
    lines = client.submit(groups_of_me, workers=[placed["w3"]], pure=False).result()
    assert any(line.endswith(f"{hcl6.state.identity}/w3") for line in lines)
    assert client.run(cpu_quota, workers=[placed["w3"]]) == {placed["w3"]: 0.25}
    names = [
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED",
    ]
    found = client.submit(variables, names, workers=[placed["w3"]], pure=False).result()
    assert list(found.values()) == ["1", "1", "False"]


def test_a_killed_worker_leaves_and_a_restarted_one_is_back(
    hcl6: Lab, client: Client, until: Callable[..., Any]
) -> None:
    before = hcl6.worker_pid("w2")
    hcl6.kill_worker("w2")
    until(lambda: "w2" not in addresses(client), "w2 to leave")
    with pytest.raises(LabError, match="restart_worker"):
        hcl6.worker_pid("w2")
    hcl6.restart_worker("w2")
    hcl6.restart_worker("w3")
    assert sorted(addresses(client)) == ["w1", "w2", "w3", "w4", "w5", "w6"]
    assert hcl6.worker_pid("w2") != before
    assert shares(client, 0.5)["w2"] < 0.4


def test_a_second_start_is_refused_and_does_no_harm(hcl6: Lab, client: Client, prefix: str) -> None:
    pids = hcl6.pids
    with pytest.raises(LabError, match="already up, started by process"):
        Lab.from_toml("hcl6", name=f"{prefix}-hcl6").up()
    with pytest.raises(LabError, match="already up"):
        hcl6.up()
    assert hcl6.pids == pids
    assert len(addresses(client)) == 6
    with Lab.from_toml("threads", name=f"{prefix}-beside") as other:
        assert other.state.network != hcl6.state.network
    assert len(addresses(client)) == 6


def test_threads_mixes_workers_of_one_and_two_threads(root: None, prefix: str) -> None:
    with (
        Lab.from_toml("threads", name=f"{prefix}-threads") as lab,
        Client(lab.scheduler_address, set_as_default=False) as client,
    ):
        threads = {worker["name"]: worker["nthreads"] for worker in registered(client).values()}
        assert threads == {"t1": 1, "t2": 2, "t3": 1, "t4": 2}


def test_links_memory_swap_and_every_other_option(
    root: None,
    prefix: str,
    tmp_path: Path,
    until: Callable[..., Any],
    traces: Callable[[LabState], set[str]],
) -> None:
    file = tmp_path / "options.toml"
    preload = Path(__file__).parents[2] / "workers" / "preload.py"
    file.write_text(f"""
        [lab]
        backend = "root"
        scheduler = "namespace"
        dashboard = true
        pin = true
        [defaults]
        memory_manager = false
        [[workers]]
        name = "thin"
        rate = "80 Mbit"
        [[workers]]
        name = "small"
        memory = "250 MB"
        swap = "500 MB"
        affinity = [0]
        environment = {{ OPENBLAS_CORETYPE = "Haswell" }}
        preload = ["{preload}"]
        arguments = ["--slots", "2"]
        [[workers]]
        name = "watched"
        nanny = true
        cpu = 0.5
        """)
    with (
        Lab.from_toml(file, name=f"{prefix}-options") as lab,
        Client(lab.scheduler_address, set_as_default=False) as client,
    ):
        placed, state = addresses(client), lab.state
        assert lab.scheduler_address.rpartition(":")[0].endswith(".2")
        assert len(traces(state)) > 10
        (swap_file,) = state.swap_files
        assert in_use(Path(swap_file))

        data = client.submit(bytes, 20_000_000, workers=[placed["watched"]], pure=False)
        start = time.perf_counter()
        assert client.submit(receive, data, workers=[placed["thin"]]).result() == 20_000_000
        assert time.perf_counter() - start > 1.0, "160 Mbit pass 80 Mbit/s in 2 s"

        swept = client.submit(sweep, 250_000_000, workers=[placed["small"]], pure=False)
        assert swept.result(timeout=60) > 0
        used = [line for line in Path("/proc/swaps").read_text().splitlines() if swap_file in line]
        assert int(used[0].split()[3]) > 10_000, "it paged out more than 10 MB, and lives"

        assert client.run(os.sched_getaffinity, 0, workers=[placed["small"]]) == {
            placed["small"]: {0}
        }
        spread = client.run(os.sched_getaffinity, 0)
        assert len(spread[placed["watched"]]) == 1, "pinned, as it has a quota"
        assert spread[placed["thin"]] == os.sched_getaffinity(0), "no quota"
        found = client.run(variables, ["OPENBLAS_CORETYPE"], workers=[placed["small"]])
        assert found[placed["small"]] == {"OPENBLAS_CORETYPE": "Haswell"}

        workers = registered(client)
        assert workers[placed["small"]]["resources"] == {"fpm": 2}, "the preload and its argument"

        before = lab.worker_pid("watched")
        assert client.run(os.getpid, workers=[placed["watched"]])[placed["watched"]] == before
        lab.kill_worker("watched")
        until(
            lambda: placed["watched"] != addresses(client).get("watched", placed["watched"]), "it"
        )
        assert lab.worker_pid("watched") != before
    assert not in_use(Path(swap_file))
    assert traces(state) == set()
