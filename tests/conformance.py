"""What every model and every partitioner promises; any implementation can be checked."""

import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fpmdask.errors import PartitionError
from fpmdask.layout import Layout
from fpmdask.models import Model, from_json

BAD_UNITS = [0, -1, 1.5, float("nan"), float("inf"), "3", True, None, 2.0**60]


def check_model(model: Model, *, nondecreasing: bool = True, stored: bool = True) -> None:
    """Check a one-dimensional model against the contract of `fpmdask.models.Model`.

    `nondecreasing` says whether more units never take less time, `stored` whether `to_json` works.
    """
    _check_shapes(model)
    _check_inverse(model, nondecreasing)
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
