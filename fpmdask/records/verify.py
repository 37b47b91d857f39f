"""Every record of a sorted target is read: are they in order, and all there?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpmdask.errors import RecordsError
from fpmdask.records.files import Folder, NotHere, read
from fpmdask.records.format import KEY_NBYTES, RECORD_NBYTES, File, checksum, out_of_order

MANIFEST = "manifest.json"
FORMAT = "fpmdask.records"
PART = re.compile(r"part-([0-9]+)")
CHECKSUM = re.compile(r"[0-9a-f]+")
KEY = re.compile(rf"([0-9a-f]{{{2 * KEY_NBYTES}}})?")
STEP = 1 << 16
# Problems that are named; the rest is counted.
MOST_NAMED = 20
# Characters of a wrong value.
MOST_SHOWN = 60


def part_name(number: int) -> str:
    """Return the name of a part of the result.

    Examples
    --------
    >>> part_name(7), part_name(100_000)
    ('part-00007', 'part-100000')
    """
    return f"part-{number:05d}"


def checked_manifest(data: Any) -> dict[str, Any]:
    """Return what a manifest says, if it is one that `Balancer.sort_records` writes.

    Parameters
    ----------
    data : object
        Plain data, as `Folder.read_json` returns it.

    Raises
    ------
    RecordsError
        If it is not; the message says what is wrong.

    Examples
    --------
    >>> checked_manifest({"target": "/x", "records": 0, "checksum": None, "parts": []})["parts"]
    []
    """
    wrong = _wrong_manifest(data)
    if wrong is not None:
        raise RecordsError(f"{MANIFEST} is not one of fpmdask, or is damaged: {wrong}")
    return dict(data)


def _wrong_manifest(data: Any) -> str | None:
    if not isinstance(data, dict):
        return "it is not a JSON object"
    if data.get("format", FORMAT) != FORMAT:
        return f"its format is {_shown(data['format'])}"
    if not isinstance(data.get("target"), str):
        return f"target is {_shown(data.get('target'))}"
    if not is_count(data.get("records")):
        return f"records is {_shown(data.get('records'))}"
    if "checksum" not in data or not _is_checksum(data["checksum"]):
        return f"checksum is {_shown(data.get('checksum'))}"
    if not isinstance(data.get("parts"), list | tuple):  # Dask's messages make tuples
        return f"parts is {_shown(data.get('parts'))}"
    for number, part in enumerate(data["parts"]):
        if (wrong := wrong_part(part, number)) is not None:
            return f"in part {number} {wrong}"
    return None


def wrong_part(part: Any, number: int) -> str | None:
    """Return what is wrong with what is said of a part, None if nothing is."""
    if not isinstance(part, dict):
        return "there is no JSON object"
    if part.get("name") != part_name(number):
        return f"name is {_shown(part.get('name'))}"
    for key in ("records", "nbytes"):
        if not is_count(part.get(key)):
            return f"{key} is {_shown(part.get(key))}"
    if "checksum" not in part or not _is_checksum(part["checksum"]):
        return f"checksum is {_shown(part.get('checksum'))}"
    for key in ("first", "last"):
        if not (isinstance(part.get(key), str) and KEY.fullmatch(part[key])):
            return f"{key} is {_shown(part.get(key))}"
    return None


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} …"


def is_count(value: Any) -> bool:
    """Tell whether plain data is an int >= 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_checksum(value: Any) -> bool:
    return value is None or (isinstance(value, str) and CHECKSUM.fullmatch(value) is not None)


@dataclass(frozen=True)
class Verification:
    """What was found in a target: its records, their checksum, and what is wrong with them."""

    target: str
    parts: int
    records: int
    checksum: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "target": self.target,
            "ok": self.ok,
            "parts": self.parts,
            "records": self.records,
            "checksum": f"{self.checksum:x}",
            "problems": list(self.problems),
        }


