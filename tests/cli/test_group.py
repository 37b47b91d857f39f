"""What all commands have in common: help, version, errors, exit codes, a cheap import."""

import os
import signal
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import fpmdask
from fpmdask.cli import main
from fpmdask.cli.group import Commands
from fpmdask.errors import LabError


def commands(group=main, path=()):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def test_the_version(fpm):
    assert fpmdask.__version__ in fpm("--version").stdout


def test_the_help_names_the_exit_codes(fpm):
    shown = fpm("-h").stdout
    assert "130  interrupted" in shown
    assert all(name in shown for name in ("demo", "partition", "replay", "lab", "doctor"))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_has_help_and_json(fpm, path):
    result = fpm(*path, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (LabError("no room; make some"), 1, "Error: no room; make some"),
        (FileNotFoundError(2, "No such file", "x.json"), 1, "x.json: No such file; check"),
        (TimeoutError(), 1, "TimeoutError; try again"),
        (KeyboardInterrupt(), 130, "Interrupted"),
    ],
)
def test_foreseen_errors_are_sentences_on_stderr(error, code, said):
    @click.command()
    def failing():
        raise error

    group = Commands("fpm", commands=[failing])
    result = CliRunner().invoke(group, ["failing"])
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)


def test_sigterm_cleans_up_like_an_interrupt():
    cleaned = []

    @click.command()
    def working():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal has no effect")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # a second one does not disturb
            cleaned.append(True)

    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(Commands("fpm", commands=[working]), ["working"])
    assert result.exit_code == 143
    assert "Interrupted; what was started is taken down" in result.stderr
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_nobody_foresaw_keeps_its_traceback():
    @click.command()
    def failing():
        raise ZeroDivisionError

    result = CliRunner().invoke(Commands("fpm", commands=[failing]), ["failing"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_wrong_usage_is_2(fpm):
    assert fpm("partition").exit_code == 2
    assert fpm("dance").exit_code == 2


def test_the_import_loads_nothing_heavy():
    """Dask imports every command of its group `dask_cli` at each call of `dask`."""
    code = "import sys, fpmdask.cli; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"numpy", "scipy", "dask", "distributed", "rich", "matplotlib"}
    assert not heavy & {name.partition(".")[0] for name in loaded}


def test_it_runs_as_a_module():
    answer = subprocess.run(
        [sys.executable, "-m", "fpmdask", "--version"], capture_output=True, text=True, check=True
    )
    assert answer.stdout == f"fpmdask, version {fpmdask.__version__}\n"


@pytest.mark.slow
def test_it_is_a_command_of_dask():
    answer = subprocess.run(
        [sys.executable, "-m", "dask", "fpm", "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: dask fpm" in answer.stdout.replace("python -m dask", "dask")
    assert "replay" in answer.stdout
