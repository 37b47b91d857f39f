"""What every model, partitioner, layout and search promises; any implementation can be checked."""

import json
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.layout import Layout
from fpmdask.mheta.search import SearchResult
from fpmdask.models import Model, from_json

BAD_UNITS = [0, -1, 1.5, float("nan"), float("inf"), "3", True, None, 2.0**60]


def check_model(model: Model, *, nondecreasing: bool = True, stored: bool = True) -> None:
    """Check a one-dimensional model against the contract of `fpmdask.models.Model`.

    `nondecreasing` says whether more units never take less time, `stored` whether `to_json` works.
    """
    _check_shapes(model)
    _check_inverse(model, nondecreasing)
    _check_speed_at_the_ends(model)
    _check_value(model, stored)
    for method in (model.time, model.speed, model.units_within):
        for bad in (-1.0, float("nan"), "x", [1.0, -1.0]):
            with pytest.raises(PartitionError):
                method(bad)


def _check_shapes(model: Model) -> None:
    for method in (model.time, model.speed, model.units_within):
        assert isinstance(method(2), float)
        assert isinstance(method(np.float64(2.0)), float)
        grid = np.array([[0.0, 1.0], [2.5, np.inf]])
        result = method(grid)
        assert result.shape == grid.shape
        assert result.dtype == np.float64
        assert not np.isnan(result).any()
        assert method(grid[1, 0]) == result[1, 0]
        assert method([]).shape == (0,)


def _check_inverse(model: Model, nondecreasing: bool) -> None:
    most = min(model.units_within(np.inf), 1e6)
    units = np.unique(np.concatenate([np.arange(30.0), np.geomspace(1e-3, most, 200)]))
    units = units[units <= most]
    seconds = model.time(units)
    assert (seconds >= 0).all()
    positive = (units > 0) & (seconds > 0) & np.isfinite(seconds)
    np.testing.assert_allclose(
        model.speed(units)[positive], units[positive] / seconds[positive], rtol=1e-9
    )
    finite = np.isfinite(seconds)
    reached = model.units_within(seconds[finite])
    assert (reached >= units[finite] * (1 - 1e-9)).all(), "the largest, so never below"
    within = model.time(reached[np.isfinite(reached)])
    assert (within <= seconds[finite][np.isfinite(reached)] * (1 + 1e-9) + 1e-300).all()
    assert (np.diff(model.units_within(np.geomspace(1e-9, 1e9, 300))) >= 0).all()
    if nondecreasing:
        assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all()


def _check_speed_at_the_ends(model: Model) -> None:
    """Check that the speeds of no units and of infinitely many are the limits."""
    at_zero, near = model.speed(0.0), model.speed(1e-12)
    if at_zero == 0:
        assert near <= 1e-3 * model.speed(1.0)
    elif at_zero == np.inf:
        assert near > 1e3 * model.speed(1.0) or near == np.inf
    else:
        assert at_zero == pytest.approx(near, rel=1e-6)
    at_infinity, far = model.speed(np.inf), model.speed(1e15)
    if at_infinity == 0:
        assert far <= 0.1 * model.speed(1.0)
    elif at_infinity == np.inf:
        assert far > 1e3 * model.speed(1.0)
    else:
        assert at_infinity == pytest.approx(far, rel=1e-6)


def _check_value(model: Any, stored: bool) -> None:
    assert model == model
    assert model != object()
    if stored:
        other = from_json(json.loads(json.dumps(model.to_json(), allow_nan=False)))
        copied = pickle.loads(pickle.dumps(model))
        for twin in (other, copied):
            assert twin == model
            assert hash(twin) == hash(model)
            for name, value in twin._state().items():
                if isinstance(value, np.ndarray):
                    with pytest.raises(ValueError, match="read-only"):
                        value[0] = 1.0
                with pytest.raises(AttributeError):
                    setattr(twin, name, value)


