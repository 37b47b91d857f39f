"""Workers that have joined while a team iterates, and wait to be taken in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fpmdask.apps.stencil.coordinator.room import Room, free_room
from fpmdask.apps.stencil.plan import Speed
from fpmdask.apps.stencil.spec import ITERATE, StencilSpec
from fpmdask.runtime.coordinator.chunks import free_nbytes
from fpmdask.runtime.coordinator.speeds import Learned
from fpmdask.runtime.coordinator.team import Attempt


class Joiners:
    """Those of one attempt. Each has a step that waits for its rows, or for its end.

    Parameters
    ----------
    attempt, spec
        Which one, and what is iterated.
    """

    def __init__(self, attempt: Attempt, spec: StencilSpec) -> None:
        self._attempt, self._spec = attempt, spec
        self._speeds: dict[str, Speed | None] = {}  # None: they measure it

    def __contains__(self, worker: str) -> bool:
        return worker in self._speeds

    def invite(
        self, worker: str, order: Mapping[str, Any], learned: Learned, team: int
    ) -> Room | None:
        """Begin a worker's step: it says what a row takes, and waits; return its room, if any.

        Parameters
        ----------
        order
            What all workers are told at first.
        learned
            What earlier runs have taught of workers.
        team
            How many workers have rows now.
        """
        context, spec, units = self._attempt.context, self._spec, self._spec.shape[0]
        if worker in self or worker not in context.workers:
            return None
        room = free_room(context, spec, {worker: free_nbytes(context, worker)})
        each = max(1, units // (1 + team))
        if room.most[worker] < spec.least:
            self.refuse([worker], "it has no memory for rows")
            return None
        known, speed = learned.of(worker), None
        if known is not None:
            speed = Speed(float(known.time(each)) / each, 0.0, 0.0, None, each, 2)
        memory, low = room.memory[worker], (units - each) // 2
        self._speeds[worker] = speed
        own = {
            **order,
            "joins": True,
            "trial": False,
            "probe": speed is None,
            "rows": [(worker, low, low + each)],
            "row_seconds": None,
            "instrument": False,
            "history": False,
            "expected": None,
            "every": 1,
            "planned": None,
            "memory": None if math.isinf(memory) else memory,
        }
        self._attempt.dispatch_beside(worker, ITERATE, own)
        return room

    def heard(self, event: tuple[Any, ...]) -> bool:
        """Take in an event of theirs; tell whether one of them is ready now."""
        match event:
            case ("left", worker):
                self._speeds.pop(worker, None)
            case (
                "news",
                worker,
                {"attempt": number, "probe": float(row), "rows": rows, "call_seconds": call},
            ) if worker in self and number == self._attempt.number:
                self._speeds[worker] = Speed(row, 0.0, 0.0, call, rows, 1)
                return True
            case ("answer", (worker, name), answer) if worker in self and (
                name == self._attempt.name
            ):
                reason = answer.get("error") or answer.get("raised") or {}
                self.refuse([worker], str(reason.get("message", "its step has ended")))
        return False

    def ready(self) -> dict[str, Speed]:
        """Return those that are there and can be taken in: worker → what a row takes it."""
        here = self._attempt.context.workers
        return {w: speed for w, speed in self._speeds.items() if speed and w in here}

    def refuse(self, workers: Iterable[str], why: str) -> None:
        """Have workers not take part in this run any more."""
        context = self._attempt.context
        for worker in workers:
            self._speeds.pop(worker, None)
            self._attempt.tell(worker, stop=True)
            context.emit("not taken in", worker=context.name(worker), why=why)

    def take_in(self, worker: str, rows: int, done: int, why: str) -> None:
        """Tell that a worker is of the team after some iterations."""
        del self._speeds[worker]
        context = self._attempt.context
        context.emit("taken in", worker=context.name(worker), rows=rows, after=done, why=why)

    def end(self) -> None:
        """Have the steps of all that wait end: the team is through, or has failed."""
        for worker in self._speeds:
            self._attempt.tell(worker, stop=True)
        self._speeds.clear()
