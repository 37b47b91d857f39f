"""Rows on disk: what is read is what was written, however rows lie in the file and in memory."""

import errno
import os
import resource
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.rawio import read_at
from fpmdask.runtime.worker import block_file
from fpmdask.runtime.worker.block_file import SECTOR, BlockFile, DiskFailed, aligned


@pytest.fixture
def file(tmp_path):
    file = BlockFile(str(tmp_path))
    yield file
    file.close()
    assert not os.listdir(tmp_path)


def buffer(shape, dtype, offset):
    """Return a contiguous array that begins so many items after a sector in memory."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    return aligned(count, offset * dtype.itemsize).view(dtype).reshape(shape)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_rows_at_any_place(tmp_path_factory, data):
    file = BlockFile(str(tmp_path_factory.mktemp("rows")))
    arrays = []
    for _ in range(data.draw(st.integers(1, 3))):
        # rows of 1 byte to 3 MiB: within a sector, over sectors, larger than the bounce buffer
        rest = data.draw(st.sampled_from([(), (3,), (5, 7), (512,), (1000,), (400_003,)]))
        dtype = data.draw(st.sampled_from(["u1", "f4", "f8"]))
        rows = data.draw(st.integers(1, 40 if len(rest) != 1 or rest[0] < 10_000 else 3))
        arrays.append((file.reserve((rows, *rest), dtype), np.zeros((rows, *rest), dtype)))
    for region, copy in arrays:
        region.write((0, len(copy)), copy)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    for _ in range(data.draw(st.integers(1, 8))):
        region, copy = data.draw(st.sampled_from(arrays))
        low = data.draw(st.integers(0, len(copy)))
        high = data.draw(st.integers(low, len(copy)))
        # as in the file, and elsewhere
        offset = data.draw(st.sampled_from([0, 1, low * copy[0].size]))
        some = buffer((high - low, *copy.shape[1:]), copy.dtype, offset)
        some[...] = random.integers(0, 200, some.shape)
        region.write((low, high), some)
        copy[low:high] = some
    for region, copy in arrays:
        for low, high in ((0, len(copy)), (len(copy) // 3, len(copy)), (0, len(copy) // 2)):
            one, other = (buffer((high - low, *copy.shape[1:]), copy.dtype, n) for n in (0, 1))
            region.read((low, high), one)
            region.prefetch((low, high), other).wait()
            np.testing.assert_array_equal(one, copy[low:high])
            np.testing.assert_array_equal(other, copy[low:high])
    file.close()


def test_a_file_system_without_direct_access(tmp_path, monkeypatch):
    monkeypatch.setattr(block_file, "_open_direct", lambda descriptor: False)
    file = BlockFile(str(tmp_path))
    region = file.reserve((10, 700), "f8")
    data = np.random.default_rng(0).random((10, 700))
    region.write((0, 10), data)
    found = np.empty((3, 700))
    region.read((4, 7), found)
    np.testing.assert_array_equal(found, data[4:7])
    file.close()


def test_a_slow_disk(tmp_path):
    file = BlockFile(str(tmp_path), overhead_seconds=0.02, byte_seconds=1e-5)
    region = file.reserve((10, 100), "f8")
    rows = np.zeros((5, 100))
    for call in (region.write, region.read):
        began = time.perf_counter()
        call((0, 5), rows)
        assert time.perf_counter() - began >= 0.02 + 4000e-5
    began, cpu = time.perf_counter(), time.thread_time()
    reading = region.prefetch((0, 5), rows)
    issued = time.perf_counter()
    again = region.prefetch((5, 10), rows)
    assert issued - began >= 0.02  # its caller's, as is that of a read
    reading.wait()
    assert time.perf_counter() - began >= 0.02 + 4000e-5
    again.wait()
    assert time.perf_counter() - began >= 0.02 + 2 * 4000e-5  # one disk reads one after the other
    assert time.thread_time() - cpu < 0.04  # the processor is free meanwhile
    file.close()


def test_the_lab_says_how_slow_it_is(tmp_path):
    import dask

    names = ("overhead-seconds", "seconds-per-byte")
    keys = [f"fpmdask.lab.disk.{name}" for name in names]
    with dask.config.set(dict(zip(keys, (0.25, 1e-9), strict=True))):
        file = BlockFile(str(tmp_path))
    assert (file.overhead_seconds, file.byte_seconds) == (0.25, 1e-9)
    file.close()


def test_what_is_no_place_of_the_array_is_refused(file):
    region = file.reserve((4, 3), "f8")
    for rows, array in (
        ((0, 2), np.empty((1, 3))),
        ((3, 5), np.empty((2, 3))),
        ((0, 2), np.empty((2, 4))),
        ((0, 2), np.empty((2, 3), "f4")),
        ((0, 2), np.empty((2, 6))[:, ::2]),
    ):
        with pytest.raises(ValueError, match=r"rows 0|rows 3|contiguous"):
            region.read(rows, array)


@pytest.fixture
def small_disk():
    """Let no file grow over 64 kB, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("reserves", [True, False])
def test_a_full_disk_is_said(file, small_disk, reserves, monkeypatch, tmp_path):
    region = file.reserve((8, 1000), "u1")
    region.write((0, 8), np.ones((8, 1000), "u1"))
    if not reserves:  # the file system notices when it is written to

        def no_reserve(*_):
            raise OSError(errno.EOPNOTSUPP, "not here")

        monkeypatch.setattr(os, "posix_fallocate", no_reserve)
        monkeypatch.setattr(os, "ftruncate", lambda *_: None)
        large = file.reserve((200, 1000), "u1")
        with pytest.raises(DiskFailed, match=rf"{tmp_path} is full: cannot write 200000 bytes"):
            large.write((0, 200), np.ones((200, 1000), "u1"))
    else:
        with pytest.raises(DiskFailed, match="has no room for 200704 bytes of rows; give workers"):
            file.reserve((200, 1000), "u1")
    found = np.empty((8, 1000), "u1")  # the rest is as it was
    region.read((0, 8), found)
    assert found.all()


def test_a_folder_that_is_gone_is_said(tmp_path):
    says = r"gone takes no file of rows \(No such file or directory\); give workers another"
    with pytest.raises(DiskFailed, match=says):
        BlockFile(str(tmp_path / "gone"))


def test_rows_that_are_cut_off_are_said(file):
    region = file.reserve((8, 1000), "f8")
    os.ftruncate(file._file.descriptor, SECTOR)
    found = np.empty((8, 1000))
    with pytest.raises(DiskFailed, match="the file ends 59904 bytes early"):
        region.read((0, 8), found)
    with pytest.raises(DiskFailed, match="ends"):
        region.prefetch((0, 8), found).wait()


def test_nothing_stays_in_the_page_cache(file):
    """Reading what was just written takes the disk's bytes: the file's pages are not in memory."""
    import mmap

    region = file.reserve((64, 1 << 16), "u1")
    region.write((0, 64), np.ones((64, 1 << 16), "u1"))
    region.read((3, 60), np.empty((57, 1 << 16), "u1"))
    descriptor = file._file.descriptor
    size = os.fstat(descriptor).st_size
    with (
        open(f"/proc/self/fd/{descriptor}", "rb") as plain,
        mmap.mmap(plain.fileno(), size, prot=mmap.PROT_READ) as mapped,
    ):
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        pages = np.zeros(size // mmap.PAGESIZE, np.uint8)
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        answer = libc.mincore(
            ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
        )
    assert answer == 0
    assert (pages & 1).mean() < 0.1
    assert read_at(descriptor, 0, aligned(SECTOR)) == SECTOR
