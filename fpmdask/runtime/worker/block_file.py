"""Blocks of rows on a worker's disk, for what iterates over more rows than fit into its memory.

Runs in the thread of a step; what is prefetched is read in one thread of the file's own. A file
owns a nameless file in the worker's local directory: it is gone however the process ends.

The page cache must not hide the disk, and in a memory cgroup it counts as the worker's memory: the
file is opened with O_DIRECT. Its transfers are whole sectors, so what begins or ends within one,
and arrays that lie otherwise in memory, go through a buffer of `BOUNCE_NBYTES`, which stays in the
processor's cache. Seen for 256 MiB in pieces of 8: 0.01 s of CPU time directly, 0.05 to 0.08 s
through the page cache, from which `posix_fadvise` drops nothing of pieces of 1 MiB at first. Where
a file system has no O_DIRECT the pages are written and dropped after each call.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import Any, NoReturn

import numpy as np

from fpmdask import config
from fpmdask.rawio import MOST_NBYTES, read_at, write_at
from fpmdask.runtime.rows import Span
from fpmdask.runtime.worker.spill import SpillFile

Array = np.ndarray[Any, Any]

# Transfers begin and end at multiples of this, in the file and in memory: a sector or a page,
# whichever the file system asks for.
SECTOR = 4096
BOUNCE_NBYTES = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFailed(OSError):
    """Rows cannot be written to a worker's disk, or not be read again; says which and why."""


class BlockFile:
    """Regions of rows of arrays in a file without a name.

    Parameters
    ----------
    folder : path
        On a local disk.
    overhead_seconds, byte_seconds
        A disk that is as slow as a lab says, both >= 0: each call lasts at least the overhead and
        so many seconds per byte. None: the worker's settings, ``fpmdask.lab.disk``. The processor
        is free meanwhile. The overhead of a prefetch is its caller's, as in MHETA.md R5.

    Examples
    --------
    >>> import tempfile
    >>> file = BlockFile(tempfile.gettempdir())
    >>> rows = file.reserve((10, 3), np.float64)
    >>> rows.write((4, 6), np.arange(6.0).reshape(2, 3))
    >>> found = np.empty((1, 3))
    >>> reading = rows.prefetch((5, 6), found)
    >>> reading.wait()
    >>> found.tolist()
    [[3.0, 4.0, 5.0]]
    >>> file.close()
    """

    def __init__(
        self,
        folder: str,
        overhead_seconds: float | None = None,
        byte_seconds: float | None = None,
    ) -> None:
        self.folder = folder
        self.overhead_seconds = float(config.setting("lab.disk.overhead-seconds", overhead_seconds))
        self.byte_seconds = float(config.setting("lab.disk.seconds-per-byte", byte_seconds))
        try:
            self._file = SpillFile(folder)
        except OSError as error:
            self._failed(f"takes no file of rows ({error.strerror})", error)
        self._direct = _open_direct(self._file.descriptor)
        self._bounce = aligned(BOUNCE_NBYTES)
        self._busy = threading.Lock()  # it is one disk
        self._closed = False
        self._idle = 0.0  # since when
        self._thread: ThreadPoolExecutor | None = None

    def reserve(self, shape: Sequence[int], dtype: Any) -> Region:
        """Return room for the rows of an array, each as long as the others.

        Raises
        ------
        DiskFailed
            If the disk has not got it.
        """
        dtype = np.dtype(dtype)
        nbytes = -(-prod(shape) * dtype.itemsize // SECTOR) * SECTOR
        at = self._file.reserve(nbytes).at
        descriptor = self._file.descriptor
        try:
            if nbytes:
                os.posix_fallocate(descriptor, at, nbytes)
        except OSError as error:
            if error.errno in FULL:
                self._failed(f"has no room for {nbytes} bytes of rows", error)
            os.ftruncate(descriptor, at + nbytes)  # this file system reserves nothing
        return Region(self, at, tuple(shape), dtype)

    def close(self) -> None:
        """Give the disk's room back once nothing is read ahead any more."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(cancel_futures=True)
        with self._busy:
            self._closed = True  # the descriptor may soon be another file's
            self._file.close()

    # ---- for regions

    def transfer(self, at: int, memory: Array, *, write: bool, issued: float | None = None) -> None:
        """Read or write contiguous memory.

        `issued` is when the overhead was paid already: from then on the disk is busy, however late
        the thread gets the interpreter (some 3 ms beside one that computes).
        """
        flat = memory.reshape(-1).view(np.uint8)
        with self._busy:
            if self._closed:
                raise DiskFailed(errno.EBADF, "the block file is closed: the run is over")
            now = time.perf_counter()
            began = now + self.overhead_seconds if issued is None else max(issued, self._idle)
            until = began + self.byte_seconds * len(flat)
            try:
                (self._write if write else self._read)(at, flat)
            except OSError as error:
                doing = "write" if write else "read"
                why = "is full" if error.errno in FULL else f"fails ({error})"
                self._failed(f"{why}: cannot {doing} {len(flat)} bytes of rows", error)
            if not self._direct:
                self._drop(at, len(flat), written=write)
            _sleep(until)
            self._idle = time.perf_counter()

    def issue(self, at: int, memory: Array) -> Future[None]:
        """Begin to read contiguous memory."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "fpmdask-prefetch")
        _sleep(time.perf_counter() + self.overhead_seconds)
        issued = time.perf_counter()
        return self._thread.submit(self.transfer, at, memory, write=False, issued=issued)

    def _failed(self, why: str, error: OSError) -> NoReturn:
        raise DiskFailed(
            error.errno,
            f"the disk of {self.folder} {why}; give workers another local directory, fewer rows, "
            "or more memory",
        ) from error

    def _read(self, at: int, flat: Array) -> None:
        descriptor, done = self._file.descriptor, 0
        while done < len(flat):
            low, whole = (at + done) // SECTOR * SECTOR, _whole_sectors(at + done, flat[done:])
            if whole:
                got = read_at(descriptor, low, flat[done : done + whole])
            else:
                skip = at + done - low
                count = _bounced(at + done, flat[done:])
                sectors = skip + count + -(skip + count) % SECTOR
                got = min(count, read_at(descriptor, low, self._bounce[:sectors]) - skip)
                flat[done : done + max(0, got)] = self._bounce[skip : skip + got]
            if got <= 0 or (whole and got < whole):
                raise OSError(errno.EIO, f"the file ends {len(flat) - done} bytes early")
            done += got

    def _write(self, at: int, flat: Array) -> None:
        descriptor, done = self._file.descriptor, 0
        while done < len(flat):
            low, count = (at + done) // SECTOR * SECTOR, _whole_sectors(at + done, flat[done:])
            if count:
                write_at(descriptor, low, flat[done : done + count])
            else:
                skip = at + done - low
                count = _bounced(at + done, flat[done:])
                sectors = skip + count + -(skip + count) % SECTOR
                # the rest of the first and of the last sector is somebody else's
                if skip:
                    read_at(descriptor, low, self._bounce[:SECTOR])
                if (skip + count) % SECTOR:
                    last = sectors - SECTOR
                    read_at(descriptor, low + last, self._bounce[last:sectors])
                self._bounce[skip : skip + count] = flat[done : done + count]
                write_at(descriptor, low, self._bounce[:sectors])
            done += count

    def _drop(self, at: int, nbytes: int, *, written: bool) -> None:
        descriptor = self._file.descriptor
        if written:
            os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, at, nbytes, os.POSIX_FADV_DONTNEED)


