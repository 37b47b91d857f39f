"""What the lab would do, without doing it: addresses, commands, control groups, command lines."""

import ipaddress
from pathlib import Path

import dask
import distributed  # noqa: F401  (its configuration)
import pytest

from fpmdask import config
from fpmdask.errors import LabError
from fpmdask.lab import cgroups, cluster, network
from fpmdask.lab.definition import LabDefinition, WorkerDefinition
from fpmdask.lab.throttle import Throttle

ROUTES = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
tun0\t0000400A\t00000000\t0001\t0\t0\t0\t0000E0FF\t0\t0\t0
"""
V1 = """30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
"""


def test_routes_are_read_without_the_default_one() -> None:
    assert [str(net) for net in network.routes(ROUTES)] == ["192.0.2.0/24", "10.64.0.0/11"]


def test_addresses_avoid_those_in_use() -> None:
    taken = [*network.routes(ROUTES), network.Network("10.96.0.0/12")]
    for seed in "abcdefgh":
        chosen = network.choose_network(taken, seed)
        assert chosen.is_private
        assert chosen.prefixlen == 24
        assert not any(chosen.overlaps(net) for net in taken)
    assert network.choose_network([], "a") == network.choose_network([], "a")
    with pytest.raises(LabError, match=r"10\.64\.0\.0/10"):
        network.choose_network([network.Network("10.0.0.0/8")], "a")


def test_links_have_addresses_and_names_of_their_own() -> None:
    net = network.Network("10.70.3.0/24")
    workers = [(f"w{i}", None) for i in range(network.MOST_WORKERS)]
    links = network.plan_links("0a1b2c", net, workers, scheduler=True)
    assert links[0].node == "scheduler"
    assert len({link.address for link in links}) == len(links) == 241
    assert all(ipaddress.ip_address(link.address) in net for link in links)
    assert str(net[1]) not in {link.address for link in links}
    assert max(len(link.veth) for link in links) <= 15
    with pytest.raises(LabError, match="at most 240"):
        network.plan_links("0a1b2c", net, [*workers, ("more", None)], scheduler=False)


def test_a_link_is_made_inside_its_namespace_and_limited_both_ways() -> None:
    (link,) = network.plan_links(
        "x", network.Network("10.70.3.0/24"), [("w", 80_000_000)], scheduler=False
    )
    commands = [" ".join(command) for command in network.link_commands("br", link)]
    assert commands[0] == "ip netns add fpmx-11"
    assert "ip -n fpmx-11 address add 10.70.3.11/24 dev eth0" in commands
    shaped = [command for command in commands if command.startswith("tc")]
    assert [command.split(" root ")[0] for command in shaped] == [
        "tc qdisc add dev fpmx-11",
        "tc -n fpmx-11 qdisc add dev eth0",
    ]
    assert all("rate 80000000bit" in command for command in shaped)


def test_a_burst_holds_two_segments_or_two_milliseconds() -> None:
    assert network.rate_arguments(10**6)[4] == str(2 * 65536)
    assert network.rate_arguments(10**10)[4] == str(2_500_000)


def test_version_1_is_found_by_controller() -> None:
    assert cgroups.find("cpu", V1) == cgroups.Hierarchy("cpu", 1, Path("/sys/fs/cgroup/cpu"))
    assert cgroups.find("memory", V1) == cgroups.Hierarchy(
        "memory", 1, Path("/sys/fs/cgroup/memory")
    )
    assert cgroups.find("io", V1) is None


@pytest.fixture
def unified(tmp_path: Path) -> cgroups.Hierarchy:
    """A folder that looks like version 2's."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("pids\n")
    line = f"30 25 0:26 / {tmp_path} rw,relatime - cgroup2 cgroup2 rw\n"
    found = cgroups.find("cpu", line)
    assert found == cgroups.Hierarchy("cpu", 2, tmp_path)
    assert cgroups.find("hugetlb", line) is None
    return found


def test_version_1_goes_before_version_2(unified: cgroups.Hierarchy) -> None:
    both = V1 + f"32 25 0:28 / {unified.root} rw - cgroup2 cgroup2 rw\n"
    found = cgroups.find("cpu", both)
    assert found is not None
    assert found.version == 1


def test_version_2_hands_controllers_down_and_shares_one_group(unified: cgroups.Hierarchy) -> None:
    memory = cgroups.Hierarchy("memory", 2, unified.root)
    (lab,) = cgroups.groups([unified, memory], "lab")
    assert cgroups.groups([unified, memory], "lab", "w1") == (lab / "w1",)
    cgroups.create(lab, [unified])
    assert lab.is_dir()
    assert (unified.root / "cgroup.subtree_control").read_text() == "+cpu"
    assert cgroups.usable(memory) is None
    with pytest.raises(LabError, match="File exists"):
        cgroups.create(lab, [memory])


def test_quotas_and_weights_in_both_versions() -> None:
    one, two = (cgroups.Hierarchy("cpu", version, Path("/c")) for version in (1, 2))
    group = Path("/c/g")
    assert cgroups.cpu_plan(one, group, 0.25, 0.01) == (
        (group / "cpu.shares", "256"),
        (group / "cpu.cfs_quota_us", "-1"),
        (group / "cpu.cfs_period_us", "10000"),
        (group / "cpu.cfs_quota_us", "2500"),
    )
    assert cgroups.cpu_plan(one, group, None, 0.01) == (
        (group / "cpu.shares", "1024"),
        (group / "cpu.cfs_quota_us", "-1"),
    )
    assert cgroups.cpu_plan(two, group, None, 0.01) == (
        (group / "cpu.weight", "100"),
        (group / "cpu.max", "max 10000"),
    )
    assert cgroups.weight_plan(two, group, 240) == ((group / "cpu.weight", "10000"),)


