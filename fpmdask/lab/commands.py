"""Running the system's own tools (ip, tc, swapon) with errors that say what failed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from fpmdask.errors import LabError

# The tools of iproute2 and util-linux live here, also where an ordinary user's PATH lacks them.
_SYSTEM_PATH = os.pathsep.join(("/usr/local/sbin", "/usr/sbin", "/sbin"))


def tool(name: str) -> str | None:
    """Return the path of a system tool, or None if it is not installed."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), _SYSTEM_PATH)))


def run(argv: Sequence[str]) -> str:
    """Run a system tool and return what it printed.

    Parameters
    ----------
    argv : sequence of str
        Tool and arguments.

    Raises
    ------
    LabError
        If the tool is missing, fails or takes more than 30 s.
    """
    path = tool(argv[0])
    if path is None:
        raise LabError(f"the tool {argv[0]!r} is not installed; `fpmdask doctor` says where it is")
    try:
        done = subprocess.run(
            [path, *argv[1:]],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{' '.join(argv)}` took more than 30 s") from error
    if done.returncode:
        raise LabError(
            f"`{' '.join(argv)}` failed: {done.stderr.strip() or f'exit code {done.returncode}'}; "
            "`fpmdask doctor` says what this machine allows"
        )
    return done.stdout
