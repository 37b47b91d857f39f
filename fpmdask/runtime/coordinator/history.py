"""The runs that go on and the last ten that have ended: what the dashboard and metrics show.

On the scheduler, on its event loop. It owns one `RunRecord` per run. All that it does per step is
to append one record to a bounded queue; everything else is read while somebody looks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fpmdask.runtime.activity import activities
from fpmdask.runtime.totals import Totals

if TYPE_CHECKING:
    import asyncio

    from fpmdask.runtime.coordinator.context import RunContext
    from fpmdask.runtime.coordinator.tickets import Answer, Order

# Runs that have ended, steps of each run that are kept.
MOST_RUNS, MOST_STEPS = 10, 2048
# What of a report is large: only the last run's is kept.
LARGE = ("log", "mheta")


@dataclass(slots=True)
class StepRecord:
    """One step on a worker.

    Attributes
    ----------
    worker : str
        Its name.
    step : str
        ``"module:function"``.
    began : float
        Seconds after the run's begin.
    seconds : float or None
        What it took; None while it goes on.
    parts : dict
        Activity → seconds, see `fpmdask.runtime.activity`.
    """

    worker: str
    step: str
    began: float
    seconds: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class RunRecord:
    """One run.

    Attributes
    ----------
    run, app : str
    began : float
        Seconds since the epoch.
    started : float
        The same moment, by ``time.monotonic``.
    context : RunContext or None
        While it goes on.
    report : dict
        What the run has put into its report so far.
    left_out : dict
        Worker name → why.
    steps : deque of StepRecord
        The last ones, in the order in which they began.
    seconds : float or None
        What it took; None while it goes on.
    ending : str
        "finished", "failed", "cancelled"; "" while it goes on.
    problem : str
        Why it failed.
    """

    run: str
    app: str
    began: float
    started: float
    context: RunContext | None
    report: dict[str, Any]
    left_out: dict[str, str]
    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    seconds: float | None = None
    ending: str = ""
    problem: str = ""


class History:
    """Records of runs.

    Attributes
    ----------
    going : dict
        Run id → the record of a run that goes on.
    ended : deque of RunRecord
        The last `MOST_RUNS`, the newest at the end.
    totals : Totals
        Of all runs.
    """

    def __init__(self) -> None:
        self.going: dict[str, RunRecord] = {}
        self.ended: deque[RunRecord] = deque(maxlen=MOST_RUNS)
        self.totals = Totals()

    def begin(self, context: RunContext) -> None:
        """Take note of a run that begins."""
        self.going[context.run] = RunRecord(
            context.run,
            context.app.name,
            time.time(),
            time.monotonic(),
            context,
            context.report,
            context.members.left_out,
        )

    def dispatched(
        self,
        context: RunContext,
        orders: Sequence[Order],
        answers: Sequence[asyncio.Future[Answer]],
    ) -> None:
        """Take note of steps that begin, and of each when it ends."""
        if (record := self.going.get(context.run)) is None:
            return
        began = time.monotonic() - record.started
        for order, answer in zip(orders, answers, strict=True):
            step = StepRecord(context.name(order.worker), order.step.name, began)
            record.steps.append(step)
            answer.add_done_callback(partial(self._answered, record, step))

    def _answered(
        self, record: RunRecord, step: StepRecord, answer: asyncio.Future[Answer]
    ) -> None:
        told = {} if answer.cancelled() else answer.result()
        waited = time.monotonic() - record.started - step.began
        # it may have waited for its worker's threads: the step itself took what it says
        step.seconds = float(told.get("elapsed", waited))
        step.began += max(0.0, waited - step.seconds)
        step.parts = activities(step.step, told)
        self.totals.step(record.app, step.parts, int(told.get("nbytes_received", 0)))

    def end(self, run: str, result: Mapping[str, Any] | None) -> None:
        """Take note that a run has ended; ``result`` is None where it was cancelled.

        Runs that have ended already are let be.
        """
        if (record := self.going.pop(run, None)) is None:
            return
        record.seconds = time.monotonic() - record.started
        record.context = None
        record.ending = "cancelled"
        if result is not None:
            record.ending = "failed" if "error" in result else "finished"
            error = result.get("error", {})
            record.problem = str(error.get("summary") or error.get("message", ""))
        # the client is sent the run's own report
        record.report, record.left_out = dict(record.report), dict(record.left_out)
        for older in self.ended:
            for name in LARGE:
                older.report.pop(name, None)
        self.ended.append(record)
        self.totals.run(record.app, record.ending, record.report, len(record.left_out))
