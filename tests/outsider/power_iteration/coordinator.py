"""On the scheduler: who multiplies which rows, again where a worker is lost."""

import math
from itertools import accumulate, count, pairwise

from fpmdask.errors import PartitionError
from fpmdask.runtime.coordinator.chunks import wait_for_chunks
from fpmdask.runtime.coordinator.speeds import Speeds
from fpmdask.runtime.coordinator.team import Attempt, attempted
from power_iteration.spec import ITERATE


def check(context):
    spec = context.spec["spec"]
    if sum(spec["heights"]) != spec["columns"]:
        raise PartitionError(
            f"found a matrix of {sum(spec['heights'])} x {spec['columns']}; give a square one"
        )


async def run(context):
    spec = context.spec["spec"]
    keys = [tuple(key) for key in spec["keys"]]
    edges = [0, *accumulate(spec["heights"])]
    await context.acquire({"name": "power.rows", "parameters": {"columns": spec["columns"]}})

    async def iterate(number):
        speeds = Speeds(context, "power", {"columns": spec["columns"]}, 1, "rows")
        shares = await speeds.shares(spec["columns"], lambda address: math.inf)
        holders = await wait_for_chunks(context, keys)
        ends = [0, *accumulate(shares.values())]
        rows = {w: ends[n : n + 2] for n, w in enumerate(shares) if shares[w]}
        places = zip(keys, pairwise(edges), strict=True)
        chunks = [[key, *place, holders[key]] for key, place in places]
        order = {"rows": rows, "chunks": chunks, "spec": spec}
        with Attempt(context, number) as attempt:
            attempt.dispatch(ITERATE, dict.fromkeys(rows, order))
            return await attempt.everyone(None, "iterate")

    answers = await attempted(context, count(), iterate)
    return {"eigenvalue": next(iter(answers.values()))["eigenvalue"]}
