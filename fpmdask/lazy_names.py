"""Names of a package that load on first use: importing it stays cheap. Pure."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package (PEP 562).

    Parameters
    ----------
    package
        Its name.
    homes
        Name -> the module that has it, or is it. A module of the package that has the name of
        something else would be found instead, once it is imported.

    Examples
    --------
    >>> load = lazy("here", {"sqrt": "math"})
    >>> load("sqrt")(4.0)
    2.0
    >>> load("cbrt")
    Traceback (most recent call last):
      ...
    AttributeError: module 'here' has no attribute 'cbrt'
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    return load
