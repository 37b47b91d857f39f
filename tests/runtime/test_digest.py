"""A user's function is known again where its text has moved, not where it does something else."""

import dataclasses
import enum
import functools
import threading
import types
from dataclasses import dataclass
from functools import partial

import dask
import numpy as np
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


CALLED = "    def __call__(self, x):\n        return x * self.k\nf = C()\n"


@pytest.mark.parametrize(
    "text",
    [
        "class C:\n    k = {k}\n" + CALLED,
        "class B:\n    k = {k}\nclass C(B):\n" + CALLED,
        "class C:\n    @property\n    def k(self):\n        return {k}\n" + CALLED,
        "class C:\n    @functools.cached_property\n    def k(self):\n        return {k}\n" + CALLED,
        "class C:\n    __slots__ = ('k',)\n    def __init__(self):\n        self.k = {k}\n"
        + CALLED,
        "@dataclasses.dataclass(slots=True)\nclass C:\n    k: float = {k}\n" + CALLED,
        "class C:\n    g = functools.partialmethod(int.__add__, {k})\n"
        "def f(x):\n    return C().g(x)\n",
        "class C:\n    @classmethod\n    def g(cls):\n        return {k}\n"
        "def f(x):\n    return C.g()\n",
        "class M(type):\n    def g(cls):\n        return {k}\n"
        "class C(metaclass=M):\n    pass\ndef f(x):\n    return C.g()\n",
        "class C(enum.Enum):\n    K = {k}\ndef f(x):\n    return x * C.K.value\n",
        "class C(float):\n    pass\nk = C({k})\ndef f(x):\n    return x * k\n",
        "class C(dict):\n    def g(self):\n        return {k}\n"
        "c = C()\ndef f(x):\n    return c.g()\n",
        "class C(numpy.ndarray):\n    pass\n"
        "k = numpy.array([{k}]).view(C)\ndef f(x):\n    return x * k\n",
        "@functools.lru_cache\ndef g():\n    return {k}\ndef f(x):\n    return x * g()\n",
        "def f(x):\n    return x * f.k\nf.k = {k}\n",
    ],
)
def test_what_classes_and_functions_hold_changes_it(text):
    names = {"functools": functools, "dataclasses": dataclasses, "enum": enum, "numpy": np}
    first, same, other = (code_digest(made(text.format(k=k), **names)) for k in (2, 2, 3))
    assert first == same != other


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("i = [0, 1]\ndef f(x):\n    return x[i]\n", "i = (0, 1)\ndef f(x):\n    return x[i]\n"),
        ("def f(x, y):\n    return y\n", "def f(x, *y):\n    return y\n"),
        (
            "def f(x):\n    try:\n        x = x + 1\n        x = x * 2\n"
            "    except ValueError:\n        x = 3\n    return x\n",
            "def f(x):\n    try:\n        x = x + 1\n"
            "    except ValueError:\n        x = 3\n    else:\n        x = x * 2\n    return x\n",
        ),
        (
            "class C:\n    @staticmethod\n    def g(*x):\n        return x\nf = C\n",
            "class C:\n    @classmethod\n    def g(*x):\n        return x\nf = C\n",
        ),
        (
            "f = functools.partial(dict, ('a', 1))\n",
            "f = functools.partial(dict, a=1)\n",
        ),
        (
            "class C:\n    pass\nf = C\n",
            "class C:\n    __array_ufunc__ = None\nf = C\n",
        ),
    ],
)
def test_what_looks_alike_and_is_not_is_told_apart(text, other):
    assert code_digest(made(text, functools=functools)) != code_digest(
        made(other, functools=functools)
    )


def test_what_holds_itself_has_a_digest():
    held = []
    held.append(held)
    text = "def f(x):\n    return x, held, later\n"
    later = dask.delayed(3)
    assert code_digest(made(text, held=held, later=later)) == code_digest(
        made(text, held=held, later=later)
    )


def test_what_pickle_is_told_to_set_is_no_part():
    text = (
        "class C:\n    def __reduce__(self):\n"
        "        return C, (), {{'a': {k}}}, None, None, lambda one, state: None\nf = C()\n"
    )
    first, same, other = (code_digest(made(text.format(k=k))) for k in (2, 2, 3))
    assert first == same != other


def test_an_object_that_cannot_be_pickled_counts_by_its_attributes():
    text = (
        "class C:\n    def __init__(self):\n        self.k, self.gate = {k}, Lock()\n"
        "    def __reduce_ex__(self, protocol):\n        raise TypeError('none')\n" + CALLED
    )
    first, same, other = (
        code_digest(made(text.format(k=k), Lock=threading.Lock)) for k in (2, 2, 3)
    )
    assert first == same != other


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

    class Names(set):
        """One of a user's own."""

    assert code_digest(Names([0, 8])) == code_digest(Names([8, 0])) != code_digest(Names([0]))


def test_generators_of_random_numbers_count_by_their_seeds():
    text = "def f(units):\n    return generator.random()\n"
    first, same, other = (
        code_digest(made(text, generator=np.random.default_rng(seed))) for seed in (1, 1, 2)
    )
    assert first == same != other


def test_what_has_no_digest_counts_by_its_type():
    """Locks, events and connections: a function that waits for one is the same every time."""
    text = "def f(units):\n    gate.wait()\n"
    function = made(text, gate=threading.Event())
    assert code_digest(function) == code_digest(function)
    assert code_digest(function) == code_digest(made(text, gate=threading.Event()))
    assert code_digest(function) != code_digest(made(text, gate=threading.Lock()))
