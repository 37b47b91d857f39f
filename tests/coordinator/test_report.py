"""Reading saved reports: the same again, and files that are none."""

import json

import pytest

from fpmdask.errors import CoordinatorError
from fpmdask.runtime.report import Report
from tests.cli.conftest import measured_run


def test_a_report_comes_back_as_it_was_saved(tmp_path):
    report = measured_run()
    report.save(tmp_path / "run.json")
    assert Report.load(tmp_path / "run.json").to_json() == report.to_json()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.pop("log"), "lacks the run's log: .* save it again"),
        (lambda data: data.update(version=2), "version 2"),
        (lambda data: data.update(rounds=[{"x": 1}]), "is damaged"),
        (lambda data: data.update(models=3), "is damaged"),
        (lambda data: data.update(distribution=["many"]), "is damaged"),
        (lambda data: data["models"].update(alpha=3), "not a stored model"),
    ],
)
def test_files_that_are_no_report_are_refused_with_their_name(tmp_path, change, said):
    data = measured_run().to_json()
    change(data)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CoordinatorError, match=said) as refused:
        Report.load(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("content", ["{", "[" * 100_000])
def test_files_that_are_not_json_are_refused_with_their_name(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(CoordinatorError) as refused:
        Report.load(path)
    assert str(path) in str(refused.value)
