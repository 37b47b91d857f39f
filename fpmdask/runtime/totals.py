"""What all runs of a coordinator have done, added up: for metrics. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Totals:
    """Counts since the coordinator started, by application.

    Attributes
    ----------
    runs : Counter
        (application, how they ended: "finished", "failed" or "cancelled") → runs.
    rounds, left_out : Counter
        DFPA's rounds; workers that did not take part to the end, counted once per run.
    seconds : dict
        (application, activity) → seconds of workers, of the `fpmdask.runtime.activity.ACTIVITIES`.
    nbytes : Counter
        Bytes that workers received from one another.
    imbalance : dict
        Of the last run that tells: (t_max − t_min) / t_min.
    """

    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    nbytes: Counter[str] = field(default_factory=Counter)
    imbalance: dict[str, float] = field(default_factory=dict)

    def step(self, app: str, parts: Mapping[str, float], nbytes: int) -> None:
        """Add a step on a worker: activity → seconds, and the bytes that it received."""
        for activity, seconds in parts.items():
            self.seconds[app, activity] = self.seconds.get((app, activity), 0.0) + seconds
        self.nbytes[app] += nbytes

    def run(self, app: str, ending: str, report: Mapping[str, Any], left_out: int) -> None:
        """Add a run that has ended."""
        self.runs[app, ending] += 1
        self.rounds[app] += len(report.get("rounds", ()))
        self.left_out[app] += left_out
        if (found := imbalance_of(report)) is not None:
            self.imbalance[app] = found


def imbalance_of(report: Mapping[str, Any]) -> float | None:
    """Return the imbalance of a run's shares, or else of its measurement, None where unknown.

    Examples
    --------
    >>> shares = [{"worker": w, "units": 1, "seconds": s} for w, s in (("a", 2.0), ("b", 2.5))]
    >>> imbalance_of({"shares": shares})
    0.25
    >>> imbalance_of({"result": {"imbalance": 0.1}})
    0.1
    """
    spent: dict[str, float] = {}
    for share in (*report.get("shares", ()), *report.get("helps", ())):
        if share.get("units") and (seconds := share.get("seconds")):
            spent[share["worker"]] = spent.get(share["worker"], 0.0) + float(seconds)
    if spent:
        return (max(spent.values()) - min(spent.values())) / min(spent.values())
    measured = (report.get("result") or {}).get("imbalance")
    return None if measured is None or not math.isfinite(measured) else float(measured)
