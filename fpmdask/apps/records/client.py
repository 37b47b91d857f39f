"""The client's side of a sort of records: what is asked for, what comes back."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask.base import is_dask_collection

from fpmdask.errors import RecordsError
from fpmdask.records.files import is_utf8
from fpmdask.records.verify import checked_manifest


@dataclass(frozen=True)
class SortedRecords:
    """Sorted files of records: parts in order, each sorted, the keys of each not less than before.

    Attributes
    ----------
    target : str
        The folder.
    records : int
        Records in all parts.
    checksum : int or None
        The sum of the CRC-32 of all records, where it was wanted.
    parts : tuple of mapping
        ``name``, ``records``, ``nbytes``, ``checksum``, ``first`` and ``last`` (keys, in hex).
    """

    target: str
    records: int
    checksum: int | None
    parts: tuple[Mapping[str, Any], ...]

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> SortedRecords:
        """Return what a target's ``manifest.json`` says.

        Raises
        ------
        RecordsError
            If that is not what a sort writes.
        """
        manifest = checked_manifest(manifest)
        checksum = manifest["checksum"]
        return cls(
            str(manifest["target"]),
            int(manifest["records"]),
            None if checksum is None else int(checksum, 16),
            tuple(manifest["parts"]),
        )

    @property
    def paths(self) -> list[str]:
        """Paths of the parts, in order."""
        return [f"{self.target.rstrip('/')}/{part['name']}" for part in self.parts]

    def __repr__(self) -> str:
        return f"<SortedRecords {self.records} in {len(self.parts)} parts of {self.target}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{name}</td><td>{records}</td><td><code>{first}</code></td><td><code>{last}"
            "</code></td></tr>"
            for name, records, first, last in (
                [html.escape(str(part[key])) for key in ("name", "records", "first", "last")]
                for part in self.parts[:20]
            )
        )
        more = f"<p>… and {len(self.parts) - 20} more</p>" if len(self.parts) > 20 else ""
        return (
            f"<h4>{html.escape(str(self.records))} records, sorted, in {html.escape(self.target)}"
            "</h4><table><tr><th>part</th><th>records</th><th>first key</th><th>last key</th></tr>"
            f"{rows}</table>{more}"
        )


def request(
    sources: Any, target: Any, distribution: Mapping[str, int] | None, checksums: Any
) -> dict[str, Any]:
    """Return what is asked for as plain data.

    Raises
    ------
    RecordsError
        For sources that are no paths, a target that is none, a distribution that is not of worker
        names to numbers of records, a checksum that is not a bool.
    """
    # what iterates over something else than paths: columns, keys, what is not computed
    if is_dask_collection(sources) or isinstance(sources, Mapping) or hasattr(sources, "columns"):
        raise RecordsError(
            f"sources is a {type(sources).__name__}; give a path, a glob, a URL, or a list of these"
        )
    single = isinstance(sources, str | bytes | os.PathLike) or not isinstance(sources, Iterable)
    paths = [_path(source) for source in ([sources] if single else list(sources))]
    if isinstance(sources, set | frozenset):
        paths.sort()  # so that another call means the same
    if not paths:
        raise RecordsError("sources is empty; give paths, globs or URLs of files of records")
    if not isinstance(checksums, bool):
        raise RecordsError(f"checksum = {checksums!r}; give True or False")
    if distribution is not None:
        if not isinstance(distribution, Mapping):
            raise RecordsError(
                f"distribution is a {type(distribution).__name__}; give a mapping of worker name "
                "to records"
            )
        for name, count in distribution.items():
            try:
                exact = int(count) == count >= 0 and not isinstance(count, bool)
            except (TypeError, ValueError, OverflowError):
                exact = False
            if not exact:
                raise RecordsError(
                    f"distribution[{name!r}] = {count!r}; give a whole number of records, >= 0"
                )
        distribution = {str(name): int(count) for name, count in distribution.items()}
    return {
        "sources": paths,
        "target": _path(target),
        "distribution": distribution,
        "checksums": checksums,
    }


def _path(value: Any) -> str:
    """Return a URL as it is, a path as an absolute one."""
    if not isinstance(value, str | os.PathLike):
        raise RecordsError(f"found {value!r}; give a path or an fsspec URL")
    path = os.fspath(value)
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise RecordsError(f"found {path!r}; give a path or an fsspec URL")
    path = path if "://" in path else os.path.abspath(path)
    if not is_utf8(path):
        raise RecordsError(f"{path!a} is not UTF-8; give it another name")
    return path
