"""Golden layouts: the zones, and their pictures, for seeded speeds, models and limits.

`tests.golden` says how they are kept and written anew.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.layout import Layout, Rectangle, br, columns, fpm_br, fpm_kl, kl, nrrp, rows
from fpmdask.layout.arrange import arranged, optimal
from fpmdask.models import ConstantModel, PiecewiseLinearModel, SurfaceModel
from tests.golden import Golden, numbers, whole

GOLDEN = Golden(Path(__file__).parent)


def zones(layout):
    """Return the edges of all rectangles by worker, what the layout says of itself, and speeds."""
    found = [[[r.top, r.left, r.height, r.width] for r in zone if r.area] for zone in layout.zones]
    measures = [layout.volume, layout.half_perimeter, layout.lower_bound, layout.iterations]
    return [found, layout.converged, measures, layout.speeds]


def tried(call, *arguments, **options):
    try:
        return zones(call(*arguments, **options))
    except PartitionError as error:
        return str(error)


@pytest.mark.parametrize("case", range(30))
def test_golden_layouts(case):
    """Few and many workers, alike and unlike, on narrow matrices, with and without limits."""
    rng = numbers(600 + case)
    workers = (1, 2, 3, 5, 6, 8, 13)[case % 7]
    shape = (whole(rng, 1, 12), whole(rng, 3, 40)) if case % 3 else (24, 24)
    spread = (1.0, 3.0, 30.0)[whole(rng, 0, 2)]
    speeds = [rng.uniform(1.0, spread) ** 2 for _ in range(workers)]
    blocks = shape[0] * shape[1]
    limits = None
    if case % 2:
        limits = [1.3 * blocks / workers if rng.random() < 0.5 else None for _ in range(workers)]
    layouts = [tried(call, speeds, shape, limits) for call in (br, rows, nrrp)]
    GOLDEN.check(f"speeds {case}", [*layouts, tried(kl, speeds, shape)])


@pytest.mark.parametrize("case", range(12))
def test_golden_columns(case):
    rng = numbers(800 + case)
    areas = [rng.random() ** 2 * whole(rng, 0, 4) for _ in range(1 + 2 * case)] + [0.5]
    for aspect in (1.0, 2.5, 0.2):
        found = columns(areas, aspect)
        trace = [found.columns, found.widths, found.heights, found.half_perimeter]
        GOLDEN.check(f"columns {case} {aspect}", trace)


@pytest.mark.parametrize("case", range(16))
def test_golden_layouts_by_models(case):
    """Constant, cached and paging workers; surfaces whose widths converge and that swing."""
    rng = numbers(700 + case)
    workers = (2, 4, 6, 9)[case % 4]
    shape = (whole(rng, 8, 30), whole(rng, 8, 30))
    blocks, models, surfaces = shape[0] * shape[1], [], []
    for i in range(workers):
        speed, edge = rng.uniform(1.0, 9.0), blocks / workers * rng.uniform(0.5, 1.5)
        sizes = [edge / 2, edge, 1.1 * edge]
        times = [edge / 2 / speed, edge / speed, edge / speed * rng.uniform(1.1, 20.0)]
        paging = PiecewiseLinearModel.from_points(sizes, times)
        models.append(paging if i % 3 != 1 else ConstantModel(speed))
        sides = [(h, w) for w in (3.0, 9.0, 20.0) for h in (2.0, 10.0, 30.0)]
        slow = rng.uniform(1.0, 15.0) if case % 2 else 1.2
        seconds = [h * w / speed * (slow if h * w > edge else 1.0) for h, w in sides]
        surfaces.append(SurfaceModel.from_points(*zip(*sides, strict=True), seconds))
    limits = [math.inf, *(2.0 * blocks / workers for _ in range(workers - 1))]
    GOLDEN.check(
        f"models {case}",
        [
            tried(fpm_br, models, shape),
            tried(fpm_br, models, shape, limits),
            tried(fpm_kl, surfaces, shape),
            tried(fpm_kl, surfaces, shape, grid=(workers // 2, 2) if workers % 2 == 0 else None,
                  epsilon=0.01, max_iterations=7),
        ],
    )  # fmt: skip


@pytest.mark.parametrize("workers", [2, 3, 4, 6, 8, 11])
def test_golden_arrangements_under_tight_limits(workers):
    """Limits that exclude the optimal columns in about half of the cases; of 0 blocks, too."""
    trace = []
    for case in range(12):
        rng = numbers(100 * workers + case)
        shape = (whole(rng, 3, 14), whole(rng, 3, 14))
        even = shape[0] * shape[1] / workers
        areas = np.array([rng.uniform(0.5, 9.0) * (rng.random() < 0.8) for _ in range(workers)])
        areas[0] += 1.0
        most = np.array([even * rng.uniform(0.0, 2.6) for _ in range(workers)]).round()
        most[-1] += max(0.0, even * workers - most.sum())
        excluded = optimal(areas, shape, most) is None
        exact = optimal(areas, shape, most, exact=True) is None
        try:
            found = [[r.top, r.left, r.height, r.width] for r in arranged(areas, shape, most)]
        except PartitionError as error:
            found = str(error)
        trace.append([excluded, exact, found])
    GOLDEN.check(f"tight limits {workers}", trace)


def test_golden_pictures():
    corner = nrrp([80.0, 1.0, 1.5], (20, 30))
    swinging = fpm_kl(
        [SurfaceModel.from_points([4, 4, 9, 9], [4, 9, 4, 9], np.array([1, 9, 3, 70.0]) * k)
         for k in (1.0, 2.0)],
        (9, 12), epsilon=1e-9, max_iterations=2,
    )  # fmt: skip
    shown = [layout._repr_html_() for layout in (corner, swinging, br(range(1, 9), (8, 64)))]
    GOLDEN.check("pictures", [page.splitlines() for page in shown])


SURFACE = SurfaceModel.from_points([1.0], [1.0], [1.0])
REFUSED = {
    "shape": lambda: br([1.0], (0, 3)),
    "too many blocks": lambda: br([1.0], (2**30, 2**30)),
    "one side": lambda: kl([1.0], (3,)),
    "grid": lambda: kl([1.0] * 6, (9, 9), grid=(2, 2)),
    "areas": lambda: columns([1.0, 0.0, -2.0, math.nan]),
    "no areas": lambda: columns([0.0, 0.0]),
    "aspect": lambda: columns([1.0], 0.0),
    "rows": lambda: rows([1.0, 2.0], (9, 10), [39.0, 41.0]),
    "rectangles": lambda: br([1.0] * 3, (5, 5), [9.0, 9.0, 7.0]),
    "surfaces": lambda: fpm_kl([SURFACE, ConstantModel(1.0)], (4, 4)),
    "iterations": lambda: fpm_kl([SURFACE], (4, 4), max_iterations=0),
    "hole": lambda: Layout((4, 6), ((Rectangle(0, 0, 4, 2),), (Rectangle(0, 2, 3, 4),))),
    "overlap": lambda: Layout((4, 6), ((Rectangle(0, 0, 4, 4),), (Rectangle(0, 3, 4, 3),))),
    "outside": lambda: Layout((4, 6), ((Rectangle(0, 0, 5, 6),),)),
    "flat": lambda: Layout((4, 6), ((Rectangle(0, 0, 4, 6), Rectangle(0, 0, 0, 2)),)),
    "two rectangles": lambda: nrrp([8.0, 1.0], (12, 12)).rectangles,
    "speeds": lambda: Layout((1, 1), ((Rectangle(0, 0, 1, 1),),), (1.0, 2.0)),
}


def test_golden_refusals():
    """What an error says of the value that is not allowed: which one, and where it is."""
    said = {}
    for name, call in REFUSED.items():
        with pytest.raises(PartitionError) as refused:
            call()
        said[name] = str(refused.value)
    GOLDEN.check("refusals", said)
