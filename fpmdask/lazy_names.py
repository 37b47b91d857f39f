"""Names of a package that load on first use: importing it stays cheap. Pure."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package (PEP 562).

    Parameters
    ----------
    package
        Its name.
    homes
        Name -> the module that has it, or is it. A module of the package that has the name of
        something else would be found instead, once it is imported.

    Examples
    --------
    >>> load, names = lazy("fpmdask", {"sqrt": "math"})
    >>> "sqrt" in names(), "__version__" in names()
    (True, True)
    >>> load("sqrt")(4.0)
    2.0
    >>> load("cbrt")
    Traceback (most recent call last):
      ...
    AttributeError: module 'fpmdask' has no attribute 'cbrt'
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
