"""The workers of one attempt as one of them sees them: who has which rows, and how they agree.

Runs in the thread of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fpmdask.apps.stencil.neighbours import Placement
from fpmdask.runtime.rows import Span
from fpmdask.runtime.worker.exchange import Exchange
from fpmdask.runtime.worker.fetch import Want
from fpmdask.runtime.worker.reduce import AllReduce
from fpmdask.runtime.worker.steps import Commands


class Team:
    """Who has which rows now.

    Parameters
    ----------
    exchange, commands
        Of the run, and of the step.
    attempt
        Which one of the run.
    rows
        Worker, first row, end: of each, in the order of the ranks.
    wraps
        Whether the first one and the last are neighbours.

    Attributes
    ----------
    placed : Placement
        Of the rows.
    moved, nbytes_received : int
        How often rows have moved, and the bytes that came with them.
    reduce : AllReduce
        Of all workers.
    """

    def __init__(
        self,
        exchange: Exchange,
        commands: Commands,
        attempt: int,
        rows: Iterable[tuple[str, int, int]],
        *,
        wraps: bool,
    ) -> None:
        self.exchange, self.commands, self.attempt = exchange, commands, attempt
        self._wraps, self.moved, self.nbytes_received = wraps, 0, 0
        self.place(rows)
        self.gather()

    @property
    def own(self) -> str:
        """This worker's address."""
        return self.exchange.address

    @property
    def span(self) -> Span:
        """This worker's rows."""
        return self.spans[self.own]

    @property
    def leads(self) -> bool:
        """Whether this worker speaks for all: it is the first that has rows."""
        return self.own == next(iter(self.placed.ranks))

    @property
    def spans(self) -> Mapping[str, Span]:
        """Worker → its rows."""
        return self.placed.spans

    def place(self, rows: Iterable[tuple[str, int, int]]) -> None:
        """Take note of who has which rows."""
        self.placed = Placement.of(rows, self.own, wraps=self._wraps)

    def gather(self) -> None:
        """Have reductions be those of the workers that there are now."""
        self._gathered = [*self.spans]
        self.name = f"stencil {self.attempt} {self.moved}"
        self.reduce = AllReduce(self.exchange, self.name, self._gathered)

    def move(
        self, rows: Iterable[tuple[str, int, int]], channels: Mapping[str, Sequence[Any]]
    ) -> None:
        """Have rows be with others from now on, and with workers that join, if there are any."""
        self.exchange.know(channels)
        self.place(rows)
        self.moved += 1
        if self._gathered != [*self.spans]:
            self.gather()

    def fetch(self, wants: Sequence[Want]) -> None:
        """Wait for rows of others."""
        fetch = self.exchange.fetch(wants)
        fetch.wait()
        self.nbytes_received += fetch.nbytes

    def say_phase(self, phase: str, which: int, *, ended: bool = False) -> None:
        """Tell that something begins that is no iteration, or that this worker is through."""
        if ended or self.leads:
            self.commands.tell(phase=phase, which=which, ended=ended)

    def end(self, keys: Iterable[Any]) -> None:
        """Have all that wait for this worker be refused: it goes on no further."""
        self.reduce.end()
        for key in keys:
            self.exchange.offers.end(key)
