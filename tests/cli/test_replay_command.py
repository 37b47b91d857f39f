"""`fpmdask replay`: saved runs in, differences and the exit code out."""

import json
from dataclasses import replace

import pytest

from tests.cli.conftest import address, given_run, measured_run


def tamper(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def slow_down(data):
    first = next(e for e in data["log"]["events"] if e["event"] == "answered")
    first["seconds"] *= 2


def test_the_same_decisions(fpm, run_log):
    result = fpm("replay", run_log)
    assert result.exit_code == 0
    assert "the same decisions" in result.stdout


def test_a_run_with_a_loss(fpm, tmp_path):
    measured_run(leaves="gamma").save(tmp_path / "run.json")
    result = fpm("replay", tmp_path / "run.json", "--json")
    assert json.loads(result.stdout)["differences"] == []
    assert result.exit_code == 0


def test_a_tampered_log_differs_and_says_where(fpm, run_log):
    tamper(run_log, slow_down)
    result = fpm("replay", run_log)
    assert result.exit_code == 3
    assert "event 5: answered worker delta, round 1" in result.stdout
    assert "logged: measure round 2: alpha" in result.stdout
    assert address("alpha") not in result.stdout
    answer = json.loads(fpm("replay", run_log, "--json").stdout)
    assert answer["differences"][0]["number"] == 5


def one_unit_moved(name):
    def change(data):
        data[name][0] += 1
        data[name][1] -= 1

    return change


def cut(data):
    del data["log"]["events"][-1]


@pytest.mark.parametrize(
    ("change", "what", "said"),
    [
        (one_unit_moved("distribution"), ["distribution"], "alpha"),
        (one_unit_moved("proposal"), ["proposal"], "alpha"),
        (lambda data: data.update(reason="stagnant"), ["reason"], "report:  stagnant"),
        (lambda data: data["rounds"].pop(), ["rounds"], "rounds"),
        (cut, ["rounds", "conclusion"], "its log: none, it ends before"),
    ],
)
def test_a_report_that_its_log_contradicts(fpm, run_log, change, what, said):
    tamper(run_log, change)
    result = fpm("replay", run_log)
    assert result.exit_code == 3
    assert "the same decisions, but the report says something else" in result.stdout
    assert said in result.stdout
    answer = fpm("replay", run_log, "--json")
    assert answer.exit_code == 3
    found = json.loads(answer.stdout)
    assert found["differences"] == []
    assert [one["what"] for one in found["contradictions"]] == what


def test_a_cancelled_run_ends_before_a_conclusion(fpm, run_log):
    def cancel(data):
        events = data["log"]["events"]
        del events[len(events) // 2 :]
        rounds = {task["round"] for e in events for task in e["decided"]}
        data.update(rounds=data["rounds"][: max(rounds) - 1], reason="given", models={})
        data.update({name: [] for name in ("workers", "addresses", "distribution", "proposal")})
        data.update(seconds=[], shares=[])

    tamper(run_log, cancel)
    result = fpm("replay", run_log)
    assert result.exit_code == 0
    assert "the run and its log end before a conclusion" in result.stdout
    assert json.loads(fpm("replay", run_log, "--json").stdout)["concluded"] is False


@pytest.mark.parametrize("reason", ["given", "known"])
def test_a_run_that_measured_nothing_has_nothing_to_replay(fpm, tmp_path, reason):
    replace(given_run(), reason=reason).save(tmp_path / "run.json")
    result = fpm("replay", tmp_path / "run.json")
    assert result.exit_code == 0
    assert "nothing to replay" in result.stdout
    result = fpm("partition", tmp_path / "run.json", "--units", 5)
    assert result.exit_code == 1
    assert "measured nothing" in result.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(version=2), "version 2"),
        (lambda data: data.update(format="else"), "no fpmdask.run log"),
        (lambda data: data.pop("rounds"), "lacks the run's rounds"),
        (lambda data: data.update(rounds=[{"x": 1}]), "is damaged"),
        (lambda data: data["log"].pop("events"), "no events"),
        (lambda data: data["log"]["events"][2].pop("seconds"), "event 3"),
        (lambda data: data["log"]["header"].pop("scout"), "'scout' is missing"),
        (lambda data: data["log"]["header"].update(epsilon="0.1"), "epsilon is '0.1'"),
        (lambda data: data.update(log=None), "its log is missing"),
        (lambda data: data.update(log=5), "no header"),
    ],
)
def test_other_files_are_refused(fpm, run_log, change, said):
    tamper(run_log, change)
    result = fpm("replay", run_log)
    assert result.exit_code == 1
    assert said in result.stderr
    assert str(run_log) in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("content", ['{"format"', "[" * 100_000, "{'a': 1}"])
def test_files_that_are_not_json(fpm, tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    for command in (["replay"], ["partition", "--units", 5]):
        result = fpm(*command, tmp_path / "run.json")
        assert result.exit_code == 1
        assert f"{tmp_path / 'run.json'} is not JSON" in result.stderr
        assert result.stdout == ""


def test_missing_files(fpm, tmp_path):
    assert fpm("replay", tmp_path / "none.json").exit_code == 1
    assert fpm("replay", tmp_path).exit_code == 1
