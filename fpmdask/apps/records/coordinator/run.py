"""The sort of records on the scheduler: look, shares, attempts until all parts are there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fpmdask.apps.records.coordinator.sorting import Sorting
from fpmdask.apps.records.coordinator.state import RecordsSort
from fpmdask.apps.records.kernel import NAME
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.speeds import Speeds
from fpmdask.runtime.coordinator.team import attempted

# Under which the library keeps what sorts took.
LEARNED = "records.share"


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    """
    context.members.candidates()


async def run(context: RunContext) -> dict[str, Any]:
    """Sort files of records into parts; the value is the manifest."""
    began = time.perf_counter()
    await context.acquire({"name": NAME, "parameters": {}})
    sort = RecordsSort(context)
    finished = await sort.look()
    looked = time.perf_counter()
    phases = context.report["phases"] = {"prepare": looked - began}
    if finished is not None:
        context.set_result({}, {}, None, "complete already", {})
        return finished
    few = context.tuning.records.few_records
    speeds = Speeds(context, LEARNED, {}, few, "records", where="memory and disks")
    shares = await sort.shares(speeds) if sort.job.records else {}
    measured = time.perf_counter()
    phases["measure"] = measured - looked
    await sort.claim()
    sort.began = True

    async def attempt(number: int) -> None:
        with Sorting(sort, number) as sorting:
            await sorting.run(shares)

    async def mend() -> None:
        nonlocal shares
        await sort.look_again()
        shares = await sort.shares(speeds)

    while sort.missing():
        await attempted(context, sort.numbers, attempt, mend)
    if "shares" in context.report:
        await speeds.learn(_taken(context))
    phases["sort"] = time.perf_counter() - measured
    return await sort.finish()


def _taken(context: RunContext) -> Iterator[tuple[str, float, float]]:
    """Return (worker, records, seconds) of the sort's own steps, without waits for others."""
    addresses = {context.name(address): address for address in context.workers}
    for share in context.report["shares"]:
        if share["worker"] in addresses:
            units = (share["records_read"] + share["units"]) / 2
            waits = sum(share["phases"].get(phase, 0.0) for phase in ("exchange", "checksum"))
            yield addresses[share["worker"]], units, share["seconds"] - waits
