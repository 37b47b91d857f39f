"""What a step of a worker has spent and counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fpmdask.apps.stencil.call_costs import CallCosts

PHASES = ("loading", "computing", "io", "moving", "saving", "total")


@dataclass
class Counters:
    """Sums over the step.

    Attributes
    ----------
    seconds : dict
        Phase → seconds.
    rows_computed, nbytes_received : int
        Rows as often as they were computed; bytes of other workers.
    spans : int
        Of rows that were computed, each in bands.
    call_costs : CallCosts
        Of the rows that this worker has now.
    row_seconds : float or None
        What computing a row takes, by what was known before.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    rows_computed: int = 0
    nbytes_received: int = 0
    spans: int = 0
    call_costs: CallCosts = field(default_factory=CallCosts)
    row_seconds: float | None = None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add what the block takes, unless it raises."""
        began = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began

    @property
    def computed(self) -> tuple[float, int, float, int]:
        """Seconds of computing, rows, seconds of I/O, spans so far."""
        return self.seconds["computing"], self.rows_computed, self.seconds["io"], self.spans

    @property
    def speed(self) -> float:
        """Rows computed per second, 0 where that is not known."""
        if self.rows_computed and (seconds := self.seconds["computing"]) > 0:
            return self.rows_computed / seconds
        return 1.0 / self.row_seconds if self.row_seconds else 0.0

    @property
    def call_seconds(self) -> float | None:
        """Of a call of the update beside its rows, None where that is not known."""
        found = self.call_costs.seconds
        return None if found is None else found[0]
