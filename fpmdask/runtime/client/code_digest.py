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
from functools import cache, cached_property, partial, partialmethod
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from dask.tokenize import TokenizationError, tokenize


def code_digest(code: Any) -> str:
    """Return a hash of a function or another object that a user gives, and of what it refers to.

    That is: defaults, what it closes over, attributes, and globals that it names. Functions and
    classes count with their code and members, those of installed packages with their names and
    what they close over; objects of classes that are not installed with what pickle takes of them;
    all other values with `dask.tokenize.tokenize`, or with their type where that has no answer that
    lasts (locks, connections, `numpy.frompyfunc`). Comments, lines and files change nothing. What a
    class, a function or a global gathers meanwhile, as a counter or a cache, changes it, and so
    does a generator of random numbers without a seed.

    Not seen are constants of other modules, what is found by another way than by its name
    (``globals()["k"]``), and the code of a module's function within an object of an installed class
    (`numpy.vectorize`, `types.SimpleNamespace`), which counts by its name.

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


def _parts(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[Any]:
    """Yield what tells a value from others, in an order that is always the same.

    ``seen``: id → its number, and the value, which is kept so that no other one gets its id.
    """
    if id(value) in seen:
        yield "again", seen[id(value)][0]
        return
    kind = type(value).__qualname__
    match value:
        case _ if _is_own_object(value):
            seen[id(value)] = len(seen), value
            values = _of_object(value)
        case partial() | partialmethod():
            values = [kind, value.func, [*value.args], sorted(value.keywords.items())]
        case MethodType():
            values = [value.__func__, value.__self__]
        case staticmethod() | classmethod():
            values = [kind, value.__func__]
        case property():
            values = [value.fget, value.fset, value.fdel]
        case cached_property():
            values = [kind, value.func]
        case tuple():
            values = [kind, len(value), *value]
        case list():
            seen[id(value)] = len(seen), value
            values = [kind, len(value), *value]
        case dict():
            seen[id(value)] = len(seen), value
            values = [kind, len(value), *value.items(), getattr(value, "default_factory", None)]
        case set() | frozenset():  # they have no order
            values = [kind, *sorted(map(code_digest, value))]
        case _ if isinstance(getattr(value, "py_func", None), FunctionType):  # compiled by Numba
            values = [value.py_func]
        case FunctionType() | type():
            seen[id(value)] = len(seen), value
            yield value.__qualname__
            values = _of_class(value) if isinstance(value, type) else _of_function(value)
        case _ if isinstance(getattr(value, "__wrapped__", None), FunctionType):  # functools.cache
            values = [kind, value.__wrapped__]
        case CodeType():
            yield value.co_code, value.co_names, value.co_varnames, value.co_freevars
            yield value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount
            yield value.co_flags, value.co_exceptiontable
            values = [*value.co_consts]
        case _:
            named = isinstance(value, ModuleType | MemberDescriptorType)  # a slot of a class
            yield value.__name__ if named else _token(value)
            return
    for one in values:
        yield from _parts(one, seen)


def _is_own_object(value: Any) -> bool:
    """Tell whether a value is an object, and no class, of a class that may change."""
    return not isinstance(value, type) and (_is_own(type(value)) or is_dataclass(value))


def _of_object(value: Any) -> list[Any]:
    """Return what pickle takes: attributes, slots, and what a subclass of a container holds."""
    try:
        found = value.__reduce_ex__(4)
        if isinstance(found, str):  # the name of a global
            return [type(value), found]
        whole: list[Any] = [*found, None, None, None]
        made, arguments, state, members, pairs = whole[:5]
        held = [one and [*one] for one in (members, pairs)]
    except Exception:  # whatever a class of the user's raises
        return [type(value), *sorted(getattr(value, "__dict__", {}).items())]
    if isinstance(value, set | frozenset):
        arguments = set(value)  # it has no order
    if isinstance(state, dict):
        state = sorted(state.items(), key=lambda item: str(item[0]))
    return [type(value), made, arguments, state, *held]


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
    told = ((name, one) for name, one in members if not _is_special(name) or _acts(one))
    kinds = [kind for kind in (type(value),) if kind is not type]
    return [*kinds, *value.__bases__, *told]


def _acts(member: Any) -> bool:
    """Tell whether a member of a class does something, or switches off what would."""
    acting = (property, cached_property, classmethod, partialmethod)
    return member is None or callable(member) or isinstance(member, acting)


def _is_special(name: str) -> bool:
    """Tell whether a name is of those by which Python describes a class, as ``__doc__``."""
    return name.startswith("__") and name.endswith("__")


def _of_function(value: FunctionType) -> list[Any]:
    values = [value.__defaults__, value.__kwdefaults__]
    values += [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
    if not _is_own(value):
        return [value.__module__, *values]
    names = sorted(_names(value.__code__) & value.__globals__.keys())
    named = ((name, value.__globals__[name]) for name in names)
    return [value.__code__, *values, *named, *sorted(vars(value).items())]


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
