"""Workers that have joined while a team iterates, and wait to be taken in."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fpmdask.runtime.coordinator.context import RunContext


class Joiners:
    """Those of one attempt. Each has a step that waits for its rows, or for its end.

    Parameters
    ----------
    context
        The run.
    dismiss
        Is called with a worker whose step is to end.
    """

    def __init__(self, context: RunContext, dismiss: Callable[[str], None]) -> None:
        self._context, self._dismiss = context, dismiss
        # what a row takes them; None: they measure it
        self._row_seconds: dict[str, float | None] = {}

    def __contains__(self, worker: str) -> bool:
        return worker in self._row_seconds

    def add(self, worker: str, row_seconds: float | None) -> None:
        """Have a worker wait; what a row takes it may be known already."""
        self._row_seconds[worker] = row_seconds

    def drop(self, worker: str) -> None:
        """Forget one that has left, or whose step has ended."""
        self._row_seconds.pop(worker, None)

    def ready(self) -> dict[str, float]:
        """Return those that are there and can be taken in: worker → seconds of a row."""
        here = self._context.workers
        return {w: seconds for w, seconds in self._row_seconds.items() if seconds and w in here}

    def refuse(self, workers: Iterable[str], why: str) -> None:
        """Have workers not take part in this run any more."""
        for worker in workers:
            self.drop(worker)
            self._dismiss(worker)
            self._context.emit("not taken in", worker=self._context.name(worker), why=why)

    def take_in(self, worker: str, rows: int, done: int, why: str) -> None:
        """Tell that a worker is of the team after some iterations."""
        self.drop(worker)
        name = self._context.name(worker)
        self._context.emit("taken in", worker=name, rows=rows, after=done, why=why)

    def end(self) -> None:
        """Have the steps of all that wait end: the team is through, or has failed."""
        for worker in self._row_seconds:
            self._dismiss(worker)
        self._row_seconds.clear()
