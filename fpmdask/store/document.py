"""One stored document: what is known of all workers of one hardware for one kernel. Pure.

    <url>/v1/<kernel>/<hash of implementation and parameters>/<hash of hardware>.json

Its ``kind`` is "model", seconds by units, or "machine", a worker as a node of MHETA's machine.
A document says all that its path is a hash of, so that one that lies at a wrong place, or was made
by another program, is seen to. Each point has when and by which version it was measured, and how
often. What cannot be read is `Unreadable`; nothing of it is guessed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import numpy as np

from fpmdask.errors import FpmdaskError, PartitionError
from fpmdask.models import PiecewiseLinearModel, from_json
from fpmdask.runtime.identity import Fingerprint, canonical
from fpmdask.runtime.known_models import (
    MODEL,
    NODE,
    SECONDS_PER_ROW,
    SHARED,
    Known,
    KnownMachine,
    KnownModel,
)

FORMAT = "fpmdask.models"
# Documents of another number are not read, nor written over.
VERSION = 1
FOLDER = f"v{VERSION}"
# Longer names of kernels are cut, and told apart by a hash.
MOST_NAME = 80
# Hexadecimal digits of a hash in a path.
DIGITS = 16

# What documents are of; those that were written before there were machines do not say.
MODELS, MACHINES = "model", "machine"

Document = dict[str, Any]


class Unreadable(FpmdaskError):
    """A stored document that is damaged, of another version, or not what its path says."""


def path_of(one: Known) -> str:
    """Return where the document of a model, or of a machine, is, below the store's URL.

    Examples
    --------
    >>> hardware = Fingerprint("cpu", "blas", "core", 1, 1, None, 10**9)
    >>> model = PiecewiseLinearModel.from_points([1], [1.0])
    >>> one = KnownModel("alpha", "sort.local", "numpy 2", "{}", hardware, True, model)
    >>> path_of(one).split("/")[:2], path_of(one).count("/")
    (['v1', 'sort.local'], 3)
    """
    return _path(one.kernel, one.implementation, one.parameters, one.hardware)


def _path(kernel: str, implementation: str, parameters: str, hardware: Fingerprint) -> str:
    name = quote(kernel, safe="") or "%"
    if name.startswith("."):  # no hidden folders, nor those above
        name = f"%2E{name[1:]}"
    if len(name) > MOST_NAME:
        name = f"{name[:MOST_NAME]}-{_hash(kernel)}"
    what = _hash(json.dumps([kernel, implementation, parameters]))
    # memory bounds a model, and makes no worker slower before it is full
    where = _hash(canonical(replace(hardware, memory_limit=0).to_json()))
    return f"{FOLDER}/{name}/{what}/{where}.json"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def merged(
    before: Document | None,
    models: Sequence[Known],
    now: datetime,
    version: str,
    oldest: datetime | None = None,
) -> Document:
    """Return a document with the models of some workers, of one path, put in.

    Parameters
    ----------
    before
        What is there, None: nothing.
    models
        At least one.
    now
        When they were measured, at the latest; points that are there already keep their time.
    version
        Of fpmdask.
    oldest
        Points that are there from before that time are nothing to keep: they were measured anew.
    """
    first = models[0]
    workers: dict[str, Any] = dict(before["workers"]) if before else {}
    made = {"when": now.isoformat(), "version": version}
    for one in models:
        own = workers.get(one.worker, {})
        if isinstance(one, KnownModel):
            told = _points(one, own, made, oldest)
        else:
            told = _figures(one, own, made, oldest)
        workers[one.worker] = {"memory_limit": one.hardware.memory_limit, **told}
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": MODELS if isinstance(first, KnownModel) else MACHINES,
        "kernel": first.kernel,
        "implementation": first.implementation,
        "parameters": first.parameters,
        "hardware": replace(first.hardware, memory_limit=0).to_json(),
        "workers": workers,
    }


def _points(
    one: KnownModel, before: Mapping[str, Any], made: Document, oldest: datetime | None
) -> Document:
    """Return a model's points; those that are there keep when they were measured."""
    known = {
        (point["units"], point["seconds"], point["count"]): point
        for point in before.get("points", ())
        if _is_recent(point, oldest)
    }
    columns = one.model.units, one.model.seconds, one.model.counts
    rows = zip(*(column.tolist() for column in columns), strict=True)
    points = [
        known.get(row)
        or {
            "units": row[0],
            "seconds": row[1],
            "count": row[2],
            "half_width": one.half_widths.get(row[0]),
            **made,
        }
        for row in rows
    ]
    return {"points": points}


