"""Every kind of model against one contract, then what is particular to each."""

import json
import math

import numpy as np
import pytest
import scipy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fpmdask.errors import PartitionError
from fpmdask.models import (
    AkimaModel,
    AnalyticModel,
    ConstantModel,
    PiecewiseLinearModel,
    SurfaceModel,
    TabulatedModel,
    from_json,
)
from fpmdask.models.bank import bank
from tests.conformance import _check_value, check_model

UP_AND_DOWN = ([100, 200, 300, 400], [4.0, 2.0, 6.0, 5.0])

positive = st.floats(1e-3, 1e6)
points = st.lists(st.tuples(positive, st.floats(1e-6, 1e6)), min_size=1, max_size=12)
measured = st.sampled_from([PiecewiseLinearModel, AkimaModel])


@pytest.mark.parametrize(
    "model",
    [
        ConstantModel(7.0),
        PiecewiseLinearModel.from_points([10], [2.0]),
        PiecewiseLinearModel.from_points([10, 1000, 5000], [1.0, 200.0, 9000.0]),
        PiecewiseLinearModel.from_points(*UP_AND_DOWN),
        AkimaModel.from_points([10], [2.0]),
        AkimaModel.from_points([10, 1000, 5000], [1.0, 200.0, 9000.0]),
        AkimaModel.from_points(*UP_AND_DOWN),
        AnalyticModel("linear", 3.0),
        AnalyticModel("nlogn", 3.0),
        AnalyticModel(("power", 2), 3.0),
        AnalyticModel(("power", 0.5), 3.0),
        TabulatedModel([0, 1, 2, 2, 2, 7]),
        TabulatedModel([0.5, 1, 2, 3, math.inf]),
        SurfaceModel.from_points([10, 20, 30], [4, 4, 8], [1, 2, 5]).slice(6),
    ],
    ids=repr,
)
def test_contract(model):
    check_model(model)


def test_contract_of_decreasing_tables():
    check_model(TabulatedModel([0, 3, 2.5, 6, 4, 9, 5, 12, 8]), nondecreasing=False)
    check_model(TabulatedModel([0, math.inf, 2.5, math.inf, 4]), nondecreasing=False)


def test_contract_of_a_callable_complexity():
    model = AnalyticModel(lambda x: x + np.floor(x / 100) * 50, 2.0)
    check_model(model, stored=False)
    assert model.units_within(25.0) == 50.0
    assert model.units_within(60.0) == pytest.approx(100.0)
    with pytest.raises(PartitionError, match="named complexity"):
        model.to_json()
    with pytest.raises(PartitionError, match="element by element"):
        AnalyticModel(lambda x: 1.0, 2.0).time([1.0, 2.0])


@pytest.mark.parametrize("complexity", [lambda x: np.ceil(x / 16), lambda x: np.floor(x / 4)])
def test_contract_of_complexities_with_plateaus(complexity):
    """The end of a plateau is the largest size, wherever the search for it starts."""
    check_model(AnalyticModel(complexity, 1.0), stored=False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PiecewiseLinearModel([1, 2], [1.0], [1, 1]), "2 units, 1 seconds and 2 counts"),
        (lambda: PiecewiseLinearModel([1, 2], [1.0, 2.0], [1]), "2 seconds and 1 counts"),
        (lambda: PiecewiseLinearModel([2, 2], [1.0, 2.0], [1, 1]), "units must increase"),
        (lambda: AkimaModel([1, 2], [1.0, 2.0], [1, 99]), r"counts\[1\] is above"),
        (lambda: TabulatedModel([1.0]), "a table of 1 entries"),
        (lambda: TabulatedModel([0.0, 1.0, -1.0]), r"seconds\[2\] is -1.0; 0 to inf"),
    ],
)
def test_bad_points(make, words):
    with pytest.raises(PartitionError, match=words):
        make()


def test_models_in_short():
    assert repr(PiecewiseLinearModel.from_points([9, 4], [2, 1])) == (
        "<PiecewiseLinearModel: 2 points, 4 to 9 units>"
    )
    assert repr(TabulatedModel([0, 1, 2])) == "<TabulatedModel: 0 to 2 units>"
    assert repr(SurfaceModel.from_points([1, 2], [3, 3], [1, 2])) == (
        "<SurfaceModel: 2 points at 1 widths>"
    )


