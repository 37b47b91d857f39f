"""The recipes in deploy/ are started as they stand, on loopback, and used."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import zarr
from distributed import Client, Security

import fpmdask
from fpmdask.lab.cluster import registered
from fpmdask.records import verify, write_records
from fpmdask.timing import TimingPolicy

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
ANY_DASHBOARD = ("--dashboard-address", "127.0.0.1:0")
SECONDS = 60
QUICK = TimingPolicy(min_seconds=0.002, min_repetitions=2, max_repetitions=5)


class Deployment:
    """A script of deploy/ that runs, with everything that it started."""

    def __init__(self, folder: Path, script: str, *arguments: str) -> None:
        binaries = Path(sys.executable).parent
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["bash", str(DEPLOY / script), *arguments, "--port", "0", *ANY_DASHBOARD],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"},
            )

    def address(self) -> str:
        """Wait for the script to say where clients find the scheduler."""
        deadline = time.monotonic() + SECONDS
        while (found := re.search("^scheduler at: (.*)", self.log.read_text(), re.M)) is None:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found.group(1)

    def stop(self) -> None:
        """Ask the script to end; check that nothing of it is left."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(SECONDS) == 128 + signal.SIGTERM, self.log.read_text()
            _, left = psutil.wait_procs(started, timeout=5)
            assert not left, f"{left} outlived {self.process.args}"
        finally:
            for process in started:
                if process.is_running():
                    process.kill()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, "plain.sh")
    yield deployment
    deployment.stop()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return tmp_path / "certificates"


@pytest.fixture
def tls(tmp_path: Path, certificates: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, "tls.sh", str(certificates))
    yield deployment
    deployment.stop()


def use(client: Client) -> None:
    """Partition and multiply on the script's two workers."""
    client.wait_for_workers(2, timeout=SECONDS)
    resources = {w["name"]: w["resources"] for w in registered(client).values()}
    assert resources == {"large": {"fpm": 1}, "small": {"fpm": 1}}, "the preload gives them"

    balancer = fpmdask.Balancer(client)
    found = balancer.partition(
        lambda units: np.sort(np.ones(1000 * units)), 100, max_rounds=2, timing=QUICK
    )
    assert sum(found.values()) == 100
    assert set(found.workers) == {"large", "small"}

    a = np.arange(300 * 200.0).reshape(300, 200)
    c = balancer.matmul(a, a.T, max_rounds=2, timing=QUICK)
    np.testing.assert_allclose(client.compute(c, sync=True), a @ a.T)


def test_plain_recipe_serves_a_balancer(plain: Deployment) -> None:
    with Client(plain.address(), set_as_default=False) as client:
        assert client.scheduler.address.startswith("tcp://127.0.0.1")
        use(client)


def test_readme_example_runs(plain: Deployment, tmp_path: Path) -> None:
    readme = (DEPLOY.parent / "README.md").read_text()
    example = "\n".join(re.findall("```python\n(.*?)```", readme, re.S))
    for name, shape in (("a", (60, 40)), ("b", (40, 50))):
        made = zarr.create_array(
            str(tmp_path / f"{name}.zarr"), shape=shape, chunks=(16, 16), dtype="f8"
        )
        made[:] = np.ones(shape)
    trips = pd.DataFrame({"city": ["b", "a", "b"] * 50, "fare": np.arange(150.0)})
    trips.to_parquet(tmp_path / "trips.parquet")
    written_records = write_records(tmp_path / "unsorted", [600, 400])
    for written, tried in {
        "tcp://scheduler:8786": plain.address(),
        "16_384": "512",
        "chunks=2048": "chunks=200",
        "10_000_000": "10_000",
        "100_000_000": "100_000",
        "4_000_000": "4_000",
        "run.json": str(tmp_path / "run.json"),
        '"models"': repr(str(tmp_path / "models")),
        "a.zarr": str(tmp_path / "a.zarr"),
        "b.zarr": str(tmp_path / "b.zarr"),
        "c.zarr": str(tmp_path / "c.zarr"),
        "(100_000, 80_000)": "(60, 50)",
        "trips.parquet": str(tmp_path / "trips.parquet"),
        "/shared/unsorted/*.dat": str(tmp_path / "unsorted" / "*"),
        "/shared/sorted": str(tmp_path / "sorted"),
        "(4096, 4096)": "(16, 16)",
    }.items():
        assert written in example
        example = example.replace(written, tried)
    with Client(plain.address(), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=SECONDS)
    printed = subprocess.run(
        [sys.executable, "-c", example],
        env={**os.environ, "DASK_FPMDASK__MAX_ROUNDS": "2"},
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    ).stdout
    assert "large" in printed
    assert (tmp_path / "run.json").exists()
    assert (zarr.open_array(str(tmp_path / "c.zarr"), mode="r")[:] == 40).all()
    assert verify(str(tmp_path / "sorted"), records=1000, checksum=written_records.checksum).ok


def test_tls_recipe_serves_a_balancer(tls: Deployment, certificates: Path) -> None:
    address = tls.address()
    security = Security(
        tls_ca_file=str(certificates / "ca.pem"),
        tls_client_cert=str(certificates / "node.pem"),
        tls_client_key=str(certificates / "node-key.pem"),
        require_encryption=True,
    )
    with Client(address, security=security, set_as_default=False) as client:
        assert client.scheduler.address.startswith("tls://127.0.0.1")
        use(client)


def test_certificates_are_private_strictly_valid_and_never_overwritten(certificates: Path) -> None:
    make = ["bash", str(DEPLOY / "certificates.sh"), str(certificates)]
    subprocess.run(make, check=True)
    for key in certificates.glob("*-key.pem"):
        assert key.stat().st_mode & 0o077 == 0, f"others can read {key.name}"
    # what Python's ssl asks for since 3.13
    subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", "node.pem"],
        cwd=certificates,
        check=True,
        capture_output=True,
    )
    before = (certificates / "ca.pem").read_bytes()
    again = subprocess.run(make, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "give an empty folder" in again.stderr
    assert (certificates / "ca.pem").read_bytes() == before
