"""Cutting a product, and following its rows through losses of workers."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.apps.matmul.coordinator import distribute
from fpmdask.apps.matmul.parts import PartsPlan
from fpmdask.apps.matmul.place import placed
from fpmdask.apps.matmul.plan import (
    PANEL_NBYTES,
    MatmulSpec,
    Tile,
    limits,
    panels,
    pieces,
)
from fpmdask.apps.matmul.tiling import LAYOUTS, cuts, straightened
from fpmdask.errors import CoordinatorError, PartitionError
from fpmdask.models import ConstantModel
from fpmdask.partition import proportional

sizes = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any).map(tuple)


def make(a_chunks=((4, 2), (3, 5)), b_chunks=((8,), (7,)), dtypes=("f8", "f8"), inner=None):
    m, k, n = sum(a_chunks[0]), sum(a_chunks[1]), sum(b_chunks[1])
    return MatmulSpec.build(
        shape=(m, k, n),
        inner=sum(b_chunks[0]) if inner is None else inner,
        dtypes=[np.dtype(d) for d in dtypes],
        a_chunks=a_chunks,
        b_chunks=b_chunks,
        a_name="a",
        b_name="b",
    )


def test_a_spec_survives_json():
    spec = make(dtypes=("f4", "i4"))
    assert spec.dtype == np.float64
    assert MatmulSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inner": 9}, "columns of A must be the rows of B"),
        ({"dtypes": ("O", "f8")}, "A has dtype object"),
        ({"dtypes": ("f8", "M8[s]")}, "B has dtype datetime64"),
        ({"a_chunks": ((0,), (8,))}, "empty matrix"),
        ({"a_chunks": ((-1, 7), (8,))}, "chunks of A along its rows"),
        ({"a_chunks": ((math.nan,), (8,))}, "A.compute_chunk_sizes"),
    ],
)
def test_bad_products_are_refused(change, says):
    with pytest.raises(PartitionError, match=says):
        make(**change)


@given(sizes, sizes, st.data())
def test_pieces_tile_the_rectangle(rows, columns, data):
    whole = np.arange(sum(rows) * sum(columns)).reshape(sum(rows), sum(columns))
    row0, row1 = sorted(data.draw(st.tuples(*[st.integers(0, whole.shape[0])] * 2)))
    column0, column1 = sorted(data.draw(st.tuples(*[st.integers(0, whole.shape[1])] * 2)))
    blocks = [
        np.hsplit(part, np.cumsum(columns)[:-1]) for part in np.vsplit(whole, np.cumsum(rows)[:-1])
    ]
    got = np.full((row1 - row0, column1 - column0), -1)
    for piece in pieces(row0, row1, column0, column1, (rows, columns)):
        r0, r1, c0, c1 = piece.source
        i, j = piece.block
        block = blocks[i][j][r0:r1, c0:c1]
        assert block.shape == (r1 - r0, c1 - c0)
        assert block.size
        row, column = piece.target
        target = got[row : row + r1 - r0, column : column + c1 - c0]
        assert (target == -1).all()
        target[...] = block
    np.testing.assert_array_equal(got, whole[row0:row1, column0:column1])


def test_a_rectangle_outside_is_refused():
    with pytest.raises(PartitionError, match="not within 0 … 4"):
        pieces(0, 5, 0, 1, ((4,), (1,)))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 30), st.data())
def test_panels_cover_k_within_the_bytes(b_rows, deepest, data):
    inner = sum(b_rows)
    ends = sorted(data.draw(st.sets(st.integers(1, inner))) | {inner})
    a_columns = tuple(int(n) for n in np.diff([0, *ends]))
    spec = make(((3,), a_columns), (tuple(b_rows), (2,)))
    cut = panels(spec, 2, deepest * 2 * 8)
    assert [k0 for k0, _ in cut] == [0, *(k1 for _, k1 in cut[:-1])]
    assert cut[-1][1] == inner
    assert all(0 < k1 - k0 <= deepest for k0, k1 in cut)


def test_panels_end_with_chunks_where_they_can():
    spec = make(((3,), (100,)), ((30, 30, 40), (2,)))
    assert panels(spec, 2, 40 * 16) == ((0, 30), (30, 60), (60, 100))
    assert panels(spec, 2, 20 * 16) == ((0, 15), (15, 30), (30, 45), (45, 60), (60, 80), (80, 100))


def test_panels_of_a_are_cut_where_c_is_narrow():
    """Two of them are little beside a share of A, or of C, and never more than sixteen or so."""
    for shape, workers, deepest in (
        ((10**6, 1000, 1), 4, 62),
        ((10**6, 1000, 1), 32, 128),
        ((10**8, 10, 1), 4, 1),
        ((10**7, 100, 10), 4, 6),
        ((10**7, 100, 100), 4, 50),
        ((10**6, 4096, 2000), 4, 128),
        ((1000, 10**6, 1), 4, 3907),
    ):
        cut = panels(whole(shape), workers)
        depth = max(k1 - k0 for k0, k1 in cut)
        assert 0.9 * deepest <= depth <= deepest
        assert len(cut) <= max(17, shape[1] // 100)


@pytest.mark.parametrize("inner", [10**6, 10**7])
def test_a_long_k_has_few_panels(inner):
    axis = (inner // 16,) * 16
    spec = MatmulSpec((50, inner, 50), np.dtype("f8"), ((50,), axis), (axis, (50,)), "a", "b")
    cut = panels(spec, 4)
    assert 256 <= len(cut) <= 300
    assert max(k1 - k0 for k0, k1 in cut) * 50 * 8 <= PANEL_NBYTES


def test_large_squares_keep_the_panels_that_are_best_for_them():
    for n, depth in ((4096, 256), (8192, 512)):
        for side in (n, 1024):
            axis = (side,) * (n // side)
            spec = MatmulSpec((n, n, n), np.dtype("f8"), (axis, axis), (axis, axis), "a", "b")
            for workers in (1, 2, 6, 100):
                assert {k1 - k0 for k0, k1 in panels(spec, workers)} == {depth}


def test_a_narrow_product_fits_beside_its_inputs():
    """C has 8 MB; two panels of A as deep as BLAS likes them would be 2 GB."""
    spec = whole((10**6, 1000, 1))
    assert sum(limits(spec, [4e8] * 4)) >= 10**6
    thin = whole((10**8, 10, 1))  # A has 8 GB, two panels of it that are all of K twice as much
    assert sum(limits(thin, [7e8] * 4)) >= 10**8
    with pytest.raises(PartitionError, match="do not fit"):
        limits(spec, [4e6] * 4)


def test_rows_are_limited_by_memory():
    spec = make()
    depth = 8
    fixed, row = 2 * depth * 7 * 8, (7 + 2 * depth) * 8
    assert limits(spec, [fixed + 2 * row, None, math.inf, 0, -5]) == [2, math.inf, math.inf, 0, 0]
    with pytest.raises(PartitionError, match="6 rows of C do not fit"):
        limits(spec, [fixed + 2 * row, fixed + 3 * row])


def whole(shape):
    m, k, n = shape
    return MatmulSpec(shape, np.dtype("f8"), ((m,), (k,)), ((k,), (n,)), "a", "b")


def make_shape(shape):
    height, width = shape
    chunks = ((height,), (3,)), ((3,), (width,))
    return MatmulSpec((height, 3, width), np.dtype("f8"), *chunks, "a", "b")


def proportional_rows(rows, weights):
    busy = [max(weight, 1e-9) for weight in weights]
    return map(int, proportional(rows, busy))


def rows_plan(models, distribution, workers, limits=None):
    """Return the plan of strips one element wide."""
    tiles, top = {}, 0
    for worker, rows in zip(workers, distribution, strict=True):
        tiles[worker] = [Tile(top, 0, top + rows, 1)] if rows else []
        top += rows
    return PartsPlan(
        tiles,
        models=None if models is None else dict(zip(workers, models, strict=True)),
        limits=None if limits is None else dict(zip(workers, limits, strict=True)),
        by_rows=True,
    )


def covered(plan, shape):
    assert plan.done
    times = np.zeros(shape, dtype=int)
    for part in plan.parts:
        for tile in part.tile.rectangles:
            times[tile.row0 : tile.row1, tile.column0 : tile.column1] += 1
    assert (times == 1).all()


@pytest.mark.slow
@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_every_row_is_finished_once_under_losses(distribution, modelled, random):
    workers = [f"w{i}" for i in range(len(distribution))]
    models = [ConstantModel(i + 1.0) for i in range(len(workers))] if modelled else None
    plan = rows_plan(models, distribution, workers)
    started = {a.part: a for a in plan.assign()}
    living, failed = set(workers), set()
    for _ in range(100):
        usable = living - failed
        running = [a for a in started.values() if plan.owns(a.part, a.worker)]
        if plan.done and random.random() < 0.5:
            break
        event = random.random()
        if event < 0.6 and running:
            chosen = random.choice(running)
            plan.finished(chosen.part, chosen.worker)
        elif event < 0.65:
            workers.append(f"w{len(workers)}")
            living.add(workers[-1])
            started |= {a.part: a for a in plan.joined(workers[-1])}
        elif event < 0.8 and usable:
            gone = random.choice(sorted(usable))
            living.discard(gone)
            started |= {a.part: a for a in plan.left(gone)}
        elif running:
            chosen = random.choice(running)
            failed.add(chosen.worker)
            started |= {a.part: a for a in plan.failed(chosen.part, chosen.worker)}
    started |= {a.part: a for a in plan.joined("last")}
    living.add("last")
    assert not plan.stranded
    for a in plan.assign():
        assert a.worker in living - failed
        plan.finished(a.part, a.worker)
    covered(plan, (sum(distribution), 1))
    assert {a.worker for a in plan.parts} <= living


def test_lost_rows_go_by_the_models_within_the_limits():
    models = [ConstantModel(1.0), ConstantModel(1.0), ConstantModel(3.0)]
    plan = rows_plan(models, [40, 5, 5], ["a", "b", "c"])
    assert [(a.worker, a.tile.height) for a in plan.left("a")] == [("b", 10), ("c", 30)]
    tight = rows_plan(models, [40, 5, 5], ["a", "b", "c"], limits=[math.inf, math.inf, 15])
    assert [(a.worker, a.tile.height) for a in tight.left("a")] == [("b", 30), ("c", 10)]
    full = rows_plan(models, [40, 5, 5], ["a", "b", "c"], limits=[40, 5, 15])
    assert full.left("a") == []
    assert (full.stranded, full.done) == (40, False)
    assert "do not fit" in str(full.refusal)
    assert "a left" in full.refusal.__notes__[0]
    # until a worker comes, as large as the one that was lost
    assert full.joined("small", ConstantModel(1.0), 10) == []
    assert full.stranded == 40
    again = full.joined("large", ConstantModel(1.0), 40)
    assert sum(a.tile.height for a in again) == 40
    assert {a.worker for a in again} <= {"c", "small", "large"}
    assert full.stranded == 0


def test_finished_parts_of_a_failed_worker_are_kept_until_it_leaves():
    plan = rows_plan(None, [4, 4, 4], ["a", "b", "c"])
    plan.finished(0, "a")
    (moved,) = plan.left("c")[:1]
    assert moved.worker == "a"
    again = plan.failed(moved.part, "a")
    assert [a.worker for a in again] == ["b"]
    assert [part.part for part in plan.parts] == [0]
    assert [(a.tile.row0, a.tile.row1) for a in plan.left("a")] == [(0, 4)]
    assert plan.left("a") == []
    assert plan.left("stranger") == []


def test_rows_that_nobody_is_there_for_wait_for_a_worker_that_joins():
    plan = rows_plan(None, [2, 2], ["a", "b"])
    plan.left("a")
    assert plan.left("b") == []
    assert (plan.stranded, plan.done) == (4, False)
    assert "b left" in plan.events[-1]
    assert [(a.worker, a.tile.row0, a.tile.row1) for a in plan.joined("c")] == [("c", 0, 4)]
    assert plan.stranded == 0


def test_a_worker_that_joins_gets_rows_only_when_the_others_have_no_room():
    plan = rows_plan(None, [2, 2, 2], ["a", "b", "c"], limits=[6, 3, 2])
    assert plan.joined("d", limit=4) == []
    assert plan.joined("d") == []
    assert [(a.worker, a.tile.height) for a in plan.left("b")] == [("a", 2)]
    assert sorted((a.worker, a.tile.height) for a in plan.left("a")) == [("d", 4)]
    assert plan.left("c") == []
    assert plan.stranded == 2
    assert "do not fit" in str(plan.refusal)


def test_what_workers_hold_for_others_leaves_less_room_for_lost_rows():
    plan = rows_plan(None, [2, 2, 2], ["a", "b", "c"], limits=[4, 4, 4])
    room = plan.room("a")
    assert room == plan.room_beside_tiles("a") > 0
    plan.beside["a"] += int(room)
    assert (plan.room("a"), plan.room_beside_tiles("a")) == (0.0, room)
    assert [(a.worker, a.tile.height) for a in plan.left("b")] == [("c", 2)]


def test_stale_events_are_refused_with_both_values():
    plan = rows_plan(None, [2, 2], ["a", "b"])
    with pytest.raises(CoordinatorError, match="b reports part 0, which is computed by a"):
        plan.finished(0, "b")
    plan.finished(0, "a")
    with pytest.raises(CoordinatorError, match="was finished by a"):
        plan.failed(0, "a")
    with pytest.raises(CoordinatorError, match=r"part 9, which is unknown"):
        plan.finished(9, "a")


def test_plans_of_nothing_are_refused():
    with pytest.raises(PartitionError, match="at least one element"):
        PartsPlan({"a": []})
    with pytest.raises(PartitionError, match="at least one element"):
        PartsPlan({"a": [Tile(0, 0, 3, 0)]})


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.lists(st.integers(0, 60), min_size=1, max_size=7).filter(any),
    st.data(),
)
def test_any_tiles_cover_the_product_after_any_losses(shape, weights, data):
    spec = make_shape(shape)
    workers = [f"w{i}" for i in range(len(weights))]
    rows = dict(zip(workers, proportional_rows(shape[0], weights), strict=True))
    layout = data.draw(st.sampled_from(LAYOUTS))
    placement = placed(spec, layout, rows)
    taken, tiles = placement.layout, placement.tiles
    assert taken in LAYOUTS[1:]
    plan = PartsPlan(tiles, by_rows=taken == "rows")
    assert plan.elements == shape[0] * shape[1]
    if taken == "columns":  # c of p workers' columns make c · (p - c + 1) chunks at most
        downs, rights = cuts(tile for own in tiles.values() for tile in own)
        busy = sum(map(bool, tiles.values()))
        assert len(downs) - 1 + len(rights) - 1 <= busy + 1
    living = list(workers)
    while len(living) > 1 and data.draw(st.booleans()):
        for part in plan.assign():
            if data.draw(st.booleans()):
                plan.finished(part.part, part.worker)
        gone = data.draw(st.sampled_from(living))
        living.remove(gone)
        plan.left(gone)
    for part in plan.assign():
        assert part.worker in living
        plan.finished(part.part, part.worker)
    covered(plan, shape)
    downs, rights = cuts(part.tile for part in plan.parts)
    assert (downs[0], downs[-1], rights[0], rights[-1]) == (0, shape[0], 0, shape[1])


def test_columns_move_less_than_rows_and_auto_takes_them():
    rows = dict(zip("abcdef", (40, 30, 25, 20, 15, 10), strict=True))
    placement = placed(make_shape((140, 140)), "auto", rows)
    assert placement.layout == "columns"
    tiles = placement.tiles
    sides = [tile.height + tile.width for own in tiles.values() for tile in own]
    assert sum(sides) < 1.06 * 2 * 140 * sum((n / 140) ** 0.5 for n in rows.values())
    assert {w: own[0].area / 140 for w, own in tiles.items()} == pytest.approx(rows, rel=0.08)
    assert placed(make_shape((140, 4)), "auto", rows).layout == "rows"


def test_a_dominant_worker_gets_a_part_without_a_corner_and_auto_takes_it():
    """One of 20 times the speed: 2 + 2·√(1/21) half-perimeters instead of 3."""
    n = 2048
    chunks = ((256,) * 8, (256,) * 8)
    spec = MatmulSpec((n, n, n), np.dtype("f8"), chunks, chunks, "a", "b")
    rows, rates = {"gpu": 1950, "cpu": 98}, {"gpu": 20e9, "cpu": 1e9}
    found = placed(spec, "auto", rows, rates=rates)
    assert found.layout == "nrrp"
    assert "against rows" in found.why
    (large,), (small,) = found.tiles.values()
    assert large.corner == (small.height, small.width)
    assert large.area + small.area == n * n
    others = [placed(spec, layout, rows, rates=rates) for layout in ("rows", "columns")]
    assert found.nbytes < 0.85 * min(other.nbytes for other in others)
    assert found.seconds < min(other.seconds for other in others)
    equal = placed(spec, "auto", {"x": 1024, "y": 1024}, rates={"x": 1e9, "y": 1e9})
    assert "nrrp" not in equal.why


@pytest.mark.parametrize("layout", ["nrrp", "auto"])
def test_parts_whose_panels_do_not_fit_give_way_to_rows(layout):
    """A part without a corner needs panels of A as high as C, rows of its area lower ones."""
    n = 2048
    chunks = ((256,) * 8, (256,) * 8)
    spec = MatmulSpec((n, n, n), np.dtype("f8"), chunks, chunks, "a", "b")
    rows = {"gpu": 1950, "cpu": 98}
    roomy = placed(spec, layout, rows, bounds={"gpu": 2000.0})
    assert roomy.layout == "nrrp"
    assert not roomy.tiles["gpu"][0].is_rectangle
    tight = placed(spec, layout, rows, bounds={"gpu": 1950.0})
    assert all(tile.is_rectangle for own in tight.tiles.values() for tile in own)
    if layout == "nrrp":
        assert tight.layout == "rows"
        assert {w: own[0].height for w, own in tight.tiles.items()} == rows
        assert tight.why == "the panels of nrrp do not fit into the workers' memory"


@given(st.integers(1, 3000), st.integers(1, 3000), st.data())
def test_edges_that_nearly_coincide_become_one_and_no_side_changes_much(height, width, data):
    number = st.integers(1, 40)
    tiles, left, place = {}, 0, 0
    edges = sorted({0, width, *data.draw(st.lists(st.integers(0, width), max_size=3))})
    for right in edges[1:]:
        weights = data.draw(st.lists(number, min_size=1, max_size=4))
        stops = [round(height * w) for w in np.cumsum(weights) / sum(weights)]
        for top, bottom in zip([0, *stops], stops, strict=False):
            if top < bottom:
                tiles[f"w{place}"] = [Tile(top, left, bottom, right)]
                place += 1
        left = right
    found = straightened(tiles)
    plan = PartsPlan(found)
    for part in plan.assign():
        plan.finished(part.part, part.worker)
    times = np.zeros((height, width), dtype=np.int8)
    for part in plan.parts:
        times[part.tile.row0 : part.tile.row1, part.tile.column0 : part.tile.column1] += 1
    assert (times == 1).all()
    for worker, (tile,) in tiles.items():
        (made,) = found[worker]
        assert abs(made.height - tile.height) <= tile.height / 128
        assert abs(made.width - tile.width) <= tile.width / 128
    for axis in (0, 1):
        ends = cuts(tile for own in found.values() for tile in own)[axis]
        assert set(cuts(t for own in straightened(found).values() for t in own)[axis]) <= set(ends)


def test_columns_of_nearly_equal_workers_have_one_cut():
    rows = {"x": 1024, "y": 1025, "z": 1023, "u": 1024}
    tiles = placed(make_shape((4096, 4096)), "columns", rows).tiles
    downs, rights = cuts(tile for own in tiles.values() for tile in own)
    assert (len(downs), len(rights)) == (3, 3)


def test_a_slow_worker_gets_less_where_its_bytes_cost_it_time():
    """What is left of the work after moving is levelled: all times are equal within a row."""
    n = 1024
    chunks = ((256,) * 4, (256,) * 4)
    spec = MatmulSpec((n, n, n), np.dtype("f8"), chunks, chunks, "a", "b")
    rows, rates = {"x": 512, "y": 384, "z": 128}, {"x": 4e9, "y": 3e9, "z": 1e9}
    names = list(rows)
    holders = {key: [names[(key[1] + key[2]) % 3]] for key in spec.keys}
    for layout in ("rows", "columns", "nrrp"):
        still = placed(spec, layout, rows)
        moving = placed(spec, layout, rows, rates=rates, holders=holders)
        areas = {w: sum(t.area for t in own) for w, own in moving.tiles.items()}
        assert areas["z"] < 0.9 * sum(t.area for t in still.tiles["z"])
        assert moving.nbytes < sum(
            (t.height + t.width) * n * 8 for own in moving.tiles.values() for t in own
        )
        least = 2.0 * n**3 / sum(rates.values())
        assert least < moving.seconds < 2 * least
    everywhere = dict.fromkeys(spec.keys, names)
    resting = placed(spec, "auto", rows, rates=rates, holders=everywhere)
    assert (resting.layout, resting.nbytes) == ("rows", 0)
    assert {w: own[0].height for w, own in resting.tiles.items()} == rows
    assert resting.seconds == pytest.approx(2.0 * n**3 / sum(rates.values()))


@pytest.mark.parametrize("layout", ["columns", "auto"])
def test_a_worker_behind_a_slow_link_gets_what_arrives_in_time(layout):
    n = 8192
    axis = (1024,) * 8
    spec = MatmulSpec((n, n, n), np.dtype("f8"), (axis, axis), (axis, axis), "a", "b")
    rows = dict(zip("uvwxyz", (2341, 1755, 1463, 1170, 878, 585), strict=True))
    rates = {worker: share * 2e7 for worker, share in rows.items()}
    names = list(rows)
    holders = {key: [names[(3 * key[1] + key[2]) % 6]] for key in spec.keys}
    links = dict.fromkeys(names, (1e-9, 1e-9)) | {"v": (8e-8, 1e-9), "y": (8e-8, 1e-9)}
    options = {"rates": rates, "holders": holders}
    same = placed(spec, layout, rows, **options)
    found = placed(spec, layout, rows, **options, links=links)
    areas, before = (
        {worker: sum(tile.area for tile in own) for worker, own in p.tiles.items()}
        for p in (found, same)
    )
    assert sum(areas.values()) == n * n
    assert areas["v"] < 0.6 * before["v"]
    assert areas["u"] > before["u"]
    for worker in "vy":
        sides = sum(tile.height + tile.width for tile in found.tiles[worker])
        arriving = sides * n * 8 * 8e-8  # if it held none of it
        assert arriving < 1.35 * found.seconds
    unbalanced = placed(spec, layout, rows, holders=holders, in_order=True)
    most = max(sum(t.height + t.width for t in unbalanced.tiles[w]) * n * 8 * 8e-8 for w in "vy")
    assert found.seconds < most


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_what_an_earlier_product_left_in_place_is_not_moved(layout):
    """A lies as rows or rectangles of the same shares, in another order of the workers."""
    n = 240
    rows = {"z": 40, "x": 120, "y": 80}
    tops = {"x": (0, 120), "y": (120, 200), "z": (200, 240)}
    a_chunks, b_chunks = ((120, 80, 40), (n,)), ((n,), (n,))
    spec = MatmulSpec((n, n, n), np.dtype("f8"), a_chunks, b_chunks, "a", "b")
    holders = {("a", line, 0): [worker] for line, worker in enumerate(tops)}
    holders[("b", 0, 0)] = list(rows)
    found = placed(spec, layout, rows, holders=holders)
    given = placed(spec, layout, rows, holders=holders, in_order=True)
    assert found.nbytes <= given.nbytes
    if layout == "rows":
        assert found.nbytes == 0
        assert {w: (own[0].row0, own[0].row1) for w, own in found.tiles.items()} == tops
        assert [own[0].row0 for own in given.tiles.values()] == [0, 40, 160]
    assert sum(tile.area for own in found.tiles.values() for tile in own) == n * n


def test_rectangles_go_to_those_who_hold_their_rows_and_columns():
    n = 240
    a_chunks, b_chunks = ((120, 120), (n,)), ((n,), (120, 120))
    spec = MatmulSpec((n, n, n), np.dtype("f8"), a_chunks, b_chunks, "a", "b")
    holders = {
        ("a", 0, 0): ["q", "s"],
        ("a", 1, 0): ["p", "r"],
        ("b", 0, 0): ["p", "q"],
        ("b", 0, 1): ["r", "s"],
    }
    rows = dict.fromkeys("pqrs", 60)
    found = placed(spec, "columns", rows, holders=holders)
    assert found.nbytes == 0
    assert placed(spec, "columns", rows, holders=holders, in_order=True).nbytes > 0


def test_small_products_are_measured_less():
    assert distribute.least_gain((8192, 8192, 8192), 6) == distribute.LEAST_GAIN
    gains = [distribute.least_gain((n, n, n), 6) for n in (4096, 2048, 1024)]
    assert distribute.LEAST_GAIN <= gains[0] < gains[1] < gains[2]
    assert distribute.scout_rows(8192, 6) == 170
    assert distribute.scout_rows(8192, 6, alone=True) == 341
    assert distribute.scout_rows(5, 6) == 1
