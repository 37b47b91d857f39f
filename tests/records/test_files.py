"""Files of records: written, found, verified; and what is refused."""

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from fpmdask.errors import RecordsError
from fpmdask.records import KINDS, verify, write_records
from fpmdask.records.files import Folder, NotHere, find, read
from fpmdask.records.format import RECORD_NBYTES, File, order


def contents(written):
    return np.concatenate(
        [np.frombuffer(Path(path).read_bytes(), np.uint8) for path in written.paths]
    ).reshape(-1, RECORD_NBYTES)


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_the_same_for_any_threads_and_their_checksum_is_right(tmp_path, kind):
    sizes = [70_000, 0, 3]
    one = write_records(tmp_path / "a", sizes, kind=kind, seed=5, threads=1)
    many = write_records(tmp_path / "b", sizes, kind=kind, seed=5, threads=4)
    records = contents(one)
    np.testing.assert_array_equal(records, contents(many))
    assert one.checksum == many.checksum == sum(map(zlib.crc32, records))
    assert one.records == len(records) == sum(sizes)
    other = write_records(tmp_path / "c", sizes, kind=kind, seed=6)
    assert other.checksum != one.checksum


def test_kinds_are_what_they_say(tmp_path):
    keys = {
        kind: contents(write_records(tmp_path / kind, [20_000], kind=kind))[:, :10]
        for kind in KINDS
    }
    assert keys["uniform"].min() == 0
    assert keys["uniform"].max() == 255
    assert keys["ascii"].min() >= 32
    assert keys["ascii"].max() < 127
    common = (keys["skewed"][:, :7] == np.frombuffer(b"fpmdask", np.uint8)).all(1)
    assert 0.48 < common.mean() < 0.52
    assert len(np.unique(keys["duplicates"], axis=0)) == 1000


@pytest.mark.parametrize(
    "options", [{"kind": "sorted"}, {"seed": -1}, {"seed": 1.5}, {"threads": 0}, {"sizes": []}]
)
def test_bad_arguments_of_the_writer_are_refused(tmp_path, options):
    sizes = options.pop("sizes", [10])
    with pytest.raises(RecordsError):
        write_records(tmp_path, sizes, **options)
    with pytest.raises(RecordsError, match="sizes"):
        write_records(tmp_path, [-1])
    assert not os.listdir(tmp_path)


def test_nothing_is_overwritten(tmp_path):
    write_records(tmp_path, [10])
    with pytest.raises(RecordsError, match="exists"):
        write_records(tmp_path, [10])


def test_files_are_found_by_path_and_glob_and_url(tmp_path):
    written = write_records(tmp_path, [10, 20])
    assert [file.records for file in find([str(tmp_path / "records-*")])] == [10, 20]
    assert [file.path for file in find([f"file://{written.paths[1]}"])] == [written.paths[1]]
    with pytest.raises(NotHere, match="no file matches"):
        find([str(tmp_path / "nothing-*")])
    with pytest.raises(NotHere, match="there is no file"):
        find([str(tmp_path / "nothing")])
    with pytest.raises(RecordsError, match="is a directory"):
        find([str(tmp_path)])
    with pytest.raises(RecordsError, match="twice"):
        find([written.paths[0], str(tmp_path / "*")])
    with pytest.raises(RecordsError, match="cannot be opened"):
        find(["nosuchprotocol://x/y"])


def test_a_truncated_file_is_named_with_its_length(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(1050))
    with pytest.raises(RecordsError, match=rf"{path} has 1050 bytes.*10 records.*50 bytes more"):
        find([str(path)])


def test_a_file_that_shrinks_is_noticed(tmp_path):
    path = tmp_path / "shrinks"
    path.write_bytes(bytes(500))
    with pytest.raises(RecordsError, match="ends after 500 of 1000 bytes"):
        read(File(str(path), 1000, ""), 2, np.empty((5, 100), np.uint8))


def test_other_file_systems_are_read_and_written():
    folder = Folder("memory://somewhere/deep")
    folder.make()
    data = np.random.default_rng(0).integers(0, 256, (30, 100), np.uint8)
    with folder.writing("part-00000") as write:
        write(data[:10])
        write(data[10:])
    assert folder.names() == {"part-00000": 3000}
    (file,) = find(["memory://somewhere/deep/part-*"])
    found = np.empty((7, 100), np.uint8)
    read(file, 5, found)
    np.testing.assert_array_equal(found, data[5:12])
    folder.remove("part-00000")
    folder.remove("part-00000")
    assert folder.names() == {}


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    folder = Folder(str(tmp_path))

    def begin():
        with folder.writing("part-00000") as write:
            write(np.zeros((3, 100), np.uint8))
            assert "part-00000" not in os.listdir(tmp_path)
            raise KeyError

    with pytest.raises(KeyError):
        begin()
    assert not os.listdir(tmp_path)


@pytest.fixture
def target(tmp_path):
    """Records that are sorted into two parts by NumPy, with their manifest."""
    records = contents(write_records(tmp_path / "in", [200_000], seed=3))
    records = records[order(records)]
    folder = Folder(str(tmp_path / "out"))
    folder.make()
    parts = []
    for number, some in enumerate(np.array_split(records, 2)):
        with folder.writing(f"part-{number:05d}") as write:
            write(np.ascontiguousarray(some))
        parts.append({"name": f"part-{number:05d}", "records": len(some)})
    total = sum(map(zlib.crc32, records))
    folder.write_json(
        "manifest.json", {"records": 200_000, "checksum": f"{total:x}", "parts": parts}
    )
    return tmp_path / "out", total


def test_the_verifier_reads_every_record(target):
    path, total = target
    found = verify(str(path), records=200_000, checksum=total)
    assert found.ok
    assert (found.parts, found.records, found.checksum) == (2, 200_000, total)
    assert verify(f"file://{path}").to_json()["ok"]
    assert not verify(str(path), records=1).ok
    assert not verify(str(path), checksum=1).ok


def test_the_verifier_finds_a_changed_byte(target):
    path, _ = target
    with open(path / "part-00001", "r+b") as file:
        file.seek(90_050 * 100 + 50)
        byte = file.read(1)
        file.seek(90_050 * 100 + 50)
        file.write(bytes([byte[0] ^ 1]))
    (problem,) = verify(str(path)).problems
    assert "checksum" in problem


@pytest.mark.parametrize("at", [1, 65_535, 65_536, 65_537, 99_998])
def test_the_verifier_finds_two_records_that_are_exchanged(target, at):
    path, _ = target
    data = bytearray((path / "part-00000").read_bytes())
    one, two = data[at * 100 : at * 100 + 100], data[at * 100 + 100 : at * 100 + 200]
    data[at * 100 : at * 100 + 200] = two + one
    (path / "part-00000").write_bytes(data)
    (problem,) = verify(str(path)).problems
    assert f"record {at + 1} has a key less" in problem


def test_the_verifier_finds_parts_in_the_wrong_order_or_missing(target):
    path, _ = target
    (path / "part-00000").rename(path / "part-00002")
    problems = verify(str(path)).problems
    assert any("begins with a key less" in problem for problem in problems)
    assert any("part-00000: no records" in problem for problem in problems)
    (path / "part-00002").unlink()
    assert any("100000 records" in problem for problem in verify(str(path)).problems)
    (path / "manifest.json").unlink()
    assert any("no manifest.json" in problem for problem in verify(str(path)).problems)
    (path / "part-00001").unlink()
    with pytest.raises(NotHere):
        verify(str(path))
