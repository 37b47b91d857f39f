"""How far the iterations of a team are, told to the client from the news of its workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.progress import Pace


class TeamProgress:
    """Hears the news of one attempt.

    Parameters
    ----------
    context, iterations
        The run, and how many iterations it makes at most.
    attempt
        Its number.

    Attributes
    ----------
    workers : sequence of str
        Of the team.
    iterated : int
        Iterations that are made.
    """

    def __init__(self, context: RunContext, iterations: int, attempt: int) -> None:
        self._context, self._iterations, self._attempt = context, iterations, attempt
        self.workers: Sequence[str] = ()
        self.iterated, self._saved = 0, -1
        # (phase, which one of them) → the workers that are through with it
        self._through: dict[tuple[str, int], set[str]] = {}
        self._pace, self._told = Pace(), ("", 0)

    def heard(self, worker: str, news: Mapping[str, Any]) -> None:
        """Take in what a worker tells amid its step."""
        if "iterations" in news:
            self.iterated = news["iterations"]
            facts = {"done": self.iterated, "total": self._iterations, "unit": "iterations"}
            self._context.emit("iterated", phase="iterate", **facts)
        if "warning" in news:
            self._context.emit("warning", message=news["warning"])
        if news.get("attempt") != self._attempt:
            return
        if news.get("saved", self._saved) != self._saved:
            self._saved = news["saved"]  # all workers say so
            self._context.emit("saved", iteration=self._saved)
        if "phase" in news:
            self._heard_phase(worker, news["phase"], news["which"], ended=news["ended"])

    def _heard_phase(self, worker: str, phase: str, which: int, *, ended: bool) -> None:
        """Tell how many workers are through with what comes amid the iterations, or after them."""
        through = self._through.setdefault((phase, which), set())
        if ended:
            through.add(worker)
        last = len(through) == len(self.workers)
        if last:
            del self._through[phase, which]
        # there may be a hundred checkpoints a second
        if phase in ("move", "write") or self._pace.due("", time.monotonic()):
            self._told = phase, which
        if self._told == (phase, which):
            self._context.progress(phase, len(through), len(self.workers), "workers")
            if last and phase != "write":
                self.tell_iterations()

    def tell_iterations(self) -> None:
        """Tell how many iterations are made."""
        self._context.progress("iterate", self.iterated, self._iterations, "iterations")
