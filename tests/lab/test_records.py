"""Records on processes: more than memory holds, workers that die or hang, disks that are full."""

import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

import fpmdask
from fpmdask.errors import RecordsError
from fpmdask.lab.cluster import registered
from fpmdask.records import verify, write_records
from tests.resident import peak

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(240)]


@contextlib.contextmanager
def processes(**options):
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", **options
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_four_times_the_clusters_memory_is_sorted_within_it(tmp_path):
    limit = 250_000_000
    written = write_records(tmp_path / "in", [10_000_000, 4_000_000, 6_000_000], kind="skewed")
    with processes(memory_limit=limit) as client:
        balancer = fpmdask.Balancer(client)
        found = balancer.sort_records(tmp_path / "in" / "*", tmp_path / "out", checksum=False)
        assert found.records * 100 >= 4 * 2 * limit
        assert max(client.run(peak).values()) < 0.85 * limit
        assert not balancer.report.left_out
        for share in balancer.report.shares:
            assert share["nbytes_spilled"] > 0.8 * share["records_read"] * 100
    shutil.rmtree(tmp_path / "in")
    assert verify(str(tmp_path / "out"), records=20_000_000, checksum=written.checksum).ok


def unnamed(folder):
    """Return the files of a folder that processes have open and that have no name any more."""
    found = []
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            path = os.readlink(descriptor)
            if path.startswith(str(folder)) and path.endswith(" (deleted)"):
                found.append(path)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_what_a_killed_worker_has_spilled_goes_with_it(tmp_path, until):
    written = write_records(tmp_path / "in", [2_500_000, 2_500_000])
    folder, spilled = tmp_path / "scratch", []

    def strike(event):
        if event["event"] == "step" and event["step"] == "exchange" and not spilled:
            spilled.extend(unnamed(folder))
            os.kill(next(iter(pids.values())), signal.SIGKILL)

    with processes(memory_limit=500_000_000, local_directory=str(folder)) as client:
        pids = client.run(os.getpid)
        balancer = fpmdask.Balancer(client, progress=strike)
        found = balancer.sort_records(written.paths, tmp_path / "out")
        assert found.checksum == written.checksum
        assert spilled
        # the other worker drops its own once it hears that the run has ended
        until(lambda: not unnamed(folder), "what was spilled to go")
        named = [path for path in folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in named) < 1_000_000  # Dask's locks
    assert verify(str(tmp_path / "out"), checksum=written.checksum).ok


EXCHANGE = ["sort", "count", "plan", "exchange"]  # steps from which a lost worker's share moves


@pytest.mark.parametrize(
    ("step", "how"),
    [
        *((step, signal.SIGKILL) for step in ["claim", *EXCHANGE[::2], "finish"]),
        *(
            pytest.param(step, signal.SIGKILL, marks=pytest.mark.thorough)
            for step in ["survey", *EXCHANGE[1::2]]
        ),
        (EXCHANGE[0], signal.SIGSTOP),
        *(pytest.param(step, signal.SIGSTOP, marks=pytest.mark.thorough) for step in EXCHANGE[1:]),
    ],
)
def test_a_worker_that_dies_or_hangs_costs_its_part_only(tmp_path, step, how):
    written = write_records(tmp_path / "in", [1_000_000, 500_000], kind="duplicates")
    with processes() as client:
        pids = client.run(os.getpid)
        hit = []

        def strike(event):
            if event["event"] == "step" and event["step"] == step and not hit:
                hit.append(next(iter(pids.values())))
                os.kill(hit[0], how)

        try:
            with dask.config.set({"fpmdask.hang": "2s"}):
                balancer = fpmdask.Balancer(client, progress=strike)
                found = balancer.sort_records(written.paths, tmp_path / "out")
        finally:
            if how == signal.SIGSTOP:
                os.kill(hit[0], signal.SIGCONT)
        units = [share["units"] for share in balancer.report.shares]
        if step in EXCHANGE:
            # the other did all (a new process in the place of a killed one waits for the next sort)
            assert units == [1_500_000]
        assert sum(units) == 1_500_000
        assert found.checksum == written.checksum
    assert verify(str(tmp_path / "out"), records=1_500_000, checksum=written.checksum).ok


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("victim", ["who has finished a part", "who is at its first part"])
def test_a_worker_killed_while_parts_are_written_costs_what_is_not_finished(
    tmp_path, until, victim
):
    written = write_records(tmp_path / "in", [900_000, 600_000], kind="skewed")
    folder, target = tmp_path / "scratch", tmp_path / "out"
    finished, steps = {}, []

    def strike(event):
        if event["event"] == "step":
            steps.append(event["step"])
        if event["event"] == "part":
            assert event["part"] not in finished
            if not finished:
                teller = victim == "who has finished a part"
                [pid] = [pid for name, pid in pids if (name == event["worker"]) == teller]
                os.kill(pid, signal.SIGKILL)
            finished[event["part"]] = (target / event["part"]).stat().st_mtime_ns

    with processes(memory_limit=300_000_000, local_directory=str(folder)) as client:
        workers = registered(client)
        pids = [(str(workers[at]["name"]), pid) for at, pid in client.run(os.getpid).items()]
        balancer = fpmdask.Balancer(client, progress=strike)
        found = balancer.sort_records(tmp_path / "in" / "*", target)
        assert steps.count("exchange") == 2
        assert found.records == 1_500_000
        assert found.checksum == written.checksum
        [share] = balancer.report.shares  # of the worker that is left, and of what was missing
        assert 0 < share["units"] < 1_500_000
        assert share["nbytes_spilled"] > 0
        until(lambda: not unnamed(folder), "what was spilled to go")
    assert {path.name: path.stat().st_mtime_ns for path in target.glob("part-*")} == finished
    assert {path.name for path in target.iterdir()} == {*finished, "manifest.json"}
    assert verify(str(target), records=1_500_000, checksum=written.checksum).ok


