"""Tasks of ours in flight: submit to pinned workers, answer by message, know who is occupied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future, wait
from distributed.client import FuturesCancelledError

from fpmdask.runtime.dask_private import Task
from fpmdask.runtime.tasks import run_step
from fpmdask.runtime.wire import Step

if TYPE_CHECKING:
    from distributed import Scheduler

Answer = Mapping[str, Any]
# Tasks are handed to Dask so many at once: to take in 256 takes the scheduler over 10 ms.
WINDOW = 64


@dataclass(frozen=True)
class Order:
    """One task to submit: ``step`` with ``payload`` on ``worker``, taking ``slots`` of ``fpm``."""

    worker: str
    step: Step
    payload: Mapping[str, Any]
    slots: int


class Tickets:
    """The tasks that the coordinator has submitted and that have not ended.

    Every task answers with one message (`fpmdask.runtime.worker.steps.step`); the Dask future is
    kept until the task has ended, since a call that was started cannot be cancelled and occupies
    its worker for so long. An answer is a mapping; ``left`` in it says that the worker is gone,
    ``error`` that the task raised.
    """

    def __init__(self, scheduler: Scheduler, client: Client, ended: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._client = client
        self._ended = ended
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._worker_of: dict[int, str] = {}
        self._step_of: dict[int, Step] = {}
        self._futures: dict[int, tuple[str, Future[Any]]] = {}
        self._watchers: set[asyncio.Task[None]] = set()

    def occupied(self) -> set[str]:
        """Return the workers on which a call of ours has not returned."""
        return set(self._worker_of.values())

    def step_of(self, worker: str, ticket: Any) -> Step | None:
        """Return what a worker does under a ticket, None where that has ended."""
        return self._step_of.get(ticket) if self._worker_of.get(ticket) == worker else None

    def submit(self, run: str, orders: Sequence[Order]) -> list[asyncio.Future[Answer]]:
        """Submit all ``orders``, `WINDOW` in a message; return one future answer per order.

        The first window is submitted at once, the others one per turn of the event loop.
        """
        loop = asyncio.get_running_loop()
        numbered = [(next(self._numbers), order) for order in orders]
        answers = []
        for number, order in numbered:
            answers.append(loop.create_future())
            self._answers[number] = answers[-1]
            self._worker_of[number] = order.worker
            self._step_of[number] = order.step
        if numbered:
            self._send(run, numbered[:WINDOW])
        if numbered[WINDOW:]:
            self._watched(self._send_later(run, numbered[WINDOW:]))
        return answers

    async def _send_later(self, run: str, numbered: Sequence[tuple[int, Order]]) -> None:
        for first in range(0, len(numbered), WINDOW):
            await asyncio.sleep(0)
            window = numbered[first : first + WINDOW]
            # without those whose worker has left meanwhile
            if here := [one for one in window if one[0] in self._worker_of]:
                self._send(run, here)

    def _send(self, run: str, numbered: Sequence[tuple[int, Order]]) -> None:
        """Hand tasks to Dask and watch them."""
        layers: dict[str, MaterializedLayer] = {}
        batch = uuid4().hex[:12]
        for number, order in numbered:
            name = order.step.name
            key = f"fpmdask-{name.rpartition(':')[2]}-{batch}-{number}"
            payload = {"run": run, "ticket": number, **order.payload}
            annotations = {
                "workers": [order.worker],
                "allow_other_workers": False,
                "resources": {"fpm": order.slots},
            }
            task = Task(key, run_step, name, payload)
            layers[key] = MaterializedLayer({key: task}, annotations=annotations)
        graph = HighLevelGraph(layers, {name: set() for name in layers})
        futures = self._client.get(graph, list(layers), sync=False, fifo_timeout="0 ms")
        for (number, order), future in zip(numbered, futures, strict=True):
            self._futures[number] = (order.worker, future)
            self._watched(self._watch(number, future))
        for worker in {order.worker for _, order in numbered} - self._scheduler.workers.keys():
            self.left(worker)  # while the orders were made

    def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` beside, until `close` at the latest."""
        watcher = asyncio.get_running_loop().create_task(work)
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    def answer(self, worker: str, ticket: int, answer: Answer) -> None:
        """Deliver an answer, the last thing a task does; one that nobody waits for is dropped."""
        if self._worker_of.get(ticket) == worker:
            self._end(ticket, answer)

    def left(self, worker: str) -> None:
        """Answer for everything that was on a worker that is gone."""
        for number, (where, future) in list(self._futures.items()):
            if where == worker:
                # pinned to a worker that will not come back: without this it waits for ever, also
                # where it has answered and the scheduler has not heard yet that it ended
                future.release()
                self._end(number, {"left": True})
        for number, where in list(self._worker_of.items()):
            if where == worker:  # not submitted yet
                self._end(number, {"left": True})

    async def close(self) -> None:
        """Stop watching."""
        watchers = list(self._watchers)
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        for answer in self._answers.values():
            answer.cancel()

    async def _watch(self, number: int, future: Future[Any]) -> None:
        """Wait until the task has ended, then let go of it."""
        text = "the task was cancelled"
        try:
            with self._client.as_current():  # the scheduler's process has no default client
                await wait([future])
            state = self._scheduler.tasks.get(future.key)
            if state is not None and state.exception_text:
                text = state.exception_text
        except FuturesCancelledError:
            pass  # released because its worker is gone
        finally:
            self._futures.pop(number)[1].release()
            error = {"type": "RuntimeError", "message": text, "traceback": text, "pickled": None}
            self._end(number, {"error": error})

    def _end(self, number: int, final: Answer) -> None:
        """Forget a ticket, giving ``final`` to its waiter if nothing was given before."""
        worker = self._worker_of.pop(number, None)
        self._step_of.pop(number, None)
        answer = self._answers.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(final)
        if worker is not None:
            self._ended(worker)
