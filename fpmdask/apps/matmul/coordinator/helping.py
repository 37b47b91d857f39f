"""The shell around `Tail`: hears how far shares are, and has idle workers help the last ones.

It runs on the scheduler's event loop. With many workers the question who helps whom is answered in
a thread, from a snapshot of the `Tail`; what does not hold any more when the answer is there is
dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from fpmdask.apps.matmul.parts import Assignment
from fpmdask.apps.matmul.plan import MatmulSpec, bounds_in_c, needed
from fpmdask.apps.matmul.tail import Help, Tail
from fpmdask.apps.matmul.whereabouts import Whereabouts
from fpmdask.errors import CoordinatorError
from fpmdask.runtime.coordinator.chunks import holders, without_fpmdask
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.tickets import Order

# Steps on workers.
HELP = "fpmdask.apps.matmul.worker.share:help_share"

# Unless a worker has just finished, the tail is looked at no more often than this.
LOOK_SECONDS = 0.05
# To ask who helps may take 10 ms for more workers or parts, and is done in a thread.
PLANNED_IN_LOOP = 16

Panels = Sequence[tuple[int, int]]


class Helping:
    """Moves work from the workers that are last to those that have none left.

    Parameters
    ----------
    context
        The run.
    spec
        The product.
    work_per_byte, arriving, uneven, beside
        As for `Tail`.
    """

    def __init__(
        self,
        context: RunContext,
        spec: MatmulSpec,
        work_per_byte: float,
        arriving: Mapping[str, float],
        uneven: Collection[str],
        beside: Counter[str],
    ) -> None:
        self.context, self.spec = context, spec
        itemsize, tuning = spec.dtype.itemsize, context.tuning.matmul
        self.tail = Tail(itemsize, work_per_byte, arriving, uneven, tuning, beside=beside)
        self.panels: dict[int, Panels] = {}
        self.held: dict[str, int] = {}  # worker -> elements of a panel of A and B of its own
        self.relays: dict[Any, str] = {}
        self.done: dict[int, dict[str, Any]] = {}
        self.taken: dict[int, list[tuple[int, tuple[Any, ...]]]] = {}  # by part: where sums are
        self._looked = 0.0
        self._planning: asyncio.Task[None] | None = None
        self._again = False  # something has changed since the snapshot that is being planned for
        self._clocks: dict[str, float] = {}  # worker -> what its clock lacks to ours, at most

    def began(self, assignment: Assignment, panels: Panels, room: float) -> None:
        """Take note of a part that is computed from these panels, in this order."""
        part = assignment.part
        self.panels[part] = panels
        depths = [k1 - k0 for k0, k1 in panels]
        worker, tile = assignment.worker, assignment.tile
        held = max(depths) * (tile.height + tile.width)
        self.held[worker] = max(held, self.held.get(worker, 0))
        self.tail.began(part, assignment.worker, assignment.tile, depths, room)

    def news(self, worker: str, news: Mapping[str, Any]) -> None:
        """Take note of what a share of a worker tells of itself."""
        if "refused" in news:
            self.done.pop(news["refused"], None)
            help = self.tail.refused(news["refused"], time.monotonic())
            if help is not None:
                self._drop(help)
        else:
            when = self._when(worker, news["at"])
            self.tail.reached(news["part"], news["reached"], when, arrived=news["arrived"])
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()

    def _when(self, worker: str, at: float) -> float:
        """Return the time here when it was `at` by a worker's clock.

        Messages of a worker that lacks CPU come late, and then several at once: how long its panels
        take is told by its own clock. That of the least late message so far is as ours was then.
        """
        lacking = time.monotonic() - at
        known = self._clocks.get(worker, lacking)
        if lacking < known:
            self.tail.sooner(worker, known - lacking)
        self._clocks[worker] = min(known, lacking)
        return at + self._clocks[worker]

    def paused(self, part: int) -> None:
        """Take note that a part waits for chunks that are made again."""
        self.tail.paused(part)

    def waits(self, part: int) -> bool:
        """Tell whether others still multiply lines of a part."""
        return any(help.part == part for help in self.tail.open_helps)

    def multiplied(self, part: int, numbers: Container[int]) -> bool:
        """Take note that a part is multiplied but for these helps; tell whether it can go on.

        It has not heard of other ones in time.
        """
        now = time.monotonic()
        self.tail.multiplied(part, now)
        for help in [help for help in self.tail.open_helps if help.part == part]:
            if help.number not in numbers:
                self.tail.refused(help.number, now)
                self._drop(help)
        back = self.taken_back({part})
        self._look()
        return bool(back) or not self.waits(part)

    def taken_back(self, parts: Collection[int]) -> set[int]:
        """Return those of the parts that wait whose lines helpers are too late with.

        Their givers are told to multiply these.
        """
        back = self.tail.taken_back(parts, time.monotonic())
        for help in back:
            self._take(help, None)
            self._drop(help)
        return {help.part for help in back}

    def finished(self, part: int) -> None:
        """Take note that a part is complete."""
        for help in self.tail.ended(part, time.monotonic()):
            self._drop(help)
        self._look()

    def left(self, worker: str) -> None:
        """Take note that a worker is gone, or gets no more work."""
        self._clocks.pop(worker, None)  # another machine's clock, if one comes back at its address
        self.relays = {key: relay for key, relay in self.relays.items() if relay != worker}
        for help in self.tail.left(worker, time.monotonic()):
            self._take(help, None)  # nothing is said to a giver that is gone
            if worker != help.helper:
                self._drop(help)

    def answered(self, number: int, answer: Mapping[str, Any]) -> None:
        """Take note that a help has ended: its sum is there, or the giver has to multiply."""
        failed = "seconds" not in answer
        ended = self.tail.failed if failed else self.tail.help_ended
        help = ended(number, time.monotonic())
        if help is None:
            return  # nobody waits for it any more
        if failed:
            self._take(help, None)
            return
        self._take(help, help.helper)
        name = self.context.name
        area = help.tile.area / self.spec.shape[2]
        facts = {"worker": name(help.helper), "helps": name(help.giver), "part": help.part}
        at = bounds_in_c(self.spec, help.tile)
        self.done[number] = {**facts, "units": area, "tile": at, **answer}
        self._look()

    def give_up(self, workers: Container[str]) -> bool:
        """Have givers multiply what their helpers, one of them silent, have not finished.

        Tell whether there is any.
        """
        given_up = [h for h in self.tail.open_helps if h.giver in workers or h.helper in workers]
        for help in given_up:
            self.tail.failed(help.number, time.monotonic())
            self._take(help, None)
            self._drop(help)
        return bool(given_up)

    def stop(self) -> None:
        """Plan no more: the product is over."""
        if self._planning is not None:
            self._planning.cancel()

    def _look(self) -> None:
        if not self.context.spec["rebalance"]:
            return
        now = self._looked = time.monotonic()
        if self.tail.size <= PLANNED_IN_LOOP:
            for help in self.tail.helps(now):
                self._start(help)
        elif self._planning is None or self._planning.done():
            self._planning = self.context.background(self._plan())
        else:
            self._again = True

    async def _plan(self) -> None:
        """Have helps planned in a thread, and begin those that still hold, one per step."""
        self._again = True
        while self._again:
            self._again = False
            snapshot = self.tail.snapshot()
            for help in await asyncio.to_thread(snapshot.helps, time.monotonic()):
                if self.tail.take(help, snapshot, time.monotonic()):
                    self._start(help)
                    await asyncio.sleep(0)

    def _start(self, help: Help) -> None:
        try:
            places = holders(self.context, needed(self.spec, help.tile))
        except CoordinatorError:  # the giver will find out
            places = {}
        if not all(places.values()) or not places:
            self.tail.refused(help.number, time.monotonic())
            return
        context, channels = self.context, self.context.channels
        relays = {key: self.relays[key] for key in places if self.relays.get(key) in channels}
        sides = help.tile.height + help.tile.width
        deepest = self.held.get(help.helper, 0) // sides
        panels = deeper(self.panels[help.part][help.first :], deepest)
        payload = {
            "help": help.number,
            "tile": help.tile.bounds,
            "product": self.spec.to_json(),
            "panels": panels,
            "where": Whereabouts(places, channels, relays).packed(self.spec),
            "bare": without_fpmdask(context.scheduler, places),
        }
        give = {"give": help.number, "tile": help.tile.bounds, "first": help.first}
        context.tell(help.giver, f"part {help.part}", give)
        order = Order(help.helper, HELP, payload, context.coordinator.slots)
        context.dispatch([order], [("help", help.number)])
        context.emit(
            "help",
            worker=context.name(help.helper),
            helps=context.name(help.giver),
            tile=bounds_in_c(self.spec, help.tile),
            panels=len(panels),
        )

    def _take(self, help: Help, peer: str | None) -> None:
        """Tell the giver where the sum is, () for nowhere."""
        where = () if peer is None else (peer, self.context.channels.get(peer))
        self.taken.setdefault(help.part, []).append((help.number, where))
        note = {"take": help.number, "from": where}
        self.context.tell(help.giver, f"part {help.part}", note)

    def _drop(self, help: Help) -> None:
        self.context.tell(help.helper, f"help {help.number}", {"drop": True})


def deeper(panels: Panels, deepest: int) -> list[tuple[int, int]]:
    """Return panels for lines of a part: neighbours put together, up to a depth, but the first.

    A help has few lines, and what it asks for takes about as long to come, however little it is.

    Examples
    --------
    >>> deeper([(0, 5), (5, 10), (10, 15), (15, 20), (30, 35)], 10)
    [(0, 5), (5, 15), (15, 20), (30, 35)]
    """
    found = list(panels[:1])
    for k0, k1 in panels[1:]:
        low, high = found[-1]
        if len(found) > 1 and high == k0 and k1 - low <= deepest:
            found[-1] = (low, k1)
        else:
            found.append((k0, k1))
    return found
