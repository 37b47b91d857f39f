"""A swap file, so that a worker beyond its memory limit really pages."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from fpmdask.errors import LabError
from fpmdask.lab.commands import run


def folders() -> tuple[Path, ...]:
    """Return the folders that may hold a swap file, the likeliest to lie on a disk first."""
    return tuple(dict.fromkeys((Path("/var/tmp"), Path(tempfile.gettempdir()), Path("/"))))


def make(path: Path, nbytes: int) -> None:
    """Make a swap file and swap on it.

    Parameters
    ----------
    path : Path
        File to make.
    nbytes : int
        Size.

    Raises
    ------
    LabError
        If there is no room, or the file system or the machine allows no swap file.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LabError(f"cannot make the swap file {path}: {error.strerror}") from error
    run(("mkswap", str(path)))
    run(("swapon", str(path)))


def remove(path: Path) -> None:
    """Swap off and delete; nothing to do if the file is gone.

    Raises
    ------
    LabError
        If the file is still swapped on afterwards.
    """
    if in_use(path):
        run(("swapoff", str(path)))
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def in_use(path: Path) -> bool:
    """Whether the kernel swaps on that file."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/swaps").read_text("utf-8").splitlines()[1:]
        return any(line.split()[0] == str(path) for line in lines)
    return False
