"""Which rows each worker gets: what the caller gave, or what DFPA finds within the memory."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

from fpmdask.apps.matmul.coordinator.learned import known_rows
from fpmdask.apps.matmul.kernel import panel_depth
from fpmdask.apps.matmul.place import Placement, as_given
from fpmdask.apps.matmul.plan import (
    PANELS_HELD,
    MatmulSpec,
    by_columns,
    deepest_panel,
    limits,
    rows_within,
)
from fpmdask.apps.matmul.tile import Tile
from fpmdask.errors import PartitionError
from fpmdask.runtime.coordinator.chunks import free_nbytes
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.instructions import Result
from fpmdask.runtime.coordinator.measuring import Measuring
from fpmdask.runtime.coordinator.rounds import REPEATS, measure
from fpmdask.timing import TimingPolicy
from fpmdask.tuning import DEFAULT, MatmulTuning

# The product uses what all rounds say together; another one improves that by about a fifth of the
# gain that it promises.
LEAST_GAIN = 0.12
# What scouting leaves unbalanced costs less to make good in the run, by help, than to measure by
# another round.
ROUNDS_BEFORE_HELP = 1
# Operations per second and worker, to tell small products: a factor of ten does not matter.
GUESSED_SPEED = 2e10
# The scouting round is this much smaller than an even share, and where no other one follows.
SCOUT, SCOUT_ALONE = 8, 4


def check(context: RunContext) -> None:
    """Refuse at once what cannot be run, before inputs are computed or sent.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    PartitionError
        If the distribution names others, or C, the panels and inputs that are to be sent or
        computed first do not fit into memory.
    """
    spec = shared_out(context)
    candidates = context.members.candidates()
    _check_loading(context, spec)
    bounds = row_bounds(context, spec, candidates, timed_depth(context, spec))
    given = _given(context, candidates, bounds)
    if given is not None and context.spec["zones"] is not None:
        room_beside(context, spec, tiles_given(context, spec, given).tiles)


def tiles_given(
    context: RunContext, spec: MatmulSpec, distribution: Mapping[str, int]
) -> Placement:
    """Return the layout that the caller gave, among the addresses of the distribution."""
    addresses = {context.name(address): address for address in distribution}
    zones = {addresses[name]: zone for name, zone in context.spec["zones"].items()}
    return as_given(spec, zones, distribution)


def shared_out(context: RunContext) -> MatmulSpec:
    """Return the product whose rows are shared out: the transposed one where C has few rows.

    Raises
    ------
    CoordinatorError
        If no worker, or not every named one, is connected.
    """
    spec = MatmulSpec.from_json(context.spec["product"])
    given = context.spec["distribution"]
    if given is not None:  # of rows, or of columns as the report of such a product has it
        transposed = sum(given.values()) != spec.shape[0]
    else:
        transposed = context.spec["layout"] != "rows" and by_columns(
            spec, len(context.members.candidates())
        )
    return spec.transpose() if transposed else spec


def _check_loading(context: RunContext, spec: MatmulSpec) -> None:
    """Refuse inputs that do not fit beside C into what all workers have free: any may get them."""
    loading = context.spec.get("loading", 0)
    rows, _, width = spec.shape
    needed = loading + rows * width * spec.dtype.itemsize
    free = sum(free_nbytes(context, worker) for worker in context.scheduler.workers)
    if loading and needed > free:
        raise PartitionError(
            f"the inputs do not fit: {loading} bytes of A and B are to be brought into the "
            f"workers' memory and C takes {needed - loading}, {free:.0f} bytes are free; add "
            "workers or memory, free what they hold, or give dask arrays and out=, a Zarr array"
        )


def timed_depth(context: RunContext, spec: MatmulSpec) -> int:
    """Return the depth of the timed panel update: no more than that of the product's own."""
    own = deepest_panel(spec, len(context.members.candidates()), context.tuning.matmul.panel_depth)
    return context.spec["depth"] or min(own, panel_depth(spec.shape[1]))


def row_bounds(
    context: RunContext, spec: MatmulSpec, workers: Sequence[str], depth: int
) -> dict[str, float]:
    """Return the most rows that each worker has memory for now, timed kernel and run."""
    free = [free_nbytes(context, address) for address in workers]
    own = deepest_panel(spec, len(workers), context.tuning.matmul.panel_depth)
    deepest = max(own, depth)
    bounds = limits(spec, free, deepest, context.spec["lazy"])
    return dict(zip(workers, bounds, strict=True))


def room_beside(
    context: RunContext, spec: MatmulSpec, tiles: Mapping[str, Sequence[Tile]]
) -> dict[str, float]:
    """Return the bytes that each worker has left beside its tiles and their panels.

    One that has left meanwhile has no room; others will get its tiles.

    Raises
    ------
    PartitionError
        With the first worker that its tiles do not fit into.
    """
    room: dict[str, float] = {}
    deepest = deepest_panel(spec, len(tiles), context.tuning.matmul.panel_depth)
    given = context.spec["zones"] is not None
    otherwise = "give it less of C" if given else "give out=, a Zarr array of small chunks"
    # sums of another dtype are there beside the rounded ones for a moment
    beside = spec.sums.itemsize if spec.sums != spec.dtype else 0
    for worker, own in tiles.items():
        if worker not in context.scheduler.workers:
            room[worker] = 0.0
            continue
        sides = sum(tile.height + tile.width for tile in own)
        area = sum(tile.area for tile in own)
        elements = area + PANELS_HELD * deepest * sides
        needed = elements * spec.dtype.itemsize + area * beside
        free = free_nbytes(context, worker)
        room[worker] = free - needed
        if own and room[worker] < 0:
            raise PartitionError(
                f"the part of {context.name(worker)} does not fit into its memory: with its panels "
                f"it needs {needed} bytes, {free:.0f} are free; add workers or memory, or "
                f"{otherwise}"
            )
    return room


