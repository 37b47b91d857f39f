"""Whole files of a store: read, listed, and replaced so that a reader sees all or nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec

# Where a file appears once all of it has been sent, and another process never sees a part.
WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"}
# What is being written; readers look for names that end in ".json".
PARTIAL = ".partial"
# Writers of one folder wait for each other so long, looking so often.
LOCK, LOCKED_SECONDS, LOCK_LOOK_SECONDS = ".lock", 5.0, 0.01


class Files:
    """Files below a URL.

    Parameters
    ----------
    url
        Of a folder, as fsspec has it; a path without a protocol is local.
    options
        Of its file system.
    """

    def __init__(self, url: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self.url = os.fspath(url)
        self._fs, self._root = fsspec.core.url_to_fs(self.url, **options)
        protocols = self._fs.protocol
        self._protocols = {protocols} if isinstance(protocols, str) else set(protocols)
        self._is_local = not self._protocols.isdisjoint({"file", "local"})

    def names(self, folder: str) -> list[str]:
        """Return the paths, below the URL, of all JSON files in a folder and those below."""
        # what another process has written since, too
        self._fs.invalidate_cache()
        root = self._root.rstrip("/")
        try:
            found = self._fs.find(f"{root}/{folder}")
        except FileNotFoundError:
            return []
        names = (str(path)[len(root) :].lstrip("/") for path in found)
        return sorted(name for name in names if name.endswith(".json"))

    def read(self, path: str) -> bytes | None:
        """Return what a file has, None where there is none."""
        try:
            found: bytes = self._fs.cat_file(self._at(path))
        except FileNotFoundError:
            return None
        return found

    def replace(self, path: str, content: bytes) -> None:
        """Write a file, in the place of one that may be there, all at once."""
        target = self._at(path)
        if self._is_local:
            _replace_local(Path(target), content)
        elif self._protocols & WHOLE:
            self._fs.pipe_file(target, content)
        else:
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            partial = f"{target}.{uuid4().hex}{PARTIAL}"
            self._fs.pipe_file(partial, content)
            self._fs.mv(partial, target)

    @contextlib.contextmanager
    def alone(self, path: str) -> Iterator[None]:
        """Keep other writers of a file out for a moment, where the file system can do that.

        Local ones can. The lock ends with its process; one that is held for long is ignored.
        """
        if not self._is_local:
            yield
            return
        folder = Path(self._at(path)).parent
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("wb") as file:
            give_up = time.monotonic() + LOCKED_SECONDS
            while time.monotonic() < give_up:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(LOCK_LOOK_SECONDS)
                    continue
                except OSError:
                    pass  # a network's file system that has no locks
                break
            yield

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._fs.rm_file(self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"


def _replace_local(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid4().hex}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else the name may be there before what it names
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
