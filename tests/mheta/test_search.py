"""The searches: the contract of all, and what each is for."""

import itertools
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.mheta import Machine, Program, anchors, evaluator
from fpmdask.mheta.search import (
    SearchResult,
    annealing,
    exhaustive,
    gbs,
    genetic,
    random_search,
)
from fpmdask.mheta.search.annealing import _falling
from fpmdask.mheta.search.compositions import Compositions, count, random_compositions
from fpmdask.mheta.search.descent import _grouped, _neighbours, cost, descend
from fpmdask.mheta.search.evaluations import begin
from fpmdask.mheta.search.gbs import _descend_from
from fpmdask.mheta.search.moves import along, gives_evenly, rounded, takes_evenly, transfers
from fpmdask.mheta.search.participants import try_participants
from tests.conformance import WatchedPredictor, check_search
from tests.mheta.random_programs import random_case

TABLE = json.loads((Path(__file__).parent / "oracles.json").read_text())["table_1"]
CORNERS = ("Blk", "I-C", "I-C/Bal", "Bal", "Blk")
HEURISTICS = [gbs, genetic, annealing, random_search]
name = pytest.mark.parametrize("search", HEURISTICS, ids=lambda search: search.__name__)


def generator(seed=0):
    return np.random.default_rng(seed)


def small_program(seed):
    """Return a predictor, starts and all distributions of a random program; None if too many."""
    case = random_case(generator(seed))
    rows, nodes = case["rows"], len(case["distribution"])
    if nodes == 1 or count(rows, nodes, 4000) > 4000:
        return None
    program = Program.from_dict(case["program"])
    machine = Machine.from_dict(case["machine"], nodes)
    found = anchors(program, machine, rows)
    start = np.array([found[corner] for corner in CORNERS])
    return evaluator(program, machine), start, Compositions(rows, nodes)[:]


def table_1(machine, program):
    """Return a predictor and starts of a pair of Table 1."""
    figures = dict(TABLE["machines"][machine])
    power = figures.pop("power")
    plain = json.loads(json.dumps(TABLE["programs"][program]))
    for stage in itertools.chain(*(section["stages"] for section in plain["sections"])):
        at_one = stage.pop("seconds_per_row_at_power_1")
        stage["seconds_per_row"] = [at_one / share for share in power]
    predict = evaluator(Program.from_dict(plain), Machine.from_dict(figures, len(power)))
    found = TABLE["distributions"][machine][program]
    return predict, np.array([found[corner] for corner in CORNERS])


@pytest.mark.slow
@name
def test_contract(search):
    check_search(search)


def test_contract_of_exhaustive():
    check_search(exhaustive, complete=True)


@name
def test_a_generator_is_needed(search):
    for bad in (None, 3, np.random.RandomState(0), np.random):
        predict = WatchedPredictor(2, 3)
        with pytest.raises(PartitionError, match=r"rng is .*default_rng\(seed\)"):
            search(predict, [[2, 1]], rng=bad)
        assert not predict.batches


@name
def test_a_small_budget_ends_the_search(search):
    start = np.array([[100, 100, 100, 100]])
    for budget in (1, 2, 10, 100, 300):
        found = search(WatchedPredictor(4, 400), start, rng=generator(), budget=budget)
        assert (found.reason, found.evaluations) == ("budget", budget)


@name
def test_everything_infeasible(search):
    found = search(lambda d: np.full(len(d), np.inf), [[9, 0], [5, 4]], rng=generator())
    assert found.history == ((1, np.inf),)
    assert (found.distribution.tolist(), found.reason) == ([9, 0], "exhausted")


@name
def test_the_first_predicted_of_equals_stays_the_best(search):
    found = search(lambda d: np.ones(len(d)), [[3, 9], [9, 3]], rng=generator())
    assert (found.distribution.tolist(), found.history) == ([3, 9], ((1, 1.0),))


