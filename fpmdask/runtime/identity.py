"""What a model belongs to: a kernel as implemented, on a worker as it is now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


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

    ``quota`` is in cores (None: no quota found), ``memory_limit`` in bytes (0: none), ``features``
    are the instruction sets that NumPy uses, ``affinity`` the cores that the process may run on
    (0: not known), ``gpus`` their models and driver.
    """

    cpu: str
    blas: str
    core_type: str
    blas_threads: int
    nthreads: int
    quota: float | None
    memory_limit: int
    features: str = ""
    affinity: int = 0
    gpus: str = ""

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