def timing(tuning: MatmulTuning = DEFAULT.matmul) -> TimingPolicy:
    """Return how the panel update is timed."""
    return TimingPolicy(
        min_repetitions=1,
        min_seconds=tuning.timing_min_seconds,
        budget_seconds=tuning.timing_budget_seconds,
        warmup=0,
    )


def least_gain(
    shape: tuple[int, int, int], workers: int, tuning: MatmulTuning = DEFAULT.matmul
) -> float:
    """Return the gain in time of an (M × K)·(K × N) product that pays for another round of DFPA.

    Large products pay a fixed share of their time for a round, small ones the time of a round.
    """
    product = 2.0 * math.prod(shape) / (GUESSED_SPEED * max(1, workers))
    return max(LEAST_GAIN, tuning.timing_budget_seconds / product)


def scout_rows(rows: int, workers: int, *, alone: bool = False) -> int:
    """Return the rows of the scouting round, `alone` if it is the only one.

    Enough to tell the workers apart, few enough that the slowest of them, with a quarter of the
    mean speed, takes no longer than in a balanced round.
    """
    return max(1, rows // ((SCOUT_ALONE if alone else SCOUT) * workers))


async def find_distribution(
    context: RunContext, spec: MatmulSpec, bounds: dict[str, float], depth: int
) -> dict[str, int]:
    """Return rows per worker address: as given, or by DFPA.

    Into `bounds` go those of workers that join meanwhile.
    """
    given = _given(context, list(context.workers), bounds)
    if given is not None:
        context.set_result(given, dict.fromkeys(given), None, "given", given)
        return given

    if context.spec["known"]:
        learned = await known_rows(context, spec, bounds)
        if learned is not None:
            shares, per_column = learned
            seconds = {worker: depth * spent for worker, spent in per_column.items()}
            context.set_result(shares, seconds, None, "known", shares)
            return dict(shares)

    def limit_of(address: str) -> float:
        if address not in bounds:  # it joined later; afterwards it holds what was timed
            free = free_nbytes(context, address)
            own = deepest_panel(spec, len(context.workers), context.tuning.matmul.panel_depth)
            deepest = max(own, depth)
            bounds[address] = rows_within(spec, free, deepest, context.spec["lazy"])
        return bounds[address]

    rounds = ROUNDS_BEFORE_HELP if context.spec["rebalance"] else None
    return await measured_shares(context, spec.shape, limit_of, len(bounds), rounds)


async def measured_shares(
    context: RunContext,
    shape: tuple[int, int, int],
    limit_of: Callable[[str], float],
    workers: int,
    rounds: int | None,
) -> dict[str, int]:
    """Return units per worker by DFPA, noted as the run's distribution.

    Parameters
    ----------
    shape
        Units, and the other two sides of the product that they are of.
    limit_of
        Address -> the most units that a worker has memory for.
    workers
        How many there are at first.
    rounds
        How many are enough, scouting included, if the caller does not ask for DFPA by its settings;
        None: as many as DFPA wants.
    """
    measuring = context.spec["measuring"]
    if measuring["policy"] is None:
        measuring = {**measuring, "policy": timing(context.tuning.matmul).to_json()}
    alone = False
    if rounds is not None and not context.spec["thorough"]:
        most = min(rounds, measuring["max_rounds"])
        measuring, alone = {**measuring, "max_rounds": most}, most == 1
    # a caller's only round is an even one, as in the paper
    scouting = alone or measuring["max_rounds"] > 1
    machine = await measure(
        context,
        shape[0],
        limit_of=limit_of,
        scout=scout_rows(shape[0], workers, alone=alone) if scouting else 0,
        least_gain=least_gain(shape, workers, context.tuning.matmul),
        repeats=REPEATS,
        **measuring,
    )
    result = machine.result
    assert result is not None
    seconds = await asyncio.to_thread(_seconds_of, machine, result)
    # these shares themselves were not timed where there was but a short look at few rows
    timed = any(dict(record.units) == result.proposal for record in machine.rounds)
    balance = result.imbalance if timed or not alone else None
    # without a caller who asks for more, so many rounds are all that is wanted
    enough = result.reason == "max_rounds" and not context.spec["thorough"]
    reason = "measured" if enough else result.reason
    context.set_result(result.proposal, seconds, balance, reason, result.proposal)
    return dict(result.proposal)


def _seconds_of(machine: Measuring, result: Result) -> dict[str, float]:
    """Return what the workers' shares take by their models, of a measurement that has ended."""
    return {
        worker: result.seconds[worker] if model is None else float(model.time(units))
        for worker, units in result.proposal.items()
        for model in [machine.members[worker].model]
    }


def _given(
    context: RunContext, workers: Sequence[str], bounds: Mapping[str, float]
) -> dict[str, int] | None:
    """Return the rows per worker address that the caller wants, None where DFPA is to find them."""
    given = context.spec["distribution"]
    if given is None:
        return None
    addresses = {context.name(address): address for address in workers}
    unknown = [name for name in given if name not in addresses]
    if unknown:
        raise PartitionError(
            f"the distribution names {', '.join(unknown)}; taking part are {', '.join(addresses)}"
        )
    # the rows in the order of the mapping; workers that it does not name get none
    chosen = {addresses[name]: int(rows) for name, rows in given.items()}
    chosen |= {address: 0 for address in workers if address not in chosen}
    over = [f"{context.name(a)}: {n} > {bounds[a]:g}" for a, n in chosen.items() if n > bounds[a]]
    if over:
        raise PartitionError(f"rows beyond what fits into memory: {'; '.join(over)}")
    return chosen
