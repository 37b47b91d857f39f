"""Cluster definitions in TOML: found by name or path, checked, frozen."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import resources
from pathlib import Path
from typing import Any

from fpmdask.errors import LabError
from fpmdask.lab.definition import (
    BACKENDS,
    SCHEDULERS,
    LabDefinition,
    WorkerDefinition,
    check_quota,
)

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BITS = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9}


def definitions() -> tuple[str, ...]:
    """Return the names of the definitions that come with fpmdask, sorted.

    Examples
    --------
    >>> "hcl6" in definitions()
    True
    """
    folder = resources.files("fpmdask.lab") / "definitions"
    return tuple(
        sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))
    )


def load(name_or_path: str | Path, *, name: str | None = None) -> LabDefinition:
    """Read a definition, by the name of one that comes with fpmdask or from a TOML file.

    Parameters
    ----------
    name_or_path : str or Path
        A name from `definitions`, or the path of a file: anything with a ``/`` or ending in
        ``.toml``.
    name : str, optional
        Name of the lab, if it is to differ from the file's.

    Returns
    -------
    LabDefinition
        The checked definition.

    Raises
    ------
    LabError
        If there is no such definition or it says something that cannot be.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        path = Path(name_or_path)
        try:
            source = path.read_text(encoding="utf-8")
        except OSError as error:
            raise LabError(
                f"cannot read the cluster definition {text!r}: {error.strerror}; give the path of "
                f"a TOML file or one of the names {', '.join(definitions())}"
            ) from error
        return parse(source, name=name or path.stem)
    if text not in definitions():
        raise LabError(
            f"no cluster definition is named {text!r}; known are {', '.join(definitions())}; "
            "a definition of your own is given by its path, for example ./mine.toml"
        )
    file = resources.files("fpmdask.lab") / "definitions" / f"{text}.toml"
    return parse(file.read_text(encoding="utf-8"), name=name or text)


def parse(source: str, *, name: str) -> LabDefinition:
    """Check the text of a definition and freeze it.

    Parameters
    ----------
    source : str
        TOML text.
    name : str
        Name of the lab.

    Returns
    -------
    LabDefinition
        The checked definition.

    Raises
    ------
    LabError
        If the text is not TOML, has a key that is not known or a value out of range.

    Examples
    --------
    >>> lab = parse('[[workers]]\\nname = "a"\\nmemory = "1 GB"', name="one")
    >>> lab.workers[0].memory
    1000000000
    """
    try:
        tree = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"the definition {name!r} is not TOML: {error}") from error
    _check_name(name, "the lab")
    _known_keys(tree, {"description", "lab", "dask", "defaults", "workers"}, f"{name}")
    lab = _table(tree, "lab", name)
    defaults = _table(tree, "defaults", name)
    entries = tree.get("workers")
    if not isinstance(entries, list) or not entries:
        raise LabError(f"{name} has no workers; it needs at least one [[workers]] table")
    options = {f.name for f in fields(LabDefinition)} - {"name", "workers", "description", "dask"}
    _known_keys(lab, options, f"[lab] of {name}")
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in lab.items()}
    definition = LabDefinition(
        name=name,
        workers=tuple(_worker(entry, defaults, name) for entry in entries),
        description=str(tree.get("description", "")),
        dask=tuple(_dask_variable(k, v) for k, v in _flat(_table(tree, "dask", name))),
        **given,
    )
    _check_lab(definition)
    return definition


def _worker(entry: Any, defaults: Mapping[str, Any], lab: str) -> WorkerDefinition:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise LabError(f"a worker of {lab} has no name; each [[workers]] table needs one (text)")
    where = f"worker {entry['name']!r} of {lab}"
    _check_name(entry["name"], where)
    known = {f.name for f in fields(WorkerDefinition)}
    _known_keys(defaults, known - {"name"}, f"[defaults] of {lab}")
    _known_keys(entry, known, where)
    values = {**defaults, **entry}
    variables = {**defaults.get("environment", {}), **entry.get("environment", {})}
    values["environment"] = tuple(sorted((str(k), str(v)) for k, v in variables.items()))
    for key in ("memory", "swap"):
        if key in values:
            values[key] = _quantity(values[key], _BYTES, f"{key} of {where}")
    if "rate" in values:
        values["rate"] = _quantity(values["rate"], _BITS, f"rate of {where}")
    for spec in fields(WorkerDefinition):
        default = spec.default
        if default is MISSING or spec.name not in values:
            continue
        values[spec.name] = _like(default, values[spec.name], spec.name, where)
    return WorkerDefinition(**values)