def check_partitioner(
    partition: Callable[..., np.ndarray], workers: Callable[[int], Sequence[Any]]
) -> None:
    """Check ``partition(units, workers(p), limits)`` against the contract of distributions."""
    for count, units in [(1, 1), (3, 2), (3, 7), (5, 1000), (4, 1e9)]:
        shares = partition(units, workers(count), None)
        check_distribution(shares, units, count)
        np.testing.assert_array_equal(shares, partition(units, workers(count), None))
    for bad in BAD_UNITS:
        with pytest.raises(PartitionError, match="units"):
            partition(bad, workers(2), None)
    with pytest.raises(PartitionError, match="worker"):
        partition(3, workers(0), None)
    shares = partition(1000, workers(4), [10, None, np.inf, 0])
    check_distribution(shares, 1000, 4)
    assert shares[0] <= 10
    assert shares[3] == 0
    assert partition(10, workers(3), [2, 3, 5]).tolist() == [2, 3, 5]
    with pytest.raises(PartitionError, match=r"11 units.* 10, 1 too few"):
        partition(11, workers(3), [2, 3, 5])
    for bad_limits in ([1, 2], [1, 2, -1], [1, 2, np.nan], ["a", 1, 2], 5):
        with pytest.raises(PartitionError, match="limits"):
            partition(3, workers(3), bad_limits)


def check_distribution(shares: np.ndarray, units: float, workers: int) -> None:
    """Check that `shares` is a distribution of `units` over `workers`."""
    assert isinstance(shares, np.ndarray)
    assert shares.dtype == np.int64
    assert shares.shape == (workers,)
    assert (shares >= 0).all()
    assert int(shares.sum()) == units


def check_layout(
    layout: Layout, workers: int, limits: Sequence[float | None] | None = None
) -> None:
    """Check that a layout gives every block to one worker, within limits, and counts it right."""
    rows, columns = layout.shape
    owners = np.zeros(layout.shape, dtype=int)
    assert len(layout.zones) == workers
    sides = 0
    for worker, zone in enumerate(layout.zones):
        blocks = 0
        for r in zone:
            assert all(type(v) is int for v in (r.top, r.left, r.height, r.width))
            assert (r.height > 0) == (r.width > 0)
            assert 0 <= r.top <= r.top + r.height <= rows
            assert 0 <= r.left <= r.left + r.width <= columns
            owners[r.top : r.top + r.height, r.left : r.left + r.width] += 1
            blocks += r.height * r.width
        downs = {i for r in zone for i in range(r.top, r.top + r.height)}
        rights = {j for r in zone for j in range(r.left, r.left + r.width)}
        sides += len(downs) + len(rights)
        assert blocks == layout.areas[worker]
        if limits is not None and (most := limits[worker]) is not None:
            assert blocks <= most
    assert (owners == 1).all()
    assert layout.volume == sides
    assert layout.half_perimeter >= layout.lower_bound * (1 - 1e-12)
    assert "<svg" in layout._repr_html_()
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert hash(pickle.loads(pickle.dumps(layout))) == hash(layout)
    for value, name in [(layout, "zones"), *((r, "top") for zone in layout.zones for r in zone)]:
        with pytest.raises(AttributeError):
            setattr(value, name, None)


class WatchedPredictor:
    """A predictor of seconds with cliffs and infeasible distributions that keeps its batches."""

    def __init__(self, nodes: int, rows: int, infeasible: Sequence[Sequence[int]] = ()) -> None:
        self.batches: list[np.ndarray] = []
        self._pace = 1.0 + np.arange(nodes) % 3
        self._memory = rows / nodes + np.arange(nodes) % 2
        self._infeasible = np.array(infeasible, dtype=np.int64).reshape(-1, nodes)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return the largest node's seconds; more rows than the memory holds cost 5 s."""
        assert rows.dtype == np.int64
        assert rows.ndim == 2
        self.batches.append(rows.copy())
        seconds = (rows * self._pace + 5.0 * (rows > self._memory)).max(axis=1)
        found = (rows[:, np.newaxis] == self._infeasible).all(axis=2).any(axis=1)
        return np.where(found, np.inf, seconds)


SEARCH_CASES = {
    "three nodes": [[12, 0, 0], [4, 4, 4], [6, 6, 0], [4, 4, 4]],
    "two nodes": [[0, 41], [41, 0]],
    "five nodes": [[1, 2, 1, 1, 1]],
    "one node": [[7]],
    "no rows": [[0, 0, 0]],
    "many starts": [[k, 150 - k] for k in range(151)],
}


def check_search(search: Callable[..., SearchResult], *, complete: bool = False) -> None:
    """Check ``search(predict, start, *, rng, budget)`` against the contract of searches.

    `complete` says that it predicts every distribution and refuses a smaller budget.
    """
    for starts in SEARCH_CASES.values():
        start = np.array(starts)
        for infeasible in ([], starts):
            _check_result(search, start, infeasible, 10_000)
        distinct = len({tuple(x) for x in starts})
        if not complete:
            for budget in (distinct, distinct + 1, distinct + 40):
                _check_result(search, start, [], budget)
    _check_search_arguments(search)


