"""Products in a row on simulated workers: what one teaches must not make the next ones worse."""

from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.matmul.app import APP
from fpmdask.apps.matmul.communication_cost import held_bytes, moved_bytes
from fpmdask.apps.matmul.coordinator.learned import (
    MOVING,
    NAME,
    Known,
    Spent,
    learn,
    rows_by,
    spent,
)
from fpmdask.apps.matmul.place import Placement, operations, placed
from fpmdask.apps.matmul.plan import MatmulSpec
from fpmdask.models import PiecewiseLinearModel
from fpmdask.partition import proportional
from fpmdask.runtime.coordinator.context import RunContext
from fpmdask.runtime.coordinator.speeds import AT_ONCE
from fpmdask.runtime.identity import Fingerprint, KernelId, WorkerIdentity, canonical
from fpmdask.tuning import DEFAULT

SIDE, CHUNK = 4096, 1024
MOVED = DEFAULT.matmul.receiving_operations, DEFAULT.matmul.sending_operations
# The CPU that a worker gets in one product differs by so much from that in another one.
NOISE = 0.07
# Of a scouting round, which is short: by how much speeds are off.
SCOUTED = 0.2
# Until work that is taken off a worker is begun, and what it costs to receive its panels.
BEGIN_SECONDS, HELPS_AT = 0.15, 0.7

# Of each product: without and with work taken off the last worker.
Makespans = list[tuple[float, float]]


@dataclass(frozen=True)
class Worker:
    """A worker of one thread under a quota of `rate` cores.

    It multiplies at `speed` operations per CPU-second; a byte that it receives or sends costs
    `receiving` and `sending` CPU-seconds, and whatever else its process does `beside` per product.
    """

    rate: float
    speed: float
    receiving: float
    sending: float
    beside: float


def cluster(rng: np.random.Generator) -> list[Worker]:
    """Return workers whose costs of moving are not those that plans take them for."""
    speed = rng.uniform(20e9, 80e9)
    receiving, sending = rng.uniform(0.4, 3, 2) * MOVED / speed
    beside = rng.uniform(0, 0.08)
    rates = rng.uniform(0.1, 0.5, int(rng.integers(2, 7)))
    return [Worker(rate, speed, receiving, sending, beside) for rate in rates]


