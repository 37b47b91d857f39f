"""`fpmdask partition`: stored models in, shares out, without a cluster."""

import json

import pytest

from fpmdask.models import (
    AnalyticModel,
    ConstantModel,
    PiecewiseLinearModel,
    SurfaceModel,
    TabulatedModel,
)

SURFACE = SurfaceModel.from_points([1, 1, 2, 2], [1, 2, 1, 2], [1.0, 2.0, 2.0, 4.0])


@pytest.fixture
def models(tmp_path):
    def write(**models):
        path = tmp_path / "models.json"
        path.write_text(json.dumps({name: model.to_json() for name, model in models.items()}))
        return path

    return write


def test_units_go_in_proportion_to_constant_speeds(fpm, models):
    path = models(slow=ConstantModel(1.0), fast=ConstantModel(3.0))
    answer = json.loads(fpm("partition", path, "--units", "1e3", "--json").stdout)
    assert answer["distribution"] == {"slow": 250, "fast": 750}
    assert answer["seconds"] == {"slow": 250.0, "fast": 250.0}
    assert (answer["units"], answer["makespan"], answer["imbalance"]) == (1000, 250.0, 0.0)


def test_people_get_columns(fpm, models):
    path = models(slow=ConstantModel(1.0), fast=ConstantModel(3.0))
    lines = fpm("partition", path, "--units", 1000).stdout.splitlines()
    assert lines[0].split() == ["worker", "units", "seconds", "units/s"]
    assert lines[2].split() == ["fast", "750", "250", "3"]
    assert lines[-1] == "1000 units in 250 s, imbalance 0"


def test_limits_hold_and_unlike_models_mix(fpm, models):
    path = models(
        a=AnalyticModel("nlogn", 50.0),
        b=PiecewiseLinearModel.from_points([100, 500], [1.0, 20.0]),
        c=ConstantModel(100.0),
    )
    result = fpm(
        "partition", path, "--units", 2000, "--limit", "c=900", "--limits", "b=10", "--json"
    )
    answer = json.loads(result.stdout)
    assert answer["distribution"] == {"a": 1090, "b": 10, "c": 900}


def test_tables_whose_times_decrease_are_split_exactly(fpm, models):
    path = models(
        a=TabulatedModel([0, 3, 2.5, 6, 4, 9, 5, 12, 8]),
        b=TabulatedModel([0, 2, 5, 3, 8, 7, 9, 6, 20]),
        c=TabulatedModel([0, 1, 4, 4.5, 4.4, 10, 11, 12, 13]),
    )
    answer = json.loads(fpm("partition", path, "--units", 12, "--json").stdout)
    assert answer["makespan"] == 5


def test_a_run_log_brings_its_models(fpm, run_log):
    answer = json.loads(fpm("partition", run_log, "--units", 4000, "--json").stdout)
    assert set(answer["distribution"]) == {"alpha", "beta", "gamma", "delta"}
    assert answer["imbalance"] < 0.01


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no models by worker"),
        ("{}", "holds no models by worker"),
        (json.dumps(ConstantModel(1.0).to_json()), "holds no models by worker"),
        ('{"a": 3}', "not a stored model"),
        (json.dumps({"a": ConstantModel(1.0).to_json() | {"version": 9}}), "version 9"),
        (
            json.dumps({"a": SURFACE.to_json()}),
            "surface.slice",
        ),
        ('{"format": "fpmdask.run", "version": 9}', "version 9"),
        ('{"format": "fpmdask.run", "version": 1}', "lacks"),
    ],
)
def test_bad_files_are_refused(fpm, tmp_path, content, said):
    path = tmp_path / "models.json"
    path.write_text(content)
    result = fpm("partition", path, "--units", 10)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("units", ["0", "-3", "2.5", "nan", "inf"])
def test_bad_units_are_refused(fpm, models, units):
    result = fpm("partition", models(a=ConstantModel(1.0)), f"--units={units}")
    assert result.exit_code == 1
    assert "units must be" in result.stderr


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("--units=many", 2),
        ("--limit=a", 2),
        ("--limit==3", 2),
        ("--limit=a=few", 2),
    ],
)
def test_bad_options_are_refused(fpm, models, option, code):
    result = fpm("partition", models(a=ConstantModel(1.0)), "--units", 10, option)
    assert result.exit_code == code
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--limit=b=3", "no model of b; limits are for a"),
        ("--limit=a=3", "do not fit"),
        ("--limit=a=nan", "the limit of a is nan"),
        ("--limit=a=-1", "the limit of a is -1"),
    ],
)
def test_bad_limits_are_refused_with_the_file(fpm, models, option, said):
    path = models(a=ConstantModel(1.0))
    result = fpm("partition", path, "--units", 10, option)
    assert result.exit_code == 1
    assert f"Error: {path}: " in result.stderr
    assert said in result.stderr


def test_two_limits_of_one_worker_are_refused(fpm, models):
    path = models(a=ConstantModel(1.0))
    result = fpm("partition", path, "--units", 10, "--limit", "a=15", "--limit", "a=17")
    assert result.exit_code == 2
    assert "a has two limits" in result.stderr


@pytest.mark.parametrize(
    "stored",
    ["3", json.dumps(ConstantModel(1.0).to_json() | {"version": 9})],
    ids=["no model", "another version"],
)
def test_a_model_that_cannot_be_read_is_named_with_its_file(fpm, tmp_path, stored):
    path = tmp_path / "models.json"
    path.write_text(f'{{"good": {json.dumps(ConstantModel(1.0).to_json())}, "bad": {stored}}}')
    result = fpm("partition", path, "--units", 10)
    assert result.exit_code == 1
    assert f"the model of bad in {path}: " in result.stderr


def test_a_missing_file(fpm, tmp_path):
    result = fpm("partition", tmp_path / "nothing.json", "--units", 10)
    assert result.exit_code == 1
    assert "nothing.json: No such file or directory; check the path" in result.stderr