def _check_result(
    search: Callable[..., SearchResult],
    start: np.ndarray,
    infeasible: Sequence[Sequence[int]],
    budget: int,
) -> None:
    rows, nodes = int(start[0].sum()), start.shape[1]
    predict = WatchedPredictor(nodes, rows, infeasible)
    found = search(predict, start, rng=np.random.default_rng(3), budget=budget)
    first, everything = predict.batches[0], np.concatenate(predict.batches)
    assert {tuple(x) for x in first} == {tuple(x) for x in start}, "the starts are the first batch"
    distinct = {tuple(x) for x in everything}
    assert len(distinct) == len(everything) == found.evaluations <= budget, "each only once"
    check_distribution(found.distribution, rows, nodes)
    assert not found.distribution.flags.writeable
    assert (everything >= 0).all()
    assert (everything.sum(axis=1) == rows).all()
    seconds = predict(everything)
    assert found.seconds == seconds.min() == predict(found.distribution[np.newaxis])[0]
    best = np.minimum.accumulate(seconds)
    better = np.append(True, best[1:] < best[:-1])
    assert found.history == tuple((int(k) + 1, float(best[k])) for k in np.flatnonzero(better)), (
        "each improvement when it came"
    )
    assert tuple(everything[np.flatnonzero(better)[-1]]) == tuple(found.distribution)
    count = math.comb(rows + nodes - 1, nodes - 1)
    spent = "budget" if found.evaluations == budget else "converged"
    assert found.reason == ("exhausted" if found.evaluations == count else spent)
    assert found.prediction is None
    predict = WatchedPredictor(nodes, rows, infeasible)
    again = search(predict, start.tolist(), rng=np.random.default_rng(3), budget=float(budget))
    assert again == found, "same input and seed, same result"
    assert hash(again) == hash(found)


def _check_search_arguments(search: Callable[..., SearchResult]) -> None:
    good = {"start": [[2, 1], [1, 2]], "rng": np.random.default_rng(0), "budget": 10_000}
    for bad, words in [
        ({"start": [2, 1]}, "start has the shape"),
        ({"start": []}, "start has the shape"),
        ({"start": np.zeros((0, 2))}, "at least one distribution"),
        ({"start": np.zeros((2, 0))}, "at least one node"),
        ({"start": [[2, 1], [3]]}, "start"),
        ({"start": [[2, 1], [-1, 4]]}, "node 0 has -1 rows"),
        ({"start": [[2, 1], [1.5, 1.5]]}, r"node 0 has 1\.5 rows"),
        ({"start": [["a", "b"]]}, "whole numbers of rows"),
        ({"start": [[0, 2**52 + 1]]}, r"node 1 has 4503599627370497 rows; 0 to 2\*\*52"),
        ({"start": np.full((1, 300), 2.0**52)}, r"start has \d+ rows in sum; at most 2\*\*60"),
        ({"start": [[2, 1], [2, 2]]}, r"start\[1\] has 4 rows in sum, start\[0\] has 3"),
        ({"budget": 0}, "budget"),
        ({"budget": 2.5}, "budget"),
        ({"budget": "many"}, "budget"),
        ({"budget": True}, "budget"),
        ({"budget": 1}, "budget is 1 for 2 distinct starts"),
    ]:
        predict = WatchedPredictor(2, 3)
        arguments = {**good, **bad}
        with pytest.raises(PartitionError, match=words):
            search(predict, arguments.pop("start"), **arguments)
        assert not predict.batches, "refused before anything is predicted"
    for predictor, words in [
        (None, "predict is None"),
        (lambda rows: rows, r"predict returned int64 values of shape \(2, 2\)"),
        (lambda rows: np.zeros(7), r"shape \(7,\) for 2 distributions"),
        (lambda rows: ["x"] * len(rows), "predict returned"),
        (lambda rows: [[1.0], 2.0], "predict returned no array of seconds"),
        (lambda rows: np.full(len(rows), np.nan), r"predict returned nan s for \[2, 1\]"),
        (lambda rows: -np.ones(len(rows)), r"predict returned -1\.0 s"),
    ]:
        with pytest.raises(PartitionError, match=words):
            search(predictor, good["start"], rng=good["rng"])
