"""A worker's calls: rows are fetched, the function is called, its result is kept."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dask.sizeof import sizeof

from fpmdask.apps.blocks.spec import COMPUTE
from fpmdask.apps.blocks.tasks import Call, MetaMismatch
from fpmdask.errors import KernelError
from fpmdask.runtime.progress import PACE_SECONDS
from fpmdask.runtime.remote_errors import describe_error
from fpmdask.runtime.worker.rows import block, shape_of
from fpmdask.runtime.worker.side import RunSpace, WorkerSide
from fpmdask.runtime.worker.space import Whole
from fpmdask.runtime.worker.steps import Commands, exchanging
from fpmdask.timing import FunctionKernel


def compute(order: Mapping[str, Any]) -> None:
    """Task: make the calls of an order."""
    exchanging(COMPUTE, order, lambda side, space: _compute(side, space, order))


def _compute(side: WorkerSide, space: RunSpace, order: Mapping[str, Any]) -> Mapping[str, Any]:
    call = getattr(space.kernel, "function", None)
    if not isinstance(space.kernel, FunctionKernel) or not isinstance(call, Call):
        raise KernelError("the function was not prepared on this worker")
    commands = Commands(side, space, COMPUTE, order, "")
    made, received = [], 0
    told = time.perf_counter()
    for number, chunk, inputs in order["calls"]:
        began = time.perf_counter()
        blocks = [block(space, one) for one in inputs]
        received += sum(nbytes for _, nbytes in blocks)
        ready = time.perf_counter()
        try:
            with side.blas_threads():
                value = call([one for one, _ in blocks], order["resource"], chunk)
            shape, nbytes = shape_of(value), sizeof(value)
        except MetaMismatch as error:
            return {"unlike": str(error), "number": number}
        except BaseException as error:  # the user's; one that exits must not end the worker
            return {"raised": describe_error(error), "number": number}
        space.parts[number] = Whole(value)
        spent = {"waiting": ready - began, "computing": time.perf_counter() - ready}
        made.append({"number": number, "shape": shape, "nbytes": nbytes, **spent})
        if time.perf_counter() - told >= PACE_SECONDS and len(made) < len(order["calls"]):
            told = time.perf_counter()
            commands.tell(made=[one["number"] for one in made])
    return {"made": made, "nbytes_received": received}