@name
def test_the_predictors_own_prediction_is_kept(search):
    class Detailed(WatchedPredictor):
        def prediction(self, distribution):
            return "in detail", distribution.tolist()

    arguments = {"rng": generator(), "budget": 50}
    found = search(Detailed(3, 30), [[10, 10, 10]], **arguments)
    assert found.prediction == ("in detail", found.distribution.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("search", [gbs, genetic, annealing], ids=lambda search: search.__name__)
def test_rows_beyond_what_float64_counts(search):
    pace = np.array([1.0, 2.0, 4.0])

    def predict(distributions):
        assert (distributions.sum(axis=1) == 3 * 2**52).all()
        assert (distributions >= 0).all()
        return (distributions * pace).max(axis=1)

    found = search(predict, [[2**52] * 3], rng=generator())
    assert found.seconds == pytest.approx(3 * 2**52 / (1 / pace).sum(), rel=1e-2)


@pytest.mark.slow
@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 2**32))
@settings(max_examples=60)
def test_exhaustive_against_brute_force(start, seed):
    rows, nodes = sum(start), len(start)
    ways = [x for x in itertools.product(range(rows + 1), repeat=nodes - 1) if sum(x) <= rows]
    if len(ways) > 2000:
        return
    seconds = dict(zip(ways, generator(seed).integers(0, 9, len(ways)), strict=True))
    found = exhaustive(lambda d: np.array([seconds[tuple(x[:-1])] for x in d.tolist()]), [start])
    assert found.evaluations == len(ways) == math.comb(rows + nodes - 1, nodes - 1)
    assert found.seconds == min(seconds.values()) == seconds[tuple(found.distribution[:-1])]
    assert found.reason == "exhausted"


def test_exhaustive_says_how_many_there_are():
    for start, budget, words in [
        ([[10, 0, 0]], 65, "10 rows over 3 nodes have 66 distributions, the budget is 65; use gbs"),
        ([[512] * 8], 10**6, f"have {math.comb(4103, 7)} distributions"),
        ([[2**40] * 1000], 10**6, r"have about 10\*\*\d{5} distributions"),
    ]:
        predict = WatchedPredictor(len(start[0]), sum(start[0]))
        with pytest.raises(PartitionError, match=words):
            exhaustive(predict, start, budget=budget)
        assert not predict.batches
    assert exhaustive(WatchedPredictor(3, 10), [[10, 0, 0]], budget=66).evaluations == 66


def test_exhaustive_predicts_in_batches_of_bounded_memory():
    predict = WatchedPredictor(4, 80)
    found = exhaustive(predict, [[20] * 4], budget=100_000)
    assert found.evaluations == math.comb(83, 3)
    assert max(batch.size for batch in predict.batches) <= 2**16


def test_gbs_gets_out_of_infeasible_starts():
    def one_way(d):
        """Feasible only where nodes 1 and 3 have no rows and node 0 fewer than 100."""
        good = (d[:, [1, 3]] == 0).all(axis=1) & (d[:, 0] < 100)
        return np.where(good, d.max(axis=1) * 0.1, np.inf)

    found = gbs(one_way, [[250] * 4, [1000, 0, 0, 0]], rng=generator())
    assert found.history[0] == (1, np.inf)
    assert found.distribution[[1, 3]].tolist() == [0, 0]
    assert found.seconds == pytest.approx(90.1)


def test_gbs_finds_the_one_feasible_distribution():
    only = np.array([17, 3, 20])
    found = gbs(
        lambda d: np.where((d == only).all(axis=1), 1.0, np.inf), [[40, 0, 0]], rng=generator()
    )
    assert found.distribution.tolist() == only.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_gbs_against_exhaustive(seed):
    """Random programs on two to eight nodes with at most 4,000 distributions."""
    cases = 0
    for number in range(1000 * seed, 1000 * seed + 100):
        if (made := small_program(number)) is None:
            continue
        predict, start, everything = made
        optimum = predict(everything).min()
        found = gbs(predict, start, rng=generator(seed))
        assert found.seconds == optimum or found.seconds <= 1.02 * optimum, f"program {number}"
        cases += 1
    assert cases > 10


