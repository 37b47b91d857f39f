"""What the plots show, as values: a snapshot of the coordinator. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fpmdask.models import PiecewiseLinearModel


@dataclass(frozen=True)
class SpeedFunction:
    """One worker's model of a kernel.

    Attributes
    ----------
    worker : str
    model : PiecewiseLinearModel
        Its points are those measured.
    half_widths : dict
        Units → half the confidence interval of the seconds measured there, where it is known.
    share : float or None
        Units that it gets.
    """

    worker: str
    model: PiecewiseLinearModel
    half_widths: Mapping[float, float] = field(default_factory=dict)
    share: float | None = None


@dataclass(frozen=True)
class Speeds:
    """The speed functions of the workers of a run.

    Attributes
    ----------
    kernel : str
    functions : tuple of SpeedFunction
        In worker order.
    seconds : float or None
        In which all of them finish their shares of the kernel.
    """

    kernel: str
    functions: tuple[SpeedFunction, ...]
    seconds: float | None = None


@dataclass(frozen=True)
class Share:
    """What one worker has to do, in units, and when it ends, in seconds of its run.

    ``end`` is None where nothing tells; ``ended`` says that it is not expected, but was so.
    """

    worker: str
    planned: float
    done: float
    end: float | None = None
    ended: bool = False


@dataclass(frozen=True)
class Piece:
    """What one worker did, and for how long, in seconds of its run; ``open`` while it goes on."""

    worker: str
    activity: str
    began: float
    seconds: float
    step: str = ""
    open: bool = False


@dataclass(frozen=True)
class LinkBytes:
    """Bytes that a worker has received from another one since it started."""

    receiver: str
    sender: str
    nbytes: int


@dataclass(frozen=True)
class Memory:
    """A worker's memory in bytes.

    ``plan`` is what plans may fill, ``limit`` the most that it may use; both 0 for no limit.
    """

    worker: str
    data: float
    beside: float
    recent: float
    spilled: float
    plan: float
    limit: float


@dataclass(frozen=True)
class Run:
    """A run in one line.

    Attributes
    ----------
    run, app : str
    began : float
        Seconds since the epoch.
    seconds : float
        Since then, or what it took.
    state : str
        "running", "finished", "failed" or "cancelled".
    phase : str
        What goes on, in words.
    fraction : float
        From 0 to 1.
    workers : int
        That have a share.
    reason : str
        How its shares were found, or why it failed.
    left_out : str
        Names of workers, each with the reason.
    """

    run: str
    app: str
    began: float
    seconds: float
    state: str
    phase: str
    fraction: float
    workers: int
    reason: str
    left_out: str


@dataclass(frozen=True)
class Snapshot:
    """The coordinator at one moment.

    Attributes
    ----------
    workers : tuple of str
        Names of the connected workers and of those of the run that is shown, in order.
    run : Run or None
        Whose shares and timeline are shown: the one that began last, and has any.
    now : float
        Seconds since it began, or until its end.
    speeds : Speeds or None
    shares : tuple of Share
    pieces : tuple of Piece
        The timeline, in the order in which steps began; those that go on come last.
    predicted : tuple of Piece
        The timeline as it was predicted.
    links : tuple of LinkBytes
    memory : tuple of Memory
    runs : tuple of Run
        Those that go on, and the last ten; the newest first.
    """

    workers: tuple[str, ...] = ()
    run: Run | None = None
    now: float = 0.0
    speeds: Speeds | None = None
    shares: tuple[Share, ...] = ()
    pieces: tuple[Piece, ...] = ()
    predicted: tuple[Piece, ...] = ()
    links: tuple[LinkBytes, ...] = ()
    memory: tuple[Memory, ...] = ()
    runs: tuple[Run, ...] = ()
