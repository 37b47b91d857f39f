"""What a worker did in a step, in seconds of each activity. Pure.

A step answers with the seconds of its parts, each application under names of its own. `activities`
puts them under six names, those of the timeline: ``measure``, ``compute``, ``send``, ``receive``,
``wait`` and ``I/O``; what a step does not tell is ``other``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ACTIVITIES = ("measure", "compute", "send", "receive", "wait", "I/O", "other")

# What a step's answer, or its "phases", calls them.
NAMES: Mapping[str, str] = {
    "compute_seconds": "compute",
    "computing": "compute",
    "sort": "compute",
    "sample": "compute",
    "count": "compute",
    "gather": "compute",
    "merge": "compute",
    "checksum": "compute",
    # a product's threads let what its peers are being sent go first
    "gave_way_seconds": "send",
    "exchange": "receive",
    "hand over": "receive",
    "moving": "receive",
    "wait_seconds": "wait",
    "waiting": "wait",
    "io": "I/O",
    "loading": "I/O",
    "saving": "I/O",
    "read": "I/O",
    "spill": "I/O",
    "write": "I/O",
}
# The step that times a kernel.
TIMED = "timed"


def activities(step: str, answer: Mapping[str, Any]) -> dict[str, float]:
    """Return activity → seconds of a step that has ended; together they are what it took.

    Parameters
    ----------
    step : str
        ``"module:function"``.
    answer : mapping
        What it answered; ``elapsed`` are the seconds of all of it.

    Examples
    --------
    >>> activities("steps:timed", {"elapsed": 0.5, "seconds": 0.1})
    {'measure': 0.5}
    >>> activities("share:multiply", {"elapsed": 3.0, "compute_seconds": 2.0, "wait_seconds": 0.5})
    {'compute': 2.0, 'wait': 0.5, 'other': 0.5}
    """
    elapsed = float(answer.get("elapsed", 0.0))
    if step.rpartition(":")[2] == TIMED:
        return {"measure": elapsed}
    found: dict[str, float] = {}
    calls = answer.get("made", ())
    for told in (answer, answer.get("phases", {}), *(one for one in calls if _is_told(one))):
        for name, seconds in told.items():
            activity = NAMES.get(name) if isinstance(name, str) else None
            if activity is not None and isinstance(seconds, int | float) and seconds > 0:
                found[activity] = found.get(activity, 0.0) + seconds
    if "send" in found and "compute_seconds" in answer:  # it is a part of that
        found["compute"] = max(0.0, found.get("compute", 0.0) - found["send"])
    told_seconds = sum(found.values())
    if elapsed > told_seconds:
        found["other"] = elapsed - told_seconds
    elif told_seconds > elapsed > 0:  # threads do several things at once
        found = {name: seconds * elapsed / told_seconds for name, seconds in found.items()}
    return found


def _is_told(call: Any) -> bool:
    return isinstance(call, Mapping)
