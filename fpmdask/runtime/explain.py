"""Why each worker of a run got its share, and how near the run came to the ideal. Pure.

`explained` reads a report and says it in values; `as_text` and `as_html` draw these. Nothing is
guessed: what a run did not measure is None, and not in the words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from fpmdask.runtime.links import SLOW, Link, slow_links

if TYPE_CHECKING:
    from fpmdask.runtime.report import Report

# A speed that differs less from the middle one is about as high.
ALIKE = 0.1
# A worker that has fallen below this part of its best measured speed has more than suits it.
FALLEN = 0.8
# A share of which others have computed this part, or more, is theirs, but for rounding of units.
ALL, ALL_TAKEN = 0.999, "others have computed all of its share"
# The reason of a run that one worker does, since others would take longer to exchange data with.
ALONE = "quickest alone"
# Workers that are drawn; the others are counted.
MOST_ROWS = 64
# Pixels of a bar, and Okabe and Ito's colours of what is in it.
WIDE, HIGH = 200, 14
COLOURS: Mapping[str, str] = {"computing": "#0072B2", "helping": "#009E73", "other": "#D0D0D0"}


@dataclass(frozen=True)
class WorkerStory:
    """One worker's part in a run.

    Attributes
    ----------
    name : str
    units : int
    part : float
        Of all units.
    speed : float or None
        Units per second, as measured in the run itself where that tells, or else by the kernel.
    unsure : float or None
        ± of its measured speed, relative.
    planned, actual : float or None
        Seconds for its share.
    computing, helping : float or None
        What of `actual` it computed for itself, and for others.
    nbytes : int or None
        Received.
    why : tuple of str
        Why it got that share, the weightiest reason first.
    """

    name: str
    units: int
    part: float
    speed: float | None
    unsure: float | None
    planned: float | None
    actual: float | None
    computing: float | None
    helping: float | None
    nbytes: int | None
    why: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """A run in words.

    Attributes
    ----------
    run, ending : str
        The run's id, and how its measurement ended.
    summary : tuple of str
        Sentences on all of it.
    planned : str
        What planned seconds are of.
    actual : str
        What actual seconds are of.
    workers : tuple of WorkerStory
    left_out : dict
        Worker name → why.
    ideal, efficiency : float or None
        Seconds in which workers of these speeds would do all the work, none waiting; that over
        what the run took.
    """

    run: str
    ending: str
    summary: tuple[str, ...]
    planned: str
    actual: str
    workers: tuple[WorkerStory, ...]
    left_out: Mapping[str, str]
    ideal: float | None
    efficiency: float | None


def explained(report: Report) -> Explanation:
    """Return a report in words.

    Parameters
    ----------
    report : Report

    Returns
    -------
    Explanation

    Notes
    -----
    ideal = work / Σ speed, efficiency = ideal / what the slowest worker took, both of this run:
    speeds are what each worker did per second of computing. None where a run does not tell
    computing from waiting. O(workers · log workers).
    """
    moving = "move" in report.phases and "iterate" not in report.phases
    speeds = _speeds(report, moving)
    ideal, efficiency = _ideal(report, moving)
    middle = _middle(list(speeds.values()))
    limits = report.limits
    slow = _slow_links(report)
    helped, helping, taken = _helps(report)
    whole = max(1, int(report.distribution.sum()))
    rows, planned = report.table(), _planned(report)
    stories = []
    for name, units, seconds, spent, unsure in rows:
        actual = seconds if not report.shares else spent
        own = [share for share in report.shares if share["worker"] == name]
        done = [help_ for help_ in report.helps if help_["worker"] == name]
        stories.append(
            WorkerStory(
                name,
                units,
                units / whole,
                speeds.get(name),
                unsure,
                planned.get(name),
                actual if units or actual else None,
                _summed(own, "compute_seconds"),
                _summed(done, "seconds"),
                _received([*own, *done]) if report.shares else None,
                (
                    *([ALL_TAKEN] if units and taken.get(name, 0.0) >= units * ALL else []),
                    *_reasons(report, name, units, limits.get(name), speeds.get(name), middle),
                    *slow.get(name, ()),
                    *helped.get(name, ()),
                    *helping.get(name, ()),
                ),
            )
        )
    return Explanation(
        report.run,
        _ending(report),
        tuple(_summary(report, ideal, efficiency, moving)),
        "planned" if _plans(report) else "kernel",
        "moving" if moving else "took",
        tuple(stories),
        report.left_out,
        ideal,
        efficiency,
    )


def _planned(report: Report) -> dict[str, float]:
    """Return the seconds that each worker's share was to take, by name.

    Kernel seconds are those of a part of the work: they are scaled to the predicted makespan where
    there is one. What a run has measured of its shares afterwards is no plan.
    """
    if said := [share for share in report.shares if PLANNED in share]:
        named = {str(share["worker"]) for share in said}
        each = {n: _summed([s for s in said if s["worker"] == n], PLANNED) for n in named}
        return {name: seconds for name, seconds in each.items() if seconds is not None}
    if not report.shares:
        shares = zip(report.workers, report.distribution.tolist(), strict=True)
        models = report.models
        return {n: float(models[n].time(units)) for n, units in shares if n in models and units}
    after = {(share["worker"], share.get(what)) for share in report.shares for what in AFTER}
    found = {
        name: seconds
        for name, units, seconds, _, _ in report.table()
        if seconds and units and math.isfinite(seconds) and (name, seconds) not in after
    }
    longest = max(found.values(), default=0.0)
    scale = report.predicted_seconds / longest if report.predicted_seconds and longest else 1.0
    return {name: scale * seconds for name, seconds in found.items()}


# What a share says of the time that it took, and was to take.
AFTER, PLANNED = ("seconds", "compute_seconds"), "planned_seconds"


def _plans(report: Report) -> bool:
    """Tell whether planned seconds are those of shares, and not of a timed kernel."""
    said = any(PLANNED in share for share in report.shares)
    return said or bool(report.predicted_seconds) or not report.shares


def _speeds(report: Report, moving: bool) -> dict[str, float]:
    """Return units per second of computing: of the run, where that tells, or of its kernel."""
    computed: dict[str, list[float]] = {}
    if not moving:
        for share in report.shares:
            if share.get("compute_seconds") and share["units"]:
                own = computed.setdefault(share["worker"], [0.0, 0.0])
                own[0] += share["units"]
                own[1] += share["compute_seconds"]
    if computed and not report.helps:  # else shares were computed in part by others
        return {name: units / seconds for name, (units, seconds) in computed.items()}
    return {
        name: units / seconds
        for name, units, seconds, _, _ in report.table()
        if units and seconds and math.isfinite(seconds)
    }


def _ideal(report: Report, moving: bool) -> tuple[float | None, float | None]:
    """Return the ideal seconds, and the run's efficiency."""
    done: dict[str, list[float]] = {}
    if report.shares:
        every = [*report.shares, *report.helps]
        if moving or not all("compute_seconds" in share for share in report.shares):
            return None, None
        what = "work" if all("work" in share for share in every) else "units"
        for share in every:
            own = done.setdefault(share["worker"], [0.0, 0.0])
            own[0] += share[what]
            own[1] += share.get("compute_seconds", share["seconds"])
        took = report.measured_seconds
    else:
        rows = [(n, u, s) for n, u, s, _, _ in report.table() if s and math.isfinite(s)]
        done = {name: [units, seconds] for name, units, seconds in rows}
        took = max((seconds for *_, seconds in rows), default=None)
    speeds = [work / seconds for work, seconds in done.values() if seconds > 0]
    if not took or not sum(speeds):
        return None, None
    ideal = sum(work for work, _ in done.values()) / sum(speeds)
    return ideal, ideal / took


