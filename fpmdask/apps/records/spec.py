"""What is asked for: as plain data."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from fpmdask.runtime.wire import Request


class Files(TypedDict):
    """Paths, globs or URLs of records, and where they go; worker name → records, if given."""

    sources: Sequence[str]
    target: str
    distribution: Mapping[str, int] | None
    checksums: bool


class RecordsRequest(Request):
    """Sort files of records."""

    records: Files
