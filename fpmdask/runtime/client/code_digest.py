"""What tells one function of a user from another, also in a process that starts later.

Pickled code has the names of files and the numbers of lines, which a notebook's next kernel and an
edited comment change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dask.base import tokenize


def code_digest(function: Any) -> str:
    """Return a hash of a function's code, and of what it refers to.

    That is: defaults, what it closes over, and globals that it names. Of functions, classes and
    objects among these, those of the same package count with their code, others with their names;
    all other values with `dask.base.tokenize`.

    Examples
    --------
    >>> def scaled(factor):
    ...     return lambda block: factor * block
    >>> code_digest(scaled(2)) == code_digest(scaled(2))
    True
    >>> code_digest(scaled(2)) == code_digest(scaled(3))
    False
    """
    package = str(getattr(function, "__module__", type(function).__module__)).partition(".")[0]
    found = hashlib.sha256()
    for part in _parts(function, package, {}):
        found.update(repr(part).encode() + b"\0")
    return found.hexdigest()[:16]


def _parts(value: Any, package: str, seen: dict[int, int]) -> Iterator[Any]:
    """Yield what tells a value from others, in an order that is always the same."""
    if id(value) in seen:
        yield "again", seen[id(value)]
        return
    if isinstance(value, partial):
        values: list[Any] = [value.func, *value.args, *sorted(value.keywords.items())]
    elif isinstance(value, MethodType):
        values = [value.__func__, value.__self__]
    elif isinstance(value, tuple | list):
        values = [len(value), *value]
    elif hasattr(value, "py_func"):  # compiled by Numba
        values = [value.py_func]
    elif isinstance(value, FunctionType | type):
        seen[id(value)] = len(seen)
        yield value.__module__, value.__qualname__
        if not _is_of(value, package):
            return
        if isinstance(value, type):
            values = [one for _, one in sorted(vars(value).items()) if callable(one)]
        else:
            values = [value.__code__, value.__defaults__, value.__kwdefaults__]
            cells = value.__closure__ or ()
            values += [cell.cell_contents for cell in cells if _is_full(cell)]
            names = sorted(_names(value.__code__) & value.__globals__.keys())
            values += [(name, value.__globals__[name]) for name in names]
    elif isinstance(value, CodeType):
        yield value.co_code, value.co_names, value.co_varnames, value.co_freevars
        # frozensets have no order
        values = [sorted(map(repr, c)) if isinstance(c, frozenset) else c for c in value.co_consts]
    elif _is_of(type(value), package) and hasattr(value, "__dict__"):
        seen[id(value)] = len(seen)
        values = [type(value), *sorted(vars(value).items())]
    else:
        yield value.__name__ if isinstance(value, ModuleType) else tokenize(value)
        return
    for one in values:
        yield from _parts(one, package, seen)


def _is_of(value: Any, package: str) -> bool:
    return str(value.__module__).partition(".")[0] == package


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # what is defined later
        return False


def _names(code: CodeType) -> set[str]:
    """Return the names of globals, and of attributes, in a function and those within it."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)
