"""The steps of a run under way on its workers, and the events that the run waits for."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fpmdask.errors import CoordinatorError
from fpmdask.runtime.coordinator.tickets import Answer, Order
from fpmdask.runtime.patience import StepTimes
from fpmdask.runtime.protocol import COMMAND
from fpmdask.runtime.wire import TIMED, Step

if TYPE_CHECKING:
    from fpmdask.runtime.coordinator.context import RunContext

# The event of a background task that has ended with an exception.
FAILED = object()
# How often it is looked whether workers that compute have stopped.
STOPPED_LOOK_SECONDS = 0.25


class Steps:
    """Submits steps of one run, hears of them, and gives up on workers that have stopped.

    Parameters
    ----------
    context
        The run.
    declared
        The steps that it may submit.

    Attributes
    ----------
    expected : float or None
        Seconds that the steps under way should take.
    longest_call : float or None
        Seconds that a call of the user's function takes at most, where a step makes many: a call
        may hold the interpreter, and the worker is silent for so long.
    """

    def __init__(self, context: RunContext, declared: Sequence[Step]) -> None:
        self._context, self._declared = context, declared
        self._coordinator = context.coordinator
        self.expected: float | None = None
        self.longest_call: float | None = None
        self._inbox: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self._under_way: list[StepTimes] = []

    def dispatch(self, orders: Sequence[Order], tags: Sequence[Any]) -> None:
        """Submit steps to pinned workers; answers come as events ("answer", tag, answer).

        Raises
        ------
        CoordinatorError
            If the application does not declare what a step and the coordinator tell each other.
        """
        declared = self._declared
        for step in {order.step for order in orders}.difference(declared, [TIMED]):
            known = ", ".join(one.name for one in declared) or "none"
            raise CoordinatorError(
                f"the application {self._context.app.name} declares no step {step.name}; it "
                f"declares {known}: name it in its `messages`"
            )
        answers = self._coordinator.tickets.submit(self._context.run, orders)
        self._coordinator.history.dispatched(self._context, orders, answers)
        steps = StepTimes((order.worker for order in orders), time.monotonic())
        self._under_way.append(steps)
        for answer, tag, order in zip(answers, tags, orders, strict=True):
            answer.add_done_callback(partial(self._post_answer, tag))
            answer.add_done_callback(partial(self._step_ended, steps, order.worker))

    def _step_ended(self, steps: StepTimes, worker: str, _: asyncio.Future[Answer]) -> None:
        steps.ended(worker, time.monotonic())
        if not steps.open:
            self._under_way.remove(steps)

    def watch(self) -> None:
        """Give up on workers that give no sign of life, from now on."""
        self.background(self._look_for_stopped())

    async def _look_for_stopped(self) -> None:
        """Give up on workers of the run that give no sign of life while steps are late."""
        liveness, hang = (
            self._coordinator.known_workers.liveness,
            float(self._context.spec["measuring"]["hang"]),
        )
        while not self._context.closed:
            await asyncio.sleep(STOPPED_LOOK_SECONDS)
            expected = self.expected if self.longest_call is None else self.longest_call
            # one that has done its own steps may hold what others wait for
            waited = [
                patience
                for steps in self._under_way
                if steps.open
                and time.monotonic() - steps.began >= (patience := steps.patience(expected, hang))
            ]
            least = min(waited, default=math.inf)
            late = {w for w in self._context.workers if liveness.silent_seconds(w) >= least}
            for worker in await liveness.stopped(late) if late else ():
                if worker in self._context.workers:
                    reason = f"gave no sign of life for {liveness.silent_seconds(worker):.1f} s"
                    self._context.members.give_up_on(worker, reason)
                    self._context.members.shun(worker)
                    self.post(("left", worker))

    def tell(self, address: str, to: str, note: Any) -> None:
        """Tell a step on a worker something, without waiting; it listens to the name ``to``."""
        if address in self._context.members.prepared and address in self._context.scheduler.workers:
            message = COMMAND.message(run=self._context.run, to=to, command=note)
            self._context.scheduler.worker_send(address, message)

    def _post_answer(self, tag: Any, done: asyncio.Future[Answer]) -> None:
        if not done.cancelled():
            self.post(("answer", tag, done.result()))

    def post(self, event: tuple[Any, ...]) -> None:
        """Put an event into the run's inbox."""
        self._inbox.put_nowait(event)

    def fail(self, error: BaseException) -> None:
        """End the run by an error, at its next event."""
        self.post((FAILED, error))

    def forget_events(self) -> None:
        """Empty the inbox: what came before a measurement began is in its members."""
        before, self._inbox = self._inbox, asyncio.Queue()
        while not before.empty():
            if (event := before.get_nowait())[0] is FAILED:
                self.post(event)

    async def next_event(self) -> tuple[Any, ...]:
        """Wait for the run's next event: left, joined, answer, or what the application posts.

        Raises
        ------
        Exception
            What ended a task of `background`.
        """
        event = await self._inbox.get()
        if event[0] is FAILED:
            raise event[1]
        return event

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` beside the run; an exception that it ends with ends the run, too."""
        task = self._coordinator.beside(work)
        task.add_done_callback(self._background_ended)
        return task

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
