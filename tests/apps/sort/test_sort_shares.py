"""Shares of keys on workers of unequal speeds, and what moves between workers, of skewed keys."""

import dask.array as da
import numpy as np
import pytest
from distributed import futures_of, wait
from distributed.utils_test import gen_cluster

import fpmdask
from fpmdask.apps.sort.coordinator.run import LEARNED
from fpmdask.models import PiecewiseLinearModel
from fpmdask.runtime.identity import KernelId, canonical

CONFIG = {"distributed.scheduler.active-memory-manager.start": False}
COUNT = 120_000  # few: nobody is measured where nothing is known
SPEEDS = {"0": 6e7, "1": 3e7, "2": 1e7}
RANDOM = np.random.default_rng(0)
ZIPF = RANDOM.zipf(1.3, COUNT)
SKEWED = {
    "equal": np.full(COUNT, 7.0),
    "most": np.where(RANDOM.random(COUNT) < 0.95, 7.0, RANDOM.random(COUNT) * 14),
    "zipf": ZIPF,
    # as skewed, and each of them once
    "distinct": np.minimum(ZIPF, 1 << 20) + np.arange(COUNT) / (1 << 17),
}


def cluster():
    threads = [("127.0.0.1", 1)] * 3
    return gen_cluster(client=True, nthreads=threads, config=CONFIG, timeout=60)


def teach(scheduler, dtype, *, index):
    """Have sorts of keys of this dtype know `SPEEDS`, as if earlier ones had taught them."""
    coordinator = scheduler.plugins["fpmdask"]
    parameters = canonical({"dtype": dtype.str, "index": index, "payload": False})
    kernel = KernelId(LEARNED, f"numpy {np.__version__}", parameters)
    for worker in coordinator.known_workers.identities.values():
        model = PiecewiseLinearModel.from_points([1000], [1000 / SPEEDS[worker.name]])
        coordinator.library.store(kernel, worker, model)


def check_shares(report):
    """Everybody has what the distribution says within a hundredth, and that is 6 : 3 : 1."""
    assert report.reason == "known"
    wanted = dict(zip(report.workers, report.distribution.tolist(), strict=True))
    for name, speed in SPEEDS.items():
        assert wanted[name] == pytest.approx(COUNT * speed / 1e8, abs=1)
    units = {share["worker"]: share["units"] for share in report.shares}
    assert units.keys() == wanted.keys()
    for share in report.shares:  # what earlier sorts took, and its own sort
        least = wanted[share["worker"]] / SPEEDS[share["worker"]]
        assert share["planned_seconds"] >= 0.999 * least, (share, least)
    assert sum(units.values()) == COUNT
    for name, count in units.items():
        assert abs(count / wanted[name] - 1) <= 0.01, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equal", "most", "zipf"])
@cluster()
async def test_skewed_keys_are_shared_out_as_the_speeds_say(c, s, *workers, kind):
    values = SKEWED[kind]
    balancer = await fpmdask.Balancer(c)
    await balancer.sort(values)  # the workers are known then
    teach(s, values.dtype, index=False)
    found = await balancer.sort(values)
    np.testing.assert_array_equal(await c.compute(found), np.sort(values))
    check_shares(balancer.report)


@pytest.mark.parametrize("kind", ["most", "zipf"])
@cluster()
async def test_positions_of_skewed_keys_are_shared_out_as_the_speeds_say(c, s, *workers, kind):
    values = SKEWED[kind]
    balancer = await fpmdask.Balancer(c)
    await balancer.argsort(values)
    teach(s, values.dtype, index=True)
    found = await c.compute(await balancer.argsort(values))
    np.testing.assert_array_equal(np.sort(found), np.arange(COUNT))
    np.testing.assert_array_equal(values[found], np.sort(values))
    check_shares(balancer.report)


async def in_thirds(c, workers, values):
    """Return an array of which the first worker has the first third, and so on."""
    thirds = [
        c.persist(da.from_array(third, chunks=10_000), workers=[worker.address])
        for third, worker in zip(np.split(values, 3), workers, strict=True)
    ]
    await wait(thirds)
    return da.concatenate(thirds)


async def parts_by_owner(c, workers, found):
    """Return (number of the worker that holds it, chunk) for each chunk of a result."""
    numbers = {worker.address: number for number, worker in enumerate(workers)}
    parts = futures_of(found)
    holders = await c.who_has(parts)
    owners = []
    for part in parts:
        (address,) = holders[part.key]
        owners.append(numbers[address])
    return [*zip(owners, await c.gather(parts), strict=True)]


def nothing_was_handed_over(report):
    return [share["keys_sorted"] for share in report.shares] == [COUNT // 3] * 3


@pytest.mark.parametrize("kind", ["most", "zipf"])
@cluster()
async def test_a_skewed_key_moves_once_with_its_position(c, s, *workers, kind):
    x = await in_thirds(c, workers, SKEWED[kind])
    balancer = await fpmdask.Balancer(c)
    found = await balancer.argsort(x)
    stayed = sum(
        np.count_nonzero(positions // (COUNT // 3) == owner)
        for owner, positions in await parts_by_owner(c, workers, found)
    )
    assert nothing_was_handed_over(balancer.report)
    assert 0 < stayed < COUNT
    assert balancer.report.bytes_moved == (8 + 8) * (COUNT - stayed)


@cluster()
async def test_a_key_among_many_like_it_moves_once(c, s, *workers):
    values = SKEWED["distinct"]
    assert np.unique(values).size == COUNT
    x = await in_thirds(c, workers, values)
    balancer = await fpmdask.Balancer(c)
    found = await balancer.sort(x)
    stayed = sum(
        np.isin(keys, values[owner * COUNT // 3 : (owner + 1) * COUNT // 3]).sum()
        for owner, keys in await parts_by_owner(c, workers, found)
    )
    assert nothing_was_handed_over(balancer.report)
    assert 0 < stayed < COUNT
    assert balancer.report.bytes_moved == 8 * (COUNT - stayed)


@cluster()
async def test_no_more_equal_keys_move_than_can_have_moved_once(c, s, *workers):
    """Which of equal keys stayed cannot be seen, but how many of them at least, and at most."""
    values = SKEWED["zipf"]
    x = await in_thirds(c, workers, values)
    balancer = await fpmdask.Balancer(c)
    found = await balancer.sort(x)
    distinct, in_all = np.unique(values, return_counts=True)
    least = most = 0
    for owner, keys in await parts_by_owner(c, workers, found):
        here = values[owner * COUNT // 3 : (owner + 1) * COUNT // 3]
        had, has = (
            np.bincount(np.searchsorted(distinct, some), minlength=distinct.size)
            for some in (here, keys)
        )
        # what is more than all that the others had was its own
        least += np.maximum(0, has - (in_all - had)).sum()
        most += np.minimum(has, had).sum()
    assert nothing_was_handed_over(balancer.report)
    assert 0 < least < most
    assert 8 * (COUNT - most) <= balancer.report.bytes_moved <= 8 * (COUNT - least)
