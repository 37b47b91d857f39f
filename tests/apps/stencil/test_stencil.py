"""`Balancer.stencil` on a cluster: what iterated `dask.array.map_overlap` gives."""

import asyncio
import collections
import threading
import time
from bisect import bisect_left

import dask.array as da
import numpy as np
import pytest
from distributed import Event, get_client, get_worker
from distributed.utils_test import gen_cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fpmdask
from fpmdask.apps.stencil import gray_scott, heat, jacobi
from fpmdask.apps.stencil.client import checked
from fpmdask.apps.stencil.sizes import most_rows
from fpmdask.apps.stencil.spec import StencilSpec
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.runtime.rows import Rows
from tests.eventually import nothing_left, until
from tests.tuned import tuned

CONFIG = {"distributed.scheduler.active-memory-manager.start": False}
RANDOM = np.random.default_rng(0)


def cluster(workers=3, **options):
    threads = [("127.0.0.1", 1 + n // 3) for n in range(workers)]
    options = {"timeout": 60, **options, "config": {**CONFIG, **options.get("config", {})}}
    return gen_cluster(client=True, nthreads=threads, **options)


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
    """Return the fields by map_overlap, which returns one array at a time."""

    def one(n, arrays):
        found = da.map_overlap(
            lambda *blocks: function(blocks[: len(fields)], *blocks[len(fields) :])[n],
            *(da.from_array(x, chunks=-1) for x in (*arrays, *args)),
            depth=dict(enumerate(depth)),
            boundary=dict(enumerate(boundary)),
            dtype=fields[n].dtype,
            meta=np.empty((0,) * fields[n].ndim, fields[n].dtype),
        )
        return found.compute(scheduler="sync")

    found = fields
    for _ in range(iterations):
        found = [one(n, found) for n in range(len(fields))]
    return found


def worker_name():
    try:
        return str(get_worker().name)
    except ValueError:  # on the client
        return ""


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
        "parts": draw(st.integers(1, 4)),  # few: `gen_cluster` counts transitions of tasks
        "workers": draw(st.integers(1, 4)),
        "iterations": draw(st.sampled_from([0, 1, 2, 5, 9])),
        "shares": draw(st.sampled_from([None, "slow", "first", "uneven"])),
        "memory": draw(st.sampled_from([None, 0.0, 0.3, 0.8])),  # from least to in core
        "prefetch": draw(st.booleans()),
        # by the first one a worker may get all of what is small
        "rule": draw(st.sampled_from(["mheta", "balanced"])),
    }


def check_cases(count):
    found = []

    @settings(max_examples=count, suppress_health_check=list(HealthCheck), database=None)
    @given(cases())
    def collect(case):
        found.append(case)

    collect()
    return found


def memory_of(case, fields, args, distribution):
    """Return bytes of each worker: between what its rows need at least, and in core."""
    if case["memory"] is None:
        return None
    shapes = [
        [Rows((), (len(x),), 0, x.dtype.str, x.shape) for x in some] for some in (fields, args)
    ]
    spec = StencilSpec(*map(tuple, shapes), case["depth"], case["boundary"], 1)
    # a neighbour's halo comes from one worker: some may have no rows
    workers = max(1, min(case["workers"], len(fields[0]) // max(1, 2 * case["depth"][0])))
    rows = max(distribution.values()) if distribution else -(-len(fields[0]) // workers)

    def least(which):
        def enough(nbytes):
            return most_rows(spec, [float(nbytes)], prefetch=case["prefetch"])[which][0] >= rows

        return bisect_left(range(1 << 24), True, key=enough)

    low, high = least(1), least(0)
    return low + int((high - low) * case["memory"])


STREAMED = []


async def compare(c, case):
    balancer = fpmdask.Balancer(c, workers=[str(n) for n in range(case["workers"])])
    shape, depth = case["shape"], case["depth"]
    fields = [RANDOM.integers(0, 9, shape).astype(kind) for kind in case["dtypes"]]
    args = [RANDOM.integers(0, 9, shape).astype("i4") for _ in range(case["args"])]
    mix = mixing(depth, case["boundary"])

    def update(blocks, *args):
        if worker_name() == "1" and case["shares"] == "slow":
            time.sleep(0.003)  # rows move away
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
    first = da.from_array(fields[0], chunks=tuple(max(1, n // case["parts"]) for n in shape))
    found = await balancer.stencil(
        update,
        (first, *fields[1:]),
        case["iterations"],
        depth=depth,
        boundary=case["boundary"],
        args=args,
        distribution=distribution or case["rule"],
        memory=memory_of(case, fields, args, distribution),
        prefetch=case["prefetch"],
    )
    STREAMED.append(max(share["blocks"] for share in balancer.report.shares))
    wanted = iterated(update, fields, args, case["iterations"], depth, case["boundary"])
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(await c.compute(one), other, str(case))
        assert one.chunks[1:] == tuple((n,) for n in shape[1:])
    if distribution:
        assert sorted(found[0].chunks[0]) == sorted(distribution.values())


@pytest.mark.slow
@cluster(4, config=tuned(stencil={"trial_seconds": 0.0, "band_nbytes": 200}), timeout=110)
async def test_what_iterated_map_overlap_gives(c, s, *workers):
    """Rows move after the first iteration, and halos come for several iterations at once."""
    STREAMED.clear()
    for case in check_cases(30):
        await compare(c, case)
    await nothing_left(s)
    assert max(STREAMED) > 3
    assert len(list(filter(None, STREAMED))) > 5


@pytest.mark.slow
@cluster(config=tuned(stencil={"trial_seconds": 0.0}))
async def test_rows_move_to_where_they_take_less_time(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)

    def update(block):
        time.sleep(1e-3 * (len(block) - 2) * (1 + 4 * (worker_name() == "1")))
        return jacobi(block)

    u0 = RANDOM.random((60, 4))
    found = await balancer.stencil(update, u0, 12)
    report = balancer.report
    shares = dict(zip(report.workers, report.distribution.tolist(), strict=True))
    assert report.reason == "measured"
    assert shares["1"] < 15
    assert [event["rows"] for event in events if event["event"] == "shared out"] == [shares]
    assert {share["iterations"] for share in report.shares} == {12}
    assert any("planned_seconds" in share for share in report.shares)
    assert "planned" in report.explain()
    assert set(report.phases) == {"prepare", "measure", "move", "iterate"}
    assert sum(report.distribution) == 60
    # where they were computed, and a later call begins with what is known
    for n, rows in enumerate(found.chunks[0]):
        (holder,) = s.tasks[found.name, n, 0].who_has
        assert shares[str(holder.name)] == rows
        assert not s.tasks[found.name, n, 0].worker_restrictions
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 12))
    again = await balancer.stencil(update, found, 2)
    assert balancer.report.reason == "known"
    assert dict(zip(balancer.report.workers, balancer.report.distribution, strict=True))["1"] < 15
    np.testing.assert_array_equal(await c.compute(again), local(jacobi, u0, 14))
    # as a report says
    same = await balancer.stencil(update, u0, 3, distribution=report)
    assert sorted(same.chunks[0]) == sorted(found.chunks[0])
    assert balancer.report.reason == "given"
    del found, again, same
    await nothing_left(s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("until", "iterations"), [(75, 240), pytest.param(999, 120, marks=pytest.mark.thorough)]
)
@cluster(config=tuned(stencil={"trial_seconds": 0.0, "load_check_seconds": 0.05}))
async def test_a_worker_that_slows_down_in_core_gets_fewer_rows(c, s, *workers, until, iterations):
    """And more again once it is as fast as before."""
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)

    def update(block):
        slow = worker_name() == "1" and 60 <= block[0, 0] < until  # iterations that are made
        time.sleep(1e-3 * (len(block) - 2) * (1 + 9 * slow))
        return block + 1

    u0 = np.zeros((60, 4))
    found = await balancer.stencil(update, u0, iterations)
    np.testing.assert_array_equal(await c.compute(found), u0 + iterations)
    shares = dict(zip(balancer.report.workers, balancer.report.distribution.tolist(), strict=True))
    shared = [event["rows"] for event in events if event["event"] == "shared out"]
    assert shared[-1] == shares
    assert sum(shares.values()) == 60
    assert min(rows["1"] for rows in shared) < 10
    assert shares["1"] > 14 if until < iterations else shares["1"] < 10
    assert not [event for event in events if event["event"] == "starting over"]
    del found
    await nothing_left(s)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mheta", "balanced"])
@cluster(2, config=tuned(stencil={"trial_seconds": 0.0, "load_check_seconds": 0.05}))
async def test_a_worker_that_was_too_slow_for_rows_is_not_taken_to_be_fast(c, s, *workers, rule):
    """A few rows, which were timed first, had taken it as long as the other one."""
    balancer = await fpmdask.Balancer(c)

    def update(block):
        slow = 99 * (block[0, 0] >= 1) if worker_name() == "1" else block[0, 0] >= 40
        time.sleep(1e-3 * (len(block) - 8) * (1 + slow))
        return block + 1

    u0 = np.zeros((20, 4))
    found = await balancer.stencil(update, u0, 80, depth=(4, 1), distribution=rule)
    np.testing.assert_array_equal(await c.compute(found), u0 + 80)
    report = balancer.report
    assert dict(zip(report.workers, report.distribution.tolist(), strict=True))["1"] == 0
    if rule == "balanced":
        assert report.reason == "measured"


@pytest.mark.slow
@cluster(config=tuned(stencil={"trial_seconds": 0.0, "load_check_seconds": 0.02}))
async def test_one_worker_iterates_what_is_too_small_for_messages(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((60, 4))
    count = 3000  # moving rows, which a busy machine makes dear, pays all the same
    expected = local(jacobi, u0, count)
    for rule in ("mheta", "balanced"):
        found = await balancer.stencil(jacobi, u0, count, distribution=rule)
        np.testing.assert_array_equal(await c.compute(found), expected)
        alone = "exchanging with another worker takes longer" in balancer.report.explain()
        assert alone == (rule == "mheta")
        if alone:
            assert np.count_nonzero(balancer.report.distribution) == 1
    del found
    await nothing_left(s)


THREADS = set()


def asking(block):
    THREADS.add((threading.get_ident(), get_worker().name))
    return jacobi(block)


def nested(block):
    fpmdask.Balancer(get_client()).sort(block[0])
    return block


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 3)] * 2,
    config={**CONFIG, **tuned(stencil={"trial_seconds": 0.0, "band_nbytes": 200})},
    timeout=60,
)
async def test_an_update_may_ask_for_its_worker_in_all_threads(c, s, *workers, streamed):
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((120, 8))
    THREADS.clear()
    memory = {"0": 5500} if streamed else None
    found = await balancer.stencil(asking, u0, 4, distribution="even", memory=memory)
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 4))
    assert any(share["blocks"] for share in balancer.report.shares) == streamed
    assert {worker for _, worker in THREADS} == {0, 1}
    assert len(THREADS) > 2
    with pytest.raises(CoordinatorError, match="cannot use a balancer"):
        await balancer.stencil(nested, u0, 2)


