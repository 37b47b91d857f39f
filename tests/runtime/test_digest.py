"""A user's function is known again where its text has moved, not where it does something else."""

import types

import pytest

from fpmdask.runtime.client.kernels import digest, packed


def made(text, file="one.py", **names):
    """Return the function ``f`` of a module of this text, as a notebook's: pickled by value."""
    module = types.ModuleType("__main__")
    module.__dict__.update(names)
    exec(compile(text, file, "exec"), module.__dict__)
    return module.f


PLAIN = "def f(units):\n    g = lambda x: x + 1\n    return g(units)\n"


@pytest.mark.parametrize(
    "text",
    ["# a comment\n\n" + PLAIN, PLAIN.replace("return", "# another\n\n    return"), PLAIN],
)
def test_comments_lines_and_files_change_nothing(text):
    assert digest(made(text, "another.py")) == digest(made(PLAIN))


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("+ 1", "+ 2"),
        PLAIN.replace("+ 1", "- 1"),
        PLAIN.replace("f(units)", "f(units, k=3)"),
    ],
)
def test_what_a_function_does_changes_it(text):
    assert digest(made(text)) != digest(made(PLAIN))


def test_what_a_function_uses_changes_it():
    text = "def f(units):\n    return units * factor\n"
    assert digest(made(text, factor=2)) != digest(made(text, factor=3))
    assert digest(made(text, factor=2)) == digest(made(text, factor=2))


def test_workers_get_that_digest():
    function = made(PLAIN)
    assert packed("f", function, "kernel f")["digest"] == digest(function)
