"""Messages between processes are declared as TypedDicts, and checked where they arrive."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import (
    Any,
    Literal,
    NotRequired,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fpmdask.errors import CoordinatorError

# What a number may be sent as.
_NUMBERS: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float)}


class Measuring(TypedDict):
    """How speeds are measured; durations are seconds."""

    epsilon: float
    thorough: bool
    max_rounds: int
    policy: Mapping[str, Any] | None
    deadline: float
    hang: float
    scout: NotRequired[int]
    least_gain: NotRequired[float | None]


class Request(TypedDict):
    """What every request for a run has; durations are seconds."""

    workers: Sequence[str] | None
    measuring: Measuring
    recovery: NotRequired[float]
    within: NotRequired[str]


class Foreign(Request):
    """A request of another package's application; ``spec`` is the caller's."""

    spec: Mapping[str, Any]


class Packed(TypedDict):
    """A kernel: a registered one, or a user's code as bytes that only workers open."""

    name: str
    parameters: Mapping[str, Any]
    code: NotRequired[bytes]
    digest: NotRequired[str]


def check_message(kind: Any, message: Any, what: str, *, partial: bool = False) -> None:
    """Refuse a message that is not what a TypedDict declares.

    Parameters
    ----------
    kind
        The TypedDict.
    message
        What has come.
    what
        What it is called in the error.
    partial
        Whether parts may be missing.

    Raises
    ------
    CoordinatorError
        Naming the part, what was found and what is allowed. Its sender gets it.

    Examples
    --------
    >>> check_message(Packed, {"name": "power", "parameters": {}}, "the kernel")
    >>> check_message(Packed, {"name": 3, "parameters": {}}, "the kernel")
    Traceback (most recent call last):
        ...
    fpmdask.errors.CoordinatorError: the kernel's name is an int; it must be str
    >>> check_message(Packed, {"name": "power", "units": 3}, "the kernel")
    Traceback (most recent call last):
        ...
    fpmdask.errors.CoordinatorError: the kernel has no part units; parts are name, parameters, \
code, digest
    """
    if not isinstance(message, Mapping):
        raise CoordinatorError(f"{what} is {_kind(message)}; it must be a mapping")
    hints, required = _parts(kind)
    for name, value in message.items():
        if name not in hints:
            raise CoordinatorError(f"{what} has no part {name}; parts are {', '.join(hints)}")
        _check(hints[name], value, f"{what}'s {name}")
    if not partial and (missing := sorted(required - message.keys())):
        raise CoordinatorError(f"{what} lacks {', '.join(missing)}")


@cache
def _parts(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of a message's parts, and which of them must be there.

    ``__required_keys__`` is wrong where annotations are strings.
    """
    marked = get_type_hints(kind, include_extras=True)
    required = {name for name, one in marked.items() if get_origin(one) is not NotRequired}
    return get_type_hints(kind), frozenset(required)


def _check(kind: Any, value: Any, what: str) -> None:
    if is_typeddict(kind):
        check_message(kind, value, what)
    elif not _fits(kind, value):
        text = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        raise CoordinatorError(f"{what} is {_kind(value)}; it must be {text}")


def _fits(kind: Any, value: Any) -> bool:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if kind is None or kind is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(_fits(one, value) for one in args)
    if origin is Literal:
        return value in args
    if is_typeddict(kind):
        try:
            check_message(kind, value, "")
        except CoordinatorError:
            return False
        return True
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(_fits(args[0], one) for one in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(args[0], key) and _fits(args[1], one) for key, one in value.items()
        )
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    return isinstance(value, kind)


def _kind(value: Any) -> str:
    """Return the name of a value's type with an article; None by itself."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
