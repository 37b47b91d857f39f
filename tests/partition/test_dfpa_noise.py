"""`Dfpa` on noisy workers: how good and how soon, over seeded runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from fpmdask.models import ConstantModel, PiecewiseLinearModel
from fpmdask.partition import Dfpa, geometric
from fpmdask.partition.smoothing import smoothed
from fpmdask.partition.stopping import resolution

SPEEDS = (400.0, 300.0, 250.0, 200.0, 150.0, 100.0)
CONSTANT = [ConstantModel(s) for s in SPEEDS]
ORACLES = json.loads((Path(__file__).parents[1] / "oracles.json").read_text(encoding="utf-8"))
SIXTEEN = [ConstantModel(s) for s in ORACLES["hcl_speeds_mflops"]]
CLIFF = [
    PiecewiseLinearModel.from_points([60000, 66666.7], [6, 66.6667]),  # cpm_two_cycle
    ConstantModel(5000),
]


def paging(speed, memory):
    x = np.linspace(0.02, 3, 80) * memory
    fallen = 1 / 8 + 7 / 8 / (1 + np.exp((x - memory) / (0.075 * memory)))
    return PiecewiseLinearModel.from_points(x, x / (speed * fallen))


PAGING = [paging(s, m) for s, m in zip(SPEEDS, (2000, 3000, 1500, 2500, 900, 800), strict=True)]


def simulated(models, units, noise, epsilon, runs):
    """Return per seeded run: true makespan / optimum, rounds."""

    def times(distribution):
        return np.array([m.time(float(x)) for m, x in zip(models, distribution, strict=True)])

    optimum = times(geometric(units, models)).max()
    found = np.empty((runs, 2))
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        dfpa = Dfpa(units, len(models), epsilon=epsilon)
        while (distribution := dfpa.ask()) is not None:
            dfpa.tell(times(distribution) * np.exp(rng.normal(0, noise, len(models))))
        outcome = dfpa.outcome
        found[seed] = times(outcome.distribution).max() / optimum, len(outcome.rounds)
    return found.T


@pytest.mark.slow
@pytest.mark.parametrize("runs", [100, pytest.param(200, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("models", "units", "noise", "epsilon", "within", "share", "rounds"),
    [
        (CONSTANT, 8192, 0.03, 0.05, 1.05, 0.95, 4.1),
        (CONSTANT, 8192, 0.03, 0.10, 1.06, 0.95, 3),
        (CONSTANT, 8192, 0.05, 0.10, 1.08, 0.95, 5),
        pytest.param(CONSTANT, 8192, 0.08, 0.10, 1.12, 0.95, 6, marks=pytest.mark.thorough),
        (CONSTANT, 8192, 0.15, 0.10, 1.20, 0.95, 8),
        (PAGING, 6000, 0.05, 0.10, 1.08, 0.95, 8),
        pytest.param(PAGING, 6000, 0.15, 0.10, 1.20, 0.95, 8, marks=pytest.mark.thorough),
        (CLIFF, 100000, 0.05, 0.10, 1.08, 0.95, 6),
        pytest.param(CLIFF, 100000, 0.15, 0.10, 1.20, 0.93, 6, marks=pytest.mark.thorough),
        (SIXTEEN, 10240, 0.05, 0.10, 1.08, 0.95, 8),
        pytest.param(SIXTEEN, 10240, 0.15, 0.10, 1.20, 0.92, 8, marks=pytest.mark.thorough),
        pytest.param(PAGING, 9000, 0.05, 0.10, 1.08, 0.95, 8, marks=pytest.mark.thorough),
        pytest.param(PAGING, 9000, 0.15, 0.10, 1.20, 0.92, 9, marks=pytest.mark.thorough),
    ],
)
def test_true_makespan_under_noise(models, units, noise, epsilon, within, share, rounds, runs):
    """In most seeded runs the true makespan is within the bound, in few rounds.

    Seen with seeds 0 to 199, log-normal noise: 95th percentile of true makespan / optimum, share
    of the runs within 1.08 (5 % of noise) or 1.20 (15 %), mean rounds:

    =========  =====  =====  =======  =====  ======  ======
    workers    units  noise  epsilon  95 %   within  rounds
    =========  =====  =====  =======  =====  ======  ======
    constant    8192   3 %     0.05   1.046             4.0
    constant    8192   3 %     0.10   1.052             2.8
    constant    8192   5 %     0.10   1.071   0.965     4.4
    constant    8192   8 %     0.10   1.092             5.5
    constant    8192  15 %     0.10   1.159   0.980     7.3
    paging      6000   5 %     0.10   1.072   0.980     6.2
    paging      6000  15 %     0.10   1.183   0.960     7.6
    cliff     100000   5 %     0.10   1.072   0.960     5.2
    cliff     100000  15 %     0.10   1.191   0.955     4.9
    sixteen    10240   5 %     0.10   1.071   0.980     6.4
    sixteen    10240  15 %     0.10   1.201   0.945     7.8
    paging      9000   5 %     0.10   1.064   0.985     6.6
    paging      9000  15 %     0.10   1.215   0.940     8.6
    =========  =====  =====  =======  =====  ======  ======

    1.20 in 95 % of the runs within 8 rounds is what 15 % of noise leaves to six constant workers;
    it is missed narrowly by sixteen and, where most of them page (9000 units), by six that also
    take more than 8 rounds. Over other 200 seeds (1000 to 1199) the shares at 15 % are 0.955
    (paging, 6000; 8.04 rounds), 0.945 (cliff), 0.930 (sixteen), 0.955 (paging, 9000; 8.4). Misses:
    on the cliff mostly two times that are equal by luck ("balanced"), elsewhere a round that is
    measured well by luck and stays the one with the smallest makespan; `Outcome.proposal`, made
    from all measurements, is within 1.20 in 0.995 (sixteen) and 0.955 (paging, 9000) of the runs.

    A distribution made from k measurements of each of six workers is 2.4 noise / sqrt(k) above
    the optimum in one case of twenty: 1.08 at 8 % noise would take six measurements of each.
    """
    ratio, used = simulated(models, units, noise, epsilon, runs)
    assert np.mean(ratio <= within) >= share
    assert used.mean() <= rounds


def test_noise_is_found_and_a_cliff_is_none():
    rng = np.random.default_rng(2)
    sizes = np.sort(rng.normal(0, 0.05, (6, 5)), axis=1)
    fresh, now = np.ones((6, 5)), np.zeros((6, 5))
    for noise in (0.03, 0.08, 0.15):
        found = smoothed(sizes, rng.normal(0, noise, (6, 5)), fresh, now)
        assert 0.6 * noise < found.noise < 1.5 * noise
        assert found.log_speeds.std() < 0.6 * noise
    cliff = np.zeros((6, 5))
    cliff[0] = -20 * np.maximum(sizes[0], 0)
    found = smoothed(sizes, cliff, fresh, now)
    assert found.noise < 0.005
    assert np.abs(found.log_speeds - cliff).max() < 0.01


def test_filling_does_not_count():
    sizes, speeds = np.array([[0.0, 0.1], [0.0, 0.0]]), np.array([[1.0, 1.1], [2.0, 0.0]])
    found = smoothed(sizes, speeds, np.array([[1.0, 1.0], [1.0, np.inf]]), np.zeros((2, 2)))
    assert found.log_speeds[1].tolist() == [2.0, 2.0]


def test_resolution_grows_with_the_noise():
    values = [resolution(noise) for noise in np.linspace(0, 0.3, 31)]
    assert values[0] == 0
    assert values == sorted(values)
