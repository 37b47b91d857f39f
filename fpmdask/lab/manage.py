"""Labs that stay: what ``fpmdask lab up``, ``status`` and ``down`` call."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fpmdask.errors import LabError
from fpmdask.lab.assembly import clear_stale
from fpmdask.lab.lab import Lab
from fpmdask.lab.state import LabState, exclusive, recorded
from fpmdask.lab.teardown import take_down


@dataclass(frozen=True)
class WorkerStatus:
    """A worker of a recorded lab.

    Parameters
    ----------
    name : str
        The worker.
    pid : int
        Its process.
    alive : bool
        Whether that process runs.
    quota : float or None
        Cores in force; ``None`` is no quota.
    """

    name: str
    pid: int
    alive: bool
    quota: float | None


@dataclass(frozen=True)
class LabStatus:
    """A recorded lab and how it is.

    Parameters
    ----------
    name : str
        The lab.
    condition : {"starting", "up", "broken", "stale"}
        As `LabState.condition` returns.
    backend : {"root", "duty-cycle"}
        How its workers are made unequal.
    scheduler_address : str
        Where clients connect.
    owner : int or None
        The driver that it ends with; ``None`` if it stays.
    folder : str
        Its logs.
    workers : tuple of WorkerStatus
        Its workers.
    notes : tuple of str
        What this machine cannot do of what the definition asks.
    """

    name: str
    condition: str
    backend: str
    scheduler_address: str
    owner: int | None
    folder: str
    workers: tuple[WorkerStatus, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, state: LabState) -> LabStatus:
        """Return the status of a recorded lab, as it is now."""
        newest = {
            process.role.removeprefix("worker "): process
            for process in state.processes
            if process.role.startswith("worker ")
        }
        return cls(
            name=state.name,
            condition=state.condition(),
            backend=state.backend,
            scheduler_address=state.scheduler_address,
            owner=state.owner.pid if state.owner else None,
            folder=state.folder,
            workers=tuple(
                WorkerStatus(name, process.pid, process.alive(), state.quotas.get(name))
                for name, process in newest.items()
            ),
            notes=state.notes,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return asdict(self)


def up(
    name_or_path: str | Path, *, name: str | None = None, backend: str | None = None
) -> LabState:
    """Start a lab that stays after this process ends.

    Parameters
    ----------
    name_or_path : str or Path
        A definition's name or file.
    name : str, optional
        Another name for the lab.
    backend : {"auto", "root", "duty-cycle"}, optional
        In place of the definition's.

    Returns
    -------
    LabState
        What was made; its ``scheduler_address`` is where clients connect.

    Raises
    ------
    LabError
        If there is no such definition, a lab of that name is up, or this machine cannot make it.
    """
    lab = Lab.from_toml(name_or_path, name=name, backend=backend, detached=True)
    return lab.up().state


def status() -> tuple[LabStatus, ...]:
    """Return this user's labs, by name."""
    return tuple(LabStatus.of(state) for _, state in recorded())


def down(name: str | None = None) -> tuple[LabState, ...]:
    """Take labs down and return what they were.

    Parameters
    ----------
    name : str, optional
        The lab, whoever uses it. Without a name: every lab that stays and every stale one, but
        none whose driver runs, for that takes its own down.

    Returns
    -------
    tuple of LabState
        The labs that were taken down.

    Raises
    ------
    LabError
        If no lab has that name, or something would not go.
    """
    with exclusive():
        labs = recorded()
        if name is None:
            stale = clear_stale()
            left = [(path, state) for path, state in labs if state not in stale]
            chosen = [(path, state) for path, state in left if state.owner is None]
        else:
            stale = ()
            chosen = [(path, state) for path, state in labs if state.name == name]
            if not chosen:
                names = ", ".join(state.name for _, state in labs) or "none"
                raise LabError(f"no lab named {name!r} is recorded; recorded are: {names}")
        for path, state in chosen:
            take_down(path, state)
    return (*stale, *(state for _, state in chosen))