def _figures(
    one: KnownMachine, before: Mapping[str, Any], made: Document, oldest: datetime | None
) -> Document:
    """Return a machine's figures."""
    same = before.get("figures") == one.figures and _is_recent(before, oldest)
    when = {name: before[name] for name in made} if same else made
    return {"figures": dict(one.figures), **when}


def has(document: Document | None, models: Sequence[Known], oldest: datetime | None = None) -> bool:
    """Tell whether a document has just this of some workers, measured since ``oldest``."""
    if document is None:
        return False
    found = {one.worker: _said(one) for one in known_of(document, oldest)}
    return all(found.get(one.worker) == _said(one) for one in models)


def _said(one: Known) -> Any:
    return one.model if isinstance(one, KnownModel) else one.figures


def parsed(text: bytes, path: str) -> Document:
    """Return a document that was read from a path.

    Raises
    ------
    Unreadable
        Saying why, with the path.
    """
    try:
        # what is no finite number could not be written again
        data = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is damaged: no JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise Unreadable(f"{path} is foreign: not of the format {FORMAT}")
    if data.get("version") != VERSION:
        raise Unreadable(
            f"{path} has version {data.get('version')!r}; this fpmdask reads version {VERSION}"
        )
    try:
        hardware = Fingerprint.from_json(data["hardware"])
        right = _path(data["kernel"], data["implementation"], data["parameters"], hardware)
        known_of(data, datetime(1, 1, 1, tzinfo=UTC))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(
            f"{path} is damaged or foreign ({type(error).__name__}: {error})"
        ) from None
    if path != right:
        raise Unreadable(f"{path} is of another kernel or hardware: its place is {right}")
    found: Document = data
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def known_of(document: Mapping[str, Any], oldest: datetime | None = None) -> list[Known]:
    """Return what a document has that was measured at ``oldest``, or later.

    Raises
    ------
    PartitionError
        For points that no model can have, and for a kind that is not known.
    """
    kind = document.get("kind", MODELS)
    if kind not in (MODELS, MACHINES):
        raise PartitionError(f"found the kind {kind!r}; this fpmdask reads {MODELS}, {MACHINES}")
    found: list[Known] = []
    for worker, own in document["workers"].items():
        memory_limit = own["memory_limit"]
        if not isinstance(memory_limit, int) or not isinstance(worker, str):
            raise PartitionError(f"found a memory limit of {memory_limit!r}; it must be bytes")
        hardware = Fingerprint.from_json({**document["hardware"], "memory_limit": memory_limit})
        what = document["kernel"], document["implementation"], document["parameters"]
        if kind == MACHINES:
            _check_figures(own["figures"])
            if _is_recent(own, oldest):
                found.append(KnownMachine(worker, *what, hardware, False, own["figures"]))
            continue
        points = [
            (float(point["units"]), float(point["seconds"]), float(point["count"]))
            for point in own["points"]
            if _is_recent(point, oldest)
        ]
        if points:
            model = PiecewiseLinearModel(*np.array(points).T)
            half_widths = {
                float(point["units"]): float(half)
                for point in own["points"]
                if (half := point.get("half_width")) is not None and _is_recent(point, oldest)
            }
            if any(half < 0 for half in half_widths.values()):
                raise PartitionError(f"found half-widths {half_widths}; they must be >= 0")
            found.append(KnownModel(worker, *what, hardware, False, model, half_widths))
    return found


def _check_figures(figures: Any) -> None:
    """Refuse figures that are not as `KnownMachine.figures` has them.

    Raises
    ------
    PartitionError
        With what was found.
    """
    parts = (NODE, SHARED)
    if not isinstance(figures, dict) or not all(isinstance(figures.get(p), dict) for p in parts):
        raise PartitionError(f"found figures {figures!r}; they must have the objects node, shared")
    numbers = [value for part in parts for value in figures[part].values()]
    numbers.append(figures.get(SECONDS_PER_ROW))
    for value in numbers:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise PartitionError(f"found the figure {value!r}; figures must be numbers")
    if MODEL in figures:
        from_json(figures[MODEL])


def models_of(document: Mapping[str, Any], oldest: datetime | None = None) -> list[KnownModel]:
    """Return the models of a document, as `known_of`."""
    return [one for one in known_of(document, oldest) if isinstance(one, KnownModel)]


def _is_recent(point: Mapping[str, Any], oldest: datetime | None) -> bool:
    return oldest is None or datetime.fromisoformat(point["when"]) >= oldest


def without(document: Document, worker: str) -> Document:
    """Return a document without the models of a worker."""
    workers = {name: own for name, own in document["workers"].items() if name != worker}
    return {**document, "workers": workers}


def oldest_of(now: datetime, seconds: float | None) -> datetime | None:
    """Return when points were measured that are not too old, None: whenever."""
    return None if seconds is None else now - timedelta(seconds=seconds)
