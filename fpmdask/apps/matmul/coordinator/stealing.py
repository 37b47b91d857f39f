"""The shell around `Stealing`: hears how far shares are, and has idle workers steal of the last."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any

from fpmdask.apps.matmul.chunk_locations import ChunkLocations
from fpmdask.apps.matmul.parts import Assignment
from fpmdask.apps.matmul.plan import MatmulSpec, bounds_in_c, needed
from fpmdask.apps.matmul.spec import HELP
from fpmdask.apps.matmul.stealing import Steal, Stealing
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.coordinator.chunks import holders, without_fpmdask
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.tickets import Order

# So often the parts are looked at, and whenever a worker has finished: what the last one needs may
# be longer than it seemed.
LOOK_SECONDS = 0.05

Panels = Sequence[tuple[int, int]]


class WorkStealing:
    """Moves work from the workers that are last to those that have none left.

    Parameters
    ----------
    context
        The run.
    spec
        The product.
    work_per_byte, arriving, beside
        As for `Stealing`.
    """

    def __init__(
        self,
        context: RunContext,
        spec: MatmulSpec,
        work_per_byte: float,
        arriving: Mapping[str, float],
        beside: Counter[str],
    ) -> None:
        self.context, self.spec = context, spec
        itemsize, tuning = spec.dtype.itemsize, context.tuning.matmul
        self.policy = Stealing(itemsize, work_per_byte, arriving, tuning, beside)
        self.panels: dict[int, Panels] = {}
        self.relays: dict[Any, str] = {}
        self.done: dict[int, dict[str, Any]] = {}
        self.taken: dict[int, list[tuple[int, tuple[Any, ...]]]] = {}  # by part: where sums are
        self._timer: asyncio.TimerHandle | None = None
        self._planned: list[Steal] = []

    def began(self, assignment: Assignment, panels: Panels, room: float) -> None:
        """Take note of a part that is computed from these panels, in this order."""
        self.panels[assignment.part] = panels
        depths = [k1 - k0 for k0, k1 in panels]
        self.policy.began(assignment.part, assignment.worker, assignment.tile, depths, room)

    def news(self, news: Mapping[str, Any]) -> None:
        """Take note of what a share tells of itself."""
        if "refused" in news:
            self.done.pop(news["refused"], None)
            self._refused(news["refused"])
        else:
            self.policy.reached(news["part"], news["reached"], time.monotonic(), news["pace"])

    def waits(self, part: int) -> bool:
        """Tell whether others still multiply lines of a part."""
        return any(steal.part == part for steal in self.policy.open.values())

    def multiplied(self, part: int, numbers: Container[int]) -> bool:
        """Take note that a part is multiplied but for these steals; tell whether it can go on.

        It has not heard of other ones in time.
        """
        for steal in [s for s in self.policy.open.values() if s.part == part]:
            if steal.number not in numbers:
                self._refused(steal.number)
        self._look()
        return not self.waits(part)

    def finished(self, part: int) -> None:
        """Take note that a part is complete."""
        for steal in self.policy.ended(part):
            self._drop(steal)
        self._look()

    def left(self, worker: str) -> None:
        """Take note that a worker is gone, or gets no more work."""
        self.relays = {key: relay for key, relay in self.relays.items() if relay != worker}
        for steal in self.policy.left(worker):
            self._given_up(steal)

    def answered(self, number: int, answer: Mapping[str, Any]) -> None:
        """Take note that a steal has ended: its sum is there, or the victim has to multiply."""
        steal = self.policy.open.get(number)
        if steal is None:
            return  # nobody waits for it any more
        if "seconds" not in answer:
            self.policy.failed(number)
            self._take(steal, ())
            return
        del self.policy.open[number]
        self._take(steal, (steal.thief, self.context.members.channels.get(steal.thief)))
        name = self.context.name
        facts = {"worker": name(steal.thief), "helps": name(steal.victim), "part": steal.part}
        area, at = steal.tile.area / self.spec.shape[2], bounds_in_c(self.spec, steal.tile)
        self.done[number] = {**facts, "units": area, "tile": at, **answer}
        self._look()

    def give_up(self, workers: Container[str]) -> bool:
        """Have victims multiply what their thieves, one of them silent, have not finished.

        Tell whether there is any.
        """
        steals = self.policy.open.values()
        silent = [s for s in steals if s.victim in workers or s.thief in workers]
        for steal in silent:
            self.policy.failed(steal.number)
            self._given_up(steal)
        return bool(silent)

    def stop(self) -> None:
        """Look for thieves no more."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Begin one steal, and look again: each is a step of the event loop of its own."""
        self._planned = self._planned or self.policy.steals(time.monotonic())
        if self._planned:
            steal = self._planned.pop(0)
            if steal.number in self.policy.open:
                self._start(steal)
            else:  # void meanwhile, and its victim does not know of it
                self.policy.refused(steal.number)
        self._look(0.0 if self._planned else LOOK_SECONDS)

    def _look(self, seconds: float = 0.0) -> None:
        """Look for thieves, from when the first worker is done on until the product is over."""
        if self.context.spec["rebalance"]:
            self.stop()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self.context.steps.post, ("look",))

    def _start(self, steal: Steal) -> None:
        context, channels = self.context, self.context.members.channels
        try:
            places = holders(context, needed(self.spec, steal.tile))
        except CoordinatorError:  # the victim will find out
            places = {}
        if not all(places.values()) or not places:
            self.policy.refused(steal.number)
            return
        relays = {key: self.relays[key] for key in places if self.relays.get(key) in channels}
        panels = self.panels[steal.part][steal.first :]
        payload = {
            "help": steal.number,
            "tile": steal.tile.bounds,
            "product": self.spec.to_json(),
            "panels": panels,
            "where": ChunkLocations(places, channels, relays).packed(self.spec),
            "bare": without_fpmdask(context.scheduler, places),
        }
        give = {"give": steal.number, "tile": steal.tile.bounds, "first": steal.first}
        context.steps.tell(steal.victim, f"part {steal.part}", give)
        order = Order(steal.thief, HELP, payload, context.coordinator.slots)
        context.steps.dispatch([order], [("help", steal.number)])
        context.emit(
            "help",
            worker=context.name(steal.thief),
            helps=context.name(steal.victim),
            tile=bounds_in_c(self.spec, steal.tile),
            panels=len(panels),
        )

    def _refused(self, number: int) -> None:
        steal = self.policy.refused(number)
        if steal is not None:
            self._drop(steal)

    def _given_up(self, steal: Steal) -> None:
        """Have the victim multiply, also if either is gone."""
        self._take(steal, ())
        self._drop(steal)

    def _take(self, steal: Steal, where: tuple[Any, ...]) -> None:
        """Tell the victim where the sum is, () for nowhere."""
        self.taken.setdefault(steal.part, []).append((steal.number, where))
        note = {"take": steal.number, "from": where}
        self.context.steps.tell(steal.victim, f"part {steal.part}", note)

    def _drop(self, steal: Steal) -> None:
        self.context.steps.tell(steal.thief, f"help {steal.number}", {"drop": True})
