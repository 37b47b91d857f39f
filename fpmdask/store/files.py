"""Whole files of a store: read, listed, and replaced so that a reader sees all or nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fpmdask.storage import Folder, is_local, opened

# Folders of documents of one version.
VERSIONED = re.compile(r"v\d+")
# Writers of one folder wait for each other so long, looking so often.
LOCK, LOCKED_SECONDS, LOCK_LOOK_SECONDS = ".lock", 5.0, 0.01
# What `fpmdask.storage.Folder.writing` calls a document that is being written. Its writer is dead
# after an hour: a document takes a moment, and clocks of machines that share a folder differ less.
UNFINISHED, UNFINISHED_SECONDS = re.compile(r"\..+\.json\.[0-9a-f]{32}\.tmp"), 3600.0


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
        self.url, self._options = os.fspath(url), options
        self._fs, self._root = opened(self.url, **options)

    def names(self) -> list[str]:
        """Return the paths, below the URL, of all JSON files in its folders of any version.

        What else is below the URL, other stores too, is none of this one's.
        """
        # what another process has written since, too
        self._fs.invalidate_cache()
        root = self._root.rstrip("/")
        try:
            beside = [str(path).rstrip("/") for path in self._fs.ls(f"{root}/", detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        folders = (path for path in beside if VERSIONED.fullmatch(path.rpartition("/")[2]))
        found = (str(path) for folder in folders for path in self._fs.find(folder))
        return sorted(path[len(root) :].lstrip("/") for path in found if path.endswith(".json"))

    def read(self, path: str) -> bytes | None:
        """Return what a file has, None where there is none."""
        at = self._at(path)
        if is_local(self._fs) and os.path.exists(at) and not os.path.isfile(at):
            raise OSError(errno.EINVAL, "not a regular file")  # a pipe would be waited for
        try:
            found: bytes = self._fs.cat_file(at)
        except FileNotFoundError:
            return None
        return found

    @property
    def compares(self) -> bool:
        """Whether `compare_and_swap` compares anything."""
        return Folder(self.url, **self._options).compares

    def tag(self, path: str) -> str | None:
        """Return what `compare_and_swap` compares: see `Folder.tag`."""
        folder, name = self._folder(path)
        return folder.tag(name)

    def compare_and_swap(self, path: str, content: bytes, tag: str | None) -> bool:
        """Write a file, all at once, if it has not changed since: see `Folder`."""
        folder, name = self._folder(path)
        folder.make()
        return folder.compare_and_swap(name, content, tag)

    def _folder(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        return Folder(f"{self.url.rstrip('/')}/{above}", **self._options), name

    @contextlib.contextmanager
    def alone(self, path: str) -> Iterator[None]:
        """Keep other writers of a file out for a moment, where the file system can do that.

        Local ones can. The lock ends with its process; one that is held for long is ignored. What
        writers that were killed have left in the folder is removed once it is old.
        """
        if not is_local(self._fs):
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
            _remove_unfinished(folder)
            yield

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._fs.rm_file(self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"


def _remove_unfinished(folder: Path) -> None:
    """Remove files of documents that were being written long ago; others may do so, too."""
    oldest = time.time() - UNFINISHED_SECONDS
    for entry in os.scandir(folder):
        if UNFINISHED.fullmatch(entry.name):
            with contextlib.suppress(OSError):  # gone, or another user's
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
