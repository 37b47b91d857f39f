"""FPM-BR: areas that the models balance; a worker that would page gets what fits."""

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.layout import br, fpm_br
from fpmdask.models import ConstantModel, PiecewiseLinearModel, TabulatedModel
from fpmdask.partition import geometric
from tests.conformance import check_layout


def paging(speed, memory):
    """Constant speed up to `memory` blocks, a twentieth of it soon after."""
    units = np.array([1.0, memory, 1.05 * memory, 20 * memory])
    return PiecewiseLinearModel.from_points(units, units / (speed * np.array([1, 1, 0.05, 0.05])))


def makespan(layout, models):
    return max(m.time(a) for m, a in zip(models, layout.areas, strict=True))


def test_constant_models_give_br():
    speeds = np.random.default_rng(2).uniform(1, 20, 9)
    shape = (200, 300)
    layout = fpm_br([ConstantModel(s) for s in speeds], shape)
    check_layout(layout, 9)
    assert layout.volume == pytest.approx(br(speeds, shape).volume, rel=0.01)
    np.testing.assert_allclose(layout.areas, br(speeds, shape).areas, rtol=0.03)
    assert layout.speeds == pytest.approx(speeds)


def test_areas_are_those_of_the_optimal_distribution():
    models = [paging(s, m) for s, m in [(8, 4e4), (4, 2e5), (2, 4e5), (6, 2e4), (3, 4e5)]]
    layout = fpm_br(models, (800, 800))
    check_layout(layout, 5)
    optimum = geometric(800 * 800, models)
    np.testing.assert_allclose(layout.areas, optimum, rtol=0.03)
    single = br([m.speed(100) for m in models], (800, 800))
    assert makespan(single, models) > 4 * makespan(layout, models)


@pytest.mark.slow
def test_whole_blocks_do_not_push_a_worker_over_a_cliff():
    rng = np.random.default_rng(5)
    ours, blind = [], []
    for _ in range(60):
        p = int(rng.integers(4, 12))
        speeds = rng.uniform(1, 8, p)
        memories = rng.uniform(0.3, 3, p) * 500**2 / p
        models = [paging(s, m) for s, m in zip(speeds, memories, strict=True)]
        shares = geometric(500**2, models)
        best = max(m.time(int(x)) for m, x in zip(models, shares, strict=True))
        ours.append(makespan(fpm_br(models, (500, 500)), models) / best)
        blind.append(makespan(br(np.maximum(shares, 1e-9), (500, 500)), models) / best)
    # Measured: 1.026 on average and 1.305 at most; without the models 1.086 and 1.398.
    assert np.mean(ours) < 1.04
    assert np.mean(ours) - 1 < 0.5 * (np.mean(blind) - 1)


def test_limits_are_blocks():
    layout = fpm_br([ConstantModel(9.0), ConstantModel(1.0)], (10, 10), limits=[50, None])
    check_layout(layout, 2, [50, None])
    assert layout.areas[0] == 50


def test_a_worker_that_the_models_leave_idle_has_no_sides():
    slow = TabulatedModel(1e6 * np.arange(101))
    layout = fpm_br([ConstantModel(1.0), slow, ConstantModel(1.0)], (10, 10))
    check_layout(layout, 3)
    assert (layout.rectangles[1].height, layout.rectangles[1].width) == (0, 0)
    assert layout.speeds[1] == 0


@pytest.mark.parametrize("models", [[], [3.0], None])
def test_bad_models(models):
    with pytest.raises(PartitionError, match="models"):
        fpm_br(models, (4, 4))