SEEN = collections.Counter()


def slow_later(block):
    """Take longer on a worker than it has told at first."""
    SEEN[worker_name()] += 1
    time.sleep(1e-3 * (len(block) - 2) * (1 + 9 * (worker_name() == "1" and SEEN["1"] > 1)))
    return jacobi(block)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["periodic", "reflect"])
@cluster(config=tuned(stencil={"trial_seconds": 0.0, "most_every": 3}))
async def test_rows_move_once_more_where_the_first_iteration_takes_longer(c, s, *workers, boundary):
    SEEN.clear()
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0, more = RANDOM.random((2, 60, 4))

    def update(blocks, constant):
        return slow_later(blocks[0]), jacobi(blocks[1]) + constant[1:-1, 1:-1]

    found = await balancer.stencil(update, (u0, more), 8, boundary=boundary, args=[u0])
    rows = [event["rows"] for event in events if event["event"] == "shared out"]
    assert len(rows) == 1
    assert rows[0]["1"] < 15
    assert sum(share["nbytes_received"] for share in balancer.report.shares) > 0
    assert balancer.report.phases["move"] > 0
    wanted = u0, more
    how = "wrap" if boundary == "periodic" else "symmetric"
    for _ in range(8):
        padded = [np.pad(x, 1, mode=how) for x in wanted]
        wanted = jacobi(padded[0]), jacobi(padded[1]) + u0
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(await c.compute(one), other)


