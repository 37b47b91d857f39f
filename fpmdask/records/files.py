"""Record files wherever fsspec reaches them; local ones without a copy between."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec

from fpmdask import storage
from fpmdask.errors import RecordsError
from fpmdask.records.format import RECORD_NBYTES, File, Records
from fpmdask.storage import is_local, said

# What tells one version of a file from another, as file systems call it.
STAMPS = ("mtime", "LastModified", "last_modified", "ETag", "etag", "md5Hash", "created")


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
    try:
        done = storage.read_bytes(fs, path, first * RECORD_NBYTES, records)
    except OSError as error:
        raise RecordsError(f"{file.path} cannot be read: {said(error)}") from error
    info = _info(fs, path)
    if done < records.nbytes or (info["size"], _stamp(info)) != (file.nbytes, file.stamp):
        raise RecordsError(
            f"{file.path} has changed since it was found: it has {info['size']} bytes now and had "
            f"{file.nbytes} then; call again when nobody writes to it"
        )


class Folder(storage.Folder):
    """A folder that parts are written to: a path or an fsspec URL.

    Raises
    ------
    RecordsError
        From every method, where the file system refuses.
    """

    error = RecordsError
    exists = Exists

    def file(self, name: str) -> File:
        """Return a file of records in it.

        Raises
        ------
        NotHere
            If there is none of this name.
        """
        path = self.at(name)
        return _described(self.fs, path, _info(self.fs, path))


def _opened(url: str) -> tuple[Any, str]:
    try:
        return storage.opened(url)
    except (ImportError, ValueError) as error:
        raise RecordsError(f"{url} cannot be opened: {error}") from error
