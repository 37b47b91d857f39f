"""Tasks before and after a sort of records, called directly; what the client asks and shows."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fpmdask.apps.records.client import SortedRecords, request
from fpmdask.apps.records.worker import survey
from fpmdask.errors import RecordsError
from fpmdask.records import write_records
from fpmdask.records.files import Folder

WRITING = "another sort is writing into this target"
SUMS = [0] * 25
NOBODY = 65534


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    """A target that is not there yet."""
    if request.param == "local":
        yield Folder(str(tmp_path / "out"))
        return
    found = Folder("memory://surveyed")
    yield found
    if found.fs.exists(found.path):
        found.fs.rm(found.path, recursive=True)


@pytest.fixture
def look(tmp_path):
    """Return what a worker's survey of sources and a target answers."""
    worker = SimpleNamespace(local_directory=str(tmp_path))

    def look(sources, target):
        order = {"sources": sources, "target": str(target)}
        return survey._survey(SimpleNamespace(worker=worker), order)

    return look


def job(run, **changes):
    return {
        "format": survey.FORMAT,
        "version": survey.VERSION,
        "identity": "these files",
        "run": run,
        "checksums": True,
        "parts": None,
        "splitters": [],
    } | changes


def claim(folder, noted, before):
    order = {"target": folder.url, "job": noted, "before": before, "run": noted["run"]}
    return survey._claim(order)["done"]


def part(number, records=1):
    return {
        "name": survey.part_name(number),
        "records": records,
        "nbytes": records * 100,
        "checksum": "0",
        "first": "00" * 10,
        "last": "00" * 10,
    }


def finish(folder, run, parts):
    manifest = {
        "format": survey.FORMAT,
        "target": folder.url,
        "records": sum(each["records"] for each in parts),
        "checksum": "0",
        "parts": tuple(parts),
    }
    order = {"target": folder.url, "manifest": manifest, "run": run}
    return survey._refusing(lambda: survey._finish(order))


def write_part(folder, number, records=1):
    with folder.writing(survey.part_name(number)) as write:
        write(np.zeros((records, 100), np.uint8))


def test_of_two_sorts_that_have_seen_no_job_one_gets_the_target(folder):
    assert claim(folder, job("a"), None) == {}
    with pytest.raises(RecordsError, match=WRITING):
        claim(folder, job("b"), None)
    assert folder.read_json(survey.JOB)["run"] == "a"
    assert claim(folder, job("a"), None) == {}  # the worker that did it first was lost
    assert [*folder.names()] == [survey.JOB]


def test_of_many_that_claim_at_once_one_gets_the_target(tmp_path):
    folder = Folder(str(tmp_path / "out"))

    def gets_it(run):
        order = {"target": folder.url, "job": job(run), "before": None, "run": run}
        return "done" in survey._refusing(lambda: survey._claim(order))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(gets_it, map(str, range(50)))) == 1
    assert os.listdir(tmp_path / "out") == [survey.JOB]


def test_a_job_is_taken_up_only_if_it_is_the_one_that_was_seen(folder):
    claim(folder, job("a"), None)
    assert claim(folder, job("b"), "a") == {}
    with pytest.raises(RecordsError, match=WRITING):
        claim(folder, job("c"), "a")
    assert claim(folder, job("b"), "a") == {}
    assert folder.read_json(survey.JOB)["run"] == "b"
    folder.remove(survey.JOB)
    with pytest.raises(RecordsError, match=WRITING):
        claim(folder, job("c"), "b")


def test_a_plan_is_noted_only_by_the_run_that_has_the_target(folder):
    claim(folder, job("a"), None)
    survey.note(folder, job("a", parts=[1]))
    assert folder.read_json(survey.JOB)["parts"] == [1]
    claim(folder, job("b"), "a")
    for _ in range(2):
        with pytest.raises(RecordsError, match=WRITING):
            survey.note(folder, job("a", parts=[2]))
        assert folder.names().keys() <= {survey.JOB}
        folder.remove(survey.JOB)


def test_only_the_run_that_has_the_target_finishes_it(folder):
    claim(folder, job("a", parts=[1]), None)
    write_part(folder, 0)
    assert WRITING in finish(folder, "b", [part(0)])["refused"]
    write_part(folder, 1)
    refused = finish(folder, "a", [part(0)])["refused"]
    assert "part-00001 is not of this sort" in refused
    assert WRITING in refused
    assert survey.MANIFEST not in folder.names()
    folder.remove("part-00001")
    for name in (".part-00000.json", f"{survey.JOB}.x.tmp"):
        folder.write_json(name, {})
    assert finish(folder, "a", [part(0)]) == {}
    assert sorted(folder.names()) == ["manifest.json", "part-00000"]
    assert finish(folder, "a", [part(0)]) == {}  # the worker that did it first was lost
    assert WRITING in finish(folder, "a", [])["refused"]


