"""Tasks before and after the sort: what is there to be read, what the target holds."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil

from fpmdask.apps.records.plan import VERSION, Job
from fpmdask.apps.records.spec import CLAIM, FINISH, SURVEY, TIDY
from fpmdask.errors import RecordsError
from fpmdask.records.files import Exists, Folder, NotHere, find
from fpmdask.records.format import KEY_NBYTES, RECORD_NBYTES
from fpmdask.records.verify import FORMAT, MANIFEST, is_count, part_name, wrong_part
from fpmdask.runtime.worker.side import WorkerSide
from fpmdask.runtime.worker.steps import step

# What the target says of a job that is not finished.
JOB = ".fpmdask-job.json"
KEY = re.compile(rf"[0-9a-f]{{{2 * KEY_NBYTES}}}")


def side_name(number: int) -> str:
    """Return the name of the file that says of a part what is in it, until all are there."""
    return f".{part_name(number)}.json"


def survey(order: Mapping[str, Any]) -> None:
    """Task: say which of ``order["sources"]`` this worker can read, and what the target holds."""
    step(SURVEY, order, lambda side, space: _refusing(lambda: _survey(side, order)))


def claim(order: Mapping[str, Any]) -> None:
    """Task: make the target and note the job in it; say which parts of it are finished.

    ``order["before"]`` is the run of the job that the survey has found there, None if it found
    none.
    """
    step(CLAIM, order, lambda side, space: _refusing(lambda: _claim(order)))


def finish(order: Mapping[str, Any]) -> None:
    """Task: write ``order["manifest"]`` into the target and remove what was needed until then.

    The target's job must be that of ``order["run"]``.
    """
    step(FINISH, order, lambda side, space: _refusing(lambda: _finish(order)))


def tidy(order: Mapping[str, Any]) -> None:
    """Task: remove what a sort that was stopped has left beside the manifest it had written.

    ``order["identity"]`` is the finished job's.
    """
    step(TIDY, order, lambda side, space: _refusing(lambda: _tidy(order)))


def note(folder: Folder, job: Mapping[str, Any]) -> None:
    """Write what has become of a job over what its target says.

    Raises
    ------
    RecordsError
        If the target's job is not of the same run any more.
    """
    if _run(folder) != job["run"]:
        raise _another(folder)
    folder.write_json(JOB, job)


def _run(folder: Folder) -> Any:
    """Return the run that the target's job is of, None if there is none."""
    job = folder.read_json(JOB)
    return job.get("run") if isinstance(job, dict) else None


def _another(folder: Folder, found: str = "") -> RecordsError:
    return RecordsError(
        f"{found}another sort is writing into this target, {folder.url}; give every sort a folder "
        "of its own"
    )


def _refusing(work: Any) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = work()
    except RecordsError as error:
        return {"refused": str(error)}
    return found


def _survey(side: WorkerSide, order: Mapping[str, Any]) -> Mapping[str, Any]:
    files: list[Sequence[Any]] = []
    lacking = {}
    for number, source in enumerate(order["sources"]):
        try:
            files += [(*row, number) for row in Job(tuple(find([source]))).to_json()]
        except NotHere as error:
            lacking[source] = str(error)
    seen = set()
    for path, *_ in files:
        if path in seen:
            raise RecordsError(f"{path} is named twice; name every file once")
        seen.add(path)
    folder = Folder(order["target"])
    there = folder.names()
    # one who was stopped before there was a job has left nothing but its temporary file
    names = {name: nbytes for name, nbytes in there.items() if not _is_temporary(name)}
    local = os.statvfs(side.worker.local_directory)
    device = os.stat(side.worker.local_directory).st_dev
    return {
        "files": files,
        "lacking": lacking,
        "names": names,
        "untidy": any(map(_is_needed_no_more, there)),
        "job": _job(folder) if JOB in names else None,
        "manifest": folder.read_json(MANIFEST) if MANIFEST in names else None,
        "resident_nbytes": float(psutil.Process().memory_info().rss),
        "available_nbytes": float(psutil.virtual_memory().available),
        "target_nbytes": folder.free_nbytes(),
        "target_is_local": folder.device() == device,
        "local_disk": (socket.gethostname(), device),
        "local_nbytes": float(local.f_bavail) * local.f_frsize,
    }


