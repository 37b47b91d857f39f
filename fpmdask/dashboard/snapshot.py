"""Takes the snapshot that all open pages show. On the scheduler, on its event loop.

`Snapshots` owns one per scheduler: pages that look at the same moment get the same one. Nothing is
taken while no page is open.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fpmdask.dashboard.state import (
    LinkBytes,
    Memory,
    Piece,
    Run,
    Share,
    Snapshot,
    SpeedFunction,
    Speeds,
)
from fpmdask.models import PiecewiseLinearModel, from_json
from fpmdask.runtime.activity import TIMED
from fpmdask.runtime.explain import PLANNED
from fpmdask.runtime.progress import Meter, words
from fpmdask.runtime.version import PLUGIN, RECEIVED

if TYPE_CHECKING:
    from distributed import Scheduler

    from fpmdask.runtime.coordinator.history import RunRecord, StepRecord
    from fpmdask.runtime.coordinator.plugin import CoordinatorPlugin

# Pages that look within this time see the same.
SAME_SECONDS = 0.2
# Workers of which speed functions are drawn, pieces of the timeline, pairs of workers.
MOST_FUNCTIONS, MOST_PIECES, MOST_LINKS = 256, 2000, 1024
# Less of a share says little of when all of it will be done.
TELLING = 0.05
# What MHETA predicts and measures of each node in an iteration.
STAGES = {"compute": "compute", "io": "I/O", "send": "send", "receive": "receive", "wait": "wait"}


class Snapshots:
    """The last snapshot of a scheduler's coordinator, and how far its runs are."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._taken = -math.inf
        self._last = Snapshot()
        self._meters: dict[str, tuple[Meter, int]] = {}
        self._speeds: tuple[Any, Speeds | None] = (None, None)

    def latest(self) -> Snapshot:
        """Return a snapshot that is `SAME_SECONDS` old at most."""
        now = time.monotonic()
        if now - self._taken >= SAME_SECONDS:
            coordinator: Any = self._scheduler.plugins.get(PLUGIN)
            self._last = Snapshot() if coordinator is None else self._take(coordinator, now)
            self._taken = now
        return self._last

    def _take(self, coordinator: CoordinatorPlugin, now: float) -> Snapshot:
        history = coordinator.history
        records = [*reversed(history.ended)]
        records = [*reversed(history.going.values()), *records]
        self._meters = {run: self._meters[run] for run in self._meters if run in history.going}
        runs = tuple(self._run(record, now) for record in records)
        shown, at = next(
            ((r, n) for n, r in enumerate(records) if r.steps or r.report.get("result")),
            (None, 0),
        )
        names = {address: str(ws.name) for address, ws in self._scheduler.workers.items()}
        common = Snapshot(
            links=_links(self._scheduler, names),
            memory=tuple(_memory(coordinator, names)),
            runs=runs,
        )
        if shown is None:
            kernel, models = coordinator.library.last_used(MOST_FUNCTIONS)
            functions = tuple(SpeedFunction(name, models[name]) for name in in_order(models))
            speeds = Speeds(kernel, functions) if models else None
            return replace(common, workers=in_order(names.values()), speeds=speeds)
        seconds = shown.seconds if shown.seconds is not None else now - shown.started
        shares = tuple(_shares(shown, runs[at].fraction, seconds))
        known = {*names.values(), *(step.worker for step in shown.steps)}
        return replace(
            common,
            workers=in_order(known | {share.worker for share in shares}),
            run=runs[at],
            now=seconds,
            speeds=self._speeds_of(coordinator, shown),
            shares=shares,
            pieces=tuple(_pieces(shown, seconds)),
            predicted=tuple(_predicted(shown)),
        )

    def _run(self, record: RunRecord, now: float) -> Run:
        result = record.report.get("result") or {}
        fraction, phase, seconds = 1.0, "", record.seconds
        if record.context is not None and seconds is None:
            seconds = now - record.started
            meter, seen = self._meters.get(record.run) or (Meter(record.app, 0.0), 0)
            events = record.context.client_messages.events
            for event in events[seen:]:
                meter.heard(event, float(event["seconds"]))
            self._meters[record.run] = meter, len(events)
            reading = meter.reading(seconds)
            fraction, phase = reading.fraction, words(reading)
        return Run(
            record.run,
            record.app,
            record.began,
            seconds or 0.0,
            record.ending or "running",
            phase,
            fraction,
            sum(map(bool, result.get("distribution", {}).values())),
            record.problem or str(result.get("reason", "")),
            "; ".join(f"{name}: {why}" for name, why in record.left_out.items()),
        )

    def _speeds_of(self, coordinator: CoordinatorPlugin, record: RunRecord) -> Speeds | None:
        """Return the speed functions of a run; they are made anew after each of its rounds."""
        report = record.report
        key = (record.run, len(report["rounds"]), "result" in report, record.ending)
        if key != self._speeds[0]:
            self._speeds = key, _speeds(coordinator, record)
        return self._speeds[1]


