"""A user's function is known again where its text has moved, not where it does something else."""

import threading
import types
from dataclasses import dataclass
from functools import partial

import pytest

from fpmdask.apps.stencil.block import Update
from fpmdask.runtime.client.code_digest import code_digest
from fpmdask.runtime.client.kernels import packed
from fpmdask.timing import FunctionKernel


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
    assert code_digest(made(text, "another.py")) == code_digest(made(PLAIN))


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("+ 1", "+ 2"),
        PLAIN.replace("+ 1", "- 1"),
        PLAIN.replace("f(units)", "f(units, k=3)"),
    ],
)
def test_what_a_function_does_changes_it(text):
    assert code_digest(made(text)) != code_digest(made(PLAIN))


def test_what_a_function_uses_changes_it():
    text = "def f(units):\n    return units * factor\n"
    assert code_digest(made(text, factor=2)) != code_digest(made(text, factor=3))
    assert code_digest(made(text, factor=2)) == code_digest(made(text, factor=2))


def test_workers_get_that_digest():
    function = made(PLAIN)
    assert packed("f", function, "kernel f")["digest"] == code_digest(function)


@dataclass(frozen=True)
class Wrapped:
    """What an application wraps a user's function in."""

    function: object
    several: bool = False


@pytest.mark.parametrize(
    "wrap", [Wrapped, lambda f: partial(f, 1), lambda f: {"f": f}, FunctionKernel]
)
def test_what_wraps_functions_tells_them_apart(wrap):
    first, same, other = (wrap(made(text)) for text in (PLAIN, PLAIN, PLAIN.replace("1", "2")))
    assert code_digest(first) == code_digest(same)
    assert code_digest(first) != code_digest(other)


def test_calls_of_applications_are_told_apart():
    """As packed for workers, by map_blocks and stencils."""
    doubled, tripled = (lambda block: 2 * block), (lambda block: 3 * block)
    assert code_digest(Update(doubled, False)) != code_digest(Update(tripled, False))
    assert code_digest(Update(doubled, False)) != code_digest(Update(doubled, True))


def test_sets_have_no_order():
    text = "def f(units):\n    return units in {names}\n"
    one, other = (made(text.format(names=set(n))) for n in (["a", "bb", "c"], ["c", "a", "bb"]))
    assert code_digest(one) == code_digest(other)
    assert code_digest({1, 2}) == code_digest({2, 1}) != code_digest({1, 3})


def test_what_has_no_digest_counts_by_its_type():
    """Locks, events and connections: a function that waits for one is the same every time."""
    text = "def f(units):\n    gate.wait()\n"
    function = made(text, gate=threading.Event())
    assert code_digest(function) == code_digest(function)
    assert code_digest(function) == code_digest(made(text, gate=threading.Event()))
    assert code_digest(function) != code_digest(made(text, gate=threading.Lock()))
