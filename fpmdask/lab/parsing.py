"""Cluster definitions in TOML: found by name or path, checked, frozen."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fpmdask.errors import LabError
from fpmdask.lab.definition import LabDefinition, WorkerDefinition, check_quota
from fpmdask.lab.reading import LAB, WORKER, text

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
RESERVED = ("scheduler", "watch")


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
    given = str(name_or_path)
    if name is not None:
        _check_name(name, "the lab")
    if isinstance(name_or_path, Path) or given.endswith(".toml") or "/" in given:
        path = Path(name_or_path)
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise LabError(
                f"cannot read the cluster definition {given!r}: {why}; give the path of "
                f"a TOML file or one of the names {', '.join(definitions())}"
            ) from error
        try:
            return parse(source, name=path.stem if name is None else name)
        except LabError as error:
            raise LabError(f"{given}: {error}") from error
    if given not in definitions():
        raise LabError(
            f"no cluster definition is named {given!r}; known are {', '.join(definitions())}; "
            "a definition of your own is given by its path, for example ./mine.toml"
        )
    file = resources.files("fpmdask.lab") / "definitions" / f"{given}.toml"
    return parse(file.read_text(encoding="utf-8"), name=given if name is None else name)


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
    except (tomllib.TOMLDecodeError, RecursionError) as error:  # nested too deeply
        raise LabError(
            f"the definition {name!r} is not TOML: {error}; correct it there, "
            "workers/clusters/every-option.toml shows all that it can say"
        ) from error
    _check_name(name, "the lab")
    return _definition(tree, name)


def _definition(tree: Mapping[str, Any], name: str) -> LabDefinition:
    _known_keys(tree, {"description", "lab", "dask", "defaults", "workers"}, f"{name}")
    lab = _table(tree, "lab", name)
    defaults = _table(tree, "defaults", name)
    entries = tree.get("workers")
    if not isinstance(entries, list) or not entries:
        raise LabError(f"{name} has no workers; it needs at least one [[workers]] table")
    _known_keys(lab, set(LAB), f"[lab] of {name}")
    definition = LabDefinition(
        name=name,
        workers=tuple(_worker(entry, defaults, name) for entry in entries),
        description=text(tree.get("description", ""), f"description of {name}"),
        dask=tuple(_dask_variable(k, v) for k, v in _flat(_table(tree, "dask", name))),
        **{key: LAB[key](value, f"{key} of {name}") for key, value in lab.items()},
    )
    _check_lab(definition)
    return definition


def _worker(entry: Any, defaults: Mapping[str, Any], lab: str) -> WorkerDefinition:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise LabError(f"a worker of {lab} has no name; each [[workers]] table needs one (text)")
    where = f"worker {entry['name']!r} of {lab}"
    _check_name(entry["name"], where)
    _known_keys(defaults, set(WORKER), f"[defaults] of {lab}")
    _known_keys(entry, {"name", *WORKER}, where)
    values = {**defaults, **entry}
    parts = [_table(tree, "environment", where) for tree in (defaults, entry)]
    values["environment"] = {**parts[0], **parts[1]}
    del values["name"]
    checked = {key: WORKER[key](value, f"{key} of {where}") for key, value in values.items()}
    return WorkerDefinition(name=entry["name"], **checked)


def _check_lab(lab: LabDefinition) -> None:
    names = [worker.name for worker in lab.workers]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise LabError(f"{lab.name} has several workers named {', '.join(twice)}; rename them")
    for worker in lab.workers:
        if worker.cpu is not None:
            check_quota(worker.cpu, lab.period, f"worker {worker.name!r} of {lab.name}")
        if worker.swap and worker.memory is None:
            raise LabError(
                f"worker {worker.name!r} of {lab.name} has swap but no memory limit, so it would "
                "never page; give it memory too"
            )


def _check_name(name: str, where: str) -> None:
    if not NAME.fullmatch(name) or name in RESERVED:
        raise LabError(
            f"{name!r} cannot name {where}; allowed are 1 to 32 lower case letters, digits, "
            f"'-' and '_', beginning with a letter or digit, but not {' or '.join(RESERVED)}"
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
