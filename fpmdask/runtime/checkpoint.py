"""Checkpoints of iterations: files of rows in a folder that all share, and a manifest.

Each worker writes its rows of each field to a file, ``<stem>-<first row>-<row after the
last>-<field>.rows``. The manifest ``<stem>.json`` is written last: it has their checksums and says
what they are of; without it there is no checkpoint. Whoever continues may have any rows. Pure but
for files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any
from zlib import crc32

import numpy as np

from fpmdask.errors import StorageError
from fpmdask.runtime.rows import Span, edges_of, pieces
from fpmdask.storage import Folder

Array = np.ndarray[Any, Any]

FORMAT, VERSION = "fpmdask.checkpoint", 1
PREFIX, MANIFEST = "checkpoint-", ".json"
# Bytes that are read or written at once.
PIECE_NBYTES = 8 << 20


@dataclass(frozen=True)
class Call:
    """What a checkpoint belongs to.

    Parameters
    ----------
    name
        The same for the same call: its inputs, code and parameters.
    shape, dtypes
        Of the fields.
    """

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """How the names of its files begin."""
        return f"{PREFIX}{VERSION}-{self.name}-"

    def stem(self, iteration: int, attempt: str) -> str:
        """Return what is common to the names of one checkpoint's files; later ones sort later."""
        return f"{self.prefix}{iteration:010d}-{attempt}"

    def row_nbytes(self, field: int) -> int:
        """Return the bytes of a row of a field."""
        return prod(self.shape[1:]) * np.dtype(self.dtypes[field]).itemsize


def part_name(stem: str, span: Span, field: int) -> str:
    """Return the name of a file of rows."""
    return f"{stem}-{span[0]}-{span[1]}-{field}.rows"


@dataclass(frozen=True)
class Checkpoint:
    """A complete one, as its manifest describes it.

    Parameters
    ----------
    stem
        What is common to the names of its files.
    iteration
        After which the rows are these.
    edges
        Where the rows of a file begin, and where the last ones end.
    checksums
        CRC-32 of each file, for all fields of the first rows, of the next ones, ….
    """

    stem: str
    iteration: int
    edges: tuple[int, ...]
    checksums: tuple[tuple[int, ...], ...]

    def spans(self) -> list[Span]:
        """Return the rows of its files."""
        return [*zip(self.edges, self.edges[1:], strict=False)]

    def write(self, folder: Folder, call: Call) -> None:
        """Write the manifest."""
        facts = {"format": FORMAT, "version": VERSION, "call": asdict(call), **asdict(self)}
        folder.write_json(self.stem + MANIFEST, facts, durable=True)

    def lacking(self, call: Call, sizes: Mapping[str, int]) -> list[str]:
        """Return the names of files that are not there, or have another size, by name → bytes."""
        nbytes = {
            part_name(self.stem, span, field): (span[1] - span[0]) * call.row_nbytes(field)
            for span in self.spans()
            for field in range(len(call.dtypes))
        }
        return [name for name, size in nbytes.items() if sizes.get(name) != size]

    def damaged(self, folder: Folder, call: Call, spans: Sequence[Span]) -> list[str]:
        """Return the names of files that are not what was written, of those with some rows."""
        found = []
        for span, checksums in zip(self.spans(), self.checksums, strict=True):
            if span not in spans:
                continue
            for field, checksum in enumerate(checksums):
                name, crc = part_name(self.stem, span, field), 0
                nbytes = (span[1] - span[0]) * call.row_nbytes(field)
                try:
                    for at in range(0, nbytes, PIECE_NBYTES):
                        piece = np.empty(min(PIECE_NBYTES, nbytes - at), np.uint8)
                        got = folder.read(name, at, piece)
                        crc = crc32(piece[:got].data, crc)
                except StorageError:
                    crc = -1
                if crc != checksum:
                    found.append(name)
        return found

    def read(self, folder: Folder, call: Call, field: int, low: int, out: Array) -> None:
        """Fill an array, also a strided one, with rows of a field from number `low` on.

        Raises
        ------
        StorageError
            If they cannot be read.
        """
        row_nbytes = call.row_nbytes(field)
        count = max(1, PIECE_NBYTES // max(1, row_nbytes))
        at = 0
        for part, begin, end in pieces(self.edges, (low, low + len(out))):
            name = part_name(self.stem, self.spans()[part], field)
            for first in range(begin, end, count):
                rows = np.empty((min(count, end - first), *call.shape[1:]), call.dtypes[field])
                if folder.read(name, first * row_nbytes, rows) < rows.nbytes:
                    raise StorageError(f"{folder.url}/{name} is shorter than it was")
                out[at : at + len(rows)] = rows
                at += len(rows)


def written(rows: Array, write: Any, crc: int) -> int:
    """Write rows; return the checksum of what was written before and of these."""
    count = max(1, PIECE_NBYTES // max(1, prod(rows.shape[1:]) * rows.dtype.itemsize))
    for first in range(0, len(rows), count):
        piece = np.ascontiguousarray(rows[first : first + count]).reshape(-1).view(np.uint8)
        write(piece)
        crc = crc32(piece.data, crc)
    return crc


def found_in(folder: Folder, call: Call) -> tuple[list[Checkpoint], list[str]]:
    """Return the checkpoints of a call, the newest first, and what is there that cannot be used."""
    names, found, unusable = folder.names(), [], []
    for name in sorted(names, reverse=True):
        if not (name.startswith(PREFIX) and name.endswith(MANIFEST)):
            continue
        stem = name.removesuffix(MANIFEST)
        facts = folder.read_json(name)
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            unusable.append(f"{name} is damaged")
        elif facts.get("version") != VERSION:
            unusable.append(f"{name} is of version {facts.get('version')}, not {VERSION}")
        elif not name.startswith(call.prefix):
            unusable.append(f"{name} is of another call")
        elif (one := _parsed(facts, stem, call)) is None:
            unusable.append(f"{name} is damaged")
        elif lacking := one.lacking(call, names):
            unusable.append(f"{name} is damaged: {lacking[0]} is not as long as it was")
        else:
            found.append(one)
    return found, unusable


def _parsed(facts: dict[str, Any], stem: str, call: Call) -> Checkpoint | None:
    try:
        given = facts["call"]
        same = Call(given["name"], tuple(given["shape"]), tuple(given["dtypes"]))
        checksums = tuple(tuple(map(int, some)) for some in facts["checksums"])
        found = Checkpoint(stem, int(facts["iteration"]), tuple(facts["edges"]), checksums)
        spans, fields = found.spans(), {len(some) for some in checksums}
        whole = edges_of(high - low for low, high in spans) == list(found.edges)
        ends = (found.edges[0], found.edges[-1], len(spans)) == (0, call.shape[0], len(checksums))
    except (KeyError, TypeError, ValueError, IndexError):
        return None
    fits = whole and ends and fields == {len(call.dtypes)} and found.iteration > 0
    return found if fits and same == call else None


def remove(folder: Folder, call: Call, keep: str = "", before: str | None = None) -> None:
    """Remove a call's files, manifests first, but for those of one checkpoint.

    Parameters
    ----------
    keep
        How the names of what stays begin.
    before
        Only what was begun before the checkpoint of this stem.
    """
    own = [name for name in folder.names() if name.lstrip(".").startswith(call.prefix)]
    for name in sorted(own, key=lambda name: not name.endswith(MANIFEST)):
        if keep and name.startswith(keep):
            continue
        if before is None or name.lstrip(".") < before:
            folder.remove(name)