# ---- the parts of a snapshot


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in worker order.

    Examples
    --------
    >>> in_order({"w10", "w9", "a"})
    ('a', 'w9', 'w10')
    """
    return tuple(sorted({*names}, key=lambda name: (len(name), name)))


def _speeds(coordinator: CoordinatorPlugin, record: RunRecord) -> Speeds | None:
    report, context = record.report, record.context
    points: dict[str, dict[float, float]] = {}
    for measured in report["rounds"]:
        for name, units in measured["units"].items():
            seconds = measured["kernel_seconds"][name]
            if units and seconds is not None and math.isfinite(seconds):
                points.setdefault(name, {})[float(units)] = float(seconds)
    models: dict[str, PiecewiseLinearModel] = {}
    for name, data in report.get("models", {}).items():
        if isinstance(model := from_json(data), PiecewiseLinearModel):
            models[name] = model
    for name, own in points.items():
        if name not in models:
            models[name] = PiecewiseLinearModel.from_points([*own], [*own.values()])
    if context is not None:
        for address, identity in context.workers.items():
            kernel = context.members.kernel_ids.get(address)
            known = None if kernel is None else coordinator.library.peek(kernel, identity)
            if known is not None:
                models.setdefault(context.name(address), known)
    kernel_name = record.app
    if not models:  # of a run that went by what was known
        kernel_name, models = coordinator.library.last_used(MOST_FUNCTIONS)
    if not models:
        return None
    result, names = report.get("result") or {}, report.get("names", {})
    by_name = {names.get(a, a): n for a, n in result.get("distribution", {}).items()}
    half_widths = _half_widths(report, names)
    functions = tuple(
        SpeedFunction(name, models[name], half_widths.get(name, {}), by_name.get(name))
        for name in in_order(models)[:MOST_FUNCTIONS]
    )
    return Speeds(kernel_name, functions, _common_seconds(functions))


def _common_seconds(functions: Iterable[SpeedFunction]) -> float | None:
    """Return in how many seconds the workers finish their shares, by their models."""
    seconds = [float(one.model.time(float(one.share))) for one in functions if one.share]
    return max(seconds, default=None)


def _half_widths(
    report: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, dict[float, float]]:
    """Return worker name → units → half-width of the seconds that were measured there."""
    asked = {
        (record["number"], name): float(units)
        for record in report["rounds"]
        for name, units in record["units"].items()
    }
    found: dict[str, dict[float, float]] = {}
    members = ((report.get("log") or {}).get("header") or {}).get("members", {})
    called = {address: str(member.get("name", address)) for address, member in members.items()}
    for event in (report.get("log") or {}).get("events", ()):
        if event["event"] == "answered" and "half_width" in event:
            name = names.get(event["worker"]) or called.get(event["worker"], event["worker"])
            if units := asked.get((event["round"], name)):
                found.setdefault(name, {})[units] = float(event["half_width"])
    return found


def _shares(record: RunRecord, fraction: float, now: float) -> Iterator[Share]:
    """Yield what each worker is to do, has done, and when it ends."""
    context, report = record.context, record.report
    told = {} if context is None or context.shares_now is None else context.shares_now()
    planned = _planned(record)
    spans = _spans(record.steps, now)
    seconds = _planned_seconds(report)
    done_by: dict[str, float] = {}
    if record.ending:
        for share in (*report.get("shares", ()), *report.get("helps", ())):
            name = share["worker"]
            done_by[name] = done_by.get(name, 0.0) + float(share["units"])
    for name in in_order({**planned, **told, **done_by}):
        units, done = planned.get(name, 0.0), 0.0
        began, ended, open_ = spans.get(name, (None, None, False))
        if name in told:
            units, done = told[name]
            units = max(units, planned.get(name, 0.0)) if record.app == "matmul" else units
        elif record.ending == "finished":
            done = done_by.get(name, units)
        elif began is not None:
            done = units if not open_ else units * fraction
        end = None
        if began is not None and not open_ and (record.ending or (units and done >= units)):
            yield Share(name, units, done, ended, ended=True)
            continue
        part = done / units if units else 0.0
        if began is not None and part >= TELLING:
            end = began + (now - began) / min(1.0, part)
        elif began is not None and name in seconds:
            end = began + seconds[name]
        yield Share(name, units, done, end)


def _planned(record: RunRecord) -> dict[str, float]:
    """Return worker name → units: of the run, of its last plan, or of the round under way."""
    report, context = record.report, record.context
    if context is not None:
        for event in reversed(context.client_messages.events):
            if event["event"] == "shared out":
                return {name: float(rows) for name, rows in event["rows"].items()}
    if result := report.get("result"):
        names = report.get("names", {})
        return {names.get(a, a): float(n) for a, n in result["distribution"].items()}
    log = report.get("log") or {}
    for event in reversed(log.get("events", ())):
        asked = [one for one in event["decided"] if "measure" in one]
        if asked and context is not None:
            return {context.name(one["measure"]): float(one["units"]) for one in asked}
    return {}


def _planned_seconds(report: Mapping[str, Any]) -> dict[str, float]:
    """Return worker name → seconds that its share is to take, or was, of runs that can tell.

    Shares that have been computed say it themselves. Kernel seconds are those of a part of the
    work: they are scaled to the makespan that was predicted, and say nothing where there is none,
    unless earlier runs have taught them and this one is still to come.
    """
    found: dict[str, float] = {}
    shares = report.get("shares", ())
    for share in shares:
        if PLANNED in share:
            name = share["worker"]
            found[name] = found.get(name, 0.0) + float(share[PLANNED])
    result, names = report.get("result") or {}, report.get("names", {})
    predicted = report.get("predicted_seconds")
    if found or (not predicted and (shares or result.get("reason") != "known")):
        return found
    seconds = {
        names.get(a, a): float(s)
        for a, s in result.get("seconds", {}).items()
        if s and math.isfinite(s)
    }
    longest = max(seconds.values(), default=0.0)
    scale = predicted / longest if predicted and longest else 1.0
    return {name: scale * own for name, own in seconds.items()}


def _computes(step: StepRecord) -> bool:
    return not step.step.endswith(f":{TIMED}")


def _spans(steps: Iterable[StepRecord], now: float) -> dict[str, tuple[float, float, bool]]:
    """Return worker name → when its share began, when it ended, and whether it goes on."""
    found: dict[str, tuple[float, float, bool]] = {}
    for step in steps:
        if _computes(step):
            end = now if step.seconds is None else step.began + step.seconds
            first, last, open_ = found.get(step.worker, (step.began, end, False))
            found[step.worker] = (
                min(first, step.began),
                max(last, end),
                open_ or step.seconds is None,
            )
    return found


# In this order the parts of a step are drawn: only their sums are known.
ORDER = ("wait", "receive", "measure", "compute", "send", "I/O", "other")


def _pieces(record: RunRecord, now: float) -> Iterator[Piece]:
    """Yield the timeline: the parts of a step one after the other, what goes on at the end."""
    first = max(0, len(record.steps) - MOST_PIECES // 2)
    steps = [*record.steps][first:]
    mheta = record.report.get("mheta") or {}
    if phases := mheta.get("phases"):  # these tell more than a step's answer does
        yield from _stages(mheta, phases, _spans(steps, now), "measured")
        steps = [step for step in steps if not _computes(step)]
    for step in steps:
        at, name = step.began, step.step.rpartition(":")[2]
        if step.seconds is not None:
            for activity in ORDER:
                if seconds := step.parts.get(activity):
                    yield Piece(step.worker, activity, at, seconds, name)
                    at += seconds
    for step in steps:
        if step.seconds is None:
            activity = "compute" if _computes(step) else "measure"
            name = step.step.rpartition(":")[2]
            yield Piece(
                step.worker, activity, step.began, max(0.0, now - step.began), name, open=True
            )


def _predicted(record: RunRecord) -> Iterator[Piece]:
    """Yield what was predicted: MHETA's stages of each node, or else the seconds of each share."""
    report, spans = record.report, _spans(record.steps, 0.0)
    if phases := (report.get("mheta") or {}).get("phases"):
        yield from _stages(report["mheta"], phases, spans, "predicted")
        return
    for name, seconds in _planned_seconds(report).items():
        if name in spans:
            yield Piece(name, "compute", spans[name][0], seconds)


