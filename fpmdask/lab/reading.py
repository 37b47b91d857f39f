"""Readers of single values in a cluster definition: each returns the value or refuses it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fpmdask.errors import LabError
from fpmdask.lab.definition import BACKENDS, SCHEDULERS

_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BITS = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9}


def refuse(value: Any, where: str, wanted: str) -> LabError:
    """Return the error for a value that a definition may not have."""
    return LabError(f"{where} is {value!r}; it must be {wanted}")


def quantity(units: Mapping[str, int], least: int) -> Callable[[Any, str], int]:
    """Return a reader of sizes or rates: whole numbers, or text like "1 GB"."""

    def read(value: Any, where: str) -> int:
        number = value if isinstance(value, int) and not isinstance(value, bool) else -1
        if isinstance(value, str):
            match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value)
            if match is not None and match[2] in units:
                number = round(float(match[1]) * units[match[2]])
        if number < least:
            wanted = f"a whole number ≥ {least} or a number with one of the units"
            raise refuse(value, where, f"{wanted} {', '.join(units)}")
        return number

    return read


def choice(allowed: tuple[str, ...]) -> Callable[[Any, str], str]:
    """Return a reader of one of some texts."""

    def read(value: Any, where: str) -> str:
        if value not in allowed:
            raise refuse(value, where, f"one of {', '.join(allowed)}")
        return str(value)

    return read


def number(low: float, high: float, wanted: str) -> Callable[[Any, str], float]:
    """Return a reader of numbers in a range."""

    def read(value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(value, where, wanted)
        if not low <= value <= high:
            raise refuse(value, where, wanted)
        return float(value)

    return read


def count(value: Any, where: str) -> int:
    """Read a whole number ≥ 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refuse(value, where, "a whole number ≥ 1")
    return value


def flag(value: Any, where: str) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise refuse(value, where, "true or false")
    return value


def text(value: Any, where: str) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise refuse(value, where, "a text")
    return value


def texts(value: Any, where: str) -> tuple[str, ...]:
    """Read a list of texts."""
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise refuse(value, where, "a list of texts")
    return tuple(value)


def modules(value: Any, where: str) -> tuple[str, ...]:
    """Read a list of module names."""
    modules = texts(value, where)
    if not all(part.isidentifier() for module in modules for part in module.split(".")):
        raise refuse(value, where, "a list of module names")
    return modules


def cpus(value: Any, where: str) -> tuple[int, ...]:
    """Read a list of CPU numbers."""
    if not isinstance(value, list) or not all(type(cpu) is int and cpu >= 0 for cpu in value):
        raise refuse(value, where, "a list of CPU numbers")
    return tuple(value)


def variables(value: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    """Read a table of environment variables."""
    if not all(isinstance(part, str | int | float) for part in value.values()):
        raise refuse(value, where, "a table of texts and numbers")
    return tuple(sorted((key, str(part)) for key, part in value.items()))


_Readers = Mapping[str, Callable[[Any, str], Any]]
LAB: _Readers = {
    "backend": choice(BACKENDS),
    "scheduler": choice(SCHEDULERS),
    "period": number(0.001, 1.0, "a number of seconds, 0.001 to 1 s"),
    "pin": flag,
    "imports": modules,
    "dashboard": flag,
}
WORKER: _Readers = {
    "cpu": number(5e-324, 1e6, "a number of cores > 0"),
    "nthreads": count,
    "memory": quantity(_BYTES, 1),
    "swap": quantity(_BYTES, 0),
    "rate": quantity(_BITS, 1),
    "disk_overhead": number(0.0, 10.0, "a number of seconds, 0 to 10"),
    "disk_seconds_per_byte": number(0.0, 1e-3, "a number of seconds, 0 to 0.001"),
    "affinity": cpus,
    "environment": variables,
    "memory_manager": flag,
    "nanny": flag,
    "preload": texts,
    "arguments": texts,
}