def verify(
    target: str,
    *,
    records: int | None = None,
    checksum: int | None = None,
    threads: int | None = None,
) -> Verification:
    """Read every record of ``target/part-00000`` … and say what is wrong.

    Parameters
    ----------
    target : str
        A folder, as `Balancer.sort_records` writes it: a path or an fsspec URL.
    records, checksum : int, optional
        What there should be, as `write_records` says it; by default what the manifest says.
    threads : int, optional
        Parts that are read at once; by default what Python deems right.

    Returns
    -------
    Verification
        ``ok``, ``problems``, ``records``, ``checksum``, ``parts``.

    Raises
    ------
    RecordsError
        If there is no such folder, no part in it, a part cannot be read or is no file of records,
        or the manifest is none; or ``threads`` is not an int >= 1.

    Notes
    -----
    O(n); 6.5 MB and one open file per thread.
    """
    if threads is not None and not (isinstance(threads, int | np.integer) and threads >= 1):
        raise RecordsError(f"threads = {threads!r}; give an int >= 1")
    folder = Folder(target)
    names = folder.names()
    manifest = checked_manifest(folder.read_json(MANIFEST)) if MANIFEST in names else None
    there = sorted((int(match[1]), name) for name in names if (match := PART.fullmatch(name)))
    if not there and (manifest is None or manifest["parts"]):
        raise NotHere(f"no file matches {folder.at('part-*')}; check the path")
    parts = [folder.file(name) for _, name in there]
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(_examined, parts))
    problems = [problem for part in found for problem in part["problems"]]
    last: tuple[str, bytes] | None = None
    for file, part in zip(parts, found, strict=True):
        if not part["records"]:
            continue
        if last is not None and part["first"] < last[1]:
            problems.append(f"{file.path} begins with a key less than the last one of {last[0]}")
        last = file.path, part["last"]
    count = sum(part["records"] for part in found)
    total = sum(part["checksum"] for part in found)
    if manifest is None:
        problems.append(f"there is no {MANIFEST}: the sort is not complete")
    else:
        problems += _differences(manifest, parts, count, total)
    if records is not None and records != count:
        problems.append(f"{count} records, there should be {records}")
    if checksum is not None and checksum != total:
        problems.append(f"checksum {total:x}, it should be {checksum:x}")
    return Verification(target, len(parts), count, total, tuple(problems))


def _examined(file: File) -> dict[str, Any]:
    """Return records, checksum, first and last key of one part, and where it is out of order."""
    problems, total, wrong = [], 0, 0
    first = last = b""
    # one more in front: the last one of the step before
    block = np.empty((STEP + 1, RECORD_NBYTES), np.uint8)
    for at in range(0, file.records, STEP):
        count = min(STEP, file.records - at)
        step = block[1 : count + 1]
        read(file, at, step)
        total += checksum(step)
        known = block[0 if at else 1 : count + 1]
        for number in out_of_order(known).tolist():
            wrong += 1
            if wrong == 1:
                where = at + number - (1 if at else 0)
                problems.append(f"{file.path}: record {where} has a key less than the one before")
        if not at:
            first = step[0, :KEY_NBYTES].tobytes()
        last = step[-1, :KEY_NBYTES].tobytes()
        block[0] = step[-1]
    if wrong > 1:
        problems.append(f"{file.path}: {wrong - 1} more records are out of order")
    return {
        "records": file.records,
        "checksum": total,
        "first": first,
        "last": last,
        "problems": problems,
    }


def _differences(
    manifest: Mapping[str, Any], parts: list[File], count: int, total: int
) -> list[str]:
    """Return what the manifest says otherwise."""
    sizes = {part["name"]: part["records"] for part in manifest["parts"]}
    said, sums = manifest["records"], manifest["checksum"]
    problems = []
    there = {file.path.rsplit("/", 1)[-1]: file.records for file in parts}
    differing = [name for name in sizes.keys() | there.keys() if sizes.get(name) != there.get(name)]
    for name in sorted(differing)[:MOST_NAMED]:
        problems.append(
            f"{name}: {there.get(name, 'no')} records, {MANIFEST} says {sizes.get(name, 'none')}"
        )
    if len(differing) > MOST_NAMED:
        problems.append(f"{len(differing) - MOST_NAMED} more parts are not as {MANIFEST} says")
    if said != count:
        problems.append(f"{count} records, {MANIFEST} says {said}")
    if sums is not None and int(sums, 16) != total:
        problems.append(f"checksum {total:x}, {MANIFEST} says {sums}")
    return problems
