"""Every message that crosses a process border, and what it brings. Pure.

Calls, which are answered (`fpmdask.runtime.rpc.Call`):

=============  =========  =========  ===========================  ========================
call           from       to         parameters                   answer
=============  =========  =========  ===========================  ========================
HELLO          client     scheduler  version                      Greeting
MEMORY         client     scheduler  workers                      address → Account
CHECK          client     scheduler  app, client, spec            ErrorFacts or None
START          client     scheduler  app, client, spec            the run's id
POLL           client     scheduler  run, seen, asked             Poll
ANSWER         client     scheduler  run, number, answer          None
CANCEL         client     scheduler  run                          None
PLACES         client     scheduler  run, keys                    Places
LOOK           client     scheduler  run, homes, seconds, done    Look
MODELS         client     scheduler  none                         machines and ModelFacts
FORGET_MODELS  client     scheduler  kernel, worker               their count
PREPARE        scheduler  worker     run, kernel, tasks           Prepared or Unprepared
PROBE          scheduler  worker     run, peer, channel           Probe
PUBLISH        scheduler  worker     run, chunks                  Published or None
REPLICATE      scheduler  worker     names                        Replicas
TRIM           scheduler  worker     none                         None
PIECES         worker     worker     run, reader, wanted, wait    pieces, or why not
=============  =========  =========  ===========================  ========================

Notices, which are not (`fpmdask.runtime.rpc.Notice`):

=================  =========  =========  =============================================
notice             from       to         parameters
=================  =========  =========  =============================================
STEP_ANSWER        worker     scheduler  run, ticket, answer: as the `Step` declares
STEP_EVENT         worker     scheduler  run, ticket, event: as the `Step` declares
REFUSED_BY_WORKER  worker     scheduler  run, reason
COMMAND            scheduler  worker     run, to, command: as the `Step` declares
FORGET             scheduler  worker     run
WITHDRAW           scheduler  worker     run, keys
WORKER_GONE        scheduler  worker     worker
WORKER_BACK        scheduler  worker     worker
WORKER_STOPPED     scheduler  worker     worker
LIST_AGAIN         scheduler  worker     keys
REFUSED            scheduler  worker     run, reason
=================  =========  =========  =============================================

Besides, checked elsewhere:

- Orders of steps: in the tasks that `fpmdask.runtime.tasks.run_step` are, from the scheduler to a
  worker; declared by the application's `Step`, checked by `fpmdask.runtime.worker.steps.step`.
- Requests, events, questions and values of applications: parts of START, POLL and ANSWER, declared
  by `App.request` and `App.messages`.
- `PieceRequest` and `PieceHeader`: between workers, on the sockets of
  `fpmdask.runtime.worker.channel`, before the rows of arrays.
- ``fpmdask_received`` in workers' heartbeats: address → bytes, `fpmdask.runtime.worker.traffic`.
- Pickled by us, for the same version only: `CoordinatorPlugin`, with `CoordinatorSettings`, from a
  client; the worker's plugin (`worker_shim`: slots, kernels, tasks, tuning) from the scheduler.
- Arguments of ordinary Dask tasks of clients, and `client.run` of `check_target` for Zarr: Python
  functions that travel with their arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from fpmdask.runtime.identity import Fingerprint, KernelId
from fpmdask.runtime.known_models import KnownMachine, ModelFacts
from fpmdask.runtime.memory import Account
from fpmdask.runtime.regions import Box
from fpmdask.runtime.rpc import Call, Notice
from fpmdask.runtime.wire import ErrorFacts, Nothing, Packed

# Where a worker listens for other ones: host and port.
ChannelAddress = tuple[str, int]
# (key, box, version, shape of the chunk; None for what a run offers)
Wanted = tuple[Any, Box, int, tuple[int, ...] | None]


class OfRun(TypedDict):
    """What concerns one run."""

    run: str


# ---- clients ask the scheduler


class Hello(TypedDict):
    """A client's version of fpmdask."""

    version: str


@dataclass(frozen=True)
class Greeting:
    """The scheduler's version of fpmdask, and how many workers are connected."""

    version: str
    workers: int


