"""What is asked for: as plain data. What is sorted is `fpmdask.sorting.spec.SortSpec`."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from fpmdask.runtime.wire import Messages, Request, Step, StepAnswer, TeamEvent, TeamOrder


class SortRequest(Request):
    """Sort, or share rows out before a sort.

    ``sort`` is a `SortSpec`, ``coming`` bytes of keys that are not in memory yet, ``payload``
    whether rows travel with their keys.
    """

    sort: Mapping[str, Any]
    coming: NotRequired[int]
    payload: NotRequired[bool]


class SortOrder(TeamOrder):
    """A worker's part in a sort; ``sort`` is a `SortSpec`.

    ``samples`` of each run are told; ``parts`` are those of the whole result, ``turn`` the worker's
    number and that of all, ``pieces`` (chunk, low, high, owner) what it puts in order, ``runs`` of
    rows: worker → (chunk, number of the run).
    """

    sort: Mapping[str, Any]
    samples: int
    parts: int
    turn: tuple[int, int]
    pieces: Sequence[tuple[int, int, int, str]]
    runs: Mapping[str, Sequence[tuple[int, int]]]


class Count(TypedDict):
    """Count keys below, and not above, packed candidates."""

    count: bytes


class Between(TypedDict):
    """Tell so many keys of each run between two places, for each open end."""

    between: tuple[int, Sequence[Sequence[tuple[int, int]]]]


class Beside(TypedDict):
    """Tell the keys before and after places of each run."""

    beside: Sequence[Sequence[int]]


class TakeParts(TypedDict):
    """Take parts of the result: (part, buckets of pieces of runs)."""

    exchange: Sequence[tuple[int, Sequence[Sequence[tuple[str, int, int, int, int]]]]]


class Sampled(TeamEvent):
    """The runs are in order: their lengths, and packed samples of each."""

    sizes: Sequence[int]
    samples: Sequence[bytes]
    noise: Sequence[float]
    seconds: float


class Counted(TeamEvent):
    """What `Count` asked for, packed, of each run."""

    below: Sequence[bytes]
    through: Sequence[bytes]


class Inner(TeamEvent):
    """What `Between` asked for, packed, of each run."""

    inner: Sequence[Sequence[bytes]]


class KeysBeside(TeamEvent):
    """What `Beside` asked for, packed, of each run."""

    beside: Sequence[tuple[bytes, bytes]]


class PartsSorted(StepAnswer):
    """The parts are in order; ``ends`` are part → its first and last keys."""

    ends: Mapping[int, Sequence[Any] | None]
    seconds: float
    phases: Mapping[str, float]
    nbytes_received: int
    cpu_seconds: Mapping[str, float]
    working_seconds: float
    keys_sorted: int
    nbytes_input: int


class SortedArray(TypedDict):
    """The result's keys, lengths and ends; ``plan``: how lost positions are made again."""

    name: str
    sizes: Sequence[int]
    ends: Sequence[Any]
    plan: NotRequired[Mapping[str, Any]]


class NotSorted(TypedDict):
    """Why rows were not sorted: they may be in another way."""

    left: str


class Dealt(TypedDict):
    """Worker → keys; None where nothing tells them apart."""

    shares: Mapping[str, int] | None


SORT = Step(
    "fpmdask.apps.sort.worker:sort_share",
    SortOrder,
    PartsSorted,
    Count | Between | Beside | TakeParts,
    Sampled | Counted | Inner | KeysBeside,
)
MESSAGES = Messages(SortedArray | NotSorted, (SORT,))
DEAL_MESSAGES = Messages(Dealt)
