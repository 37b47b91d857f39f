"""When a team looks at what its iterations take, and what its workers tell the coordinator of it.

These are the load checks of dynamic load balancing.

Runs in the thread of a step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf
from typing import Any

from fpmdask.apps.stencil.history import History, is_off
from fpmdask.apps.stencil.load_checks import LoadChecks
from fpmdask.apps.stencil.worker.counters import Counters
from fpmdask.apps.stencil.worker.own_rows import OwnRows
from fpmdask.apps.stencil.worker.team import Team
from fpmdask.timing.meter import Meter, NoRecorder
from fpmdask.tuning import StencilTuning


class Looks:
    """The load checks of a team without MHETA: iterations are timed, and told as a trial.

    Parameters
    ----------
    team, counters, tuning
        Who is timed, and what is counted.
    tries
        Whether the speeds are still to be told.
    checks
        Whether the team looks at its load now and then in any case.
    again
        Whether the speeds are told again where iterations take another time than before.

    Attributes
    ----------
    tries : bool
    asked : bool
        Whether the coordinator waits for a look.
    moves : int
        How often rows have moved.
    """

    def __init__(
        self,
        team: Team,
        counters: Counters,
        tuning: StencilTuning,
        *,
        tries: bool,
        checks: bool,
        again: bool,
    ) -> None:
        self._team, self._counters = team, counters
        self._load = LoadChecks(tuning.trial_seconds, tuning.load_check_seconds)
        self.tries, self._checks, self._again = tries, checks, again
        self.asked, self.moves = False, 0

    def begin(self, done: int, seconds: float | None) -> None:
        """Begin anew, with other rows, whose iterations should take so long."""
        self._load.moved(done, seconds)
        self._restart()

    def _restart(self) -> None:
        self._before, self._began = self._counters.computed, time.perf_counter()

    def due(self, done: int) -> bool:
        """Tell whether the team looks after an iteration."""
        return self._load.due(done) and (self.tries or self._checks)

    @property
    def seconds(self) -> float:
        """Since the timed iterations began, but for pauses."""
        return time.perf_counter() - self._began

    def paused(self, seconds: float) -> None:
        """Leave out seconds that were no iterations."""
        self._began += seconds

    def are_timed(self, done: int, seconds: float) -> bool:
        """Tell whether iterations that took so long, at most, say how fast workers are."""
        return self._load.are_timed(done, seconds)

    def tells(self, done: int, seconds: float) -> bool:
        """Tell whether the coordinator is to know what timed iterations, so many, have taken.

        It is the same on all workers, as the seconds are.
        """
        off = self._load.are_off(done, seconds)
        return self.tries or (self._again and off)

    def go_on(self, done: int, *, timed: bool) -> None:
        """Time the iterations to come, where those before say something, or nothing at all."""
        if timed:
            self._load.begin(done)
        if self._load.since == done:
            self._restart()

    def trial(
        self, done: int, count: int, seconds: float, byte_seconds: float
    ) -> Mapping[str, Any]:
        """Return the `Tried` of iterations that took so long, after this and all `count` ones."""
        self.tries = False
        pairs = zip(self._counters.computed, self._before, strict=True)
        computing, rows, io, spans = (a - b for a, b in pairs)
        turns = max(1, done - self._load.since)
        return {
            "trial": count,
            "row_seconds": computing / rows if rows else None,
            "call_seconds": self._counters.call_seconds,
            "calls": spans / turns,
            "rows": rows / turns,
            "io_seconds": io / rows if rows else 0.0,
            "exchange_seconds": (seconds - computing - io) / turns,
            "byte_seconds": byte_seconds,
        }


class Metering:
    """The times of iterations under MHETA.

    Parameters
    ----------
    team, counters
        Who is timed, and what is counted.

    Attributes
    ----------
    recorder : Meter or NoRecorder
        What iterations tell what they do.
    history : History or None
        What they took.
    expected : float or None
        What one should take.
    instruments : bool
        Whether an iteration of a sample of rows is measured first.
    """

    def __init__(self, team: Team, counters: Counters) -> None:
        self._team, self._counters = team, counters
        self.recorder: Meter | NoRecorder = NoRecorder()
        self.history: History | None = None
        self.expected: float | None = None
        self.instruments = False

    def heed(self, note: Mapping[str, Any], made: int) -> None:
        """Take the coordinator's word for what comes first, after so many iterations."""
        self.expected, self.instruments = note["expected"], bool(note["instrument"])
        self._counters.row_seconds = note["row_seconds"]
        if note["history"] and not self.instruments:
            self.keep(made)

    def keep(self, done: int) -> None:
        """Keep what iterations take from now on, after so many."""
        self.recorder, self.history = Meter(time.perf_counter), History(done)

    def one(self, rows: OwnRows, turn: int, *, checks: bool) -> float:
        """Make one iteration, and keep what it takes where that is wanted."""
        computed = self._counters.seconds["computing"]
        if isinstance(self.recorder, Meter):
            self.recorder.taken()
        self.recorder.at(section=0, tile=0)
        change = rows.sweeps.one(turn, self.recorder, checks=checks)
        if isinstance(self.recorder, Meter) and self.history is not None:
            spent = self.recorder.taken()
            self.history.add({**spent, "compute": self._counters.seconds["computing"] - computed})
        return change

    def is_off(self) -> bool:
        """Tell whether the team's iterations take other times than they should, if it can judge."""
        history = self.history
        if history is None or not history.is_full or self.expected is None:
            return False
        # A worker that waits for a slower neighbour does so now more, now less: the least scatter
        # of the workers that have rows is the run's. An all-reduce gives the largest values.
        low, high = self._team.span
        scatter = history.scatter() if low < high else inf
        told = self._team.reduce([history.middle(), -scatter])
        return is_off(float(told[0]), -float(told[1]), self.expected)

    def again(self, rows: OwnRows, count: int) -> Mapping[str, Any]:
        """Return the `LookAgain` of the last iterations."""
        assert self.history is not None
        return {
            "again": count,
            "middle": self.history.middle(),
            "byte_seconds": rows.byte_seconds,
            "call_seconds": self._counters.call_seconds,
            "calls": 1 + sum(rows.sweeps.block.open),
            **self.history.medians(),
        }
