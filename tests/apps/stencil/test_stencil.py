"""`Balancer.stencil` on a cluster: what iterated `dask.array.map_overlap` gives."""

import asyncio
import threading

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Event, get_worker
from distributed.utils_test import gen_cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fpmdask
from fpmdask.apps.stencil import gray_scott, heat, jacobi
from fpmdask.errors import PartitionError
from tests.eventually import nothing_left, until

CONFIG = {"distributed.scheduler.active-memory-manager.start": False}
RANDOM = np.random.default_rng(0)


def cluster(workers=3, **options):
    threads = [("127.0.0.1", 1 + n % 2) for n in range(workers)]
    config = {**CONFIG, **options.pop("config", {})}
    return gen_cluster(client=True, nthreads=threads, config=config, timeout=60, **options)


def mixing(depth, conditions):
    """Return an update that looks at all cells within `depth`, and is exact for any dtype."""

    def one(block, weight):
        found = np.zeros_like(block)
        for axis, cells in enumerate(depth):
            for shift in range(-cells, cells + 1):
                if conditions[axis] != "none":
                    found += np.roll(block, shift, axis) * (weight + shift)
                else:  # the ends are ends
                    padded = np.pad(
                        block, [(cells, cells) if n == axis else (0, 0) for n in range(block.ndim)]
                    )
                    at = slice(cells + shift, cells + shift + block.shape[axis])
                    found += padded[(slice(None),) * axis + (at,)] * (weight + shift)
        return found % 97

    return one


def iterated(function, fields, args, iterations, depth, boundary):
    """Return the fields by map_overlap, which takes one array at a time as its result."""
    with dask.config.set(scheduler="sync"):
        for _ in range(iterations):
            fields = [
                da.map_overlap(
                    lambda *blocks, n=n: function(blocks[: len(fields)], *blocks[len(fields) :])[n],
                    *(da.from_array(x, chunks=-1) for x in (*fields, *args)),
                    depth=dict(enumerate(depth)),
                    boundary=dict(enumerate(boundary)),
                    dtype=fields[n].dtype,
                    meta=np.empty((0,) * x.ndim, fields[n].dtype),
                ).compute()
                for n, x in enumerate(fields)
            ]
    return fields


@st.composite
def cases(draw):
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(3, 30 if n == 0 else 6)) for n in range(ndim))
    return {
        "shape": shape,
        "depth": tuple(draw(st.integers(0, 3)) for _ in shape),
        "boundary": tuple(
            draw(st.sampled_from(["reflect", "periodic", "nearest", "none", 3])) for _ in shape
        ),
        "dtypes": draw(st.lists(st.sampled_from(["f4", "f8", "i8"]), min_size=1, max_size=2)),
        "args": draw(st.integers(0, 1)),
        "chunks": draw(st.integers(1, 30)),
        "workers": draw(st.integers(1, 4)),
        "iterations": draw(st.sampled_from([0, 1, 2, 5, 9])),
        "shares": draw(st.sampled_from([None, "first", "uneven"])),
    }


def check_cases(count):
    found = []

    @settings(max_examples=count, suppress_health_check=list(HealthCheck), database=None)
    @given(cases())
    def collect(case):
        found.append(case)

    collect()
    return found


async def compare(c, case):
    balancer = fpmdask.Balancer(c, workers=[str(n) for n in range(case["workers"])])
    shape, depth = case["shape"], case["depth"]
    fields = [RANDOM.integers(0, 9, shape).astype(kind) for kind in case["dtypes"]]
    args = [RANDOM.integers(0, 9, shape).astype("i4") for _ in range(case["args"])]
    mix = mixing(depth, case["boundary"])

    def update(blocks, *args):
        made = [mix(block, n + 1) for n, block in enumerate(blocks)]
        for other in made[1:]:
            made[0] = ((made[0] + other) % 97).astype(made[0].dtype)
        for arg in args:
            made[0] = ((made[0] + mix(arg, 1)) % 97).astype(made[0].dtype)
        return tuple(made)

    distribution = None
    if case["shares"] == "first":
        distribution = {"0": shape[0]}
    elif case["shares"] == "uneven" and case["workers"] > 1 and shape[0] >= 2 * max(1, depth[0]):
        some = max(1, depth[0])
        distribution = {"0": some, "1": shape[0] - some}
    first = da.from_array(fields[0], chunks=case["chunks"])
    found = await balancer.stencil(
        update,
        (first, *fields[1:]),
        case["iterations"],
        depth=depth,
        boundary=case["boundary"],
        args=args,
        distribution=distribution,
    )
    wanted = iterated(update, fields, args, case["iterations"], depth, case["boundary"])
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(await c.compute(one), other, str(case))
        assert one.chunks[1:] == tuple((n,) for n in shape[1:])
    if distribution:
        assert found[0].chunks[0] == tuple(distribution.values())


@pytest.mark.slow
@cluster(4)
async def test_what_iterated_map_overlap_gives(c, s, *workers):
    for case in check_cases(60):
        await compare(c, case)
    await nothing_left(s)