def _stages(
    mheta: Mapping[str, Any],
    phases: Iterable[Mapping[str, Any]],
    spans: Mapping[str, tuple[float, float, bool]],
    side: str,
) -> Iterator[Piece]:
    """Yield what iterations took each node by stage, "predicted" or "measured"."""
    at = {name: spans[name][0] for name in mheta["workers"] if name in spans}
    for phase in phases:
        for stage, activity in STAGES.items():
            of_nodes = (phase.get(side) or {}).get(stage, ())
            for name, seconds in zip(mheta["workers"], of_nodes, strict=False):
                if name in at and seconds:
                    yield Piece(name, activity, at[name], seconds * phase["count"])
                    at[name] += seconds * phase["count"]


def _links(scheduler: Scheduler, names: Mapping[str, str]) -> tuple[LinkBytes, ...]:
    """Return the pairs of workers between which most bytes went."""
    found = [
        LinkBytes(names[address], names[peer], nbytes)
        for address, state in scheduler.workers.items()
        for peer, nbytes in state.metrics.get(RECEIVED, {}).items()
        if peer in names
    ]
    if len(found) > MOST_LINKS:
        found = sorted(found, key=lambda link: -link.nbytes)[:MOST_LINKS]
    return tuple(found)


def _memory(coordinator: CoordinatorPlugin, names: Mapping[str, str]) -> Iterator[Memory]:
    by_name = {name: address for address, name in names.items()}
    for name in in_order(by_name):
        state = coordinator.scheduler.workers[by_name[name]]
        account = coordinator.known_workers.accounts.account(state)
        limit = float(account.limit or 0)
        yield Memory(
            name,
            account.data,
            account.beside,
            max(0, state.memory.unmanaged_recent),
            account.spilled,
            account.target * limit,
            limit,
        )
