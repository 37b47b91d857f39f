"""What tells one function of a user from another, also in a process that starts later.

Pickled code has the names of files and the numbers of lines, which a notebook's next kernel and an
edited comment change; sets and classes are pickled in another way by each process.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dask.tokenize import TokenizationError, tokenize


def code_digest(code: Any) -> str:
    """Return a hash of a function or another object that a user gives, and of what it refers to.

    That is: defaults, what it closes over, attributes, and globals that it names. Functions and
    classes count with their code, those of installed packages with their names and what they close
    over; all other values with `dask.tokenize.tokenize`, or with their type where that has no
    answer that lasts (locks, connections). Comments, lines and files change nothing.

    Examples
    --------
    >>> def scaled(factor):
    ...     return lambda block: factor * block
    >>> code_digest(scaled(2)) == code_digest(scaled(2))
    True
    >>> code_digest(scaled(2)) == code_digest(scaled(3))
    False
    """
    found = hashlib.sha256()
    for part in _parts(code, {}):
        found.update(repr(part).encode() + b"\0")
    return found.hexdigest()[:16]


def _parts(value: Any, seen: dict[int, int]) -> Iterator[Any]:
    """Yield what tells a value from others, in an order that is always the same."""
    if id(value) in seen:
        yield "again", seen[id(value)]
        return
    match value:
        case partial():
            values: list[Any] = [value.func, *value.args, *sorted(value.keywords.items())]
        case MethodType():
            values = [value.__func__, value.__self__]
        case tuple() | list():
            values = [len(value), *value]
        case dict():
            values = [len(value), *value.items()]
        case set() | frozenset():  # they have no order
            values = sorted(map(code_digest, value))
        case _ if hasattr(value, "py_func"):  # compiled by Numba
            values = [value.py_func]
        case FunctionType() | type():
            seen[id(value)] = len(seen)
            yield value.__qualname__
            values = _of_class(value) if isinstance(value, type) else _of_function(value)
        case CodeType():
            yield value.co_code, value.co_names, value.co_varnames, value.co_freevars
            values = [*value.co_consts]
        case _ if hasattr(value, "__dict__") and (_is_own(type(value)) or is_dataclass(value)):
            seen[id(value)] = len(seen)
            values = [type(value), *sorted(vars(value).items())]
        case _:
            yield value.__name__ if isinstance(value, ModuleType) else _token(value)
            return
    for one in values:
        yield from _parts(one, seen)


def _token(value: Any) -> str:
    """Return what tells a value from others; of one that has no such thing, as a lock, its type."""
    try:
        return tokenize(value, ensure_deterministic=True)
    except TokenizationError:
        return f"{type(value).__module__}.{type(value).__qualname__}"


def _of_class(value: type) -> list[Any]:
    if not _is_own(value):
        return [value.__module__]
    members = sorted(vars(value).items())
    return [*value.__bases__, *((name, one) for name, one in members if callable(one))]


def _of_function(value: FunctionType) -> list[Any]:
    values = [value.__defaults__, value.__kwdefaults__]
    values += [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
    if not _is_own(value):
        return [value.__module__, *values]
    names = sorted(_names(value.__code__) & value.__globals__.keys())
    return [value.__code__, *values, *((name, value.__globals__[name]) for name in names)]


def _is_own(value: Any) -> bool:
    """Tell whether a function or class is of no installed package, so that its code may change."""
    module = sys.modules.get(value.__module__ or "")
    if value.__module__ == "__main__" or module is None:
        return True
    file = getattr(module, "__file__", None)
    return file is not None and not any(map(Path(file).is_relative_to, _installed()))


@cache
def _installed() -> list[str]:
    paths: Mapping[str, str] = sysconfig.get_paths()
    return [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # what is defined later
        return False


def _names(code: CodeType) -> set[str]:
    """Return the names of globals, and of attributes, in a function and those within it."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)
