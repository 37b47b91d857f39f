"""What is asked for: as plain data."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fpmdask.runtime.wire import (
    Messages,
    Progressed,
    Request,
    Step,
    StepAnswer,
    TeamEvent,
    TeamOrder,
)


class Files(TypedDict):
    """Paths, globs or URLs of records, and where they go; worker name → records, if given."""

    sources: Sequence[str]
    target: str
    distribution: Mapping[str, int] | None
    checksums: bool


class RecordsRequest(Request):
    """Sort files of records."""

    records: Files


FilesFound = Sequence[Sequence[Any]]  # path, bytes, stamp; and the number of its source


class SurveyOrder(TeamOrder):
    """Look for files, and into the target."""

    sources: Sequence[str]
    target: str


class ClaimOrder(TeamOrder):
    """Note a job in the target, which held that of the run ``before``."""

    target: str
    job: Mapping[str, Any]
    before: str | None


class FinishOrder(TeamOrder):
    """Write the manifest."""

    target: str
    manifest: Mapping[str, Any]


class TidyOrder(TeamOrder):
    """Remove what a stopped sort has left."""

    target: str
    identity: str


class SurveyAnswer(StepAnswer):
    """What a worker can read, what the target holds, and what is free there and here."""

    files: FilesFound
    lacking: Mapping[str, str]
    names: Mapping[str, int]
    untidy: bool
    job: Any
    manifest: Any
    resident_nbytes: float
    available_nbytes: float
    target_nbytes: float
    target_is_local: bool
    local_disk: tuple[str, int]
    local_nbytes: float


class PartFacts(TypedDict):
    """What is in a part of the result."""

    job: str
    name: str
    records: int
    nbytes: int
    checksums: bool
    checksum: str | None
    first: str
    last: str
    sums: Sequence[int]


class ClaimAnswer(StepAnswer):
    """Parts that are finished already."""

    done: Mapping[int, PartFacts]


class Refusal(StepAnswer):
    """Files or folders are not as they must be: the sort ends."""

    refused: str


class SortOrder(TeamOrder):
    """A worker's part in a sort: runs of the input (first, end), then parts of the result.

    ``samples`` of each run are told, ``turn`` is the worker's number and that of all; the
    ``scribe`` writes the plan.
    """

    files: FilesFound
    target: str
    checksums: bool
    runs: Sequence[tuple[int, int]]
    samples: int
    turn: tuple[int, int]
    kept_nbytes: float
    threads: int
    scribe: bool


class Count(TypedDict):
    """Count keys below, and not above, packed candidates."""

    count: bytes


class WritePlan(TypedDict):
    """Write the job, with its plan, into the target."""

    plan: Mapping[str, Any]


class MakeParts(TypedDict):
    """Make parts: (number, records, pieces of runs: (holder, first, end, low, high))."""

    exchange: Sequence[tuple[int, int, Sequence[tuple[str, int, int, int, int]]]]


class RunDone(TeamEvent):
    """A run is in order."""

    done: tuple[int, int]


class RunsSampled(TeamEvent):
    """All runs are in order: packed samples and sums of each."""

    samples: Sequence[bytes]
    places: Sequence[float]
    sums: Sequence[bytes]


class Counted(TeamEvent):
    """What `Count` asked for, packed, of each run."""

    below: Sequence[bytes]
    through: Sequence[bytes]


class Planned(TeamEvent):
    """The plan is in the target."""

    planned: bool


class PartDone(TeamEvent):
    """A part is in the target."""

    part: int
    facts: PartFacts


class PartsMade(StepAnswer):
    """All parts of a worker are in the target."""

    seconds: float
    finished: float
    phases: Mapping[str, float]
    nbytes_received: int
    nbytes_spilled: int
    cpu_seconds: Mapping[str, float]
    records_read: int
    nbytes_input: int


class PartWritten(Progressed):
    """A part of the result is in the target."""

    part: str
    worker: str
    records: int


class Tidied(StepAnswer):
    """It is done."""


class Manifest(TypedDict):
    """What was sorted, and its parts; see `fpmdask.records.verify`."""

    format: str
    version: int
    job: str
    sources: Sequence[str]
    target: str
    records: int
    checksum: str | None
    parts: Sequence[Mapping[str, Any]]


SURVEY = Step("fpmdask.apps.records.worker.survey:survey", SurveyOrder, SurveyAnswer | Refusal)
CLAIM = Step("fpmdask.apps.records.worker.survey:claim", ClaimOrder, ClaimAnswer | Refusal)
FINISH = Step("fpmdask.apps.records.worker.survey:finish", FinishOrder, Tidied | Refusal)
TIDY = Step("fpmdask.apps.records.worker.survey:tidy", TidyOrder, Tidied | Refusal)
SORT = Step(
    "fpmdask.apps.records.worker.share:sort_share",
    SortOrder,
    PartsMade | Refusal,
    Count | WritePlan | MakeParts,
    RunDone | RunsSampled | Counted | Planned | PartDone,
)
MESSAGES = Messages(Manifest, (SURVEY, CLAIM, FINISH, TIDY, SORT), {"part": PartWritten})
