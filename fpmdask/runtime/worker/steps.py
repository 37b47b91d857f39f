"""Steps of a run as tasks on a worker: what they do, and the one message that each answers with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any

from distributed import get_worker

from fpmdask.errors import KernelError, PartitionError, RunCancelledError
from fpmdask.runtime.dask_private import send_to_scheduler
from fpmdask.runtime.protocol import STEP_ANSWER, STEP_EVENT
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.version import PLUGIN
from fpmdask.runtime.wire import STOP, TIMED, MalformedError, Step, check_message
from fpmdask.runtime.worker.fetch import FetchFailed
from fpmdask.runtime.worker.side import RunSpace, WorkerSide
from fpmdask.timing import TimingPolicy, measure


def worker_side() -> WorkerSide:
    """Return this worker's side of fpmdask, from within a task."""
    side = get_worker().plugins.get(PLUGIN)
    side = getattr(side, "side", side)
    if not isinstance(side, WorkerSide):
        raise KernelError("this worker has no fpmdask; run `fpmdask.Balancer(client)` again")
    return side


class Commands:
    """What the coordinator tells a step while that goes on, and what the step tells it.

    Several threads may ask.

    Parameters
    ----------
    side, space, step, order
        The worker, the run, and what the step was called with.
    to
        The name that the step listens to.
    common
        Parts of each of its events.
    """

    def __init__(
        self,
        side: WorkerSide,
        space: RunSpace,
        step: Step,
        order: Mapping[str, Any],
        to: str,
        **common: Any,
    ) -> None:
        self._worker, self._step, self._waiting = side.worker, step, space.notes(to)
        self._run, self._ticket, self._common = order["run"], order["ticket"], common

    def get(self) -> Mapping[str, Any]:
        """Wait for the next command.

        Raises
        ------
        RunCancelledError
            If the step is not wanted any more.
        MalformedError
            If it is none that the step declares.
        """
        return self._taken(self._waiting.get())

    def poll(self) -> Mapping[str, Any] | None:
        """Return the next command if there is one; raises as `get`."""
        try:
            return self._taken(self._waiting.get_nowait())
        except Empty:
            return None

    def _taken(self, command: Any) -> Mapping[str, Any]:
        if command is None or command == STOP:
            self._waiting.put(None)  # for other threads
            raise RunCancelledError("this step is not wanted any more")
        check_message(self._step.command, command, f"a command to {self._step.name}")
        taken: Mapping[str, Any] = command
        return taken

    def tell(self, **event: Any) -> None:
        """Tell the coordinator of an event."""
        told = {**self._common, **event}
        message = STEP_EVENT.message(run=self._run, ticket=self._ticket, event=told)
        send_to_scheduler(self._worker, message)


def step(
    declared: Step,
    order: Mapping[str, Any],
    work: Callable[[WorkerSide, RunSpace], Mapping[str, Any]],
) -> None:
    """Run ``work`` for ``order`` as a task and answer the coordinator.

    Whatever happens, one message goes out: what ``work`` returned, ``error`` for an exception,
    ``malformed`` for an order or a command that ``declared`` does not know, or ``cancelled``. It
    travels with the worker's next batch, so nobody has to fetch a result.
    """
    side = worker_side()
    answer: dict[str, Any] = {}
    space = side.space(order["run"])
    began = time.perf_counter()
    if space is None:
        answer["cancelled"] = True
    else:
        try:
            check_message(declared.order, order, f"the order of {declared.name}")
            answer.update(work(side, space))
        except RunCancelledError:
            answer["cancelled"] = True
        except MalformedError as error:
            answer["malformed"] = str(error)
        except (Exception, SystemExit) as error:  # a kernel that exits must not end the worker
            if space.cancelled.is_set():  # what it works with is gone, and nobody wants it
                answer["cancelled"] = True
            else:
                answer["error"] = describe_error(error)
    answer["elapsed"] = time.perf_counter() - began
    message = STEP_ANSWER.message(run=order["run"], ticket=order["ticket"], answer=answer)
    send_to_scheduler(side.worker, message)


def exchanging(
    declared: Step,
    order: Mapping[str, Any],
    work: Callable[[WorkerSide, RunSpace], Mapping[str, Any]],
) -> None:
    """Do as `step`, for work that gets what peers hold, whose addresses are in ``order``.

    The answer is ``missing`` where a peer does not give what is needed, ``unusable`` where no other
    worker could use what there is.
    """

    def fetching(side: WorkerSide, space: RunSpace) -> Mapping[str, Any]:
        space.exchange.know(order["channels"], order.get("bare", ()))
        try:
            return work(side, space)
        except FetchFailed as failed:
            return {"missing": failed.peers[0]}
        except PartitionError as unusable:
            return {"unusable": str(unusable)}

    step(declared, order, fetching)


def timed(order: Mapping[str, Any]) -> None:
    """Task: time the run's kernel for ``order["units"]`` units."""

    def work(side: WorkerSide, space: RunSpace) -> Mapping[str, Any]:
        if space.kernel is None:
            raise KernelError("the kernel was not prepared on this worker")

        def clock() -> float:  # read between repetitions, and by kernels that check their deadline
            if space.cancelled.is_set():
                raise RunCancelledError(f"run {space.run} is over")
            return time.perf_counter()

        with side.blas_threads():
            timing = measure(
                space.kernel,
                order["units"],
                TimingPolicy.from_json(order["policy"]),
                clock=clock,
                deadline_seconds=order["deadline"],
            )
        return {
            "seconds": timing.seconds,
            "half_width": timing.half_width,
            "repetitions": timing.repetitions,
            "total_seconds": timing.total_seconds,
            "reason": timing.reason,
        }

    step(TIMED, order, work)
