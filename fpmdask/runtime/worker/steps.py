"""Steps of a run as tasks on a worker: what they do, and the one message that each answers with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from distributed import get_worker

from fpmdask.errors import KernelError, PartitionError, RunCancelledError
from fpmdask.runtime.dask_private import send_to_scheduler
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.version import PLUGIN
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


def step(
    order: Mapping[str, Any], work: Callable[[WorkerSide, RunSpace], Mapping[str, Any]]
) -> None:
    """Run ``work`` for ``order`` as a task and answer the coordinator.

    Whatever happens, one message goes out: what ``work`` returned, ``error`` for an exception, or
    ``cancelled``. It travels with the worker's next batch, so nobody has to fetch a result.
    """
    side = worker_side()
    answer: dict[str, Any] = {"run": order["run"], "ticket": order["ticket"]}
    space = side.space(order["run"])
    began = time.perf_counter()
    if space is None:
        answer["cancelled"] = True
    else:
        try:
            answer.update(work(side, space))
        except RunCancelledError:
            answer["cancelled"] = True
        except (Exception, SystemExit) as error:  # a kernel that exits must not end the worker
            if space.cancelled.is_set():  # what it works with is gone, and nobody wants it
                answer["cancelled"] = True
            else:
                answer["error"] = describe_error(error)
    answer["elapsed"] = time.perf_counter() - began
    message = {"op": "fpmdask-answer", **answer}
    send_to_scheduler(side.worker, message)


def exchanging(
    order: Mapping[str, Any], work: Callable[[WorkerSide, RunSpace], Mapping[str, Any]]
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

    step(order, fetching)


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

    step(order, work)