# What another process runs: a cluster of its own, whose processes are all killed.
CLUSTER = """
import sys
from distributed import Client, LocalCluster
import fpmdask

def told(event):
    if event["event"] == "part":
        print("part", flush=True)

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        balancer = fpmdask.Balancer(Client(cluster), progress=told)
        balancer.sort_records(sys.argv[1], sys.argv[2])
"""


def test_another_cluster_takes_up_what_a_killed_one_has_finished(tmp_path):
    written = write_records(tmp_path / "in", [2_000_000, 1_000_000])
    script, target = tmp_path / "cluster.py", tmp_path / "out"
    script.write_text(CLUSTER)
    command = [sys.executable, str(script), str(tmp_path / "in" / "*"), str(target)]
    options = {
        "stdout": subprocess.PIPE,
        "start_new_session": True,
        "env": {**os.environ, "DASK_TEMPORARY_DIRECTORY": str(tmp_path / "scratch")},
    }
    with subprocess.Popen(command, **options) as running:
        try:
            assert running.stdout.readline() == b"part\n"
        finally:
            os.killpg(running.pid, signal.SIGKILL)
    finished = {path: path.stat().st_mtime_ns for path in target.glob("part-*")}
    assert finished
    assert not (target / "manifest.json").exists()
    with processes() as client:
        found = fpmdask.Balancer(client).sort_records(tmp_path / "in" / "*", target)
        assert found.checksum == written.checksum
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert verify(str(target), records=3_000_000, checksum=written.checksum).ok


def test_a_target_without_room_is_refused_at_once(tmp_path, small_disk):
    written = write_records(tmp_path / "in", [300_000])
    with processes() as client, pytest.raises(RecordsError, match=r"room for 20\.00 MiB"):
        fpmdask.Balancer(client).sort_records(written.paths, small_disk / "out")
    assert not list(small_disk.iterdir())


def test_a_disk_that_fills_meanwhile_is_said_and_loses_nothing(tmp_path, small_disk):
    written = write_records(tmp_path / "in", [180_000])

    def fill(event):
        if event["event"] == "step" and event["step"] == "claim":
            (small_disk / "something").write_bytes(bytes(10_000_000))

    with processes() as client:
        balancer = fpmdask.Balancer(client, progress=fill)
        with pytest.raises(RecordsError, match="no space is left on its disk"):
            balancer.sort_records(written.paths, small_disk / "out")
        (small_disk / "something").unlink()
        balancer.progress = None
        found = balancer.sort_records(written.paths, small_disk / "out")
        assert found.checksum == written.checksum
    assert verify(str(small_disk / "out"), checksum=written.checksum).ok


def test_a_spill_disk_without_room_is_said(tmp_path, small_disk):
    written = write_records(tmp_path / "in", [1_500_000])
    folder = str(small_disk)
    with processes(memory_limit=250_000_000, local_directory=folder) as client:
        balancer = fpmdask.Balancer(client)
        with pytest.raises(RecordsError, match=r"1500000 records do not fit .* room for"):
            balancer.sort_records(written.paths, tmp_path / "out", checksum=False)
    assert not (tmp_path / "out").exists()


def test_a_spill_disk_that_fills_meanwhile_is_said_and_loses_nothing(tmp_path, small_disk, until):
    subprocess.run(["mount", "-o", "remount,size=150m", str(small_disk)], check=True)
    written = write_records(tmp_path / "in", [600_000, 400_000])
    before = {path: Path(path).read_bytes() for path in written.paths}
    ballast, steps = small_disk / "something", []

    def fill(event):
        steps.append(event.get("step"))
        if steps[-1] == "sort":
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free)

    with processes(memory_limit=225_000_000, local_directory=str(small_disk)) as client:
        balancer = fpmdask.Balancer(client, progress=fill)
        with pytest.raises(RecordsError, match=r"/disk/.* cannot hold what is spilled: no space"):
            balancer.sort_records(written.paths, tmp_path / "out")
        assert [step for step in steps if step][-1] == "sort", steps
        assert {path: Path(path).read_bytes() for path in written.paths} == before
        assert not list((tmp_path / "out").glob("part-*"))
        until(lambda: not unnamed(small_disk), "what was spilled to go")
        ballast.unlink()
        balancer.progress = None
        found = balancer.sort_records(written.paths, tmp_path / "out")
        assert found.checksum == written.checksum
        assert sum(share["nbytes_spilled"] for share in balancer.report.shares) > 20_000_000
    assert verify(str(tmp_path / "out"), records=1_000_000, checksum=written.checksum).ok
