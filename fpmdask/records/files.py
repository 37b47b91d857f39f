"""Record files wherever fsspec reaches them; local ones without a copy between."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec
import msgpack
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from fpmdask.errors import RecordsError
from fpmdask.rawio import read_at, write_at
from fpmdask.records.format import RECORD_NBYTES, File, Records

# What tells one version of a file from another, as file systems call it.
STAMPS = ("mtime", "LastModified", "last_modified", "ETag", "etag", "md5Hash", "created")
# Who may do what is asked of the user that the process acts as.
EFFECTIVE = os.access in os.supports_effective_ids


class NotHere(RecordsError):
    """A path or glob finds nothing on this machine; it may on another."""


class Exists(RecordsError):
    """A file that was to be a new one is there already."""


def find(sources: Sequence[str]) -> list[File]:
    """Return the files that paths, globs and fsspec URLs name, in that order, globs sorted.

    Directories that a glob matches are left out. What is there under a glob's very name is meant,
    not what the glob matches.

    Raises
    ------
    NotHere
        If a path or glob finds nothing.
    RecordsError
        If it finds a file twice or one that cannot be read, or a directory or something else that
        is no file, a name is not UTF-8, or the length of a file is not a multiple of 100 bytes.
    """
    found: dict[str, File] = {}
    for source in sources:
        fs, path = _opened(source)
        if fsspec.core.has_magic(path) and not _is_there(fs, path):
            infos = [(one, _info(fs, one)) for one in sorted(fs.glob(path))]
            infos = [(one, info) for one, info in infos if info["type"] != "directory"]
        else:
            infos = [(path, _info(fs, path))]
        if not infos:
            raise NotHere(f"no file matches {source}; check the path")
        for one, info in infos:
            file = _described(fs, one, info)
            if file.path in found:
                raise RecordsError(f"{file.path} is named twice; name every file once")
            found[file.path] = file
    return list(found.values())


def is_utf8(text: str) -> bool:
    """Tell whether a name can be sent on and written down: file systems allow any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_there(fs: Any, path: str) -> bool:
    return os.path.lexists(path) if is_local(fs) else bool(fs.exists(path))


def _info(fs: Any, path: str) -> Any:
    """Return what a file system says of a file, with ``type``, ``size`` and perhaps a stamp."""
    with _readable(fs, path):
        return fs.info(path)


def _described(fs: Any, path: str, info: Any) -> File:
    if not is_utf8(path):
        raise RecordsError(f"{path!a} is not UTF-8; give the file another name")
    if info["type"] == "directory":
        raise RecordsError(f"{path} is a directory; name its files, as {path}/*")
    if info["type"] == "other":  # to open a FIFO is to wait
        raise RecordsError(f"{path} is not a regular file")
    if info["size"] is None:
        raise RecordsError(f"the length of {path} is not known; copy it to where it is")
    with _readable(fs, path), fs.open(path, "rb") as file:
        file.read(1)
    nbytes = int(info["size"])
    if nbytes % RECORD_NBYTES:
        raise RecordsError(
            f"{path} has {nbytes} bytes, which are {nbytes // RECORD_NBYTES} records of "
            f"{RECORD_NBYTES} bytes and {nbytes % RECORD_NBYTES} bytes more; it is truncated, or "
            "not a file of records"
        )
    return File(path if is_local(fs) else fs.unstrip_protocol(path), nbytes, _stamp(info))


def _stamp(info: Any) -> str:
    return next((str(info[name]) for name in STAMPS if name in info), "")


@contextlib.contextmanager
def _readable(fs: Any, path: str) -> Iterator[None]:
    """Say what is wrong with a file that cannot be read."""
    name = path if is_utf8(path) else ascii(path)
    try:
        yield
    except FileNotFoundError as error:
        if is_local(fs) and os.path.islink(path):
            there = ascii(os.readlink(path))
            raise NotHere(f"{name} is a broken link: there is no {there}") from error
        raise NotHere(f"there is no file {name}; check the path") from error
    except OSError as error:
        raise RecordsError(f"{name} cannot be read: {said(error)}") from error


def read(file: File, first: int, records: Records) -> None:
    """Fill ``records`` (n × 100) with those of a file from number ``first`` on.

    Raises
    ------
    RecordsError
        If it cannot be read, ends earlier, or is not what was found.
    """
    fs, path = _opened(file.path)
    at = first * RECORD_NBYTES
    try:
        if is_local(fs):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                done = read_at(descriptor, at, records)
            finally:
                os.close(descriptor)
        else:
            memory, done = records.reshape(-1).data, 0
            with fs.open(path, "rb", cache_type="none") as opened:
                opened.seek(at)
                while done < len(memory) and (got := opened.readinto(memory[done:])):
                    done += got
    except OSError as error:
        raise RecordsError(f"{file.path} cannot be read: {said(error)}") from error
    info = _info(fs, path)
    if done < records.nbytes or (info["size"], _stamp(info)) != (file.nbytes, file.stamp):
        raise RecordsError(
            f"{file.path} has changed since it was found: it has {info['size']} bytes now and had "
            f"{file.nbytes} then; call again when nobody writes to it"
        )


