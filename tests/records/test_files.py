"""Files of records: written, found, verified; and what is refused."""

import errno
import json
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from fpmdask.errors import RecordsError
from fpmdask.rawio import write_at
from fpmdask.records import KINDS, generate, verify, write_records
from fpmdask.records.files import Exists, Folder, NotHere, find, read
from fpmdask.records.format import RECORD_NBYTES, File, order
from fpmdask.records.verify import checked_manifest


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


def test_sizes_are_any_whole_numbers(tmp_path):
    some = [10, 20]
    for n, sizes in enumerate((some, np.array(some), iter(some))):
        assert write_records(tmp_path / str(n), sizes).records == 30
    for wrong in (10, np.array([[1, 2]]), np.array([1.5]), np.array([])):
        with pytest.raises(RecordsError, match="give one number of records"):
            write_records(tmp_path / "no", wrong)


def test_nothing_is_overwritten(tmp_path):
    write_records(tmp_path, [10])
    with pytest.raises(RecordsError, match="exists"):
        write_records(tmp_path, [10])


def test_a_write_that_fails_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor, at, data):
        if at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_at(descriptor, at, data)

    monkeypatch.setattr(generate, "write_at", full)
    with pytest.raises(RecordsError, match=r"cannot write .*in: No space left .* nothing of"):
        write_records(tmp_path / "in", [100, 70_000, 100])
    assert not list((tmp_path / "in").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(RecordsError, match=r"cannot write .*file"):
        write_records(tmp_path / "file", [1])


def test_files_are_data_and_no_programs(tmp_path):
    (path,) = write_records(tmp_path / "in", [1]).paths
    assert not os.stat(path).st_mode & 0o111


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


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff")
    Path(odd).write_bytes(bytes(100))
    for source in (odd, str(tmp_path / "*")):
        with pytest.raises(RecordsError, match=r"odd\\udcff' is not UTF-8") as refused:
            find([source])
        str(refused.value).encode()
    assert Folder(str(tmp_path)).names() == {"odd\\udcff": 100}
    os.unlink(odd)
    with pytest.raises(NotHere) as refused:
        find([odd])
    str(refused.value).encode()


def test_what_is_no_regular_file_is_refused_and_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", tmp_path / "*", "/dev/zero"):
        with pytest.raises(RecordsError, match="is not a regular file"):
            find([str(source)])


def test_a_file_of_no_known_length_is_refused(monkeypatch):
    folder = Folder("memory://unknown")
    folder.write_json("x", "x" * 98)
    original = MemoryFileSystem.info
    monkeypatch.setattr(
        MemoryFileSystem, "info", lambda *arguments: original(*arguments) | {"size": None}
    )
    with pytest.raises(RecordsError, match="the length of /unknown/x is not known"):
        find(["memory://unknown/x"])
    folder.remove("x")


def test_a_literal_name_wins_over_a_glob(tmp_path):
    for name in ("g[1]", "g1", "a::b", "memory::c"):
        (tmp_path / name).write_bytes(bytes(100))
    for name in ("g[1]", "a::b", "memory::c"):
        (file,) = find([str(tmp_path / name)])
        assert file.path == str(tmp_path / name)
        read(file, 0, np.empty((1, 100), np.uint8))
    (tmp_path / "g[1]").unlink()
    assert [file.path for file in find([str(tmp_path / "g[1]")])] == [str(tmp_path / "g1")]
    folder = Folder("memory://literal")
    for name in ("g[1]", "g1"):
        folder.write_json(name, "x" * 98)
    assert [file.path for file in find(["memory://literal/g[1]"])] == ["memory:///literal/g[1]"]
    folder.fs.rm("/literal", recursive=True)


def test_a_glob_leaves_out_directories_and_says_what_link_is_broken(tmp_path):
    written = write_records(tmp_path / "in", [10])
    (tmp_path / "in" / "out").mkdir()
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "in" / "out")
    glob = str(tmp_path / "in" / "*")
    assert [file.path for file in find([glob])] == list(written.paths)
    with pytest.raises(RecordsError, match="is a directory"):
        find([str(tmp_path / "in" / "out")])
    with pytest.raises(NotHere, match="no file matches"):
        find([str(tmp_path / "i*")])
    (tmp_path / "in" / "broken").symlink_to(tmp_path / "gone")
    for source in (glob, str(tmp_path / "in" / "broken")):
        with pytest.raises(NotHere, match=r"broken is a broken link: there is no '.*/gone'"):
            find([source])


def test_a_truncated_file_is_named_with_its_length(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(1050))
    with pytest.raises(RecordsError, match=rf"{path} has 1050 bytes.*10 records.*50 bytes more"):
        find([str(path)])