class Region:
    """Rows of one array in a `BlockFile`.

    Attributes
    ----------
    shape, dtype
        Of the array.
    """

    def __init__(self, file: BlockFile, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]):
        self._file, self._at, self.shape, self.dtype = file, at, shape, dtype
        self.row_nbytes = prod(shape[1:]) * dtype.itemsize

    def read(self, rows: Span, out: Array) -> None:
        """Fill a contiguous array with rows: one call of the disk, which is waited for."""
        self._file.transfer(self._place(rows, out), out, write=False)

    def write(self, rows: Span, array: Array) -> None:
        """Write the rows of a contiguous array: one call of the disk, which is waited for."""
        self._file.transfer(self._place(rows, array), array, write=True)

    def prefetch(self, rows: Span, out: Array) -> Prefetch:
        """Begin to fill a contiguous array with rows, after those that were asked for before."""
        return Prefetch(self._file.issue(self._place(rows, out), out))

    def in_sectors(self) -> Region:
        """Return the same place on the disk as rows of bytes, of a sector each."""
        count = -(-prod(self.shape) * self.dtype.itemsize // SECTOR)
        return Region(self._file, self._at, (count, SECTOR), np.dtype(np.uint8))

    def _place(self, rows: Span, array: Array) -> int:
        low, high = rows
        if not 0 <= low <= high <= self.shape[0] or array.shape != (high - low, *self.shape[1:]):
            raise ValueError(f"rows {low} to {high} of {self.shape} into {array.shape}")
        if array.dtype != self.dtype or not array.flags.c_contiguous:
            raise ValueError(f"give a contiguous array of {self.dtype}")
        return self._at + low * self.row_nbytes


class Prefetch:
    """Rows that are being read."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        """Return when they are in their place.

        Raises
        ------
        DiskFailed
            If they cannot be read.
        """
        self._future.result()


def aligned(nbytes: int, offset: int = 0) -> Array:
    """Return bytes that begin so many after a multiple of `SECTOR` in memory.

    Rows whose place in memory is that in the file but for multiples of it are not copied.
    """
    raw = np.empty(nbytes + 2 * SECTOR, np.uint8)
    start = (offset - raw.ctypes.data) % SECTOR
    return raw[start : start + nbytes]


def _open_direct(descriptor: int) -> bool:
    """Have an empty file bypass the page cache; tell whether its file system can do so."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        write_at(descriptor, 0, aligned(SECTOR))  # some say so only then
    except OSError:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return False
    return True


def _whole_sectors(at: int, flat: Array) -> int:
    """Return the bytes that can go directly between a place in the file and memory."""
    if at % SECTOR or flat.ctypes.data % SECTOR:
        return 0
    return min(len(flat), MOST_NBYTES) // SECTOR * SECTOR


def _bounced(at: int, flat: Array) -> int:
    """Return the bytes that go through the buffer: up to the next sector if the rest need not."""
    congruent = not (flat.ctypes.data - at) % SECTOR
    return min(len(flat), (SECTOR if congruent else BOUNCE_NBYTES) - at % SECTOR)


def _sleep(until: float) -> None:
    if (left := until - time.perf_counter()) > 0:
        time.sleep(left)