class CoordinatorSettings(TypedDict):
    """Applications (name → ``"module:attribute"``), and the resource ``fpm`` of every worker."""

    apps: Mapping[str, str]
    slots: int


class MemoryOf(TypedDict):
    """Names or addresses of workers; None: of all."""

    workers: Sequence[str] | None


class Asking(TypedDict):
    """A request of a client for a run, which the application's `request` declares."""

    app: str
    client: str
    spec: Mapping[str, Any]


class Polling(OfRun):
    """How many events and requests of a run the client has seen."""

    seen: int
    asked: int


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


class ClientAnswer(OfRun):
    """What a client answers to a request of its run, which the application declares."""

    number: int
    answer: Any


class KeysOf(OfRun):
    """Keys of a run."""

    keys: Sequence[Any]


@dataclass(frozen=True)
class Places:
    """Where a client's tasks can be: see `fpmdask.runtime.coordinator.client_stages`.

    Attributes
    ----------
    places
        A worker for each of some results: one that holds it, unless all these are busy.
    threads
        Of each worker that may be used.
    bare
        Those of them without fpmdask.
    """

    places: Sequence[str]
    threads: Mapping[str, int]
    bare: Sequence[str]


class Looking(OfRun):
    """Where a client's stage is, for how many seconds, and which of its tasks are done."""

    homes: Sequence[str]
    seconds: float
    done: Sequence[Any]


@dataclass(frozen=True)
class Look:
    """Why a client's stage must start over, None where it goes on."""

    left: str | None


class ModelsOf(TypedDict):
    """Names of a kernel and a worker; None: of any."""

    kernel: str | None
    worker: str | None


HELLO: Call[Greeting] = Call("fpmdask_hello", Hello, Greeting)
MEMORY: Call[Mapping[str, Account]] = Call("fpmdask_memory", MemoryOf, Mapping[str, Account])
CHECK: Call[ErrorFacts | None] = Call("fpmdask_check", Asking, ErrorFacts | None)
START: Call[str] = Call("fpmdask_start", Asking, str)
POLL: Call[Poll] = Call("fpmdask_poll", Polling, Poll)
ANSWER: Call[None] = Call("fpmdask_answer", ClientAnswer, None)
CANCEL: Call[None] = Call("fpmdask_cancel", OfRun, None)
PLACES: Call[Places] = Call("fpmdask_places", KeysOf, Places)
LOOK: Call[Look] = Call("fpmdask_look", Looking, Look)
MODELS: Call[Sequence[KnownMachine | ModelFacts]] = Call(
    "fpmdask_models", Nothing, Sequence[KnownMachine | ModelFacts], is_plain=True
)
FORGET_MODELS: Call[int] = Call("fpmdask_forget_models", ModelsOf, int)


# ---- the scheduler asks workers


class Preparing(OfRun):
    """A kernel to open for a run, and the modules of its tasks."""

    kernel: NotRequired[Packed | None]
    tasks: NotRequired[Sequence[str]]


@dataclass(frozen=True)
class Prepared:
    """A worker that is to take part in a run: its names and hardware, and what it has opened.

    Attributes
    ----------
    name, start
        Its name, and the id of this start of its process.
    fingerprint
        What makes it fast or slow.
    channel
        Where it listens for others; None where it does not.
    kernel
        What it has opened.
    error
        What that raised.
    """

    name: str
    start: str
    fingerprint: Fingerprint
    channel: ChannelAddress | None
    kernel: KernelId | None = None
    error: ErrorFacts | None = None


@dataclass(frozen=True)
class Unprepared:
    """Why a worker cannot take part in any run."""

    unusable: str


class Probing(OfRun):
    """Another worker, and where it listens."""

    peer: str
    channel: ChannelAddress


@dataclass(frozen=True)
class Probe:
    """Seconds per byte that come from another worker, None where none come."""

    seconds_per_byte: float | None


class Publishing(OfRun):
    """(Dask key, part, bounds of the chunk) of each chunk to publish."""

    chunks: Sequence[tuple[Any, int, Any]]