def _reasons(
    report: Report,
    name: str,
    units: int,
    limit: float | None,
    speed: float | None,
    middle: float | None,
) -> list[str]:
    """Return why a worker got so many units, by its speed and its memory."""
    if report.reason == "given":
        return ["given by the caller"]
    if report.reason == "as held":
        return ["what it holds"]
    if limit is not None and limit < 1:
        return ["no memory for a unit"]
    found = []
    if limit is not None and units >= int(limit):
        found.append(f"memory limit: {int(limit)} units at most")
    if not units and _calls(report):
        return [*found, "the others had taken all before it asked"]
    if not units and report.reason == ALONE:
        return [*found, "exchanging with another worker takes longer than what it could save"]
    if not units and (middle is not None or report.reason == "known"):
        return [*found, "too slow: the others are done before it could finish a unit"]
    if not units:
        return [*found, f"even shares: {report.reason}; there are fewer units than workers"]
    if speed is None or middle is None:
        known = report.reason == "known"
        return [*found, "known from earlier runs" if known else f"even shares: {report.reason}"]
    ratio = speed / middle
    if abs(ratio - 1) <= ALIKE:
        found.append("about the middle speed")
    elif ratio > 1:
        found.append(f"faster: {ratio:.1f} times the middle speed")
    else:
        found.append(f"slower: {_percent(ratio)} of the middle speed")
    if (model := report.models.get(name)) is not None:
        x, seconds = model.points
        best = float((x / seconds).max())
        now = float(model.speed(float(units)))
        if now < FALLEN * best:
            found.append(f"with so much it has {_percent(now / best)} of its best speed")
    return found