# The best known of some pairs, found with 400,000 predictions: out of core a lot, or unequal.
BEST_KNOWN = {
    ("DC", "RNA"): 2.734087,
    ("IO", "CG"): 2.747371,
    ("IO", "RNA"): 3.283729,
    ("HY1", "Jacobi"): 0.324829,
    ("HY1", "RNA"): 2.885774,
    ("HY2", "RNA"): 3.160594,
}
BOUNDS = [(gbs, 1.02), (genetic, 1.05), (annealing, 1.15), (random_search, np.inf)]


@pytest.mark.slow
@pytest.mark.parametrize("pair", BEST_KNOWN, ids=" ".join)
@pytest.mark.parametrize(("search", "bound"), BOUNDS, ids=[s.__name__ for s, _ in BOUNDS])
def test_table_1(search, bound, pair):
    predict, start = table_1(*pair)
    for seed in range(2):
        found = search(predict, start, rng=generator(seed))
        assert found.seconds <= min(bound * BEST_KNOWN[pair], predict(start).min())
        assert found.prediction.distribution.tolist() == found.distribution.tolist()
        assert found.prediction.seconds == pytest.approx(found.seconds, rel=1e-12)


def test_gbs_on_many_nodes():
    pace = generator(1).uniform(0.5, 2.0, 40)
    found = gbs(lambda d: (d * pace).max(axis=1), [[100] * 40], rng=generator())
    assert found.evaluations <= 10_000
    assert found.seconds <= 1.15 * 4000 / (1 / pace).sum()


def test_results_are_values():
    def result(seconds=1.5, prediction=None):
        rows = np.array([2, 3])
        return SearchResult(rows, seconds, 4, ((1, 2.0), (3, 1.5)), "converged", prediction)

    found = result()
    assert found == result() == result(prediction="not compared")
    assert found != result(2.5)
    assert found != "another type"
    assert len({found, result(), result(2.5)}) == 2
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(ValueError, match="read-only"):
        found.distribution[0] = 1
    with pytest.raises(AttributeError):
        found.seconds = 0.0


@given(st.integers(0, 9), st.integers(1, 4))
@settings(max_examples=50)
def test_compositions(rows, nodes):
    everything = Compositions(rows, nodes)
    found = everything[:]
    expected = [x for x in itertools.product(range(rows + 1), repeat=nodes) if sum(x) == rows]
    assert [tuple(x) for x in found.tolist()] == expected
    assert count(rows, nodes, 10_000) == len(everything) == len(expected)
    assert np.array_equal(everything[1:-1], found[1:-1])
    assert count(rows, nodes, len(expected) - 1) == len(expected)


def test_random_compositions_are_uniform():
    drawn = random_compositions(4, 3, 30_000, generator())
    _, times = np.unique(drawn, axis=0, return_counts=True)
    assert times.size == 15
    # 2,000 of each are expected, with a deviation of 43
    assert (abs(times - 2000) < 5 * 43).all()


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 10**6), st.integers(1, 4))
def test_moves_keep_the_rows(seed, nodes, rows, size):
    rng = generator(seed)
    x = random_compositions(rows, nodes, size, rng)
    guides = random_compositions(rows, nodes, 3, rng)
    step = rng.integers(1, rows, size, endpoint=True)
    node, other = rng.integers(0, nodes, (2, 1, 5))
    batches = [
        transfers(x, step, node, other),
        takes_evenly(x, step, np.arange(nodes)),
        gives_evenly(x, step, np.arange(nodes)),
        along(x, step, guides, rows),
        rounded(rng.dirichlet(np.ones(nodes), size) * rows, rows),
    ]
    for batch in batches:
        assert batch.dtype == np.int64
        assert (batch >= 0).all()
        assert (batch.sum(axis=-1) == rows).all()
    for batch in batches[:3]:
        moved = abs(batch - x[:, np.newaxis]).sum(axis=2)
        assert (moved <= 2 * step[:, np.newaxis]).all()


