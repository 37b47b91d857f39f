"""What MHETA's machine is on one worker, as a value that the coordinator keeps and stores. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fpmdask.runtime.identity import Fingerprint

# Figures of a worker: of its node, of the network, and of its computing.
NODE, SHARED, SECONDS_PER_ROW, MODEL = "node", "shared", "seconds_per_row", "model"


@dataclass(frozen=True)
class KnownMachine:
    """One worker as a node of MHETA's machine, and how fast it computes one program.

    Attributes
    ----------
    worker : str
        Name of the worker.
    kernel, implementation : str
    parameters : str
        Of the program, as JSON with sorted keys.
    hardware : Fingerprint
        Of the worker when it was measured.
    connected : bool
        As of `fpmdask.runtime.known_models.KnownModel`.
    figures : mapping
        ``node``: the fields of `fpmdask.mheta.Machine` that are per node, but memory; ``shared``:
        the others; ``seconds_per_row``, or ``model``, seconds by rows as of `Model.to_json`.
    """

    worker: str
    kernel: str
    implementation: str
    parameters: str
    hardware: Fingerprint
    connected: bool
    figures: Mapping[str, Any]