def _slow_links(report: Report) -> dict[str, tuple[str, ...]]:
    links = {name: Link(float(pair[0]), float(pair[1])) for name, pair in report.links.items()}
    middle = {
        way: _middle([getattr(link, way) for link in links.values()])
        for way in ("receiving", "sending")
    }
    found: dict[str, tuple[str, ...]] = {}
    for name in slow_links(links):
        ratios = [getattr(links[name], way) / each for way, each in middle.items() if each]
        times = max([SLOW, *ratios])
        found[name] = (f"its link takes {times:.0f} times as long as the middle one",)
    return found


def _helps(
    report: Report,
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]], dict[str, float]]:
    """Return who was helped by whom and who has helped whom, in words, and units taken over."""
    given: dict[tuple[str, str], float] = {}
    taken: dict[str, float] = {}
    for one in report.helps:
        pair = str(one["worker"]), str(one["helps"])
        given[pair] = given.get(pair, 0.0) + one["units"]
        taken[pair[1]] = taken.get(pair[1], 0.0) + one["units"]
    helped: dict[str, tuple[str, ...]] = {}
    helping: dict[str, tuple[str, ...]] = {}
    for (thief, victim), units in given.items():
        helped[victim] = (*helped.get(victim, ()), f"helped by {thief} ({units:.4g} units)")
        helping[thief] = (*helping.get(thief, ()), f"helped {victim} ({units:.4g} units)")
    return helped, helping, taken


def _summary(
    report: Report, ideal: float | None, efficiency: float | None, moving: bool
) -> list[str]:
    found = []
    if report.layout:
        found.append(", ".join(f"{key}: {value}" for key, value in report.layout.items()))
    if report.phases:
        found.append(", ".join(f"{name} {spent:.3f} s" for name, spent in report.phases.items()))
    if ideal is not None and efficiency is not None:
        found.append(
            f"efficiency {_percent(efficiency)}: workers of these speeds need {ideal:.3g} s at "
            f"least, {ideal / efficiency:.3g} s were taken"
        )
    if (predicted := report.predicted_seconds) is not None:
        took = report.measured_seconds
        if moving:
            found.append(f"predicted {predicted:.3g} s an iteration")
        elif took is not None and predicted > 0:
            found.append(
                f"predicted {predicted:.3g} s, took {took:.3g} s ({took / predicted - 1:+.0%})"
            )
    if (calls := _calls(report)) and not report.predicted_seconds:
        found.append(
            f"self-scheduled in {calls} calls: whoever was done took the next rows, so there were "
            "no planned seconds"
        )
    if report.shares:
        per_byte = report.bytes_moved_per_byte
        each = "" if per_byte is None else f", {per_byte:.2g} per byte of the input"
        found.append(f"{nbytes_of(report.bytes_moved)} moved between workers{each}")
    return found


def _calls(report: Report) -> int:
    """Return the calls in which rows were handed out as workers asked for them; 0 for a plan."""
    if report.reason not in ("measured", "known"):
        return 0
    return sum(int(share.get("calls", 0)) for share in report.shares)


def _ending(report: Report) -> str:
    count = len(report.rounds)
    plural = "" if count == 1 else "s"
    ending = f"{report.reason} in {count} round{plural}" if count else report.reason
    return ending if report.imbalance is None else f"{ending}, imbalance {report.imbalance:.3f}"


