"""Folders wherever fsspec reaches them; files appear in them completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import msgpack
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from fpmdask.errors import StorageError
from fpmdask.rawio import read_at, write_at

# Where a file appears once all of it has been sent, and another process never sees a part.
WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"}
# Object stores with conditional requests, and what these answer where a file is not as it was.
CONDITIONAL = {"s3", "s3a"}
CHANGED = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412", "409", "404"}
# Who may do what is asked of the user that the process acts as.
EFFECTIVE = os.access in os.supports_effective_ids


class Folder:
    """A folder that parts are written to: a path or an fsspec URL, with its file system's options.

    Raises
    ------
    StorageError
        From every method, where the file system refuses.
    """

    error: type[StorageError] = StorageError
    exists: type[StorageError] = StorageError

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        try:
            self.fs, self.path = opened(url, **options)
        except (ImportError, ValueError) as error:
            raise self.error(f"{url} cannot be opened: {error}") from error
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
                raise self.error(f"{self.url} is a file; give a folder that is empty, or new")
            self.fs.invalidate_cache(self.path)
            found = self.fs.ls(self.path, detail=True)
        names = [each["name"].rstrip("/").rsplit("/", 1)[-1] for each in found]
        return {
            name.encode(errors="backslashreplace").decode(): int(each["size"] or 0)
            for name, each in zip(names, found, strict=True)
        }

    def check_writable(self) -> None:
        """Refuse a local folder that cannot be made, or written into.

        Raises
        ------
        StorageError
            With what is in the way.
        """
        if not self.local:
            return
        there = self._existing()
        if not os.path.isdir(there):
            raise self.error(f"{self.url} cannot be made: {there} is a file; give another folder")
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=EFFECTIVE):
            raise self.error(
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

    def read(self, name: str, at: int, target: np.ndarray) -> int:
        """Fill a contiguous array from byte ``at`` of a file on; return the bytes there were."""
        with self._explained():
            return read_bytes(self.fs, self.at(name), at, target)

    @property
    def compares(self) -> bool:
        """Whether the file system has conditional requests."""
        return self._is_one_of(CONDITIONAL)

    def tag(self, name: str) -> str | None:
        """Return a file's tag, which changes with its content; None where there is no file, or tag.

        Tags are those of object stores with conditional requests (ETag).
        """
        if not self.compares:
            return None
        with self._explained(), contextlib.suppress(FileNotFoundError):
            found: str = self.fs.info(self.at(name), refresh=True)["ETag"]
            return found
        return None

    def compare_and_swap(self, name: str, content: bytes, tag: str | None) -> bool:
        """Write a file if it still has a tag, or, with None, if it is not there; tell whether.

        File systems without conditional requests write it in any case.
        """
        if self.compares:
            condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
            with self._explained():
                try:
                    self.fs.pipe_file(self.at(name), content, **condition)
                    return True
                except OSError as error:
                    if _code(error) in CHANGED:
                        return False
                    if error.errno != errno.ENOSYS:  # a server that has no conditional requests
                        raise
        with self.writing(name, durable=True) as write:
            write(np.frombuffer(content, np.uint8))
        return True

    def _is_one_of(self, protocols: set[str]) -> bool:
        own = self.fs.protocol
        return bool(protocols.intersection([own] if isinstance(own, str) else own))

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
        with ``suffix`` and ``.tmp``, and so are those on remote file systems; object stores show a
        file only when it is complete. A ``durable`` local one is on the disk by then.

        Raises
        ------
        StorageError
            If it is to be a ``new`` one and there is one (`exists`). Of several who write at the
            same time one succeeds; but not on other file systems, which are only asked before.
        """
        temporary = self.at(f".{name.lstrip('.')}.{suffix or uuid.uuid4().hex}.tmp")
        with self._explained():
            if not self.local:
                if new and self.fs.exists(self.at(name)):
                    raise self.exists(f"there is a {name} in {self.url}")
                whole = self._is_one_of(WHOLE)
                target = self.at(name) if whole else temporary
                file = self.fs.open(target, "wb")
                try:
                    yield lambda records: file.write(records.reshape(-1).data)
                    file.close()
                    if not whole:
                        self.fs.mv(target, self.at(name))
                except BaseException:
                    with contextlib.suppress(Exception):
                        file.close()  # it would complete the file later
                    with contextlib.suppress(Exception):
                        self.fs.rm_file(target)
                    raise
                return
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
            raise self.exists(f"there is a {name} in {self.url}") from error

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.error(f"{self.url} cannot be used: {said(error)}") from error


def read_bytes(fs: Any, path: str, at: int, target: np.ndarray) -> int:
    """Fill a contiguous array from byte ``at`` of a file on; return the bytes there were.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    if is_local(fs):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_at(descriptor, at, target)
        finally:
            os.close(descriptor)
    memory, done = target.reshape(-1).view(np.uint8).data, 0
    with fs.open(path, "rb", cache_type="none") as opened:
        opened.seek(at)
        while done < len(memory) and (got := opened.readinto(memory[done:])):
            done += got
    return done


def is_local(fs: Any) -> bool:
    """Tell whether a file system is this machine's."""
    return isinstance(fs, LocalFileSystem)


def opened(url: str, **options: Any) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it.

    Raises
    ------
    ImportError, ValueError
        If there is none for it.
    """
    url = os.fspath(url)
    if not url:
        raise ValueError("an empty path; give a folder or a URL, '.' is the current folder")
    if "://" not in url:  # fsspec takes `::` in a name for a chain of file systems
        return LocalFileSystem(), os.path.abspath(url)
    fs, path = fsspec.core.url_to_fs(url, **options)
    return fs, str(path)


def _code(error: OSError) -> str | None:
    """Return the code with which an object store has refused a request."""
    response = getattr(error.__cause__, "response", None) or {}
    code: str | None = response.get("Error", {}).get("Code")
    return code


def said(error: OSError) -> str:
    """Return what a file system's error means, and what to do where that is known."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            "no space is left on its disk; make room and call again: what is finished is taken up"
        )
    return error.strerror or str(error) or type(error).__name__