def test_groups_of_the_first_two_four_eight_nodes_grow_or_shrink_together():
    x = np.full((1, 24), 10)
    order = np.random.default_rng(2).permutation(24)[np.newaxis]
    more = _grouped(x, np.array([6]), order, 240)
    assert more.shape == (1, 3, 24)
    assert (more.sum(axis=2) == 240).all()
    for rows, size in zip(more[0], (2, 4, 8), strict=True):
        members = rows[order[0, :size]]
        assert members.min() > rows[order[0, size:]].max()
        # 16 of 240 + 6 size, up to the rounding
        assert np.abs(members - 16 * 240 / (240 + 6 * size)).max() <= 1
    less = _grouped(x, np.array([-20]), order, 240)  # they give all that they have
    assert [(rows > 0).sum() for rows in less[0]] == [22, 20, 16]


@pytest.mark.parametrize("starts", [[[40, 0, 0]], [[0, 0, 40], [0, 40, 0]]])
def test_descents_from_any_start_end_in_the_optimum_where_there_is_one_only(starts):
    def predict(rows):
        return (rows * np.array([1.0, 2.0, 5.0])).max(axis=1)

    seen = begin(predict, starts, np.random.default_rng(1), 10_000)
    _descend_from(seen, np.array(starts), np.array(starts), np.random.default_rng(2))
    every = [(a, b, 40 - a - b) for a in range(41) for b in range(41 - a)]
    assert seen.seconds == predict(np.array(every)).min()


def test_a_descent_leaves_no_better_transfer_of_a_row_whatever_its_first_step():
    def predict(rows):
        return ((rows * np.array([1.0, 2.0, 5.0])) ** 2).sum(axis=1)

    every = [(a, b, 40 - a - b) for a in range(41) for b in range(41 - a)]
    for step in (0, 1, 7):
        for start in ([[0, 0, 40]], [[30, 8, 2]], [[31, 8, 1]]):
            x, guides = np.array(start), np.zeros((0, 3), dtype=np.int64)
            seen = begin(predict, x, np.random.default_rng(1), 10_000)
            descend(seen, x, np.array([step]), guides, np.random.default_rng(2))
            assert seen.seconds == predict(np.array(every)).min()


def test_what_falls_during_annealing_falls_evenly_in_logarithms():
    found = [_falling((8.0, 2.0), spent) for spent in (0.0, 0.5, 1.0)]
    assert found == pytest.approx([8.0, 4.0, 2.0])


def test_the_cost_of_a_descent_counts_its_neighbours():
    for nodes, guides in ((3, 1), (11, 4), (12, 2), (70, 3)):
        x = np.full((1, nodes), 100)
        seen = begin(lambda rows: rows.max(axis=1) * 1.0, x, np.random.default_rng(0), 10_000)
        near, _ = _neighbours(
            seen, x, np.array([8]), np.repeat(x, guides, axis=0), np.random.default_rng(0)
        )
        expected = near.shape[1] * (np.log2(100 * nodes + 2) + 4)
        assert cost(seen, np.repeat(x, guides, axis=0)) == pytest.approx(expected, rel=0.1)


def test_leaving_nodes_out_takes_a_quarter_of_the_budget_at_most():
    x = np.full((1, 60), 10)
    seen = begin(lambda rows: rows.max(axis=1) * 1.0, x, np.random.default_rng(0), 1000)
    try_participants(seen, x, np.random.default_rng(1))
    # the start, each node alone, a quarter and the rest of its last batch, random distributions
    assert 1 + 60 + 250 + 64 <= seen.evaluations <= 1 + 60 + 250 + 60 + 64
