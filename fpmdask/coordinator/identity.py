"""What a model belongs to: a kernel as implemented, on a worker as it is now."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fpmdask.models import PiecewiseLinearModel

TOO_LARGE_SECONDS = 600.0


def canonical(parameters: Mapping[str, Any]) -> str:
    """Return JSON parameters as one string that does not depend on their order."""
    return json.dumps(parameters, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class KernelId:
    """A kernel, its implementation on one worker, and its parameters as canonical JSON."""

    name: str
    implementation: str
    parameters: str


@dataclass(frozen=True)
class Fingerprint:
    """What makes a worker fast or slow; two workers with equal fingerprints are alike.

    ``quota`` is in cores (None: no quota found), ``memory_limit`` in bytes (0: none).
    """

    cpu: str
    blas: str
    core_type: str
    blas_threads: int
    nthreads: int
    quota: float | None
    memory_limit: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fingerprint:
        """Rebuild a fingerprint from `to_json`."""
        return cls(**data)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True)
class WorkerIdentity:
    """A worker process: its name, its fingerprint, and the id of this start of it."""

    name: str
    fingerprint: Fingerprint
    start: str


class ModelLibrary:
    """Every model that this coordinator has measured.

    A model measured on this very start of a worker is its own. A model of an earlier start, or of
    another worker with the same fingerprint, is a *prior*: right until one measurement says
    otherwise. Lookup and storing are O(1).

    A size that passed its deadline is remembered too, for `TOO_LARGE_SECONDS` and this start of the
    worker: the next run need not wait for the same deadline, and a worker that was held up by
    something else is tried again later.
    """

    def __init__(self) -> None:
        # worker name -> (its start, model), the last one stored at the end
        self._models: dict[
            tuple[KernelId, Fingerprint], dict[str, tuple[str, PiecewiseLinearModel]]
        ] = {}
        self._too_large: dict[tuple[KernelId, WorkerIdentity], tuple[int, float, float]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._models.values()))

    def find(
        self, kernel: KernelId, worker: WorkerIdentity
    ) -> tuple[PiecewiseLinearModel, bool] | None:
        """Return the best model known and whether it is the worker's own (else a prior)."""
        known = self._models.get((kernel, worker.fingerprint))
        if not known:
            return None
        start, model = known.get(worker.name) or known[next(reversed(known))]
        return model, worker.name in known and start == worker.start

    def store(self, kernel: KernelId, worker: WorkerIdentity, model: PiecewiseLinearModel) -> None:
        """Keep ``model``; it replaces those of earlier starts under the same name."""
        known = self._models.setdefault((kernel, worker.fingerprint), {})
        known.pop(worker.name, None)
        known[worker.name] = worker.start, model

    def limit(self, kernel: KernelId, worker: WorkerIdentity, deadline: float, now: float) -> float:
        """Return the most units that a measurement within ``deadline`` seconds may be tried with.

        ``now`` is the time in seconds on the clock of `found_too_large`.
        """
        units, allowed, when = self._too_large.get((kernel, worker), (0, 0.0, -math.inf))
        known = deadline <= allowed and now - when <= TOO_LARGE_SECONDS
        return units - 1 if known else math.inf

    def found_too_large(
        self, kernel: KernelId, worker: WorkerIdentity, units: int, deadline: float, now: float
    ) -> None:
        """Remember that ``units`` were not finished within ``deadline`` seconds."""
        if units <= self.limit(kernel, worker, deadline, now):
            self._too_large[kernel, worker] = (units, deadline, now)
