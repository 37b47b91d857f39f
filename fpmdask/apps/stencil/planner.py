"""What MHETA makes of a run: its figures, its choices, and what the report says of both. Pure.

The coordinator owns a planner in a run that is out of core, or whose machine was given, and calls
it in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpmdask.apps.stencil.calibration import (
    fitted,
    from_saved,
    measured,
    predicted,
    with_node,
)
from fpmdask.apps.stencil.distribution import Choice, choose, drawn, updated
from fpmdask.apps.stencil.history import median_parts
from fpmdask.apps.stencil.plan import Cost
from fpmdask.apps.stencil.program import program
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import PartitionError
from fpmdask.mheta import Machine, Program
from fpmdask.mheta.document import Document

VERSION = 1
# So many iterations of a distribution say how fast its nodes compute; fewer may all be disturbed.
LEAST = 3


class Planner:
    """Decides who gets which rows.

    Parameters
    ----------
    spec, prefetch
        The call.
    names
        Of the workers, in the order of their rows: MHETA's nodes.
    memory
        Of each, in bytes; None: no limit.
    most
        Rows that each may have.
    """

    def __init__(
        self,
        spec: StencilSpec,
        names: Sequence[str],
        memory: Sequence[int | None],
        most: Sequence[float],
        *,
        prefetch: bool,
    ) -> None:
        self.spec, self.names, self.memory, self.most = spec, list(names), list(memory), list(most)
        self.program, self._prefetch = program(spec, prefetch=prefetch), prefetch
        self.figures: tuple[Program, Machine] | None = None
        self._given = False
        self.why = "no choice: rows are where the caller, or another rule, has them"
        self.expected: float | None = None
        self._choices: list[dict[str, Any]] = []
        self._phases: list[tuple[list[int], dict[str, list[float]] | None]] = []
        self._late: dict[str, int] = {}  # who has joined → phases before

    def know(
        self,
        saved: Mapping[str, Any],
        seconds_per_row: Sequence[float] | None = None,
        *,
        learns: bool = False,
    ) -> bool:
        """Take the figures of a saved machine; tell whether they are complete.

        Parameters
        ----------
        saved, seconds_per_row
            As of `from_saved`.
        learns
            Whether the report's figures go by this run's iterations, too.

        Raises
        ------
        PartitionError
            If they are of other workers, or of another program.
        """
        self.figures = from_saved(saved, self.program, self.names, self.memory, seconds_per_row)
        self._given = not learns
        return self.figures is not None

    def fit(
        self, told: Sequence[Mapping[str, Any]], row_seconds: Sequence[float] | None = None
    ) -> None:
        """Take the figures of an instrumented iteration; see `fitted`.

        Raises
        ------
        PartitionError
            Where what workers tell contradicts itself.
        """
        self.figures = fitted(self.program, told, self.memory, row_seconds)

    def update(self, rows: Sequence[int], told: Sequence[Mapping[str, float]]) -> None:
        """Take the median seconds of each worker's last iterations, with these rows."""
        assert self.figures is not None
        compute, io = ([one[part] for one in told] for part in ("compute", "io"))
        beside = [max(0.0, one["middle"] - one["compute"] - one["io"]) for one in told]
        self.figures = updated(*self.figures, rows, compute, io, beside)

    def with_joined(
        self, at: int, name: str, memory: int | None, most: float, cost: Cost
    ) -> Planner:
        """Return a planner that knows of one more worker, which has come with no rows.

        Parameters
        ----------
        at
            Its place in the order of the rows.
        cost
            What it takes to compute rows.

        Notes
        -----
        Of its disk and messages nothing is known: it is taken to be as the others are (the median
        of each figure), until iterations in which it takes part are measured.
        """

        def added(values: Sequence[Any], value: Any) -> list[Any]:
            return [*values[:at], value, *values[at:]]

        found = Planner(
            self.spec,
            added(self.names, name),
            added(self.memory, memory),
            added(self.most, most),
            prefetch=self._prefetch,
        )
        if self.figures is not None:
            found.figures = with_node(*self.figures, at, memory, cost, self.spec.shape[0])
        found.why, found.expected, found._given = self.why, self.expected, self._given
        found._late = {**self._late, name: len(self._phases)}
        found._choices = [
            {**one, "rows": added(one["rows"], 0), "best": added(one["best"], 0)}
            for one in self._choices
        ]
        found._phases = [
            (added(rows, 0), predicted and {part: added(v, 0.0) for part, v in predicted.items()})
            for rows, predicted in self._phases
        ]
        return found

    def noted(self, other: Planner, without: Sequence[str]) -> None:
        """Take over the last choice of a planner that knows of some more workers, without rows."""
        kept = [n for n, name in enumerate(other.names) if name not in without]
        last = other._choices[-1]
        self._choices.append(
            {**last, **{key: [last[key][n] for n in kept] for key in ("rows", "best")}}
        )
        self.why, self.expected = other.why, other.expected

    def choose(
        self, before: Sequence[int], done: int, *, placed: bool = True, byte_seconds: float = 0.0
    ) -> Choice:
        """Return with which rows to go on after some iterations; see `distribution.choose`."""
        assert self.figures is not None
        spec = self.spec
        left = spec.iterations - done
        if spec.tolerance is not None and done:
            left = min(done, left)  # it may end at any time
        found = choose(
            *self.figures,
            before,
            left,
            spec.least,
            self.most,
            placed=placed,
            byte_seconds=byte_seconds,
        )
        self.why, self.expected = found.why, found.seconds
        self._choices.append(
            {
                "after": done,
                "rows": list(found.rows),
                "best": list(found.best),
                "best_seconds": found.best_seconds,
                "seconds": found.seconds,
                "saved_seconds": found.saved,
                "moving_seconds": found.moving,
                "why": found.why,
            }
        )
        return found

    def give_up(self, why: str) -> None:
        """Note that no figures could be made of what was measured."""
        self.figures = None
        self.why = f"rows are shared out by speed within memory, since MHETA has no figures: {why}"

    def begin(self, rows: Sequence[int]) -> None:
        """Note that iterations are made with these rows from now on."""
        expected = None if self.figures is None else predicted(*self.figures, rows)
        self._phases.append((list(rows), expected))

    def report(self, histories: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what `fpmdask.runtime.report.Report.mheta` has.

        Parameters
        ----------
        histories
            Of the workers, as `History.to_json` returns them.

        Notes
        -----
        The document's figures go by more than the instrumented iteration, of which a node's
        computing, its I/O and its messages are one sample: by the medians of the last
        distribution's iterations, if there are so many that one does not count.
        """
        self._learn(histories)
        told = [
            [dict.fromkeys(one["phases"][0], 0.0)] * self._late.get(name, 0) + list(one["phases"])
            for name, one in zip(self.names, histories, strict=True)
        ]
        phases = []
        for number, (rows, expected) in enumerate(self._phases):
            if any(len(one) <= number for one in told):
                break
            some = [one[number] for one in told]
            there = max(some, key=lambda one: one["count"])  # some may have joined later
            phase = {"first": there["first"], "count": there["count"], "rows": rows}
            if expected is not None:
                phase["predicted"] = expected
            phases.append({**phase, "measured": measured(some, expected)})
        found: dict[str, Any] = {
            "version": VERSION,
            "why": self.why,
            "workers": self.names,
            "choices": self._choices,
            "phases": phases,
            "iterations": {
                name: one["iterations"] for name, one in zip(self.names, histories, strict=True)
            },
        }
        if self.figures is not None:
            total = self.spec.shape[0]
            document = Document(*self.figures, total, iterations=1).to_dict()
            found["document"] = {**document, "_workers": self.names}
            found["spectrum"] = drawn(*self.figures, total)
        return found

    def _learn(self, histories: Sequence[Mapping[str, Any]]) -> None:
        if self.figures is None or self._given or not self._phases:
            return
        if any(len(one["phases"]) < len(self._phases) for one in histories):
            return
        done = min(one["phases"][-1]["count"] for one in histories)
        if done < LEAST:
            return
        last = [median_parts(one["iterations"][-done:]) for one in histories]
        took = ([one[part] for one in last] for part in ("compute", "io", "beside"))
        try:
            self.figures = updated(*self.figures, self._phases[-1][0], *took)
        except PartitionError:  # what was measured contradicts itself
            return