class Folder:
    """A folder that parts are written to: a path or an fsspec URL.

    Raises
    ------
    RecordsError
        From every method, where the file system refuses.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.fs, self.path = _opened(url)
        self.local = is_local(self.fs)

    def at(self, name: str) -> str:
        """Return the path of a file in it."""
        return f"{self.path.rstrip('/')}/{name}"

    def make(self) -> None:
        """Make the folder, and those above it."""
        with self._explained():
            self.fs.makedirs(self.path, exist_ok=True)

    def names(self) -> dict[str, int]:
        """Return the name and length of everything in it; nothing where it is not there.

        What is not UTF-8 in a name is escaped.
        """
        with self._explained():
            if not self.fs.exists(self.path):
                return {}
            if not self.fs.isdir(self.path):
                raise RecordsError(f"{self.url} is a file; give a folder that is empty, or new")
            self.fs.invalidate_cache(self.path)
            found = self.fs.ls(self.path, detail=True)
        names = [each["name"].rstrip("/").rsplit("/", 1)[-1] for each in found]
        return {
            name.encode(errors="backslashreplace").decode(): int(each["size"] or 0)
            for name, each in zip(names, found, strict=True)
        }

    def file(self, name: str) -> File:
        """Return a file of records in it.

        Raises
        ------
        NotHere
            If there is none of this name.
        """
        path = self.at(name)
        return _described(self.fs, path, _info(self.fs, path))

    def check_writable(self) -> None:
        """Refuse a local folder that cannot be made, or written into.

        Raises
        ------
        RecordsError
            With what is in the way.
        """
        if not self.local:
            return
        there = self._existing()
        if not os.path.isdir(there):
            raise RecordsError(f"{self.url} cannot be made: {there} is a file; give another folder")
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=EFFECTIVE):
            raise RecordsError(
                f"{self.url} cannot be written: {there} is not writable for the worker's user; "
                "change its mode, or give another folder"
            )

    def free_nbytes(self) -> float:
        """Return the free bytes of a local folder's disk, infinity elsewhere."""
        if not self.local:
            return float("inf")
        status = os.statvfs(self._existing())
        return float(status.f_bavail) * status.f_frsize

    def device(self) -> int | None:
        """Return the number of a local folder's file system, None elsewhere."""
        return os.stat(self._existing()).st_dev if self.local else None

    def _existing(self) -> str:
        """Return the folder, or the one above it that is there."""
        path = self.path
        while not os.path.exists(path):
            path = os.path.dirname(path)
        return path

    def write_json(self, name: str, data: Any, *, durable: bool = False, new: bool = False) -> None:
        """Write plain data as a file that is there completely or not at all."""
        with self.writing(name, durable=durable, new=new) as write:
            write(np.frombuffer(json.dumps(data, indent=1).encode(), np.uint8))

    def read_json(self, name: str) -> Any:
        """Return the plain data in a file, None where it is not there or is not JSON.

        Nor what cannot be sent on: numbers of more than 64 bits, text that is not UTF-8.
        """
        with self._explained():
            if not self.fs.exists(self.at(name)):
                return None
            text = self.fs.cat_file(self.at(name))
        try:
            data = json.loads(text)
            msgpack.packb(data)
        except (ValueError, OverflowError, RecursionError):
            return None
        return data

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._explained(), contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.at(name))

    @contextlib.contextmanager
    def writing(
        self, name: str, suffix: str = "", *, durable: bool = False, new: bool = False
    ) -> Iterator[Any]:
        """Give a function that writes bytes; the file appears at the end, if all went well.

        A local one is written beside its place under another name, which begins with a dot and ends
        with ``suffix`` and ``.tmp``; object stores show a file only when it is complete. A
        ``durable`` one is on the disk by then.

        Raises
        ------
        Exists
            If it is to be a ``new`` one and there is one. Of several who write at the same time one
            succeeds; but not on other file systems, which are only asked before.
        """
        with self._explained():
            if not self.local:
                if new and self.fs.exists(self.at(name)):
                    raise Exists(f"there is a {name} in {self.url}")
                file = self.fs.open(self.at(name), "wb")
                try:
                    yield lambda records: file.write(records.reshape(-1).data)
                    file.close()
                except BaseException:
                    with contextlib.suppress(Exception):
                        file.close()  # it would complete the file later
                    with contextlib.suppress(Exception):
                        self.fs.rm_file(self.at(name))
                    raise
                return
            temporary = self.at(f".{name.lstrip('.')}.{suffix or uuid.uuid4().hex}.tmp")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o666)
            written = 0

            def write(data: np.ndarray) -> None:
                nonlocal written
                write_at(descriptor, written, data)
                written += data.nbytes

            try:
                try:
                    yield write
                    if durable:
                        os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
                if new:
                    self._put(temporary, name)
                else:
                    os.replace(temporary, self.at(name))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    def _put(self, temporary: str, name: str) -> None:
        """Give a file the name that no other has."""
        try:
            try:
                os.link(temporary, self.at(name))
            except FileExistsError:
                raise
            except OSError:  # there are no hard links here: an empty file keeps the name
                os.close(os.open(self.at(name), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
                os.replace(temporary, self.at(name))
            else:
                os.unlink(temporary)
        except FileExistsError as error:
            raise Exists(f"there is a {name} in {self.url}") from error

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RecordsError(f"{self.url} cannot be used: {said(error)}") from error


def is_local(fs: Any) -> bool:
    """Tell whether a file system is this machine's."""
    return isinstance(fs, LocalFileSystem)


def _opened(url: str) -> tuple[Any, str]:
    url = os.fspath(url)
    if "://" not in url:  # fsspec takes `::` in a name for a chain of file systems
        return LocalFileSystem(), os.path.abspath(url)
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise RecordsError(f"{url} cannot be opened: {error}") from error
    return fs, str(path)


def said(error: OSError) -> str:
    """Return what a file system's error means, and what to do where that is known."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            "no space is left on its disk; make room and call again: what is finished is taken up"
        )
    return error.strerror or str(error) or type(error).__name__