def _is_temporary(name: str) -> bool:
    """Tell whether a file is what the job's one is called while it is written."""
    return name.startswith(f"{JOB}.") and name.endswith(".tmp")


def _is_needed_no_more(name: str) -> bool:
    """Tell whether a file is only there for a job that has no manifest yet."""
    return (
        name == JOB
        or _is_temporary(name)
        or (name.startswith(".part-") and name.endswith((".json", ".tmp")))
        or (name.startswith(f".{MANIFEST}.") and name.endswith(".tmp"))
    )


def _job(folder: Folder) -> Any:
    """Return what the target says of its job, None if that is nothing of this version."""
    job = folder.read_json(JOB)
    if not isinstance(job, dict) or (job.get("format"), job.get("version")) != (FORMAT, VERSION):
        return job
    parts, splitters = job.get("parts"), job.get("splitters")
    right = (
        isinstance(job.get("identity"), str)
        and isinstance(job.get("run"), str)
        and isinstance(job.get("checksums"), bool)
        and (parts is None or (isinstance(parts, list) and all(map(is_count, parts))))
        and isinstance(splitters, list)
        and all(isinstance(key, str) and KEY.fullmatch(key) for key in splitters)
    )
    return job if right else None


def _claim(order: Mapping[str, Any]) -> Mapping[str, Any]:
    folder = Folder(order["target"])
    folder.check_writable()
    folder.make()
    job = order["job"]
    _take(folder, job, order["before"])
    names = folder.names()
    done = {}
    for number, size in enumerate(job["parts"] or ()):
        there = names.get(part_name(number))
        known: Any = folder.read_json(side_name(number)) if side_name(number) in names else None
        if not _is_finished(known, number, job):
            continue
        if (known["records"], known["nbytes"]) == (size, there):
            done[number] = known
    return {"done": done}


def _take(folder: Folder, job: Mapping[str, Any], before: str | None) -> None:
    """Note a job in the target, if that is as the survey has found it."""
    if before is None:
        with suppress(Exists):
            folder.write_json(JOB, job, new=True)
            return
    # a worker that was lost may have done it for this run already
    if (run := _run(folder)) is None or run not in (before, job["run"]):
        raise _another(folder)
    folder.write_json(JOB, job)


def _is_finished(known: Any, number: int, job: Mapping[str, Any]) -> bool:
    """Tell whether a part's side file is whole, and says what this job needs to know."""
    if wrong_part(known, number) is not None or known.get("job") != job["identity"]:
        return False
    if not isinstance(known.get("checksums"), bool) or known["checksums"] < job["checksums"]:
        return False
    sums = known.get("sums")
    return (
        (known["checksum"] is not None) == known["checksums"]
        and isinstance(sums, list)
        and len(sums) == RECORD_NBYTES // 4
        and all(is_count(each) and each < 1 << 32 for each in sums)
    )


def _finish(order: Mapping[str, Any]) -> Mapping[str, Any]:
    folder = Folder(order["target"])
    manifest = json.loads(json.dumps(order["manifest"]))  # as it is read again
    run = _run(folder)
    # a worker that was lost may have done it already
    done = run is None and folder.read_json(MANIFEST) == manifest
    if run != order["run"] and not done:
        raise _another(folder)
    names = folder.names()
    for part in manifest["parts"]:
        if names.get(part["name"]) != part["nbytes"]:
            raise RecordsError(
                f"{part['name']} in {order['target']} has vanished or changed since it was "
                "written; call again: what is finished is taken up"
            )
    known = {part["name"] for part in manifest["parts"]}
    if others := sorted(name for name in names if name.startswith("part-") and name not in known):
        raise _another(folder, f"{others[0]} is not of this sort: ")
    if not done:
        folder.write_json(MANIFEST, manifest, durable=True)
    _clear(folder, names)
    return {}


def _tidy(order: Mapping[str, Any]) -> Mapping[str, Any]:
    folder = Folder(order["target"])
    with suppress(RecordsError):  # who may only read there gets the result all the same
        job = folder.read_json(JOB)
        if job is None or (isinstance(job, dict) and job.get("identity") == order["identity"]):
            _clear(folder, folder.names())
    return {}


def _clear(folder: Folder, names: Iterable[str]) -> None:
    for name in filter(_is_needed_no_more, names):
        folder.remove(name)