@pytest.fixture
def unprivileged():
    """Whoever runs the tests may read what everybody may, and no more."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        if user == 0:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(user)


def test_a_file_that_may_not_be_read_is_named(unprivileged):
    path = unprivileged / "secret"
    os.seteuid(os.getuid())
    path.write_bytes(bytes(1000))
    path.chmod(0)
    if os.getuid() == 0:
        os.seteuid(65534)
    with pytest.raises(RecordsError, match=f"{path} cannot be read: Permission denied"):
        find([str(path)])
    with pytest.raises(RecordsError, match=f"{path} cannot be read: Permission denied"):
        read(File(str(path), 1000, ""), 0, np.empty((5, 100), np.uint8))


def test_a_file_that_shrinks_is_noticed(tmp_path):
    path = tmp_path / "shrinks"
    path.write_bytes(bytes(500))
    with pytest.raises(RecordsError, match="it has 500 bytes now and had 1000"):
        read(File(str(path), 1000, ""), 2, np.empty((5, 100), np.uint8))


def test_a_file_that_is_written_again_is_noticed(tmp_path):
    path = tmp_path / "rewritten"
    path.write_bytes(bytes(500))
    (file,) = find([str(path)])
    records = np.empty((5, 100), np.uint8)
    read(file, 0, records)
    os.utime(path, (1.0, 1.0))  # as long as before
    with pytest.raises(RecordsError, match="has changed since it was found: it has 500 bytes now"):
        read(file, 0, records)


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


def test_what_fails_on_the_way_leaves_no_file_elsewhere(monkeypatch):
    folder = Folder("memory://failing")
    closed = []
    # not the file itself: it is being closed by its end, too, which it would not come to
    monkeypatch.setattr(MemoryFile, "close", lambda self: closed.append(True))

    def begin(error):
        with folder.writing("part-00000") as write:
            write(np.zeros((3, 100), np.uint8))
            raise error

    for error, raised in ((KeyError(), KeyError), (OSError("enough"), RecordsError)):
        closed.clear()
        with pytest.raises(raised):
            begin(error)
        assert closed
        assert folder.names() == {}


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_is_made_only_once(tmp_path, monkeypatch, links):
    def no_links(*paths):
        raise PermissionError

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    for folder in (Folder(str(tmp_path)), Folder(f"memory://new-{links}")):
        folder.write_json("x", 1, new=True)
        with pytest.raises(Exists, match="there is a x"):
            folder.write_json("x", 2, new=True)
        assert folder.read_json("x") == 1
        assert [*folder.names()] == ["x"]


@pytest.mark.parametrize("text", ["{", '{"a": "\\udcff"}', "1" + "0" * 30, "[" * 99_999, "\xff"])
def test_what_cannot_be_sent_on_is_no_json(tmp_path, text):
    (tmp_path / "x").write_text(text, encoding="latin-1")
    assert Folder(str(tmp_path)).read_json("x") is None


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
        parts.append(
            {
                "name": f"part-{number:05d}",
                "records": len(some),
                "nbytes": some.nbytes,
                "checksum": f"{sum(map(zlib.crc32, some)):x}",
                "first": some[0, :10].tobytes().hex(),
                "last": some[-1, :10].tobytes().hex(),
            }
        )
    total = sum(map(zlib.crc32, records))
    manifest = {
        "format": "fpmdask.records",
        "target": folder.url,
        "records": 200_000,
        "checksum": f"{total:x}",
        "parts": parts,
    }
    folder.write_json("manifest.json", manifest)
    return tmp_path / "out", total


def test_the_verifier_reads_every_record(target):
    path, total = target
    found = verify(str(path), records=200_000, checksum=total)
    assert found.ok
    assert (found.parts, found.records, found.checksum) == (2, 200_000, total)
    assert verify(f"file://{path}").to_json()["ok"]
    assert not verify(str(path), records=1).ok
    assert not verify(str(path), checksum=1).ok


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_the_verifier_has_at_least_one_thread(target, threads):
    with pytest.raises(RecordsError, match=r"threads = .*; give an int >= 1"):
        verify(str(target[0]), threads=threads)


def flip(path, at):
    """Change one byte of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_the_verifier_finds_a_changed_byte(target):
    path, _ = target
    flip(path / "part-00001", 90_050 * 100 + 50)
    (problem,) = verify(str(path)).problems
    assert "checksum" in problem