def test_what_a_claim_that_was_stopped_leaves_is_no_content(look, tmp_path):
    folder = Folder(str(tmp_path / "out"))
    claim(folder, job("a"), None)
    (tmp_path / "out" / survey.JOB).rename(tmp_path / "out" / f"{survey.JOB}.x.tmp")
    assert look([], folder.url)["names"] == {}
    (tmp_path / "out" / ".other.tmp").touch()
    assert look([], folder.url)["names"] == {".other.tmp": 0}


def test_the_temporary_of_a_job_is_known_as_such(tmp_path):
    folder = Folder(str(tmp_path))
    with folder.writing(survey.JOB):
        (name,) = os.listdir(tmp_path)
        assert survey._is_temporary(name)


def test_a_file_that_two_sources_name_is_refused(look, tmp_path):
    written = write_records(tmp_path / "in", [1, 1])
    found = look(list(written.paths), tmp_path / "out")
    assert [path for path, *_ in found["files"]] == list(written.paths)
    with pytest.raises(RecordsError, match="records-00001 is named twice"):
        look([*written.paths, str(tmp_path / "in" / "*1")], tmp_path / "out")


def test_a_target_among_the_sources_can_be_called_again(look, tmp_path):
    written = write_records(tmp_path / "in", [1])
    (tmp_path / "in" / "out").mkdir()
    found = look([str(tmp_path / "in" / "*")], tmp_path / "in" / "out")
    assert [path for path, *_ in found["files"]] == list(written.paths)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": 3},
        {"parts": [-1]},
        {"splitters": ["xyz"]},
        {"splitters": None},
        {"identity": None},
        {"run": 5},
        {"checksums": "no"},
    ],
)
def test_a_broken_job_is_none(look, folder, change):
    whole = job("a", parts=[3, 0], splitters=["0f" * 10])
    folder.make()
    folder.write_json(survey.JOB, whole)
    assert look([], folder.url)["job"] == whole
    folder.write_json(survey.JOB, whole | change)
    assert look([], folder.url)["job"] is None
    other = whole | change | {"version": 99}
    folder.write_json(survey.JOB, other)
    assert look([], folder.url)["job"] == other


@pytest.mark.parametrize(
    "change",
    [
        {"job": "others"},
        {"checksums": None},
        {"checksums": False},
        {"checksum": None},
        {"checksum": 5},
        {"records": "1"},
        {"nbytes": 5},
        {"first": "zz"},
        {"name": "part-00001"},
        {"sums": SUMS[1:]},
        {"sums": [-1, *SUMS[1:]]},
        {"sums": None},
    ],
)
def test_a_part_whose_side_file_is_broken_is_not_finished(folder, change):
    whole = part(0) | {"job": "these files", "checksums": True, "sums": SUMS}
    noted = job("a", parts=[1])
    claim(folder, noted, None)
    write_part(folder, 0)
    side = survey.side_name(0)
    folder.write_json(side, whole)
    assert claim(folder, noted, "a") == {0: whole}
    for broken in (whole | change, {}, [], 3, None):
        folder.write_json(side, broken)
        assert claim(folder, noted, "a") == {}


def asked(sources, target="/out"):
    return request(sources, target, None, True)


def test_sources_are_any_paths(tmp_path):
    some = ["/b", "/a", "s3://x/y"]
    for sources in (some, tuple(some), iter(some), (path for path in some)):
        assert asked(sources)["sources"] == some
    assert asked(set(some))["sources"] == sorted(some)
    assert asked(Path("/a"))["sources"] == asked("/a")["sources"] == ["/a"]
    assert asked("a::b")["sources"] == [os.path.abspath("a::b")]
    for wrong in (b"/a", [b"/a"], 3, None):
        with pytest.raises(RecordsError, match="give a path"):
            asked(wrong)
    with pytest.raises(RecordsError, match="sources is empty"):
        asked(iter(()))


def test_names_that_are_not_utf8_are_refused_at_once():
    for arguments in (("/odd\udcff",), ("/a", "s3://odd\udcff")):
        with pytest.raises(RecordsError, match=r"odd\\udcff' is not UTF-8"):
            asked(*arguments)


def test_a_manifest_is_checked_and_escaped():
    manifest = {"target": "/<b>", "records": 1, "checksum": None, "parts": [part(0)]}
    found = SortedRecords.from_manifest(manifest)
    assert found.paths == ["/<b>/part-00000"]
    assert "/&lt;b&gt;" in found._repr_html_()
    with pytest.raises(RecordsError, match="in part 0 first is '<i>'"):
        SortedRecords.from_manifest(manifest | {"parts": [part(0) | {"first": "<i>"}]})
    odd = SortedRecords("/x", 1, None, (dict.fromkeys(part(0), "<i>"),))
    assert "<i>" not in odd._repr_html_()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_may_not_be_written_into_is_refused():
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        os.seteuid(NOBODY)
        try:
            with pytest.raises(RecordsError, match=f"new cannot be written: {base} is not"):
                Folder(f"{base}/new").check_writable()
        finally:
            os.seteuid(0)
        Folder(f"{base}/new").check_writable()
