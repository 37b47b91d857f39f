"""KL: the fixed grid, its half-perimeter, and what it costs where p is not a square."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.layout import br, fpm_kl, kl
from fpmdask.models import SurfaceModel
from tests.conformance import check_layout

ORACLES = json.loads((Path(__file__).parents[1] / "oracles.json").read_text("utf-8"))
HCL = ORACLES["hcl_speeds_mflops"]
SHAPE = (840, 840)  # figure 7 of Clarke, Lastovetsky, Rychkov (2011)


@pytest.mark.slow
def test_14_of_the_papers_workers():
    # The paper prints 9 and 7.457; its 14 areas are not printed (oracles.json).
    for chosen in itertools.combinations(HCL, 14):
        assert kl(chosen, SHAPE).half_perimeter == 9.0
        layout = br(chosen, SHAPE)
        assert 7.41 <= layout.half_perimeter <= 7.46
        areas = np.array(layout.areas) / 840**2
        np.testing.assert_allclose(areas, np.array(chosen) / sum(chosen), rtol=0.01)
    check_layout(kl(HCL[:14], SHAPE), 14)


@pytest.mark.parametrize("p", [1, 4, 6, 7, 12, 13, 16])
def test_half_perimeter_is_rows_plus_columns_of_the_grid(p):
    speeds = np.random.default_rng(p).uniform(1, 4, p)
    sides = [(r, p // r) for r in range(1, p + 1) if p % r == 0]
    for grid in sides:
        layout = kl(speeds, (400, 400), grid)
        check_layout(layout, p)
        assert layout.half_perimeter == pytest.approx(sum(grid))
    assert kl(speeds, (400, 400)).half_perimeter == pytest.approx(min(map(sum, sides)))


def test_workers_are_placed_row_by_row_and_shares_follow_speeds():
    speeds = np.array([[4.0, 1.0, 2.0], [2.0, 3.0, 2.0]])
    layout = kl(speeds.ravel(), (700, 1400), grid=(2, 3))
    for worker, found in enumerate(layout.rectangles):
        i, j = divmod(worker, 3)
        column = speeds[:, j].sum()
        assert found.width == pytest.approx(1400 * column / speeds.sum(), abs=1)
        assert found.height == pytest.approx(700 * speeds[i, j] / column, abs=1)
        assert (found.top == 0) == (i == 0)
        assert (found.left == 0) == (j == 0)


def constant_fpm_kl(speeds, shape, grid):
    return fpm_kl([SurfaceModel.from_points([10], [10], [100 / s]) for s in speeds], shape, grid)


@pytest.mark.parametrize("made", [kl, constant_fpm_kl])
def test_every_side_is_within_one_block_of_the_exact_one(made):
    rng = np.random.default_rng(9)
    for _ in range(100):
        grid = tuple(rng.integers(1, 6, 2).tolist())
        p = grid[0] * grid[1]
        shape = tuple((p + rng.integers(0, 50, 2)).tolist())
        speeds = 10 ** rng.uniform(0, 1.5, grid)
        widths = speeds.sum(axis=0) / speeds.sum() * shape[1]
        heights = speeds / speeds.sum(axis=0) * shape[0]
        for worker, found in enumerate(made(speeds.ravel(), shape, grid).rectangles):
            i, j = divmod(worker, grid[1])
            if found.height:
                assert abs(found.height - heights[i, j]) <= 1 + 1e-9
                assert abs(found.width - widths[j]) <= 1 + 1e-9
            else:
                assert min(heights[i, j], widths[j]) < 1 + 1e-9


def test_the_default_grid_fits_the_matrix():
    assert kl([1.0] * 6, (2, 600)).rectangles[0].height == 2
    assert all(kl([1.0] * 8, (2, 4)).areas)


@pytest.mark.parametrize("grid", [(2, 3), (0, 4), (4,), (2.0, 2), "22", 4, (-2, -2), (True, 4)])
def test_bad_grids(grid):
    with pytest.raises(PartitionError, match="grid is"):
        kl([1.0] * 4, (8, 8), grid)
