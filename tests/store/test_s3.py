"""A store on object storage: `s3://`, served by moto in a process of its own.

moto's botocore and that of s3fs exclude each other, so that moto has a virtual environment of its
own; `.ci/run` makes it.
"""

import os
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.error import URLError
from urllib.request import urlopen
from uuid import uuid4

import pytest

from fpmdask.storage import Folder
from fpmdask.store import ModelStore
from tests.coordinator.test_stored_models import measured
from tests.store.test_store import check_store, known

SERVER = shutil.which(os.environ.get("FPMDASK_MOTO_SERVER", "moto_server"))
SERVED_SECONDS = 30
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        SERVER is None,
        reason="no moto_server: python3 -m venv moto && moto/bin/pip install 'moto[server]', and "
        "FPMDASK_MOTO_SERVER=moto/bin/moto_server",
    ),
]
s3fs = pytest.importorskip("s3fs", reason="s3fs reads s3://: pip install s3fs")


@pytest.fixture(scope="module")
def endpoint():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [SERVER, "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, late = f"http://127.0.0.1:{port}", time.monotonic() + SERVED_SECONDS
    try:
        while True:
            try:
                urlopen(url, timeout=1).close()
                break
            except (URLError, OSError):
                assert server.poll() is None, "moto_server has ended"
                assert time.monotonic() < late, "moto_server does not answer"
                time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def url(endpoint, monkeypatch):
    """Return an empty folder of a bucket; credentials are in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"models-{uuid4().hex[:8]}"
    s3fs.S3FileSystem().mkdir(bucket)
    yield f"s3://{bucket}/of/clusters"
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_store_on_s3_is_one_like_others(url):
    check_store(url)


def test_credentials_and_an_endpoint_can_be_given(url, endpoint, monkeypatch):
    ModelStore(url).save([known()])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    given = ModelStore(url, key="testing", secret="testing", endpoint_url=endpoint)
    assert given.load() == [known()]


def test_what_two_clusters_write_at_once_is_there(url):
    """All write the same document, again and again: the last one of each worker is in it."""

    def save(worker):
        store = ModelStore(url)
        for n in range(1, 6):
            store.save([known(worker, [(100, float(n)), (200, 4.0 * n)])])

    workers = ["alpha", "beta", "gamma"]
    with ThreadPoolExecutor(len(workers)) as threads:
        for done in [threads.submit(save, worker) for worker in workers]:
            done.result()
    last = [(100, 5.0), (200, 20.0)]
    found = sorted(ModelStore(url).load(), key=lambda one: one.worker)
    assert found == [known(worker, last) for worker in workers]


def test_what_has_changed_since_it_was_read_is_not_overwritten(url):
    """One that reads, and writes after another has: without a condition the other's was lost."""
    folder = Folder(url)
    assert folder.tag("a") is None
    assert folder.compare_and_swap("a", b"first", None)
    assert not folder.compare_and_swap("a", b"second", None)
    before = folder.tag("a")
    assert folder.compare_and_swap("a", b"third", before)
    assert not folder.compare_and_swap("a", b"fourth", before)
    assert folder.fs.cat_file(folder.at("a")) == b"third"
    folder.remove("a")
    assert not folder.compare_and_swap("a", b"fifth", before)


def test_the_next_scheduler_begins_with_what_is_on_s3(url):
    first, before = measured(url)
    assert (before, len(first.rounds)) == ([], 2)
    second, before = measured(url)
    assert {replace(one, connected=False).worker for one in before} == set(first.models)
    assert len(second.rounds) == 1
