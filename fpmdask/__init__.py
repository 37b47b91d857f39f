"""Make a Dask cluster of unequal workers finish together."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fpmdask.balancer import Balancer as Balancer
    from fpmdask.lab import Lab as Lab

# Public names load on first use, so that `import fpmdask` stays cheap.
_LAZY = {"Balancer": "fpmdask.balancer", "Lab": "fpmdask.lab"}

__all__ = ["Balancer", "Lab", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'fpmdask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
