"""`Balancer.sort_records` on processes, of files that URLs name."""

import pytest
from distributed import Client, LocalCluster

import fpmdask
from fpmdask.records import verify, write_records

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(processes=True, **options) as cluster, Client(cluster) as client:
        yield client


@pytest.mark.parametrize("named", ["each", "by a glob"])
def test_files_of_urls_are_sorted_into_a_folder_of_a_url(client, tmp_path, named):
    written = write_records(tmp_path / "in", [30_000, 0, 20_000], kind="skewed", seed=7)
    each = [f"file://{path}" for path in written.paths]
    sources = each if named == "each" else f"file://{tmp_path}/in/records-*"
    target = f"file://{tmp_path}/out"
    balancer = fpmdask.Balancer(client)
    found = balancer.sort_records(sources, target)
    assert (found.records, found.checksum) == (written.records, written.checksum)
    checked = verify(target, records=written.records, checksum=written.checksum)
    assert checked.ok, checked.problems
    assert verify(str(tmp_path / "out"), checksum=written.checksum).parts == len(found.parts)
    shares = balancer.report.shares
    assert len(shares) == 2
    assert sum(share["units"] for share in shares) == written.records