def _like(default: Any, value: Any, key: str, where: str) -> Any:
    """Return the value with the type of its default, or refuse it."""
    if isinstance(default, tuple) and isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(default, bool) or isinstance(value, bool):
        if isinstance(default, bool) and isinstance(value, bool):
            return value
    elif key == "cpu" and isinstance(value, int | float) and math.isfinite(value) and value > 0:
        return float(value)
    elif key != "cpu" and isinstance(value, int) and value >= (key != "swap"):
        return value
    allowed = {bool: "true or false", int: "a whole number ≥ 1", tuple: "a list"}
    wanted = "a number of cores > 0" if key == "cpu" else allowed.get(type(default), "a number > 0")
    raise LabError(f"{key} of {where} is {value!r}; it must be {wanted}")


def _check_lab(lab: LabDefinition) -> None:
    names = [worker.name for worker in lab.workers]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise LabError(f"{lab.name} has several workers named {', '.join(twice)}; rename them")
    for key, allowed in (("backend", BACKENDS), ("scheduler", SCHEDULERS)):
        if getattr(lab, key) not in allowed:
            raise LabError(
                f"{key} of {lab.name} is {getattr(lab, key)!r}; allowed are {', '.join(allowed)}"
            )
    if isinstance(lab.period, bool) or not isinstance(lab.period, int | float):
        raise LabError(f"period of {lab.name} is {lab.period!r}; it must be a number of seconds")
    if not 0.001 <= lab.period <= 1:
        raise LabError(f"period of {lab.name} is {lab.period} s; allowed are 0.001 to 1 s")
    for worker in lab.workers:
        if worker.cpu is not None:
            check_quota(worker.cpu, lab.period, f"worker {worker.name!r} of {lab.name}")
        if worker.swap and worker.memory is None:
            raise LabError(
                f"worker {worker.name!r} of {lab.name} has swap but no memory limit, so it would "
                "never page; give it memory too"
            )


def _check_name(name: str, where: str) -> None:
    if not NAME.fullmatch(name):
        raise LabError(
            f"{name!r} cannot name {where}; allowed are 1 to 32 lower case letters, digits, "
            "'-' and '_', beginning with a letter or digit"
        )


def _known_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(table) - known):
        raise LabError(
            f"{where} has the unknown option {', '.join(unknown)}; known are "
            f"{', '.join(sorted(known))}"
        )


def _table(tree: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    table = tree.get(key, {})
    if not isinstance(table, dict):
        raise LabError(f"{key} of {name} is {table!r}; it must be a table, [{key}]")
    return table


def _quantity(value: Any, units: Mapping[str, int], where: str) -> int:
    """Return a size or a rate in its smallest unit, from a whole number or text like "1 GB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = (
        re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]+)\s*", value) if isinstance(value, str) else None
    )
    if match is None or match[2] not in units or match[1].count(".") > 1:
        raise LabError(
            f"{where} is {value!r}; write a whole number or a number with one of the units "
            f"{', '.join(units)}"
        )
    return round(float(match[1]) * units[match[2]])


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            items += _flat(value, f"{prefix}{key}.")
        else:
            items.append((prefix + key, value))
    return items


def _dask_variable(key: str, value: Any) -> tuple[str, str]:
    """Return the environment variable that sets a key of Dask's configuration."""
    variable = "DASK_" + key.upper().replace(".", "__").replace("-", "_")
    return variable, value if isinstance(value, str) else repr(value)
