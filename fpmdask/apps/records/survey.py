"""Tasks before and after the sort: what is there to be read, what the target holds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from fpmdask.apps.records.plan import Job
from fpmdask.coordinator.steps import step
from fpmdask.coordinator.worker import WorkerSide
from fpmdask.errors import RecordsError
from fpmdask.records.files import Folder, NotHere, find
from fpmdask.records.verify import MANIFEST

# What the target says of a job that is not finished.
JOB = ".fpmdask-job.json"
FORMAT, VERSION = "fpmdask.records", 1


def part_name(number: int) -> str:
    """Return the name of a part of the result."""
    return f"part-{number:05d}"


def side_name(number: int) -> str:
    """Return the name of the file that says of a part what is in it, until all are there."""
    return f".{part_name(number)}.json"


def survey(order: Mapping[str, Any]) -> None:
    """Task: say which of ``order["sources"]`` this worker can read, and what the target holds."""
    step(order, lambda side, space: _refusing(lambda: _survey(side, order)))


def claim(order: Mapping[str, Any]) -> None:
    """Task: make the target and note the job in it; say which parts of it are finished."""
    step(order, lambda side, space: _refusing(lambda: _claim(order)))


def finish(order: Mapping[str, Any]) -> None:
    """Task: write ``order["manifest"]`` into the target and remove what was needed until then."""
    step(order, lambda side, space: _refusing(lambda: _finish(order)))


def _refusing(work: Any) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = work()
    except RecordsError as error:
        return {"refused": str(error)}
    return found


def _survey(side: WorkerSide, order: Mapping[str, Any]) -> Mapping[str, Any]:
    files: list[Sequence[Any]] = []
    lacking = {}
    for source in order["sources"]:
        try:
            files += Job(tuple(find([source]))).to_json()
        except NotHere as error:
            lacking[source] = str(error)
    paths = [path for path, *_ in files]
    if twice := sorted({path for path in paths if paths.count(path) > 1} if files else ()):
        raise RecordsError(f"{twice[0]} is named twice; name every file once")
    folder = Folder(order["target"])
    names = folder.names()
    local = os.statvfs(side.worker.local_directory)
    return {
        "files": files,
        "lacking": lacking,
        "names": names,
        "job": folder.read_json(JOB) if JOB in names else None,
        "manifest": folder.read_json(MANIFEST) if MANIFEST in names else None,
        "resident_nbytes": float(psutil.Process().memory_info().rss),
        "target_nbytes": folder.free_nbytes(),
        "local_nbytes": float(local.f_bavail) * local.f_frsize,
    }


def _claim(order: Mapping[str, Any]) -> Mapping[str, Any]:
    folder = Folder(order["target"])
    folder.make()
    job = order["job"]
    folder.write_json(JOB, job)
    names = folder.names()
    done = {}
    for number, size in enumerate(job["parts"] or ()):
        there = names.get(part_name(number))
        known = folder.read_json(side_name(number)) if side_name(number) in names else None
        if (
            known is None
            or known["job"] != job["identity"]
            or known["checksums"] < job["checksums"]
        ):
            continue
        if (known["records"], known["nbytes"]) == (size, there):
            done[number] = known
    return {"done": done}


def _finish(order: Mapping[str, Any]) -> Mapping[str, Any]:
    folder = Folder(order["target"])
    names = folder.names()
    for part in order["manifest"]["parts"]:
        if names.get(part["name"]) != part["nbytes"]:
            raise RecordsError(
                f"{part['name']} in {order['target']} has vanished or changed since it was "
                "written; call again: what is finished is taken up"
            )
    folder.write_json(MANIFEST, order["manifest"], durable=True)
    for name in names:
        if name == JOB or (name.startswith(".part-") and name.endswith((".json", ".tmp"))):
            folder.remove(name)
    return {}
