"""Values are checked against declared types where messages arrive; dataclasses become plain data.

Pure: used in every process. A message is declared as a TypedDict or a frozen dataclass; its parts
are these, numbers, strings, bytes, sequences, mappings, tuples, literals, and unions of them.
Sequences and mappings are looked at, not read: of each the first `LOOKED_AT` elements, since checks
run on event loops. What checks a type is made once and costs about a microsecond per message.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import (
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fpmdask.errors import CoordinatorError

# Of a sequence or a mapping so many elements are looked at.
LOOKED_AT = 16

Fits = Callable[[Any], bool]
Convert = Callable[[Any], Any]


class MalformedError(CoordinatorError):
    """A message is not what its type declares."""


def check_value(kind: Any, value: Any, what: str) -> None:
    """Refuse a value that is not of a declared type.

    Parameters
    ----------
    kind
        The type.
    value
        What has come.
    what
        What it is called in the error.

    Raises
    ------
    MalformedError
        Naming the element, what was found and what is allowed. Its sender gets it.

    Examples
    --------
    >>> check_value(Sequence[int], [1, 2], "the answer")
    >>> check_value(Mapping[str, Sequence[int]], {"a": [1, "2"]}, "the answer")
    Traceback (most recent call last):
        ...
    fpmdask.runtime.validation.MalformedError: the answer['a'][1] is a str; it must be int
    """
    if not fitting(kind)(value):
        raise MalformedError(_misfit(kind, value, what, "'s "))


def check_message(kind: Any, message: Any, what: str, *, partial: bool = False) -> None:
    """Refuse a message that is not what a TypedDict or a dataclass declares, or one of a union.

    Parameters
    ----------
    kind
        The type; None: no such message is declared.
    message
        What has come.
    what
        What it is called in the error.
    partial
        Whether parts may be missing.

    Raises
    ------
    MalformedError
        As `check_value`.

    Examples
    --------
    >>> from typing import TypedDict
    >>> Link = TypedDict("Link", {"bandwidth": float})
    >>> Links = TypedDict("Links", {"links": Sequence[Link]})
    >>> check_message(Links, {"links": [{"bandwidth": 1e9}]}, "the answer")
    >>> check_message(Links, {"links": [{"bandwidth": ""}]}, "it")
    Traceback (most recent call last):
        ...
    fpmdask.runtime.validation.MalformedError: it's links[0].bandwidth is a str; it must be float
    >>> check_message(Links, {"units": 3}, "the answer")
    Traceback (most recent call last):
        ...
    fpmdask.runtime.validation.MalformedError: the answer has no part units; parts are links
    """
    if kind is None:
        raise MalformedError(f"{what} is unknown: none is declared")
    if not isinstance(message, Mapping):
        raise MalformedError(f"{what} is {_kind(message)}; it must be a mapping")
    if not partial:
        check_value(kind, message, what)
        return
    parts = parts_of(kind)
    for name, value in message.items():
        if name not in parts:
            raise MalformedError(_no_part(what, name, parts))
        if not fitting(parts[name])(value):
            raise MalformedError(_misfit(parts[name], value, f"{what}'s {name}"))


def check_named(kinds: Mapping[str, Any], name: Any, message: Any, what: str) -> None:
    """Refuse a message that is of none of some kinds, by its name, or is malformed.

    Raises
    ------
    MalformedError
        As `check_value`.
    """
    if name not in kinds:
        raise MalformedError(f"{what} is {name!r}; known are {', '.join(map(str, kinds))}")
    check_message(kinds[name], message, f"{what} {name!r}")


def as_plain(kind: Any, value: Any) -> Any:
    """Return a value of a declared type as what messages carry: dataclasses become dicts.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Link:
    ...     bandwidth: float
    >>> as_plain(Mapping[str, Link], {"a": Link(1e9)})
    {'a': {'bandwidth': 1000000000.0}}
    """
    convert = _conversion(kind, False)
    return value if convert is None else convert(value)


def from_plain(kind: Any, value: Any) -> Any:
    """Rebuild what `as_plain` was given; the value has been checked.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Link:
    ...     bandwidth: float
    >>> from_plain(Sequence[Link], [{"bandwidth": 1e9}])
    [Link(bandwidth=1000000000.0)]
    """
    convert = _conversion(kind, True)
    return value if convert is None else convert(value)


# ---- what a type has


def is_declared(kind: Any) -> bool:
    """Tell whether a type says which parts a message has: a TypedDict or a dataclass."""
    return is_typeddict(kind) or (isinstance(kind, type) and dataclasses.is_dataclass(kind))


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type that it is."""
    return get_args(kind) if _is_union(kind) else (kind,)