@pytest.mark.slow
@pytest.mark.parametrize("known", ["by the manifest", "by the caller"])
def test_the_verifier_finds_a_changed_byte_anywhere(target, known):
    """In the key and the payload of the first, a middle and the last record of each part."""
    path, total = target
    checksum = None
    if known == "by the caller":
        checksum = total
        manifest = json.loads((path / "manifest.json").read_text()) | {"checksum": None}
        (path / "manifest.json").write_text(json.dumps(manifest))
    assert verify(str(path), checksum=checksum).ok
    for part in ("part-00000", "part-00001"):
        for record in (0, 50_000, 99_999):
            for byte in (9, 99):  # the last one of the key, and of the payload
                flip(path / part, record * RECORD_NBYTES + byte)
                found = verify(str(path), checksum=checksum)
                assert any(f"checksum {found.checksum:x}, " in text for text in found.problems)
                assert found.checksum != total
                flip(path / part, record * RECORD_NBYTES + byte)
    assert verify(str(path), checksum=checksum).ok


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


def test_the_verifier_takes_the_targets_name_as_it_is_and_parts_by_number(target):
    path, total = target
    odd = path.rename(path.parent / "o[u]t::*")
    assert verify(str(odd), checksum=total).ok
    (odd / "part-00000").rename(odd / "part-99999")
    (odd / "part-00001").rename(odd / "part-100000")
    (odd / "part-x").write_bytes(b"no part")
    found = verify(str(odd))
    assert found.parts == 2
    assert not any("begins with a key less" in problem for problem in found.problems)


def test_the_verifier_sees_parts_that_the_manifest_does_not_name(target):
    path, _ = target
    manifest = json.loads((path / "manifest.json").read_text())
    manifest |= {"records": 0, "checksum": "0", "parts": []}
    (path / "manifest.json").write_text(json.dumps(manifest))
    found = verify(str(path))
    assert found.records == 200_000
    assert "part-00000: 100000 records, manifest.json says none" in found.problems
    (path / "part-00000").unlink()
    (path / "part-00001").unlink()
    assert verify(str(path)).ok


PART = {
    "name": "part-00000",
    "records": 1,
    "nbytes": 100,
    "checksum": "0f",
    "first": "00" * 10,
    "last": "ff" * 10,
}
MANIFEST = {"target": "/x", "records": 1, "checksum": "0f", "parts": [PART]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "its format is 'other'"),
        ({"target": 3}, "target is 3"),
        ({"records": -1}, "records is -1"),
        ({"records": True}, "records is True"),
        ({"checksum": "-f"}, "checksum is '-f'"),
        ({"checksum": 15}, "checksum is 15"),
        ({"parts": None}, "parts is None"),
        ({"parts": "x" * 100}, f"parts is '{'x' * 59} …"),
        ({"parts": [1]}, "in part 0 there is no JSON object"),
        ({"parts": [PART, PART]}, "in part 1 name is 'part-00000'"),
        ({"parts": [PART | {"name": "../x"}]}, "in part 0 name is '../x'"),
        ({"parts": [PART | {"nbytes": 1.5}]}, "nbytes is 1.5"),
        ({"parts": [PART | {"checksum": "0x"}]}, "in part 0 checksum is '0x'"),
        ({"parts": [PART | {"first": "0"}]}, "first is '0'"),
        ({"parts": [PART | {"last": None}]}, "last is None"),
    ],
)
def test_a_manifest_is_not_trusted(tmp_path, change, message):
    assert checked_manifest(MANIFEST) == MANIFEST
    empty = PART | {"records": 0, "nbytes": 0, "checksum": None, "first": "", "last": ""}
    checked_manifest(MANIFEST | {"checksum": None, "parts": [empty]})
    checked_manifest(MANIFEST | {"parts": (PART,)})  # as it comes from the scheduler
    wrong = MANIFEST | change
    with pytest.raises(RecordsError) as refused:
        checked_manifest(wrong)
    assert message in str(refused.value)
    Folder(str(tmp_path)).write_json("manifest.json", wrong)
    with pytest.raises(RecordsError, match=r"manifest\.json is not one of fpmdask"):
        verify(str(tmp_path))


@pytest.mark.parametrize("data", [None, [], "x", {}])
def test_a_manifest_has_all_that_belongs_to_it(data):
    with pytest.raises(RecordsError, match="is not one of fpmdask"):
        checked_manifest(data)
    if data == {}:
        for key in MANIFEST:
            with pytest.raises(RecordsError, match=key):
                checked_manifest({name: value for name, value in MANIFEST.items() if name != key})
        for key in PART:
            part = {name: value for name, value in PART.items() if name != key}
            with pytest.raises(RecordsError, match=key):
                checked_manifest(MANIFEST | {"parts": [part]})
