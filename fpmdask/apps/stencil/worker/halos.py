"""The halo exchange of one worker with its neighbours.

Runs in the thread of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from fpmdask.apps.stencil.block import Block
from fpmdask.apps.stencil.worker.streamed import Streamed
from fpmdask.apps.stencil.worker.team import Team
from fpmdask.runtime.regions import whole
from fpmdask.runtime.worker.fetch import Fetch, Want
from fpmdask.timing.meter import NoRecorder

if TYPE_CHECKING:
    from fpmdask.mheta.instrument import Recorder


class Halos:
    """Offers the rows at both ends to the neighbours, and says what to ask them for.

    Parameters
    ----------
    team
        Who has which rows now.
    fields
        How many there are.
    name
        Of what is offered.
    """

    def __init__(self, team: Team, fields: int, name: str = "halo") -> None:
        self._team, self._fields, self._name, self._cycle = team, fields, name, 0

    def moved(self) -> None:
        """Begin anew with other rows."""
        self._cycle = 0

    def exchanged(
        self, block: Block | Streamed, recorder: Recorder | NoRecorder
    ) -> list[tuple[str, list[Want]]]:
        """Offer what neighbours need; return what to ask each of them for."""
        self._cycle += 1
        found = []
        for side, peer in enumerate((self._team.placed.above, self._team.placed.below)):
            if peer is None or not block.open[side]:
                continue
            way, back = ("up", "down") if side else ("down", "up")
            edges, halos = block.edge(side), block.neighbours_rows(side)
            # Who has come so far has read the version before the last one. These rows stay as they
            # are, so that the part may be written to whenever they are read.
            with recorder.send(self.rank(peer), sum(rows.nbytes for rows in edges)):
                for n, rows in enumerate(edges):
                    self._team.exchange.offer(self._key(back, n), rows, self._cycle)
            wants = [
                Want(self._key(way, n), whole(rows.shape), rows, [peer], self._cycle)
                for n, rows in enumerate(halos)
            ]
            found.append((peer, wants))
        return found

    def fetch(self, wants: Sequence[Want]) -> Fetch:
        """Ask for halos now; the thread that waits receives them."""
        return self._team.exchange.fetch(wants, at_once=0)

    def rank(self, peer: str) -> int:
        """Return which one of those that have rows a neighbour is."""
        return self._team.placed.ranks[peer]

    def _key(self, way: str, field: int, parity: int | None = None) -> tuple[Any, ...]:
        """Return the key of rows that go up, or down, to a neighbour in this cycle."""
        parity = self._cycle % 2 if parity is None else parity
        return (self._name, self._team.attempt, self._team.moved, way, field, parity)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Return all that this worker may offer until rows move."""
        for way, n, parity in product(("up", "down"), range(self._fields), range(2)):
            yield self._key(way, n, parity)
