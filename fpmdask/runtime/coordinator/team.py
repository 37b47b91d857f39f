"""One attempt of a run in which every worker has one long task, driven by notes and news."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from distributed.core import Status

from fpmdask.errors import CoordinatorError, MissingWorkersError, PartitionError
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.membership import CLOSING, KernelFailed
from fpmdask.runtime.coordinator.tickets import Order
from fpmdask.runtime.wire import Step

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

PAUSED = (
    "it is paused, and does nothing: its memory is full; give it more (memory_limit), add workers, "
    "or let go of what it holds"
)

# Errors of a team that cannot go on without a lost worker: too little memory, a name is missing.
CANNOT_GO_ON = PartitionError, MissingWorkersError

Value = TypeVar("Value")


def executes(state: WorkerState) -> bool:
    """Tell whether a worker executed a task when last heard of."""
    return bool(state.metrics.get("task_counts", {}).get("executing"))


def does_nothing(state: WorkerState) -> bool:
    """Tell whether a worker is paused and executes nothing: it begins no task until it has room."""
    return state.status == Status.paused and not executes(state)


class LostWorker(Exception):
    """A worker was lost in the middle: the others start over."""


class Attempt:
    """One attempt with the workers that are there; `LostWorker` where they do not stay.

    As a context it tells the workers to stop where anything is raised in it.

    Parameters
    ----------
    context : RunContext
    number : int
        Which attempt of the run.
    """

    def __init__(self, context: RunContext, number: int) -> None:
        self.context, self.number = context, number
        self.overdue = context.tuning.runtime.overdue
        self.name = f"attempt {number}"
        self.workers: list[str] = []
        # units that each has to do in the step, where they are not meant to take as long
        self.work: dict[str, int] = {}

    def dispatch(self, step: Step, orders: Mapping[str, Mapping[str, Any]]) -> None:
        """Start a step on each worker; ``order`` gets ``attempt`` and the ``channels``."""
        context = self.context
        self.workers = list(orders)
        common = {"attempt": self.number, "channels": dict(context.members.channels)}
        submitted = [
            Order(worker, step, {**common, **order}, context.coordinator.slots)
            for worker, order in orders.items()
        ]
        context.steps.dispatch(submitted, [(worker, self.name) for worker in orders])

    def dispatch_beside(self, worker: str, step: Step, order: Mapping[str, Any]) -> None:
        """Start a long task on a worker that is none of the team: `beside` gets its events."""
        channels = dict(self.context.members.channels)
        payload = {"attempt": self.number, "channels": channels, **order}
        submitted = Order(worker, step, payload, self.context.coordinator.slots)
        self.context.steps.dispatch([submitted], [(worker, self.name)])

    def beside(self, event: tuple[Any, ...]) -> None:
        """Take in an event of workers that are none of the team: they join, tell, answer, leave."""

    def tell(self, worker: str, **note: Any) -> None:
        """Tell a worker's task something."""
        self.context.steps.tell(worker, self.name, note)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Tell the workers of an attempt that has failed that it is over."""
        if kind is not None:
            for worker in self.workers:
                self.tell(worker, stop=True)

    async def everyone(
        self,
        what: str | None,
        step: str,
        heard_of: Callable[[str, Mapping[str, Any]], None] | None = None,
        *,
        counts: bool = False,
    ) -> dict[str, Any]:
        """Return what all workers tell under ``what``, their answers where that is None.

        All news go to ``heard_of`` as (worker, news), those of earlier attempts too; without it, or
        if the step ``counts``, the client hears how many workers are done.

        Raises
        ------
        LostWorker
            If a worker leaves, hangs, fails or misses what it needs.
        PartitionError, KernelFailed
            For what another attempt would not mend.
        """
        expected = self.context.steps.expected
        self.context.emit("step", step=step, attempt=self.number, phase=step, expected=expected)
        heard: dict[str, Any] = {}
        began = last = time.monotonic()
        warned = False
        hang = self.context.spec["measuring"]["hang"]
        while len(heard) < len(self.workers):
            try:
                # no `wait_for`: before Python 3.12 it lost a cancellation that came with an event
                async with asyncio.timeout(hang):
                    event = await self.context.steps.next_event()
            except TimeoutError:
                silent = set(self.workers) - heard.keys()
                overdue = False
                if heard:  # where nobody is done it may just take long
                    patience = self.overdue * self._more_work(silent, heard) * (last - began)
                    overdue = time.monotonic() - last > max(hang, patience)
                await self._look_after(sorted(silent), overdue=overdue)
                if not heard and not warned:
                    warned = self._warn_of_silence(silent, time.monotonic() - last)
                continue
            match event:
                case ("left", worker) if worker in self.workers:
                    raise LostWorker(self.context.members.why_left(worker))
                case ("news", worker, news):
                    if news.get("attempt") == self.number and worker in self.workers:
                        last = time.monotonic()
                        if what in news:
                            heard[worker] = news
                    if heard_of is not None:
                        heard_of(worker, news)
                case ("answer", (worker, name), answer) if name == self.name and (
                    worker in self.workers
                ):
                    self._check(worker, answer)
                    heard[worker], last = answer, time.monotonic()
            self.beside(event)
            if counts or heard_of is None:  # else that tells how far the step is
                self.context.progress(step, len(heard), len(self.workers), "workers")
        return heard

    def _warn_of_silence(self, silent: Iterable[str], seconds: float) -> bool:
        """Say whom the run waits for where a call takes much longer than any one before.

        They all wait for one another: it is not known which one's function does not return.
        """
        longest = self.context.steps.longest_call
        if longest is None or seconds <= self.overdue * longest:
            return False
        names = ", ".join(sorted(map(self.context.name, silent)))
        self.context.emit(
            "warning",
            message=f"nothing was heard of worker {names} for {seconds:.0f} s, where a call took "
            f"{longest:.2g} s at most: on one of them a function may not return, or storage may be "
            "slow; the run waits until it goes on, or is cancelled",
        )
        return True

    def _more_work(self, silent: Iterable[str], done: Iterable[str]) -> float:
        """Return how many times as much those have to do that are silent, at least 1."""
        if not self.work:
            return 1.0
        most = max(self.work.get(worker, 0) for worker in done)
        return max(
            1.0, max(self.work.get(worker, 0) for worker in silent) / most if most else math.inf
        )

    async def _look_after(self, silent: Sequence[str], *, overdue: bool) -> None:
        """Leave out workers that are paused, or else those that are overdue.

        Those that have stopped `Steps` finds; where others are overdue, too, these wait for them.

        Raises
        ------
        LostWorker
            If there are any.
        """
        states = self.context.scheduler.workers
        paused = [w for w in silent if w in states and does_nothing(states[w])]
        late, reason = paused, PAUSED
        if overdue and not paused:
            late = await self.context.coordinator.known_workers.liveness.stopped(silent)
            reason = "nothing heard of it"
        if overdue and not late:
            late, reason = [*silent], f"{self.overdue:g} times as late as the others"
        for worker in late:
            if worker in self.context.workers:
                self.context.members.give_up_on(worker, reason)
            self.context.members.shun(worker)
        if late:
            raise LostWorker(f"{', '.join(map(self.context.name, late))}: {reason}")

    def _check(self, worker: str, answer: Mapping[str, Any]) -> None:
        context = self.context
        if "unusable" in answer:
            raise PartitionError(answer["unusable"])
        if "failed" in answer:
            error = answer["failed"]
            raise KernelFailed(f"{error['type']}: {error['message']}", error)
        if "missing" in answer:
            peer = context.name(answer["missing"])
            raise LostWorker(f"{context.name(worker)} did not get all it needs of {peer}")
        if answer.get("left") or "cancelled" in answer:
            if worker in context.workers:
                context.members.leave_out(worker, CLOSING)
            raise LostWorker(f"{context.name(worker)} {CLOSING}")
        if "error" in answer:
            error = answer["error"]
            reason = f"{error['type']}: {error['message']}"
            if worker in context.workers:
                context.members.leave_out(worker, reason)
            if not context.workers:
                raise KernelFailed(f"no worker could do its share ({reason})", error)
            raise LostWorker(f"{context.name(worker)} failed: {reason}")


async def attempted(
    context: RunContext,
    numbers: Iterator[int],
    attempt: Callable[[int], Awaitable[Value]],
    mend: Callable[[], Awaitable[None]] | None = None,
) -> Value:
    """Return what an attempt returns; those that are left begin another where a worker is lost.

    Parameters
    ----------
    context : RunContext
    numbers : iterator of int
        Of attempts, from 0 on; no two of a run have the same.
    attempt : callable
        Makes the attempt of a number.
    mend : callable, optional
        Is awaited before another one: who does what now? Once more where it raises one of
        `CANNOT_GO_ON`, for a while: it may take one that comes back.

    Raises
    ------
    CoordinatorError
        If no worker is left, or there have been `most_attempts`.
    PartitionError, MissingWorkersError
        Of an attempt which nobody has left, or of `mend`: that says who was lost, too.
    """
    while True:
        number, here = next(numbers), {*context.workers}
        try:
            return await attempt(number)
        except LostWorker as error:
            lost = str(error)
        except CANNOT_GO_ON:
            if here <= context.workers.keys():
                raise
            # it came upon the loss of one before it was told
            gone = sorted(here - context.workers.keys())
            lost = ", ".join(map(context.members.why_left, gone))
        context.emit("starting over", reason=lost)
        await asyncio.sleep(context.tuning.runtime.retry_seconds)
        if number + 1 >= context.tuning.runtime.most_attempts:
            raise CoordinatorError(f"the run was given up after this: {lost}")
        await wait_for_rejoin(context, mend, lost)


async def wait_for_rejoin(
    context: RunContext, mend: Callable[[], Awaitable[None]] | None, lost: str
) -> None:
    """Wait until the connected workers can go on: a lost worker may rejoin, with its nanny's help.

    Parameters
    ----------
    mend
        Raises one of `CANNOT_GO_ON` as long as they cannot; None: any worker can.
    lost
        Who was, and why.

    Raises
    ------
    CoordinatorError, PartitionError
        If they cannot within `rejoin_seconds`: no worker is left, or what `mend` says.
    """
    tuning, told = context.tuning.runtime, False
    give_up = time.monotonic() + tuning.rejoin_seconds
    while True:
        over = time.monotonic() >= give_up
        try:
            if context.workers:
                return None if mend is None else await mend()
            reason = "no worker is left"
            if over:
                raise CoordinatorError(f"{reason}; the run was given up after this: {lost}")
        except CANNOT_GO_ON as error:
            reason = str(error)
            if over:
                raise type(error)(f"{reason}; this came after: {lost}") from error
        if not told:
            told = True
            here = {context.name(worker) for worker in context.workers}
            missing = sorted(context.members.left_out.keys() - here)
            context.emit("waiting", workers=missing, reason=reason)
        await asyncio.sleep(tuning.retry_seconds)