def test_memory_without_swap_accounting(tmp_path: Path) -> None:
    one = cgroups.Hierarchy("memory", 1, tmp_path)
    assert cgroups.memory_plan(one, tmp_path, 10, 0) == (
        (tmp_path / "memory.limit_in_bytes", "10"),
    )
    (tmp_path / "memory.memsw.limit_in_bytes").touch()
    assert cgroups.memory_plan(one, tmp_path, 10, 5)[1] == (
        tmp_path / "memory.memsw.limit_in_bytes",
        "15",
    )
    assert len(cgroups.memory_plan(one, tmp_path, 10, 0)) == 2


def test_what_the_kernel_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"cannot write '1' to .*missing/file"):
        cgroups.write(((tmp_path / "missing" / "file", "1"),))


def test_memory_is_shared_by_those_without_a_limit() -> None:
    workers = (
        WorkerDefinition("a", memory=200),
        WorkerDefinition("b"),
        WorkerDefinition("c"),
    )
    assert cluster.memory_share(workers, 1000) == 300
    assert cluster.memory_share(workers[:1], 1000) == 0
    with pytest.raises(LabError, match="sum to 200 bytes"):
        cluster.memory_share(workers, 240)


def test_command_lines(tmp_path: Path) -> None:
    worker = WorkerDefinition(
        "w",
        nthreads=2,
        memory=10**9,
        preload=("fpmdask.preload",),
        arguments=("--resources", "A=1"),
    )
    words = cluster.worker_command(worker, "10.64.0.11", "tcp://10.64.0.1:1", tmp_path, 5)
    line = " ".join(words)
    assert "--name w --nthreads 2 --host 10.64.0.11 --memory-limit 1000000000" in line
    assert "--no-nanny --preload fpmdask.preload --resources A=1" in line
    free = WorkerDefinition("f", nanny=True)
    assert "--memory-limit 5 " in " ".join(cluster.worker_command(free, "a", "s", tmp_path, 5))
    assert "--nanny" in cluster.worker_command(free, "a", "s", tmp_path, 5)
    pages = WorkerDefinition("p", memory=10, memory_manager=False)
    assert "--memory-limit 0 " in " ".join(cluster.worker_command(pages, "a", "s", tmp_path, 5))
    lab = LabDefinition("x", (worker,))
    assert "--no-dashboard" in cluster.scheduler_command(lab, "10.64.0.1", tmp_path)
    open_lab = LabDefinition("x", (worker,), dashboard=True)
    assert "10.64.0.1:0" in cluster.scheduler_command(open_lab, "10.64.0.1", tmp_path)


def test_a_worker_has_the_environment_that_a_nanny_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    worker = WorkerDefinition("w", nthreads=2, environment=(("MKL_NUM_THREADS", "1"),))
    lab = LabDefinition("x", (worker,), dask=(("DASK_A", "1"),))
    values = cluster.environment(lab, worker)
    assert values["OMP_NUM_THREADS"] == values["OPENBLAS_NUM_THREADS"] == "2"
    assert values["MKL_NUM_THREADS"] == "1", "the definition has the last word"
    assert values["DASK_A"] == "1"
    assert cluster.environment(lab, None)["OMP_NUM_THREADS"] == "7"
    nanny = dask.config.get("distributed.nanny.pre-spawn-environ")
    assert values["MALLOC_TRIM_THRESHOLD_"] == str(nanny["MALLOC_TRIM_THRESHOLD_"])
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert cluster.environment(lab, worker)["MALLOC_TRIM_THRESHOLD_"] == "131072", "as for a nanny"


def disk() -> tuple[float, float]:
    return (
        config.setting("lab.disk.overhead-seconds"),
        config.setting("lab.disk.seconds-per-byte"),
    )


def test_a_slow_disk_is_a_setting_of_its_worker() -> None:
    slow = WorkerDefinition("w", disk_overhead=0.002, disk_seconds_per_byte=2e-8)
    lab = LabDefinition("x", (slow, WorkerDefinition("plain")))
    set_by = {
        name: value
        for name, value in cluster.environment(lab, slow).items()
        if name not in cluster.environment(lab, lab.workers[1])
    }
    with dask.config.set(dask.config.collect_env(set_by)):
        assert disk() == (0.002, 2e-8)
    assert disk() == (0, 0)


def test_a_throttled_worker_gets_its_quota_and_an_idle_one_is_left_alone() -> None:
    account, tick, running, used = Throttle(0.3, 0.04), 0.004, True, 0.0
    for _ in range(10_000):
        spent = tick if running else 0.0
        used += spent
        running = account.step(elapsed=tick, used=spent)
    assert used == pytest.approx(0.3 * 40, rel=0.01)
    idle = Throttle(0.1, 0.04)
    assert all(idle.step(elapsed=tick, used=0.0) for _ in range(100))
    assert idle.step(elapsed=tick, used=0.004), "a period's earnings were saved"
    assert not idle.step(elapsed=tick, used=0.004), "and no more"
