"""How far a call is: what fraction an event of its runs stands for. Pure; in any process.

The coordinator and the client tell events; `Meter`, in the client, turns them into a fraction that
never falls and is 1 at the end only. What an event may have of it:

- ``phases`` (of ``"start"``): name → weight of the run's phases in order, `App.phases`; those of
  weight 0 come amid others, are shown, and count for nothing;
- ``phase``: the phase that goes on from now;
- ``done``, ``total``, ``unit``: how much of the phase is done; without ``total`` nobody knows how
  much there is (DFPA's rounds), and each that is done counts half of what was left;
- ``expected``: the seconds that the phase should take from now on, where the coordinator can
  predict them;
- ``low``, ``high`` (of ``"stage"``): the part of the call that the next run, or stage, is; of what
  is left where inputs were computed before (`LOAD`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

# A phase is told of so often at most: each event is a message, and kept until its run ends.
PACE_SECONDS = 0.25
# Inputs that are computed before a call's first run: that phase, and its part of the call.
LOAD, LOAD_PART = "load", 0.3
# Before the end nothing says that all is done, and a prediction says less than a count.
MOST, MOST_PREDICTED = 0.999, 0.95
# Columns of the bar that `as_text` draws.
BAR = 24


@dataclass(frozen=True)
class Reading:
    """How far a call is at one moment.

    Attributes
    ----------
    title : str
        The method that was called.
    fraction : float
        From 0 to 1; 1 once the call has ended without an error.
    phase : str
        What goes on.
    done, total : float or None
        Of the phase, in `unit`; None where that is not known.
    unit : str
    seconds : float
        Since the call began.
    left : float or None
        Seconds that it should still take; None where nothing tells.
    ended : str
        "finished", "failed" or "", while it goes on.
    """

    title: str
    fraction: float
    phase: str
    done: float | None
    total: float | None
    unit: str
    seconds: float
    left: float | None
    ended: str


@dataclass
class Meter:
    """What the events of a call say about how far it is.

    Parameters
    ----------
    title
        The method that was called.
    began
        When, on the clock of `heard` and `reading`, in seconds.

    Examples
    --------
    >>> meter = Meter("matmul", 0.0)
    >>> meter.heard({"event": "start", "phases": {"measure": 1, "multiply": 3}}, 0.0)
    >>> meter.heard({"event": "progress", "phase": "multiply", "done": 10, "total": 40}, 2.0)
    >>> meter.reading(2.0).fraction
    0.4375
    """

    title: str
    began: float
    _span: tuple[float, float] = field(default=(0.0, 1.0), init=False)
    _floor: float = field(default=0.0, init=False)  # the part of the call before its first run
    _begun: bool = field(default=False, init=False)
    _phases: Mapping[str, float] = field(default_factory=dict, init=False)
    _phase: str = field(default="", init=False)
    _base: float = field(default=0.0, init=False)
    _width: float = field(default=0.0, init=False)
    _since: float = field(default=0.0, init=False)
    _done: float | None = field(default=None, init=False)
    _total: float | None = field(default=None, init=False)
    _unit: str = field(default="", init=False)
    _expected: float | None = field(default=None, init=False)
    _foreseen: tuple[float, float] = field(
        default=(0.0, 0.0), init=False
    )  # when that was told, and the part done by then
    _amid: tuple[str, float | None, float | None, str] | None = field(default=None, init=False)
    _fraction: float = field(default=0.0, init=False)
    _end: float | None = field(default=None, init=False)  # when the call should end
    _ended: str = field(default="", init=False)

    def heard(self, event: Mapping[str, Any], now: float) -> None:
        """Take in an event at the time ``now``."""
        match event.get("event"):
            case "stage":
                self._begun = True
                self._span, self._phases = (float(event["low"]), float(event["high"])), {}
                self._enter(str(event.get("stage", "")), now, whole=True)
            case "start":
                self._begun = True
                self._phases = {str(k): float(w) for k, w in event.get("phases", {}).items()}
                self._enter(next(iter(self._phases), ""), now)
            case "end":
                self._ended, self._fraction = "finished", 1.0
                return
            case "failed":
                self._ended = "failed"
                return
        phase, unit = event.get("phase"), str(event.get("unit", ""))
        done, total = _known(event.get("done")), _known(event.get("total"))
        if phase and self._phases.get(phase) == 0:
            # the phase that it interrupts keeps its count and its pace
            self._amid = str(phase), done, total, unit
            return
        if phase:
            self._amid = None
            if phase != self._phase:
                self._enter(str(phase), now)
        if event.get("expected") is not None:
            self._foreseen = now, self._share(now)
            self._expected = self._sure(event["expected"])
        if done is not None and (phase or event.get("event") == "progress"):
            self._done, self._total, self._unit = done, total, unit
        self._fraction = max(self._fraction, self._reached(now))
        left = self._left(now)
        self._end = None if left is None else now + left

    def reading(self, now: float) -> Reading:
        """Return how far the call is at the time ``now``."""
        if not self._ended:
            self._fraction = max(self._fraction, self._reached(now))
        left = None if self._end is None or self._ended else max(0.0, self._end - now)
        shown = self._amid or (self._phase, self._done, self._total, self._unit)
        return Reading(
            self.title,
            self._fraction,
            *shown,
            max(0.0, now - self.began),
            left,
            self._ended,
        )

    def _enter(self, phase: str, now: float, *, whole: bool = False) -> None:
        """Begin a phase: one of the plan has its part of the run, another half of what is left.

        A stage has all of its part of the call, unless a run begins in it.
        """
        low, high = (self._floor + (1.0 - self._floor) * end for end in self._span)
        if phase == LOAD and not self._begun:
            self._base, self._width = self._floor, LOAD_PART * (1.0 - self._floor)
            self._floor += self._width
        elif whole:
            self._base, self._width = low, high - low
        elif phase in self._phases:
            scale = (high - low) / (sum(self._phases.values()) or 1.0)
            names = list(self._phases)
            before = sum(self._phases[name] for name in names[: names.index(phase)])
            self._base, self._width = low + scale * before, scale * self._phases[phase]
        else:
            self._base = min(high, max(self._fraction, low))
            self._width = (high - self._base) / 2
        self._phase, self._since = phase, now
        self._done = self._total = self._expected = self._amid = None
        self._unit = ""

    @staticmethod
    def _sure(expected: Any) -> float | None:
        seconds = float(expected)
        return seconds if math.isfinite(seconds) and seconds > 0 else None

    def _share(self, now: float) -> float:
        """Return the part of the phase that is done."""
        counted = predicted = 0.0
        if self._done is not None:
            if self._total is None:
                counted = 1.0 - 0.5**self._done
            else:
                counted = min(1.0, max(0.0, self._done / self._total)) if self._total > 0 else 1.0
        if self._expected is not None:
            told, before = self._foreseen
            part = max(0.0, now - told) / self._expected
            predicted = min(MOST_PREDICTED, before + (1.0 - before) * part)
        return max(counted, predicted)

    def _reached(self, now: float) -> float:
        return min(MOST, self._base + self._width * self._share(now))

    def _left(self, now: float) -> float | None:
        """Return the seconds that are left: of this phase by its pace, of others by their weights.

        None in phases that are not counted, and not predicted.
        """
        spent = now - self._since
        if self._done and self._total is not None and spent > 0:
            here = spent * max(0.0, self._total - self._done) / self._done
        elif self._expected is not None:
            here = max(0.0, self._expected - (now - self._foreseen[0]))
        else:
            return None
        if self._width <= 0:
            return None
        left = here + (spent + here) * max(0.0, 1.0 - self._base - self._width) / self._width
        return left if math.isfinite(left) else None


def _known(value: Any) -> float | None:
    return None if value is None else float(value)


@dataclass
class Pace:
    """Which of the many things that a run could tell of a phase it tells."""

    _told: tuple[str, float] = field(default=("", -math.inf), init=False)

    def due(self, phase: str, now: float, *, last: bool = False) -> bool:
        """Tell whether to tell of a phase at the time ``now``; of its end in any case.

        Examples
        --------
        >>> pace = Pace()
        >>> [pace.due("sort", at) for at in (0.0, 0.1, 0.3)], pace.due("sort", 0.31, last=True)
        ([True, False, True], True)
        """
        before, when = self._told
        if phase == before and now - when < PACE_SECONDS and not last:
            return False
        self._told = phase, now
        return True


def words(reading: Reading) -> str:
    """Return a reading in words: the phase, how much of it, since when, and for how long.

    Examples
    --------
    >>> words(Reading("matmul", 0.25, "multiply", 10, 40, "rows", 2.04, 6.5, ""))
    'multiply, 10 of 40 rows, 25 %, 2.0 s, about 6.5 s left'
    """
    if reading.ended:
        return f"{reading.ended} after {duration(reading.seconds)}"
    parts = [reading.phase] if reading.phase else []
    if reading.done is not None:
        of = "" if reading.total is None else f" of {_number(reading.total)}"
        parts.append(f"{_number(reading.done)}{of} {reading.unit}".rstrip())
    parts += [f"{reading.fraction:.0%}".replace("%", " %"), duration(reading.seconds)]
    if reading.left is not None:
        parts.append(f"about {duration(reading.left)} left")
    return ", ".join(parts)


def as_html(reading: Reading) -> str:
    """Return a reading as a ``<div>`` with a bar; ``data-fraction`` has the fraction.

    Examples
    --------
    >>> 'data-fraction="0.2500"' in as_html(Reading("sort", 0.25, "", None, None, "", 1, None, ""))
    True
    """
    return (
        f'<div class="fpmdask-progress" data-fraction="{reading.fraction:.4f}">'
        f'<progress value="{reading.fraction:.4f}" max="1" style="width:20em"></progress> '
        f"<b>{escape(reading.title)}</b>: {escape(words(reading))}</div>"
    )


def as_text(reading: Reading) -> str:
    """Return a reading as a line for terminals.

    Examples
    --------
    >>> as_text(Reading("sort", 0.5, "exchange", None, None, "", 61.0, None, ""))
    'sort ━━━━━━━━━━━━             exchange, 50 %, 1 min 1 s'
    """
    bar = "━" * round(BAR * reading.fraction)
    return f"{reading.title} {bar:<{BAR}} {words(reading)}"


def duration(seconds: float) -> str:
    """Return seconds as people say them.

    Examples
    --------
    >>> duration(0.25), duration(75.3), duration(7300)
    ('0.2 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"
