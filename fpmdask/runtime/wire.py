"""Messages between processes are declared as TypedDicts, and checked where they arrive.

`Request` is what a client asks for; `Step` has what a step on workers and the coordinator tell each
other; `Messages` all of an application. Lists and mappings are looked at, not read: of each the
first `LOOKED_AT` elements, since checks run on event loops.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from typing import (
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fpmdask.errors import CoordinatorError

# What a number may be sent as.
_NUMBERS: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float)}
# Of a list or a mapping so many elements are looked at.
LOOKED_AT = 16

Fits = Callable[[Any], bool]


class MalformedError(CoordinatorError):
    """A message is not what its TypedDict declares."""


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


class RunResult(TypedDict):
    """How a run has ended: with its value or its error."""

    report: Mapping[str, Any]
    value: NotRequired[Mapping[str, Any]]
    error: NotRequired[ErrorFacts]


class Poll(TypedDict):
    """What a client gets of a run since it asked last."""

    events: Sequence[Mapping[str, Any]]
    requests: Sequence[Mapping[str, Any]]
    result: NotRequired[RunResult]


# ---- workers


class Prepared(TypedDict):
    """What a worker answers that is to take part in a run."""

    name: str
    start: str
    fingerprint: Mapping[str, Any]
    channel: tuple[str, int] | None
    kernel: NotRequired[Mapping[str, str]]
    error: NotRequired[ErrorFacts]


class Unprepared(TypedDict):
    """What a worker answers that cannot take part in any."""

    unusable: str


class Published(TypedDict):
    """What a worker has made Dask data: key → bytes, and type."""

    nbytes: Mapping[Any, int]
    types: Mapping[Any, str]


class Places(TypedDict):
    """Where a client's tasks can be: see `fpmdask.runtime.coordinator.client_stages`."""

    places: Sequence[str]
    threads: Mapping[str, int]
    bare: Sequence[str]


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
    """Workers are waited for: they are busy, used by runs, or hold lost chunks."""

    workers: Sequence[str]
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


# ---- checks


def check_message(kind: Any, message: Any, what: str, *, partial: bool = False) -> None:
    """Refuse a message that is not what a TypedDict declares, or one of a union of these.

    Parameters
    ----------
    kind
        The TypedDict, or the union.
    message
        What has come.
    what
        What it is called in the error.
    partial
        Whether parts may be missing.

    Raises
    ------
    MalformedError
        Naming the part, what was found and what is allowed. Its sender gets it.

    Examples
    --------
    >>> check_message(Packed, {"name": "power", "parameters": {}}, "the kernel")
    >>> check_message(Packed, {"name": 3, "parameters": {}}, "the kernel")
    Traceback (most recent call last):
        ...
    fpmdask.runtime.wire.MalformedError: the kernel's name is an int; it must be str
    >>> check_message(Unprepared, {"units": 3}, "the answer")
    Traceback (most recent call last):
        ...
    fpmdask.runtime.wire.MalformedError: the answer has no part units; parts are unusable
    """
    if kind is None:
        raise MalformedError(f"{what} is unknown: none is declared")
    if not isinstance(message, Mapping):
        raise MalformedError(f"{what} is {_kind(message)}; it must be a mapping")
    if _is_union(kind):
        _check_any(get_args(kind), message, what)
        return
    if not is_typeddict(kind):
        _check(kind, _fitting(kind), message, what)
        return
    parts, required = _parts(kind)
    for name, value in message.items():
        if name not in parts:
            raise MalformedError(f"{what} has no part {name}; parts are {', '.join(parts)}")
        _check(*parts[name], value, f"{what}'s {name}")
    if not partial and (missing := sorted(required - message.keys())):
        raise MalformedError(f"{what} lacks {', '.join(missing)}")


def check_named(kinds: Mapping[str, Any], name: Any, message: Any, what: str) -> None:
    """Refuse a message that is of none of some kinds, by its name, or is malformed.

    Raises
    ------
    MalformedError
        As `check_message`.
    """
    if name not in kinds:
        raise MalformedError(f"{what} is {name!r}; known are {', '.join(map(str, kinds))}")
    check_message(kinds[name], message, f"{what} {name!r}")


def _check_any(kinds: Sequence[Any], message: Mapping[str, Any], what: str) -> None:
    refusal: MalformedError | None = None
    for kind in kinds:
        parts, required = _parts(kind)
        if required <= message.keys() <= parts.keys():
            try:
                check_message(kind, message, what)
            except MalformedError as error:
                refusal = refusal or error
            else:
                return
    if refusal is not None:
        raise refusal
    found = ", ".join(map(str, message)) or "none"
    allowed = " | ".join(", ".join(_parts(kind)[0]) for kind in kinds)
    raise MalformedError(f"{what} has the parts {found}; allowed are {allowed}")


@cache
def _parts(kind: Any) -> tuple[dict[str, tuple[Any, Fits]], frozenset[str]]:
    """Return the type of each of a message's parts, what checks it, and which must be there.

    ``__required_keys__`` alone is wrong where annotations are strings.
    """
    marked = get_type_hints(kind, include_extras=True)
    optional = {name for name, one in marked.items() if get_origin(one) is NotRequired}
    parts = {name: (one, _fitting(one)) for name, one in get_type_hints(kind).items()}
    return parts, frozenset(kind.__required_keys__ - optional)


def _check(kind: Any, fits: Fits, value: Any, what: str) -> None:
    if fits(value):
        return
    if is_typeddict(kind):
        check_message(kind, value, what)  # says which part of it
    text = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
    raise MalformedError(f"{what} is {_kind(value)}; it must be {text}")


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


@cache
def _fitting(kind: Any) -> Fits:
    """Return what tells whether a value is of a kind."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: True
    if kind is None or kind is type(None):
        return lambda value: value is None
    if _is_union(kind):
        some = [_fitting(one) for one in args]
        return lambda value: any(one(value) for one in some)
    if origin is Literal:
        return lambda value: value in args
    if is_typeddict(kind):
        return lambda value: _is_message(kind, value)
    if origin is tuple:
        of = [_fitting(one) for one in args]
        return lambda value: (
            isinstance(value, list | tuple)
            and len(value) == len(of)
            and all(one(part) for one, part in zip(of, value, strict=True))
        )
    if origin is Sequence:
        each = _fitting(args[0])
        return lambda value: isinstance(value, list | tuple) and all(map(each, value[:LOOKED_AT]))
    if origin is Mapping:
        key, each = _fitting(args[0]), _fitting(args[1])
        return lambda value: (
            isinstance(value, Mapping)
            and all(key(k) and each(v) for k, v in islice(value.items(), LOOKED_AT))
        )
    if kind in _NUMBERS:
        allowed = _NUMBERS[kind]
        return lambda value: isinstance(value, allowed) and not isinstance(value, bool)
    return lambda value: isinstance(value, kind)


def _is_message(kind: Any, value: Any) -> bool:
    try:
        check_message(kind, value, "")
    except MalformedError:
        return False
    return True


def _kind(value: Any) -> str:
    """Return the name of a value's type with an article; None by itself."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