def _middle(values: Sequence[float]) -> float | None:
    """Return the median, the upper one of two."""
    return sorted(values)[len(values) // 2] if values else None


def _summed(shares: Sequence[Mapping[str, Any]], what: str) -> float | None:
    known = [float(share[what]) for share in shares if what in share]
    return sum(known) if known else None


def _received(shares: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(share.get("nbytes_received", 0)) for share in shares)


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def nbytes_of(nbytes: float) -> str:
    """Return bytes as people say them.

    Examples
    --------
    >>> nbytes_of(999), nbytes_of(12_345_678)
    ('999 B', '12.3 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


# ---- drawn


def _cells(story: WorkerStory) -> list[str]:
    speed = "" if story.speed is None else f"{story.speed:.4g}/s"
    unsure = "" if story.unsure is None else f" ±{story.unsure:.0%}"
    return [
        story.name,
        f"{story.units} ({story.part:.1%})",
        f"{speed}{unsure}",
        "" if story.planned is None else f"{story.planned:.3f} s",
        "" if story.actual is None else f"{story.actual:.3f} s",
        "" if story.nbytes is None else nbytes_of(story.nbytes),
    ]


def _heads(found: Explanation) -> list[str]:
    return ["worker", "units", "speed", found.planned, found.actual, "received"]


def _filled(table: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns of a table that say something below their heads."""
    return [n for n in range(len(table[0])) if any(row[n] for row in table[1:])]


def as_text(found: Explanation) -> str:
    """Return an explanation as lines of text: a table, and why each worker got its share."""
    table = [_heads(found), *map(_cells, found.workers)]
    columns = _filled(table)
    wide = {n: max(len(row[n]) for row in table) for n in columns}
    whys = ["why", *("; ".join(story.why) for story in found.workers)]
    lines = [f"{found.run}: {found.ending}", *found.summary]
    for row, why in zip(table, whys, strict=True):
        cells = [row[n].ljust(wide[n]) if n == 0 else row[n].rjust(wide[n]) for n in columns]
        lines.append("  ".join([*cells, why]).rstrip())
    lines += [f"left out: {name}: {why}" for name, why in found.left_out.items()]
    return "\n".join(lines)


def as_html(found: Explanation) -> str:
    """Return an explanation as HTML: a table with a bar per worker, nothing to load."""
    drawn = found.workers[:MOST_ROWS]
    known = [s for story in drawn for s in (story.planned, story.actual) if s is not None]
    longest = max((s for s in known if math.isfinite(s)), default=0.0)
    table = [_heads(found), *map(_cells, drawn)]
    columns = _filled(table)
    heads = [*(table[0][n] for n in columns), "", "why"]
    rows = []
    for story, row in zip(drawn, table[1:], strict=True):
        cells = [f"<td>{escape(row[n])}</td>" for n in columns]
        why = escape("; ".join(story.why))
        bar = _bar(story, longest)
        rows.append(
            f'<tr>{"".join(cells)}<td>{bar}</td><td style="text-align:left">{why}</td></tr>'
        )
    more = len(found.workers) - len(drawn)
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    out = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in found.left_out.items())
    summary = "".join(f"<br>{escape(line)}" for line in found.summary)
    return (
        f"<div><b>{escape(found.run)}</b>: {escape(found.ending)}{summary}"
        f"<table><tr>{head}</tr>{''.join(rows)}</table>"
        + (f"and {more} more workers" if more else "")
        + (f"left out:<ul>{out}</ul>" if out else "")
        + "</div>"
    )


def _bar(story: WorkerStory, longest: float) -> str:
    """Return a bar: seconds computing, helping others and waiting, and a mark where it was to end.

    Of a run that has no seconds it is the part of the units.
    """
    scale = WIDE / longest if longest > 0 else 0.0
    spans: list[tuple[str, float]] = []
    if story.actual is not None and math.isfinite(story.actual) and scale:
        helping = min(story.helping or 0.0, story.actual)
        rest = story.actual - helping
        computing = rest if story.computing is None else min(story.computing, rest)
        spans = [("computing", computing), ("helping", helping), ("other", rest - computing)]
    elif not scale:
        spans, scale = [("computing", story.part)], WIDE
    left, parts = 0.0, []
    for what, length in spans:
        if length > 0:
            seconds = f"{what} {length:.3f} s" if longest else f"{story.part:.1%} of the units"
            parts.append(
                f'<rect x="{left:.1f}" y="1" width="{scale * length:.1f}" height="{HIGH - 2}" '
                f'fill="{COLOURS[what]}"><title>{escape(story.name)}: {seconds}</title></rect>'
            )
            left += scale * length
    if story.planned is not None and longest:
        at = scale * story.planned
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{HIGH}" stroke="#333" '
            f'stroke-width="2"><title>planned {story.planned:.3f} s</title></line>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE + 2}" height="{HIGH}" role="img" '
        f'aria-label="{escape(story.name)}">{"".join(parts)}</svg>'
    )