@cache
def parts_of(kind: Any) -> dict[str, Any]:
    """Return name → type of each part of a declared message, without `NotRequired`."""
    if is_typeddict(kind):
        return get_type_hints(kind)
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


@cache
def required_of(kind: Any) -> frozenset[str]:
    """Return the names of the parts that a declared message must have.

    ``__required_keys__`` alone is wrong where annotations are strings.
    """
    if is_typeddict(kind):
        marked = get_type_hints(kind, include_extras=True)
        optional = {name for name, one in marked.items() if get_origin(one) is NotRequired}
        return frozenset(kind.__required_keys__ - optional)
    missing = dataclasses.MISSING
    return frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.init and field.default is missing and field.default_factory is missing
    )


def type_name(kind: Any) -> str:
    """Return a type as errors write it."""
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


# ---- does it fit?


def _anything(value: Any) -> bool:
    return True


def _is_none(value: Any) -> bool:
    return value is None


def _is_int(value: Any) -> bool:
    return type(value) is int or (isinstance(value, int) and not isinstance(value, bool))


def _is_float(value: Any) -> bool:
    return type(value) is float or isinstance(value, float) or _is_int(value)


_SIMPLE: dict[Any, Fits] = {
    Any: _anything,
    object: _anything,
    None: _is_none,
    type(None): _is_none,
    int: _is_int,
    float: _is_float,
}


@cache
def fitting(kind: Any, most: int = LOOKED_AT) -> Fits:
    """Return what tells whether a value is of a type, as far as ``most`` elements are looked at."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if _is_union(kind):
        return _fits_one([fitting(one, most) for one in args])
    if origin is Literal:
        return lambda value: value in args
    if is_declared(kind):
        parts = {name: fitting(one, most) for name, one in parts_of(kind).items()}
        return _fits_parts(parts, required_of(kind))
    if origin is tuple and args[-1] is not Ellipsis:
        return _fits_each([fitting(one, most) for one in args])
    if origin in (Sequence, list, tuple):
        return _fits_all(fitting(args[0], most), most)
    if origin in (Mapping, dict):
        return _fits_items(fitting(args[0], most), fitting(args[1], most), most)
    return lambda value: isinstance(value, kind)


def _fits_one(some: Sequence[Fits]) -> Fits:
    def fits(value: Any) -> bool:
        for one in some:  # noqa: SIM110  (a generator takes twice as long)
            if one(value):
                return True
        return False

    return fits


def _fits_parts(parts: Mapping[str, Fits], required: frozenset[str]) -> Fits:
    count = len(parts)

    def fits(value: Any) -> bool:
        if type(value) is not dict and not isinstance(value, Mapping):
            return False
        for name, one in value.items():
            check = parts.get(name)
            if check is None or not check(one):
                return False
        return len(value) == count or required <= value.keys()

    return fits


def _fits_each(parts: Sequence[Fits]) -> Fits:
    count = len(parts)
    checked = [(n, one) for n, one in enumerate(parts) if one is not _anything]

    def fits(value: Any) -> bool:
        if type(value) is not tuple and not isinstance(value, list | tuple):
            return False
        if len(value) != count:
            return False
        for n, one in checked:  # noqa: SIM110  (as above)
            if not one(value[n]):
                return False
        return True

    return fits


def _fits_all(each: Fits, most: int) -> Fits:
    def fits(value: Any) -> bool:
        if type(value) is not tuple and not isinstance(value, list | tuple):
            return False
        if each is not _anything:
            for one in value if len(value) <= most else value[:most]:
                if not each(one):
                    return False
        return True

    return fits


def _fits_items(key: Fits, each: Fits, most: int) -> Fits:
    def fits(value: Any) -> bool:
        if type(value) is not dict and not isinstance(value, Mapping):
            return False
        if key is _anything and each is _anything:
            return True
        items = value.items() if len(value) <= most else islice(value.items(), most)
        for name, one in items:  # noqa: SIM110  (as above)
            if not (key(name) and each(one)):
                return False
        return True

    return fits


# ---- why does it not fit?


def _misfit(kind: Any, value: Any, at: str, joined: str = ".") -> str:
    """Return what is wrong with a value that does not fit, naming the innermost element.

    ``at`` is what it is called; the name of a part is ``joined`` to it.
    """
    if is_declared(kind):
        return _misfit_of_parts(kind, value, at, joined)
    if _is_union(kind):
        return _misfit_of_union(kind, value, at, joined)
    for element, one, name in _elements(kind, value, at):
        if not fitting(element)(one):
            return _misfit(element, one, name)
    return f"{at} is {_kind(value)}; it must be {type_name(kind)}"


def _misfit_of_parts(kind: Any, value: Any, at: str, joined: str) -> str:
    if not isinstance(value, Mapping):
        return f"{at} is {_kind(value)}; it must be a mapping"
    parts = parts_of(kind)
    for name, one in value.items():
        if name not in parts:
            return _no_part(at, name, parts)
        if not fitting(parts[name])(one):
            return _misfit(parts[name], one, f"{at}{joined}{name}")
    return f"{at} lacks {', '.join(sorted(required_of(kind) - value.keys()))}"


def _no_part(at: str, name: Any, parts: Mapping[str, Any]) -> str:
    return f"{at} has no part {name}; parts are {', '.join(parts) or 'none'}"


def _misfit_of_union(kind: Any, value: Any, at: str, joined: str) -> str:
    declared = [one for one in alternatives(kind) if is_declared(one)]
    if isinstance(value, Mapping) and declared:
        if len(declared) == 1:
            return _misfit(declared[0], value, at, joined)
        for one in declared:
            if required_of(one) <= value.keys() <= parts_of(one).keys():
                return _misfit(one, value, at, joined)
        found = ", ".join(map(str, value)) or "none"
        allowed = " | ".join(", ".join(parts_of(one)) for one in declared)
        return f"{at} has the parts {found}; allowed are {allowed}"
    inside = [one for one in alternatives(kind) if any(True for _ in _elements(one, value, at))]
    if len(inside) == 1:
        return _misfit(inside[0], value, at, joined)
    return f"{at} is {_kind(value)}; it must be {type_name(kind)}"


def _elements(kind: Any, value: Any, at: str) -> Iterable[tuple[Any, Any, str]]:
    """Yield type, value and name of the elements of a container of a type, if it is one."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Mapping, dict) and isinstance(value, Mapping):
        for key, one in islice(value.items(), LOOKED_AT):
            yield args[0], key, f"the key {key!r} of {at}"
            yield args[1], one, f"{at}[{key!r}]"
    elif origin in (Sequence, list, tuple) and isinstance(value, list | tuple):
        fixed = origin is tuple and args[-1] is not Ellipsis
        if not fixed or len(args) == len(value):
            for n, one in enumerate(value[: None if fixed else LOOKED_AT]):
                yield args[n if fixed else 0], one, f"{at}[{n}]"