def product(workers: int, rng: np.random.Generator) -> tuple[MatmulSpec, dict[Any, list[str]]]:
    """Return a product, and who holds which chunk."""
    axis = (CHUNK,) * (SIDE // CHUNK)
    spec = MatmulSpec((SIDE,) * 3, np.dtype(float), (axis, axis), (axis, axis), "a", "b")
    return spec, {key: [str(rng.integers(workers))] for key in spec.keys}


def run(
    workers: list[Worker],
    spec: MatmulSpec,
    holders: dict[Any, list[str]],
    placement: Placement,
    rng: np.random.Generator,
    *,
    noise: float = NOISE,
    steal: bool = True,
) -> tuple[float, list[dict[str, Any]]]:
    """Return the makespan of a product and the facts of its shares.

    Each worker is busy with its multiplications and with moving, and waits for others besides; who
    is through takes work off the one that is expected last.
    """
    tiles = [placement.tiles[str(n)] for n in range(len(workers))]
    received, sent = moved_bytes(spec, tiles, held_bytes(spec, list(placement.tiles), holders))
    work = np.array([float(sum(tile.area for tile in own)) * spec.shape[1] for own in tiles])
    rates = np.array([w.rate for w in workers]) * (1 + noise * rng.uniform(-1, 1, len(workers)))
    moving = np.array([w.beside for w in workers]) * (work > 0)
    moving += received * [w.receiving for w in workers] + sent * [w.sending for w in workers]
    per_product = np.array([2 / w.speed for w in workers])  # of two elements, CPU-seconds
    idle = noise * rng.uniform(0, 2, len(workers)) * (work * per_product + moving) / rates
    ends = (work * per_product + moving) / rates + idle
    if steal:
        _steal(work, ends, per_product / rates)
    shares = []
    for n in range(len(workers)):
        multiply = work[n] * per_product[n]
        # of moving: while panels are multiplied, while others are given way, and while it waits
        beside, gave_way, _ = rng.dirichlet((2, 1, 2)) * moving[n]
        seconds = (multiply + beside + gave_way) / rates[n]
        cpu = {
            "multiply": multiply,
            "computing": multiply + beside,
            "process": multiply + moving[n],
        }
        facts = {"gave_way_seconds": gave_way / rates[n], "cpu_seconds": cpu}
        shares.append({**facts, "work": work[n], "compute_seconds": seconds})
    return float(ends.max()), shares


def _steal(work: np.ndarray, ends: np.ndarray, paces: np.ndarray) -> None:
    """Have workers that are through multiply for the last one; `paces` are seconds per product."""
    idle = set(range(len(ends)))
    while idle:
        last, first = int(np.argmax(ends)), min(idle, key=ends.__getitem__)
        idle.remove(first)
        begin, pace = ends[first] + BEGIN_SECONDS, paces[first] / HELPS_AT
        level = (ends[last] / paces[last] + begin / pace) / (1 / paces[last] + 1 / pace)
        taken = min(work[last] / 2, (ends[last] - level) / paces[last])
        if last == first or begin >= ends[last] or taken <= 0:
            return
        work[last] -= taken
        ends[last] -= taken * paces[last]
        ends[first] = begin + taken * pace


def first_plan(
    workers: list[Worker],
    spec: MatmulSpec,
    holders: dict[Any, list[str]],
    rng: np.random.Generator,
) -> Placement:
    """Return the plan by a scouting round."""
    off = 1 + SCOUTED * rng.uniform(-1, 1, len(workers))
    rates = np.array([w.rate * w.speed for w in workers]) * off
    rows = proportional(spec.shape[0], rates)
    named = {str(n): float(rate) for n, rate in enumerate(rates)}
    given = {str(n): int(share) for n, share in enumerate(rows)}
    return placed(spec, "rows", given, rates=named, holders=holders)


def next_plan(
    known: dict[str, Known], spec: MatmulSpec, holders: dict[Any, list[str]]
) -> Placement | None:
    """Return the plan by what products have taught; None if that does not cover it."""
    multiplying = {w: k.multiplying for w, k in known.items() if k.multiplying is not None}
    moving = {w: k.moving for w, k in known.items() if k.moving is not None}
    bounds = dict.fromkeys(known, float("inf"))
    found = rows_by(multiplying, spec.shape[0], spec.shape[2], bounds)
    if len(multiplying) < len(known) or found is None:
        return None
    rows, seconds = found
    rates = {w: operations(spec, n) / spec.shape[1] / seconds[w] for w, n in rows.items() if n}
    return placed(spec, "rows", rows, rates=rates, holders=holders, moving=moving)


def products(seed: int, most: int) -> Makespans | None:
    """Return the makespans of products in a row; without noise, which is in what is learned only.

    None where what the first has taught does not cover the second.
    """
    rng = np.random.default_rng(seed)
    workers = cluster(rng)
    spec, holders = product(len(workers), rng)
    placement: Placement | None = first_plan(workers, spec, holders, rng)
    known = {str(n): Known() for n in range(len(workers))}
    found: Makespans = []
    while len(found) < most and placement is not None:
        calm = partial(run, workers, spec, holders, placement, rng, noise=0.0)
        found.append((calm(steal=False)[0], calm()[0]))
        _, shares = run(workers, spec, holders, placement, rng)
        for worker, share in zip(known, shares, strict=True):
            if share["work"]:
                moved = placement.moving[worker]
                known[worker] = known[worker].after(share, spec.shape[1], moved)
        placement = next_plan(known, spec, holders)
    return found if len(found) > 1 else None


@pytest.mark.parametrize("clusters", [20, pytest.param(200, marks=pytest.mark.thorough)])
def test_no_later_product_is_worse_than_the_first_by_more_than_the_noise(clusters):
    """Neither as it was planned nor with work taken off the last: what is left is luck.

    A worker that was slow by the noise in one product is taken for that in the next one, another
    one for fast.
    """
    found = (made for seed in count() if (made := products(seed, 3)) is not None)
    made = list(islice(found, clusters))
    for later in (1, 2):
        ratios = np.array([np.divide(m[later], m[0]) for m in made if len(m) > later])
        assert len(ratios) > 0.9 * clusters
        assert ratios.max() < (1 + NOISE) / (1 - NOISE)
        assert np.median(ratios, axis=0).max() < 1


def facts(seconds, multiply, computing, process):
    cpu = {"multiply": multiply, "computing": computing, "process": process}
    return {"compute_seconds": seconds, "gave_way_seconds": 0.0, "cpu_seconds": cpu}


@pytest.mark.parametrize(
    ("share", "threads", "found"),
    [
        # half a core, of which moving takes a fifth while panels are multiplied, and all besides
        (facts(2.0, 0.8, 1.0, 1.5), 1, Spent(1.6, 1.4)),
        # a whole core for each: moving is hidden while panels are multiplied
        (facts(2.0, 2.0, 2.5, 2.5), 1, Spent(2.0, 0.0)),
        (facts(2.0, 2.0, 2.5, 3.0), 1, Spent(2.0, 0.4)),
        # which of several threads multiply is not known
        (facts(2.0, 1.0, 4.0, 5.0), 4, Spent(2.0, 0.5)),
        # where a clock shows nothing, the seconds count
        (facts(2.0, 0.0, 0.0, 0.0), 1, Spent(2.0, 0.0)),
    ],
)
def test_the_seconds_of_a_share_are_taken_apart_by_what_had_the_cpu(share, threads, found):
    told = spent(share, threads)
    assert (told.multiplying, told.moving) == pytest.approx((found.multiplying, found.moving))


def test_waiting_for_others_teaches_nothing():
    share = {**facts(2.0, 0.8, 1.0, 1.5), "work": 1e6}
    late = {**share, "wait_seconds": 7.0, "seconds": 9.0}
    taught = [Known().after(one, 10, 1e9) for one in (share, late)]
    for model in ("multiplying", "moving"):
        one, other = (getattr(known, model).points for known in taught)
        assert np.array_equal(one, other)


def test_a_worker_for_which_moving_takes_longer_gets_less_of_c():
    spec, holders = product(2, np.random.default_rng(0))
    rates = {"0": 1e10, "1": 1e10}
    even = dict.fromkeys(rates, SIDE // 2)
    guessed = placed(spec, "rows", even, rates=rates, holders=holders)
    ten = 10 * guessed.moving["1"] / rates["1"]
    slow = {"1": PiecewiseLinearModel.from_points([guessed.moving["1"]], [ten])}
    told = placed(spec, "rows", even, rates=rates, holders=holders, moving=slow)
    one, other = ({w: own[0].height for w, own in p.tiles.items()} for p in (guessed, told))
    assert other["1"] < 0.9 * one["1"]
    assert sum(other.values()) == SIDE


@gen_cluster(client=True, nthreads=[])
async def test_all_parts_of_a_worker_teach_one_point_however_many_there_are(c, s):
    """A model of a part of the work, beside all seconds of moving, would be wrong twice."""
    await fpmdask.Balancer(c)
    coordinator = s.plugins["fpmdask"]
    context = RunContext(coordinator, "matmul-test", c.id, {}, APP)
    workers = [f"tcp://10.0.0.{n}:1" for n in range(3)]
    fingerprint = Fingerprint("cpu", "blas", "core", 1, 1, None, 0)
    context.members.workers = {w: WorkerIdentity(w, fingerprint, "start") for w in workers}
    context.members.kernel_ids = {w: KernelId("matmul.panel", "blas", "{}") for w in workers}
    spec = MatmulSpec((64, 32, 64), np.dtype(float), ((64,), (32,)), ((32,), (64,)), "a", "b")
    parts = 4 * AT_ONCE
    cpu = {"multiply": 0.5, "computing": 1.0, "process": 1.5}
    facts = {"work": 3200, "compute_seconds": 1.0, "gave_way_seconds": 0.0, "cpu_seconds": cpu}
    shares = [{"worker": worker, **facts} for _ in range(parts) for worker in workers]
    await learn(context, spec, shares, dict.fromkeys(workers, 1e6))
    for identity in context.workers.values():
        own = []
        for name in (NAME, MOVING):
            kernel = KernelId(name, "blas", canonical({"dtype": "float64"}))
            model, is_own = coordinator.library.find(kernel, identity)
            assert is_own
            own.append([axis.tolist() for axis in model.points])
        # elements of C and seconds per column of A; what is moved, and its seconds
        assert own == [[[parts * 100.0], [parts * 0.5 / 32]], [[1e6], [parts * 1.0]]]