@dataclass(frozen=True)
class Published:
    """What a worker has made Dask data: key → bytes, and type."""

    nbytes: Mapping[Any, int]
    types: Mapping[Any, str]


class Replicating(TypedDict):
    """(New key, key that is there) of each value."""

    names: Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class Replicas:
    """The new keys."""

    keys: Sequence[Any]


# None is what Dask answers where there is no such handler, yet or any more.
PREPARE: Call[Prepared | Unprepared | None] = Call(
    "fpmdask_prepare", Preparing, Prepared | Unprepared | None
)
PROBE: Call[Probe] = Call("fpmdask_probe", Probing, Probe)
PUBLISH: Call[Published | None] = Call("fpmdask_publish", Publishing, Published | None)
REPLICATE: Call[Replicas] = Call("fpmdask_replicate", Replicating, Replicas)
TRIM: Call[None] = Call("fpmdask_trim", Nothing, None)


# ---- workers ask each other


class PieceRequest(OfRun):
    """Boxes that a worker, the reader, wants of another one."""

    reader: str
    wanted: Sequence[Wanted]


class PiecesFollow(TypedDict):
    """The pieces come behind this: their dtypes, as NumPy writes them."""

    dtypes: Sequence[str]


class PiecesWaiting(TypedDict):
    """They are not there yet: the reader asks again, or waits on a channel."""

    waiting: bool


class PiecesMissing(TypedDict):
    """(key, why) of what will not come from this worker."""

    missing: Sequence[tuple[Any, str]]


class PiecesUnusable(TypedDict):
    """Why a chunk is not what its array says."""

    unusable: str


class PiecesFailed(TypedDict):
    """What serving them has raised: the channel is closed."""

    error: str


class PiecesRefused(TypedDict):
    """Why the request was not taken."""

    malformed: str


# What comes before pieces on a channel.
PieceHeader = (
    PiecesFollow | PiecesWaiting | PiecesMissing | PiecesUnusable | PiecesFailed | PiecesRefused
)


class PieceMessage(PieceRequest):
    """A request by Dask's messages; it may be held for a while until the pieces are there."""

    wait: bool


class Pieces(TypedDict):
    """The pieces themselves, arrays."""

    pieces: Sequence[Any]


PIECES: Call[Mapping[str, Any]] = Call(
    "fpmdask_pieces", PieceMessage, Pieces | PiecesWaiting | PiecesMissing | PiecesUnusable
)


# ---- what is not answered


class StepAnswered(OfRun):
    """The last message of a step, which the application's `Step` declares."""

    ticket: int
    answer: Mapping[str, Any]


class StepTells(OfRun):
    """An event of a step that goes on, which the application's `Step` declares."""

    ticket: int
    event: Mapping[str, Any]


class Commanding(OfRun):
    """A command to the step that listens to a name, which the application's `Step` declares."""

    to: str
    command: Mapping[str, Any]


class OfWorker(TypedDict):
    """Address of a worker that has left, has come again, or has stopped."""

    worker: str


class Held(TypedDict):
    """Keys of results that a worker may have."""

    keys: Sequence[Any]


class Refusal(OfRun):
    """Why a message was not taken; the run is "" where that is not known."""

    reason: str


STEP_ANSWER = Notice("fpmdask-answer", StepAnswered, by_worker=True)
STEP_EVENT = Notice("fpmdask-event", StepTells, by_worker=True)
REFUSED_BY_WORKER = Notice("fpmdask-refused", Refusal, by_worker=True)
COMMAND = Notice("fpmdask-command", Commanding)
FORGET = Notice("fpmdask-forget", OfRun)
WITHDRAW = Notice("fpmdask-withdraw", KeysOf)
WORKER_GONE = Notice("fpmdask-gone", OfWorker)
WORKER_BACK = Notice("fpmdask-back", OfWorker)
WORKER_STOPPED = Notice("fpmdask-stopped", OfWorker)
LIST_AGAIN = Notice("fpmdask-list-again", Held)
REFUSED = Notice("fpmdask-refused", Refusal)