def _kind(value: Any) -> str:
    """Return the name of a value's type with an article; None by itself."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


# ---- dataclasses and plain data


@cache
def _conversion(kind: Any, back: bool) -> Convert | None:
    """Return what makes plain data of values of a type, or values of plain data; None: the same."""
    origin, args = get_origin(kind), get_args(kind)
    if is_declared(kind):
        parts = {name: _conversion(one, back) for name, one in parts_of(kind).items()}
        changed = {name: convert for name, convert in parts.items() if convert is not None}
        if is_typeddict(kind):
            return _converted_parts(changed) if changed else None
        return _made(kind, changed) if back else _taken_apart(kind, parts)
    if _is_union(kind):
        some = [(one, _conversion(one, back)) for one in args]
        return _converted_by_type(some, back) if any(convert for _, convert in some) else None
    if origin in (Sequence, list) or (origin is tuple and args[-1] is Ellipsis):
        each = _conversion(args[0], back)
        return None if each is None else lambda values: [each(one) for one in values]
    if origin in (Mapping, dict):
        value = _conversion(args[1], back)
        return None if value is None else lambda values: {k: value(v) for k, v in values.items()}
    return None


def _converted_parts(changed: Mapping[str, Convert]) -> Convert:
    return lambda value: {
        name: changed[name](one) if name in changed else one for name, one in value.items()
    }


def _made(kind: Any, changed: Mapping[str, Convert]) -> Convert:
    parts = _converted_parts(changed)
    return lambda value: kind(**(parts(value) if changed else value))


def _taken_apart(kind: Any, parts: Mapping[str, Convert | None]) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            return value  # plain already
        return {
            name: getattr(value, name) if one is None else one(getattr(value, name))
            for name, one in parts.items()
        }

    return convert


def _converted_by_type(some: Sequence[tuple[Any, Convert | None]], back: bool) -> Convert:
    def convert(value: Any) -> Any:
        for kind, one in some:
            whole = not back and is_declared(kind) and not is_typeddict(kind)
            if isinstance(value, kind) if whole else fitting(kind)(value):
                return value if one is None else one(value)
        return value

    return convert
