"""The log of a measurement: every event and every decision, as plain data for `replay`."""

from __future__ import annotations

from typing import Any

from fpmdask.runtime.coordinator.instructions import Instruction, Measure, Result

_TOLD = 8  # events that an error message tells


class Journal(list[dict[str, Any]]):
    """Events in order, each with what was decided."""

    def note(
        self,
        event: dict[str, Any],
        instructions: list[Instruction],
        result: Result | None,
        failure: str | None,
    ) -> list[Instruction]:
        """Append an event with the instructions that followed from it; return these."""
        concluded = {
            "conclude": None if result is None else dict(result.distribution),
            "reason": None if result is None else result.reason,
            "failure": failure,
        }
        decided = [
            {"measure": i.worker, "units": i.units, "round": i.round}
            if isinstance(i, Measure)
            else concluded
            for i in instructions
        ]
        self.append({**event, "decided": decided})
        return instructions

    def last(self) -> str:
        """Return the last events, in words."""
        told = (
            " ".join(str(value) for key, value in event.items() if key not in ("decided", "member"))
            for event in self[-_TOLD:]
        )
        return "; ".join(told) or "none"