def local(update, u, iterations):
    for _ in range(iterations):
        u = update(np.pad(u, 1, mode="symmetric"))
    return u


@pytest.mark.slow
@cluster()
async def test_all_stop_once_no_cell_changes_by_more(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((12, 9))
    before, wanted = None, u0
    for count in range(1, 400):
        before, wanted = wanted, local(jacobi, wanted, 1)
        if not count % 7 and np.abs(wanted - before).max() <= 1e-3:
            break
    found = await balancer.stencil(jacobi, u0, 1000, tolerance=1e-3, check_every=7)
    np.testing.assert_array_equal(await c.compute(found), wanted)
    assert {share["iterations"] for share in balancer.report.shares} == {count}


def one_more(block):
    return block + 1


def nearer(block):
    found = block.copy()
    found[1:-1] = np.minimum(block[1:-1], 1 + np.minimum(block[:-2], block[2:]))
    return found


@pytest.mark.slow
@cluster()
async def test_changes_of_large_ints_are_exact_and_infinite_cells_may_stay(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    for dtype in ("i8", "u8"):
        found = await balancer.stencil(
            one_more, np.full((30, 5), 10**18, dtype), 20, tolerance=0, check_every=5
        )
        assert {*(await c.compute(found)).ravel().tolist()} == {10**18 + 20}
    walls = np.full((30, 5), np.inf)
    walls[0, 0] = 0.0
    found = await balancer.stencil(nearer, walls, 1000, tolerance=0, check_every=5)
    assert (await c.compute(found))[:, 0].tolist() == [*range(30)]
    assert {share["iterations"] for share in balancer.report.shares} == {30}


FORCING = np.linspace(0.0, 1.0, 20)


def forced(blocks):
    value, step = blocks
    return value + FORCING[int(step[0, 0])], step + 1


@pytest.mark.slow
@cluster()
async def test_no_cell_is_iterated_further_than_it_is_asked_for(c, s, *workers):
    """An update may know as many iterations as there are."""
    balancer = await fpmdask.Balancer(c)
    start = np.zeros((30, 5)), np.zeros((30, 5), "i8")
    for rule in ("mheta", "balanced", "even"):
        value, step = await balancer.stencil(forced, start, 20, distribution=rule)
        np.testing.assert_allclose(await c.compute(value), FORCING.sum())
        assert {*(await c.compute(step)).ravel().tolist()} == {20}


@pytest.mark.slow
@cluster()
async def test_what_is_ready_to_use(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    u, v = RANDOM.random((2, 20, 11))
    for update in (jacobi, heat(0.2)):
        found = await balancer.stencil(update, da.from_array(u, chunks=3), 5)
        np.testing.assert_array_equal(await c.compute(found), local(update, u, 5))
    step, periodic = gray_scott(), {"boundary": "periodic"}
    found = await balancer.stencil(step, (u, v), 5, **periodic)
    wanted = u, v
    for _ in range(5):
        wanted = step(tuple(np.pad(x, 1, mode="wrap") for x in wanted))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(await c.compute(one), other)


@cluster()
async def test_what_is_lost_later_is_made_again(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    u0 = RANDOM.random((30, 4))
    x = da.from_array(u0, chunks=10)
    found = await balancer.stencil(jacobi, x, 4, args=())
    assert not any("-again" in str(key) and t.who_has for key, t in s.tasks.items())
    await workers[0].close()
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, u0, 4))


@pytest.mark.slow
@cluster()
async def test_the_run_starts_again_where_a_worker_is_lost_in_the_middle(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    u0 = RANDOM.random((30, 4))

    def update(block):
        if worker_name() == "1":
            Event("go on").wait(30)
        return jacobi(block)

    running = asyncio.ensure_future(of(balancer.stencil(update, da.from_array(u0, chunks=10), 20)))
    await until(lambda: any(w.state.executing_count for w in workers if str(w.name) == "1"))
    await until(lambda: [event for event in events if event["event"] == "step"])
    (leaving,) = [worker for worker in workers if str(worker.name) == "1"]
    closing = asyncio.ensure_future(leaving.close(timeout=1))
    await until(lambda: len(s.workers) == 2)
    await Event("go on", client=c).set()
    np.testing.assert_array_equal(await c.compute(await running), local(jacobi, u0, 20))
    await closing
    assert [event for event in events if event["event"] == "starting over"]
    assert "1" not in balancer.report.workers


async def of(awaitable):
    return await awaitable


def raising(block):
    if worker_name() == "1":
        raise KeyError("seven")
    return block


def leaving(block):
    if worker_name() == "1":
        raise SystemExit(3)
    return block


def writing(block):
    block += 1
    return block


@pytest.mark.slow
@cluster()
async def test_what_update_does_wrong_ends_the_run(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    x = RANDOM.random((30, 4))
    with pytest.raises(KeyError, match="seven") as caught:
        await balancer.stencil(raising, x, 20)
    assert "on worker 1" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="read-only"):
        await balancer.stencil(writing, x, 20)
    with pytest.raises(CoordinatorError, match="update raised on worker 1: SystemExit: 3"):
        await balancer.stencil(leaving, x, 20)
    for update, says in {
        lambda b: b[:-1]: r"returned the shape \(\d+, 6\) for a block of the shape \(\d+, 6\)",
        lambda b: b.astype("f4"): "returned float32 for blocks of float64",
        lambda b: 1.0: "returned a float; return a NumPy array",
        lambda b: b.tolist(): "returned a list",
    }.items():
        with pytest.raises(PartitionError, match=says):
            await balancer.stencil(update, x, 20)
    with pytest.raises(PartitionError, match="returned a ndarray for 2 fields"):
        await balancer.stencil(lambda b: b[0], (x, x), 20)
    with pytest.raises(PartitionError, match="gives 1 1 rows, and a halo has 2"):
        await balancer.stencil(lambda b: b, x, 20, depth=2, distribution={"0": 29, "1": 1})
    del caught
    await nothing_left(s)
    found = await balancer.stencil(jacobi, x, 2)
    np.testing.assert_array_equal(await c.compute(found), local(jacobi, x, 2))


@pytest.mark.slow
@cluster()
async def test_a_cancelled_call_ends_and_leaves_nothing(c, s, *workers):
    events = []
    balancer = await fpmdask.Balancer(c, progress=events.append)
    running = asyncio.ensure_future(of(balancer.stencil(jacobi, RANDOM.random((90, 4)), 10**7)))
    await until(lambda: [event for event in events if event["event"] == "shared out"])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not any(worker.state.executing_count for worker in workers))
    del running
    await nothing_left(s)


X = np.ones((8, 6))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"update": 3}, "update is a int; give a function"),
        ({"u0": np.ma.array([[1.0]])}, r"u0\[0\] is a MaskedArray of float64; give NumPy arrays"),
        ({"u0": [[1.0]]}, r"u0\[0\] is a list, which is no array; give a dask or NumPy array"),
        ({"u0": ()}, r"u0 = \(\); give an array, or a tuple of them"),
        ({"u0": np.array(["a"])}, "give NumPy arrays of numbers"),
        ({"u0": np.ones((0, 3))}, "give an array that has cells"),
        ({"u0": np.float64(3)}, "is a float64"),
        ({"u0": (X, X[:4])}, r"u0\[1\] has the shape \(4, 6\), the first field \(8, 6\)"),
        ({"u0": da.from_array(X)[da.from_array(X)[:, 0] > 0]}, "compute_chunk_sizes"),
        ({"iterations": -1}, "iterations = -1; give an int >= 0"),
        ({"iterations": True}, "iterations = True"),
        ({"iterations": 2.5}, "iterations = 2.5"),
        ({"depth": -1}, "depth = -1; give an int >= 0"),
        ({"depth": (1,)}, r"depth = \(1,\); give one value, or 2"),
        ({"depth": {2: 1}}, "depth has a value for axis 2; there are axes 0 to 1"),
        ({"depth": 7}, "depth is 7 on axis 1, which has 6 cells"),
        ({"boundary": "mirror"}, "boundary = 'mirror'; give reflect, periodic, nearest, none, or"),
        ({"boundary": 1j}, "boundary = 1j; give reflect"),
        ({"boundary": np.array([0.0, 1.0])}, r"boundary = array\(\[0., 1.\]\); give reflect"),
        ({"u0": X.astype("i1"), "boundary": 1000}, "cannot be a value of int8"),
        ({"args": X}, "args is a ndarray; give a tuple of arrays"),
        ({"args": (X[:2],)}, r"args\[0\] has the shape \(2, 6\)"),
        ({"args": ("x",)}, r"args\[0\] is a str"),
        ({"tolerance": -1.0}, "tolerance = -1.0; give a number >= 0, or None"),
        ({"tolerance": float("nan")}, "tolerance = nan"),
        ({"tolerance": "1"}, "tolerance = '1'"),
        ({"tolerance": 10**400}, "tolerance is an int that no float holds; give a float >= 0"),
        ({"tolerance": -(10**5000)}, "tolerance is an int that no float holds; give a float"),
        ({"check_every": -(10**5000)}, "check_every = an int of too many digits; give an int >= 1"),
        ({"iterations": 2**63}, r"iterations = 9223372036854775808; give an int >= 0, < 2\*\*63"),
        ({"memory": -(10**5000)}, "memory = an int of too many digits; give bytes > 0"),
        ({"depth": 10**5000}, "depth = an int of too many digits; give an int >= 0"),
        ({"check_every": 0}, "check_every = 0; give an int >= 1"),
        ({"distribution": {"0": 3}}, "distribution has 3 rows in all, there are 8"),
        ({"distribution": {"0": -8}}, "distribution gives 0 -8 rows"),
        ({"distribution": [8]}, r"distribution = \[8\]; give worker name"),
        ({"memory": 0}, "memory = 0; give bytes > 0"),
        ({"memory": "lots"}, "memory = 'lots'; give bytes > 0 such as 2e8 or '200MB'"),
        ({"memory": [1]}, r"memory = \[1\]"),
        ({"memory": True}, "memory = True"),
        ({"memory": {"0": -1}}, "memory of 0 = -1"),
        ({"prefetch": "no"}, "prefetch = 'no'; give True or False"),
    ],
)
def test_bad_input_is_refused_at_once(given, says):
    arguments = {
        "update": jacobi,
        "u0": X,
        "iterations": 1,
        "depth": 1,
        "boundary": "reflect",
        "args": (),
        "tolerance": None,
        "check_every": 10,
        "distribution": None,
    }
    with pytest.raises(PartitionError, match=says):
        checked(**{**arguments, **given})