class TestPiecewise:
    def test_three_insertions(self):
        """Left of all, right of all, between two: the cases of the 2009 paper."""
        model = PiecewiseLinearModel.from_points([100], [1.0])
        left = model.with_point(50, 0.25)
        right = left.with_point(200, 4.0)
        between = right.with_point(150, 2.0)
        np.testing.assert_allclose(model.speed([10, 1000]), [100, 100])
        np.testing.assert_allclose(left.speed([10, 75, 1000]), [200, 150, 100])
        np.testing.assert_allclose(right.speed([150, 1000]), [75, 50])
        np.testing.assert_allclose(between.speed([125, 150, 175]), [87.5, 75, 62.5])
        assert between == PiecewiseLinearModel.from_points(
            [50, 100, 150, 200], [0.25, 1.0, 2.0, 4.0]
        )
        assert model.points[0].tolist() == [100]

    def test_a_size_measured_again(self):
        """The mean of the first four, then a quarter of the difference."""
        model = PiecewiseLinearModel.from_points([10], [1.0])
        for seconds, mean in [(3.0, 2.0), (5.0, 3.0), (7.0, 4.0), (8.0, 5.0), (5.0, 5.0)]:
            model = model.with_point(10, seconds)
            assert model.points[1].tolist() == [pytest.approx(mean)]
        again = from_json(json.loads(json.dumps(model.to_json())))
        assert again.with_point(10, 9.0) == model.with_point(10, 9.0)
        many = PiecewiseLinearModel.from_points([10] * 6, [1.0, 3.0, 5.0, 7.0, 8.0, 5.0])
        assert many == model

    def test_repair_leaves_the_points(self):
        model = PiecewiseLinearModel.from_points(*UP_AND_DOWN)
        assert model.points[1].tolist() == UP_AND_DOWN[1]
        np.testing.assert_allclose(
            model.time([100, 150, 200, 300, 350, 400]), [3, 3, 3] + [5.5] * 3
        )
        assert model.units_within(3.0) == 200.0
        assert model.units_within(5.5) == 400.0

    def test_repair_weighs_measurements(self):
        model = PiecewiseLinearModel.from_points([10, 20], [4.0, 1.0]).with_point(10, 4.0)
        assert model.time(10) == pytest.approx(3.0)

    @pytest.mark.parametrize(
        ("units", "seconds"),
        [
            ([], []),
            ([1, 2], [1]),
            ([0], [1]),
            ([1], [0]),
            ([1], [math.inf]),
            ([math.nan], [1]),
            (["a"], [1]),
            ([[1]], [[1]]),
        ],
    )
    def test_bad_points(self, units, seconds):
        for kind in (PiecewiseLinearModel, AkimaModel):
            with pytest.raises(PartitionError):
                kind.from_points(units, seconds)


@settings(max_examples=60, deadline=None)
@given(points, measured)
@example([(786065.5, 8650.0), (0.0078125, 1.0)], AkimaModel)  # far points, a flat curve
@example([(1e6, 292449.0), (999999.9921875, 272823.0)], PiecewiseLinearModel)  # a steep one
def test_measured_models_keep_the_contract(pairs, kind):
    model = kind.from_points(*zip(*pairs, strict=True))
    units, _ = model.points
    grid = np.unique(np.concatenate([units, np.geomspace(1e-4, 1e7, 100)]))
    seconds = model.time(grid)
    assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all()
    reached = model.units_within(seconds)
    assert (model.time(reached * (1 + 1e-9)) >= seconds * (1 - 1e-12)).all()
    # up to the last digits of the size, which matter beside a cliff that is almost vertical
    assert (model.time(reached * (1 - 1e-14)) <= seconds * (1 + 1e-9)).all()
    assert (model.time(reached * (1 + 1e-14)) >= seconds * (1 - 1e-9)).all()


@settings(max_examples=60, deadline=None)
@given(points)
def test_increasing_times_need_no_repair(pairs):
    """A linear speed between two increasing times has an increasing time."""
    units = np.unique([x for x, _ in pairs])
    seconds = np.cumsum([t for _, t in pairs])[: units.size]
    model = PiecewiseLinearModel.from_points(units, seconds)
    np.testing.assert_allclose(model.time(units), seconds, rtol=1e-12)
    np.testing.assert_allclose(model.units_within(seconds), units, rtol=1e-12)
    fine = np.linspace(units[0], units[-1], 500)
    assert (np.diff(model.time(fine)) >= -1e-12 * seconds[-1]).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(points, min_size=1, max_size=6), st.floats(1e-4, 1e5))
