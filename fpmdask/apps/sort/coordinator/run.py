"""The sort's run on the scheduler: shares, and attempts until no worker is lost in one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from fpmdask.apps.sort.coordinator.sorting import Sorting
from fpmdask.apps.sort.kernel import NAME
from fpmdask.errors import PartitionError
from fpmdask.runtime.coordinator.chunks import free_nbytes
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.membership import KernelFailed
from fpmdask.runtime.coordinator.speeds import TIMING, Speeds
from fpmdask.runtime.coordinator.team import LostWorker, attempted
from fpmdask.sorting.spec import SortSpec

# Under which the library keeps what sorts took.
LEARNED = "sort.share"


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If the keys, on their way, and the input that is not in memory yet, do not fit into the
        workers' memory.
    """
    workers = context.members.candidates()
    if "sort" not in context.spec:
        return  # their number is not known yet
    spec = SortSpec.from_json(context.spec["sort"])
    free = sum(free_nbytes(context, address) for address in workers)
    coming, needed = int(context.spec.get("coming", 0)), spec.units * spec.nbytes_needed
    if free < coming + needed:
        raise PartitionError(
            f"{spec.units} keys of {spec.dtype.itemsize} bytes need {needed} bytes beside the "
            f"input, of which {coming} bytes are not in memory yet; the workers have room for "
            f"{free:.0f} bytes; add workers or memory"
        )


async def run(context: RunContext) -> dict[str, Any]:
    """Sort; the value names the result's keys and their sizes.

    With a payload it says instead, under "left", why rows could not travel with their keys.
    """
    spec = SortSpec.from_json(context.spec["sort"])
    began = time.perf_counter()
    await context.acquire({"name": NAME, "parameters": {"dtype": spec.dtype.str}})
    prepared = time.perf_counter()
    context.report["phases"] = {"prepare": prepared - began, "measure": 0.0, "sort": 0.0}
    if spec.payload is not None:
        return await _carry(context, spec)
    speeds = _speeds(context, spec, payload=False)
    room = partial(_room, context, spec)
    shares = await speeds.shares(spec.units, room)
    measured = time.perf_counter()

    async def attempt(number: int) -> dict[str, Any]:
        with Sorting(context, spec, number, speeds) as sorting:
            return await sorting.run(shares)

    async def mend() -> None:
        nonlocal shares
        shares = await speeds.shares(spec.units, room)

    value = await attempted(context, count(), attempt, mend)
    await speeds.learn(_taken(context))
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": measured - prepared,
        "sort": time.perf_counter() - measured,
    }
    return value


async def _carry(context: RunContext, spec: SortSpec) -> dict[str, Any]:
    """Sort keys with which rows travel; there is no other attempt.

    What is made again of a lost worker's rows is elsewhere then than its keys; what does not fit
    may do so where less is done at once.
    """
    began = time.perf_counter()
    speeds = _speeds(context, spec, payload=True)
    try:
        shares = await speeds.shares(spec.units, partial(_room, context, spec))
        measured = time.perf_counter()
        with Sorting(context, spec, 0, speeds) as sorting:
            value = await sorting.run(shares)
    except (LostWorker, PartitionError, KernelFailed) as error:
        return {"left": str(error)}
    await speeds.learn(_taken(context))
    context.report["phases"] |= {
        "measure": measured - began,
        "sort": time.perf_counter() - measured,
    }
    return value


async def deal(context: RunContext) -> dict[str, Any]:
    """Find out who should have how many of the keys; the value has shares, unless all are equal.

    ``payload`` of the spec tells whether rows are to travel with them.
    """
    spec = SortSpec.from_json(context.spec["sort"])
    began = time.perf_counter()
    await context.acquire({"name": NAME, "parameters": {"dtype": spec.dtype.str}})
    prepared = time.perf_counter()
    speeds = _speeds(context, spec, payload=bool(context.spec["payload"]))
    shares = await speeds.shares(spec.units, partial(_room, context, spec))
    context.report["phases"] = {
        "prepare": prepared - began,
        "measure": time.perf_counter() - prepared,
    }
    return {"shares": shares if speeds.told else None}


def _speeds(context: RunContext, spec: SortSpec, *, payload: bool) -> Speeds:
    what = {"dtype": spec.dtype.str, "index": spec.index, "payload": payload}
    tuning = context.tuning.sort
    rough = replace(
        TIMING,
        min_seconds=tuning.timing_min_seconds,
        budget_seconds=tuning.timing_budget_seconds,
    )
    return Speeds(context, LEARNED, what, tuning.few_keys, "keys", rough)


def _room(context: RunContext, spec: SortSpec, address: str) -> float:
    """Return the keys that a worker can take: a run to be sorted, and a part of the result."""
    room = free_nbytes(context, address) / spec.nbytes_needed
    return math.floor(room) if math.isfinite(room) else room


def _taken(context: RunContext) -> Iterator[tuple[str, float, float]]:
    """Return (worker, keys, seconds that it was busy) of what follows the workers' own sorts."""
    addresses = {context.name(address): address for address in context.workers}
    for share in context.report["shares"]:
        if (address := addresses.get(share["worker"])) is not None:
            quota = context.workers[address].fingerprint.quota
            yield address, share["units"], busy_seconds(share, quota)


def busy_seconds(share: Mapping[str, Any], quota: float | None = None) -> float:
    """Return the seconds in which a worker was busy after its own sort, of those that it took.

    Parameters
    ----------
    share
        Facts of `fpmdask.apps.sort.worker`.
    quota
        Cores that the worker may use, None: as many as there are.

    Notes
    -----
    While its threads sort, the process gets CPU at some rate, a quota at most: work of less than a
    quota's period may be done at the rate of a whole core. At that rate its CPU-seconds take the
    time in which it was busy. In the rest it waited for others, in an exchange for about as long as
    for the slowest of all: if that counted, whoever has too little would take as long for it as all
    others for theirs, and never get more.

    Examples
    --------
    A tenth of a core, that waited for most of a second:

    >>> cpu = {"exchange": 0.02, "working": 0.01}
    >>> phases = {"exchange": 0.9, "merge": 0.1}
    >>> share = {"cpu_seconds": cpu, "working_seconds": 0.1, "phases": phases}
    >>> round(busy_seconds(share), 6), round(busy_seconds(share, quota=0.05), 6)
    (0.2, 0.4)
    """
    phases, cpu = share["phases"], share["cpu_seconds"]
    taken = sum(phases.get(phase, 0.0) for phase in ("count", "exchange", "merge"))
    if not (share["working_seconds"] > 0 and cpu["working"] > 0):
        return float(taken)
    rate = cpu["working"] / share["working_seconds"]
    return float(max(min(taken, cpu["exchange"] / rate), cpu["exchange"] / (quota or math.inf)))
