"""What a lab made, on disk before it is made, so that any later process can take it down."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fpmdask.errors import LabError
from fpmdask.lab.processes import Process, boot_id

FORMAT = "fpmdask.lab.state"
VERSION = 1


@dataclass(frozen=True)
class LabState:
    """A lab as recorded: everything that exists because of it, and nothing else.

    Parameters
    ----------
    name : str
        Name of the lab.
    identity : str
        Random suffix in the names of all that it made.
    backend : {"root", "duty-cycle"}
        How its workers are made unequal.
    boot : str
        Identity of the boot; pids of another one mean nothing.
    folder : str
        Folder of logs and worker files.
    owner : Process or None
        The driver that the lab ends with; ``None`` if it stays.
    scheduler_address : str
        Where clients connect; empty until the scheduler listens.
    network : str
        The lab's addresses, empty without namespaces.
    bridge : str
        Name of the bridge, empty without namespaces.
    namespaces, veths, groups, swap_files : tuple of str
        Names and paths.
    processes : tuple of Process
        All that it started.
    quotas : dict
        Cores in force, by worker; a worker that is not in it is not held back.
    period : float
        Seconds of a quota's period.
    notes : tuple of str
        What this machine cannot do of what the definition asks.
    """

    name: str
    identity: str
    backend: str
    boot: str
    folder: str
    owner: Process | None = None
    scheduler_address: str = ""
    network: str = ""
    bridge: str = ""
    namespaces: tuple[str, ...] = ()
    veths: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    swap_files: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    quotas: Mapping[str, float] = field(default_factory=dict)
    period: float = 0.010
    notes: tuple[str, ...] = ()

    def process(self, role: str) -> Process | None:
        """Return the newest process with a role, or None."""
        return next((p for p in reversed(self.processes) if p.role == role), None)

    def condition(self) -> str:
        """Return how the lab is.

        Returns
        -------
        {"starting", "up", "broken", "stale"}
            ``"broken"``: its driver runs, its scheduler does not. ``"stale"``: nobody needs it
            any more and it may be cleared away.
        """
        scheduler = self.process("scheduler")
        running = scheduler is not None and scheduler.alive()
        owned = self.owner is not None and self.owner.alive()
        if self.boot != boot_id() or not (owned or (self.owner is None and running)):
            return "stale"
        if not self.scheduler_address:
            return "starting"
        return "up" if running else "broken"

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``, with the format and its version."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "the lab's state") -> LabState:
        """Return the state that `to_json` wrote.

        Raises
        ------
        LabError
            If the data are of another format or version.
        """
        values = dict(data)
        found = (values.pop("format", None), values.pop("version", None))
        if found != (FORMAT, VERSION):
            raise LabError(
                f"{where} has format {found[0]!r} version {found[1]!r}, this fpmdask reads "
                f"{FORMAT!r} version {VERSION}; take the lab down with the version that made it"
            )
        owner = values.pop("owner")
        processes = tuple(Process(**p) for p in values.pop("processes"))
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(owner=Process(**owner) if owner else None, processes=processes, **values)


class Ledger:
    """The state file of one lab; each change is on disk before this object returns.

    Parameters
    ----------
    path : Path
        The file.
    state : LabState
        What to begin with; written at once.
    """

    def __init__(self, path: Path, state: LabState) -> None:
        self.path = path
        self.state = state
        write_state(path, state)

    def record(self, **changes: Any) -> None:
        """Replace fields; tuples are extended by what is given."""
        for key, value in changes.items():
            if isinstance(value, tuple):
                changes[key] = getattr(self.state, key) + value
        self.state = replace(self.state, **changes)
        write_state(self.path, self.state)


def runtime_folder() -> Path:
    """Return the folder of the state files, made if it is missing and private to this user.

    Raises
    ------
    LabError
        If the folder belongs to another user.
    """
    user = os.geteuid()
    if user == 0 and os.access("/run", os.W_OK):
        folder = Path("/run/fpmdask")
    elif user != 0 and os.access(os.environ.get("XDG_RUNTIME_DIR", ""), os.W_OK):
        folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "fpmdask"
    else:
        folder = Path(tempfile.gettempdir()) / f"fpmdask-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != user or folder.is_symlink():
        raise LabError(
            f"the lab's folder {folder} belongs to another user; remove it or set XDG_RUNTIME_DIR "
            "to a folder of your own"
        )
    return folder


def state_path(name: str) -> Path:
    """Return where the state of the lab with that name is kept."""
    return runtime_folder() / f"{name}.json"


def write_state(path: Path, state: LabState) -> None:
    """Write a state so that a reader sees the old or the new one, never a part."""
    draft = path.with_suffix(f".{os.getpid()}.part")
    draft.write_text(json.dumps(state.to_json(), indent=1), encoding="utf-8")
    os.replace(draft, path)


def read_state(path: Path) -> LabState | None:
    """Return a recorded state, or None if there is none.

    Raises
    ------
    LabError
        If the file cannot be understood.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise LabError(f"{path} is not a lab's state: {error}; look at it and remove it") from error
    return LabState.from_json(data, str(path))


def recorded() -> tuple[tuple[Path, LabState], ...]:
    """Return all labs that this user has recorded, with their files, by name."""
    found = []
    for path in sorted(runtime_folder().glob("*.json")):
        state = read_state(path)
        if state is not None:
            found.append((path, state))
    return tuple(found)


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Hold the lock that keeps two labs of this user from being recorded at the same moment."""
    with open(runtime_folder() / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