def test_the_bank_agrees_with_the_models(groups, seconds):
    kinds = [PiecewiseLinearModel.from_points(*zip(*g, strict=True)) for g in groups]
    models = [*kinds, ConstantModel(3.0), AnalyticModel("nlogn", 2.0), *kinds[:1]]
    gathered = bank(models)
    expected = [model.units_within(seconds) for model in models]
    np.testing.assert_allclose(gathered.units_within(seconds), expected, rtol=1e-12)
    workers = np.arange(len(models))[::-1]
    units = np.linspace(1, 1e4, workers.size)
    times = [models[i].time(x) for i, x in zip(workers.tolist(), units.tolist(), strict=True)]
    np.testing.assert_allclose(gathered.time(workers, units), times, rtol=1e-12)
    narrow = gathered.narrowed(seconds / 2, seconds * 2)
    np.testing.assert_array_equal(narrow.units_within(seconds), gathered.units_within(seconds))
    assert np.isposinf(gathered.units_within(math.inf)).all()


def test_akima_passes_through_its_points_and_is_smooth():
    units = np.array([10.0, 20.0, 35.0, 60.0, 100.0])
    model = AkimaModel.from_points(units, units**1.5)
    np.testing.assert_allclose(model.time(units), units**1.5)
    inner = np.linspace(20, 60, 50)
    np.testing.assert_allclose(model.time(inner), inner**1.5, rtol=0.02)
    edge = np.array([35 - 1e-6, 35.0, 35 + 1e-6])
    left, right = np.diff(model.time(edge)) / 1e-6
    assert left == pytest.approx(right, rel=1e-3)


class TestTables:
    def test_the_last_crossing_counts(self):
        model = TabulatedModel([0, 3, 2.5, 6, 4, 9])
        assert model.units_within([2.5, 4.0, 5.0, 100.0]).tolist() == [2.0, 4.0, 4.2, 5.0]
        assert not model.nondecreasing

    def test_inf_is_never_reached(self):
        model = TabulatedModel([0, 1, math.inf, 3, math.inf])
        assert model.units_within(math.inf) == 3.0
        assert model.time([1.0, 1.5, 3.0, 9.0]).tolist() == [1.0, math.inf, 3.0, math.inf]

    def test_cost_of_nothing(self):
        model = TabulatedModel([2.0, 3.0])
        assert model.time(0) == 2.0
        assert model.units_within(1.0) == 0.0
        assert model.speed(0) == 0.0

    @pytest.mark.parametrize(
        "seconds", [[], [0.0], [0, -1], [0, math.nan], None, 3, "ab", [[0, 1]], ["0", "1"]]
    )
    def test_bad_tables(self, seconds):
        with pytest.raises(PartitionError):
            TabulatedModel(seconds)


@pytest.mark.parametrize("speed", [0, -1, math.nan, math.inf, "x", "3", True, None, [1]])
def test_bad_speeds(speed):
    with pytest.raises(PartitionError):
        ConstantModel(speed)
    with pytest.raises(PartitionError):
        AnalyticModel("linear", speed)


@pytest.mark.parametrize("complexity", ["cubic", ("power", 0), ("power", "2"), ("power",), 3, None])
def test_bad_complexities(complexity):
    with pytest.raises(PartitionError):
        AnalyticModel(complexity, 1.0)


@pytest.mark.parametrize("value", [-1.0, math.nan, "1"])
def test_a_complexity_that_returns_no_number_of_operations(value):
    model = AnalyticModel(lambda x: np.full(x.shape, value), 1.0)
    with pytest.raises(PartitionError, match="the complexity returned"):
        model.time(3)


def test_the_first_size_without_a_number_of_operations_is_named():
    """0 is one."""
    model = AnalyticModel(lambda x: np.where(x < 5, 0.0, -x), 1.0)
    assert model.time(3) == 0
    with pytest.raises(PartitionError, match=r"returned -7\.0 for 7 units"):
        model.time([3, 7, 9])


