"""The scheduler's part in products as sums over ranges of K: who should multiply how much of it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from distributed.utils import offload

from fpmdask.apps.matmul.coordinator.distribute import measured_shares, shared_out
from fpmdask.apps.matmul.kernel import panel_depth
from fpmdask.apps.matmul.place import placed
from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.apps.matmul.split_k import (
    COPIES,
    FEWER,
    held_by_worker,
    moved_bytes,
    moves_less,
    needed,
    worth_handing_over,
)
from fpmdask.apps.matmul.tiling import INNER
from fpmdask.errors import PartitionError
from fpmdask.partition import proportional
from fpmdask.partition.even import even
from fpmdask.runtime.coordinator.chunks import (
    free_nbytes,
    holders,
    wait_for_chunks,
    without_fpmdask,
)
from fpmdask.runtime.coordinator.context import RunContext

# Nobody helps whoever is last: after scouting a round of the shares that it proposes.
ROUNDS = 2

# One of so many lines is multiplied to tell the workers apart.
SAMPLE = 64


async def wanted(context: RunContext, spec: MatmulSpec) -> bool:
    """Tell whether a product is to be computed as sums over ranges of K.

    That is where they move a quarter of what a layout of C would, at most.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If that was asked for, and a worker's memory cannot hold the sums beside its range.
    """
    asked, tuning = context.spec, context.tuning.matmul
    if asked["layout"] not in ("auto", INNER) or asked["distribution"] is not None:
        return False
    workers = context.members.candidates()
    if asked["layout"] == "auto":
        if spec.nbytes < tuning.ranges_least_nbytes or not moves_less(spec, len(workers)):
            return False
        lazy = asked["lazy"]
        present = [key for key in spec.keys if key[0] not in lazy]
        held = await wait_for_chunks(context, present)
        shared = shared_out(context)
        rows = even(shared.shape[0], len(workers)).tolist()
        shares = dict(zip(workers, rows, strict=True))
        of_c = await offload(placed, shared, "auto", shares, holders=held, lazy=lazy, tuning=tuning)
        ranges = await offload(moved_bytes, spec, held, len(workers), lazy=bool(lazy))
        if FEWER * ranges > of_c.nbytes:
            return False
    least_nbytes = needed(spec)
    free = await _free(context, spec)
    least = min(free, key=free.__getitem__)
    if free[least] >= least_nbytes:
        return True
    if asked["layout"] == INNER:
        raise PartitionError(
            f"layout 'inner' needs {least_nbytes} bytes on each worker, {COPIES} times C, beside "
            f"its range of A and B; {least} has room for {free[least]:.0f}; give layout='auto', "
            "or add memory"
        )
    return False


async def multiply(context: RunContext, spec: MatmulSpec) -> dict[str, Any]:
    """Have the client multiply ranges of K by Dask's tasks; it holds the result already.

    It is told the lines of K per worker, None where all multiply what they hold: what takes less
    time than moving it, or what there is no memory to hand over.
    """
    began = prepared = time.perf_counter()
    workers = context.members.candidates()
    lines = None
    rows, depth, columns = spec.shape
    if worth_handing_over(spec, context.tuning.matmul):
        deep = min(rows, panel_depth(columns))
        parameters = {"width": columns, "depth": deep, "dtype": spec.dtype.str}
        await context.acquire({"name": "matmul.panel", "parameters": parameters})
        prepared = time.perf_counter()
        found = await _measured(context, max(len(context.workers), depth // SAMPLE), deep, columns)
        lines = await _within_memory(context, spec, found)
        context.members.forget()  # the workers have no other step of this run
    else:
        await context.members.hold(workers)
        prepared = time.perf_counter()
        nobody = dict.fromkeys(workers, 0)
        context.set_result(nobody, dict.fromkeys(workers), None, "as held", nobody)
    measured = time.perf_counter()
    answer = await context.ask_client("sums", lines=lines)
    _report(context, spec, len(workers), answer["shares"])
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": measured - prepared,
        "multiply": time.perf_counter() - measured,
    }
    return {}


def _report(
    context: RunContext, spec: MatmulSpec, workers: int, shares: Sequence[Mapping[str, Any]]
) -> None:
    """Note why ranges of K were multiplied, and by whom."""
    rows, depth, columns = spec.shape
    sums, inputs = (
        elements * spec.dtype.itemsize / 1e6
        for elements in ((workers - 1) * rows * columns, depth * (rows + columns))
    )
    why = "asked for"
    if context.spec["layout"] != INNER:
        why = f"the workers' sums have {sums:.4g} MB, A and B {inputs:.4g}"
    units = {share["worker"]: share["units"] for share in shares}
    seconds = {share["worker"]: share["seconds"] for share in shares}
    found = context.report["result"]
    context.set_result(units, seconds, found["imbalance"], found["reason"], units)
    context.report |= {
        "layout": {"name": INNER, "why": why, "units": "columns of A"},
        "uncertainty": {},
        "shares": [{**share, "worker": context.name(share["worker"])} for share in shares],
    }


async def _free(context: RunContext, spec: MatmulSpec) -> dict[str, float]:
    """Return name -> the bytes that each worker which multiplies has left beside its range.

    To that belongs an even part of what the others hold.
    """
    lines, away = await _held(context, spec)
    workers = _multiplying(context)  # some may have left meanwhile
    rows, _, columns = spec.shape
    lazy, count = context.spec["lazy"], len(workers)
    sides = rows * (spec.a_name not in lazy) + columns * (spec.b_name not in lazy)
    others = sum(own for worker, own in lines.items() if worker not in workers)
    nbytes = others * sides * spec.dtype.itemsize / count
    return {
        context.name(worker): max(0.0, _room(context, spec, worker, count) - nbytes - away[worker])
        for worker in workers
    }


def _multiplying(context: RunContext) -> list[str]:
    """Return the workers that are to take part, but for those without fpmdask where others have it.

    Raises
    ------
    CoordinatorError
        As `RunContext.candidates`.
    """
    workers = context.members.candidates()
    bare = without_fpmdask(context.scheduler, {"": workers})
    return [worker for worker in workers if worker not in bare] or workers


async def _held(context: RunContext, spec: MatmulSpec) -> tuple[Counter[str], Counter[str]]:
    """Return what `held_by_worker` does, of the inputs that are not lazy."""
    lazy = context.spec["lazy"]
    places = holders(context, [key for key in spec.keys if key[0] not in lazy])
    return await offload(held_by_worker, spec, places)


def _room(context: RunContext, spec: MatmulSpec, worker: str, workers: int) -> float:
    """Return the bytes that a worker has left beside what it multiplies.

    A task has that in memory all at once: also what of it was spilled, and what is yet to be read,
    of which every worker is expected to get as much.
    """
    rows, depth, columns = spec.shape
    lazy = context.spec["lazy"]
    sides = rows * (spec.a_name in lazy) + columns * (spec.b_name in lazy)
    nbytes = depth * sides * spec.dtype.itemsize / workers
    state = context.scheduler.workers[worker]
    if spilled := state.memory.spilled:
        # the scheduler does not know which of the data that is
        inputs = set(spec.keys)
        nbytes += min(spilled, sum(task.nbytes for task in state.has_what if task.key in inputs))
    return max(0.0, free_nbytes(context, worker) - nbytes)


async def _within_memory(
    context: RunContext, spec: MatmulSpec, speeds: Mapping[str, int]
) -> dict[str, int] | None:
    """Return lines per worker by their speeds, no more than there is memory for.

    None where the workers have too little for what others hold.
    """
    rows, depth, columns = spec.shape
    lazy, workers = context.spec["lazy"], len(speeds)
    lines, away = await _held(context, spec)
    line = (rows + columns) * spec.dtype.itemsize
    most = []
    for worker in speeds:
        if worker not in context.scheduler.workers:
            return None
        # lines for which there is memory already: what it holds, and its part of what is read
        own = [float(lines[worker])] * (len(lazy) < 2) + [depth / workers] * bool(lazy)
        room = _room(context, spec, worker, workers) - needed(spec) - away[worker]
        most.append(min(own) + max(0.0, room) / line)
    if sum(most) - workers < depth:  # rounded down
        return None
    return dict(zip(speeds, proportional(depth, [*speeds.values()], most).tolist(), strict=True))


async def _measured(context: RunContext, units: int, depth: int, width: int) -> dict[str, int]:
    """Return units per worker by DFPA.

    A line of A and one of B make as many operations of as many bytes as a row of a panel does,
    whose depth is M.
    """
    shape, workers = (units, depth, width), len(context.workers)
    found = await measured_shares(context, shape, lambda _: math.inf, workers, ROUNDS)
    return {worker: count for worker, count in found.items() if count}
