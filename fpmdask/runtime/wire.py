"""What the processes of an application's run tell each other, as TypedDicts.

`Request` is what a client asks for; `Step` has what a step on workers and the coordinator tell each
other; `Messages` all of an application. They are checked where they arrive, by
`fpmdask.runtime.validation`. What all runs need is in `fpmdask.runtime.protocol`, which lists every
message that crosses a process border.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, NotRequired, TypedDict

from fpmdask.runtime.validation import MalformedError as MalformedError
from fpmdask.runtime.validation import check_message as check_message
from fpmdask.runtime.validation import check_named as check_named

# ---- requests of clients, and what they get


class Measuring(TypedDict):
    """How speeds are measured; durations are seconds."""

    epsilon: float
    thorough: bool
    max_rounds: int
    policy: Mapping[str, Any] | None
    deadline: float
    hang: float
    scout: NotRequired[int]
    least_gain: NotRequired[float | None]


class Request(TypedDict):
    """What every request for a run has; durations are seconds."""

    workers: Sequence[str] | None
    measuring: Measuring
    recovery: NotRequired[float]
    within: NotRequired[str]


class Foreign(Request):
    """A request of another package's application; ``spec`` is the caller's."""

    spec: Mapping[str, Any]


class Packed(TypedDict):
    """A kernel: a registered one, or a user's code as bytes that only workers open."""

    name: str
    parameters: Mapping[str, Any]
    code: NotRequired[bytes]
    digest: NotRequired[str]
    factory: NotRequired[str]


class ErrorFacts(TypedDict):
    """An exception as plain data: `fpmdask.runtime.remote_errors.describe_error`."""

    type: str
    message: str
    traceback: str
    pickled: bytes | None
    summary: NotRequired[str]


# ---- steps on workers


class StepOrder(TypedDict):
    """What every order of a step has."""

    run: str
    ticket: int


class TeamOrder(StepOrder):
    """What every order of a step of a team has: its attempt, how workers are reached.

    ``bare`` are those without fpmdask.
    """

    attempt: int
    channels: Mapping[str, tuple[str, int]]
    bare: NotRequired[Sequence[str]]


class StepAnswer(TypedDict):
    """What every answer of a step has: the seconds that it took."""

    elapsed: float


class TeamEvent(TypedDict):
    """What every event of a step of a team has."""

    attempt: int


class Cancelled(StepAnswer):
    """The step was stopped."""

    cancelled: bool


class Raised(StepAnswer):
    """The step has raised: others may do better."""

    error: ErrorFacts


class Failed(StepAnswer):
    """The step has raised what others would raise, too."""

    failed: ErrorFacts


class Missing(StepAnswer):
    """A peer does not give what the step needs."""

    missing: str


class Unusable(StepAnswer):
    """No worker could use what there is."""

    unusable: str


class Refused(StepAnswer):
    """The step was sent a malformed order or command."""

    malformed: str


@dataclass(frozen=True)
class Step:
    """A step on workers, and the messages between it and the coordinator.

    Each kind of message is a TypedDict, or a union of some.

    Parameters
    ----------
    name
        ``"module:function"`` of worker code.
    order
        What it is called with.
    answer
        What it ends with, where it is not stopped and does not raise.
    command, event
        What it is told amid, and what it tells. None: nothing.
    """

    name: str
    order: Any
    answer: Any
    command: Any = None
    event: Any = None

    @cached_property
    def answers(self) -> Any:
        """All that it may end with."""
        return self.answer | Cancelled | Raised | Failed | Missing | Unusable | Refused


class Question(NamedTuple):
    """What a run asks its client, and what that answers: TypedDicts."""

    asked: Any
    answer: Any


@dataclass(frozen=True)
class Messages:
    """What the processes of an application's run tell each other, beside the request.

    Parameters
    ----------
    value
        What the client gets.
    steps
        Those on workers.
    events
        What the client is told amid, by its name, beside `EVENTS`.
    questions
        What the client is asked for, by its name.
    """

    value: Any = Mapping[str, Any]
    steps: tuple[Step, ...] = ()
    events: Mapping[str, Any] = field(default_factory=dict)
    questions: Mapping[str, Question] = field(default_factory=dict)


class Nothing(TypedDict):
    """A message without parts."""


class Asked(TypedDict):
    """What every request to a client has: its name."""

    request: str


# Of an application without steps, whose value is anything.
PLAIN = Messages()
# Of one whose client does all while a run holds workers for it.
STAGES = Messages(Nothing, questions={"work": Question(Asked, Nothing)})


class TimedOrder(StepOrder):
    """Time the run's kernel."""

    units: int
    policy: Mapping[str, Any]
    deadline: float


class TimedAnswer(StepAnswer):
    """A `fpmdask.timing.Timing`."""

    seconds: float
    half_width: float
    repetitions: int
    total_seconds: float
    reason: str


# The command that ends any step.
STOP: Mapping[str, Any] = {"stop": True}

TIMED = Step("fpmdask.runtime.worker.steps:timed", TimedOrder, TimedAnswer)


# ---- what the client is told


class Event(TypedDict):
    """What every event has: its name, and the seconds since the run began."""

    event: str
    seconds: float


class Started(Event):
    """The run has begun."""

    app: str
    phases: Mapping[str, float]


class Progressed(Event):
    """How far a phase is; ``expected`` are the seconds that it should take."""

    phase: str
    done: NotRequired[float]
    total: NotRequired[float | None]
    unit: NotRequired[str]
    expected: NotRequired[float | None]


class StepBegun(Event):
    """A team begins a step."""

    step: str
    attempt: int
    phase: str
    expected: NotRequired[float | None]


class RoundEnded(Event):
    """A round of DFPA has ended."""

    number: int
    units: Mapping[str, int]
    kernel_seconds: Mapping[str, float | None]
    imbalance: float | None
    wall_seconds: float
    overhead_seconds: float
    phase: str
    done: int
    unit: str


class Waiting(Event):
    """Workers are waited for: they are busy, used by runs, hold lost chunks, or have left.

    With a ``reason`` the others cannot go on without one of those that have left.
    """

    workers: Sequence[str]
    reason: NotRequired[str]
    tasks: NotRequired[Mapping[str, str]]
    busy_seconds: NotRequired[Mapping[str, float]]
    runs: NotRequired[Sequence[str]]
    chunks: NotRequired[int]


class Joined(Event):
    """A worker takes part from now on."""

    worker: str


class LeftOut(Event):
    """A worker takes no further part."""

    worker: str
    reason: str


class StartingOver(Event):
    """A worker was lost: the others begin again."""

    reason: str


class Recomputing(Event):
    """Lost chunks are made again."""

    chunks: int


class Stale(Event):
    """An answer to a round that is over was dropped."""

    worker: str
    answered: int
    current: int


# Events of all applications, by their name.
EVENTS: Mapping[str, Any] = {
    "start": Started,
    "progress": Progressed,
    "step": StepBegun,
    "round": RoundEnded,
    "waiting": Waiting,
    "joined": Joined,
    "left out": LeftOut,
    "starting over": StartingOver,
    "recomputing": Recomputing,
    "stale": Stale,
}