def test_points_that_make_no_speed():
    with pytest.raises(PartitionError, match="no speed"):
        PiecewiseLinearModel.from_points([1e-300, 1e-290], [1e300, 1e308])


def test_akima_curves_are_akimas_with_limited_slopes():
    rng = np.random.default_rng(4)
    for size in (1, 2, 3, 5, 9, 30):
        units = np.cumsum(rng.uniform(1, 9, size))
        # cliffs and plateaus, where Akima's own slopes would make the curve turn down
        seconds = np.cumsum(10 ** rng.uniform(-3, 3, size) * rng.integers(0, 2, size)) + 1e-3
        x, t = np.append(0.0, units), np.append(0.0, seconds)
        secants = np.diff(t) / np.diff(x)
        if size == 1:
            slopes = secants.repeat(2)
        else:
            slopes = scipy.interpolate.Akima1DInterpolator(x, t).derivative()(x)
        limits = [3 * secants[max(i - 1, 0) : i + 1].min() for i in range(size + 1)]
        curve = scipy.interpolate.CubicHermiteSpline(x, t, np.clip(slopes, 0.0, limits))
        grid = np.linspace(units[0], units[-1], 500)
        model = AkimaModel.from_points(units, seconds)
        np.testing.assert_allclose(model.time(grid), curve(grid), rtol=1e-9, atol=1e-9)


class TestSurface:
    surface = SurfaceModel.from_points(
        [10, 20, 40, 10, 30, 20], [4, 4, 4, 8, 8, 16], [1, 2, 6, 4, 14, 20]
    )

    def test_speed_per_area_is_linear_between_widths(self):
        assert self.surface.time(10, 4) == 1.0
        assert self.surface.time(10, 8) == 4.0
        assert self.surface.time(10, 6) == pytest.approx(60 / ((40 + 20) / 2))
        assert self.surface.time(10, 2) == pytest.approx(0.5)
        assert self.surface.time(20, 160) == pytest.approx(200.0)
        assert self.surface.time(0, 5) == 0.0
        with pytest.raises(PartitionError, match="do not broadcast"):
            self.surface.time([1, 2], [1, 2, 3])

    def test_points_are_sorted_by_width_then_height(self):
        mixed = SurfaceModel.from_points([20, 10, 10], [4, 8, 4], [2, 4, 1])
        assert [p.tolist() for p in mixed.points] == [[10, 20, 10], [4, 4, 8], [1, 2, 4]]

    def test_slices_are_the_surface(self):
        heights = np.geomspace(1, 100, 40)
        for width in (1, 4, 5.5, 8, 11, 16, 50):
            piece = self.surface.slice(width)
            np.testing.assert_allclose(
                piece.time(heights), self.surface.time(heights, width), rtol=1e-9
            )

    def test_arrays_broadcast(self):
        assert self.surface.time(np.ones((3, 1)), np.ones(4)).shape == (3, 4)

    def test_is_a_value(self):
        _check_value(self.surface, stored=True)
        more = self.surface.with_point(10, 4, 3.0)
        assert more.time(10, 4) == 2.0
        assert more != self.surface

    @pytest.mark.parametrize("points", [([], [], []), ([1], [1, 2], [1]), ([1], [0], [1])])
    def test_bad_points(self, points):
        with pytest.raises(PartitionError):
            SurfaceModel.from_points(*points)

    @pytest.mark.parametrize("width", [0, -1, math.nan, math.inf])
    def test_bad_slices(self, width):
        with pytest.raises(PartitionError):
            self.surface.slice(width)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "other"}, "not a stored model"),
        ({"version": 2}, "version 2.*newer fpmdask"),
        ({"version": 0}, "version 0.*measure again"),
        ({"version": True}, "version True"),
        ({"kind": ["constant"]}, "unknown kind"),
        ({"kind": "spline"}, "'spline'"),
        ({"units_per_second": -1.0}, "speed"),
    ],
)
def test_foreign_files_are_refused(change, match):
    with pytest.raises(PartitionError, match=match):
        from_json(ConstantModel(1.0).to_json() | change)


def test_damaged_files_are_refused():
    stored = ConstantModel(1.0).to_json()
    del stored["units_per_second"]
    with pytest.raises(PartitionError, match="not found"):
        from_json(stored)
    with pytest.raises(PartitionError, match="not a stored model"):
        from_json([1])
