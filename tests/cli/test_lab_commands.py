"""`fpmdask lab` and `fpmdask doctor`: what they print of what fpmdask.lab says."""

import json

import pytest

import fpmdask.lab
from fpmdask.errors import LabError
from fpmdask.lab import Check, LabState, LabStatus, WorkerStatus

STATE = LabState(
    "mine", "abc", "duty-cycle", "boot", "/nowhere", None, "tcp://127.0.0.1:1", notes=("a: slow",)
)
STATUS = LabStatus(
    "mine",
    "up",
    "duty-cycle",
    "tcp://127.0.0.1:1",
    None,
    "/nowhere",
    (WorkerStatus("a", 11, True, 0.5), WorkerStatus("b", 12, False, None)),
    ("a: slow",),
)


def test_up_says_where(fpm, monkeypatch):
    asked = []

    def start(definition, **options):
        asked.append((definition, options))
        return STATE

    monkeypatch.setattr(fpmdask.lab, "up", start)
    result = fpm("lab", "up", "demo4", "--name", "mine", "--backend", "duty-cycle")
    assert result.stdout == "mine is up (duty-cycle): tcp://127.0.0.1:1\n"
    assert result.stderr == "note: a: slow\n"
    assert asked == [("demo4", {"name": "mine", "backend": "duty-cycle"})]
    answer = json.loads(fpm("lab", "up", "demo4", "--json").stdout)
    assert answer["scheduler_address"] == "tcp://127.0.0.1:1"


def test_up_refuses_unknown_definitions(fpm):
    result = fpm("lab", "up", "no-such-lab")
    assert result.exit_code == 1
    assert "hcl6" in result.stderr
    assert fpm("lab", "up", "demo4", "--backend", "magic").exit_code == 2


def test_status_lists_labs_and_workers(fpm, monkeypatch):
    monkeypatch.setattr(fpmdask.lab, "status", lambda: (STATUS,))
    shown = fpm("lab", "status").stdout.splitlines()
    assert shown[0] == "mine: up (duty-cycle), tcp://127.0.0.1:1"
    assert shown[2].split() == ["a", "11", "0.5"]
    assert shown[3].split() == ["b", "12", "all", "dead"]
    assert json.loads(fpm("lab", "status", "--json").stdout)[0]["name"] == "mine"
    monkeypatch.setattr(fpmdask.lab, "status", tuple)
    assert "no lab is up" in fpm("lab", "status").stdout


def test_down_says_what_went(fpm, monkeypatch):
    monkeypatch.setattr(fpmdask.lab, "down", lambda name: (STATE,) if name else ())
    assert fpm("lab", "down", "mine").stdout == "down: mine\n"
    assert fpm("lab", "down").stdout == "no lab was up\n"
    assert json.loads(fpm("lab", "down", "mine", "--json").stdout) == {"down": ["mine"]}

    def refuse(name):
        raise LabError("no lab named 'x' is recorded")

    monkeypatch.setattr(fpmdask.lab, "down", refuse)
    assert fpm("lab", "down", "x").exit_code == 1


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 3)])
def test_the_doctor_names_cures_and_exits_with_3(fpm, monkeypatch, ok, code):
    checks = (Check("root", True, "root"), Check("tools", ok, "no tc", "" if ok else "get tc"))
    monkeypatch.setattr(fpmdask.lab, "doctor", lambda: checks)
    result = fpm("doctor")
    assert result.exit_code == code
    assert ("tools: get tc" in result.stdout) is not ok
    answer = fpm("doctor", "--json")
    assert answer.exit_code == code
    assert [check["ok"] for check in json.loads(answer.stdout)] == [True, ok]
