"""How much of C is multiplied: the shares that are done, and the open ones so far."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fpmdask.apps.matmul.coordinator.missing_chunks import MissingChunks
from fpmdask.apps.matmul.coordinator.stealing import WorkStealing
from fpmdask.apps.matmul.parts import Assignment, PartsPlan
from fpmdask.apps.matmul.plan import MatmulSpec, bounds_in_c
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.progress import Pace


class Shares:
    """What each share has taken, and the client's progress; rows are of C's full width.

    Attributes
    ----------
    done : dict
        Part → what its worker has told of it, once it is complete.
    """

    def __init__(
        self,
        context: RunContext,
        spec: MatmulSpec,
        plan: PartsPlan,
        stealing: WorkStealing,
        missing: MissingChunks,
    ) -> None:
        self.done: dict[int, dict[str, Any]] = {}
        self._context, self._spec, self._plan = context, spec, plan
        self._stealing, self._missing = stealing, missing
        self._pace = Pace()

    def finished(self, assignment: Assignment, answer: Mapping[str, Any]) -> None:
        """Take note of a share that is complete, and tell the client."""
        name, tile = self._context.name(assignment.worker), assignment.tile
        rows = tile.area / self._spec.shape[2]  # whole ones in the layout "rows"
        units = int(rows) if rows == int(rows) else rows
        at = bounds_in_c(self._spec, tile)
        facts = {"worker": name, "part": assignment.part, "units": units, "tile": at}
        self.done[assignment.part] = {**facts, **answer}
        self._context.emit("share", worker=name, units=units, seconds_taken=answer["seconds"])
        self.tell(last=self._plan.done)

    def seconds_per_element(self) -> float | None:
        """Return what an element of C has taken in the shares that are done; None: none are."""
        work = sum(share["work"] for share in self.done.values())
        if not work:
            return None
        spent = (share["compute_seconds"] + share["wait_seconds"] for share in self.done.values())
        return float(sum(spent) / work * self._spec.shape[1])

    def tell(self, *, last: bool = False) -> None:
        """Tell the client how much is multiplied: of open parts as many of their panels."""
        if not self._pace.due("multiply", time.monotonic(), last=last):
            return
        width = self._spec.shape[2]
        left: float = self._plan.stranded
        left += sum(
            part.tile.area * max(0.0, 1 - self._done_of(part)) for part in self._plan.assign()
        )
        total = self._plan.elements / width
        done = round(total - left / width, 3)
        unit = "columns" if self._spec.transposed else "rows"
        self._context.emit("progress", phase="multiply", done=done, total=total, unit=unit)

    def now(self) -> dict[str, tuple[float, float]]:
        """Return worker name → (its rows, those multiplied), of columns where it has few rows."""
        found: dict[str, tuple[float, float]] = {}

        def add(name: str, rows: float, done: float) -> None:
            before = found.get(name, (0.0, 0.0))
            found[name] = before[0] + rows, before[1] + done

        for share in self.done.values():
            add(share["worker"], share["units"], share["units"])
        for help_ in self._stealing.done.values():
            add(help_["worker"], help_["units"], help_["units"])
            add(help_["helps"], -help_["units"], -help_["units"])
        for part in self._plan.assign():
            rows = part.tile.area / self._spec.shape[2]
            add(self._context.name(part.worker), rows, rows * min(1.0, self._done_of(part)))
        return found

    def _done_of(self, part: Assignment) -> float:
        panels = len(self._stealing.panels.get(part.part, ())) or 1
        return self._missing.panels_of(part.part) / panels
