"""Fixtures for labs that are really made."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fpmdask.lab import LabState
from fpmdask.lab.backends import why_not_root
from fpmdask.lab.state import state_path


@pytest.fixture(scope="session")
def root() -> None:
    """Skip where root's backend cannot work."""
    if (reason := why_not_root()) is not None:
        pytest.skip(f"the lab's root backend cannot work here: {reason}")


@pytest.fixture(scope="session")
def prefix() -> str:
    """Begin names of labs; the pid keeps two runs of these tests on one machine apart."""
    return f"test-{os.getpid()}"


def _until(done: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := done()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(0.05)
    return result


def _traces(state: LabState) -> set[str]:
    """Return everything on this machine that bears the lab's marks."""
    marks = (state.identity, str(state_path(state.name)))
    found = {str(path) for path in Path("/run/netns").glob("*") if marks[0] in path.name}
    found |= {str(path) for path in Path("/sys/class/net").glob("*") if marks[0] in path.name}
    for pattern in (f"*{marks[0]}*", f"*/*{marks[0]}*"):
        found |= {str(path) for path in Path("/sys/fs/cgroup").glob(pattern)}
    found |= {line for line in Path("/proc/swaps").read_text().splitlines() if marks[0] in line}
    found |= {
        str(path) for folder in ("/tmp", "/var/tmp") for path in Path(folder).glob(f"*{marks[0]}*")
    }
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found |= {f"{command.parent.name} {line}" for mark in marks if mark in line}
    found |= {str(path) for path in (state_path(state.name),) if path.exists()}
    return found


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    """Wait until a function returns something true, and return it."""
    return _until


@pytest.fixture(scope="session")
def traces() -> Callable[[LabState], set[str]]:
    """Return everything on this machine that bears a lab's marks."""
    return _traces


@pytest.fixture
def small_disk(tmp_path: Path, root: None) -> Iterator[Path]:
    """A disk of 20 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
